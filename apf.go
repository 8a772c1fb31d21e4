package main

// This file connects the HTTP server with internal/flowcontrol. It follows KEP-1040; see
// docs/flow-control.md for its sections. The middleware estimates the number of seats that a
// request needs and waits until they are available. If the dispatcher rejects the request, the
// middleware sends a 429. This file also serves the debug pages of the dispatcher.
//
//	middleware ─▶ digestOf, estimate ─▶ Dispatch: queue, seats or 429 ─▶ serve: holds the seats ─▶ next
//
// The estimates follow Kubernetes. In seats:
//
//	LIST    one per 100,000 bytes that it reads, at most 100; at most 10 if kube-apiserver would use its cache
//	WATCH   like a LIST of its initial events, or 1 if it has none; the seats are returned once the events are sent
//	write   1; after it, one for every 10 watchers of the object for 5 ms. Beyond 10 seats the time grows instead
//	other   1
//
// A request about the past (/at/MOMENT/...) is classified like the same request about the present.
// Only a non-resource request keeps its whole path, since /at/5/readyz is not a probe. Requests
// about the past are never served from a cache, and their running times are learned separately.
//
// Two things differ from kube-apiserver. The numbers of objects and bytes come from the store and
// are always current. A request lends its seats while it waits for a slow client or for memory
// (package lending).
//
// With --max-requests-inflight=auto, the estimates are corrected by the running times of similar
// requests, and each request reports its running time at the end.

import (
	"bytes"
	"context"
	"math"
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
	"apilet/internal/flowcontrol/lending"
	"apilet/internal/history"
	"apilet/internal/options"
	"apilet/internal/request"
	"apilet/internal/store"
)

const bytesPerSeat = 100_000

// cachedBytes is the estimated size of any LIST that kube-apiserver would serve from its cache.
const cachedBytes = 1_000_000

const unknownSize = 1_500_000 // size of an object if the sizes are unknown

const maxListSeats = 100

const watchersPerSeat = 10

const watchersTime = 5 * time.Millisecond

const maxMutatingSeats = 10

const tooManyRequests = "Too many requests, please try again later."

// storedCounts returns the number and the bytes of the stored objects of a resource in a namespace,
// or in all if namespace is "". objects is -1 if the store does not have the resource.
type storedCounts func(group, resource, namespace string) (objects, bytes int64)

// A flowControl implements API Priority and Fairness for one server.
type flowControl struct {
	dispatcher *flowcontrol.Dispatcher
	auto       *flowcontrol.SeatTuner // nil if the number of seats is fixed
	stored     storedCounts
	watchers   flowcontrol.WatcherCounts
}

// newFlowControl returns a flowControl with the mandatory configuration. If seats is
// options.AutoSeats, the number of seats follows the capacity of the machine. timeout is the
// request timeout.
func newFlowControl(seats int, timeout time.Duration, counts storedCounts) *flowControl {
	fc := &flowControl{stored: counts}
	if seats == options.AutoSeats {
		fc.dispatcher, fc.auto = flowcontrol.NewAutoDispatcher(timeout)
	} else {
		fc.dispatcher = flowcontrol.NewDispatcher(seats, timeout)
	}
	fc.configure(flowcontrol.Objects{})
	return fc
}

// configure replaces the configuration. The caller must pass all objects and call configure again
// after each change. Requests are served meanwhile.
func (fc *flowControl) configure(objs flowcontrol.Objects) {
	objs = flowcontrol.WithMandatory(objs)
	fc.dispatcher.Configure(objs.Schemas, objs.Levels)
}

// run lends seats between priority levels until ctx ends. With AutoSeats it also adjusts the number
// of seats.
func (fc *flowControl) run(ctx context.Context) {
	var running sync.WaitGroup
	if fc.auto != nil {
		running.Go(func() { fc.auto.Run(ctx) })
	}
	fc.dispatcher.Run(ctx)
	running.Wait()
}

// middleware waits for the seats of a request and then calls next. It does not read the body
// before. It sends a 429 if the dispatcher rejects the request.
func (fc *flowControl) middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := request.From(r.Context())
		if rec == nil || rec.User.Name == "" {
			http.Error(w, "request without user or request information reached flow control",
				http.StatusInternalServerError)
			return
		}
		if rec.Info.Verb != "watch" && request.IsLongRunning(&rec.Info) {
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
			rej := err.(*flowcontrol.Rejection) // Dispatch returns no other errors
			announceFlow(w, rec, rej.Schema)
			refuseBusy(w, rej.RetryAfter)
		}
	})
}

// serve calls next while the request holds its seats, and lends them while the client blocks.
func (fc *flowControl) serve(w http.ResponseWriter, r *http.Request, rec *request.Request, t *flowcontrol.Ticket,
	next http.Handler) {
	loan := &lending.Loan{Ticket: t}
	r.Body, w = loan.Body(r.Body), loan.Writer(w)
	if t.Digest.Verb != "watch" && !rec.Streaming {
		next.ServeHTTP(w, r)
		if fc.auto != nil {
			waited := rec.HookWait.Total() + loan.Waited
			fc.auto.Done(t, workClass(rec, t.UncorrectedSeats()), time.Since(t.Started), rec.CommitWait.Total(), waited)
		}
		return
	}
	if t.Digest.Verb == "watch" {
		options, _ := rec.Info.ListOptions()
		defer fc.watchers.Register(&t.Digest, options.FieldSelector)()
	}
	next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), loanKey{}, loan)))
}

type connKey struct{}

// withConn is for http.Server.ConnContext. Without it, flow control does not notice when a client
// closes the connection of a queued request with a body.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

type loanKey struct{}

// returnWatchSeats returns the seats of the watch that ctx belongs to, because its initial events
// are sent. It does nothing for other requests and on further calls.
func returnWatchSeats(ctx context.Context) {
	if loan, ok := ctx.Value(loanKey{}).(*lending.Loan); ok {
		loan.Return()
	}
}

// announceFlow records the flow schema and the priority level of a request. The client receives
// only their UIDs, because the names are part of the configuration.
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
	if rec.Moment != "" {
		path = history.PathAt + rec.Moment + path
	}
	return flowcontrol.Digest{User: rec.User.Name, Groups: rec.User.Groups, ResourceRequest: info.ResourceRequest,
		Verb: info.Verb, Path: path, Group: info.Group, Version: info.Version, Namespace: info.Namespace,
		Resource: info.Resource, Subresource: info.Subresource, Name: info.Name, Received: rec.Received}
}

// maxInFlight replaces flow control if that is disabled. It limits the number of concurrent reads
// and writes separately. 0 means no limit. Administrators are always admitted.
func maxInFlight(readOnly, mutating int, next http.Handler) http.Handler {
	seats := [2]chan struct{}{make(chan struct{}, readOnly), make(chan struct{}, mutating)}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := request.From(r.Context())
		kind := seats[0]
		if request.IsMutating(&rec.Info) {
			kind = seats[1]
		}
		if cap(kind) == 0 || rec.Streaming || request.IsLongRunning(&rec.Info) {
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
		if info.Resource == "serviceaccounts" && info.Subresource == "token" { // tokens have no watchers
			return one
		}
		one = mutatingWork(fc.watchers.Interested(info.Group, info.Resource, info.Namespace, info.Name))
		fc.learn(rec, &one)
	}
	return one
}

// learn corrects an estimate by the running times of similar requests.
func (fc *flowControl) learn(rec *request.Request, est *flowcontrol.Estimate) {
	if fc.auto == nil || rec.Info.Verb == "watch" {
		return
	}
	list, plain := rec.Info.Verb == "list", 0
	if list {
		plain = est.InitialSeats
	}
	fc.auto.CorrectEstimate(workClass(rec, plain), list, est)
}

// workClass returns the class of requests whose running times are learned together.
func workClass(rec *request.Request, seats int) uint64 {
	info := &rec.Info
	return flowcontrol.WorkClass(seats, info.Namespace != "", rec.Moment != "", info.Verb, info.Group, info.Resource,
		info.Subresource)
}

// listSeats estimates the seats of a LIST or WATCH from the number and the bytes of the stored
// objects. most is the upper limit for corrections.
func (fc *flowControl) listSeats(rec *request.Request) (seats, most int) {
	info, then := &rec.Info, rec.Moment != ""
	options, err := info.ListOptions()
	if err != nil { // the request is rejected later
		return maxListSeats, maxListSeats
	}
	if info.Verb == "watch" && !startsWithAll(&options) {
		return 1, 1
	}
	objects, size := fc.stored(info.Group, info.Resource, info.Namespace)
	switch {
	case objects < 0 && then: // the number of objects in the past is unknown
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

// listsFromCache reports whether kube-apiserver would serve the LIST from its watch cache. apilet
// has no such cache, but charges the same number of seats, because clients are tuned for them.
func listsFromCache(options *metav1.ListOptions) bool {
	switch {
	case options.ResourceVersionMatch != "":
		return options.ResourceVersionMatch == metav1.ResourceVersionMatchNotOlderThan
	case options.Continue != "":
		return false
	}
	return options.Limit <= 0 || options.ResourceVersion == "" || options.ResourceVersion == "0"
}

// mutatingWork estimates the seats of a write whose event goes to the given number of watchers.
func mutatingWork(watchers int) flowcontrol.Estimate {
	est := flowcontrol.Estimate{InitialSeats: 1, Mutating: true, Watchers: watchers}
	if watchers >= watchersPerSeat {
		seats := (watchers + watchersPerSeat - 1) / watchersPerSeat
		est.FinalSeats = min(seats, maxMutatingSeats)
		est.Tail = time.Duration(seats) * watchersTime / time.Duration(est.FinalSeats)
	}
	return est
}

// ---- Seats that follow the machine ----

// followMachine connects the automatic number of seats with the metrics of the store and the log.
func (fc *flowControl) followMachine(st *store.Store, log zerolog.Logger) {
	if fc.auto == nil {
		return
	}
	fc.auto.Commits = func() ([]float64, []int64) {
		stats := st.Stats()
		return store.CommitBounds[:], stats.CommitBuckets[:]
	}
	fc.auto.OnChange = func(from, to int, state autoseats.State) {
		log.Info().Int("from", from).Int("to", to).
			Float64("goodput", state.Goodput).Float64("efficiency", state.Efficiency).
			Stringer("run_delay", state.RunDelay).
			Msg("flow control: adapted the number of seats to the capacity of the machine")
	}
}

// serveDump handles /debug/api_priority_and_fairness/{page}.
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
