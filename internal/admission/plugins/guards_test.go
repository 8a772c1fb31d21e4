package plugins

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	podsecurity "k8s.io/pod-security-admission/api"

	"apilet/internal/admission"
	"apilet/internal/kinds/strategy"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/scheme/internalversion"
	"apilet/internal/store"
)

// refuses checks an error against a part of the refusal that is wanted; "" wants none.
func refuses(t *testing.T, what string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s: got %v, want %q", what, err, want)
	}
}

// openStore opens an ephemeral store with some objects.
func openStore(t *testing.T, docs map[string]string) *store.Store {
	t.Helper()
	st, err := store.Open("", store.Options{Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	for key, doc := range docs {
		if _, err := st.Commit(t.Context(), store.Change{Op: store.OpCreate, Key: key, JSON: []byte(doc), RevAt: revisionAt([]byte(doc))}); err != nil {
			t.Fatal(err)
		}
	}
	return st
}

// broken is a stored document that cannot be read.
const broken = `{"metadata":{"name":"a","resourceVersion":""},"spec":[],"value":"x","secrets":5,"handler":5}`

// by has a user write a resource, and answers as the request for it.
func by(user request.User, op, path string, obj, old scheme.Object) *admission.Attributes {
	plural, subresource, _ := strings.Cut(path, "/")
	group := ""
	plural, group, _ = strings.Cut(plural, ".")
	a := &admission.Attributes{Resource: &scheme.Resource{Group: group, Plural: plural, Version: "v1", Namespaced: true}, Subresource: subresource, Operation: op, Object: obj, Old: old}
	rec := &request.Request{User: user}
	verb := map[string]string{admission.OpCreate: "create", admission.OpUpdate: "update", admission.OpDelete: "delete"}[op]
	rec.Info = request.Info{ResourceRequest: true, Verb: verb, Group: group, Version: "v1", Resource: plural, Subresource: subresource}
	for _, o := range []scheme.Object{obj, old} {
		if o != nil && !reflect.ValueOf(o).IsNil() {
			rec.Info.Namespace, rec.Info.Name = o.GetNamespace(), o.GetName()
		}
	}
	a.Request = rec
	return a
}

var node1 = request.User{Name: "system:node:n1", Groups: []string{request.GroupNodes}}

func noRights(request.User, request.Info) (bool, string) { return false, "no rights" }

// TestNodesWriteTheirOwn checks each write that a node may not make, and beside it one that it may.
func TestNodesWriteTheirOwn(t *testing.T) {
	t.Parallel()
	r := restriction{openStore(t, nil), noRights}
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, Namespace: "shop"} }
	pod := func(node string, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: meta("p"), Spec: corev1.PodSpec{NodeName: node}}
		p.Labels = map[string]string{"app": "a"}
		if change != nil {
			change(p)
		}
		return p
	}
	node := func(name string, change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"node-restriction.kubernetes.io/pool": "a"}}}
		if change != nil {
			change(n)
		}
		return n
	}
	claim := func(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: meta("c")}
		if change != nil {
			change(c)
		}
		return c
	}
	slice := func(node string) *resourcev1.ResourceSlice {
		s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
		if node != "" {
			s.Spec.NodeName = &node
		}
		return s
	}
	lease := func(namespace, name string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	claimed := "claim"
	const create, update, remove = admission.OpCreate, admission.OpUpdate, admission.OpDelete
	for _, c := range []struct {
		op, path string
		obj, old scheme.Object
		want     string
	}{
		{update, "pods/status", pod("n1", nil), pod("n1", nil), ""},
		{update, "pods/status", pod("n1", nil), pod("n2", nil), "can only update pod status for pods with spec.nodeName set to itself"},
		{update, "pods/status", pod("n1", func(p *corev1.Pod) { p.Labels["app"] = "b" }), pod("n1", nil), "cannot update labels"},
		{update, "pods/status", pod("n1", func(p *corev1.Pod) { p.Labels = nil }), pod("n1", nil), "cannot update labels"},
		{update, "pods/status", pod("n1", func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }), pod("n1", nil), ""},
		{update, "pods/status", pod("n1", func(p *corev1.Pod) {
			p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "x", ResourceClaimName: &claimed}}
		}), pod("n1", nil), "cannot update resource claim"},
		{update, "pods/status", pod("n1", func(p *corev1.Pod) {
			p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "x"}
		}), pod("n1", nil), "cannot update extended resource claim"},
		{update, "pods/status", pod("n1", func(p *corev1.Pod) {
			p.Status.NodeAllocatableResourceClaimStatuses = []corev1.NodeAllocatableResourceClaimStatus{{ResourceClaimName: "x"}}
		}), pod("n1", nil), "cannot update node allocatable resource claim"},
		{update, "pods", pod("n1", nil), pod("n1", nil), "can only create and delete mirror pods"},
		{remove, "pods", nil, pod("n1", nil), ""},
		{remove, "pods", nil, pod("n2", nil), "can only delete pods with spec.nodeName set to itself"},
		{remove, "pods", nil, pod("", nil), "can only delete pods with spec.nodeName set to itself"},
		{create, "pods/binding", &corev1.Binding{ObjectMeta: meta("p")}, nil, "unexpected pod subresource"},
		{update, "pods/ephemeralcontainers", pod("n1", nil), pod("n1", nil), "unexpected pod subresource"},
		{update, "pods/resize", pod("n1", nil), pod("n1", nil), "unexpected pod subresource"},
		{create, "pods/eviction", &policyv1.Eviction{ObjectMeta: meta("gone")}, nil, `pod "gone" not found`},

		{update, "nodes", node("n1", nil), node("n1", nil), ""},
		{update, "nodes/status", node("n2", nil), node("n2", nil), "is not allowed to modify node"},
		{remove, "nodes", nil, node("n1", nil), ""},
		{remove, "nodes", nil, node("n2", nil), "is not allowed to modify node"},
		{create, "nodes", node("n1", nil), nil, "is not allowed to set the following labels: node-restriction.kubernetes.io/pool"},
		{create, "nodes", node("n1", func(n *corev1.Node) { n.Labels = map[string]string{"a.node-restriction.kubernetes.io/x": ""} }), nil, "is not allowed to set the following labels"},
		{create, "nodes", node("n1", func(n *corev1.Node) { n.Labels = map[string]string{"k8s.io/x": "", "a.k8s.io/y": ""} }), nil, "labels: a.k8s.io/y, k8s.io/x"},
		{create, "nodes", node("n1", func(n *corev1.Node) {
			n.Labels = map[string]string{"kubernetes.io/hostname": "", "x.node.kubernetes.io/y": "", "mykubernetes.io/x": "", "pool": ""}
		}), nil, ""},
		{create, "nodes", node("n1", func(n *corev1.Node) { n.Labels, n.Spec.ConfigSource = nil, &corev1.NodeConfigSource{} }), nil, "non-nil configSource"},
		{update, "nodes", node("n1", func(n *corev1.Node) { n.Spec.ConfigSource = &corev1.NodeConfigSource{} }), node("n1", nil), "to a new non-nil configSource"},
		{update, "nodes", node("n1", nil), node("n1", func(n *corev1.Node) { n.Spec.ConfigSource = &corev1.NodeConfigSource{} }), ""},
		{update, "nodes", node("n1", nil), node("n1", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "x"}} }), "is not allowed to modify taints"},
		{update, "nodes/status", node("n1", func(n *corev1.Node) { n.OwnerReferences = []metav1.OwnerReference{{Name: "x"}} }), node("n1", nil), "is not allowed to modify ownerReferences"},
		{update, "nodes", node("n1", func(n *corev1.Node) { n.Labels = nil }), node("n1", nil), "is not allowed to modify labels: node-restriction.kubernetes.io/pool"},

		{update, "persistentvolumeclaims", claim(nil), claim(nil), "may only update PVC status"},
		{remove, "persistentvolumeclaims", nil, claim(nil), "may only update PVC status"},
		{update, "persistentvolumeclaims/status", claim(func(c *corev1.PersistentVolumeClaim) {
			c.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
			c.Status.Conditions, c.ResourceVersion = []corev1.PersistentVolumeClaimCondition{{Type: "Resizing"}}, "7"
		}), claim(nil), ""},
		{update, "persistentvolumeclaims/status", claim(func(c *corev1.PersistentVolumeClaim) { c.Finalizers = []string{"x"} }), claim(nil), "is not allowed to update fields other than"},
		{update, "persistentvolumeclaims/status", claim(func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimLost }), claim(nil), "is not allowed to update fields other than"},

		{update, "leases.coordination.k8s.io", lease("kube-node-lease", "n1"), lease("kube-node-lease", "n1"), ""},
		{update, "leases.coordination.k8s.io", lease("kube-node-lease", "n2"), lease("kube-node-lease", "n2"), "same name as the requesting node"},
		{remove, "leases.coordination.k8s.io", nil, lease("kube-system", "n1"), "can only access leases in the"},
		{create, "csinodes.storage.k8s.io", &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, nil, ""},
		{create, "csinodes.storage.k8s.io", &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}, nil, "same name as the requesting node"},
		{create, "resourceslices.resource.k8s.io", slice("n1"), nil, ""},
		{create, "resourceslices.resource.k8s.io", slice("n2"), nil, "can only create ResourceSlice"},
		{create, "resourceslices.resource.k8s.io", slice(""), nil, "can only create ResourceSlice"},
		{remove, "resourceslices.resource.k8s.io", nil, slice("n2"), "can only delete ResourceSlice"},
		{remove, "resourceslices.resource.k8s.io", nil, slice("n1"), ""},

		{create, "serviceaccounts/token", &authenticationv1.TokenRequest{ObjectMeta: meta("default")}, nil, "not bound to a pod"},
		{create, "serviceaccounts/token", &authenticationv1.TokenRequest{ObjectMeta: meta("default"), Spec: authenticationv1.TokenRequestSpec{
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "1"}}}, nil, "not bound to a pod"},
		{create, "serviceaccounts/token", &authenticationv1.TokenRequest{ObjectMeta: meta("default"), Spec: authenticationv1.TokenRequestSpec{
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "p"}}}, nil, "without a uid"},
		{create, "serviceaccounts/token", &authenticationv1.TokenRequest{ObjectMeta: meta("default"), Spec: authenticationv1.TokenRequestSpec{
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "gone", UID: "1"}}}, nil, `pod "gone" not found`},
	} {
		what := fmt.Sprintf("%s %s by n1", c.op, c.path)
		refuses(t, what, r.admit(t.Context(), by(node1, c.op, c.path, c.obj, c.old)), c.want)
		nobody := by(request.User{Name: "system:node:", Groups: node1.Groups}, c.op, c.path, c.obj, c.old)
		refuses(t, what+", but without a name", r.admit(t.Context(), nobody), "could not determine node from user")
		for _, other := range []request.User{{Name: "system:node:n1"}, {Name: "alice", Groups: node1.Groups}} {
			refuses(t, what+", but by "+other.Name, r.admit(t.Context(), by(other, c.op, c.path, c.obj, c.old)), "")
		}
	}
}

// TestMirrorPodsReferToNothing compares with Kubernetes' own list of what a pod may refer to, for
// each kind of volume, also of those to come.
func TestMirrorPodsReferToNothing(t *testing.T) {
	t.Parallel()
	log := newLateLog(t)
	log.write("//nodes//n1", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u"}})
	r := restriction{log.st, noRights}
	specs := map[string]corev1.PodSpec{
		"plain":                 {},
		"account":               {ServiceAccountName: "a"},
		"pull secret":           {ImagePullSecrets: []corev1.LocalObjectReference{{Name: "a"}}},
		"nameless pull secret":  {ImagePullSecrets: []corev1.LocalObjectReference{{}}},
		"nameless environment":  {Containers: []corev1.Container{{EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{}}, {ConfigMapRef: &corev1.ConfigMapEnvSource{}}}}}},
		"claim":                 {ResourceClaims: []corev1.PodResourceClaim{{Name: "a"}}},
		"environment":           {Containers: []corev1.Container{{Env: []corev1.EnvVar{{Name: "a", Value: "b"}, {ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}}}},
		"environment by secret": {InitContainers: []corev1.Container{{Env: []corev1.EnvVar{{ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "a"}}}}}}}},
		"environment by map":    {InitContainers: []corev1.Container{{Env: []corev1.EnvVar{{ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "a"}}}}}}}},
		"all of a secret":       {Containers: []corev1.Container{{EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "a"}}}}}}},
		"all of a map":          {Containers: []corev1.Container{{EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "a"}}}}}}},
	}
	for _, filled := range []string{"", "references", "names"} {
		for kind := range reflect.TypeFor[corev1.VolumeSource]().NumField() {
			var source corev1.VolumeSource
			name := set(reflect.ValueOf(&source).Elem(), kind, filled)
			if source.Projected == nil {
				specs[fmt.Sprint(name, " ", filled)] = corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: source}}}
			}
		}
		for kind := range reflect.TypeFor[corev1.VolumeProjection]().NumField() {
			var part corev1.VolumeProjection
			name := set(reflect.ValueOf(&part).Elem(), kind, filled)
			specs[fmt.Sprint("projected ", name, " ", filled)] = corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{DownwardAPI: &corev1.DownwardAPIProjection{}}, part}}}}}}
		}
	}
	refused := 0
	for name, spec := range specs {
		yes := true
		spec.NodeName = "n1"
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "shop", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "x"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "u", Controller: &yes}}}, Spec: spec}
		refers, what, err := podutil.HasAPIObjectReference(internalversion.From(pod.DeepCopy()).(*core.Pod))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		want := ""
		if refers {
			refused++
			want = `node "n1" can not create pods that reference ` + what
		}
		refuses(t, name, r.admit(t.Context(), by(node1, admission.OpCreate, "pods", pod, nil)), want)
	}
	if refused < 20 {
		t.Errorf("only %d of %d pods refer to something", refused, len(specs))
	}
}

// set sets one pointer of a struct, and the references in what it points to, with or without their
// names.
func set(of reflect.Value, field int, filled string) string {
	value := reflect.New(of.Field(field).Type().Elem())
	of.Field(field).Set(value)
	for i := range value.Elem().NumField() {
		switch f := value.Elem().Field(i); {
		case filled == "" || filled == "references" && f.Kind() != reflect.Pointer:
		case f.Kind() == reflect.String:
			f.SetString("x")
		case f.Kind() == reflect.Pointer && f.Type().Elem().Kind() == reflect.Struct:
			f.Set(reflect.New(f.Type().Elem()))
			if name := f.Elem().FieldByName("Name"); filled == "names" && name.IsValid() && name.Kind() == reflect.String {
				name.SetString("x")
			}
		case f.Kind() == reflect.Struct && f.FieldByName("Name").IsValid() && f.FieldByName("Name").Kind() == reflect.String:
			f.FieldByName("Name").SetString("x")
		}
	}
	return of.Type().Field(field).Name
}

// signed makes a request for a certificate.
func signed(t *testing.T, name string, groups ...string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name, Organization: groups}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// TestCertificatesAreNotAskedForAsSomebodyElse: neither may a node name another one, nor may
// anybody become an administrator by a certificate.
func TestCertificatesAreNotAskedForAsSomebodyElse(t *testing.T) {
	t.Parallel()
	r := restriction{openStore(t, nil), noRights}
	csr := func(signer string, text []byte) *certificatesv1.CertificateSigningRequest {
		return &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: signer, Request: text}}
	}
	const client, kubelet, serving = certificatesv1.KubeAPIServerClientSignerName, certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName
	for _, c := range []struct {
		signer  string
		text    []byte
		node    string // what a node is told
		anybody string
	}{
		{kubelet, signed(t, "system:node:n1", "system:nodes"), "", ""},
		{kubelet, signed(t, "system:node:n2", "system:nodes"), "with CN=system:node:n1", ""},
		{serving, signed(t, "system:node:n2", "system:nodes"), "with CN=system:node:n1", ""},
		{kubelet, []byte("x"), "unable to parse csr", ""},
		{client, []byte("x"), "", "failed to parse CSR"},
		{client, signed(t, "alice", "dev"), "", ""},
		{client, signed(t, "alice", "dev", "system:masters"), "", "with system:masters group is not allowed"},
		{"example.com/other", signed(t, "alice", "system:masters"), "", ""},
	} {
		const path = "certificatesigningrequests.certificates.k8s.io"
		refuses(t, c.signer, r.admit(t.Context(), by(node1, admission.OpCreate, path, csr(c.signer, c.text), nil)), c.node)
		refuses(t, c.signer, restrictSubject(t.Context(), by(request.User{Name: "alice"}, admission.OpCreate, path, csr(c.signer, c.text), nil)), c.anybody)
	}
}

// TestOwnersNeedRights checks who may give an object an owner, and let it hold back the owner's
// deletion.
func TestOwnersNeedRights(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	ref := func(kind string, blocks *bool) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: "apps/v1", Kind: kind, Name: "o", UID: "1", BlockOwnerDeletion: blocks}
	}
	pod := func(refs ...metav1.OwnerReference) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "shop", OwnerReferences: refs}}
	}
	odd := ref("Deployment", &yes)
	odd.APIVersion = "a/b/c"
	for i, c := range []struct {
		obj, old *corev1.Pod
		path     string
		rights   string // "verb resource/subresource namespace/name", one of them
		want     string
	}{
		{pod(ref("Deployment", nil)), nil, "pods", "", ""},
		{pod(ref("Deployment", &no)), nil, "pods", "", ""},
		{pod(ref("Deployment", &yes)), nil, "pods", "", "a resource you can't set finalizers on"},
		{pod(ref("Deployment", &yes)), nil, "pods", "update deployments/finalizers shop/o", ""},
		{pod(ref("Deployment", &yes)), nil, "pods", "update deployments/finalizers shop/other", "a resource you can't set finalizers on"},
		{pod(ref("Deployment", &yes)), nil, "pods", "update */finalizers /*", ""},
		{pod(ref("Nothing", &yes)), nil, "pods", "", "cannot find RESTMapping for APIVersion apps/v1 Kind Nothing"},
		{pod(odd), nil, "pods", "", "cannot find RESTMapping for APIVersion a/b/c"},
		{pod(ref("Deployment", nil)), pod(), "pods", "", "cannot set an ownerRef on a resource you can't delete"},
		{pod(ref("Deployment", nil)), pod(), "pods", "delete pods/ shop/p", ""},
		{pod(), pod(ref("Deployment", nil)), "pods", "", "cannot set an ownerRef on a resource you can't delete"},
		{pod(ref("Deployment", &yes)), pod(ref("Deployment", nil)), "pods", "delete pods/ shop/p", "a resource you can't set finalizers on"},
		{pod(ref("Deployment", &yes)), pod(ref("Deployment", &yes)), "pods", "", ""},
		{pod(ref("Deployment", &yes)), pod(), "pods/status", "", ""},
	} {
		o := ownership{func(_ request.User, info request.Info) (bool, string) {
			return fmt.Sprintf("%s %s/%s %s/%s", info.Verb, info.Resource, info.Subresource, info.Namespace, info.Name) == c.rights, "no"
		}, scheme.NewRegistry()}
		op, old := admission.OpCreate, scheme.Object(nil)
		if c.old != nil {
			op, old = admission.OpUpdate, c.old
		}
		refuses(t, fmt.Sprint(i), o.validate(t.Context(), by(request.User{Name: "alice"}, op, c.path, c.obj, old)), c.want)
	}
}

// TestWhatCannotBeReadRefuses: a limit, an account or a class that cannot be decoded lets nothing
// pass. Only the default priority can do without.
func TestWhatCannotBeReadRefuses(t *testing.T) {
	t.Parallel()
	st := openStore(t, map[string]string{"//limitranges/shop/a": broken, "//serviceaccounts/shop/a": broken, strategy.PriorityClasses + "/a": broken, runtimeClasses + "/a": broken})
	now := metav1.Now()
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "shop"}}
		if change != nil {
			change(p)
		}
		return p
	}
	box := "a"
	alice := request.User{Name: "alice"}
	limits, accounts, classes := limitRanger{st}, accounts{st}, classes{st}
	for what, c := range map[string]struct {
		do   func(context.Context, *admission.Attributes) error
		a    *admission.Attributes
		want string
	}{
		"limits, admit":           {limits.admit, by(alice, admission.OpCreate, "pods", pod(nil), nil), "a LimitRange is stored and cannot be read"},
		"limits, validate":        {limits.validatePod, by(alice, admission.OpUpdate, "pods/resize", pod(nil), pod(nil)), "a LimitRange is stored and cannot be read"},
		"limits, on its way out":  {limits.validatePod, by(alice, admission.OpUpdate, "pods/resize", pod(nil), pod(func(p *corev1.Pod) { p.DeletionTimestamp = &now })), ""},
		"account":                 {accounts.admit, by(alice, admission.OpCreate, "pods", pod(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "a" }), nil), "error looking up service account shop/a"},
		"account is missing":      {accounts.admit, by(alice, admission.OpCreate, "pods", pod(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "b" }), nil), `serviceaccount "b" not found`},
		"account, taken away":     {accounts.validate, by(alice, admission.OpCreate, "pods", pod(nil), nil), "no service account specified"},
		"account, one more":       {accounts.validateEphemeral, by(alice, admission.OpUpdate, "pods/ephemeralcontainers", pod(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "b" }), pod(nil)), `serviceaccount "b" not found`},
		"priority, named":         {classes.admitPriority, by(alice, admission.OpCreate, "pods", pod(func(p *corev1.Pod) { p.Spec.PriorityClassName = "a" }), nil), "is stored and cannot be read"},
		"priority, not named":     {classes.admitPriority, by(alice, admission.OpCreate, "pods", pod(nil), nil), ""},
		"runtime":                 {classes.admitRuntime, by(alice, admission.OpCreate, "pods", pod(func(p *corev1.Pod) { p.Spec.RuntimeClassName = &box }), nil), "is stored and cannot be read"},
		"runtime, validate":       {classes.validateRuntime, by(alice, admission.OpCreate, "pods", pod(func(p *corev1.Pod) { p.Spec.RuntimeClassName, p.Spec.Overhead = &box, corev1.ResourceList{} }), nil), "is stored and cannot be read"},
		"overhead without class":  {classes.validateRuntime, by(alice, admission.OpCreate, "pods", pod(func(p *corev1.Pod) { p.Spec.Overhead = corev1.ResourceList{} }), nil), "Pod Overhead set without corresponding RuntimeClass"},
		"second default priority": {classes.validatePriority, by(alice, admission.OpCreate, "priorityclasses.scheduling.k8s.io", &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "b"}, GlobalDefault: true}, nil), ""},
	} {
		refuses(t, what, c.do(t.Context(), c.a), c.want)
	}
	st.Close()
	for what, err := range map[string]error{
		"limits":   limits.validatePod(t.Context(), by(alice, admission.OpUpdate, "pods/resize", pod(nil), pod(nil))),
		"account":  accounts.admit(t.Context(), by(alice, admission.OpCreate, "pods", pod(nil), nil)),
		"priority": classes.admitPriority(t.Context(), by(alice, admission.OpCreate, "pods", pod(nil), nil)),
		"default":  classes.admitStorage(t.Context(), by(alice, admission.OpCreate, "persistentvolumeclaims", &corev1.PersistentVolumeClaim{}, nil)),
		"security": newPodStandards(st, podSecurityConfig{}, nil).validatePod(t.Context(), by(alice, admission.OpCreate, "pods", pod(nil), nil)),
		"selector": nodeSelectors{st, nil}.admit(t.Context(), by(alice, admission.OpCreate, "pods", pod(nil), nil)),
		"node":     restriction{st, noRights}.admit(t.Context(), by(node1, admission.OpCreate, "pods/eviction", &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "shop"}}, nil)),
	} {
		if err == nil {
			t.Errorf("%s: a write passed while the store could not be read", what)
		}
	}
}

// TestTheDefaultAccountIsWaitedFor as long as the request lasts, and a bounded number of times.
func TestTheDefaultAccountIsWaitedFor(t *testing.T) {
	t.Parallel()
	st := openStore(t, nil)
	pod := func() *admission.Attributes {
		return by(request.User{Name: "alice"}, admission.OpCreate, "pods", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "shop"}}, nil)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (accounts{st}).admit(ctx, pod()); err == nil || strings.Contains(err.Error(), "forbidden") {
		t.Errorf("a request that has ended: %v, want a timeout", err)
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		st := openStore(t, nil)
		refuses(t, "missing for ever", (accounts{st}).admit(t.Context(), pod()), `serviceaccount "default" not found`)
		if took := time.Since(began); took < (defaultAccountAttempts-1)*defaultAccountPause || took > defaultAccountAttempts*2*defaultAccountPause {
			t.Errorf("waited for %v", took)
		}
		st.Close()
	})
}

// TestSecretsAreLentByTheAccount, where the account says so, in each place of a pod.
func TestSecretsAreLentByTheAccount(t *testing.T) {
	t.Parallel()
	strict := `{"metadata":{"name":"strict","resourceVersion":"","annotations":{"kubernetes.io/enforce-mountable-secrets":"true"}},"secrets":[{"name":"own"}],"imagePullSecrets":[{"name":"pull"}]}`
	s := accounts{openStore(t, map[string]string{"//serviceaccounts/shop/strict": strict, "//serviceaccounts/shop/free": `{"metadata":{"name":"free","resourceVersion":""}}`})}
	container := func(secret string, whole bool) corev1.Container {
		ref := corev1.LocalObjectReference{Name: secret}
		if whole {
			return corev1.Container{Name: "c", EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref}}}}
		}
		return corev1.Container{Name: "c", Env: []corev1.EnvVar{{Name: "e", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: ref}}}}}
	}
	for what, place := range map[string]func(spec *corev1.PodSpec, secret string){
		"volume": func(spec *corev1.PodSpec, secret string) {
			spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret}}}}
		},
		"container": func(spec *corev1.PodSpec, secret string) {
			spec.Containers = []corev1.Container{{}, container(secret, false)}
		},
		"container, whole": func(spec *corev1.PodSpec, secret string) {
			spec.Containers = []corev1.Container{container(secret, true)}
		},
		"init container": func(spec *corev1.PodSpec, secret string) {
			spec.InitContainers = []corev1.Container{container(secret, false)}
		},
		"init container, whole": func(spec *corev1.PodSpec, secret string) {
			spec.InitContainers = []corev1.Container{container(secret, true)}
		},
		"pull secret": func(spec *corev1.PodSpec, secret string) {
			spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: strings.Replace(secret, "own", "pull", 1)}}
		},
		"ephemeral container": func(spec *corev1.PodSpec, secret string) {
			spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon(container(secret, false))}}
		},
	} {
		for _, c := range []struct{ account, secret, want string }{{"strict", "own", ""}, {"strict", "other", "service account strict does not reference that"}, {"free", "other", ""}} {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "shop"}, Spec: corev1.PodSpec{ServiceAccountName: c.account}}
			place(&pod.Spec, c.secret)
			do := s.validate
			if what == "ephemeral container" {
				do = s.validateEphemeral
			}
			refuses(t, what+" of "+c.account, do(t.Context(), by(request.User{Name: "alice"}, admission.OpCreate, "pods", pod, nil)), c.want)
		}
	}
}

// TestEventsAreLimited by each limit of the configuration, and each write counts against all of
// them.
func TestEventsAreLimited(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_900_000_000, 0)
	l := newEventLimiter([]eventLimit{{Type: "Server", QPS: 1, Burst: 4}, {Type: "Namespace", QPS: 1, Burst: 3}, {Type: "User", QPS: 1, Burst: 2}, {Type: "SourceAndObject", QPS: 1, Burst: 1}},
		func() time.Time { return now })
	for i, c := range []struct {
		user, namespace, about string
		wait                   time.Duration
		dry                    bool
		want                   string
	}{
		{"a", "x", "1", 0, false, ""},
		{"a", "x", "1", 0, true, ""},
		{"a", "x", "1", 0, false, "limit reached on type SourceAndObject"},
		{"a", "x", "2", 0, false, "limit reached on type User for key a"},
		{"b", "x", "3", 0, false, "limit reached on type Namespace for key x"},
		{"b", "y", "4", 0, false, "limit reached on type Server"},
		{"b", "y", "7", 0, false, "limit reached on type User for key b"}, // though others have refused all that b wrote
		{"c", "z", "5", time.Second, false, ""},
		{"c", "z", "6", 0, false, "limit reached on type Server"},
	} {
		now = now.Add(c.wait)
		event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: c.namespace}, InvolvedObject: corev1.ObjectReference{Name: c.about}}
		a := by(request.User{Name: c.user}, admission.OpCreate, "events", event, nil)
		a.DryRun = c.dry
		refuses(t, fmt.Sprint(i), l.validate(t.Context(), a), c.want)
	}
}

// TestImagesArePulledAlways, in all kinds of containers and volumes, unless an update brings no new
// image.
func TestImagesArePulledAlways(t *testing.T) {
	t.Parallel()
	pod := func(image string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
		p.Spec.InitContainers, p.Spec.Containers = []corev1.Container{{Image: "i"}}, []corev1.Container{{Image: "c"}}
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Image: image}}}
		p.Spec.Volumes = []corev1.Volume{{Name: "v"}, {Name: "w", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "v"}}}}
		return p
	}
	policies := func(p *corev1.Pod) []*corev1.PullPolicy {
		return []*corev1.PullPolicy{&p.Spec.InitContainers[0].ImagePullPolicy, &p.Spec.Containers[0].ImagePullPolicy, &p.Spec.EphemeralContainers[0].ImagePullPolicy, &p.Spec.Volumes[1].Image.PullPolicy}
	}
	for i, where := range []string{"spec.initContainers[0].imagePullPolicy", "spec.containers[0].imagePullPolicy", "spec.ephemeralContainers[0].imagePullPolicy", "spec.volumes[1].image.pullPolicy"} {
		a := by(request.User{}, admission.OpUpdate, "pods/ephemeralcontainers", pod("new"), pod("old"))
		refuses(t, "admit", pullAlways(t.Context(), a), "")
		refuses(t, "validate", validatePull(t.Context(), a), "")
		*policies(a.Object.(*corev1.Pod))[i] = corev1.PullNever // by a webhook
		refuses(t, where, validatePull(t.Context(), a), where+": Unsupported value")
	}
	same := by(request.User{}, admission.OpUpdate, "pods", pod("c"), pod("old"))
	if err := pullAlways(t.Context(), same); err != nil || *policies(same.Object.(*corev1.Pod))[1] != "" {
		t.Errorf("an update without a new image: %v, %q", err, *policies(same.Object.(*corev1.Pod))[1])
	}
}

// TestPodSecurityLooksAtWhatIsNew: who is exempt, what an update has to change so that it is
// checked, and what unreadable labels mean.
func TestPodSecurityLooksAtWhatIsNew(t *testing.T) {
	t.Parallel()
	namespace := func(level string) string {
		return fmt.Sprintf(`{"metadata":{"name":"n","resourceVersion":"","labels":{"pod-security.kubernetes.io/enforce":%q}}}`, level)
	}
	st := openStore(t, map[string]string{"//namespaces//strict": namespace("restricted"), "//namespaces//odd": namespace("odd"), "//namespaces//exempt": namespace("restricted"), "//namespaces//free": namespace("privileged")})
	p := newPodStandards(st, podSecurityConfig{namespaces: []string{"exempt"}, usernames: []string{"root"}, runtimeClasses: []string{"box"}}, nil)
	pod := func(namespace string, change func(*corev1.Pod)) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: namespace}, Spec: corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		if change != nil {
			change(pod)
		}
		return pod
	}
	debug := func(name, image string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: name, Image: image}}}
		}
	}
	box, other := "box", "other"
	const violates = `violates PodSecurity "restricted:latest"`
	for i, c := range []struct {
		user     string
		pod, old *corev1.Pod
		want     string
	}{
		{"alice", pod("strict", nil), nil, violates},
		{"root", pod("strict", nil), nil, ""},
		{"alice", pod("exempt", nil), nil, ""},
		{"alice", pod("free", nil), nil, ""},
		{"alice", pod("odd", nil), nil, violates},
		{"alice", pod("gone", nil), nil, "failed to lookup namespace"},
		{"alice", pod("strict", func(p *corev1.Pod) { p.Spec.RuntimeClassName = &box }), nil, ""},
		{"alice", pod("strict", func(p *corev1.Pod) { p.Spec.RuntimeClassName = &other }), nil, violates},
		{"alice", pod("strict", func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }), pod("strict", nil), ""},
		{"alice", pod("strict", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "j" }), pod("strict", nil), violates},
		{"alice", pod("strict", func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Image: "j"}} }), pod("strict", nil), violates},
		{"alice", pod("strict", debug("d", "i")), pod("strict", nil), violates},
		{"alice", pod("strict", debug("d", "i")), pod("strict", debug("d", "i")), ""},
		{"alice", pod("strict", debug("d", "j")), pod("strict", debug("d", "i")), violates},
		{"alice", pod("strict", debug("e", "i")), pod("strict", debug("d", "i")), violates},
	} {
		op, old := admission.OpCreate, scheme.Object(nil)
		if c.old != nil {
			op, old = admission.OpUpdate, c.old
		}
		refuses(t, fmt.Sprint(i), p.validatePod(t.Context(), by(request.User{Name: c.user}, op, "pods", c.pod, old)), c.want)
	}
	refuses(t, "store", p.config.validate().ToAggregate(), "")
	bad := podSecurityConfig{namespaces: []string{"a", "B_", "a"}, usernames: []string{""}, runtimeClasses: []string{"_"}}
	if errs := bad.validate(); len(errs) != 4 {
		t.Errorf("the exemptions %+v have %d mistakes: %v", bad, len(errs), errs)
	}
}

// TestSurveysOfPodsAreBounded by the request's time and in number, and one pod of each controller
// comes first.
func TestSurveysOfPodsAreBounded(t *testing.T) {
	t.Parallel()
	docs := map[string]string{"//pods/shop/broken": broken}
	for i := range 6 {
		docs[fmt.Sprint("//pods/shop/a", i)] = fmt.Sprintf(`{"metadata":{"name":"a%d","namespace":"shop","resourceVersion":"","ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"r","uid":"u","controller":true}]},"spec":{"hostNetwork":true}}`, i)
	}
	docs["//pods/shop/b"] = `{"metadata":{"name":"b","namespace":"shop","resourceVersion":""},"spec":{"hostPID":true}}`
	docs["//pods/shop/boxed"] = `{"metadata":{"name":"boxed","namespace":"shop","resourceVersion":""},"spec":{"hostIPC":true,"runtimeClassName":"box"}}`
	p := newPodStandards(openStore(t, docs), podSecurityConfig{runtimeClasses: []string{"box"}}, nil)
	level := podsecurity.LevelVersion{Level: podsecurity.LevelBaseline, Version: podsecurity.LatestVersion()}
	want := `existing pods in namespace "shop" violate the new PodSecurity enforce level "baseline:latest"` + "\na0 (and 5 other pods): host namespaces\nb: host namespaces"
	if got := strings.Join(p.warnViolations(t.Context(), "shop", level), "\n"); got != strings.Replace(want, "a0 (and 5 other pods): host namespaces\nb: host namespaces", "a0 (and 6 other pods): host namespaces", 1) {
		t.Errorf("got\n%s", got)
	}
	pods, total, err := p.podsOf(t.Context(), "shop")
	if err != nil || total != 7 || len(pods) != 7 || pods[0].Name != "a0" || pods[1].Name != "b" {
		t.Errorf("%d of %d pods, %v", len(pods), total, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := p.warnViolations(ctx, "shop", level); len(got) != 1 || !strings.Contains(got[0], "failed to list pods") {
		t.Errorf("a request that has ended: %q", got)
	}
}
