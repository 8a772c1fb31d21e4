package kinds_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"apilet/internal/kinds/defaults"
)

// No tag means latest, and latest is pulled always.
func Example_defaults() {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "nginx"}, {Name: "db", Image: "postgres:17"}}}}
	defaults.Set(pod)
	fmt.Println(pod.Spec.RestartPolicy, pod.Spec.DNSPolicy, pod.Spec.Containers[0].ImagePullPolicy, pod.Spec.Containers[1].ImagePullPolicy)
	// Output:
	// Always ClusterFirst Always IfNotPresent
}
