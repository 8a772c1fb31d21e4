package aggregation

// This file follows APIServices, makes the table by which requests are told apart, and has each server asked now and then.
//
//	APIService in the store        known           table
//	v1.apps, no Service            its priority    (nothing: it is served here)
//	v1alpha1.wardle.example.com    spec, route,    servers[wardle.example.com/v1alpha1]: route, available
//	                               what it serves  others: its resources, for discovery

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
	"apilet/internal/scheme"
	"apilet/internal/shares"
	"apilet/internal/store"
	"apilet/internal/webhook"
)

const (
	checkEvery = 30 * time.Second // each server is asked whether it is there
	learnEvery = time.Minute      // and what it serves
	firstRetry = time.Second      // after a failure; each further one waits twice as long, up to the above
	asksAtOnce = 4                // of all servers
)

// An Aggregator passes requests on. The exported fields are set before Load, and do not change.
type Aggregator struct {
	Store           *store.Store
	Types           *scheme.Registry
	Services        *webhook.ServiceResolver
	Certificate     func() *tls.Certificate // what is shown to servers; nil: nothing
	Begin           func()                  // called once, when the first APIService names a Service: before anything is asked of it
	SaveStatus      func(ctx context.Context, name string, change func(*apiregistrationv1.APIService)) error
	Leads           func() bool                                             // this server writes what stands in the status of APIServices
	Patience        time.Duration                                           // for the first byte of an answer
	RejectRedirects bool                                                    // --aggregator-reject-forwarding-redirect
	Delegated       func(ctx context.Context)                               // a request that may last is another server's work from now on
	Fail            func(w http.ResponseWriter, r *http.Request, err error) // answers with an error of ours
	Stopping        <-chan struct{}                                         // closed when requests that last are to end
	Stands          func(error)                                             // is told after each round
	Unavailable     func(name, reason string)                               // counts
	Upgrades        *shares.Places                                          // for connections that are upgraded

	table atomic.Pointer[table] // nil: no APIService names a Service
	self  string                // tells requests that come back to who has passed them on
	begin sync.Once

	// What follows is the loop's alone, but for mu, told and wake.
	log, rest *store.Follower        // APIServices; those, and what says where a Service is
	known     map[string]*apiService // by name
	asking    int
	workers   sync.WaitGroup
	wake      chan struct{} // a token when something is told

	mu   sync.Mutex // guards told
	told []func()   // what those have found out who asked, to be done by the loop
}

// A table is which requests are whose, at one moment.
type table struct {
	servers map[metav1.GroupVersion]*server
	others  *discovery.Others
}

// A server answers for one group version.
type server struct {
	name      string // of the APIService
	route     *route
	available bool
}

// An apiService is what the loop knows of one.
type apiService struct {
	name      string
	spec      apiregistrationv1.APIServiceSpec
	condition *apiregistrationv1.APIServiceCondition // Available; nil: nobody has looked
	route     *route                                 // nil: it is served here
	learned   lesson
	stale     bool // what was learned is not so any more
	check     appointment
	learn     appointment
}

// An appointment is when to ask next.
type appointment struct {
	due     time.Time
	running bool
	again   bool // something has happened since it began
	fails   int
}

// soon has the server asked as soon as possible.
func (a *appointment) soon() {
	a.again = a.running
	if !a.running {
		a.due = time.Now()
	}
}

// is says that the time has come.
func (a *appointment) is(now time.Time) bool { return !a.running && !now.Before(a.due) }

// settle makes the next one, after an answer.
func (a *appointment) settle(failed bool, every time.Duration) {
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

// Load reads what is stored; what it says is in force when it returns.
func (g *Aggregator) Load(ctx context.Context) error {
	g.self, g.known, g.wake = "apilet-"+uuid.NewString(), map[string]*apiService{}, make(chan struct{}, 1)
	base := func(group, plural string) string { return g.Types.Lookup(group, "v1", plural).Base }
	own := base(apiregistrationv1.GroupName, "apiservices")
	g.log = g.Store.Follow(own)
	g.rest = g.Store.Follow(own, base("", "services"), base("", "endpoints"), base("discovery.k8s.io", "endpointslices"))
	return g.catchUp(ctx)
}

// Run keeps up with what is stored, and with the servers, until ctx ends.
func (g *Aggregator) Run(ctx context.Context) {
	defer g.workers.Wait()
	for ctx.Err() == nil {
		err := g.catchUp(ctx)
		g.hear()
		if ctx.Err() == nil {
			g.Stands(err)
		}
		if err != nil {
			sleep(ctx, firstRetry)
			continue
		}
		g.ask(ctx)
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

// catchUp reads the log.
func (g *Aggregator) catchUp(ctx context.Context) error {
	now, changed := g.Store.Revision(), false
	err := g.log.CatchUp(ctx, func() {
		clear(g.known)
		changed = true // the log has no event for an APIService that was deleted before the reset
	}, func(ev *store.Event) {
		g.see(ev)
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
	return g.rest.CatchUp(ctx, func() { g.rest.From(now) }, g.seeBehind)
}

// see takes an APIService to notice. One that cannot be read is as good as none.
func (g *Aggregator) see(ev *store.Event) {
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
	if bounded.Unmarshal(ev.JSON, &obj) != nil || !passable(&obj.Spec) {
		before.close()
		delete(g.known, name)
		return
	}
	g.begin.Do(g.Begin)
	if before != nil && before.route != nil && before.route.isFor(&obj.Spec) {
		is = before // with what is known of it
	} else {
		before.close()
		is.route, is.stale = g.newRoute(&obj.Spec), true
	}
	was, said := is.available(), is.condition
	is.spec, is.condition = obj.Spec, helper.GetAPIServiceConditionByType(&obj, apiregistrationv1.Available)
	if equality.Semantic.DeepEqual(said, is.condition) { // somebody else has written it
		is.check.soon()
	}
	if is.available() && !was {
		is.learn.soon()
	}
	g.known[is.name] = is
}

// passable says that a group version may be another server's. The core group and that of APIServices themselves may not.
func passable(spec *apiregistrationv1.APIServiceSpec) bool {
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

// seeBehind has the servers asked whose Service has changed, or what stands behind it.
func (g *Aggregator) seeBehind(ev *store.Event) {
	base, namespace, _, ok := scheme.SplitKey(ev.Key)
	if !ok || strings.Contains(base, "apiservices") {
		return
	}
	for _, a := range g.known {
		if a.route != nil && a.spec.Service.Namespace == namespace {
			a.check.soon()
		}
	}
}

// publish makes a table of what is known.
func (g *Aggregator) publish() {
	t := &table{servers: map[metav1.GroupVersion]*server{}, others: &discovery.Others{Priorities: map[metav1.GroupVersion]discovery.Priority{}}}
	for _, name := range slices.Sorted(maps.Keys(g.known)) {
		a := g.known[name]
		gv := metav1.GroupVersion{Group: a.spec.Group, Version: a.spec.Version}
		t.others.Priorities[gv] = discovery.Priority{Group: a.spec.GroupPriorityMinimum, Version: a.spec.VersionPriority}
		if a.route == nil {
			continue
		}
		t.servers[gv] = &server{a.name, a.route, a.available()}
		other := discovery.Other{Group: gv.Group, Version: gv.Version, Stale: true}
		if a.available() && !a.stale {
			other.Resources, other.Stale, other.OpenAPIHash, other.Swagger = a.learned.resources, false, a.learned.openAPIHash, a.learned.swagger
		}
		t.others.All = append(t.others.All, other)
	}
	if len(t.servers) == 0 {
		t = nil
	}
	g.table.Store(t)
}

// hear does what those have found out who asked.
func (g *Aggregator) hear() {
	g.mu.Lock()
	told := g.told
	g.told = nil
	g.mu.Unlock()
	for _, do := range told {
		do()
	}
	if len(told) > 0 {
		g.publish()
	}
}

// tell hands over what somebody has found out.
func (g *Aggregator) tell(do func()) {
	g.mu.Lock()
	g.told = append(g.told, do)
	g.mu.Unlock()
	select {
	case g.wake <- struct{}{}:
	default: // the loop looks already
	}
}

// ask has servers asked whose time has come, a few at once. What is asked ends by itself.
func (g *Aggregator) ask(ctx context.Context) {
	for _, name := range slices.Sorted(maps.Keys(g.known)) {
		a := g.known[name]
		if a.route == nil {
			continue
		}
		if g.asking < asksAtOnce && g.Leads() && a.check.is(time.Now()) {
			g.startCheck(ctx, a)
		}
		if g.asking < asksAtOnce && a.available() && a.learn.is(time.Now()) {
			g.startLearning(ctx, a)
		}
	}
}

func (g *Aggregator) startCheck(ctx context.Context, a *apiService) {
	a.check.running = true
	g.asking++
	spec, route, before := a.spec, a.route, a.condition
	g.workers.Go(func() {
		condition := g.check(ctx, &spec, route)
		err := g.save(ctx, a.name, route, before, condition)
		g.tell(func() {
			g.asking--
			a.check.settle(err != nil || condition.Status != apiregistrationv1.ConditionTrue, checkEvery)
		})
	})
}

func (g *Aggregator) startLearning(ctx context.Context, a *apiService) {
	a.learn.running = true
	g.asking++
	gv, route, before := metav1.GroupVersion{Group: a.spec.Group, Version: a.spec.Version}, a.route, a.learned
	g.workers.Go(func() {
		learned, err := learn(ctx, route, gv, before)
		g.tell(func() {
			g.asking--
			if a.stale = err != nil; err == nil {
				a.learned = learned
			}
			a.learn.settle(err != nil, learnEvery)
		})
	})
}

// nextDue is when somebody is to be asked next; zero: nobody, or somebody who is asked now has to answer first.
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
		if a.route == nil || g.asking >= asksAtOnce {
			continue
		}
		if leads := g.Leads(); leads && !a.check.running {
			earlier(a.check.due)
		} else if !leads {
			earlier(now.Add(firstRetry)) // it may lead by then
		}
		if a.available() && !a.learn.running {
			earlier(a.learn.due)
		}
	}
	return first
}

// ---- For others to ask ----

// Others are what discovery has to tell of other servers; nil: there are none.
func (g *Aggregator) Others() *discovery.Others {
	if t := g.table.Load(); t != nil {
		return t.others
	}
	return nil
}

var unavailableDesc = prometheus.NewDesc("aggregator_unavailable_apiservice",
	"[ALPHA] Gauge of APIServices which are marked as unavailable broken down by APIService name.", []string{"name"}, nil)

// Describe and Collect tell metrics which servers are away.
func (g *Aggregator) Describe(descs chan<- *prometheus.Desc) { descs <- unavailableDesc }

// Collect tells of those APIServices alone that name a Service: the others are always there.
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
