package main

import (
	"apilet/internal/flowcontrol"
)

func freshServer() flowcontrol.Objects {
	mandatory, suggested := flowcontrol.MandatoryObjects(), flowcontrol.SuggestedObjects()
	return flowcontrol.Objects{Schemas: append(mandatory.Schemas, suggested.Schemas...), Levels: append(mandatory.Levels, suggested.Levels...)}
}
