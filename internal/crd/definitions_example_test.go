package crd_test

import (
	"context"
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/crd/definitions"
)

// A schema says of what type a field is, and there are six.
func Example_definitions() {
	crd := &apiextensions.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "foos.example.com"}}
	crd.Spec = apiextensions.CustomResourceDefinitionSpec{
		Group:    "example.com",
		Scope:    apiextensions.NamespaceScoped,
		Names:    apiextensions.CustomResourceDefinitionNames{Plural: "foos", Singular: "foo", Kind: "Foo", ListKind: "FooList"},
		Versions: []apiextensions.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true}},
		Validation: &apiextensions.CustomResourceValidation{OpenAPIV3Schema: &apiextensions.JSONSchemaProps{
			Type:       "object",
			Properties: map[string]apiextensions.JSONSchemaProps{"spec": {Type: "text"}},
		}},
	}
	crd.Status.StoredVersions = []string{"v1"}
	for _, err := range definitions.ValidateCreate(context.Background(), crd) {
		fmt.Println(err)
	}
	// Output:
	// spec.validation.openAPIV3Schema.properties[spec].type: Unsupported value: "text": supported values: "array", "boolean", "integer", "number", "object", "string"
}
