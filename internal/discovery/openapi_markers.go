package discovery

// This file contains the parts of the schemas that Kubernetes' generator derives from comments and types: the zero values that are defaults,
// the unions, and the descriptions of types without SwaggerDoc. Declared defaults and the relations of list elements are in scheme/listtypes.

import (
	_ "embed"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"

	"apilet/internal/scheme/listtypes"
)

// openAPITexts has the descriptions that SwaggerDoc lacks, or has without their indented lines and empty lines. Each line has the name of a
// type and a field, and the quoted text. The type's own description has an empty field name. A test compares the table with
// kube-apiserver's documents, and rewrites it with -update.
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

// zeroOf returns the default that Kubernetes' generator gives to a value without a declared default: the zero value of its type. nil means
// none. A pointer, list or map has none, and neither has a type that decodes itself, because its zero value is null.
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

// besides returns a schema that may have other members. A reference may not, and is wrapped.
func besides(s *oaSchema) *oaSchema {
	if s.Ref == "" {
		return s
	}
	return &oaSchema{AllOf: []*oaSchema{s}}
}

// An oaUnion names the fields of which one is set, and the field that selects it.
type oaUnion struct {
	Discriminator string            `json:"discriminator,omitempty"`
	Fields        map[string]string `json:"fields-to-discriminateBy"`
}

// unions has the discriminator and the members of each union that markers in the sources declare.
var unions = map[string]struct{ discriminator, members string }{
	"core.AppArmorProfile":                       {"type", "localhostProfile"},
	"core.PodSchedulingGroup":                    {"", "podGroupName"},
	"core.SeccompProfile":                        {"type", "localhostProfile"},
	"flowcontrol.LimitResponse":                  {"type", "queuing"},
	"flowcontrol.PriorityLevelConfigurationSpec": {"type", "exempt limited"},
	"flowcontrol.Subject":                        {"kind", "group serviceAccount user"},
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

// unmarked corrects the list type of the two fields whose markers disagree with their types.
func unmarked(s *oaSchema, path string) {
	switch path {
	case "meta.APIResource.verbs":
		s.ListType = ""
	case "apiregistration.APIServiceSpec.caBundle": // a string in JSON, marked as a list
		s.ListType = "atomic"
	}
}
