package kinds_test

import (
	"encoding/json"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"

	"apilet/internal/kinds/defaults"
)

// Empty lists become nil where their JSON would show the difference, at any depth.
func TestEmptyListsAreDropped(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		obj        runtime.Object
		body, want string
	}{
		{&resourcev1.ResourceClaimTemplate{}, `{"spec":{"spec":{"devices":{"requests":[{"name":"r","firstAvailable":[]}],"constraints":[]}}}}`,
			`{"metadata":{},"spec":{"metadata":{},"spec":{"devices":{"requests":[{"name":"r"}]}}}}`},
		{&batchv1.Job{}, `{"spec":{"podFailurePolicy":{"rules":[]},"template":{"spec":{"containers":[]}}}}`,
			`{"metadata":{},"spec":{"podFailurePolicy":{"rules":null},"template":{"metadata":{},"spec":{"containers":null}}},"status":{}}`},
		{&corev1.Node{}, `{"status":{"images":[{"names":[]}]}}`, ""},
		{&corev1.ConfigMap{}, `{"data":{"a":"b"}}`, `{"metadata":{},"data":{"a":"b"}}`},
	} {
		if err := json.Unmarshal([]byte(c.body), c.obj); err != nil {
			t.Fatal(err)
		}
		defaults.DropEmptyLists(c.obj)
		if node, ok := c.obj.(*corev1.Node); ok && node.Status.Images[0].Names != nil {
			t.Errorf("names of an image: %#v", node.Status.Images[0].Names)
		}
		if got, err := json.Marshal(c.obj); c.want != "" && (err != nil || string(got) != c.want) {
			t.Errorf("got %s and %v, want %s", got, err, c.want)
		}
	}
}

// A stored Node has no empty allocatable resources, so that the capacity is their default.
func TestEmptyAllocatableIsDefaulted(t *testing.T) {
	t.Parallel()
	capacity := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
	node := &corev1.Node{Status: corev1.NodeStatus{Capacity: capacity, Allocatable: corev1.ResourceList{}}}
	defaults.DropEmptyLists(node)
	if !equality.Semantic.DeepEqual(node.Status.Allocatable, capacity) {
		t.Errorf("got %v, want %v", node.Status.Allocatable, capacity)
	}
}

// A stored ExternalName Service has the list of its cluster IP.
func TestClusterIPsOfAnExternalNameAreCompleted(t *testing.T) {
	t.Parallel()
	svc := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ClusterIP: corev1.ClusterIPNone}}
	defaults.DropEmptyLists(svc)
	if got := svc.Spec.ClusterIPs; len(got) != 1 || got[0] != corev1.ClusterIPNone {
		t.Errorf("got %q", got)
	}
}

func BenchmarkDropEmptyLists(b *testing.B) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "b"}}}}
	defaults.Set(pod)
	b.ReportAllocs()
	for b.Loop() {
		defaults.DropEmptyLists(pod)
	}
}
