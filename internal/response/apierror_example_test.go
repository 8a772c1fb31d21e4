package response_test

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"apilet/internal/apierror"
)

// An answer names all mistakes at once.
func Example_invalid() {
	spec := field.NewPath("spec")
	err := apierror.Invalid(schema.GroupKind{Kind: "Service"}, "web", field.ErrorList{
		field.Required(spec.Child("ports"), ""), field.NotSupported(spec.Child("type"), "Odd", []string{"ClusterIP"}),
	})
	fmt.Println(err.Status().Code, err)
	// Output:
	// 422 Service "web" is invalid: [spec.ports: Required value, spec.type: Unsupported value: "Odd": supported values: "ClusterIP"]
}
