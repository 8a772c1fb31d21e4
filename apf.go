package main

// This file stands between flow control and the world: it is the middleware that asks internal/flowcontrol for a seat, estimates how many seats
// a request takes, answers those who get none, and shows the dispatcher's debug pages.
//
// The estimates are Kubernetes', in seats:
//
//	LIST    one for each 100,000 bytes that it reads, at most 100; what the real server answers from its cache, at most 10
//	WATCH   like the LIST of what it starts with; 1 if it starts with nothing. The seats come back once that is sent
//	write   1, then for every 10 watchers of the object one more for 5 ms, at most 10 at a time and so much longer
//	other   1
//
// What asks about a moment (/at/MOMENT/...) is classified as the same request now, but by its whole path where it is for no resource: /at/5/readyz is
// no probe. It never comes from a cache, and what is learned from it is told apart.
//
// Two things are better than there. Counts and bytes are the store's own, not a minute old. And a client that does not read its
// response, be it a watch's beginning, or lets its body trickle, does not sit on a seat: while it is waited for, the seat is lent to others. What it
// has in memory meanwhile is bounded elsewhere, by package shares, whose line is waited in without a seat, too.
//
// With --max-requests-inflight=auto estimates are corrected by what requests of the like took, and each that ends says what it took.
//
// The design is KEP-1040; its sections are named in docs/flow-control.md.

import (
	"bytes"
	"context"
	"io"
	"math"
	"math/bits"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/flowcontrol"
	"apilet/internal/flowcontrol/autoseats"
	"apilet/internal/history"
	"apilet/internal/options"
	"apilet/internal/request"
	"apilet/internal/store"
)

const bytesPerSeat = 100_000

const cachedBytes = 1_000_000 // that a LIST from the real server's cache is taken to hold at once, however long

const unknownSize = 1_500_000 // of an object whose size nobody knows

const maxListSeats = 100

const watchersPerSeat = 10

const watchersTime = 5 * time.Millisecond

const maxMutatingSeats = 10

const stuckAfter = 10 * time.Millisecond // a write to the client, or a read from it, that takes longer lends its seat

const unsentBytes = 2048 // bytes that net/http keeps before it writes anything to the client

const tooManyRequests = "Too many requests, please try again later."

// storedCounts is what the store has of a resource, in one namespace or ("") all; objects is -1 if it has no such resource.
type storedCounts func(group, resource, namespace string) (objects, bytes int64)

// A flowControl is API Priority and Fairness for one server.
type flowControl struct {
	dispatcher *flowcontrol.Dispatcher
	auto       *flowcontrol.Auto // nil where the seats are a given number
	stored     storedCounts
	watchers   watcherCounts
}

// newFlowControl shares seats out by the mandatory objects until configure is called; options.AutoSeats: as many as the machine carries. timeout is that
// of requests.
func newFlowControl(seats int, timeout time.Duration, counts storedCounts) *flowControl {
	fc := &flowControl{stored: counts, watchers: watcherCounts{n: map[watchTarget]int{}}}
	if seats == options.AutoSeats {
		fc.dispatcher, fc.auto = flowcontrol.NewAuto(timeout)
	} else {
		fc.dispatcher = flowcontrol.NewDispatcher(seats, timeout)
	}
	fc.configure(flowcontrol.Objects{})
	return fc
}

// configure is to be called with all objects whenever one has changed; it does not keep requests from flowing.
func (fc *flowControl) configure(objs flowcontrol.Objects) {
	objs = flowcontrol.WithMandatory(objs)
	fc.dispatcher.Configure(objs.Schemas, objs.Levels)
}

// run lends seats among levels, and keeps their number at what the machine carries if that is asked for, until ctx ends.
func (fc *flowControl) run(ctx context.Context) {
	var running sync.WaitGroup
	if fc.auto != nil {
		running.Go(func() { fc.auto.Run(ctx) })
	}
	fc.dispatcher.Run(ctx)
	running.Wait()
}

// middleware lets a request through when it has its seats, before anything of its body is read, and answers 429 otherwise.
func (fc *flowControl) middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := request.From(r.Context())
		if rec == nil || rec.User.Name == "" {
			http.Error(w, "request without user or request information reached flow control", http.StatusInternalServerError)
			return
		}
		if rec.Info.Verb != "watch" && request.LongRunning(&rec.Info) {
			next.ServeHTTP(w, r)
			return
		}
		dig := digestOf(rec)
		if conn, ok := r.Context().Value(connKey{}).(net.Conn); ok && r.ContentLength != 0 && r.ProtoMajor == 1 {
			dig.PeerClosed = func() bool { return flowcontrol.PeerClosed(conn) }
		}
		err := fc.dispatcher.Dispatch(r.Context(), &dig, fc.estimate(rec), func(t *flowcontrol.Ticket) {
			announceFlow(w, rec, t.Schema)
			rec.Waited = t.Started.Sub(t.Arrived)
			fc.serve(w, r, rec, t, next)
		})
		if err != nil {
			rej := err.(*flowcontrol.Rejection) // there is no other
			announceFlow(w, rec, rej.Schema)
			refuseBusy(w, rej.RetryAfter)
		}
	})
}

func (fc *flowControl) serve(w http.ResponseWriter, r *http.Request, rec *request.Request, t *flowcontrol.Ticket, next http.Handler) {
	seat := &yield{ticket: t}
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &seatedBody{r.Body, seat}
	}
	w = &seatedWriter{ResponseWriter: w, seat: seat}
	if t.Digest.Verb != "watch" && !rec.Follows {
		next.ServeHTTP(w, r)
		if fc.auto != nil {
			fc.auto.Done(t, workClass(rec, t.Plain()), time.Since(t.Started), rec.CommitWait.Total(), rec.HookWait.Total()+seat.waited)
		}
		return
	}
	if t.Digest.Verb == "watch" {
		options, _ := rec.Info.ListOptions()
		defer fc.watchers.register(&t.Digest, options.FieldSelector)()
	}
	next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), seatKey{}, seat)))
}

type connKey struct{}

// withConn is for http.Server.ConnContext. Without it nobody notices that a client has left whose request with a body waits.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

type seatKey struct{}

// watchBegun gives the seats back of the watch that ctx belongs to: what was there at its start has been sent. Calls after the
// first, and for other requests, do nothing.
func watchBegun(ctx context.Context) {
	if seat, ok := ctx.Value(seatKey{}).(*yield); ok {
		seat.returned = true
		seat.ticket.Finish()
	}
}

// announceFlow says what class the request fell into: by UID to the client, so as not to tell it the configuration's names.
func announceFlow(w http.ResponseWriter, rec *request.Request, schema *flowcontrol.FlowSchema) {
	rec.FlowSchema, rec.Priority = schema.Name, schema.Level.Name
	header := w.Header()
	header["X-Kubernetes-Pf-Flowschema-Uid"] = schema.UIDHeader
	header["X-Kubernetes-Pf-Prioritylevel-Uid"] = schema.LevelUIDHeader
}

func refuseBusy(w http.ResponseWriter, retryAfter int) {
	w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
	http.Error(w, tooManyRequests, http.StatusTooManyRequests)
}

func digestOf(rec *request.Request) flowcontrol.Digest {
	info, path := &rec.Info, rec.Info.Path
	if rec.At != "" {
		path = history.PathThen + rec.At + path
	}
	return flowcontrol.Digest{User: rec.User.Name, Groups: rec.User.Groups, ResourceRequest: info.ResourceRequest, Verb: info.Verb, Path: path,
		Group: info.Group, Version: info.Version, Namespace: info.Namespace, Resource: info.Resource, Subresource: info.Subresource,
		Name: info.Name, Received: rec.Received}
}

// maxInFlight is what there is without priority and fairness: so many requests that read and so many that do not, at a time;
// 0 is no limit. Administrators always get in.
func maxInFlight(readOnly, mutating int, next http.Handler) http.Handler {
	seats := [2]chan struct{}{make(chan struct{}, readOnly), make(chan struct{}, mutating)}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := request.From(r.Context())
		kind := seats[0]
		if request.IsMutating(&rec.Info) {
			kind = seats[1]
		}
		if cap(kind) == 0 || rec.Follows || request.LongRunning(&rec.Info) {
			next.ServeHTTP(w, r)
			return
		}
		select {
		case kind <- struct{}{}:
			defer func() { <-kind }()
			next.ServeHTTP(w, r)
		default:
			if slices.Contains(rec.User.Groups, "system:masters") {
				next.ServeHTTP(w, r)
				return
			}
			refuseBusy(w, 1)
		}
	})
}

// A yield lends a request's seats to others while its handler waits for the client.
type yield struct {
	ticket   *flowcontrol.Ticket
	waited   time.Duration // all in all; the handler's goroutine alone touches it,
	returned bool          // and this: there is nothing to lend any more

	mu      sync.Mutex // guards what follows
	waiting bool
	began   time.Time
	lent    bool
	timer   *time.Timer
}

// begin and end enclose what may take as long as the client likes.
func (seat *yield) begin() {
	if seat.returned {
		return
	}
	seat.mu.Lock()
	defer seat.mu.Unlock()
	seat.waiting, seat.began = true, time.Now()
	if seat.timer == nil {
		seat.timer = time.AfterFunc(stuckAfter, seat.lend)
	} else {
		seat.timer.Reset(stuckAfter)
	}
}

// lend runs in the timer's goroutine, which may have started just before the wait ended.
func (seat *yield) lend() {
	seat.mu.Lock()
	defer seat.mu.Unlock()
	if seat.waiting {
		seat.lent = true
		seat.ticket.Yield()
	}
}

func (seat *yield) end() {
	if seat.returned {
		return
	}
	seat.timer.Stop()
	seat.mu.Lock()
	defer seat.mu.Unlock()
	seat.waiting = false
	seat.waited += time.Since(seat.began)
	if seat.lent {
		seat.lent = false
		seat.ticket.Reclaim()
	}
}

// A seatedWriter lends the request's seats whenever writing to the client is stuck.
type seatedWriter struct {
	http.ResponseWriter
	seat    *yield
	written int
}

func (sw *seatedWriter) Unwrap() http.ResponseWriter { return sw.ResponseWriter }

func (sw *seatedWriter) Write(p []byte) (int, error) {
	if sw.written += len(p); sw.written <= unsentBytes {
		return sw.ResponseWriter.Write(p)
	}
	sw.seat.begin()
	defer sw.seat.end()
	return sw.ResponseWriter.Write(p)
}

// WhileLent lends the seats while the request waits for anything else that clients hold.
func (sw *seatedWriter) WhileLent(wait func()) {
	sw.seat.begin()
	defer sw.seat.end()
	wait()
}

// FlushError is what http.ResponseController calls.
func (sw *seatedWriter) FlushError() error {
	sw.seat.begin()
	defer sw.seat.end()
	return http.NewResponseController(sw.ResponseWriter).Flush()
}

// A seatedBody lends them whenever the client keeps its body waiting.
type seatedBody struct {
	io.ReadCloser
	seat *yield
}

func (b *seatedBody) Read(p []byte) (int, error) {
	b.seat.begin()
	defer b.seat.end()
	return b.ReadCloser.Read(p)
}

func (fc *flowControl) estimate(rec *request.Request) flowcontrol.Estimate {
	info := &rec.Info
	one := flowcontrol.Estimate{InitialSeats: 1, Watchers: -1, Mutating: request.IsMutating(info)}
	if !info.ResourceRequest {
		return one
	}
	switch info.Verb {
	case "list", "watch":
		seats, most := fc.listSeats(rec)
		one.InitialSeats = seats
		fc.learn(rec, &one)
		one.InitialSeats = min(one.InitialSeats, most)
	case "create", "update", "patch", "delete":
		if info.Resource == "serviceaccounts" && info.Subresource == "token" { // nobody is told of a token
			return one
		}
		one = mutatingWork(fc.watchers.interested(info))
		fc.learn(rec, &one)
	}
	return one
}

// learn corrects an estimate by experience, where there is any.
func (fc *flowControl) learn(rec *request.Request, est *flowcontrol.Estimate) {
	if fc.auto == nil || rec.Info.Verb == "watch" {
		return
	}
	list, plain := rec.Info.Verb == "list", 0
	if list {
		plain = est.InitialSeats
	}
	fc.auto.Learn(workClass(rec, plain), list, est)
}

// workClass is a number for requests that take alike: of a verb and a resource, in a namespace or all, now or then, and as wide to a power of two.
func workClass(rec *request.Request, seats int) uint64 {
	info, h := &rec.Info, uint64(14695981039346656037) // FNV-1a
	for _, word := range [...]string{info.Verb, info.Group, info.Resource, info.Subresource} {
		for i := range len(word) {
			h = (h ^ uint64(word[i])) * 1099511628211
		}
		h *= 1099511628211
	}
	if info.Namespace != "" {
		h = (h ^ 1) * 1099511628211
	}
	if rec.At != "" {
		h = (h ^ 2) * 1099511628211
	}
	return (h ^ uint64(bits.Len(uint(seats)))) * 1099511628211
}

// listSeats is the width of a LIST or WATCH and the most that it may be corrected to, by how many objects there are of its resource and of how many bytes in all.
func (fc *flowControl) listSeats(rec *request.Request) (seats, most int) {
	info, then := &rec.Info, rec.At != ""
	options, err := info.ListOptions()
	if err != nil { // it will be refused further on
		return maxListSeats, maxListSeats
	}
	if info.Verb == "watch" && !startsWithAll(&options) {
		return 1, 1
	}
	objects, size := fc.stored(info.Group, info.Resource, info.Namespace)
	switch {
	case objects < 0 && then: // nobody has counted what was
		return cachedBytes / bytesPerSeat, maxListSeats
	case objects < 0:
		return 1, 1
	}
	read, cached := objects, info.Verb == "watch" || !then && listsFromCache(&options)
	if options.Limit > 0 {
		read = min(read, options.Limit)
	}
	switch {
	case info.Name != "":
		read = 1
	case !cached && (options.LabelSelector != "" || options.FieldSelector != ""):
		read = max(read, objects/2)
	}
	most = maxListSeats
	average := float64(unknownSize)
	if objects > 0 && size > 0 {
		average = float64(size) / float64(objects)
	}
	work := float64(read) * average
	if cached {
		work, most = min(work, cachedBytes), cachedBytes/bytesPerSeat
	}
	return int(min(maxListSeats, max(1, math.Ceil(work/bytesPerSeat)))), most
}

// startsWithAll reports whether a watch first sends the existing objects.
func startsWithAll(options *metav1.ListOptions) bool {
	asked := options.SendInitialEvents != nil && *options.SendInitialEvents
	return asked || options.ResourceVersion == "" || options.ResourceVersion == "0"
}

// listsFromCache tells whether kube-apiserver would answer a LIST from its cache; here there is none, but clients tune themselves by its
// widths.
func listsFromCache(options *metav1.ListOptions) bool {
	switch {
	case options.ResourceVersionMatch != "":
		return options.ResourceVersionMatch == metav1.ResourceVersionMatchNotOlderThan
	case options.Continue != "":
		return false
	}
	return options.Limit <= 0 || options.ResourceVersion == "" || options.ResourceVersion == "0"
}

// mutatingWork is what a write takes whose outcome so many watchers will hear of.
func mutatingWork(watchers int) flowcontrol.Estimate {
	est := flowcontrol.Estimate{InitialSeats: 1, Mutating: true, Watchers: watchers}
	if watchers >= watchersPerSeat {
		seats := (watchers + watchersPerSeat - 1) / watchersPerSeat
		est.FinalSeats = min(seats, maxMutatingSeats)
		est.Tail = time.Duration(seats) * watchersTime / time.Duration(est.FinalSeats)
	}
	return est
}

// watchTarget is what a watch watches: a resource, a namespace of it, or one object.
type watchTarget struct{ group, resource, namespace, name string }

type watcherCounts struct {
	mu sync.Mutex // guards n
	n  map[watchTarget]int
}

// register counts a watch until the returned function is called.
func (wc *watcherCounts) register(dig *flowcontrol.Digest, fieldSelector string) func() {
	if dig.Resource == "pods" && demandsNode(fieldSelector) {
		return func() {} // each kubelet watches its own pods, and hears of few
	}
	key := watchTarget{dig.Group, dig.Resource, dig.Namespace, dig.Name}
	add := func(n int) {
		wc.mu.Lock()
		defer wc.mu.Unlock()
		if wc.n[key] += n; wc.n[key] == 0 {
			delete(wc.n, key)
		}
	}
	add(1)
	return func() { add(-1) }
}

// demandsNode tells whether a field selector lets only the pods of one node through.
func demandsNode(fieldSelector string) bool {
	for term := range strings.SplitSeq(fieldSelector, ",") {
		field, node, _ := strings.Cut(term, "=")
		if field == "spec.nodeName" && strings.TrimPrefix(node, "=") != "" {
			return true
		}
	}
	return false
}

// interested counts the watches that a write to an object may concern. The name of what a POST creates is not known yet.
func (wc *watcherCounts) interested(info *request.Info) int {
	wc.mu.Lock()
	defer wc.mu.Unlock()
	key := watchTarget{group: info.Group, resource: info.Resource}
	n := wc.n[key]
	if info.Namespace != "" {
		key.namespace = info.Namespace
		n += wc.n[key]
	}
	if info.Name != "" {
		key.name = info.Name
		n += wc.n[key]
	}
	return n
}

// ---- Seats that follow the machine ----

// followMachine gives the choice of seats what it looks at, if there is one.
func (fc *flowControl) followMachine(st *store.Store, log zerolog.Logger) {
	if fc.auto == nil {
		return
	}
	fc.auto.Commits = func() ([]float64, []int64) {
		stats := st.Stats()
		return store.CommitBounds[:], stats.CommitBuckets[:]
	}
	fc.auto.Changed = func(from, to int, state autoseats.State) {
		log.Info().Int("from", from).Int("to", to).Float64("goodput", state.Goodput).Float64("efficiency", state.Efficiency).
			Dur("runDelay", state.RunDelay).Msg("flow control: seats follow what the machine carries")
	}
}

// serveDump answers /debug/api_priority_and_fairness/{page}.
func (fc *flowControl) serveDump(w http.ResponseWriter, r *http.Request) {
	var text bytes.Buffer
	page := strings.TrimPrefix(r.URL.Path, "/debug/api_priority_and_fairness/")
	if page == "dump_seats" && fc.auto != nil {
		fc.auto.Dump(&text)
	} else if !fc.dispatcher.Dump(&text, page, r.URL.Query().Get("includeRequestDetails") != "") {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = text.WriteTo(w)
}
