package strategy

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/apitest/kubetest"
	"apilet/internal/kinds/defaults"
)

func TestStatusUpdateKeepsTheRest(t *testing.T) {
	old := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d", Labels: map[string]string{"a": "b"}}}
	defaults.Set(old)
	changed := old.DeepCopy()
	*changed.Spec.Replicas = 7
	changed.Labels["a"] = "c"
	changed.Status.Replicas = 3
	PrepareForUpdate(t.Context(), "status", changed, old)
	if *changed.Spec.Replicas != 1 || changed.Labels["a"] != "b" || changed.Status.Replicas != 3 {
		t.Errorf("got replicas %d, labels %v, status %d; want 1, a=b, 3", *changed.Spec.Replicas, changed.Labels, changed.Status.Replicas)
	}
}

func TestUpdateKeepsStatusAndAllocations(t *testing.T) {
	old := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIP: "10.96.0.9", ClusterIPs: []string{"10.96.0.9"},
		Ports: []corev1.ServicePort{{Name: "a", Port: 80, NodePort: 30001}, {Name: "b", Port: 81, NodePort: 30002}}}}
	defaults.Set(old)
	PrepareForUpdate(t.Context(), "", old, old)
	changed := old.DeepCopy()
	changed.Spec.ClusterIP, changed.Spec.ClusterIPs = "", nil
	changed.Spec.Ports = []corev1.ServicePort{{Name: "b", Port: 81}, {Name: "c", Port: 82, NodePort: 30001}}
	defaults.Set(changed)
	PrepareForUpdate(t.Context(), "", changed, old)
	if changed.Spec.ClusterIP != "10.96.0.9" || len(changed.Spec.ClusterIPs) != 1 || changed.Spec.Ports[0].NodePort != 30002 {
		t.Errorf("an update that omits addresses got %+v", changed.Spec)
	}
	changed.Spec.Type = corev1.ServiceTypeExternalName
	PrepareForUpdate(t.Context(), "", changed, old)
	if changed.Spec.ClusterIP != "" || changed.Spec.IPFamilies != nil || changed.Spec.IPFamilyPolicy != nil {
		t.Errorf("a Service that became an external name kept %+v", changed.Spec)
	}
}

func BenchmarkDefaultsConfigMap(b *testing.B) {
	cm := &corev1.ConfigMap{Data: map[string]string{"a": "b"}}
	for b.Loop() {
		defaults.Set(cm)
		PrepareForCreate(b.Context(), cm)
	}
}

func BenchmarkDefaultsDeployment(b *testing.B) {
	d := kubetest.TwentyContainers()
	for b.Loop() {
		b.StopTimer()
		fresh := d.DeepCopy()
		b.StartTimer()
		defaults.Set(fresh)
		PrepareForCreate(b.Context(), fresh)
	}
}
