package crd

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/rs/zerolog"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"apilet/internal/scheme"
	"apilet/internal/scheme/protobuf"
	"apilet/internal/scheme/schemetest"
)

// Definitions of custom resources nest without end, and read much of themselves.
func TestTranscodingDefinitions(t *testing.T) {
	t.Parallel()
	reg := scheme.NewRegistry()
	res := NewDefinitions(nil, reg, nil, zerolog.Nop()).row
	for _, name := range []string{"gadgets", "planets"} {
		obj, _, err := res.Decode([]byte(definitionFile(t, name)), "", "")
		if err != nil {
			t.Fatal(err)
		}
		stored, revAt, err := res.EncodeStored(obj)
		if err != nil {
			t.Fatal(err)
		}
		doc := []byte(string(stored[:revAt]) + "7" + string(stored[revAt:]))
		got, ok := protobuf.Transcode(nil, doc, reflect.TypeFor[apiextensionsv1.CustomResourceDefinition]())
		if want := schemetest.GeneratedBytes(t, res, doc); !ok || !bytes.Equal(got, want) {
			t.Errorf("%s, %v:\n got %q\nwant %q", name, ok, got, want)
		}
	}
}
