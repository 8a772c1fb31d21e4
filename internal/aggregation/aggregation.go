package aggregation

// This file watches APIServices, builds the table that routes requests, and checks each server
// periodically.
//
//	APIService in the store        known           table
//	v1.apps, no Service            its priority    (no entry: served by apilet)
//	v1alpha1.wardle.example.com    spec, route,    servers[wardle.example.com/v1alpha1]: route, available
//	                               resources       others: its resources, for discovery

import (
	"context"
	"crypto/tls"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"apilet/internal/bounded"
	"apilet/internal/discovery"
	"apilet/internal/limits"
	"apilet/internal/scheme"
	"apilet/internal/store"
	"apilet/internal/webhook"
)

const (
	checkInterval     = 30 * time.Second // interval of availability checks
	discoveryInterval = time.Minute      // interval of discovery requests
	// delay after the first failure, doubled after each further failure up to the interval
	firstRetry            = time.Second
	maxConcurrentRequests = 4 // maximum number of concurrent requests to all servers
)

// Aggregator proxies requests to other API servers. The exported fields must be set before Load and
// must not be changed afterwards.
type Aggregator struct {
	Store    *store.Store
	Types    *scheme.Registry
	Services *webhook.ServiceResolver
	// returns the client certificate, or nil
	Certificate func() *tls.Certificate
	// called once, before the first APIService with a Service is used
	OnFirstUse func()
	SaveStatus func(ctx context.Context, name string, change func(*apiregistrationv1.APIService)) error
	// reports whether this server writes the status of APIServices
	IsLeader func() bool
	// limit on the wait for the first byte of a response
	ResponseHeaderTimeout time.Duration
	// --aggregator-reject-forwarding-redirect
	RejectRedirects bool
	// called before a long-running request is proxied
	OnLongRunning func(ctx context.Context)
	// writes an error response
	WriteError func(w http.ResponseWriter, r *http.Request, err error)
	// closed when long-running requests must end
	Stopping <-chan struct{}
	// called with the result of each round
	Report func(error)
	// counts transitions to unavailable, for a metric
	OnUnavailable func(name, reason string)
	// limits the upgraded connections of a user
	Upgrades *limits.Slots

	// nil if no APIService has a Service
	table atomic.Pointer[table]
	// name of this server in Via, to detect loops
	self  string
	begin sync.Once

	// The following fields belong to the loop, except for mu, told and wake.
	// log follows the APIServices; rest also follows Services and their endpoints
	log, rest *store.Follower
	// by name
	known    map[string]*apiService
	requests int
	workers  sync.WaitGroup
	// signals that told has entries
	wake chan struct{}

	// guards told
	mu sync.Mutex
	// results of finished requests, applied by the loop
	results []func()
}

// table is an immutable snapshot that maps group versions to servers.
type table struct {
	servers map[metav1.GroupVersion]*server
	others  *discovery.RemoteVersions
}

// server represents the server for a group version.
type server struct {
	name      string // of the APIService
	route     *route
	available bool
}

// apiService is the state of an APIService in the loop.
type apiService struct {
	name string
	spec apiregistrationv1.APIServiceSpec
	// the condition Available, if any
	condition *apiregistrationv1.APIServiceCondition
	// nil if apilet serves the group version
	route       *route
	description versionDescription
	// description is outdated
	stale     bool
	check     schedule
	discovery schedule
}

// schedule schedules the next periodic request.
type schedule struct {
	due     time.Time
	running bool
	again   bool // run again as soon as possible after the running request
	fails   int
}

// trigger schedules a request as soon as possible.
func (a *schedule) trigger() {
	a.again = a.running
	if !a.running {
		a.due = time.Now()
	}
}

// isDue reports whether a request is due.
func (a *schedule) isDue(now time.Time) bool { return !a.running && !now.Before(a.due) }

// reschedule schedules the next request after one has finished.
func (a *schedule) reschedule(failed bool, every time.Duration) {
	wait := every
	if a.fails++; !failed {
		a.fails = 0
	}
	switch {
	case a.again:
		wait = firstRetry / 10
	case failed && a.fails < 10:
		wait = min(every, firstRetry<<(a.fails-1))
	}
	a.running, a.again, a.due = false, false, time.Now().Add(wait)
}

// ---- The loop ----

// Load reads the stored APIServices. They are in effect when it returns.
func (g *Aggregator) Load(ctx context.Context) error {
	g.self, g.known, g.wake = "apilet-"+uuid.NewString(), map[string]*apiService{}, make(chan struct{}, 1)
	base := func(group, plural string) string { return g.Types.Lookup(group, "v1", plural).Base }
	own := base(apiregistrationv1.GroupName, "apiservices")
	g.log = g.Store.Follow(own)
	g.rest = g.Store.Follow(own, base("", "services"), base("", "endpoints"), base("discovery.k8s.io", "endpointslices"))
	return g.catchUp(ctx)
}

// Run follows the store and checks the servers until ctx ends.
func (g *Aggregator) Run(ctx context.Context) {
	defer g.workers.Wait()
	for ctx.Err() == nil {
		err := g.catchUp(ctx)
		g.applyResults()
		if ctx.Err() == nil {
			g.Report(err)
		}
		if err != nil {
			sleep(ctx, firstRetry)
			continue
		}
		g.startRequests(ctx)
		log := g.log
		if g.table.Load() != nil {
			log = g.rest
		}
		log.Wait(ctx, g.nextDue(), g.wake)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// catchUp processes the new events in the log.
func (g *Aggregator) catchUp(ctx context.Context) error {
	now, changed := g.Store.Revision(), false
	err := g.log.CatchUp(ctx, func() {
		for _, service := range g.known {
			service.close()
		}
		clear(g.known)
		// the log contains no event for an APIService that was deleted before the reset
		changed = true
	}, func(ev *store.Event) {
		g.applyEvent(ev)
		changed = true
	})
	if err != nil {
		return err
	}
	if changed {
		g.publish()
	}
	if g.table.Load() == nil {
		g.rest.From(now)
		return nil
	}
	return g.rest.CatchUp(ctx, func() { g.rest.From(now) }, g.scheduleChecks)
}

// applyEvent processes a change of an APIService. If an APIService cannot be decoded, it is
// ignored.
func (g *Aggregator) applyEvent(ev *store.Event) {
	_, name := scheme.NamespacedName(ev.Key)
	before := g.known[name]
	if ev.Deleted {
		before.close()
		delete(g.known, name)
		return
	}
	is := &apiService{name: strings.Clone(name)}
	if !gjson.GetBytes(ev.JSON, "spec.service").IsObject() {
		spec := gjson.GetBytes(ev.JSON, "spec")
		is.spec = apiregistrationv1.APIServiceSpec{Group: strings.Clone(spec.Get("group").String()), Version: strings.Clone(spec.Get("version").String()),
			GroupPriorityMinimum: int32(spec.Get("groupPriorityMinimum").Int()), VersionPriority: int32(spec.Get("versionPriority").Int())}
		before.close()
		g.known[is.name] = is
		return
	}
	var obj apiregistrationv1.APIService
	if bounded.Unmarshal(ev.JSON, &obj) != nil || !isServable(&obj.Spec) {
		before.close()
		delete(g.known, name)
		return
	}
	g.begin.Do(g.OnFirstUse)
	if before != nil && before.route != nil && before.route.isFor(&obj.Spec) {
		is = before // keep the known state
	} else {
		before.close()
		is.route, is.stale = g.newRoute(&obj.Spec), true
	}
	was, said := is.available(), is.condition
	is.spec, is.condition = obj.Spec, helper.GetAPIServiceConditionByType(&obj, apiregistrationv1.Available)
	// another writer has changed the object
	if equality.Semantic.DeepEqual(said, is.condition) {
		is.check.trigger()
	}
	if is.available() && !was {
		is.discovery.trigger()
	}
	g.known[is.name] = is
}

// isServable reports whether another server may serve the group version. The core group and the
// group of APIServices may not be delegated.
func isServable(spec *apiregistrationv1.APIServiceSpec) bool {
	return spec.Group != "" && spec.Group != apiregistrationv1.GroupName && spec.Service != nil && spec.Service.Port != nil
}

func (a *apiService) available() bool {
	return a.condition != nil && a.condition.Status == apiregistrationv1.ConditionTrue
}

func (a *apiService) close() {
	if a != nil && a.route != nil {
		a.route.close()
	}
}

// scheduleChecks schedules checks of the servers whose Service or endpoints may have changed.
func (g *Aggregator) scheduleChecks(ev *store.Event) {
	base, namespace, _, ok := scheme.SplitKey(ev.Key)
	if !ok || strings.Contains(base, "apiservices") {
		return
	}
	for _, a := range g.known {
		if a.route != nil && a.spec.Service.Namespace == namespace {
			a.check.trigger()
		}
	}
}

// publish builds a new table.
func (g *Aggregator) publish() {
	t := &table{servers: map[metav1.GroupVersion]*server{}, others: &discovery.RemoteVersions{Priorities: map[metav1.GroupVersion]discovery.Priority{}}}
	for _, name := range slices.Sorted(maps.Keys(g.known)) {
		a := g.known[name]
		gv := metav1.GroupVersion{Group: a.spec.Group, Version: a.spec.Version}
		t.others.Priorities[gv] = discovery.Priority{Group: a.spec.GroupPriorityMinimum, Version: a.spec.VersionPriority}
		if a.route == nil {
			continue
		}
		t.servers[gv] = &server{a.name, a.route, a.available()}
		other := discovery.RemoteVersion{Group: gv.Group, Version: gv.Version, Stale: true}
		if a.available() && !a.stale {
			other.Resources, other.Stale, other.OpenAPIHash, other.Swagger = a.description.resources, false, a.description.openAPIHash, a.description.swagger
		}
		t.others.All = append(t.others.All, other)
	}
	if len(t.servers) == 0 {
		t = nil
	}
	g.table.Store(t)
}

// applyResults applies the results of finished requests.
func (g *Aggregator) applyResults() {
	g.mu.Lock()
	results := g.results
	g.results = nil
	g.mu.Unlock()
	for _, do := range results {
		do()
	}
	if len(results) > 0 {
		g.publish()
	}
}

// queueResult queues a result for the loop.
func (g *Aggregator) queueResult(do func()) {
	g.mu.Lock()
	g.results = append(g.results, do)
	g.mu.Unlock()
	select {
	case g.wake <- struct{}{}:
	default: // the loop is already notified
	}
}

// startRequests starts the scheduled requests in the background, up to maxConcurrentRequests.
func (g *Aggregator) startRequests(ctx context.Context) {
	for _, name := range slices.Sorted(maps.Keys(g.known)) {
		a := g.known[name]
		if a.route == nil {
			continue
		}
		if g.requests < maxConcurrentRequests && g.IsLeader() && a.check.isDue(time.Now()) {
			g.startCheck(ctx, a)
		}
		if g.requests < maxConcurrentRequests && a.available() && a.discovery.isDue(time.Now()) {
			g.startDiscovery(ctx, a)
		}
	}
}

func (g *Aggregator) startCheck(ctx context.Context, a *apiService) {
	a.check.running = true
	g.requests++
	spec, route, before := a.spec, a.route, a.condition
	g.workers.Go(func() {
		condition := g.check(ctx, &spec, route)
		err := g.save(ctx, a.name, route, before, condition)
		g.queueResult(func() {
			g.requests--
			a.check.reschedule(err != nil || condition.Status != apiregistrationv1.ConditionTrue, checkInterval)
		})
	})
}

func (g *Aggregator) startDiscovery(ctx context.Context, a *apiService) {
	a.discovery.running = true
	g.requests++
	gv, route, before := metav1.GroupVersion{Group: a.spec.Group, Version: a.spec.Version}, a.route, a.description
	g.workers.Go(func() {
		learned, err := describeVersion(ctx, route, gv, before)
		g.queueResult(func() {
			g.requests--
			if a.stale = err != nil; err == nil {
				a.description = learned
			}
			a.discovery.reschedule(err != nil, discoveryInterval)
		})
	})
}

// nextDue returns the time of the next request. It returns zero if nothing is scheduled or if a
// running request must finish first.
func (g *Aggregator) nextDue() (first time.Time) {
	now := time.Now()
	earlier := func(due time.Time) {
		if due.Before(now) {
			due = now
		}
		if first.IsZero() || due.Before(first) {
			first = due
		}
	}
	for _, a := range g.known {
		if a.route == nil || g.requests >= maxConcurrentRequests {
			continue
		}
		if leads := g.IsLeader(); leads && !a.check.running {
			earlier(a.check.due)
		} else if !leads {
			// this server may have become the leader by then
			earlier(now.Add(firstRetry))
		}
		if a.available() && !a.discovery.running {
			earlier(a.discovery.due)
		}
	}
	return first
}

// ---- Exported state ----

// RemoteVersions returns the current snapshot of other servers, or nil.
func (g *Aggregator) RemoteVersions() *discovery.RemoteVersions {
	if t := g.table.Load(); t != nil {
		return t.others
	}
	return nil
}

var unavailableDesc = prometheus.NewDesc("aggregator_unavailable_apiservice",
	"[ALPHA] Gauge of APIServices which are marked as unavailable broken down by APIService name.", []string{"name"}, nil)

// Describe implements prometheus.Collector.
func (g *Aggregator) Describe(descs chan<- *prometheus.Desc) { descs <- unavailableDesc }

// Collect reports which APIServices are unavailable. It omits APIServices without a Service,
// because these are always available.
func (g *Aggregator) Collect(into chan<- prometheus.Metric) {
	t := g.table.Load()
	if t == nil {
		return
	}
	for _, s := range t.servers {
		away := 1.0
		if s.available {
			away = 0
		}
		into <- prometheus.MustNewConstMetric(unavailableDesc, prometheus.GaugeValue, away, s.name)
	}
}
