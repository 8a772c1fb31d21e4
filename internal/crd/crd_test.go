package crd

import (
	"encoding/json"
	"reflect"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

func TestOutlineIsADefinitionWithoutSchemas(t *testing.T) {
	for _, text := range []string{definitionFile(t, "planets"), definitionFile(t, "gadgets"), `{"spec":{"versions":[{"name":"v1"}]}}`, `{"spec":{}}`} {
		var want, got apiextensionsv1.CustomResourceDefinition
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatal(err)
		}
		for i := range want.Spec.Versions {
			want.Spec.Versions[i].Schema = nil
		}
		if err := json.Unmarshal(withoutSchemas([]byte(text)), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%.60s…: got %+v, %v, want %+v", text, got, err, want)
		}
	}
}
