package selector

// This file parses label selectors, and defines the selectable fields of each type.

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
)

// limit per set in a selector, because the library joins the errors of all values
const maxBadValues = 100

// ParseLabels parses a label selector. Sets with many invalid values are rejected first, because
// the library would take very long to report them.
func ParseLabels(text string) (labels.Selector, error) {
	for rest := text; ; {
		_, after, found := strings.Cut(rest, "(")
		if !found {
			return labels.Parse(text)
		}
		set, behind, _ := strings.Cut(after, ")")
		if bad := badValues(set); bad > maxBadValues {
			return nil, fmt.Errorf("unable to parse requirement: %d values of one set are no label values", bad)
		}
		rest = behind
	}
}

func badValues(set string) (bad int) {
	for value := range strings.SplitSeq(set, ",") {
		if len(validation.IsValidLabelValue(strings.TrimSpace(value))) > 0 {
			bad++
		}
	}
	return bad
}

// selectableFields lists the fields that kube-apiserver can select by, in addition to metadata.name
// and metadata.namespace. If typed JSON omits an empty field, the name is followed by the value of
// the empty field ("status.replicas|0").
var selectableFields = map[string][]string{
	"/pods": {"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork|false",
		"status.phase", "status.podIP", "status.podIPs", "status.nominatedNodeName"},
	"/events": {"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
		"involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason", "reportingComponent",
		"source", "type"},
	"/nodes":                  {"spec.unschedulable|false"},
	"/replicationcontrollers": {"status.replicas|0"},
	"/namespaces":             {"status.phase"},
	"/secrets":                {"type"},
	"/services":               {"spec.clusterIP", "spec.type"},
	"batch/jobs":              {"status.successful|0"},
	"certificates.k8s.io/certificatesigningrequests": {"spec.signerName"},
	"certificates.k8s.io/clustertrustbundles":        {"spec.signerName"},
	"certificates.k8s.io/podcertificaterequests":     {"spec.signerName", "spec.podName", "spec.nodeName"},
	"resource.k8s.io/resourceslices":                 {"spec.nodeName", "spec.driver", "spec.pool.name"},
}

// strictFields lists the kinds for which kube-apiserver rejects unknown fields with a special text.
var strictFields = map[string]string{
	"batch/jobs":                     "field label %q not supported for Job",
	"resource.k8s.io/resourceslices": "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: %s",
}

// eventField translates a field of an events.k8s.io Event to the field of the core Event, which is
// the stored type. It returns "" if the Event has no field of that name.
func eventField(name string) string {
	switch {
	case strings.HasPrefix(name, "involvedObject."), name == "reportingComponent", name == "source":
		return ""
	case strings.HasPrefix(name, "regarding."):
		return "involvedObject." + strings.TrimPrefix(name, "regarding.")
	case name == "reportingController":
		return "reportingComponent"
	}
	return name
}
