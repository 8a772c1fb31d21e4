package main

func freshServer() flowObjects {
	mandatory, suggested := mandatoryObjects(), suggestedObjects()
	return flowObjects{schemas: append(mandatory.schemas, suggested.schemas...), levels: append(mandatory.levels, suggested.levels...)}
}
