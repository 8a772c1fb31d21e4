// Package kubetest contains test helpers that need Kubernetes' types: sample objects, values for
// all fields of a Go type, decoding, comparison of errors and JSON, and recorded responses of a
// kube-apiserver. It is separate from apitest, so that tests that do not need these types, such as
// those of the store, do not link them.
package kubetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	quantities "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

// DeploymentJSON returns a stored Deployment with the given number of containers.
func DeploymentJSON(containers int) string {
	var list []string
	for i := range containers {
		list = append(list, fmt.Sprintf(`{"name":"c%d","image":"registry.example.com/app:%d","ports":[{"containerPort":%d,"protocol":"TCP"}],`+
			`"env":[{"name":"A","value":"1"},{"name":"B","value":"2"}],"resources":{"limits":{"cpu":"100m","memory":"64Mi"}},"imagePullPolicy":"IfNotPresent"}`, i, i, 8000+i))
	}
	return `{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"d","namespace":"default","uid":"1","resourceVersion":"7","labels":{"app":"x"}},` +
		`"spec":{"replicas":2,"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"}},"spec":{"containers":[` +
		strings.Join(list, ",") + `],"restartPolicy":"Always"}},"strategy":{"type":"Recreate"}},"status":{}}`
}

// TwentyContainers returns a large Deployment.
func TwentyContainers() *appsv1.Deployment {
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

// PodOf returns the body of a Pod with the service account app on a node.
func PodOf(name, node string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"serviceAccountName":"app","nodeName":%q,"containers":[{"name":"c","image":"i"}]}}`, name, node)
}

// RoleBinding binds a role of the given kind to subjects.
func RoleBinding(namespace, name, kind, role string, subjects ...rbacv1.Subject) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role}}
}

// ClusterRoleBinding binds a ClusterRole to subjects.
func ClusterRoleBinding(name, role string, subjects ...rbacv1.Subject) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}}
}

// LimitedLevel returns a priority level that queues requests, or rejects them if queues is 0.
func LimitedLevel(name string, shares, queues, hand, length int32) *flowcontrolv1.PriorityLevelConfiguration {
	obj := &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-of-level-"}}
	obj.Spec.Type = flowcontrolv1.PriorityLevelEnablementLimited
	obj.Spec.Limited = &flowcontrolv1.LimitedPriorityLevelConfiguration{
		NominalConcurrencyShares: new(shares),
		LimitResponse:            flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject},
	}
	if queues > 0 {
		obj.Spec.Limited.LimitResponse = flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeQueue,
			Queuing: &flowcontrolv1.QueuingConfiguration{Queues: queues, HandSize: hand, QueueLengthLimit: length}}
	}
	return obj
}

// SchemaFor returns a flow schema that assigns the users of a group to a level, with a flow per
// user.
func SchemaFor(level, group string) *flowcontrolv1.FlowSchema {
	all := []string{"*"}
	obj := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: level}}
	obj.Spec.PriorityLevelConfiguration.Name = level
	obj.Spec.MatchingPrecedence = 1000
	obj.Spec.DistinguisherMethod = &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType}
	obj.Spec.Rules = []flowcontrolv1.PolicyRulesWithSubjects{{
		Subjects:         []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindGroup, Group: &flowcontrolv1.GroupSubject{Name: group}}},
		ResourceRules:    []flowcontrolv1.ResourcePolicyRule{{Verbs: all, APIGroups: all, Resources: all, Namespaces: all, ClusterScope: true}},
		NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: all, NonResourceURLs: all}},
	}}
	return obj
}

// FromFlow converts YAML in flow style, such as {a: b}, to JSON.
func FromFlow(t testing.TB, text string) string {
	t.Helper()
	asJSON, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err, text)
	}
	return string(asJSON)
}

// SimpleDefinition returns a CustomResourceDefinition with one version and a schema in flow style.
// more is added to the version.
func SimpleDefinition(t testing.TB, kind, group, schema, more string) string {
	t.Helper()
	plural := strings.ToLower(kind) + "s"
	return FromFlow(t, fmt.Sprintf(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: %s.%s}, spec: {group: %s,
		scope: Namespaced, names: {plural: %s, kind: %s}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: %s}%s}]}}`,
		plural, group, group, plural, kind, schema, more))
}

// SameJSON compares two documents. The order of members is ignored, and null equals an empty value.
func SameJSON(t testing.TB, got, want string) {
	t.Helper()
	var g, w any
	if json.Unmarshal([]byte(got), &g) != nil || json.Unmarshal([]byte(want), &w) != nil || !equality.Semantic.DeepEqual(g, w) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Refused checks that err is a Status error with this code and reason, and returns its message.
func Refused(t testing.TB, err error, code int32, reason metav1.StatusReason) string {
	t.Helper()
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		t.Fatalf("got %v, want a Status error %d", err, code)
	}
	if got := status.Status(); got.Code != code || got.Reason != reason {
		t.Errorf("got %d %s %q, want %d %s", got.Code, got.Reason, got.Message, code, reason)
	}
	return status.Status().Message
}
