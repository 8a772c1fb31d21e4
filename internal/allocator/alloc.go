// Package allocator hands out what Services share: cluster IPs of --service-cluster-ip-range, and node ports.
//
//	alloc := allocator.New(st, netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10::/108"))
//	given, err := alloc.Assign(svc, nil, false) // fills spec.ipFamilies, clusterIPs and nodePorts in; 422 for what does not fit, or is taken
//	err = given.Claim(ctx)                      // once nothing else is against the Service; ErrLost: another server was faster, begin again
//	...                                         // the Service's own write
//	given.Done(ctx, err)                        // well or not
//	alloc.Freed(ctx, key, before, after)        // after a write that did without some of it, or a deletion
//
// What is taken is known from the stored Services and IPAddresses, and the event log says what has changed since. What a request was given is held
// until its Service shows up in the log; so that other servers know of it, too, it is claimed in the store before the Service is written:
//
//	log:    ... ADDED web 10.96.0.7 | DELETED db 10.96.0.9 | ...
//	taken:  10.96.0.7                                        held: 10.96.0.12 (a create that is on its way)
//	store:  IPAddress 10.96.0.7, IPAddress 10.96.0.12, and the bits of the node ports where servers share them
//
// Out of which ranges addresses come, ServiceCIDRs say (ranges.go); of which families, the flag and the Service (validation.FitFamilies). A Service
// of two families has both addresses or none.
//
// It does as Kubernetes does (pkg/registry/core/service/ipallocator, portallocator, and the controllers that repair them), so that kube-apiserver
// may give out of the same ranges; errors are worded as there. Which Service needs what is known to packages defaults and strategy. The claims
// are the server's own writes: no plug-in or webhook is asked.
//
// Invariants: no address or port is given to two Services, whichever server gives it; a write that fails keeps none; what is claimed for no
// Service, after a crash, is free again within minutes, and a Service without a claim gets it.
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
	serviceRange              = "//services/"
	firstNodePort             = 30000
	nodePortCount             = 2768
	nodePorts                 = "30000-32767"
	maxProbes                 = 1 << 16          // addresses tried before the range counts as full
	giveBackWithin            = 10 * time.Second // what is not given back by then is left to the repair
	errTaken       allocation = "provided %s is already allocated"
	errFull        allocation = "range is full"
	errForeign     allocation = "the provided network does not match the current range"
	errOutOfRange  allocation = "the provided IP (%s) is not in the valid range. The range of valid IPs is %s"
)

// Rounds is how often a create begins again after ErrLost, before it is told that the servers are too busy.
const Rounds = 16

type allocation string

// An Allocator knows which addresses and ports the stored Services have.
type Allocator struct {
	st      *store.Store
	Blocks  []netip.Prefix // --service-cluster-ip-range: one, or one of each family; the first is that of Services that name none
	Shared  bool           // other servers give out of the same node ports: they are claimed in the store
	Manager string         // of the IPAddresses' fields; "" for none
	Failed  func(error)    // told of claims that could not be given back, and how each repair went (nil: well); may be nil

	leaks map[int32]int // ports that are claimed for no Service: rounds of the repair, which alone uses it, that found them so

	portLock sync.Mutex // held while the range of node ports is changed: one request of this server competes with other servers

	mu       sync.Mutex        // guards what follows
	services *store.Follower   // of taken
	claims   *store.Follower   // of claimed
	cidrs    *store.Follower   // of ranges
	taken    map[string]string // address or port, as text, to the key of the Service that has it
	claimed  map[string]claim  // address, as text, to its IPAddress
	ranges   map[string]cidr   // by the names of the ServiceCIDRs
	held     map[string]bool   // given to a request that is not committed yet
}

// New gives the addresses of one block or two, as --service-cluster-ip-range names them, to the Services of a store.
func New(st *store.Store, blocks ...netip.Prefix) *Allocator {
	return &Allocator{st: st, Blocks: blocks, services: st.Follow(serviceRange), claims: st.Follow(addressRange), cidrs: st.Follow(cidrRange),
		taken: map[string]string{}, claimed: map[string]claim{}, ranges: map[string]cidr{}, held: map[string]bool{}, leaks: map[int32]int{}}
}

// Assign gives a Service the families, the addresses and the ports that it needs and lacks, and checks those that it brings; objects of other types
// need none. before is nil for a create. An address that it has is its successor's; if that names another one, validation says that it may
// not. A dry run is as kube-apiserver's: it may bring a port out of the range, or an address that is taken, and is given none that is real. The caller
// calls Claim before its write, and Done when that is over.
func (a *Allocator) Assign(obj, before scheme.Object, dryRun bool) (*Allotment, error) {
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return nil, nil
	}
	old, _ := before.(*corev1.Service)
	asked := svc.Spec.DeepCopy()
	if errs := validation.FitFamilies(svc, old, a.families()); len(errs) > 0 {
		return nil, apierror.Invalid(schema.GroupKind{Kind: "Service"}, svc.Name, errs)
	}
	g, err := a.pick(svc, old, dryRun)
	if err != nil {
		return nil, err
	}
	g.asked = asked
	return g, nil
}

// pick finds what a Service gets, and holds it.
func (a *Allocator) pick(svc, old *corev1.Service, dryRun bool) (*Allotment, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.catchUp(); err != nil {
		return nil, err
	}
	g := &Allotment{a: a, svc: svc, dryRun: dryRun, key: serviceRange + svc.Namespace + "/" + svc.Name}
	if a.Shared {
		var err error
		if g.others, err = a.readPorts(); err != nil {
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
		g.giveBackLocked()
		return nil, err
	}
	return g, nil
}

// catchUp reads the Services, IPAddresses and ServiceCIDRs at first, and what the log has of them later.
func (a *Allocator) catchUp() error {
	ctx := context.Background()
	err := a.cidrs.CatchUp(ctx, func() { clear(a.ranges) }, func(ev *store.Event) { a.noteRange(ev.Key, ev.JSON, !ev.Deleted) })
	if err != nil {
		return err
	}
	err = a.claims.CatchUp(ctx, func() { clear(a.claimed) }, func(ev *store.Event) { a.noteClaim(ev.Key, ev.JSON, !ev.Deleted) })
	return cmp.Or(err, a.services.CatchUp(ctx, func() { clear(a.taken) }, func(ev *store.Event) {
		a.note(ev.Key, ev.Prev, false)
		a.note(ev.Key, ev.JSON, !ev.Deleted)
	}))
}

// noteClaim remembers an IPAddress, or forgets it.
func (a *Allocator) noteClaim(key string, json []byte, has bool) {
	_, address := scheme.NamespacedName(key)
	if has {
		a.claimed[address] = claimOf(json)
	} else {
		delete(a.claimed, address)
	}
}

// note marks what a stored Service has as taken, or as free again.
func (a *Allocator) note(key string, json []byte, has bool) {
	given(json, func(text string) {
		switch {
		case has:
			a.taken[text] = key
		case a.taken[text] == key:
			delete(a.taken, text)
		}
	})
}

// given calls mark for each address and port of a stored Service.
func given(json []byte, mark func(text string)) {
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

// canonical is an address as IPAddresses are called; ports are left alone.
func canonical(text string) string {
	if strings.Contains(text, ":") {
		if addr, err := netip.ParseAddr(text); err == nil {
			return addr.String()
		}
	}
	return text
}

// An Allotment is what one request is given; nil for an object that needs nothing. Its unexported methods run under the allocator's lock.
type Allotment struct {
	a       *Allocator
	svc     *corev1.Service
	asked   *corev1.ServiceSpec // before anything was filled in
	key     string
	held    []string // in this server, as all that it was given
	adopted []string // of them addresses with a claim of this Service's, from a create that was not finished
	claims  []string // what was claimed for it
	dryRun  bool
	others  ports   // that are claimed, where servers share them
	ports   []int32 // that were free when the first was needed, in the order in which they are given; nil before
	errs    field.ErrorList
}

// take holds a value for the Service; false when another one has it.
func (g *Allotment) take(text string) bool {
	if owner, taken := g.a.taken[text]; taken {
		return owner == g.key
	}
	return g.hold(text)
}

func (g *Allotment) hold(text string) bool {
	if g.a.held[text] {
		return false
	}
	g.a.held[text] = true
	g.held = append(g.held, text)
	return true
}

// takeAddress is take for an address, which may be claimed.
func (g *Allotment) takeAddress(text string) bool {
	c, claimed := g.a.claimed[text]
	if claimed && c.owner != g.key {
		return g.a.taken[text] == g.key
	}
	if claimed {
		g.adopted = append(g.adopted, text)
	}
	return g.take(text)
}

// takePort is take for a port, which may be claimed.
func (g *Allotment) takePort(port int32) bool {
	text := strconv.Itoa(int(port))
	if owner := g.a.taken[text]; owner == "" && g.others.has(port) {
		return false
	}
	return g.take(text)
}

// addresses gives a Service one of each of its families. Of a Service that has one already only the second may be wanted.
func (g *Allotment) addresses(old *corev1.Service) error {
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
	var given []string // an address is seen in the Service when it has all: refusals show what was asked for
	for i, family := range spec.IPFamilies[from:] {
		ip, err := spec.ClusterIPs[from+i], error(nil)
		if ip == "" {
			ip, err = g.anyAddress(family)
		} else {
			g.wantedAddress(family, ip)
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

// wantedAddress takes one that the Service brings.
func (g *Allotment) wantedAddress(family corev1.IPFamily, ip string) {
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return // validation says it better
	}
	blocks := g.a.blocks(family)
	in := slices.ContainsFunc(blocks, func(b block) bool { return b.has(addr) })
	switch {
	case !in && g.dryRun && len(blocks) > 0:
		g.refuse(ip, fmt.Sprintf(string(errOutOfRange), addr, blocks[0].prefix))
	case !in:
		g.refuse(ip, string(errForeign))
	case !g.dryRun && !g.takeAddress(addr.String()):
		g.refuse(ip, fmt.Sprintf(string(errTaken), "IP"))
	}
}

func (g *Allotment) refuse(ip, why string) {
	at := field.NewPath("spec", "clusterIPs")
	g.errs = append(g.errs, field.Invalid(at, g.svc.Spec.ClusterIPs, "failed to allocate IP "+ip+": "+why))
}

// anyAddress picks a free address at random, above the band of its range that is for those who choose their address, as long as there is one. A dry run
// gets what nobody has: the range's own.
func (g *Allotment) anyAddress(family corev1.IPFamily) (string, error) {
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

// probe tries the addresses of a part of a block, from one of them on; "" when all are taken. That of Service "kubernetes", which every cluster
// has, is given to nobody.
func (g *Allotment) probe(b block, from, to uint64) string {
	if from >= to {
		return ""
	}
	start, own := rand.Uint64N(to-from), g.a.Blocks[0].Masked().Addr().Next()
	for i := range min(to-from, maxProbes) {
		addr := b.at(from + (start+i)%(to-from))
		text := addr.String()
		if _, taken := g.a.taken[text]; addr != own && !taken && g.takeAddress(text) {
			return text
		}
	}
	return ""
}

// nodePorts gives or checks the node ports of a Service whose type has them. It stops at the first
// error, as kube-apiserver does.
func (g *Allotment) nodePorts(old *corev1.Service) error {
	switch {
	case g.svc.Spec.Type != corev1.ServiceTypeNodePort && g.svc.Spec.Type != corev1.ServiceTypeLoadBalancer:
		return nil
	case old != nil:
		return g.changedNodePorts(old)
	}
	ports, given := g.svc.Spec.Ports, map[int32]int32{} // by port: TCP and UDP of one port share a node port
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
				ok = g.wantedNodePort(i)
			}
			given[p.Port] = p.NodePort
		case p.NodePort == 0:
			p.NodePort = shared
		case p.NodePort != shared:
			ok = g.wantedNodePort(i)
		}
		if !ok {
			return nil
		}
	}
	return nil
}

// changedNodePorts is nodePorts for an update. A port that the Service has already stays its own.
func (g *Allotment) changedNodePorts(old *corev1.Service) error {
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
			ok = g.wantedNodePort(i)
			own[p.NodePort] = true
		}
		if !ok {
			return nil
		}
		this := use{p.Protocol, p.NodePort}
		if seen[this] {
			return apierror.Unexplained(fmt.Sprintf("duplicate nodePort: %v", this))
		}
		seen[this] = true
	}
	return nil
}

// wantedNodePort takes the node port that a port of the Service brings. It reports whether the Service
// may have it.
func (g *Allotment) wantedNodePort(i int) bool {
	port := g.svc.Spec.Ports[i].NodePort
	refusal := g.wantedPort(port)
	if refusal != "" {
		g.errs = append(g.errs, field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), port, refusal))
	}
	return refusal == ""
}

// healthPort gives or checks the port at which load balancers ask for health. One that the Service has already it may not change, which validation
// says. The error of one that it may not have is kube-apiserver's, a 500.
func (g *Allotment) healthPort(old *corev1.Service) error {
	port := &g.svc.Spec.HealthCheckNodePort
	switch {
	case len(g.errs) > 0 || !strategy.NeedsHealthPort(g.svc):
	case *port == 0:
		*port, _ = g.freePort()
	case old != nil && strategy.NeedsHealthPort(old):
	default:
		if refusal := g.wantedPort(*port); refusal != "" {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate requested HealthCheck NodePort %d: %s", *port, refusal))
		}
	}
	return nil
}

// wantedPort takes a port that the Service brings. It returns why it may not have it; "" when it may.
func (g *Allotment) wantedPort(port int32) (refusal string) {
	if !inNodePorts(port) && !g.dryRun {
		return fmt.Sprintf("provided port is not in the valid range. The range of valid ports is %d-%d", firstNodePort, firstNodePort+nodePortCount-1)
	}
	if !g.takePort(port) {
		return fmt.Sprintf(string(errTaken), "port")
	}
	return ""
}

func inNodePorts(port int32) bool { return port >= firstNodePort && port < firstNodePort+nodePortCount }

// freePort gives one; false, and an error is noted, when all are taken. The range is looked through once for all ports of a Service.
func (g *Allotment) freePort() (port int32, ok bool) {
	if g.ports == nil {
		g.ports = g.freePorts()
	}
	for len(g.ports) > 0 {
		port, g.ports = g.ports[0], g.ports[1:]
		if g.takePort(port) { // else one that the Service brings
			return port, true
		}
	}
	g.errs = append(g.errs, field.InternalError(field.NewPath("spec", "ports"), errors.New("failed to allocate a nodePort: "+string(errFull))))
	return 0, false
}

func (g *Allotment) freePorts() []int32 {
	free, start := make([]int32, 0, nodePortCount), rand.Int32N(nodePortCount)
	for i := range int32(nodePortCount) {
		port := firstNodePort + (start+i)%nodePortCount
		if text := strconv.Itoa(int(port)); g.a.taken[text] == "" && !g.a.held[text] && !g.others.has(port) {
			free = append(free, port)
		}
	}
	return free
}

// Claim writes down what the Service is given: its address, then its ports. Of a dry run it writes nothing.
func (g *Allotment) Claim(ctx context.Context) error {
	if g == nil || g.dryRun {
		return nil
	}
	var wanted []int32
	for _, text := range g.held {
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

// Done ends the hold: by now the log has the Service, or its write failed. What was claimed for a write that has certainly failed is given back.
// After ErrLost the Service is again what it was before Assign.
func (g *Allotment) Done(ctx context.Context, err error) {
	if g == nil {
		return
	}
	g.a.mu.Lock()
	g.giveBackLocked()
	g.a.mu.Unlock()
	if err != nil && !inDoubt(err) {
		g.a.giveBack(ctx, g.key, g.claims)
	}
	if errors.Is(err, ErrLost) {
		g.asked.DeepCopyInto(&g.svc.Spec)
	}
}

func (g *Allotment) giveBackLocked() {
	for _, text := range g.held {
		delete(g.a.held, text)
	}
}
