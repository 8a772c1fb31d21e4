package plugins

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
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
		Share: func(_ context.Context, _ string, fresh []byte) ([]byte, error) { return fresh, nil },
		Last:  func(doc []byte) ([]byte, int) { return doc, revisionAt(doc) }}
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
