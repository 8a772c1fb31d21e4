package kinds_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/kinds/warnings"
)

// A pod with two variables of one name is valid, and hardly what its author meant.
func Example_warnings() {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.PodSpec{
		NodeSelector: map[string]string{"beta.kubernetes.io/os": "linux"},
		Containers:   []corev1.Container{{Name: "web", Env: []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "A", Value: "2"}}}},
	}}
	for _, text := range warnings.ForObject(context.Background(), pod, nil) {
		fmt.Println(text)
	}
	// Output:
	// spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use "kubernetes.io/os" instead
	// spec.containers[0].env[1]: hides previous definition of "A", which may be dropped when using apply
}
