package kinds_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"apilet/internal/apierror"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/kinds/warnings"
)

// warningKinds are those of testdata/warn.
var warningKinds = map[string]func() runtime.Object{
	"Pod": func() runtime.Object { return &corev1.Pod{} }, "PodTemplate": func() runtime.Object { return &corev1.PodTemplate{} },
	"ReplicationController": func() runtime.Object { return &corev1.ReplicationController{} },
	"Deployment":            func() runtime.Object { return &appsv1.Deployment{} }, "ReplicaSet": func() runtime.Object { return &appsv1.ReplicaSet{} },
	"DaemonSet": func() runtime.Object { return &appsv1.DaemonSet{} }, "StatefulSet": func() runtime.Object { return &appsv1.StatefulSet{} },
	"Job": func() runtime.Object { return &batchv1.Job{} }, "CronJob": func() runtime.Object { return &batchv1.CronJob{} },
	"Service": func() runtime.Object { return &corev1.Service{} }, "Ingress": func() runtime.Object { return &networkingv1.Ingress{} },
	"NetworkPolicy": func() runtime.Object { return &networkingv1.NetworkPolicy{} }, "Endpoints": func() runtime.Object { return &corev1.Endpoints{} },
	"EndpointSlice": func() runtime.Object { return &discoveryv1.EndpointSlice{} }, "ResourceQuota": func() runtime.Object { return &corev1.ResourceQuota{} },
	"PersistentVolume":      func() runtime.Object { return &corev1.PersistentVolume{} },
	"PersistentVolumeClaim": func() runtime.Object { return &corev1.PersistentVolumeClaim{} },
	"StorageClass":          func() runtime.Object { return &storagev1.StorageClass{} }, "RuntimeClass": func() runtime.Object { return &nodev1.RuntimeClass{} },
	"Node": func() runtime.Object { return &corev1.Node{} }, "Secret": func() runtime.Object { return &corev1.Secret{} },
}

func parseObject(t testing.TB, manifest string) runtime.Object {
	t.Helper()
	var meta metav1.TypeMeta
	if err := yaml.Unmarshal([]byte(manifest), &meta); err != nil {
		t.Fatal(err)
	}
	obj := warningKinds[meta.Kind]()
	if err := yaml.UnmarshalStrict([]byte(manifest), obj); err != nil {
		t.Fatalf("%s: %v", meta.Kind, err)
	}
	return obj
}

func TestObjectWarningsAreKubernetes(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/warn/objects.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for manifest := range archive.Files {
		if manifest%2 == 1 {
			continue
		}
		f, want := archive.Files[manifest], string(archive.Files[manifest+1].Data)
		t.Run(f.Name, func(t *testing.T) {
			got := slices.DeleteFunc(warnings.ForObject(t.Context(), parseObject(t, string(f.Data)), nil), func(s string) bool {
				return strings.HasPrefix(s, "this server stores") // our own
			})
			wants := strings.Split(strings.TrimSpace(want), "\n")
			if want == "" {
				wants = nil
			}
			for _, w := range wants {
				if !slices.Contains(got, w) {
					t.Errorf("missing: %s", w)
				}
			}
			for _, g := range got {
				if !slices.Contains(wants, g) {
					t.Errorf("too much: %s", g)
				}
			}
		})
	}
}

func TestFinalizerWarnings(t *testing.T) { // 94, 95
	custom := func(finalizers ...string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{}}
		u.SetFinalizers(finalizers)
		return u
	}
	const advice = `metadata.finalizers: %q: prefer a domain-qualified finalizer name%s to avoid accidental conflicts with other finalizer writers`
	for _, c := range []struct {
		name     string
		obj, old runtime.Object
		want     []string
	}{
		{"bare", custom("x"), nil, []string{fmt.Sprintf(advice, "x", "")}},
		{"domain without path", custom("a.example"), nil, []string{fmt.Sprintf(advice, "a.example", " including a path (/)")}},
		{"well named and standard", custom("example.com/x", "orphan", "foregroundDeletion", "kubernetes"), nil, nil},
		{"there before", custom("x", "y"), custom("x"), []string{fmt.Sprintf(advice, "y", "")}},
		{"built-in type", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{"x"}}}, nil, nil},
	} {
		if got := warnings.ForObject(t.Context(), c.obj, c.old); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestDuplicateOwnersAreDroppedWithAWarning(t *testing.T) {
	ref := func(uid types.UID, controller *bool) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "p", UID: uid, Controller: controller}
	}
	yes, also := true, true // equal, not identical
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{
		ref("u1", nil), ref("u2", &yes), ref("u1", nil), ref("u1", &yes), ref("u2", &also)}}}
	const want = ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, " +
		"and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: u1, u2"
	if got := warnings.DropDuplicateOwners(obj); got != want || len(obj.OwnerReferences) != 3 {
		t.Errorf("got %q and %d references, want %q and 3", got, len(obj.OwnerReferences), want)
	}
	if got := warnings.DropDuplicateOwners(obj); got != "" {
		t.Errorf("the second time: got %q", got)
	}
}

func TestUpdatesWarnOfLess(t *testing.T) {
	spec := corev1.PodSpec{NodeSelector: map[string]string{"beta.kubernetes.io/os": "linux"}}
	template := corev1.PodTemplateSpec{Spec: spec}
	at := func(generation int64) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: "a.b", Generation: generation}
	}
	quota := &corev1.ResourceQuota{Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"cpu": quantity.MustParse("2"), "limits.cpu": quantity.MustParse("1")}}}
	annotated := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"kubernetes.io/ingress.class": "x"}}}
	tz := &batchv1.CronJob{Spec: batchv1.CronJobSpec{Schedule: "CRON_TZ=UTC 0 * * * *"}}
	counted := func(templates string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Annotations: map[string]string{appsv1.DeprecatedTemplateGeneration: templates}}
	}
	subsets := []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: "010.0.0.1"}}}}
	for _, c := range []struct {
		name     string
		obj, old runtime.Object
		want     int
	}{
		{"pod", &corev1.Pod{Spec: spec}, &corev1.Pod{}, 0},
		{"same generation", &appsv1.Deployment{ObjectMeta: at(2), Spec: appsv1.DeploymentSpec{Template: template}}, &appsv1.Deployment{ObjectMeta: at(2)}, 0},
		{"new generation", &appsv1.Deployment{ObjectMeta: at(3), Spec: appsv1.DeploymentSpec{Template: template}}, &appsv1.Deployment{ObjectMeta: at(2)}, 1},
		{"daemon set, same template", &appsv1.DaemonSet{ObjectMeta: at(3), Spec: appsv1.DaemonSetSpec{Template: template}},
			&appsv1.DaemonSet{ObjectMeta: at(2), Spec: appsv1.DaemonSetSpec{Template: template}}, 0},
		{"daemon set, new template", &appsv1.DaemonSet{ObjectMeta: counted("2"), Spec: appsv1.DaemonSetSpec{Template: template}}, &appsv1.DaemonSet{ObjectMeta: counted("1")}, 1},
		{"replication controller, new template", &corev1.ReplicationController{ObjectMeta: at(3), Spec: corev1.ReplicationControllerSpec{Template: &template}},
			&corev1.ReplicationController{ObjectMeta: at(2)}, 0}, // sic: about the old template
		{"replication controller, old template", &corev1.ReplicationController{ObjectMeta: at(3)},
			&corev1.ReplicationController{ObjectMeta: at(2), Spec: corev1.ReplicationControllerSpec{Template: &template}}, 1},
		{"endpoints", &corev1.Endpoints{Subsets: subsets}, &corev1.Endpoints{}, 1},
		{"endpoints of the controller", &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"endpoints.kubernetes.io/managed-by": "endpoint-controller"}},
			Subsets: subsets}, &corev1.Endpoints{}, 0},
		{"endpoint slice of names", &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeFQDN,
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"a.example", "010.0.0.1"}}}}, &discoveryv1.EndpointSlice{}, 1},
		{"resource slice", &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{Driver: "A.example"}}, &resourcev1.ResourceSlice{}, 1},
		{"quota", quota, &corev1.ResourceQuota{}, 0},
		{"ingress", annotated, &networkingv1.Ingress{}, 0},
		{"cron job with a time zone", tz, &batchv1.CronJob{}, 1},
		{"service", &corev1.Service{Spec: corev1.ServiceSpec{ExternalName: "x"}}, &corev1.Service{}, 1},
	} {
		if got := warnings.ForObject(t.Context(), c.obj, c.old); len(got) != c.want {
			t.Errorf("update of %s: got %q, want %d", c.name, got, c.want)
		}
	}
	if got := warnings.ForObject(t.Context(), quota, nil); len(got) != 1 {
		t.Errorf("create of a quota: got %q, want Kubernetes' warning", got)
	}
}

// Kubernetes' functions compare each port with each other one, and each path in a volume.
func TestLongListsAreNotCompared(t *testing.T) {
	for _, c := range []struct{ count, want int }{{100, 1 + 4950}, {102, 0}, {20_000, 0}} {
		ports := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"beta.kubernetes.io/os": "linux"}, Containers: []corev1.Container{{Name: "a"}}}}
		paths := ports.DeepCopy()
		volume := &corev1.ConfigMapVolumeSource{}
		for range c.count {
			ports.Spec.Containers[0].Ports = append(ports.Spec.Containers[0].Ports, corev1.ContainerPort{ContainerPort: 80})
			volume.Items = append(volume.Items, corev1.KeyToPath{Key: "k", Path: "a"})
		}
		paths.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{ConfigMap: volume}}}
		want := min(c.want, apierror.MaxErrors)
		if got := len(warnings.ForObject(t.Context(), ports, nil)); got != want {
			t.Errorf("%d ports: %d warnings, want %d", c.count, got, want)
		}
		if got := len(warnings.ForObject(t.Context(), paths, nil)); got != want {
			t.Errorf("%d paths: %d warnings, want %d", c.count, got, want)
		}
	}
	volume := &corev1.SecretVolumeSource{Items: []corev1.KeyToPath{{Path: "a"}, {Path: strings.Repeat("a/", 2<<20)}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a.b"}, Spec: corev1.PodSpec{
		Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{Secret: volume}}}}}
	if got := warnings.ForObject(t.Context(), pod, nil); len(got) != 0 {
		t.Errorf("%d warnings about a Pod with a long path", len(got))
	}
}

func TestStatusesWarnOfAddresses(t *testing.T) {
	pod := &corev1.Pod{Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "2001:db8::0"}}}}
	service := &corev1.Service{Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{
		Ingress: []corev1.LoadBalancerIngress{{Hostname: "a"}, {IP: "010.0.0.1"}}}}}
	ingress := &networkingv1.Ingress{Status: networkingv1.IngressStatus{LoadBalancer: networkingv1.IngressLoadBalancerStatus{
		Ingress: []networkingv1.IngressLoadBalancerIngress{{IP: "::ffff:1.2.3.4"}}}}}
	for obj, field := range map[runtime.Object]string{pod: "status.podIPs[1].ip", service: "status.loadBalancer.ingress[1]",
		ingress: "status.loadBalancer.ingress[0]"} {
		got := warnings.ForStatus(t.Context(), obj, obj)
		if len(got) != 1 || !strings.HasPrefix(got[0], field+":") {
			t.Errorf("%T: got %q, want one about %s", obj, got, field)
		}
	}
	if got := warnings.ForStatus(t.Context(), &corev1.Node{}, &corev1.Node{}); got != nil {
		t.Errorf("Node: got %q", got)
	}
}

func BenchmarkObjectWarnings(b *testing.B) {
	pod := parseObject(b, "{kind: Pod, metadata: {name: a}, spec: {volumes: [{name: v, configMap: {name: c}}], containers: "+
		"[{name: c, image: i, env: [{name: A, value: a}, {name: B, value: b}], ports: [{containerPort: 80, name: http}], resources: {limits: {memory: 1Gi}}}]}}")
	b.ReportAllocs()
	for b.Loop() {
		warnings.ForObject(b.Context(), pod, nil)
	}
}

func BenchmarkDeploymentWarnings(b *testing.B) {
	d := kubetest.TwentyContainers()
	b.ReportAllocs()
	for b.Loop() {
		warnings.ForObject(b.Context(), d, nil)
	}
}

// TestRulesForReviewsWarn: webhooks are not called for reviews, and a rule that names one says so.
func TestRulesForReviewsWarn(t *testing.T) {
	rule := func(group string, resources ...string) admissionv1.RuleWithOperations {
		return admissionv1.RuleWithOperations{Rule: admissionv1.Rule{APIGroups: []string{group}, Resources: resources}}
	}
	rules := []admissionv1.RuleWithOperations{rule("authorization.k8s.io", "subjectaccessreviews", "pods", "localsubjectaccessreviews"), rule("*", "tokenreviews"),
		rule("authentication.k8s.io", "*"), rule("authentication.k8s.io", "tokenreviews", "tokenreviews")}
	const none = "is excluded from admission webhooks; this rule will have no effect"
	want := []string{"webhooks[0].rules[0]: subjectaccessreviews.authorization.k8s.io " + none,
		"webhooks[0].rules[0]: localsubjectaccessreviews.authorization.k8s.io " + none, "webhooks[0].rules[3]: tokenreviews.authentication.k8s.io " + none}
	for _, obj := range []runtime.Object{
		&admissionv1.MutatingWebhookConfiguration{Webhooks: []admissionv1.MutatingWebhook{{Rules: rules}}},
		&admissionv1.ValidatingWebhookConfiguration{Webhooks: []admissionv1.ValidatingWebhook{{Rules: rules}}},
	} {
		if got := warnings.ForObject(t.Context(), obj, nil); !slices.Equal(got, want) {
			t.Errorf("%T: got %q, want %q", obj, got, want)
		}
	}
}
