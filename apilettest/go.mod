module apilet/apilettest

go 1.24.0
