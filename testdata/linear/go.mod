module apilet-linear

go 1.26.0

require github.com/anishathalye/porcupine v1.3.1

require (
	apilet-harness v0.0.0
	apilet/apilettest v0.0.0
)

replace apilet-harness => ../harness

replace apilet/apilettest => ../../apilettest
