package scheme

// This file converts between versions with different fields. The rules are Kubernetes': both
// versions are converted to the internal type of the group. If a client reads an object and
// writes it back in another version, no fields are lost.

import (
	"encoding/json"
	"maps"
	"reflect"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/kubernetes/pkg/apis/autoscaling"

	"apilet/internal/bounded"
	"apilet/internal/scheme/internalversion"
)

// converting returns the conversion between the Go types of two versions.
func converting[Served, Stored any]() *Conversion {
	return conversionOf(reflect.TypeFor[Served](), reflect.TypeFor[Stored]())
}

func conversionOf(served, stored reflect.Type) *Conversion {
	return &Conversion{
		wire: served, stored: stored,
		in: func(obj Object) Object {
			if hpa, ok := obj.(*autoscalingv1.HorizontalPodAutoscaler); ok {
				boundAnnotations(hpa)
			}
			internalversion.Default(obj) // a default may depend on the version
			return convert(obj, stored)
		},
		Out: func(obj Object) Object { return convert(obj, served) },
	}
}

func convert(from Object, t reflect.Type) Object {
	to := newOf(t)
	internalversion.Into(to, internalversion.From(from))
	return to
}

// boundAnnotations checks the annotations that contain the fields of v2 in an object of
// autoscaling/v1, because Kubernetes decodes them without limits. It removes invalid annotations,
// as the conversion does, and annotations that would take too much time or memory to decode.
func boundAnnotations(hpa *autoscalingv1.HorizontalPodAutoscaler) {
	hpa.Annotations = maps.Clone(hpa.Annotations)
	for key, value := range map[string]any{
		autoscaling.MetricSpecsAnnotation:                       new([]autoscalingv1.MetricSpec),
		autoscaling.MetricStatusesAnnotation:                    new([]autoscalingv1.MetricStatus),
		autoscaling.HorizontalPodAutoscalerConditionsAnnotation: new([]autoscalingv1.HorizontalPodAutoscalerCondition),
		autoscaling.BehaviorSpecsAnnotation:                     new(autoscaling.HorizontalPodAutoscalerBehavior),
	} {
		text, ok := hpa.Annotations[key]
		if !ok {
			continue
		}
		if _, err := bounded.UnmarshalStrict([]byte(text), value); err != nil {
			delete(hpa.Annotations, key)
			continue
		}
		checked, _ := json.Marshal(value) // a decoded value can always be encoded
		hpa.Annotations[key] = string(checked)
	}
}
