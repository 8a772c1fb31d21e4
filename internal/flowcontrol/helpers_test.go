package flowcontrol

import (
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
)

func levelsOf(objs ...*flowcontrolv1.PriorityLevelConfiguration) []*flowcontrolv1.PriorityLevelConfiguration {
	return objs
}

func schemasOf(objs ...*flowcontrolv1.FlowSchema) []*flowcontrolv1.FlowSchema { return objs }

func freshServer() Objects {
	mandatory, suggested := MandatoryObjects(), SuggestedObjects()
	return Objects{Schemas: append(mandatory.Schemas, suggested.Schemas...), Levels: append(mandatory.Levels, suggested.Levels...)}
}
