package plugins

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"apilet/internal/admission"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// A lateLog is what a replica follows only when somebody asks how far it is.
type lateLog struct {
	t       *testing.T
	st      *store.Store
	rev     int64
	pending []store.Replicated
}

func newLateLog(t *testing.T) *lateLog {
	l := &lateLog{t: t}
	replica := &store.Replica{Identity: "late", Newest: l.newest,
		Share:     func(_ context.Context, _ string, fresh []byte) ([]byte, error) { return fresh, nil },
		Tombstone: func(doc []byte) ([]byte, int) { return doc, revisionAt(doc) }}
	st, err := store.Open(filepath.Join(t.TempDir(), "replica"), store.Options{Replica: replica, Fatal: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	l.st = st
	return l
}

func (l *lateLog) newest(ctx context.Context) (int64, error) {
	changes := l.pending
	l.pending = nil
	return l.rev, l.st.Replicate(ctx, changes, l.rev)
}

func revisionAt(doc []byte) int {
	const field = `"resourceVersion":"`
	return strings.Index(string(doc), field) + len(field)
}

// write puts an object into the log; nil deletes it.
func (l *lateLog) write(key string, obj scheme.Object) {
	l.t.Helper()
	l.rev++
	change := store.Replicated{Key: key, Rev: l.rev, CreateRev: l.rev, Deleted: obj == nil}
	if obj != nil {
		obj.SetResourceVersion("R")
		doc, err := json.Marshal(obj)
		if err != nil {
			l.t.Fatal(err)
		}
		change.JSON = []byte(strings.Replace(string(doc), `"resourceVersion":"R"`, `"resourceVersion":""`, 1))
		change.RevAt = revisionAt(change.JSON)
	}
	l.pending = append(l.pending, change)
}

// TestNodesAreJudgedByWhatIsNewest: what another server wrote a moment ago, and this one has not heard of yet, counts for and against a node.
func TestNodesAreJudgedByWhatIsNewest(t *testing.T) {
	t.Parallel()
	log := newLateLog(t)
	const key = "//pods/default/p"
	pod := func(uid types.UID, node string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: uid}, Spec: corev1.PodSpec{NodeName: node}}
		p.Spec.Volumes = []corev1.Volume{{Name: "t", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "t", Audience: "vault"}}}}}}}
		return p
	}
	asked := func(plural, subresource, name string, obj scheme.Object) error {
		rec := &request.Request{User: request.User{Name: "system:node:n1", Groups: []string{request.GroupNodes}}}
		rec.Info = request.Info{ResourceRequest: true, Verb: "create", Version: "v1", Resource: plural, Subresource: subresource, Namespace: "default", Name: name}
		r := restriction{log.st, func(request.User, request.Info) (bool, string) { return false, "" }}
		return r.admit(t.Context(), &admission.Attributes{Resource: &scheme.Resource{Plural: plural, Version: "v1", Namespaced: true},
			Subresource: subresource, Operation: admission.OpCreate, Object: obj, Request: rec})
	}
	evict := func() error {
		return asked("pods", "eviction", "p", &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p"}})
	}
	token := func(uid types.UID) error {
		return asked("serviceaccounts", "token", "default", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"vault"},
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "p", UID: uid}}})
	}
	yes := true
	mirror := func(node types.UID) error {
		return asked("pods", "", "", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "m", Namespace: "default",
			Annotations:     map[string]string{corev1.MirrorPodAnnotationKey: "x"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n1", UID: node, Controller: &yes}}}, Spec: corev1.PodSpec{NodeName: "n1"}})
	}
	const gone, elsewhere = `pod "p" not found`, "different node"
	for i, c := range []struct {
		write func()
		ask   func() error
		want  string // in the error; "": none
	}{
		{func() { log.write(key, pod("1", "n1")) }, evict, ""},
		{func() { log.write(key, nil) }, evict, gone},
		{func() { log.write(key, pod("2", "n1")) }, func() error { return token("2") }, ""},
		{func() { log.write(key, nil) }, func() error { return token("2") }, gone},
		{func() { log.write(key, pod("3", "n2")) }, evict, "can only evict pods with spec.nodeName set to itself"},
		{func() { log.write(key, nil); log.write(key, pod("4", "n1")) }, evict, ""},
		{func() { log.write(key, nil); log.write(key, pod("5", "n1")) }, func() error { return token("5") }, ""},
		{func() { log.write(key, nil); log.write(key, pod("6", "n2")) }, func() error { return token("6") }, elsewhere},
		{func() { log.write("//nodes//n1", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "a"}}) }, func() error { return mirror("a") }, ""},
		{func() { log.write("//nodes//n1", nil) }, func() error { return mirror("a") }, `node "n1" not found`},
		{func() { log.write("//nodes//n1", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "b"}}) }, func() error { return mirror("a") }, "UID mismatch"},
	} {
		c.write()
		if err := c.ask(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%d: got %v, want %q", i, err, c.want)
		}
	}
}

// TestPodCertificateRequestsDescribeThePod checks that a node requests certificates for the pods that run on it alone.
func TestPodCertificateRequestsDescribeThePod(t *testing.T) {
	t.Parallel()
	log := newLateLog(t)
	log.write("//nodes//n1", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node"}})
	log.write("//serviceaccounts/default/sa", &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "sa", Namespace: "default", UID: "account"}})
	pod := func(name, node string, annotations map[string]string) {
		source := corev1.VolumeProjection{PodCertificate: &corev1.PodCertificateProjection{SignerName: "example.com/mounted"}}
		volume := corev1.Volume{Name: "c", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{source}}}}
		log.write("//pods/default/"+name, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: "pod", Annotations: annotations},
			Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: "sa", Volumes: []corev1.Volume{volume}}})
	}
	pod("p", "n1", nil)
	pod("elsewhere", "n2", nil)
	pod("mirror", "n1", map[string]string{corev1.MirrorPodAnnotationKey: "x"})
	valid := certificatesv1.PodCertificateRequestSpec{SignerName: "example.com/mounted", PodName: "p", PodUID: "pod", ServiceAccountName: "sa", ServiceAccountUID: "account",
		NodeName: "n1", NodeUID: "node"}
	for _, c := range []struct {
		change func(*certificatesv1.PodCertificateRequestSpec)
		code   int32 // 0 for success
		want   string
	}{
		{func(*certificatesv1.PodCertificateRequestSpec) {}, 0, ""},
		{func(s *certificatesv1.PodCertificateRequestSpec) { s.NodeName = "n2" }, 403, "which is not the requesting node"},
		{func(s *certificatesv1.PodCertificateRequestSpec) { s.NodeUID = "x" }, 500, "inconsistent with the running node"},
		{func(s *certificatesv1.PodCertificateRequestSpec) { s.PodName = "gone" }, 500, `while retrieving pod "default/gone" named in the PodCertificateRequest`},
		{func(s *certificatesv1.PodCertificateRequestSpec) { s.PodUID = "x" }, 500, "differs from running pod"},
		{func(s *certificatesv1.PodCertificateRequestSpec) { s.PodName = "elsewhere" }, 403, "is not running on node"},
		{func(s *certificatesv1.PodCertificateRequestSpec) { s.PodName = "mirror" }, 403, "is a mirror pod"},
		{func(s *certificatesv1.PodCertificateRequestSpec) { s.ServiceAccountName = "x" }, 403, "that differs from running pod"},
		{func(s *certificatesv1.PodCertificateRequestSpec) { s.ServiceAccountUID = "x" }, 500, "which differs from the running service account"},
		{func(s *certificatesv1.PodCertificateRequestSpec) { s.SignerName = "example.com/allowed" }, 0, ""},
		{func(s *certificatesv1.PodCertificateRequestSpec) { s.SignerName = "example.com/other" }, 403, "does not mount a podCertificate projected volume"},
	} {
		req := &certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Name: "r", Namespace: "default"}, Spec: valid}
		c.change(&req.Spec)
		rec := &request.Request{User: request.User{Name: "system:node:n1", Groups: []string{request.GroupNodes}}}
		rec.Info = request.Info{ResourceRequest: true, Verb: "create", Group: certificatesv1.GroupName, Version: "v1", Resource: "podcertificaterequests", Namespace: "default"}
		r := restriction{log.st, func(_ request.User, info request.Info) (bool, string) {
			return info.Verb == "request-serviceaccounts-podcertificate-signer" && info.Resource == "example.com:allowed", ""
		}}
		err := r.admit(t.Context(), &admission.Attributes{Resource: &scheme.Resource{Group: certificatesv1.GroupName, Plural: "podcertificaterequests", Version: "v1", Namespaced: true},
			Operation: admission.OpCreate, Object: req, Request: rec})
		var status apierrors.APIStatus
		if c.code == 0 && err != nil || c.code != 0 && (!errors.As(err, &status) || status.Status().Code != c.code || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: got %v, want %d %s", req.Spec, err, c.code, c.want)
		}
	}
}

// TestSignersOfBundlesAndPodCertificates checks the rights that a user needs on the signer.
func TestSignersOfBundlesAndPodCertificates(t *testing.T) {
	t.Parallel()
	s := signers{func(_ request.User, info request.Info) (bool, string) {
		return info.Resource == "signers" && info.Name == "example.com/*" && (info.Verb == "sign" || info.Verb == "attest"), ""
	}}
	attributes := func(op string, obj, old scheme.Object) *admission.Attributes {
		return &admission.Attributes{Resource: &scheme.Resource{Group: certificatesv1.GroupName, Kind: "K", Plural: "ks"}, Operation: op, Object: obj, Old: old,
			Request: &request.Request{User: request.User{Name: "jane"}}}
	}
	bundle := func(signer, text string, finalizers ...string) *certificatesv1.ClusterTrustBundle {
		return &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: "b", Finalizers: finalizers},
			Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: text}}
	}
	for _, c := range []struct {
		obj, old *certificatesv1.ClusterTrustBundle
		want     string
	}{
		{bundle("", "a"), nil, ""},
		{bundle("example.com/s", "a"), nil, ""},
		{bundle("other.com/s", "a"), nil, `user not permitted to attest for signerName "other.com/s"`},
		{bundle("other.com/s", "a", "f"), bundle("other.com/s", "a"), ""},
		{bundle("other.com/s", "b"), bundle("other.com/s", "a"), `user not permitted to attest for signerName "other.com/s"`},
	} {
		a := attributes(admission.OpCreate, c.obj, nil)
		if c.old != nil {
			a = attributes(admission.OpUpdate, c.obj, c.old)
		}
		if err := s.attest(t.Context(), a); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: got %v, want %q", c.obj.Spec, err, c.want)
		}
	}
	for signer, want := range map[string]string{"example.com/s": "", "other.com/s": `spec.signerName: Forbidden: User "jane" is not permitted to "sign" for signer "other.com/s"`} {
		old := &certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: certificatesv1.PodCertificateRequestSpec{SignerName: signer}}
		req := old.DeepCopy()
		if err := s.podSigning(t.Context(), attributes(admission.OpUpdate, req, old)); err != nil {
			t.Errorf("the status has not changed: %v", err)
		}
		req.Status.Conditions = []metav1.Condition{{Type: "Denied", Status: "True"}}
		if err := s.podSigning(t.Context(), attributes(admission.OpUpdate, req, old)); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", signer, err, want)
		}
	}
}
