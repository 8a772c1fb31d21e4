package allocator

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/kinds/strategy"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

func TestBlocksAreNumbered(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"10.96.0.0/24": "254 16 10.96.0.1 10.96.0.254", "10.96.0.0/16": "65534 256 10.96.0.1 10.96.255.254", "10.96.0.8/29": "6 0 10.96.0.9 10.96.0.14",
		"10.0.0.0/8": "16777214 256 10.0.0.1 10.255.255.254", "fd00::/120": "255 16 fd00::1 fd00::ff", "fd00::/108": "1048575 256 fd00::1 fd00::f:ffff",
		"fd00::/64": "18446744073709551615 256 fd00::1 fd00::ffff:ffff:ffff:ffff", "fd00::7/128": "0 0", "10.0.0.0/32": "0 0", "10.0.0.0/31": "0 0", "fd00::/127": "1 0 fd00::1 fd00::1",
	} {
		b := blockOf(netip.MustParsePrefix(text))
		got := fmt.Sprint(b.size, b.band)
		if b.size > 0 {
			first, last := b.at(0), b.at(b.size-1)
			got += fmt.Sprint(" ", first, " ", last)
			if !b.has(first) || !b.has(last) || b.has(b.prefix.Addr()) || b.has(last.Next()) {
				t.Errorf("%s: which addresses are in it?", text)
			}
		}
		if got = strings.ReplaceAll(got, "  ", " "); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

// dual is a Service that wants an address of each family, and may name them.
func dual(name string, ips ...string) *corev1.Service {
	svc := service(name, corev1.ServiceTypeClusterIP, 1)
	svc.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
	if len(ips) > 0 {
		svc.Spec.ClusterIP, svc.Spec.ClusterIPs = ips[0], ips
	}
	return svc
}

func newDualServer(t testing.TB, st *store.Store, four, six string) *server {
	s := newServer(t, st, false)
	s.Ranges = []netip.Prefix{netip.MustParsePrefix(four), netip.MustParsePrefix(six)}
	return s
}

// TestBothAddressesOrNone: what is refused for its second address, or lost to another server, has claimed no first one.
func TestBothAddressesOrNone(t *testing.T) {
	t.Parallel()
	st := openStore(t)
	s := newDualServer(t, st, "10.96.0.0/24", "fd00:10::/120")
	if err := s.create(dual("web", "10.96.0.7", "fd00:10:0::7"), nil); err != nil || len(s.addresses()) != 2 || s.addresses()["fd00:10::7"] != "//services/ns/web" {
		t.Fatalf("%v: %v", err, s.addresses())
	}
	if err := s.create(dual("other", "10.96.0.8", "fd00:10::7"), nil); !refused(err, "failed to allocate IP fd00:10::7: provided IP is already allocated") {
		t.Error(err)
	}
	late := dual("late", "10.96.0.8", "fd00:10::9")
	given, err := s.Assign(late, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	s.address("fd00:10::9", "faster", time.Now(), nil)
	err = given.Claim(context.Background())
	if given.Done(context.Background(), err); err != ErrAlreadyClaimed || len(s.addresses()) != 3 {
		t.Errorf("%v: %v", err, s.addresses())
	}
	if err := s.create(dual("next", "10.96.0.8"), nil); err != nil || len(s.addresses()) != 5 {
		t.Errorf("%v: 10.96.0.8 is not free: %v", err, s.addresses())
	}
	s.delete("web")
	if left := s.addresses(); len(left) != 3 || left["fd00:10::7"] != "" || left["10.96.0.7"] != "" {
		t.Errorf("a Service that was deleted has left %v", left)
	}
}

// TestSecondAddressComesLater: an update gets what the Service lacks, and keeps what it has.
func TestSecondAddressComesLater(t *testing.T) {
	t.Parallel()
	s := newDualServer(t, openStore(t), "10.96.0.0/24", "fd00:10::/120")
	web := service("web", corev1.ServiceTypeClusterIP, 1)
	if err := s.create(web, nil); err != nil || len(web.Spec.ClusterIPs) != 1 {
		t.Fatal(err, web.Spec.ClusterIPs)
	}
	now := web.DeepCopy()
	now.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack)
	strategy.PrepareForUpdate(context.Background(), "", now, web)
	given, err := s.Assign(now, web, false)
	if err != nil || given.Claim(context.Background()) != nil || len(now.Spec.ClusterIPs) != 2 || now.Spec.ClusterIPs[0] != web.Spec.ClusterIP || len(web.Spec.ClusterIPs) != 1 {
		t.Fatal(err, now.Spec, web.Spec.ClusterIPs)
	}
	if len(s.addresses()) != 2 {
		t.Error(s.addresses())
	}
	given.Done(context.Background(), context.Canceled) // nobody knows whether it was written
	given.Done(context.Background(), store.ErrConflict)
	if len(s.addresses()) != 1 {
		t.Errorf("an update that failed has %v", s.addresses())
	}
}

// serviceCIDR stores one, or changes it.
func (s *server) serviceCIDR(name string, change func(*networkingv1.ServiceCIDR), cidrs ...string) {
	s.t.Helper()
	kind := scheme.GroupVersion(networkingv1.GroupName, "v1", scheme.Row[networkingv1.ServiceCIDR](0, "servicecidrs", "status"))[0]
	obj := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
	if change != nil {
		change(obj)
	}
	doc, revAt, err := kind.EncodeStored(obj)
	c := store.Change{Op: store.OpCreate, Key: kind.Key("", name), JSON: doc, RevAt: revAt}
	if rec, found := s.st.Get(c.Key); found == nil {
		c.Op, c.Expect = store.OpUpdate, rec.Rev
	}
	if err == nil {
		_, err = s.st.Commit(context.Background(), c)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// TestRangesOfAnAdministrator: a full range is no end when there is another one, which gives while it is ready.
func TestRangesOfAnAdministrator(t *testing.T) {
	t.Parallel()
	s := newDualServer(t, openStore(t), "10.96.0.0/29", "fd00:10::/125")
	s.serviceCIDR("kubernetes", nil, "10.96.0.0/29", "fd00:10::/125")
	full := func(name string) {
		t.Helper()
		if err := s.create(dual(name), nil); !apierrors.IsInternalError(err) || !strings.HasSuffix(err.Error(), fmt.Sprintf("failed to allocate a serviceIP for Service %q: range is full", name)) {
			t.Error(err)
		}
	}
	for i := range 5 { // .1 is kept, .7 the broadcast address
		if err := s.create(dual(fmt.Sprint("s-", i)), nil); err != nil {
			t.Fatal(i, err)
		}
	}
	full("full")
	if len(s.addresses()) != 10 {
		t.Errorf("of a Service that got one address of two there are claims: %v", s.addresses())
	}
	s.serviceCIDR("more", nil, "fd00:20::/112", "10.97.0.0/24")
	web := dual("web")
	if err := s.create(web, nil); err != nil || !strings.HasPrefix(web.Spec.ClusterIP, "10.97.0.") {
		t.Fatal(err, web.Spec.ClusterIPs)
	}
	if err := s.create(dual("named", "10.97.0.255", "fd00:20::ffff"), nil); !refused(err, "10.97.0.255: the provided network does not match the current range") {
		t.Error(err)
	}
	for name, change := range map[string]func(*networkingv1.ServiceCIDR){
		"ending": func(c *networkingv1.ServiceCIDR) { c.DeletionTimestamp = &metav1.Time{Time: time.Now()} },
		"not-ready": func(c *networkingv1.ServiceCIDR) {
			c.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse}}
		},
	} {
		s.serviceCIDR("more", change, "fd00:20::/112", "10.97.0.0/24")
		full(name)
	}
	s.serviceCIDR("more", nil, "fd00:20::/112", "10.97.0.0/24")
	if err := s.create(dual("again", "10.97.0.9"), nil); err != nil {
		t.Error(err)
	}
}

// TestDryRunsGetNothing: as of kube-apiserver, they see the range's own address, and may name one that is taken.
func TestDryRunsGetNothing(t *testing.T) {
	t.Parallel()
	s := newDualServer(t, openStore(t), "10.96.0.0/24", "fd00:10::/120")
	if err := s.create(dual("web", "10.96.0.7", "fd00:10::7"), nil); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ svc, want string }{{"", "[10.96.0.0 fd00:10::]"}, {"10.96.0.7", "[10.96.0.7 fd00:10::]"}, {"10.97.0.7", "not in the valid range. The range of valid IPs is 10.96.0.0/24"}} {
		svc := dual("dry")
		if c.svc != "" {
			svc = dual("dry", c.svc)
		}
		given, err := s.Assign(svc, nil, true)
		if given.Done(context.Background(), nil); !strings.Contains(fmt.Sprint(svc.Spec.ClusterIPs, err), c.want) || len(s.pending) > 0 {
			t.Errorf("%q: %v, %v", c.svc, svc.Spec.ClusterIPs, err)
		}
	}
}

// TestRepairOfBothFamilies: an address of IPv6, however it is written, is claimed again when its claim is lost; that of a Service that is gone goes.
func TestRepairOfBothFamilies(t *testing.T) {
	t.Parallel()
	s := newDualServer(t, openStore(t), "10.96.0.0/24", "fd00:10::/120")
	if err := s.create(dual("web", "10.96.0.7", "fd00:10:0:0::7"), nil); err != nil {
		t.Fatal(err)
	}
	if err := s.freeAddress(context.Background(), "fd00:10::7", "//services/ns/web"); err != nil || len(s.addresses()) != 1 {
		t.Fatal(err, s.addresses())
	}
	s.address("fd00:10::8", "gone", time.Now().Add(-2*orphanGrace), map[string]string{networkingv1.LabelManagedBy: allocatedBy})
	if err := s.repair(context.Background()); err != nil || len(s.addresses()) != 2 || s.addresses()["fd00:10::7"] != "//services/ns/web" {
		t.Error(err, s.addresses())
	}
	if rec, err := s.st.Get(addressType.Key("", "fd00:10::7")); err != nil || !strings.Contains(string(rec.JSON), `"ipaddress.kubernetes.io/ip-family":"IPv6"`) {
		t.Errorf("%v: %s", err, rec.JSON)
	}
}
