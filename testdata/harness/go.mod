module apilet-harness

go 1.26.0
