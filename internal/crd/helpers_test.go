package crd

import (
	"os"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"sigs.k8s.io/yaml"

	"apilet/internal/scheme"
)

// definitionFile is one of testdata/crds, as JSON.
func definitionFile(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../testdata/crds/" + name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(asJSON)
}

const onlyProtobuf = "Accept: application/vnd.kubernetes.protobuf"

// testRows are all resources that have Go types, definitions included.
var testRows = sync.OnceValue(func() []*scheme.Resource {
	reg := scheme.NewRegistry()
	NewDefinitions(nil, reg, nil, zerolog.Nop())
	return reg.All()
})
