package validation_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"apilet/internal/kinds/defaults"
	"apilet/internal/kinds/validation"
)

// All that is wrong is found at once, in kube-apiserver's words.
func ExampleValidateCreate() {
	svc := &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 99999}, {Name: "x", Port: 80}}}}
	defaults.Set(svc)
	for _, err := range validation.ValidateCreate(svc) {
		fmt.Println(err)
	}
	// Output:
	// spec.ports[0].name: Required value
	// spec.ports[0].port: Invalid value: 99999: must be between 1 and 65535, inclusive
	// spec.ports[0].targetPort: Invalid value: 99999: must be between 1 and 65535, inclusive
}

// A ConfigMap that says it is immutable is held to that by the next update.
func ExampleValidateUpdate() {
	fixed := true
	old := &corev1.ConfigMap{Immutable: &fixed, Data: map[string]string{"k": "v"}}
	next := &corev1.ConfigMap{Immutable: &fixed, Data: map[string]string{"k": "w"}}
	for _, err := range validation.ValidateUpdate(next, old) {
		fmt.Println(err)
	}
	// Output:
	// data: Forbidden: field is immutable when `immutable` is set
}
