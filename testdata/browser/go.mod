module apilet-browser

go 1.26.0

require apilet/apilettest v0.0.0

replace apilet/apilettest => ../../apilettest
