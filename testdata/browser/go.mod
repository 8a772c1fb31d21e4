module apilet-browser

go 1.26.0
