package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"apilet/internal/apitest"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
	"apilet/internal/store/storetest"
)

// A bench is a store, and an authorizer that follows it.
type bench struct {
	testing.TB
	st    *store.Store
	types *scheme.Registry
	auth  *Authorizer
	told  error // what came of reading everything, the last time
}

func newBench(t testing.TB) *bench {
	st, err := store.Open(t.TempDir()+"/data.db", store.Options{Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	b := &bench{TB: t, st: st, types: scheme.NewRegistry()}
	b.auth = New(st, b.types, func(err error) { b.told = err })
	return b
}

func (b *bench) resource(obj scheme.Object) *scheme.Resource {
	switch obj.(type) {
	case *corev1.Pod:
		return b.types.Lookup("", "v1", "pods")
	case *corev1.PersistentVolume:
		return b.types.Lookup("", "v1", "persistentvolumes")
	case *storagev1.VolumeAttachment:
		return b.types.Lookup(storagev1.GroupName, "v1", "volumeattachments")
	case *certificatesv1.PodCertificateRequest:
		return b.types.Lookup(certificatesv1.GroupName, "v1", "podcertificaterequests")
	}
	return b.types.Lookup(resourcev1.GroupName, "v1", "resourceslices")
}

// put creates or updates an object.
func (b *bench) put(obj scheme.Object) {
	b.Helper()
	res := b.resource(obj)
	json, revAt, err := res.EncodeStored(obj)
	if err != nil {
		b.Fatal(err)
	}
	c := store.Change{Op: store.OpCreate, Key: res.Key(obj.GetNamespace(), obj.GetName()), JSON: json, RevAt: revAt}
	if old, err := b.st.Get(c.Key); err == nil {
		c.Op, c.Expect = store.OpUpdate, old.Rev
	}
	if _, err := b.st.Commit(context.Background(), c); err != nil {
		b.Fatal(err)
	}
}

// remove deletes an object, if it is there.
func (b *bench) remove(obj scheme.Object) {
	b.Helper()
	res := b.resource(obj)
	key := res.Key(obj.GetNamespace(), obj.GetName())
	old, err := b.st.Get(key)
	if errors.Is(err, store.ErrNotFound) {
		return
	}
	json, revAt, _ := res.EncodeStored(obj)
	if _, err := b.st.Commit(context.Background(), store.Change{Op: store.OpDelete, Key: key, Expect: old.Rev, JSON: json, RevAt: revAt}); err != nil {
		b.Fatal(err)
	}
}

// may asks as a node whether it may get something.
func (b *bench) may(node, group, resource, namespace, name string) bool {
	allowed, _ := b.auth.Decide(request.User{Name: "system:node:" + node, Groups: []string{"system:nodes"}},
		request.Info{ResourceRequest: true, Verb: "get", Group: group, Resource: resource, Namespace: namespace, Name: name})
	return allowed
}

// podOn is a pod on a node that refers to Secrets and a claim.
func podOn(node, name, claim string, secrets ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Spec: corev1.PodSpec{NodeName: node}}
	for _, secret := range secrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
	}
	if claim != "" {
		source := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}}
	}
	return pod
}

// volumeOf is a volume that is a claim's, or nobody's, with the Secrets to mount it.
func volumeOf(name, claim, secret string) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h",
		NodePublishSecretRef: &corev1.SecretReference{Namespace: "a", Name: secret}}
	if claim != "" {
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "a", Name: claim}
	}
	return pv
}

// A model is what is stored, in Go, with the question answered by looking at all of it.
type model struct {
	pods    map[string]*corev1.Pod
	volumes map[string]*corev1.PersistentVolume
}

// claimed says that a pod on the node uses a claim.
func (m *model) claimed(node, claim string) bool {
	for _, pod := range m.pods {
		if pod.Spec.NodeName == node && len(pod.Spec.Volumes) > 0 && pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName == claim {
			return true
		}
	}
	return false
}

func (m *model) mounted(node string, pv *corev1.PersistentVolume) bool {
	return pv != nil && pv.Spec.ClaimRef != nil && m.claimed(node, pv.Spec.ClaimRef.Name)
}

func (m *model) secret(node, name string) bool {
	for _, pod := range m.pods {
		if pod.Spec.NodeName == node && slices.Contains(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name}) {
			return true
		}
	}
	for _, pv := range m.volumes {
		if m.mounted(node, pv) && pv.Spec.CSI.NodePublishSecretRef.Name == name {
			return true
		}
	}
	return false
}

// TestGraphIsWhatIsStored writes at random and compares each answer with one that looks at everything; then the graph that has followed
// with one that was read anew; and when all is deleted nothing is left of it.
func TestGraphIsWhatIsStored(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	b := newBench(t)
	m := &model{map[string]*corev1.Pod{}, map[string]*corev1.PersistentVolume{}}
	pick := func(format string, n int) string { return fmt.Sprintf(format, r.IntN(n)) }
	maybe := func(name string) string {
		if r.IntN(4) == 0 {
			return ""
		}
		return name
	}
	for range 1500 {
		switch r.IntN(6) {
		case 0, 1:
			name := pick("p%d", 8)
			node := maybe(pick("n%d", 3))
			if old := m.pods[name]; old != nil && old.Spec.NodeName != "" {
				node = old.Spec.NodeName
			}
			pod := podOn(node, name, maybe(pick("c%d", 3)), pick("s%d", 4), pick("s%d", 4))
			b.put(pod)
			m.pods[name] = pod
		case 2:
			name := pick("p%d", 8)
			b.remove(podOn("", name, ""))
			delete(m.pods, name)
		case 3, 4:
			pv := volumeOf(pick("v%d", 4), maybe(pick("c%d", 3)), pick("s%d", 4))
			b.put(pv)
			m.volumes[pv.Name] = pv
		case 5:
			pv := volumeOf(pick("v%d", 4), "", "s")
			b.remove(pv)
			delete(m.volumes, pv.Name)
		}
		if r.IntN(3) == 0 {
			continue // several writes before a question
		}
		node, secret, claim, volume, pod := pick("n%d", 3), pick("s%d", 4), pick("c%d", 3), pick("v%d", 4), pick("p%d", 8)
		for what, want := range map[[3]string]bool{
			{"secrets", "a", secret}:               m.secret(node, secret),
			{"persistentvolumeclaims", "a", claim}: m.claimed(node, claim),
			{"persistentvolumes", "", volume}:      m.mounted(node, m.volumes[volume]),
			{"pods", "a", pod}:                     m.pods[pod] != nil && m.pods[pod].Spec.NodeName == node,
		} {
			if got := b.may(node, "", what[0], what[1], what[2]); got != want {
				t.Fatalf("seed %d: %s %v: %v, want %v", seed, node, what, got, want)
			}
		}
	}
	b.auth.graph.hasPath("", "")
	fresh := New(b.st, b.types, func(error) {})
	fresh.graph.hasPath("", "")
	apitest.Expect(t, state(b.auth.graph.graph), state(fresh.graph.graph))
	for name := range m.pods {
		b.remove(podOn("", name, ""))
	}
	for name := range m.volumes {
		b.remove(volumeOf(name, "", "s"))
	}
	b.auth.graph.hasPath("", "")
	if left := state(b.auth.graph.graph); len(left) > 0 {
		t.Errorf("all is deleted, and there is %v", left)
	}
}

// state is all that a graph holds.
func state(g *graph) map[string]any {
	all := map[string]any{}
	for name, n := range g.nodes {
		all["node "+name] = n.holders
	}
	for key, h := range g.holders {
		all["holder "+key] = fmt.Sprint(h.node.name, len(h.objects))
	}
	for key, v := range g.volumes {
		all["volume "+key] = fmt.Sprint(v.claim.key, len(v.objects))
	}
	for key, o := range g.objects {
		ways := map[string]int{}
		for n, count := range o.paths {
			ways[n.name] = count
		}
		all["object "+key] = fmt.Sprint(o.references, slices.Sorted(maps.Keys(ways)), ways, len(o.parts))
	}
	return all
}

// TestWaysAreOpenWhenTheWriteIsAnswered has writers ask for what they have just connected, while others write, and a worker follows.
func TestWaysAreOpenWhenTheWriteIsAnswered(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx, cancel := context.WithCancel(context.Background())
	var running, writing sync.WaitGroup
	running.Go(func() { b.auth.Run(ctx) })
	for w := range 4 {
		writing.Go(func() {
			node := fmt.Sprint("n", w)
			for i := range 50 {
				name := fmt.Sprintf("%s-%d", node, i)
				pod := podOn(node, name, "", name)
				b.put(pod)
				if !b.may(node, "", "secrets", "a", name) {
					t.Errorf("%s may not see the Secret of its new pod", node)
				}
				if b.may("n9", "", "secrets", "a", name) {
					t.Errorf("another node may see it")
				}
				b.remove(pod)
				if b.may(node, "", "secrets", "a", name) {
					t.Errorf("%s sees the Secret of a pod that is gone", node)
				}
			}
		})
	}
	writing.Wait()
	cancel()
	running.Wait()
}

// TestNodesReadTheirOwnPodCertificateRequests: a node gets the requests that name it, and lists them by its name.
func TestNodesReadTheirOwnPodCertificateRequests(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.put(&certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "r"}, Spec: certificatesv1.PodCertificateRequestSpec{NodeName: "n1"}})
	ask := func(node, verb, name, sub, selector string) (bool, string) {
		info := request.Info{ResourceRequest: true, Verb: verb, Group: certificatesv1.GroupName, Resource: "podcertificaterequests", Namespace: "a", Name: name, Subresource: sub}
		return b.auth.Decide(request.User{Name: "system:node:" + node, Groups: []string{"system:nodes"}}, info.WithFieldSelector(selector))
	}
	for _, c := range []struct {
		node, verb, name, sub, selector string
		want                            bool
		reason                          string
	}{
		{"n1", "get", "r", "", "", true, ""},
		{"n2", "get", "r", "", "", false, "no relationship found between node 'n2' and this object"},
		{"n2", "create", "", "", "", true, ""},
		{"n1", "update", "r", "", "", false, "nodes may not update podcertificaterequests"},
		{"n1", "update", "r", "status", "", false, "nodes may not access the status subresource of PodCertificateRequests"},
		{"n1", "list", "", "", "", false, "can only list/watch podcertificaterequests with nodeName field selector"},
		{"n1", "watch", "", "", "spec.nodeName=n1", true, ""},
	} {
		if got, reason := ask(c.node, c.verb, c.name, c.sub, c.selector); got != c.want || reason != c.reason {
			t.Errorf("%s %s %s/%s?%s: %v, %q, want %v, %q", c.node, c.verb, c.name, c.sub, c.selector, got, reason, c.want, c.reason)
		}
	}
	b.remove(&certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "r"}})
	if b.may("n1", certificatesv1.GroupName, "podcertificaterequests", "a", "r") {
		t.Error("the node may get a request that is gone")
	}
}

// TestGraphOutlivesCompaction: what the log no longer tells is read anew.
func TestGraphOutlivesCompaction(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.put(podOn("n1", "old", "", "before"))
	if !b.may("n1", "", "secrets", "a", "before") {
		t.Fatal("a pod leads nowhere")
	}
	b.remove(podOn("", "old", ""))
	b.put(podOn("n1", "new", "", "after"))
	storetest.Forget(t, b.st)
	if b.may("n1", "", "secrets", "a", "before") || !b.may("n1", "", "secrets", "a", "after") {
		t.Error("the graph is not what is stored")
	}
}

// TestUnreadableIsReadAgain: a store that fails lets no node in, and is asked again.
func TestUnreadableIsReadAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.put(podOn("n1", "p", "", "s"))
	if err := b.st.Close(); err != nil {
		t.Fatal(err)
	}
	if b.may("n1", "", "secrets", "a", "s") || b.told == nil {
		t.Errorf("what cannot be read lets a node in, and nobody hears of it (%v)", b.told)
	}
	b.auth.graph.retry = time.Now().Add(-time.Second)
	if b.auth.graph.upToDate() {
		t.Error("nothing is tried again")
	}
}

// TestReferencesOfEveryKind fills every reference that a pod, or a volume, can have.
func TestReferencesOfEveryKind(t *testing.T) {
	t.Parallel()
	local := func(name string) *corev1.LocalObjectReference { return &corev1.LocalObjectReference{Name: name} }
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}}
	for i, source := range []corev1.VolumeSource{
		{AzureFile: &corev1.AzureFileVolumeSource{SecretName: "azure"}},
		{CephFS: &corev1.CephFSVolumeSource{SecretRef: local("ceph")}},
		{Cinder: &corev1.CinderVolumeSource{SecretRef: local("cinder")}},
		{FlexVolume: &corev1.FlexVolumeSource{SecretRef: local("flex")}},
		{RBD: &corev1.RBDVolumeSource{SecretRef: local("rbd")}},
		{ScaleIO: &corev1.ScaleIOVolumeSource{SecretRef: local("scale")}},
		{ISCSI: &corev1.ISCSIVolumeSource{SecretRef: local("iscsi")}},
		{StorageOS: &corev1.StorageOSVolumeSource{SecretRef: local("storageos")}},
		{CSI: &corev1.CSIVolumeSource{NodePublishSecretRef: local("csi")}},
		{Secret: &corev1.SecretVolumeSource{SecretName: "secret"}},
		{CSI: &corev1.CSIVolumeSource{}}, {RBD: &corev1.RBDVolumeSource{}}, {ConfigMap: &corev1.ConfigMapVolumeSource{}}, // name nothing
	} {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprint(i), VolumeSource: source})
	}
	pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "extended"}
	var want []string
	for _, name := range []string{"azure", "ceph", "cinder", "flex", "rbd", "scale", "iscsi", "storageos", "csi", "secret"} {
		want = append(want, "//secrets/a/"+name)
	}
	apitest.Expect(t, podRefers(pod), append(want, "/resource.k8s.io/resourceclaims/a/extended"))

	far, near, none := &corev1.SecretReference{Namespace: "far", Name: "s"}, &corev1.SecretReference{Name: "s"}, (*corev1.SecretReference)(nil)
	namespace := "far"
	for i, c := range []struct {
		source corev1.PersistentVolumeSource
		want   []string
	}{
		{corev1.PersistentVolumeSource{AzureFile: &corev1.AzureFilePersistentVolumeSource{SecretName: "s"}}, []string{"//secrets/a/s"}},
		{corev1.PersistentVolumeSource{AzureFile: &corev1.AzureFilePersistentVolumeSource{SecretName: "s", SecretNamespace: &namespace}}, []string{"//secrets/far/s"}},
		{corev1.PersistentVolumeSource{CephFS: &corev1.CephFSPersistentVolumeSource{SecretRef: near}}, []string{"//secrets/a/s"}},
		{corev1.PersistentVolumeSource{FlexVolume: &corev1.FlexPersistentVolumeSource{SecretRef: far}}, []string{"//secrets/far/s"}},
		{corev1.PersistentVolumeSource{RBD: &corev1.RBDPersistentVolumeSource{SecretRef: far}}, []string{"//secrets/far/s"}},
		{corev1.PersistentVolumeSource{ScaleIO: &corev1.ScaleIOPersistentVolumeSource{SecretRef: near}}, []string{"//secrets/a/s"}},
		{corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{SecretRef: none}}, nil},
		{corev1.PersistentVolumeSource{Cinder: &corev1.CinderPersistentVolumeSource{SecretRef: far}}, []string{"//secrets/far/s"}},
		{corev1.PersistentVolumeSource{StorageOS: &corev1.StorageOSPersistentVolumeSource{SecretRef: &corev1.ObjectReference{Namespace: "far", Name: "s"}}}, []string{"//secrets/far/s"}},
		{corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{NodeStageSecretRef: far, NodeExpandSecretRef: far, ControllerExpandSecretRef: near}},
			[]string{"//secrets/far/s", "//secrets/far/s"}},
		{corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{}}, nil},
	} {
		pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: c.source, ClaimRef: &corev1.ObjectReference{Namespace: "a", Name: "c"}}}
		if got := volumeSecrets(pv); !slices.Equal(got, c.want) {
			t.Errorf("%d: %q, want %q", i, got, c.want)
		}
	}
}

// BenchmarkQuestion asks for a Secret among 10,000 pods on 200 nodes, by the node that may see it, and by one that may not.
func BenchmarkQuestion(b *testing.B) {
	bench := newBench(b)
	for i := range 10000 {
		bench.auth.graph.catchUpLocked()
		bench.auth.graph.graph.addHolder(keyOf("", "pods", "a", fmt.Sprint("p", i)), fmt.Sprint("n", i%200), []string{keyOf("", "secrets", "a", "shared")})
	}
	for _, name := range []string{"shared", "none"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				bench.may("n7", "", "secrets", "a", name)
			}
		})
	}
}

// TestNodesReachWhatIsTheirs: the name in a URL or in a field selector is the node's own.
func TestNodesReachWhatIsTheirs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		method, url string
		want        bool
	}{
		{"GET", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1", true},
		{"GET", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n2", false},
		{"PUT", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n2", false},
		{"POST", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", true},
		{"GET", "/apis/coordination.k8s.io/v1/namespaces/default/leases/n1", false},
		{"GET", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", false},
		{"GET", "/apis/storage.k8s.io/v1/csinodes/n1", true},
		{"GET", "/apis/storage.k8s.io/v1/csinodes/n2", false},
		{"GET", "/api/v1/nodes/n1", true},
		{"GET", "/api/v1/nodes/n2", false},
		{"GET", "/api/v1/nodes", false},
		{"GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1", true},
		{"GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1,status.phase%3DRunning", true},
		{"GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn2", false},
		{"GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn2,metadata.namespace%3Dn1", false},
		{"GET", "/api/v1/pods?fieldSelector=spec.nodeName!%3Dn1", false},
		{"GET", "/api/v1/pods", false},
		{"GET", "/api/v1/secrets", false},
	} {
		info := request.Parse(httptest.NewRequest(c.method, c.url, nil))
		q := &nodeRequest{Info: info, node: "n1"}
		decide := special[schema.GroupResource{Group: info.Group, Resource: info.Resource}]
		if allowed, reason := decide(q); allowed != c.want {
			t.Errorf("%s %s: %v %s", c.method, c.url, allowed, reason)
		}
	}
}
