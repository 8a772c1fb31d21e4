package validation_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/kinds/defaults"
	"apilet/internal/kinds/validation"
)

// All that is wrong is found at once, in kube-apiserver's words.
func ExampleValidateCreate() {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "default"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 99999}, {Name: "x", Port: 80}}}}
	defaults.Set(svc)
	for _, err := range validation.ValidateCreate(context.Background(), corev1.SchemeGroupVersion, svc) {
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
	meta := metav1.ObjectMeta{Name: "c", Namespace: "default", ResourceVersion: "1"}
	old := &corev1.ConfigMap{ObjectMeta: meta, Immutable: &fixed, Data: map[string]string{"k": "v"}}
	next := &corev1.ConfigMap{ObjectMeta: meta, Immutable: &fixed, Data: map[string]string{"k": "w"}}
	for _, err := range validation.ValidateUpdate(context.Background(), corev1.SchemeGroupVersion, "", next, old) {
		fmt.Println(err)
	}
	// Output:
	// data: Forbidden: field is immutable when `immutable` is set
}
