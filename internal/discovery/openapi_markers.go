package discovery

// This file contains information that Kubernetes' generator reads from comments and types. For
// example, it defines default values and unions. The declared defaults and the relations of list
// elements are in scheme/listtypes.

import (
	_ "embed"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"

	"apilet/internal/scheme/listtypes"
)

// openAPITexts contains descriptions that are missing in SwaggerDoc, or that are incomplete because
// SwaggerDoc omits indented and empty lines. Each line contains the name of a type and a field, and
// the quoted text. For the description of the type, the field name is empty. A test compares the
// table with kube-apiserver's documents, and rewrites it with -update.
//
//	io.k8s.apimachinery.pkg.version.Info.major	"Major is the major version of the binary version"
//
//go:embed openapi_texts.txt
var openAPITexts string

func readTexts() map[string]string {
	texts := map[string]string{}
	for line := range strings.Lines(openAPITexts) {
		name, quoted, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		texts[name], _ = strconv.Unquote(quoted)
	}
	return texts
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// zeroOf returns the default value for fields without a declared default. Like Kubernetes'
// generator, it returns the zero value of the type. It returns nil for pointers, lists and maps,
// and for types that implement json.Unmarshaler, because their zero value is encoded as null.
func zeroOf(t reflect.Type, omitEmpty bool) any {
	if t.Kind() == reflect.Struct {
		if reflect.PointerTo(t).Implements(unmarshaler) {
			return nil
		}
		return struct{}{}
	}
	if omitEmpty {
		return nil
	}
	switch t.Kind() {
	case reflect.String:
		return ""
	case reflect.Bool:
		return false
	case reflect.Int32, reflect.Int64, reflect.Float64:
		return 0
	}
	return nil
}

// besides returns a schema to which other members can be added. A reference allows none, so it is
// wrapped in allOf.
func besides(s *oaSchema) *oaSchema {
	if s.Ref == "" {
		return s
	}
	return &oaSchema{AllOf: []*oaSchema{s}}
}

// oaUnion describes a set of fields where at most one may be set. The discriminator is the field
// that selects it.
type oaUnion struct {
	Discriminator string            `json:"discriminator,omitempty"`
	Fields        map[string]string `json:"fields-to-discriminateBy"`
}

// unions maps a type to the discriminator and the members of its union.
var unions = map[string]struct{ discriminator, members string }{
	"core.AppArmorProfile":                        {"type", "localhostProfile"},
	"core.PodSchedulingGroup":                     {"", "podGroupName"},
	"core.SeccompProfile":                         {"type", "localhostProfile"},
	"flowcontrol.LimitResponse":                   {"type", "queuing"},
	"flowcontrol.PriorityLevelConfigurationSpec":  {"type", "exempt limited"},
	"flowcontrol.Subject":                         {"kind", "group serviceAccount user"},
	"scheduling.WorkloadPodGroupDisruptionMode":   {"", "all single"},
	"scheduling.WorkloadPodGroupSchedulingPolicy": {"", "basic gang"},
}

func unionsOf(t reflect.Type) []oaUnion {
	union, ok := unions[listtypes.TypeName(t)]
	if !ok {
		return nil
	}
	fields := map[string]string{}
	for name := range strings.FieldsSeq(union.members) {
		fields[name] = titleCase(name)
	}
	return []oaUnion{{union.discriminator, fields}}
}

// unmarked sets the list type for two fields with unexpected markers.
func unmarked(s *oaSchema, path string) {
	switch path {
	case "meta.APIResource.verbs": // a list without a marker
		s.ListType = ""
	case "apiregistration.APIServiceSpec.caBundle": // a string in JSON, marked as a list
		s.ListType = "atomic"
	}
}
