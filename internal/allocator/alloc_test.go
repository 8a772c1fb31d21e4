package allocator

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/kinds/defaults"
	"apilet/internal/kinds/strategy"
	"apilet/internal/scheme"
	"apilet/internal/store"
	"apilet/internal/store/storetest"
)

var serviceType = scheme.GroupVersion("", "v1", scheme.Row[corev1.Service](scheme.Namespaced, "services", ""))[0]

// A server is an allocator on a store that others use, too.
type server struct {
	*Allocator
	t  testing.TB
	st *store.Store
}

func openStore(t testing.TB) *store.Store {
	t.Helper()
	st, err := store.Open(filepath.Join(t.TempDir(), "data.db"), store.Options{Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

func newServer(t testing.TB, st *store.Store, shared bool) *server {
	t.Helper()
	a := New(st, netip.MustParsePrefix("10.96.0.0/24"))
	a.Shared, a.Manager = shared, "apilet"
	a.Report = func(err error) { t.Error(err) }
	return &server{a, t, st}
}

func service(name string, kind corev1.ServiceType, ports int) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.ServiceSpec{Type: kind}}
	for i := range ports {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(i + 1)})
	}
	defaults.Set(svc)
	strategy.PrepareForCreate(context.Background(), svc)
	return svc
}

// create is the write of a Service as the registry does it; fail keeps it from happening.
func (s *server) create(svc *corev1.Service, fail error) error {
	for {
		given, err := s.Assign(svc, nil, false)
		if err != nil {
			return err
		}
		if err = given.Claim(context.Background()); err == nil {
			err = fail
		}
		if err == nil {
			err = s.write(svc, store.OpCreate, 0)
		}
		given.Done(context.Background(), err)
		if !errors.Is(err, ErrAlreadyClaimed) {
			return err
		}
	}
}

func (s *server) write(svc *corev1.Service, op store.ChangeOp, expect int64) error {
	doc, revAt, err := serviceType.EncodeStored(svc)
	if err != nil {
		return err
	}
	_, err = s.st.Commit(context.Background(), store.Change{Op: op, Key: serviceType.Key(svc.Namespace, svc.Name), Expect: expect, JSON: doc, RevAt: revAt})
	return err
}

func (s *server) delete(name string) {
	s.t.Helper()
	rec, err := s.st.Get(serviceType.Key("ns", name))
	if err != nil {
		s.t.Fatal(err)
	}
	doc, revAt := scheme.WithoutRevision(rec.JSON)
	if _, err := s.st.Commit(context.Background(), store.Change{Op: store.OpDelete, Key: rec.Key, Expect: rec.Rev, JSON: doc, RevAt: revAt}); err != nil {
		s.t.Fatal(err)
	}
	s.ReleaseUnused(context.Background(), rec.Key, rec.JSON, nil)
}

// claims are the owners of the IPAddresses, by address.
func (s *server) addresses() map[string]string {
	s.t.Helper()
	found := map[string]string{}
	c := &store.Chunk{}
	if err := s.st.Chunk(store.Span{Prefix: addressRange}, c); err != nil || c.Next != "" {
		s.t.Fatal(err)
	}
	for _, rec := range c.Records {
		_, name := scheme.NamespacedName(rec.Key)
		found[strings.Clone(name)] = claimOf(rec.JSON).owner
	}
	return found
}

func (s *server) bits() string {
	s.t.Helper()
	p, err := s.readPorts()
	if err != nil {
		s.t.Fatal(err)
	}
	return p.bits.Text(2)
}

// address is an IPAddress that somebody else has made.
func (s *server) address(name, parent string, made time.Time, labels map[string]string) {
	s.t.Helper()
	obj := &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(made), Labels: labels}}
	obj.Spec.ParentRef = &networkingv1.ParentReference{Resource: "services", Namespace: "ns", Name: parent}
	doc, revAt, err := addressType.EncodeStored(obj)
	if err == nil {
		_, err = s.st.Commit(context.Background(), store.Change{Op: store.OpCreate, Key: addressType.Key("", name), JSON: doc, RevAt: revAt})
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// TestClaimsAreKubeAPIServers: an IPAddress and the range as kube-apiserver 1.36 wrote them for a Service of two node ports.
func TestClaimsAreKubeAPIServers(t *testing.T) {
	t.Parallel()
	s := newServer(t, openStore(t), true)
	svc := service("web", corev1.ServiceTypeNodePort, 2)
	svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "10.96.0.61", []string{"10.96.0.61"}
	svc.Spec.Ports[0].NodePort, svc.Spec.Ports[1].NodePort = 30000, 30009
	if err := s.create(svc, nil); err != nil {
		t.Fatal(err)
	}
	rec, err := s.st.Get(addressRange + "/10.96.0.61")
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(rec.JSON, &doc); err != nil {
		t.Fatal(err)
	}
	meta := doc["metadata"].(map[string]any)
	for _, name := range []string{"uid", "resourceVersion", "creationTimestamp"} {
		if meta[name] == nil || meta[name] == "" {
			t.Errorf("no %s in %s", name, rec.JSON)
		}
		delete(meta, name)
	}
	delete(meta["managedFields"].([]any)[0].(map[string]any), "time")
	got, _ := json.Marshal(doc)
	want := `{"metadata":{"labels":{"ipaddress.kubernetes.io/ip-family":"IPv4","ipaddress.kubernetes.io/managed-by":"ipallocator.k8s.io"},` +
		`"managedFields":[{"apiVersion":"networking.k8s.io/v1","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:labels":{".":{},` +
		`"f:ipaddress.kubernetes.io/ip-family":{},"f:ipaddress.kubernetes.io/managed-by":{}}},"f:spec":{"f:parentRef":{".":{},"f:name":{},"f:namespace":{},` +
		`"f:resource":{}}}},"manager":"apilet","operation":"Update"}],"name":"10.96.0.61"},"spec":{"parentRef":{"name":"web","namespace":"ns","resource":"services"}}}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	rec, err = s.st.Get(portRange)
	if want := fmt.Sprintf(`{"metadata":{"resourceVersion":"%d"},"range":"30000-32767","data":"AgE="}`, rec.Rev); err != nil || string(rec.JSON) != want {
		t.Errorf("%v: %s, want %s", err, rec.JSON, want)
	}
}

// TestClaimsComeAndGo: with the Service, before it and after it.
func TestClaimsComeAndGo(t *testing.T) {
	t.Parallel()
	s := newServer(t, openStore(t), true)
	if err := s.create(service("failed", corev1.ServiceTypeNodePort, 1), store.ErrExists); !errors.Is(err, store.ErrExists) || len(s.addresses()) != 0 || s.bits() != "0" {
		t.Errorf("%v: a create that failed has left %v and %s", err, s.addresses(), s.bits())
	}
	if err := s.create(service("lost", corev1.ServiceTypeNodePort, 1), context.DeadlineExceeded); err == nil || len(s.addresses()) != 1 || s.bits() == "0" {
		t.Errorf("%v: a create of which nothing was heard has %v and %s", err, s.addresses(), s.bits())
	}
	web := service("web", corev1.ServiceTypeNodePort, 1)
	if err := s.create(web, nil); err != nil || s.addresses()[web.Spec.ClusterIP] != "//services/ns/web" {
		t.Fatalf("%v: %v has no claim to %s", err, s.addresses(), web.Spec.ClusterIP)
	}
	other := service("other", corev1.ServiceTypeNodePort, 1)
	other.Spec.ClusterIPs, other.Spec.Ports[0].NodePort = web.Spec.ClusterIPs, web.Spec.Ports[0].NodePort
	if other.Spec.ClusterIP = web.Spec.ClusterIP; !refused(s.create(other, nil), "provided IP is already allocated") {
		t.Error("two have an address")
	}
	ported := service("ported", corev1.ServiceTypeNodePort, 1)
	if ported.Spec.Ports[0].NodePort = web.Spec.Ports[0].NodePort; !refused(s.create(ported, nil), "provided port is already allocated") {
		t.Error("two have a port")
	}
	rec, _ := s.st.Get("//services/ns/web")
	external := service("web", corev1.ServiceTypeExternalName, 0)
	if err := s.write(external, store.OpUpdate, rec.Rev); err != nil {
		t.Fatal(err)
	}
	after, _ := s.st.Get("//services/ns/web")
	s.ReleaseUnused(context.Background(), rec.Key, rec.JSON, after.JSON)
	if _, has := s.addresses()[web.Spec.ClusterIP]; has {
		t.Error("a Service without an address has a claim to one")
	}
	if err := s.create(other, nil); err != nil {
		t.Errorf("what was given back is not free: %v", err)
	}
	s.delete("other")
	if _, has := s.addresses()[web.Spec.ClusterIP]; has || strings.Count(s.bits(), "1") != 1 {
		t.Errorf("a deleted Service has left %v, %s", s.addresses(), s.bits())
	}
	dry := service("dry", corev1.ServiceTypeNodePort, 1)
	before := s.st.Revision()
	given, err := s.Assign(dry, nil, true)
	if err = errors.Join(err, given.Claim(context.Background())); err != nil || dry.Spec.ClusterIP == "" || s.st.Revision() != before {
		t.Errorf("a dry run has written: %v", err)
	}
	given.Done(context.Background(), nil)
}

func refused(err error, why string) bool {
	return apierrors.IsInvalid(err) && strings.Contains(err.Error(), why)
}

// TestServersGiveNothingTwice: eight servers that share a store, until nothing is left.
func TestServersGiveNothingTwice(t *testing.T) {
	t.Parallel()
	st := openStore(t)
	var mu sync.Mutex // guards the maps
	addresses, ports := map[string]string{}, map[int32]string{}
	var running sync.WaitGroup
	for i := range 8 {
		s := newServer(t, st, true)
		for j := range 4 {
			running.Go(func() {
				for k := range 5 {
					svc := service(fmt.Sprintf("s-%d-%d-%d", i, j, k), corev1.ServiceTypeNodePort, 2)
					if err := s.create(svc, nil); err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if other := addresses[svc.Spec.ClusterIP]; other != "" {
						t.Errorf("%s and %s have %s", other, svc.Name, svc.Spec.ClusterIP)
					}
					addresses[svc.Spec.ClusterIP] = svc.Name
					for _, p := range svc.Spec.Ports {
						if other := ports[p.NodePort]; other != "" {
							t.Errorf("%s and %s have %d", other, svc.Name, p.NodePort)
						}
						ports[p.NodePort] = svc.Name
					}
					mu.Unlock()
				}
			})
		}
	}
	running.Wait()
	s := newServer(t, st, true)
	if got := strings.Count(s.bits(), "1"); len(addresses) != 160 || len(s.addresses()) != 160 || got != 320 {
		t.Errorf("%d addresses given, %d claimed, %d ports claimed", len(addresses), len(s.addresses()), got)
	}
	for i := range 254 - 161 { // 10.96.0.1 is kept, as are the first and the last
		if err := s.create(service(fmt.Sprint("more-", i), corev1.ServiceTypeClusterIP, 0), nil); err != nil {
			t.Fatal(i, err)
		}
	}
	if err := s.create(service("none", corev1.ServiceTypeClusterIP, 0), nil); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "range is full") {
		t.Error(err)
	}
}

// TestUnfinishedCreateGoesOn: a claim that a create left is taken up by the next one of the same name, and by no other.
func TestUnfinishedCreateGoesOn(t *testing.T) {
	t.Parallel()
	st := openStore(t)
	crashed := newServer(t, st, false)
	web := service("web", corev1.ServiceTypeClusterIP, 0)
	if given, err := crashed.Assign(web, nil, false); err != nil || given.Claim(context.Background()) != nil {
		t.Fatal(err)
	}
	s := newServer(t, st, false)
	other := service("other", corev1.ServiceTypeClusterIP, 0)
	other.Spec.ClusterIP, other.Spec.ClusterIPs = web.Spec.ClusterIP, web.Spec.ClusterIPs
	if err := s.create(other, nil); !apierrors.IsInvalid(err) {
		t.Errorf("another Service has taken %s: %v", web.Spec.ClusterIP, err)
	}
	again := service("web", corev1.ServiceTypeClusterIP, 0)
	again.Spec.ClusterIP, again.Spec.ClusterIPs = web.Spec.ClusterIP, web.Spec.ClusterIPs
	if err := s.create(again, nil); err != nil || s.addresses()[web.Spec.ClusterIP] != "//services/ns/web" {
		t.Errorf("%v: %v", err, s.addresses())
	}
}

// TestRepair: Services without a claim get it, and claims without a Service go when they have had their time.
func TestRepair(t *testing.T) {
	t.Parallel()
	s := newServer(t, openStore(t), true)
	made := map[string]string{networkingv1.LabelManagedBy: allocatedBy}
	old, young := time.Now().Add(-2*orphanGrace), time.Now()
	s.address("10.96.0.10", "gone", old, made)
	s.address("10.96.0.11", "coming", young, made)
	s.address("10.96.0.12", "somebody-elses", old, nil)
	s.address("10.96.0.13", "wrong", young, made)
	for _, svc := range []*corev1.Service{service("bare", corev1.ServiceTypeNodePort, 1), service("right", corev1.ServiceTypeClusterIP, 0)} {
		svc.Spec.ClusterIP = map[string]string{"bare": "10.96.0.20", "right": "10.96.0.13"}[svc.Name]
		svc.Spec.ClusterIPs = []string{svc.Spec.ClusterIP}
		for i := range svc.Spec.Ports {
			svc.Spec.Ports[i].NodePort = 30002
		}
		if err := s.write(svc, store.OpCreate, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.claimPorts(context.Background(), []int32{30000}); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprint(map[string]string{"10.96.0.11": "//services/ns/coming", "10.96.0.12": "//services/ns/somebody-elses",
		"10.96.0.13": "//services/ns/right", "10.96.0.20": "//services/ns/bare"})
	for round := range leakRounds - 1 {
		if err := s.repair(context.Background()); err != nil || fmt.Sprint(s.addresses()) != want || s.bits() != "101" {
			t.Fatalf("round %d, %v: %v, ports %s\nwant %s", round, err, s.addresses(), s.bits(), want)
		}
	}
	if err := s.repair(context.Background()); err != nil || s.bits() != "100" {
		t.Errorf("%v: the port of nobody has been kept: %s", err, s.bits())
	}
	before := s.st.Revision()
	if err := s.repair(context.Background()); err != nil || s.st.Revision() != before {
		t.Errorf("%v: a repair with nothing to do has written", err)
	}
}

// TestAloneNeedsNoRange: a server that shares its store with nobody claims no ports, and asks no range.
func TestAloneNeedsNoRange(t *testing.T) {
	t.Parallel()
	s := newServer(t, openStore(t), false)
	svc := service("web", corev1.ServiceTypeNodePort, 1)
	if err := s.create(svc, nil); err != nil || svc.Spec.Ports[0].NodePort == 0 {
		t.Fatal(err)
	}
	if err := s.repair(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.st.Get(portRange); !errors.Is(err, store.ErrNotFound) {
		t.Error("it has written the range:", err)
	}
	if p := (ports{bits: big.NewInt(1)}); p.has(29999) || p.has(0) || !p.has(30000) {
		t.Error("ports out of the range")
	}
}

// Of a claim that is damaged nobody knows whose it is. A Service that asks for the address gets it, since no other Service has it.
func TestADamagedClaimIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data.db")
	st, err := store.Open(path, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := newServer(t, st, false).claimAddress(context.Background(), "10.96.0.7", serviceRange+"ns/web"); err != nil {
		t.Fatal(err)
	}
	rec, err := st.Get(addressType.Key("", "10.96.0.7"))
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	damageRecord(t, path, rec.Rev)
	if st, err = store.Open(path, store.Options{}); err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	s := newServer(t, st, false)
	svc := service("web", corev1.ServiceTypeClusterIP, 1)
	svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "10.96.0.7", []string{"10.96.0.7"}
	given, err := s.Assign(svc, nil, false)
	if err == nil {
		err = given.Claim(context.Background())
	}
	if err != nil {
		t.Fatal(err)
	}
	given.Done(context.Background(), s.write(svc, store.OpCreate, 0))
	if rec, err = st.Get(addressType.Key("", "10.96.0.7")); err != nil || claimOf(rec.JSON).owner != serviceRange+"ns/web" {
		t.Errorf("the claim is %s, %v", rec.JSON, err)
	}
}

// damageRecord flips a bit of a record in a closed file.
func damageRecord(t *testing.T, path string, rev int64) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Update(func(tx *bbolt.Tx) error {
		b, key := tx.Bucket([]byte("rev")), binary.BigEndian.AppendUint64(nil, uint64(rev))
		value := bytes.Clone(b.Get(key))
		value[len(value)/2] ^= 4
		return b.Put(key, value)
	}); err != nil {
		t.Fatal(err)
	}
}

// TestAllocatorOutlivesCompaction: what was freed while the log was compacted is free, and what was taken is taken.
func TestAllocatorOutlivesCompaction(t *testing.T) {
	t.Parallel()
	st := openStore(t)
	here, other := newServer(t, st, false), newServer(t, st, false)
	fixed := func(name, address string) *corev1.Service {
		svc := service(name, corev1.ServiceTypeClusterIP, 1)
		svc.Spec.ClusterIP, svc.Spec.ClusterIPs = address, []string{address}
		return svc
	}
	if err := here.create(fixed("old", "10.96.0.77"), nil); err != nil {
		t.Fatal(err)
	}
	other.delete("old")
	if err := other.create(fixed("new", "10.96.0.78"), nil); err != nil {
		t.Fatal(err)
	}
	storetest.Forget(t, st)
	if err := here.create(fixed("next", "10.96.0.78"), nil); !apierrors.IsInvalid(err) {
		t.Errorf("an address is given twice: %v", err)
	}
	if err := here.create(fixed("next", "10.96.0.77"), nil); err != nil {
		t.Errorf("an address is not free: %v", err)
	}
}

// Node ports are given as kube-apiserver gives them: by port for a new Service, and with the first error only.
func TestNodePortsOfPorts(t *testing.T) {
	tcp, udp := corev1.ProtocolTCP, corev1.ProtocolUDP
	port := func(protocol corev1.Protocol, number, node int32) corev1.ServicePort {
		return corev1.ServicePort{Name: fmt.Sprint(protocol, number), Protocol: protocol, Port: number, NodePort: node}
	}
	const taken, outside, twice = "provided port is already allocated", "provided port is not in the valid range", "duplicate nodePort: {TCP 30001}"
	for _, c := range []struct {
		name  string
		kind  corev1.ServiceType
		old   []corev1.ServicePort // nil: a create
		ports []corev1.ServicePort
		want  string
	}{
		{"not looked at", corev1.ServiceTypeClusterIP, nil, []corev1.ServicePort{port(tcp, 80, -1)}, ""},
		{"shared", corev1.ServiceTypeNodePort, nil, []corev1.ServicePort{port(tcp, 53, 0), port(udp, 53, 30001)}, ""},
		{"of another port", corev1.ServiceTypeNodePort, nil, []corev1.ServicePort{port(tcp, 53, 30001), port(udp, 54, 30001)}, taken},
		{"one error", corev1.ServiceTypeNodePort, nil, []corev1.ServicePort{port(tcp, 1, 5), port(tcp, 2, 6)}, outside},
		{"kept", corev1.ServiceTypeNodePort, []corev1.ServicePort{port(tcp, 1, 30001)}, []corev1.ServicePort{port(tcp, 1, 30001), port(udp, 1, 30001)}, ""},
		{"twice", corev1.ServiceTypeNodePort, []corev1.ServicePort{port(tcp, 1, 30001)}, []corev1.ServicePort{port(tcp, 1, 30001), port(tcp, 2, 30001)}, twice},
	} {
		s := newServer(t, openStore(t), false)
		svc := service("x", c.kind, 0)
		svc.Spec.Ports = c.ports
		var old scheme.Object
		if c.old != nil {
			before := svc.DeepCopy()
			before.Spec.ClusterIPs, before.Spec.Ports = []string{"10.96.0.9"}, c.old
			before.Spec.ClusterIP = "10.96.0.9"
			svc.Spec.ClusterIP, svc.Spec.ClusterIPs, old = "10.96.0.9", []string{"10.96.0.9"}, before
		}
		given, err := s.Assign(svc, old, false)
		given.Done(t.Context(), nil)
		if c.want == "" && err != nil || c.want != "" && (err == nil || strings.Count(err.Error(), c.want) != 1) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
		if ports := svc.Spec.Ports; c.name == "shared" && (ports[0].NodePort != 30001 || ports[1].NodePort != 30001) {
			t.Errorf("%s: got %v", c.name, ports)
		}
	}
}
