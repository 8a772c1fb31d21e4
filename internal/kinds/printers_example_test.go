package kinds_test

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/kinds/printers"
	"apilet/internal/scheme"
)

// The columns of a type, and the cells of an object, are those that kubectl get shows.
func Example_printers() {
	now := time.Date(2026, time.November, 1, 12, 0, 0, 0, time.UTC)
	pods := scheme.NewRegistry().Lookup("", "v1", "pods")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-0", CreationTimestamp: metav1.NewTime(now.Add(-76 * time.Hour))},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web"}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			RestartCount: 12, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		}}},
	}
	cells := printers.CellsOf(pods, pod, now)
	for i, column := range printers.ColumnsOf(pods)[:5] {
		fmt.Printf("%s: %v\n", column.Name, cells[i])
	}
	// Output:
	// Name: web-0
	// Ready: 0/1
	// Status: CrashLoopBackOff
	// Restarts: 12
	// Age: 3d4h
}
