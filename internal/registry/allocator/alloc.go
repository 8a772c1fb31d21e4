// Package allocator hands out what Services share: cluster IPs of --service-cluster-ip-range, and node ports.
//
//	alloc, err := allocator.New(st, "10.96.0.0/16")
//	release, err := alloc.Assign(svc, nil, false) // fills spec.clusterIPs and nodePorts in; 422 for one that is taken
//	defer release()                               // when the write is over, well or not
//
// Nothing of it is stored: the stored Services say what is taken, and the event log says what has changed since, so the two cannot disagree
// after a crash. What a request was given is held until its Service shows up in the log, or the request gives it back.
//
//	log:  ... ADDED web 10.96.0.7 | DELETED db 10.96.0.9 | ...
//	taken: 10.96.0.7                                        held: 10.96.0.12 (a create that is on its way)
//
// Kubernetes keeps bitmaps and IPAddress objects for the same (pkg/registry/core/service/ipallocator, portallocator), and has controllers
// that repair them; errors are worded as there. Which Service needs what is known to packages defaults and strategy.
//
// Invariants: no address or port is given to two Services; a write that fails keeps none.
package allocator

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"sync"

	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"apilet/internal/registry/defaults"
	"apilet/internal/registry/strategy"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	serviceRange             = "//services/"
	firstNodePort            = 30000
	NodePortCount            = 2768
	maxProbes                = 1 << 16 // addresses tried before the range counts as full
	errTaken      allocation = "provided %s is already allocated"
	errFull       allocation = "range is full"
	errOutOfRange allocation = "the provided IP (%s) is not in the valid range. The range of valid IPs is %s"
)

type allocation string

// An Allocator knows which addresses and ports the stored Services have.
type Allocator struct {
	st    *store.Store
	Block netip.Prefix

	mu    sync.Mutex        // guards what follows
	pos   int64             // taken is true of this revision; 0 before the first use
	taken map[string]string // address or port, as text, to the key of the Service that has it
	held  map[string]bool   // given to a request that is not committed yet
}

// New parses --service-cluster-ip-range.
func New(st *store.Store, cidr string) (*Allocator, error) {
	block, err := netip.ParsePrefix(cidr)
	if err != nil || !block.Addr().Is4() || block.Bits() > 30 {
		return nil, fmt.Errorf("--service-cluster-ip-range: %q is no IPv4 range of four addresses or more", cidr)
	}
	return &Allocator{st: st, Block: block.Masked(), taken: map[string]string{}, held: map[string]bool{}}, nil
}

// FirstServiceIP is the address that Kubernetes gives the API server's own Service.
func FirstServiceIP(cidr string) (net.IP, error) {
	a, err := New(nil, cidr)
	if err != nil {
		return nil, err
	}
	return a.Block.Addr().Next().AsSlice(), nil
}

// Assign gives a Service the address and the ports that it needs and lacks, and checks those that it brings. An address that old has is
// its successor's; if that names another one, validation says that it may not. A dry run may bring a port out of the range, as in
// kube-apiserver. The caller calls release when its write is over.
func (a *Allocator) Assign(svc, old *corev1.Service, dryRun bool) (release func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.catchUp(); err != nil {
		return nil, err
	}
	g := &allotment{a: a, svc: svc, dryRun: dryRun, key: serviceRange + svc.Namespace + "/" + svc.Name}
	if old == nil || !defaults.NeedsClusterIP(old) {
		g.address()
	}
	g.nodePorts()
	if len(g.errs) > 0 {
		g.giveBackLocked()
		return nil, scheme.Invalid(schema.GroupKind{Kind: "Service"}, svc.Name, g.errs)
	}
	return g.release, nil
}

// catchUp reads the Services at first, and what the log has of them later.
func (a *Allocator) catchUp() error {
	if a.pos == 0 {
		return a.readAll()
	}
	for {
		events, upTo, err := a.st.Events(serviceRange, a.pos, 500, nil)
		if errors.Is(err, store.ErrCompacted) {
			clear(a.taken)
			return a.readAll()
		}
		if err != nil {
			return err
		}
		for i := range events {
			ev := &events[i]
			a.note(ev.Key, ev.Prev, false)
			a.note(ev.Key, ev.JSON, !ev.Deleted)
		}
		if a.pos = upTo; upTo >= a.st.Revision() {
			return nil
		}
	}
}

func (a *Allocator) readAll() error {
	c := &store.Chunk{}
	for at := (store.Span{Prefix: serviceRange}); ; at.Rev, at.Start = c.Rev, c.Next {
		if err := a.st.Chunk(at, c); err != nil {
			return err
		}
		for i := range c.Records {
			a.note(c.Records[i].Key, c.Records[i].JSON, true)
		}
		if c.Next == "" {
			a.pos = max(c.Rev, 1)
			return nil
		}
	}
}

// note marks what a stored Service has as taken, or as free again.
func (a *Allocator) note(key string, json []byte, has bool) {
	mark := func(v gjson.Result) {
		switch text := v.String(); {
		case text == "" || text == corev1.ClusterIPNone || text == "0":
		case has:
			a.taken[text] = key
		case a.taken[text] == key:
			delete(a.taken, text)
		}
	}
	spec := gjson.GetBytes(json, "spec")
	mark(spec.Get("clusterIP"))
	mark(spec.Get("healthCheckNodePort"))
	for _, port := range spec.Get("ports.#.nodePort").Array() {
		mark(port)
	}
}

// An allotment is what one request is given. Its methods run under the allocator's lock.
type allotment struct {
	a      *Allocator
	svc    *corev1.Service
	key    string
	held   []string
	dryRun bool
	ports  []int32 // that were free when the first was needed, in the order in which they are given; nil before
	errs   field.ErrorList
}

// take holds a value for the Service; false when another one has it.
func (g *allotment) take(text string) bool {
	if owner, taken := g.a.taken[text]; taken {
		return owner == g.key
	}
	if g.a.held[text] {
		return false
	}
	g.a.held[text] = true
	g.held = append(g.held, text)
	return true
}

func (g *allotment) address() {
	spec := &g.svc.Spec
	if spec.Type == corev1.ServiceTypeExternalName || spec.ClusterIP == corev1.ClusterIPNone {
		return
	}
	if spec.ClusterIP == "" {
		spec.ClusterIP = g.freeAddress()
		spec.ClusterIPs = []string{spec.ClusterIP}
		return
	}
	addr, err := netip.ParseAddr(spec.ClusterIP)
	at := field.NewPath("spec", "clusterIPs")
	switch {
	case err != nil: // validation says it better
	case !g.a.Block.Contains(addr):
		g.refuse(at, spec.ClusterIPs, "IP "+spec.ClusterIP, fmt.Sprintf(string(errOutOfRange), addr, g.a.Block))
	case !g.take(spec.ClusterIP):
		g.refuse(at, spec.ClusterIPs, "IP "+spec.ClusterIP, fmt.Sprintf(string(errTaken), "IP"))
	}
}

func (g *allotment) refuse(at *field.Path, value any, what, why string) {
	g.errs = append(g.errs, field.Invalid(at, value, "failed to allocate "+what+": "+why))
}

// freeAddress picks a random address of the block. The first (the network) and the last (its broadcast) are never given; the second is
// kept for the Service "kubernetes", which every cluster has there.
func (g *allotment) freeAddress() string {
	size := uint32(1) << (32 - g.a.Block.Bits())
	first := g.a.Block.Addr().As4()
	base := uint32(first[0])<<24 | uint32(first[1])<<16 | uint32(first[2])<<8 | uint32(first[3])
	start := rand.Uint32N(size)
	for i := range min(size, maxProbes) {
		offset := (start + i) % size
		if offset < 2 || offset == size-1 {
			continue
		}
		n := base + offset
		text := netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}).String()
		if _, taken := g.a.taken[text]; !taken && g.take(text) {
			return text
		}
	}
	g.refuse(field.NewPath("spec", "clusterIPs"), []string{}, "a serviceIP", string(errFull))
	return ""
}

// nodePorts stops where no port is left, as kube-apiserver does: the others would not get one either.
func (g *allotment) nodePorts() {
	spec := &g.svc.Spec
	wants, free := strategy.NeedsNodePort(g.svc), true
	given := map[int32]string{} // by protocol: TCP and UDP of one Service may share a number
	for i := range spec.Ports {
		p := &spec.Ports[i]
		switch {
		case p.NodePort != 0:
			if protocol, own := given[p.NodePort]; own && protocol != string(p.Protocol) {
				continue
			}
			g.wantedPort(field.NewPath("spec", "ports").Index(i).Child("nodePort"), p.NodePort)
		case wants:
			if p.NodePort, free = g.freePort(); !free {
				return
			}
		}
		given[p.NodePort] = string(p.Protocol)
	}
	if strategy.NeedsHealthPort(g.svc) && spec.HealthCheckNodePort == 0 {
		spec.HealthCheckNodePort, _ = g.freePort()
	}
}

func (g *allotment) wantedPort(at *field.Path, port int32) {
	if within := port >= firstNodePort && port < firstNodePort+NodePortCount; !within && !g.dryRun {
		g.errs = append(g.errs, field.Invalid(at, port, fmt.Sprintf("provided port is not in the valid range. The range of valid ports is %d-%d",
			firstNodePort, firstNodePort+NodePortCount-1)))
	} else if !g.take(fmt.Sprint(port)) {
		g.errs = append(g.errs, field.Invalid(at, port, fmt.Sprintf(string(errTaken), "port")))
	}
}

// freePort gives one; false, and an error is noted, when all are taken. The range is looked through once for all ports of a Service.
func (g *allotment) freePort() (port int32, ok bool) {
	if g.ports == nil {
		g.ports = g.freePorts()
	}
	for len(g.ports) > 0 {
		port, g.ports = g.ports[0], g.ports[1:]
		if g.take(strconv.Itoa(int(port))) { // else one that the Service brings
			return port, true
		}
	}
	g.errs = append(g.errs, field.InternalError(field.NewPath("spec", "ports"), errors.New("failed to allocate a nodePort: "+string(errFull))))
	return 0, false
}

func (g *allotment) freePorts() []int32 {
	free, start := make([]int32, 0, NodePortCount), rand.Int32N(NodePortCount)
	for i := range int32(NodePortCount) {
		port := firstNodePort + (start+i)%NodePortCount
		if text := strconv.Itoa(int(port)); g.a.taken[text] == "" && !g.a.held[text] {
			free = append(free, port)
		}
	}
	return free
}

// release ends the hold: by now the log has the Service, or its write failed.
func (g *allotment) release() {
	g.a.mu.Lock()
	defer g.a.mu.Unlock()
	g.giveBackLocked()
}

func (g *allotment) giveBackLocked() {
	for _, text := range g.held {
		delete(g.a.held, text)
	}
}
