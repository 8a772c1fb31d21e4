module apilet-browser

go 1.26.0

require apilet-harness v0.0.0

replace apilet-harness => ../harness
