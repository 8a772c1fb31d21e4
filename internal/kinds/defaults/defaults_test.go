package defaults

import (
	"encoding/json"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A null in a Secret's data is an empty value by the time that anybody reads it.
func TestNullsInDataAreEmptyValues(t *testing.T) {
	for _, obj := range []runtime.Object{&corev1.Secret{}, &corev1.ConfigMap{}} {
		sent := `{"data":{"k":null},"binaryData":{"k":null}}`
		if err := json.Unmarshal([]byte(sent), obj); err != nil {
			t.Fatal(err)
		}
		Set(obj)
		var got struct{ Data, BinaryData map[string]*string }
		text, err := json.Marshal(obj)
		if err == nil {
			err = json.Unmarshal(text, &got)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, data := range []map[string]*string{got.Data, got.BinaryData} {
			if value, sent := data["k"]; sent && (value == nil || *value != "") {
				t.Errorf("%T: %s", obj, text)
			}
		}
		if got.Data == nil {
			t.Errorf("%T has no data: %s", obj, text)
		}
	}
}

// Kubernetes' sums over init containers take time that grows with the square of their number.
func TestResourcesOfManyInitContainersAreNotAdded(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	for count, want := range map[int]int{100: 101, 20_000: 0} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Resources: &corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse("1")}}}}
		for i := range count {
			name := corev1.ResourceName(fmt.Sprintf("hugepages-%dKi", i))
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{RestartPolicy: &always,
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{name: apiresource.MustParse("1Ki")}}})
		}
		Set(pod)
		if got := len(pod.Spec.Resources.Requests); got != want || pod.Spec.InitContainers[0].ImagePullPolicy == "" {
			t.Errorf("%d init containers: %d requests of the Pod, want %d", count, got, want)
		}
	}
}

// An annotation that stands for a field of earlier versions may be invalid. Objects from other servers are not checked before.
func TestObjectsThatCannotBeConvertedGetDefaults(t *testing.T) {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{appsv1.DeprecatedRollbackTo: "no number"}}}
	Set(d)
	if d.Spec.Replicas == nil || d.Annotations[appsv1.DeprecatedRollbackTo] != "no number" {
		t.Errorf("got %+v", d)
	}
}
