package strategy

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	quantities "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// twentyContainers is the large object of the benchmarks.
func twentyContainers() *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	d.Spec.Template.Labels = map[string]string{"app": "web"}
	d.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "data"}}
	for i := range 20 {
		d.Spec.Template.Spec.Containers = append(d.Spec.Template.Spec.Containers, corev1.Container{
			Name:  fmt.Sprintf("c%d", i),
			Image: "registry.example.com/team/image:v1.2.3",
			Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: int32(8000 + i)}},
			Env: []corev1.EnvVar{{Name: "A", Value: "b"}, {Name: "POD", ValueFrom: &corev1.EnvVarSource{
				FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"},
			}}},
			ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("http")}}},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": quantities.MustParse("100m"), "memory": quantities.MustParse("64Mi")},
				Limits:   corev1.ResourceList{"cpu": quantities.MustParse("1"), "memory": quantities.MustParse("128Mi")},
			},
			VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
		})
	}
	return d
}
