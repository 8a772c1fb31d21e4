package kinds_test

import (
	"encoding/json"
	"reflect"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/randfill"

	"apilet/internal/kinds/defaults"
	"apilet/internal/scheme"
	"apilet/internal/scheme/internalversion"
)

// TestNormalizedTypesAreListed generates objects of all types and compares the list in defaults.Normalizes with
// the types that a conversion to the internal type and back changes.
func TestNormalizedTypesAreListed(t *testing.T) {
	t.Parallel()
	texts := []string{"", "a", "b", "c", "pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match"}
	for _, row := range scheme.Builtins {
		if row.Virtual || row.Conversion != nil {
			continue
		}
		filler := randfill.NewWithSeed(1).NilChance(0.3).NumElements(1, 2).MaxDepth(14).Funcs(
			func(*metav1.TypeMeta, randfill.Continue) {},
			func(*apiextensionsv1.JSONSchemaProps, randfill.Continue) {},
			func(raw *runtime.RawExtension, _ randfill.Continue) { raw.Raw = []byte("{}") },
			func(fields *metav1.FieldsV1, _ randfill.Continue) { *fields = *metav1.NewFieldsV1("{}") },
			func(q *apiresource.Quantity, c randfill.Continue) { q.Set(c.Int63n(1000)) },
			func(text *string, c randfill.Continue) { *text = texts[c.Intn(len(texts))] })
		changed := ""
		for range 100 {
			obj := reflect.New(row.GoType).Interface().(runtime.Object)
			filler.Fill(obj)
			internalversion.Default(obj)
			before := encoded(t, obj)
			internalversion.Normalize(obj)
			if after := encoded(t, obj); before != after {
				changed = before + "\nto\n" + after
			}
		}
		listed := defaults.Normalizes(reflect.New(row.GoType).Interface().(runtime.Object))
		if (changed != "") != listed {
			t.Errorf("%s %s: listed is %t; changed from %s", row.APIVersion(), row.Kind, listed, changed)
		}
	}
}

func encoded(t *testing.T, obj any) string {
	t.Helper()
	text, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
