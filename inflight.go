package main

// This file stands between flow control and the world: it is the middleware that asks apf.go for a seat, estimates how many seats
// a request takes, answers those who get none, and shows what flow control does (debug pages and metrics).
//
// The estimates are Kubernetes', in seats:
//
//	LIST    one for each 100,000 bytes that it reads, at most 100; what the real server answers from its cache, at most 10
//	WATCH   like the LIST of what it starts with; 1 if it starts with nothing. The seats come back once that is sent
//	write   1, then for every 10 watchers of the object one more for 5 ms, at most 10 at a time and so much longer
//	other   1
//
// Two things are better than there. Counts and bytes are the store's own, not a minute old. And a client that does not read its
// response, or lets its body trickle, does not sit on a seat: while it is waited for, the seat is lent to others.

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"apilet/internal/request"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	bytesPerSeat     = 100_000
	cachedBytes      = 1_000_000 // that a LIST from the real server's cache is taken to hold at once, however long
	unknownSize      = 1_500_000 // of an object whose size nobody knows
	maxListSeats     = 100
	watchersPerSeat  = 10
	watchersTime     = 5 * time.Millisecond
	maxMutatingSeats = 10

	stuckAfter  = 10 * time.Millisecond // a write to the client, or a read from it, that takes longer lends its seat
	unsentBytes = 2048                  // bytes that net/http keeps before it writes anything to the client
)

const tooManyRequests = "Too many requests, please try again later."

// storedCounts is what the store has of a resource, in one namespace or ("") all; objects is -1 if it has no such resource.
type storedCounts func(group, resource, namespace string) (objects, bytes int64)

// A flowControl is API Priority and Fairness for one server.
type flowControl struct {
	dispatcher *dispatcher
	stored     storedCounts
	watchers   watcherCounts
}

// newFlowControl shares seats out by the mandatory objects until configure is called. timeout is that of requests.
func newFlowControl(seats int, timeout time.Duration, counts storedCounts) *flowControl {
	fc := &flowControl{dispatcher: newDispatcher(seats, timeout), stored: counts, watchers: watcherCounts{n: map[watchTarget]int{}}}
	fc.configure(flowObjects{})
	return fc
}

// configure is to be called with all objects whenever one has changed; it does not keep requests from flowing.
func (fc *flowControl) configure(objs flowObjects) {
	objs = withMandatory(objs)
	fc.dispatcher.configure(objs.schemas, objs.levels)
}

// run lends seats among levels until ctx ends.
func (fc *flowControl) run(ctx context.Context) { fc.dispatcher.run(ctx) }

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
			dig.gone = func() bool { return hungUp(conn) }
		}
		err := fc.dispatcher.dispatch(r.Context(), &dig, fc.estimate(&rec.Info, r), func(t *ticket) {
			announceFlow(w, rec, t.schema)
			rec.Waited = t.started.Sub(t.arrived)
			fc.serve(w, r, t, next)
		})
		if err != nil {
			rej := err.(*rejection) // there is no other
			announceFlow(w, rec, rej.schema)
			refuseBusy(w, rej.retryAfter)
		}
	})
}

func (fc *flowControl) serve(w http.ResponseWriter, r *http.Request, t *ticket, next http.Handler) {
	if t.digest.verb != "watch" {
		seat := &loan{ticket: t}
		if r.Body != nil && r.Body != http.NoBody {
			r.Body = &seatedBody{r.Body, seat}
		}
		next.ServeHTTP(&seatedWriter{ResponseWriter: w, seat: seat}, r)
		return
	}
	defer fc.watchers.register(&t.digest, r.URL.RawQuery)()
	next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), seatKey{}, t)))
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
	if t, ok := ctx.Value(seatKey{}).(*ticket); ok {
		t.finish()
	}
}

// announceFlow says what class the request fell into: by UID to the client, so as not to tell it the configuration's names.
func announceFlow(w http.ResponseWriter, rec *request.Request, schema *flowSchema) {
	rec.FlowSchema, rec.Priority = schema.name, schema.level.name
	header := w.Header()
	header["X-Kubernetes-Pf-Flowschema-Uid"] = schema.uidHeader
	header["X-Kubernetes-Pf-Prioritylevel-Uid"] = schema.levelUIDHeader
}

func refuseBusy(w http.ResponseWriter, retryAfter int) {
	w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
	http.Error(w, tooManyRequests, http.StatusTooManyRequests)
}

func digestOf(rec *request.Request) digest {
	info := &rec.Info
	return digest{user: rec.User.Name, groups: rec.User.Groups, resourceRequest: info.ResourceRequest, verb: info.Verb, path: info.Path,
		group: info.Group, version: info.Version, namespace: info.Namespace, resource: info.Resource, subresource: info.Subresource,
		name: info.Name, received: rec.Received}
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
		if cap(kind) == 0 || request.LongRunning(&rec.Info) {
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

// Slow clients

// A loan lends a request's seats to others while its handler waits for the client.
type loan struct {
	ticket *ticket

	mu      sync.Mutex // guards what follows
	waiting bool
	lent    bool
	timer   *time.Timer
}

// begin and end enclose what may take as long as the client likes.
func (seat *loan) begin() {
	seat.mu.Lock()
	defer seat.mu.Unlock()
	seat.waiting = true
	if seat.timer == nil {
		seat.timer = time.AfterFunc(stuckAfter, seat.lend)
	} else {
		seat.timer.Reset(stuckAfter)
	}
}

// lend runs in the timer's goroutine, which may have started just before the wait ended.
func (seat *loan) lend() {
	seat.mu.Lock()
	defer seat.mu.Unlock()
	if seat.waiting {
		seat.lent = true
		seat.ticket.lend()
	}
}

func (seat *loan) end() {
	seat.timer.Stop()
	seat.mu.Lock()
	defer seat.mu.Unlock()
	seat.waiting = false
	if seat.lent {
		seat.lent = false
		seat.ticket.reclaim()
	}
}

// A seatedWriter lends the request's seats whenever writing to the client is stuck.
type seatedWriter struct {
	http.ResponseWriter
	seat    *loan
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

func (sw *seatedWriter) Flush() {
	sw.seat.begin()
	defer sw.seat.end()
	_ = http.NewResponseController(sw.ResponseWriter).Flush() // a writer that cannot flush has nothing to be flushed
}

// A seatedBody lends them whenever the client keeps its body waiting.
type seatedBody struct {
	io.ReadCloser
	seat *loan
}

func (b *seatedBody) Read(p []byte) (int, error) {
	b.seat.begin()
	defer b.seat.end()
	return b.ReadCloser.Read(p)
}

// Work estimates

func (fc *flowControl) estimate(info *request.Info, r *http.Request) estimate {
	one := estimate{initialSeats: 1, watchers: -1, mutating: request.IsMutating(info)}
	if !info.ResourceRequest {
		return one
	}
	switch info.Verb {
	case "list", "watch":
		q, err := parseListQuery(r.URL.RawQuery)
		if err != nil { // it will be refused further on
			return estimate{initialSeats: maxListSeats, watchers: -1}
		}
		q.watch, q.single = info.Verb == "watch", info.Name != ""
		objects, size := fc.stored(info.Group, info.Resource, info.Namespace)
		one.initialSeats = listSeats(q, objects, size)
	case "create", "update", "patch", "delete":
		if info.Resource == "serviceaccounts" && info.Subresource == "token" { // nobody is told of a token
			return one
		}
		return mutatingWork(fc.watchers.interested(info))
	}
	return one
}

// A listQuery is what of a LIST's or WATCH's query matters for its width.
type listQuery struct {
	watch, single     bool
	limit             int64
	version, match    string // resourceVersion, resourceVersionMatch
	continued         bool
	selective         bool
	sendInitialEvents bool
}

func parseListQuery(raw string) (q listQuery, err error) {
	if raw == "" {
		return q, nil
	}
	values, err := url.ParseQuery(raw)
	if err != nil {
		return q, err
	}
	if text := values.Get("limit"); text != "" {
		if q.limit, err = strconv.ParseInt(text, 10, 64); err != nil {
			return q, err
		}
	}
	q.version, q.match = values.Get("resourceVersion"), values.Get("resourceVersionMatch")
	q.continued = values.Get("continue") != ""
	q.selective = values.Get("labelSelector") != "" || values.Get("fieldSelector") != ""
	send := values.Get("sendInitialEvents")
	q.sendInitialEvents = send != "" && send != "0" && !strings.EqualFold(send, "false")
	return q, nil
}

// cached tells whether kube-apiserver would answer from its cache; here there is none, but clients tune themselves by its widths.
func (q *listQuery) cached() bool {
	switch {
	case q.watch:
		return true
	case q.match != "":
		return q.match == "NotOlderThan"
	case q.continued:
		return false
	}
	return q.limit <= 0 || q.version == "" || q.version == "0"
}

// listSeats is the width of a list of a resource with so many objects of so many bytes in all.
func listSeats(q listQuery, objects, size int64) int {
	if q.watch && !q.sendInitialEvents && q.version != "" && q.version != "0" || objects < 0 {
		return 1
	}
	read := objects
	if q.limit > 0 {
		read = min(read, q.limit)
	}
	switch {
	case q.single:
		read = 1
	case q.selective && !q.cached():
		read = max(read, objects/2)
	}
	average := float64(unknownSize)
	if objects > 0 && size > 0 {
		average = float64(size) / float64(objects)
	}
	work := float64(read) * average
	if q.cached() {
		work = min(work, cachedBytes)
	}
	return int(min(maxListSeats, max(1, math.Ceil(work/bytesPerSeat))))
}

// mutatingWork is what a write takes whose outcome so many watchers will hear of.
func mutatingWork(watchers int) estimate {
	est := estimate{initialSeats: 1, mutating: true, watchers: watchers}
	if watchers >= watchersPerSeat {
		seats := (watchers + watchersPerSeat - 1) / watchersPerSeat
		est.finalSeats = min(seats, maxMutatingSeats)
		est.tail = time.Duration(seats) * watchersTime / time.Duration(est.finalSeats)
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
func (wc *watcherCounts) register(dig *digest, query string) func() {
	if dig.resource == "pods" && watchesOneNode(query) {
		return func() {} // each kubelet watches its own pods, and hears of few
	}
	key := watchTarget{dig.group, dig.resource, dig.namespace, dig.name}
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

func watchesOneNode(query string) bool {
	values, err := url.ParseQuery(query)
	if err != nil {
		return false
	}
	for _, term := range strings.Split(values.Get("fieldSelector"), ",") {
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

// Debug pages

// serveDump answers /debug/api_priority_and_fairness/{page}.
func (fc *flowControl) serveDump(w http.ResponseWriter, r *http.Request) {
	var text bytes.Buffer
	page := strings.TrimPrefix(r.URL.Path, "/debug/api_priority_and_fairness/")
	if !fc.dispatcher.dump(&text, page, r.URL.Query().Get("includeRequestDetails") != "") {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = text.WriteTo(w)
}

// dump writes a page, a table that is kube-apiserver's to the column; false if there is no such page. Errors of w are its own to remember.
func (d *dispatcher) dump(w io.Writer, page string, details bool) bool {
	table := dumpTable{tabwriter.NewWriter(w, 8, 0, 1, ' ', 0)}
	switch page {
	case "dump_priority_levels":
		d.dumpLevels(table)
	case "dump_queues":
		d.dumpQueues(table)
	case "dump_requests":
		d.dumpRequests(table, details)
	default:
		return false
	}
	_ = table.Flush()
	return true
}

type dumpTable struct{ *tabwriter.Writer }

func (table dumpTable) row(cells ...any) {
	for i, cell := range cells {
		if i > 0 {
			_, _ = table.Write([]byte(",\t"))
		}
		_, _ = fmt.Fprint(table, cell)
	}
	_, _ = table.Write([]byte("\n"))
}

func (d *dispatcher) dumpLevels(table dumpTable) {
	table.row("PriorityLevelName", "ActiveQueues", "IsIdle", "IsQuiescing", "WaitingRequests", "ExecutingRequests",
		"DispatchedRequests", "RejectedRequests", "TimedoutRequests", "CancelledRequests")
	d.each(func(l *level) {
		active := 0
		for _, q := range l.queues {
			if q != nil && q.waiting > 0 {
				active++
			}
		}
		table.row(l.name, active, l.waiting == 0 && l.running.n == 0, l.quiescing, l.waiting, l.running.n,
			l.counts.dispatched, l.counts.rejected, l.counts.timedOut, l.counts.cancelled)
	})
}

func (d *dispatcher) dumpQueues(table dumpTable) {
	table.row("PriorityLevelName", "Index", "PendingRequests", "ExecutingRequests", "SeatsInUse", "NextDispatchR",
		"InitialSeatsSum", "MaxSeatsSum", "TotalWorkSum")
	d.each(func(l *level) {
		initial := make([]int, len(l.queues))
		next := make([]time.Duration, len(l.queues))
		for i := range next {
			next[i] = l.vtime
		}
		for _, t := range waitingTickets(l) {
			i := t.queue.index
			if initial[i] == 0 {
				next[i] = t.flow.served
			}
			initial[i] += t.est.initialSeats
		}
		for i, q := range l.queues {
			if q == nil {
				q = &queue{}
			}
			table.row(l.name, i, q.waiting, q.running, q.held, seatSeconds(next[i]), initial[i], q.seats, seatSeconds(q.work))
		}
	})
}

// seatSeconds prints seat-time as Kubernetes does.
func seatSeconds(work time.Duration) string {
	return fmt.Sprintf("%d.%08dss", work/time.Second, work%time.Second/10)
}

// waitingTickets returns those who wait at a level, in order of arrival.
func waitingTickets(l *level) []*ticket {
	var tickets []*ticket
	for _, f := range l.turns {
		l.settleLocked(f)
		for t := f.waiting.first; t != nil; t = t.next {
			tickets = append(tickets, t)
		}
	}
	slices.SortFunc(tickets, func(a, b *ticket) int { return cmp.Compare(a.number, b.number) })
	return tickets
}

func (d *dispatcher) dumpRequests(table dumpTable, details bool) {
	head := []any{"PriorityLevelName", "FlowSchemaName", "QueueIndex", "RequestIndexInQueue", "FlowDistingsher", "ArriveTime",
		"InitialSeats", "FinalSeats", "AdditionalLatency", "StartTime"}
	if details {
		head = append(head, "UserName", "Verb", "APIPath", "Namespace", "Name", "APIVersion", "Resource", "SubResource")
	}
	table.row(head...)
	d.each(func(l *level) {
		place := make([]int, len(l.queues))
		for _, t := range waitingTickets(l) {
			table.row(requestCells(t, t.queue.index, place[t.queue.index], details)...)
			place[t.queue.index]++
		}
		for t := l.running.first; t != nil; t = t.next {
			index := -1
			if t.queue != nil {
				index = t.queue.index
			}
			table.row(requestCells(t, index, -1, details)...)
		}
	})
}

func requestCells(t *ticket, queue, place int, details bool) []any {
	cells := []any{t.level.name, t.schema.name, queue, place, t.distinguisher, t.arrived.UTC().Format(time.RFC3339Nano),
		t.est.initialSeats, t.est.finalSeats, t.est.tail, t.started.UTC().Format(time.RFC3339Nano)}
	if !details {
		return cells
	}
	dig, apiVersion := &t.digest, t.digest.version
	if dig.group != "" {
		apiVersion = dig.group + "/" + apiVersion
	}
	return append(cells, dig.user, dig.verb, dig.path, dig.namespace, dig.name, apiVersion, dig.resource, dig.subresource)
}

// Metrics

// The metrics by name, with what they say and their labels beyond those of a priority level. All begin with flowMetricPrefix.
const flowMetricPrefix = "apiserver_flowcontrol_"

var flowMetrics = func() map[string]*prometheus.Desc {
	levelLabels, flowLabels := []string{"priority_level"}, []string{"priority_level", "flow_schema"}
	all := map[string]*prometheus.Desc{}
	add := func(labels []string, help ...string) {
		for i := 0; i < len(help); i += 2 {
			all[help[i]] = prometheus.NewDesc(flowMetricPrefix+help[i], help[i+1], labels, nil)
		}
	}
	with := func(label string, labels []string) []string { return append(slices.Clip(labels), label) }
	add(flowLabels,
		"dispatched_requests_total", "Requests that started.",
		"current_inqueue_requests", "Requests that wait.",
		"current_inqueue_seats", "Seats that those who wait will take.",
		"current_executing_requests", "Requests that run; watches until they have begun.",
		"current_executing_seats", "Seats that are taken, by tails too.",
		"request_queue_length_after_enqueue", "How long its queue is when a request has joined it.",
		"work_estimated_seats", "Seats that requests are estimated to take.",
		"watch_count_samples", "Watchers of what mutating requests change.",
		"request_dispatch_no_accommodation_total", "How often a request whose turn it was had to wait for more seats.")
	add(with("reason", flowLabels), "rejected_requests_total", "Requests that never ran.")
	add(with("execute", flowLabels), "request_wait_duration_seconds", "Time in the queue, of those that then ran and of those that did not.")
	add(with("type", flowLabels), "request_execution_seconds", "Time that requests ran; watches until they had begun.")
	add(levelLabels,
		"nominal_limit_seats", "Seats by shares.",
		"lower_limit_seats", "Seats that are never lent.",
		"upper_limit_seats", "Seats with all that may be borrowed.",
		"current_limit_seats", "Seats now.",
		"demand_seats", "Seats that could be used, by nominal seats, over time.",
		"demand_seats_high_watermark", "The most seats that could be used in the last period.",
		"demand_seats_average", "Seats that could be used in the last period, on average.",
		"demand_seats_stdev", "Their standard deviation.",
		"demand_seats_smoothed", "Average and deviation, slow to fall.",
		"target_seats", "Seats that the level would like.",
		"current_r", "Virtual time.",
		"dispatch_r", "Virtual time at the last start.",
		"latest_s", "Account of the flow of the last start.")
	add(with("bound", levelLabels),
		"next_s_bounds", "Accounts of the flows that wait.",
		"next_discounted_s_bounds", "Accounts of the flows that wait, less what they were promised.")
	add(with("success", levelLabels), "epoch_advance_total", "How often virtual time was set back.")
	add([]string{"phase", "priority_level"}, "priority_level_request_utilization", "Requests by what there is room for, over time.")
	add([]string{"phase", "request_kind"}, "read_vs_write_current_requests", "Requests of the server by what there is room for, over time.")
	add(nil, "seat_fair_frac", "Part of its target that each level gets whom no bound stops.")
	all["priority_level_seat_utilization"] = prometheus.NewDesc(flowMetricPrefix+"priority_level_seat_utilization",
		"Seats taken by seats there are, over time.", levelLabels, prometheus.Labels{"phase": "executing"})
	return all
}()

// A flowMetricList collects while levels hold still, and is sent when they move again.
type flowMetricList []prometheus.Metric

func (list *flowMetricList) number(name string, kind prometheus.ValueType, value float64, labels ...string) {
	*list = append(*list, prometheus.MustNewConstMetric(flowMetrics[name], kind, value, labels...))
}

// distribution leaves out a histogram that has seen nothing.
func (list *flowMetricList) distribution(name string, h *histogram, labels ...string) {
	buckets, count := make(map[float64]uint64, len(h.bounds)), uint64(0)
	for i, bound := range h.bounds {
		count += h.counts[i]
		buckets[bound] = count
	}
	if count += h.counts[len(h.bounds)]; count > 0 {
		*list = append(*list, prometheus.MustNewConstHistogram(flowMetrics[name], count, h.sum, buckets, labels...))
	}
}

// Describe and Collect make a prometheus.Collector.
func (d *dispatcher) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range flowMetrics {
		descs <- desc
	}
}

func (d *dispatcher) Collect(metrics chan<- prometheus.Metric) {
	var list flowMetricList
	list.number("seat_fair_frac", prometheus.GaugeValue, d.fairFraction())
	d.each(func(l *level) {
		list.level(l)
		for schema, stats := range l.stats {
			list.flow(stats, l.exempt, l.name, schema)
		}
	})
	tr := &d.traffic
	tr.mu.Lock()
	for phase, phaseLabel := range []string{"waiting", "executing"} {
		for kind, kindLabel := range []string{"readOnly", "mutating"} {
			tr.moveLocked(trafficPhase(phase), kind == 1, 0, time.Now())
			list.distribution("read_vs_write_current_requests", &tr.lanes[phase][kind].use, phaseLabel, kindLabel)
		}
	}
	tr.mu.Unlock()
	for _, metric := range list {
		metrics <- metric
	}
}

func (list *flowMetricList) level(l *level) {
	gauge := func(name string, value float64, labels ...string) {
		list.number(name, prometheus.GaugeValue, value, append([]string{l.name}, labels...)...)
	}
	c := &l.claim
	gauge("nominal_limit_seats", float64(c.nominal))
	gauge("lower_limit_seats", float64(c.min))
	gauge("upper_limit_seats", float64(c.max))
	gauge("current_limit_seats", float64(c.limit))
	gauge("demand_seats_high_watermark", float64(c.high))
	gauge("demand_seats_average", c.mean)
	gauge("demand_seats_stdev", c.sd)
	gauge("demand_seats_smoothed", c.smoothed)
	gauge("target_seats", c.target)
	list.distribution("demand_seats", &l.seatDemand, l.name)
	list.distribution("priority_level_seat_utilization", &l.seatUse, l.name)
	list.distribution("priority_level_request_utilization", &l.startUse, "executing", l.name)
	gauge("current_r", l.vtime.Seconds())
	if l.exempt { // nobody ever waits
		none := newHistogram(requestBounds)
		none.add(0, l.seatUse.total())
		list.distribution("priority_level_request_utilization", &none, "waiting", l.name)
		return
	}
	list.distribution("priority_level_request_utilization", &l.waitingUse, "waiting", l.name)
	gauge("dispatch_r", l.counts.startVtime.Seconds())
	gauge("latest_s", l.counts.startTag.Seconds())
	list.number("epoch_advance_total", prometheus.CounterValue, float64(l.counts.rewinds), l.name, "true")
	if len(l.turns) == 0 {
		return
	}
	least, most := math.Inf(1), math.Inf(-1)
	leastNet, mostNet := least, most
	for _, f := range l.turns {
		l.settleLocked(f)
		account, net := f.served.Seconds(), (f.served - f.promised).Seconds()
		least, most, leastNet, mostNet = min(least, account), max(most, account), min(leastNet, net), max(mostNet, net)
	}
	gauge("next_s_bounds", least, "min")
	gauge("next_s_bounds", most, "max")
	gauge("next_discounted_s_bounds", leastNet, "min")
	gauge("next_discounted_s_bounds", mostNet, "max")
}

// flow leaves out a schema that has seen no request.
func (list *flowMetricList) flow(stats *flowStats, exempt bool, labels ...string) {
	if stats.estimated.total() == 0 {
		return
	}
	with := func(label string) []string { return append(slices.Clip(labels), label) }
	counter, gauge := prometheus.CounterValue, prometheus.GaugeValue
	list.number("dispatched_requests_total", counter, float64(stats.dispatched), labels...)
	list.number("current_executing_requests", gauge, float64(stats.executing), labels...)
	list.number("current_executing_seats", gauge, float64(stats.executingSeats), labels...)
	list.distribution("work_estimated_seats", &stats.estimated, labels...)
	list.distribution("watch_count_samples", &stats.watchers, labels...)
	list.distribution("request_execution_seconds", &stats.ranRegular, with("regular")...)
	list.distribution("request_execution_seconds", &stats.ranWatch, with("watch")...)
	for reason, n := range stats.rejected {
		list.number("rejected_requests_total", counter, float64(n), with(reason)...)
	}
	if exempt {
		return
	}
	list.number("current_inqueue_requests", gauge, float64(stats.waiting), labels...)
	list.number("current_inqueue_seats", gauge, float64(stats.waitingSeats), labels...)
	list.number("request_dispatch_no_accommodation_total", counter, float64(stats.noAccommodation), labels...)
	list.distribution("request_wait_duration_seconds", &stats.waitedThenRan, with("true")...)
	list.distribution("request_wait_duration_seconds", &stats.waitedInVain, with("false")...)
	list.distribution("request_queue_length_after_enqueue", &stats.queueLength, labels...)
}
