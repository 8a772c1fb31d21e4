// Package allocator allocates the cluster IPs of --service-cluster-ip-range and the node ports of
// Services.
//
//	alloc := allocator.New(st, netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10::/108"))
//	given, err := alloc.Assign(svc, nil, false) // sets spec.ipFamilies, clusterIPs and nodePorts; 422 if a requested value is invalid or taken
//	err = given.Claim(ctx)                      // when the Service is valid; ErrAlreadyClaimed: another server was faster, start again
//	...                                         // write the Service
//	given.Done(ctx, err)                        // with the error of the write, if any
//	alloc.ReleaseUnused(ctx, key, before, after) // after an update or a deletion
//
// The allocator knows the allocated values from the stored Services and IPAddresses, and from the
// event log. A value that was assigned to a request is held until its Service appears in the log.
// To inform other servers, it is also claimed in the store before the Service is written:
//
//	log:    ... ADDED web 10.96.0.7 | DELETED db 10.96.0.9 | ...
//	taken:  10.96.0.7                                        held: 10.96.0.12 (a create in progress)
//	store:  IPAddress 10.96.0.7, IPAddress 10.96.0.12, and the bits of the node ports if several servers share them
//
// ServiceCIDRs determine the ranges of addresses (ranges.go). The flag and the Service determine
// the address families (validation.SetIPFamilies). If a Service has two families, it gets both
// addresses or none.
//
// The algorithms are the same as in Kubernetes (pkg/registry/core/service/ipallocator,
// portallocator, and the controllers that repair them), so that kube-apiserver can allocate from
// the same ranges. Packages defaults and strategy determine the needs of a Service. The claims are
// written directly to the store, without calling admission plug-ins or webhooks.
//
// Invariants: No address or port is allocated to two Services, also by different servers. If a
// write fails, its values are released. After a crash, differences between claims and Services are
// repaired within minutes.
package allocator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"apilet/internal/apierror"
	"apilet/internal/kinds/strategy"
	"apilet/internal/kinds/validation"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	serviceRange  = "//services/"
	firstNodePort = 30000
	nodePortCount = 2768
	nodePorts     = "30000-32767"
	// maxProbes is the maximum number of addresses to try in a range.
	maxProbes = 1 << 16
	// releaseTimeout limits the time for releasing claims. The repair releases the remaining ones.
	releaseTimeout            = 10 * time.Second
	errTaken       allocation = "provided %s is already allocated"
	errFull        allocation = "range is full"
	errForeign     allocation = "the provided network does not match the current range"
	errOutOfRange  allocation = "the provided IP (%s) is not in the valid range. The range of valid IPs is %s"
)

// MaxAttempts is the maximum number of attempts of a create after ErrAlreadyClaimed.
const MaxAttempts = 16

type allocation string

// An Allocator tracks the addresses and ports of the stored Services. It is safe for concurrent
// use.
type Allocator struct {
	st *store.Store
	// Ranges holds the values of --service-cluster-ip-range, at most one for each family. The first
	// family is the default of Services.
	Ranges  []netip.Prefix
	Shared  bool   // node ports are claimed in the store, because several servers share it
	Manager string // the manager of the fields of IPAddresses, may be empty
	// Report is called if claims cannot be released. It is also called with the result of each
	// repair. It may be nil.
	Report func(error)

	// leaks is the number of rounds for which a port has been claimed without a Service. Only the
	// repair uses it.
	leaks map[int32]int

	// portLock is held while the range of node ports is changed, to avoid conflicts within this
	// server.
	portLock sync.Mutex

	mu       sync.Mutex        // guards the fields below
	services *store.Follower   // for taken
	claims   *store.Follower   // for claimed
	cidrs    *store.Follower   // for ranges
	taken    map[string]string // maps addresses and ports to the key of their Service
	claimed  map[string]claim  // IPAddresses by address
	ranges   map[string]cidr   // ServiceCIDRs by name
	pending  map[string]bool   // assigned to requests in progress
}

// New returns an allocator for the given ranges, at most one for each family.
func New(st *store.Store, blocks ...netip.Prefix) *Allocator {
	return &Allocator{st: st, Ranges: blocks, services: st.Follow(serviceRange), claims: st.Follow(addressRange), cidrs: st.Follow(cidrRange),
		taken: map[string]string{}, claimed: map[string]claim{}, ranges: map[string]cidr{}, pending: map[string]bool{}, leaks: map[int32]int{}}
}

// Assign assigns the missing families, addresses and ports to a Service, and checks the requested
// ones. For objects of other types, it returns nil. before is nil for a create. On update, the
// existing address is used, and validation rejects a different one. As in kube-apiserver, a dry run
// may request a port outside the range or an address that is taken, and does not get a real
// address. The caller must call Claim before its write, and Done after it.
func (a *Allocator) Assign(obj, before scheme.Object, dryRun bool) (*Allocation, error) {
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return nil, nil
	}
	old, _ := before.(*corev1.Service)
	requested := svc.Spec.DeepCopy()
	if errs := validation.SetIPFamilies(svc, old, a.families()); len(errs) > 0 {
		return nil, apierror.Invalid(schema.GroupKind{Kind: "Service"}, svc.Name, errs)
	}
	g, err := a.pick(svc, old, dryRun)
	if err != nil {
		return nil, err
	}
	g.requested = requested
	return g, nil
}

// pick selects and holds the values for a Service.
func (a *Allocator) pick(svc, old *corev1.Service, dryRun bool) (*Allocation, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.catchUp(); err != nil {
		return nil, err
	}
	g := &Allocation{a: a, svc: svc, dryRun: dryRun, key: serviceRange + svc.Namespace + "/" + svc.Name}
	if a.Shared {
		var err error
		if g.sharedPorts, err = a.readPorts(); err != nil {
			return nil, err
		}
	}
	err := g.addresses(old)
	if err == nil && len(g.errs) == 0 {
		if err = g.nodePorts(old); err == nil {
			err = g.healthPort(old)
		}
	}
	if len(g.errs) > 0 {
		err = apierror.Invalid(schema.GroupKind{Kind: "Service"}, svc.Name, g.errs)
	}
	if err != nil {
		g.releaseLocked()
		return nil, err
	}
	return g, nil
}

// catchUp reads the Services, IPAddresses and ServiceCIDRs, and later their changes from the log.
func (a *Allocator) catchUp() error {
	ctx := context.Background()
	err := a.cidrs.CatchUp(ctx, func() { clear(a.ranges) }, func(ev *store.Event) { a.applyRange(ev.Key, ev.JSON, !ev.Deleted) })
	if err != nil {
		return err
	}
	err = a.claims.CatchUp(ctx, func() { clear(a.claimed) }, func(ev *store.Event) { a.applyClaim(ev.Key, ev.JSON, !ev.Deleted) })
	return cmp.Or(err, a.services.CatchUp(ctx, func() { clear(a.taken) }, func(ev *store.Event) {
		a.applyService(ev.Key, ev.Prev, false)
		a.applyService(ev.Key, ev.JSON, !ev.Deleted)
	}))
}

// applyClaim adds or removes an IPAddress.
func (a *Allocator) applyClaim(key string, json []byte, has bool) {
	_, address := scheme.NamespacedName(key)
	if has {
		a.claimed[address] = claimOf(json)
	} else {
		delete(a.claimed, address)
	}
}

// applyService marks the values of a stored Service as taken or free.
func (a *Allocator) applyService(key string, json []byte, has bool) {
	eachValue(json, func(text string) {
		switch {
		case has:
			a.taken[text] = key
		case a.taken[text] == key:
			delete(a.taken, text)
		}
	})
}

// eachValue calls mark for each address and port of a stored Service.
func eachValue(json []byte, mark func(text string)) {
	one := func(v gjson.Result) bool {
		if text := v.String(); text != "" && text != corev1.ClusterIPNone && text != "0" {
			mark(canonical(text))
		}
		return true
	}
	spec := gjson.GetBytes(json, "spec")
	one(spec.Get("clusterIP"))
	spec.Get("clusterIPs").ForEach(func(_, v gjson.Result) bool { return one(v) })
	one(spec.Get("healthCheckNodePort"))
	for _, port := range spec.Get("ports.#.nodePort").Array() {
		one(port)
	}
}

// canonical returns an address in the form of the names of IPAddresses. It returns a port
// unchanged.
func canonical(text string) string {
	if strings.Contains(text, ":") {
		if addr, err := netip.ParseAddr(text); err == nil {
			return addr.String()
		}
	}
	return text
}

// An Allocation holds the values assigned to a request. If the object needs no values, it is nil.
// The caller of its unexported methods must hold the allocator's lock.
type Allocation struct {
	a         *Allocator
	svc       *corev1.Service
	requested *corev1.ServiceSpec // the spec before Assign
	key       string
	values    []string // all assigned values, which are held in this server
	// adopted are the held addresses that an earlier incomplete create of the same Service has
	// claimed.
	adopted     []string
	claims      []string // values claimed for the request
	dryRun      bool
	sharedPorts ports   // ports claimed in the store, if servers share them
	ports       []int32 // list of free ports, nil before the first use
	errs        field.ErrorList
}

// reserve holds a value for the Service. If another Service has it, it returns false.
func (g *Allocation) reserve(text string) bool {
	if owner, taken := g.a.taken[text]; taken {
		return owner == g.key
	}
	return g.hold(text)
}

func (g *Allocation) hold(text string) bool {
	if g.a.pending[text] {
		return false
	}
	g.a.pending[text] = true
	g.values = append(g.values, text)
	return true
}

// reserveAddress is like take for an address, and also checks the claims.
func (g *Allocation) reserveAddress(text string) bool {
	c, claimed := g.a.claimed[text]
	if claimed && c.owner != g.key {
		return g.a.taken[text] == g.key
	}
	if claimed {
		g.adopted = append(g.adopted, text)
	}
	return g.reserve(text)
}

// reservePort is like take for a port, and also checks the claims.
func (g *Allocation) reservePort(port int32) bool {
	text := strconv.Itoa(int(port))
	if owner := g.a.taken[text]; owner == "" && g.sharedPorts.has(port) {
		return false
	}
	return g.reserve(text)
}

// addresses assigns an address of each family to a Service. If the Service already has one, only
// the second one may be assigned.
func (g *Allocation) addresses(old *corev1.Service) error {
	spec, from := &g.svc.Spec, 0
	switch {
	case spec.Type == corev1.ServiceTypeExternalName || spec.ClusterIP == corev1.ClusterIPNone:
		return nil
	case old != nil && old.Spec.Type != corev1.ServiceTypeExternalName:
		if from = 1; old.Spec.ClusterIP == corev1.ClusterIPNone || len(old.Spec.ClusterIPs) == 2 || len(spec.IPFamilies) < 2 {
			return nil
		}
	}
	spec.ClusterIPs = slices.Clone(spec.ClusterIPs)
	for len(spec.ClusterIPs) < len(spec.IPFamilies) {
		spec.ClusterIPs = append(spec.ClusterIPs, "")
	}
	// The Service is only changed after all addresses have been assigned, because errors contain
	// the requested addresses.
	var given []string
	for i, family := range spec.IPFamilies[from:] {
		ip, err := spec.ClusterIPs[from+i], error(nil)
		if ip == "" {
			ip, err = g.pickAddress(family)
		} else {
			g.requestAddress(family, ip)
		}
		if err != nil || len(g.errs) > 0 {
			return err
		}
		given = append(given, ip)
	}
	copy(spec.ClusterIPs[from:], given)
	spec.ClusterIP = spec.ClusterIPs[0]
	return nil
}

// requestAddress takes an address that the Service requests.
func (g *Allocation) requestAddress(family corev1.IPFamily, ip string) {
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return // validation reports a better error
	}
	blocks := g.a.blocks(family)
	in := slices.ContainsFunc(blocks, func(b block) bool { return b.has(addr) })
	switch {
	case !in && g.dryRun && len(blocks) > 0:
		g.addError(ip, fmt.Sprintf(string(errOutOfRange), addr, blocks[0].prefix))
	case !in:
		g.addError(ip, string(errForeign))
	case !g.dryRun && !g.reserveAddress(addr.String()):
		g.addError(ip, fmt.Sprintf(string(errTaken), "IP"))
	}
}

func (g *Allocation) addError(ip, why string) {
	at := field.NewPath("spec", "clusterIPs")
	g.errs = append(g.errs, field.Invalid(at, g.svc.Spec.ClusterIPs, "failed to allocate IP "+ip+": "+why))
}

// pickAddress selects a random free address. If possible, it does not use addresses in the band of
// a range, which is for requested addresses. A dry run gets the network address, which is never
// allocated.
func (g *Allocation) pickAddress(family corev1.IPFamily) (string, error) {
	for _, b := range g.a.blocks(family) {
		if g.dryRun {
			return b.prefix.Addr().String(), nil
		}
		ip := g.probe(b, b.band, b.size)
		if ip == "" {
			ip = g.probe(b, 0, b.band)
		}
		if ip != "" {
			return ip, nil
		}
	}
	return "", apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP for Service %q: %s", g.svc.Name, errFull))
}

// probe returns a free address in a part of a block. It starts at a random address. It returns ""
// if all are taken. The address of the Service "kubernetes" is skipped, because every cluster has
// that Service.
func (g *Allocation) probe(b block, from, to uint64) string {
	if from >= to {
		return ""
	}
	start, own := rand.Uint64N(to-from), g.a.Ranges[0].Masked().Addr().Next()
	for i := range min(to-from, maxProbes) {
		addr := b.at(from + (start+i)%(to-from))
		text := addr.String()
		if _, taken := g.a.taken[text]; addr != own && !taken && g.reserveAddress(text) {
			return text
		}
	}
	return ""
}

// nodePorts assigns or checks the node ports of a Service. Like kube-apiserver, it stops at the
// first error.
func (g *Allocation) nodePorts(old *corev1.Service) error {
	switch {
	case g.svc.Spec.Type != corev1.ServiceTypeNodePort && g.svc.Spec.Type != corev1.ServiceTypeLoadBalancer:
		return nil
	case old != nil:
		return g.changedNodePorts(old)
	}
	ports, given := g.svc.Spec.Ports, map[int32]int32{} // by port, because TCP and UDP of one port share a node port
	for i := range ports {
		p := &ports[i]
		if p.NodePort == 0 && !strategy.NeedsNodePort(g.svc) {
			continue
		}
		ok := true
		switch shared := given[p.Port]; {
		case shared == 0:
			if named := slices.IndexFunc(ports, func(q corev1.ServicePort) bool { return q.Port == p.Port && q.NodePort != 0 }); named < 0 {
				p.NodePort, ok = g.freePort()
			} else {
				p.NodePort = ports[named].NodePort
				ok = g.requestNodePort(i)
			}
			given[p.Port] = p.NodePort
		case p.NodePort == 0:
			p.NodePort = shared
		case p.NodePort != shared:
			ok = g.requestNodePort(i)
		}
		if !ok {
			return nil
		}
	}
	return nil
}

// changedNodePorts is like nodePorts for an update. Existing node ports are preserved.
func (g *Allocation) changedNodePorts(old *corev1.Service) error {
	type use struct {
		Protocol corev1.Protocol
		Port     int32
	}
	seen, own := map[use]bool{}, map[int32]bool{}
	for _, p := range old.Spec.Ports {
		own[p.NodePort] = true
	}
	for i := range g.svc.Spec.Ports {
		p, ok := &g.svc.Spec.Ports[i], true
		switch {
		case p.NodePort == 0 && !strategy.NeedsNodePort(g.svc):
			continue
		case p.NodePort == 0:
			p.NodePort, ok = g.freePort()
		case !own[p.NodePort]:
			ok = g.requestNodePort(i)
			own[p.NodePort] = true
		}
		if !ok {
			return nil
		}
		this := use{p.Protocol, p.NodePort}
		if seen[this] {
			return apierror.InternalWithoutReason(fmt.Sprintf("duplicate nodePort: %v", this))
		}
		seen[this] = true
	}
	return nil
}

// requestNodePort takes the node port that a port of the Service requests. It reports whether the
// port is available.
func (g *Allocation) requestNodePort(i int) bool {
	port := g.svc.Spec.Ports[i].NodePort
	refusal := g.requestPort(port)
	if refusal != "" {
		g.errs = append(g.errs, field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), port, refusal))
	}
	return refusal == ""
}

// healthPort assigns or checks the port for health checks of load balancers. Validation rejects a
// change of an existing one. If the requested port is not available, the error is a 500, as in
// kube-apiserver.
func (g *Allocation) healthPort(old *corev1.Service) error {
	port := &g.svc.Spec.HealthCheckNodePort
	switch {
	case len(g.errs) > 0 || !strategy.NeedsHealthPort(g.svc):
	case *port == 0:
		*port, _ = g.freePort()
	case old != nil && strategy.NeedsHealthPort(old):
	default:
		if refusal := g.requestPort(*port); refusal != "" {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate requested HealthCheck NodePort %d: %s", *port, refusal))
		}
	}
	return nil
}

// requestPort takes a port that the Service requests. It returns the reason if the port is not
// available, or "".
func (g *Allocation) requestPort(port int32) (refusal string) {
	if !inNodePorts(port) && !g.dryRun {
		return fmt.Sprintf("provided port is not in the valid range. The range of valid ports is %d-%d", firstNodePort, firstNodePort+nodePortCount-1)
	}
	if !g.reservePort(port) {
		return fmt.Sprintf(string(errTaken), "port")
	}
	return ""
}

func inNodePorts(port int32) bool { return port >= firstNodePort && port < firstNodePort+nodePortCount }

// freePort returns a free port. It returns false and adds an error if all are taken. The range is
// searched once for all ports of a Service.
func (g *Allocation) freePort() (port int32, ok bool) {
	if g.ports == nil {
		g.ports = g.freePorts()
	}
	for len(g.ports) > 0 {
		port, g.ports = g.ports[0], g.ports[1:]
		if g.reservePort(port) { // the Service may have requested it
			return port, true
		}
	}
	g.errs = append(g.errs, field.InternalError(field.NewPath("spec", "ports"), errors.New("failed to allocate a nodePort: "+string(errFull))))
	return 0, false
}

func (g *Allocation) freePorts() []int32 {
	free, start := make([]int32, 0, nodePortCount), rand.Int32N(nodePortCount)
	for i := range int32(nodePortCount) {
		port := firstNodePort + (start+i)%nodePortCount
		if text := strconv.Itoa(int(port)); g.a.taken[text] == "" && !g.a.pending[text] && !g.sharedPorts.has(port) {
			free = append(free, port)
		}
	}
	return free
}

// Claim writes claims for the addresses and then for the ports. It does nothing for a dry run.
func (g *Allocation) Claim(ctx context.Context) error {
	if g == nil || g.dryRun {
		return nil
	}
	var wanted []int32
	for _, text := range g.values {
		port, err := strconv.Atoi(text)
		if err == nil && inNodePorts(int32(port)) {
			wanted = append(wanted, int32(port))
		}
		if err == nil || slices.Contains(g.adopted, text) {
			continue
		}
		if err := g.a.claimAddress(ctx, text, g.key); err != nil {
			return err
		}
		g.claims = append(g.claims, text)
	}
	if err := g.a.claimPorts(ctx, wanted); err != nil {
		return err
	}
	for _, port := range wanted {
		g.claims = append(g.claims, strconv.Itoa(int(port)))
	}
	return nil
}

// Done must be called when the log has the Service or when its write has failed. It ends the hold.
// It releases the claims if the write has certainly failed. After ErrAlreadyClaimed it restores the
// Service to its state before Assign.
func (g *Allocation) Done(ctx context.Context, err error) {
	if g == nil {
		return
	}
	g.a.mu.Lock()
	g.releaseLocked()
	g.a.mu.Unlock()
	if err != nil && !inDoubt(err) {
		g.a.releaseClaims(ctx, g.key, g.claims)
	}
	if errors.Is(err, ErrAlreadyClaimed) {
		g.requested.DeepCopyInto(&g.svc.Spec)
	}
}

func (g *Allocation) releaseLocked() {
	for _, text := range g.values {
		delete(g.a.pending, text)
	}
}
