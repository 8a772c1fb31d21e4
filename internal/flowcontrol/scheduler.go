package flowcontrol

// This file implements the dispatcher. It includes the levels, queues and flows, and the algorithm
// that selects the next request if a seat is free. See doc.go for the path of a request.
//
// The number of requests that a server can run at the same time is limited by its seats. If a
// request lists thousands of objects, it needs several seats (the width of the request). The seats
// are divided among priority levels, so garbage collection cannot starve leader election. If a
// level does not need all of its seats, it can lend some of them to other levels. The seats of a
// level are divided among flows, which prevents one client from starving the others.
//
// Why are there hands and queues? A level of 128 queues of 50 places limits the cost of waiting
// requests, no matter how many user names clients invent. A single queue of 6400 places would not
// isolate flows. An elephant (a flow with a thousand requests) can only fill the six queues of its
// hand. The hand of a mouse almost certainly includes a queue that is not in the hand of the
// elephant, so the request of the mouse can be added to that queue.
//
// Which flow is next? Every flow has an account for the seat-time that it has received (two seats
// for three seconds are six seconds). A free seat goes to the flow with the lowest account. The
// difficulty is the initial account of a new flow. If it were zero, the new flow would get every
// seat until it had caught up with years of service to the other flows. For this reason, the level
// maintains a virtual time, which is the account of a flow that always receives exactly its even
// share. The account of a new flow starts at the virtual time:
//
//	vtime' = seats in use / active flows, and vtime is never less than the account of a flow whose request is being started.
//
// For example, assume two seats and requests of 1 s. Flow A is alone and keeps both seats busy, and
// more requests of A wait. A's account and vtime both grow by 2 per second, so both are 20 at t=10.
// At this time, flow B sends many requests. The account of B starts at 20. The next free seat goes
// to B, because A's account is larger by then. The seat after that goes to A, and they continue to
// alternate from B's first second. If B had used a seat now and then since t=0, its account would
// still start at 20, because the next request of a flow with no waiting requests raises its account
// to vtime. This means that an idle flow cannot save up service for later, and that A does not have
// to pay for seats that were not needed by other flows. (In Kubernetes virtual time advances only
// by the even share. As a result, A would be starved until B has caught up.)
//
// Fairness does not matter while no request waits. The level closes its books when there are no
// more waiting requests. After that, all flows start again with equal accounts.
//
// The running time of a request is not known when it starts, so an account grows while the request
// runs, not when it ends. In addition, the key of a flow includes a promise, which is the usual
// running time of requests multiplied by the number of seats that the flow holds. Without the
// promise, all seats that become free within a second would be assigned to the same flow, which
// would cause oscillation.
//
// This is the bound on unfairness: while two flows both have waiting requests, their accounts
// including promises differ by at most one request's promise plus any overrun of running requests.
// The overrun is unavoidable, because running requests are not interrupted.
//
// Between two events an account can only grow. The waiting flows are therefore kept in a heap in
// which a key may be too low but never too high. The minimum is found by correcting a few keys at
// the top. The cost of starting a request is logarithmic in the number of waiting flows, while
// Kubernetes visits all queues. (In Kubernetes, the queues are scheduled instead of the flows. As a
// result, an elephant is treated as several flows, one for each queue in its hand.)

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
)

const (
	// assumed running time of a request for which no better estimate exists
	defaultDuration = 3 * time.Millisecond
	// maximum time in a queue; the limit is lower if a quarter of the request's timeout is less
	maxQueueWait = time.Minute
	// how often a waiting request polls for a closed connection, if PeerClosed is set
	pollPeriod   = time.Second / 4
	adjustPeriod = 10 * time.Second // how often levels lend seats to each other
	// maximum fraction of the nominal seats that can be used by a single request
	maxLevelPart = 0.15
	// virtual time is reset to 0 beyond this value, which is half the range of its type
	highVtime = 1 << 62
)

// Reasons for rejections, the values of the metrics' label reason.
const (
	// the shortest queue of the hand is full, and so are the seats
	reasonQueueFull = "queue-full"
	// all seats are in use and there are no queues
	reasonConcurrencyLimit = "concurrency-limit"
	// the request waited for its maximum time, or the client disconnected
	reasonTimeout = "time-out"
)

// A Rejection is the error returned for a request that was not run.
type Rejection struct {
	reason     string
	RetryAfter int         // seconds
	Schema     *FlowSchema // the schema that classified the request
}

// Error returns the reason for the rejection, in the words of the metrics' label reason.
func (rej *Rejection) Error() string { return "rejected by flow control: " + rej.reason }

// An Estimate contains the expected cost of a request. A request needs InitialSeats while it is
// running and FinalSeats during its tail, in which watchers are notified after the response has
// been sent. It holds the larger number of seats until the end of the tail.
type Estimate struct {
	// the number of seats while the request is running and during its tail
	InitialSeats, FinalSeats int
	Tail                     time.Duration // how long FinalSeats are held
	Mutating                 bool          // value of the metrics' label request_kind
	Watchers                 int           // number of watchers that receive the change; -1 if unknown
	// the InitialSeats of a LIST before correction, or 0 if there was no correction
	plain            int
	ExpectedDuration time.Duration // expected running time; 0 if unknown
}

func (est Estimate) seats() int { return max(est.InitialSeats, est.FinalSeats) }

func (est Estimate) work() time.Duration {
	return time.Duration(est.InitialSeats)*cmp.Or(est.ExpectedDuration, defaultDuration) + time.Duration(est.FinalSeats)*est.Tail
}

// within limits the estimate to the given number of seats (0 means no limit). A narrower tail lasts
// longer.
func (est Estimate) within(seats int) Estimate {
	if seats <= 0 {
		return est
	}
	est.InitialSeats = min(est.InitialSeats, seats)
	return est.tailWithin(seats)
}

func (est Estimate) tailWithin(seats int) Estimate {
	if est.FinalSeats > seats {
		est.Tail = est.Tail * time.Duration(est.FinalSeats) / time.Duration(seats)
		est.FinalSeats = seats
	}
	return est
}

// A Dispatcher holds the configuration and the priority levels. Configure must be called before
// Dispatch, which panics otherwise.
type Dispatcher struct {
	timeout time.Duration // of requests whose context has no deadline
	schemas atomic.Pointer[[]*FlowSchema]
	// notifies Run when a removed level has become empty
	drained chan struct{}
	traffic traffic

	mu         sync.Mutex // guards the following fields; must be taken before a level's mu
	wanted     []*flowcontrolv1.FlowSchema
	shapes     []*flowcontrolv1.PriorityLevelConfiguration
	seats      int               // seats that are divided among the levels
	tunedSeats int               // number of seats set by a SeatTuner, or 0 without a SeatTuner
	period     time.Duration     // how often levels lend seats
	levels     map[string]*Level // by name
	fairFrac   float64
}

// NewDispatcher returns a dispatcher with the given number of seats. Configure sets its levels. The
// timeout limits the waiting time of requests whose context has no deadline.
func NewDispatcher(seats int, timeout time.Duration) *Dispatcher {
	d := &Dispatcher{seats: seats, period: adjustPeriod, timeout: timeout, levels: map[string]*Level{}, drained: make(chan struct{}, 1)}
	for phase := range d.traffic.lanes {
		for kind := range d.traffic.lanes[phase] {
			d.traffic.lanes[phase][kind] = trafficLane{since: time.Now(), scale: 1, use: newHistogram(trafficBounds)}
		}
	}
	return d
}

// Run periodically adjusts the number of seats of each level until ctx is done.
func (d *Dispatcher) Run(ctx context.Context) {
	tick := time.NewTicker(d.period)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			d.adjust()
		case <-d.drained:
			d.mu.Lock()
			d.rebuildLocked()
			d.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
}

// Dispatch waits until the request has its seats, and then calls run in the same goroutine. The
// seats are released when run returns or panics. If too many requests are waiting, or ctx ends
// before the request can start, Dispatch returns a *Rejection without calling run.
func (d *Dispatcher) Dispatch(ctx context.Context, dig *Digest, est Estimate, run func(*Ticket)) error {
	t, err := d.admit(ctx, dig, est)
	if err != nil {
		return err
	}
	defer t.Finish()
	run(t)
	return nil
}

func (d *Dispatcher) admit(ctx context.Context, dig *Digest, est Estimate) (*Ticket, error) {
	for {
		schema := classify(*d.schemas.Load(), dig)
		t, err := schema.Level.enter(schema, dig, est)
		if err == errRetired {
			// rebuildLocked holds mu from retiring the level until it stores the new schemas
			d.mu.Lock()
			d.mu.Unlock() //lint:ignore SA2001 there is nothing to do but to wait
			continue
		}
		if err != nil || t.ready == nil {
			return t, err
		}
		return t, t.wait(ctx, d.waitLimit(ctx, dig.Received))
	}
}

// waitLimit returns how much longer a request received at the given time may wait.
func (d *Dispatcher) waitLimit(ctx context.Context, received time.Time) time.Duration {
	limit := d.timeout / 4
	if deadline, ok := ctx.Deadline(); ok {
		limit = deadline.Sub(received) / 4
	}
	return min(limit, maxQueueWait) - time.Since(received)
}

// A FlowSchema is a schema whose priority level exists. It is immutable.
type FlowSchema struct {
	rules
	// header values containing the UID of the schema and of the priority level
	UIDHeader, LevelUIDHeader []string
	Level                     *Level // provides the seats for the schema's requests
	// reports whether the level has several queues; otherwise the schema is a single flow
	sharded bool
	stats   *schemaStats // guarded by Level.mu
}

// classify returns the first schema that matches the request, or the catch-all schema if there is
// no match.
func classify(schemas []*FlowSchema, dig *Digest) *FlowSchema {
	for _, s := range schemas {
		if s.matches(dig) {
			return s
		}
	}
	for _, s := range schemas {
		if s.Name == flowcontrolv1.FlowSchemaNameCatchAll {
			return s
		}
	}
	return schemas[len(schemas)-1]
}

// Levels, queues, flows

// errRetired sends a request back to classification, because its level has been removed in the
// meantime. It is not returned outside this file.
var errRetired = errors.New("priority level is gone")

// A Level represents a priority level with its seats, queues and traffic statistics.
type Level struct {
	Name       string // of its PriorityLevelConfiguration
	drained    chan<- struct{}
	traffic    *traffic
	allocation allocation // state of lending; guarded by the dispatcher's mu

	// guards the following fields, and the tickets, queues, flows and stats of this level
	mu        sync.Mutex
	exempt    bool // every request starts immediately
	quiescing bool // removed from the configuration, not yet empty
	retired   bool // removed from the configuration and empty; requests may no longer enter
	// configured number of queues (0 rejects requests if no seat is free), and the number of queues
	// that a flow may use
	deck, hand  int
	queueLength int
	maxSeats    int     // maximum number of seats per request, or 0 if there is no limit
	limit       int     // current number of seats
	denominator float64 // base of the seat utilization metrics: limit, unless that is 0
	nominal     float64

	inUse        int // seats in use, including tails
	executing    int // requests that hold seats and have not finished
	waiting      int // requests in queues
	waitingSeats int
	// in the order in which they were started, including requests that have yielded their seats
	running ticketList
	// allocated on first use, because there may be ten million; queues beyond deck are draining
	queues   []*queue
	flows    map[uint64]*flow
	turns    flowHeap // flows that have waiting requests
	spare    []*flow  // unused flows for reuse
	arrivals uint64   // rotates the hand, so equally short queues are filled in turn
	nextTurn uint64   // position in the ring of queues, which orders flows with equal keys

	last time.Time // time of the latest event
	// total time during which requests were waiting here; the clock of the accounts
	contended time.Duration
	vtime     time.Duration
	closedAt  time.Duration // values of contended and vtime when the books were last closed
	closedTag time.Duration
	usual     time.Duration // moving average of the requests' running times

	stats                map[string]*schemaStats // by the schema's name
	counts               levelCounts             // counters since the level was created
	retry                retryAfter
	demand               seatDemand
	seatUse, seatDemand  histogram
	waitingUse, startUse histogram
	use                  seatUse
}

// levelCounts contains the counters of a level. All but the last two only grow; those describe the
// most recent start.
type levelCounts struct {
	dispatched, rejected, timedOut, cancelled, rewinds uint64
	startVtime, startTag                               time.Duration
}

// A queue has a bounded number of places for waiting requests. Requests leave it in the order in
// which their flows get seats.
type queue struct {
	index     int
	waiting   int
	work      time.Duration // estimated, of the waiting requests
	seats     int           // of the waiting requests
	running   int           // requests from this queue that have not finished
	heldSeats int           // seats of requests from this queue, including tails
	tickets   int           // requests from this queue that are waiting, executing or lingering
}

// A flow represents a flow with requests at the level, including its account.
type flow struct {
	hash     uint64
	tickets  int           // waiting, executing or lingering
	waiting  ticketList    // in order of arrival, from all queues
	seats    int           // currently held
	served   time.Duration // seat-time received until at
	at       time.Duration
	promised time.Duration // sum of the promises for the seats currently held
	key      time.Duration // the key in the heap, which may be too low but never too high
	turn     uint64
	heapSlot int
}

type ticketState int8

const (
	isWaiting ticketState = iota
	isExecuting
	isLingering // finished, but the seats are held by the tail
	hasLeft
)

// A Ticket represents a request at a priority level. A running request uses it to yield, reclaim
// and release its seats.
type Ticket struct {
	level         *Level
	Schema        *FlowSchema // the schema that classified the request
	Digest        Digest      // describes the request
	distinguisher string
	hash          uint64
	number        uint64 // sequence number of its arrival
	mutating      bool   // copy of est.Mutating that is never changed
	est           Estimate
	width         int
	queue         *queue // nil if the level has no queues
	flow          *flow
	ready         chan struct{} // closed when the request starts; nil if it did not have to wait
	next, prev    *Ticket
	Arrived       time.Time // when the request reached the level
	Started       time.Time // the time when the request was started, or zero if it is waiting
	promise       time.Duration
	state         ticketState
	yielded       bool // executing, but its seats are yielded to other requests
}

type ticketList struct {
	first, last *Ticket
	n           int
}

func (list *ticketList) push(t *Ticket) {
	t.prev, t.next = list.last, nil
	if list.last == nil {
		list.first = t
	} else {
		list.last.next = t
	}
	list.last = t
	list.n++
}

func (list *ticketList) remove(t *Ticket) {
	if t.prev == nil {
		list.first = t.next
	} else {
		t.prev.next = t.next
	}
	if t.next == nil {
		list.last = t.prev
	} else {
		t.next.prev = t.prev
	}
	t.prev, t.next = nil, nil
	list.n--
}

// A flowHeap is a heap of waiting flows; index 0 is the next flow to get a seat. (container/heap
// would call each of these methods through an interface, which doubles the cost of a start.)
type flowHeap []*flow

func (f *flow) before(g *flow) bool { return f.key < g.key || f.key == g.key && f.turn < g.turn }

func (h flowHeap) put(f *flow, slot int) { h[slot], f.heapSlot = f, slot }

func (h *flowHeap) push(f *flow) {
	*h = append(*h, nil)
	h.rise(f, len(*h)-1)
}

func (h *flowHeap) remove(f *flow) {
	last := len(*h) - 1
	moved := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	if moved != f {
		h.put(moved, f.heapSlot)
		h.fix(moved)
	}
}

// fix restores the heap order after f's key has changed.
func (h flowHeap) fix(f *flow) {
	slot := f.heapSlot
	for {
		child := 2*slot + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1].before(h[child]) {
			child++
		}
		if !h[child].before(f) {
			break
		}
		h.put(h[child], slot)
		slot = child
	}
	h.rise(f, slot)
}

// rise moves f up from the given slot to its place.
func (h flowHeap) rise(f *flow, slot int) {
	for slot > 0 && f.before(h[(slot-1)/2]) {
		h.put(h[(slot-1)/2], slot)
		slot = (slot - 1) / 2
	}
	h.put(f, slot)
}

// newLevel returns a new level. Its seats and queues must be set by calling shape and setLimit. The
// drained channel is notified when the level is empty after its removal.
func newLevel(name string, drained chan<- struct{}, all *traffic) *Level {
	return &Level{Name: name, drained: drained, traffic: all, last: time.Now(), usual: defaultDuration, denominator: 1, nominal: 1,
		flows: map[uint64]*flow{}, stats: map[string]*schemaStats{}, retry: retryAfter{seconds: 1},
		seatUse: newHistogram(useBounds), seatDemand: newHistogram(demandBounds),
		waitingUse: newHistogram(requestBounds), startUse: newHistogram(requestBounds)}
}

// enter starts the request or enqueues it. The ticket of an enqueued request has a ready channel.
// If the request can do neither, enter returns the reason.
func (l *Level) enter(schema *FlowSchema, dig *Digest, est Estimate) (*Ticket, error) {
	t := &Ticket{level: l, Schema: schema, Digest: *dig, mutating: est.Mutating}
	if schema.sharded { // a level with a single queue serves requests in order of arrival
		t.distinguisher = schema.distinguisher(dig)
		t.hash = flowHash(schema.Name, t.distinguisher)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.retired {
		return nil, errRetired
	}
	t.Arrived = time.Now()
	l.tickLocked(t.Arrived)
	t.est = est.within(l.maxSeats)
	t.width = t.est.seats()
	schema.stats.estimated.add(float64(t.width), 1)
	if est.Watchers >= 0 && est.Mutating {
		schema.stats.watchers.add(float64(est.Watchers), 1)
	}
	switch {
	case l.exempt, l.deck == 0 && l.hasSeatsLocked(t.width):
		l.startLocked(t, t.Arrived)
	case l.deck == 0:
		return nil, l.rejectLocked(t, reasonConcurrencyLimit)
	case !l.enqueueLocked(t):
		return nil, l.rejectLocked(t, reasonQueueFull)
	default:
		l.fillLocked(t.Arrived)
	}
	if t.state == isWaiting {
		t.ready = make(chan struct{})
	}
	return t, nil
}

// wait blocks until the request has been started. Otherwise it returns the reason of the rejection.
func (t *Ticket) wait(ctx context.Context, patience time.Duration) error {
	l := t.level
	l.traffic.move(trafficWaiting, t.mutating, 1, time.Now())
	started, cancelled := t.await(ctx, patience)
	l.traffic.move(trafficWaiting, t.mutating, -1, time.Now())
	if started {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// The request was started in the meantime. The handler will check ctx.
	if t.state != isWaiting {
		return nil
	}
	now := time.Now()
	l.tickLocked(now)
	l.unqueueLocked(t)
	l.forgetLocked(t)
	l.fillLocked(now) // it may have been a wide request that was blocking the others
	rej := l.rejectLocked(t, reasonTimeout)
	if cancelled {
		l.counts.cancelled++
	} else {
		l.counts.timedOut++
	}
	return rej
}

// await waits for the first of three events: the start, the client's departure (cancelled), or the
// end of patience (neither result is true).
func (t *Ticket) await(ctx context.Context, patience time.Duration) (started, cancelled bool) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	var look <-chan time.Time
	if t.Digest.PeerClosed != nil {
		ticker := time.NewTicker(pollPeriod)
		defer ticker.Stop()
		look = ticker.C
	}
	for {
		select {
		case <-t.ready:
			return true, false
		case <-timer.C:
			return false, false
		case <-ctx.Done():
			return false, ctx.Err() == context.Canceled
		case <-look:
			if t.Digest.PeerClosed() {
				return false, true
			}
		}
	}
}

// tickLocked advances the level's time to now. Every change of the level must call it first.
func (l *Level) tickLocked(now time.Time) {
	l.verifyLocked()
	dt := now.Sub(l.last)
	if dt <= 0 {
		return
	}
	l.last = now
	l.observeLocked(dt)
	if l.waiting == 0 {
		return
	}
	l.contended += dt
	if n := len(l.flows); n > 0 {
		l.vtime += time.Duration(l.inUse) * dt / time.Duration(n)
	}
	if l.vtime > highVtime {
		l.rewindLocked()
	}
}

// rewindLocked resets virtual time to 0, and adjusts all values that are compared with it.
func (l *Level) rewindLocked() {
	back := l.vtime
	for _, f := range l.flows {
		l.updateAccountLocked(f)
		f.served -= back
	}
	for _, f := range l.turns {
		f.key -= back
	}
	l.vtime, l.closedTag = 0, 0
	l.counts.startVtime -= back
	l.counts.startTag -= back
	l.counts.rewinds++
}

// updateAccountLocked updates a flow's account to the current time. An account that is older than
// the last closing of the books starts at the values of the closing.
func (l *Level) updateAccountLocked(f *flow) {
	if f.at <= l.closedAt {
		f.at, f.served = l.closedAt, l.closedTag
	}
	f.served += time.Duration(f.seats) * (l.contended - f.at)
	f.at = l.contended
}

// enqueueLocked adds the request to the queue of its hand that has the least work. It returns false
// if that queue is full and no seat is free.
func (l *Level) enqueueLocked(t *Ticket) bool {
	q := l.chooseLocked(t.hash)
	if l.inUse >= l.limit && q.waiting >= l.queueLength {
		return false
	}
	q.tickets++
	q.waiting++
	q.work += t.est.work()
	q.seats += t.width
	l.waiting++
	l.waitingSeats += t.width
	l.demand.note(l.inUse + l.waitingSeats)
	stats := t.Schema.stats
	stats.waiting++
	stats.waitingSeats += t.width
	stats.queueLength.add(float64(q.waiting), 1)

	f := l.flowLocked(t.hash)
	t.queue, t.flow, t.number = q, f, l.arrivals
	f.tickets++
	f.waiting.push(t)
	if f.waiting.n == 1 {
		l.updateAccountLocked(f)
		// the flow was idle and is not owed anything
		f.served = max(f.served, l.vtime)
		l.rankLocked(f)
		l.turns.push(f)
	}
	return true
}

func (l *Level) chooseLocked(hash uint64) *queue {
	var room [maxHand]int
	cards := dealHand(hash, l.deck, l.hand, room[:0])
	l.arrivals++
	best, least := 0, time.Duration(math.MaxInt64)
	for i := range cards {
		card, work := cards[(l.arrivals+uint64(i))%uint64(len(cards))], time.Duration(0)
		if q := l.queues[card]; q != nil {
			work = q.work
		}
		if work < least {
			best, least = card, work
		}
	}
	if l.queues[best] == nil {
		l.queues[best] = &queue{index: best}
	}
	return l.queues[best]
}

func (l *Level) flowLocked(hash uint64) *flow {
	f := l.flows[hash]
	if f != nil {
		return f
	}
	if n := len(l.spare); n > 0 {
		f, l.spare = l.spare[n-1], l.spare[:n-1]
	} else {
		f = new(flow)
	}
	*f = flow{hash: hash, at: l.contended, served: l.vtime}
	l.flows[hash] = f
	return f
}

// keyLocked returns the account that the flow would have if its first request were started now.
func (l *Level) keyLocked(f *flow) time.Duration {
	l.updateAccountLocked(f)
	return f.served + f.promised + f.waiting.first.est.work()
}

// rankLocked computes the flow's position among the waiting flows. Flows with equal keys are served
// in the order of the ring of queues.
func (l *Level) rankLocked(f *flow) {
	f.key = l.keyLocked(f)
	n := uint64(len(l.queues))
	f.turn = l.nextTurn + (uint64(f.waiting.first.queue.index)+n-l.nextTurn%n)%n
}

// leastLocked returns the flow that gets the next seat.
func (l *Level) leastLocked() *flow {
	for {
		f := l.turns[0]
		key := l.keyLocked(f)
		if key == f.key {
			return f
		}
		f.key = key
		l.turns.fix(f)
	}
}

func (l *Level) hasSeatsLocked(width int) bool {
	// A request wider than the level must run eventually, so it runs alone.
	return l.inUse+width <= l.limit || width > l.limit && l.executing == 0
}

// fillLocked starts requests while seats are free. If the next request is wide and too few seats
// are free, no other request overtakes it. Otherwise a stream of narrow requests could delay it
// forever.
func (l *Level) fillLocked(now time.Time) {
	for len(l.turns) > 0 && l.inUse < l.limit {
		f := l.leastLocked()
		t := f.waiting.first
		if !l.hasSeatsLocked(t.width) {
			t.Schema.stats.noAccommodation++
			return
		}
		l.nextTurn = f.turn + 1
		l.vtime = max(l.vtime, f.served)
		l.counts.startVtime, l.counts.startTag = l.vtime, f.served
		l.unqueueLocked(t)
		l.startLocked(t, now)
	}
}

// unqueueLocked removes a request from its queue, because it starts or because it leaves.
func (l *Level) unqueueLocked(t *Ticket) {
	q, f, wasFirst := t.queue, t.flow, t.flow.waiting.first == t
	f.waiting.remove(t)
	q.waiting--
	q.work -= t.est.work()
	q.seats -= t.width
	l.waiting--
	l.waitingSeats -= t.width
	t.Schema.stats.waiting--
	t.Schema.stats.waitingSeats -= t.width
	switch {
	case f.waiting.n == 0:
		l.turns.remove(f)
	case wasFirst:
		l.rankLocked(f)
		l.turns.fix(f)
	}
	if l.waiting == 0 { // close the books
		l.closedAt, l.closedTag = l.contended, l.vtime
	}
}

// startLocked starts a request that is not in a queue.
func (l *Level) startLocked(t *Ticket, now time.Time) {
	if l.limit > 0 && !l.exempt {
		t.est = t.est.tailWithin(l.limit)
		t.width = t.est.seats()
	}
	t.state, t.Started = isExecuting, now
	l.running.push(t)
	l.traffic.move(trafficExecuting, t.mutating, 1, now)
	if t.queue != nil {
		t.queue.running++
	}
	l.seatLocked(t)
	l.counts.dispatched++
	stats := t.Schema.stats
	stats.dispatched++
	stats.executing++
	if !l.exempt {
		stats.waitedThenRan.add(now.Sub(t.Arrived).Seconds(), 1)
	}
	if t.ready != nil {
		close(t.ready)
	}
}

// seatLocked assigns seats to a request. The seats are released by unseatLocked.
func (l *Level) seatLocked(t *Ticket) {
	l.inUse += t.width
	l.executing++
	t.Schema.stats.executingSeats += t.width
	l.demand.note(l.inUse + l.waitingSeats)
	if t.flow == nil {
		return
	}
	l.updateAccountLocked(t.flow)
	t.promise = time.Duration(t.width) * cmp.Or(t.est.ExpectedDuration, l.usual)
	t.flow.promised += t.promise
	t.flow.seats += t.width
	t.queue.heldSeats += t.width
}

func (l *Level) unseatLocked(t *Ticket) {
	l.inUse -= t.width
	t.Schema.stats.executingSeats -= t.width
	if t.flow == nil {
		return
	}
	l.updateAccountLocked(t.flow)
	t.flow.promised -= t.promise
	t.flow.seats -= t.width
	t.queue.heldSeats -= t.width
	if t.flow.waiting.n > 0 { // its key is too high now
		l.rankLocked(t.flow)
		l.turns.fix(t.flow)
	}
}

// Finish releases the request's seats. It can be called before the request has ended. For example,
// a watch does not need its seats after the initial objects have been sent. Calls after the first
// have no effect.
func (t *Ticket) Finish() {
	l := t.level
	l.mu.Lock()
	if t.state != isExecuting {
		l.mu.Unlock()
		return
	}
	now := time.Now()
	l.tickLocked(now)
	ran := now.Sub(t.Started)
	l.usual = max(defaultDuration, l.usual+(ran+t.est.Tail-l.usual)/16)
	t.Schema.stats.ended(t.Digest.Verb == "watch", ran)
	l.running.remove(t)
	l.traffic.move(trafficExecuting, t.mutating, -1, now)
	if t.queue != nil {
		t.queue.running--
	}
	if !t.yielded {
		l.executing--
	}
	if !t.yielded && t.est.FinalSeats > 0 && t.est.Tail > 0 {
		t.state = isLingering
		time.AfterFunc(t.est.Tail, func() {
			l.mu.Lock()
			now := time.Now()
			l.tickLocked(now)
			l.unlockAfter(t, now)
		})
		l.mu.Unlock()
		return
	}
	l.unlockAfter(t, now)
}

// unlockAfter releases the seats of a finished request, starts other requests if possible, and
// unlocks the mutex of the level.
func (l *Level) unlockAfter(t *Ticket, now time.Time) {
	if !t.yielded {
		l.unseatLocked(t)
	}
	l.forgetLocked(t)
	l.fillLocked(now)
	empty := l.quiescing && l.emptyLocked()
	l.mu.Unlock()
	if empty {
		select {
		case l.drained <- struct{}{}:
		default: // a notification is already pending
		}
	}
}

// Yield releases the seats while the request is waiting for the client, for example if the client
// is reading the response slowly.
func (t *Ticket) Yield() {
	l := t.level
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.state != isExecuting || t.yielded {
		return
	}
	now := time.Now()
	l.tickLocked(now)
	t.yielded = true
	l.executing--
	l.unseatLocked(t)
	l.fillLocked(now)
}

// Reclaim takes yielded seats back immediately, even if the level then exceeds its limit for a
// moment. Waiting for seats in the middle of a response would punish a client for one slow packet.
func (t *Ticket) Reclaim() {
	l := t.level
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.state != isExecuting || !t.yielded {
		return
	}
	l.tickLocked(time.Now())
	t.yielded = false
	l.seatLocked(t)
}

// forgetLocked removes the remaining references to a request and removes empty queues beyond the
// deck. Queues are removed only from the end, because their indexes must not change.
func (l *Level) forgetLocked(t *Ticket) {
	t.state = hasLeft
	f, q := t.flow, t.queue
	if f == nil {
		return
	}
	if f.tickets--; f.tickets == 0 {
		delete(l.flows, f.hash)
		l.spare = append(l.spare, f)
	}
	q.tickets--
	l.trimLocked()
}

func (l *Level) trimLocked() {
	for n := len(l.queues); n > l.deck && (l.queues[n-1] == nil || l.queues[n-1].tickets == 0); n-- {
		l.queues = l.queues[:n-1]
	}
}

func (l *Level) emptyLocked() bool { return l.waiting == 0 && l.running.n == 0 && l.inUse == 0 }

func (l *Level) rejectLocked(t *Ticket, reason string) *Rejection {
	l.counts.rejected++
	stats := t.Schema.stats
	stats.rejected[reason]++
	stats.waitedInVain.add(l.last.Sub(t.Arrived).Seconds(), 1)
	return &Rejection{reason: reason, RetryAfter: l.retry.drop(l.last.Unix()), Schema: t.Schema}
}

// setLimit sets the level's number of seats. Running requests keep their seats.
func (l *Level) setLimit(limit, serverSeats int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.tickLocked(now)
	l.limit, l.denominator = limit, float64(limit)
	if limit <= 0 {
		l.denominator = max(1, math.Round(float64(serverSeats)/10))
	}
	l.fillLocked(now)
}

// shape applies a configuration object to the level. Waiting requests keep their places.
func (l *Level) shape(spec *flowcontrolv1.PriorityLevelConfigurationSpec, nominal int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tickLocked(time.Now())
	l.quiescing = false
	l.exempt = spec.Type == flowcontrolv1.PriorityLevelEnablementExempt
	l.deck, l.maxSeats, l.nominal = 0, 0, max(1, float64(nominal))
	if spec.Limited != nil && spec.Limited.LimitResponse.Queuing != nil {
		queuing := spec.Limited.LimitResponse.Queuing
		l.deck, l.hand, l.queueLength = int(queuing.Queues), int(queuing.HandSize), int(queuing.QueueLengthLimit)
		l.maxSeats = max(1, min(int(math.Ceil(maxLevelPart*float64(nominal))), nominal/max(1, l.hand)))
	}
	if more := l.deck - len(l.queues); more > 0 {
		l.queues = append(l.queues, make([]*queue, more)...)
	}
	l.trimLocked()
}

// retire marks the level as quiescing, and as retired if it is empty. It reports whether the level
// was empty.
func (l *Level) retire() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.quiescing = true
	l.retired = l.emptyLocked()
	return l.retired
}

// A retryAfter computes the Retry-After seconds of a level's rejections. The value is doubled if
// there are many rejections, and is decreased by one if there are few. It is updated at most once
// per second. The update depends on the number of rejections in the last n seconds, where n is the
// current value.
type retryAfter struct {
	seconds int64
	raised  int64 // when, in Unix time
	history [64]struct{ second, drops int64 }
}

const maxRetryAfter = 32

func (ra *retryAfter) drop(now int64) int {
	slot := &ra.history[now%int64(len(ra.history))]
	if slot.second == now {
		slot.drops++
		return int(ra.seconds)
	}
	slot.second, slot.drops = now, 1
	var recent int64
	for _, past := range ra.history {
		if past.second < now && now-past.second <= ra.seconds {
			recent += past.drops
		}
	}
	switch {
	case now-ra.raised >= ra.seconds && recent >= 3*ra.seconds:
		ra.seconds = min(2*ra.seconds, maxRetryAfter)
		ra.raised = now
	case recent < ra.seconds && ra.seconds > 1:
		ra.seconds--
	}
	return int(ra.seconds)
}

// Configuration

// Configure replaces the configuration. It can be called while requests are in progress. Removed
// levels continue to serve the requests that have already been accepted. The schemas must include a
// schema that matches every request.
func (d *Dispatcher) Configure(schemas []*flowcontrolv1.FlowSchema, levels []*flowcontrolv1.PriorityLevelConfiguration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wanted, d.shapes = schemas, levels
	d.rebuildLocked()
}

func (d *Dispatcher) specsLocked() map[string]*flowcontrolv1.PriorityLevelConfiguration {
	specs := map[string]*flowcontrolv1.PriorityLevelConfiguration{}
	for _, obj := range d.shapes {
		if usableLevel(&obj.Spec) {
			specs[obj.Name] = obj
		}
	}
	return specs
}

func (d *Dispatcher) rebuildLocked() {
	specs := d.specsLocked()
	for name, l := range d.levels {
		if specs[name] == nil && l.retire() {
			delete(d.levels, name)
		}
	}
	for name, obj := range specs {
		l := d.levels[name]
		if l == nil {
			l = newLevel(name, d.drained, &d.traffic)
			d.levels[name] = l
		}
		l.allocation.read(&obj.Spec)
	}
	d.divideLocked(specs)
	compiled := d.compileLocked(specs)
	d.schemas.Store(&compiled)
	d.adjustLocked()
}

// scaleTrafficLocked sets the total number of places and seats, which are used to compute the
// utilization of the server.
func (d *Dispatcher) scaleTrafficLocked(specs map[string]*flowcontrolv1.PriorityLevelConfiguration) {
	places, seats := 0., 0.
	for _, obj := range specs {
		if deck := queuesOf(&obj.Spec); deck > 0 {
			places += float64(deck) * float64(obj.Spec.Limited.LimitResponse.Queuing.QueueLengthLimit)
		}
	}
	for _, l := range d.levels {
		seats += float64(l.allocation.nominal)
	}
	d.traffic.scale(places, seats)
}

// compileLocked returns the schemas in the order in which they are matched. Schemas are omitted if
// the level does not exist.
func (d *Dispatcher) compileLocked(specs map[string]*flowcontrolv1.PriorityLevelConfiguration) []*FlowSchema {
	var schemas []*FlowSchema
	for _, obj := range d.wanted {
		if spec := specs[obj.Spec.PriorityLevelConfiguration.Name]; spec != nil {
			l := d.levels[spec.Name]
			schemas = append(schemas, &FlowSchema{rules: newFlowRules(obj), Level: l, stats: l.statsOf(obj.Name),
				sharded: queuesOf(&spec.Spec) > 1, UIDHeader: []string{string(obj.UID)}, LevelUIDHeader: []string{string(spec.UID)}})
		}
	}
	slices.SortFunc(schemas, func(a, b *FlowSchema) int {
		return cmp.Or(cmp.Compare(a.precedence, b.precedence), strings.Compare(a.Name, b.Name))
	})
	return schemas
}

// Lending seats

// adjust is called at the end of each period.
func (d *Dispatcher) adjust() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.adjustLocked()
}

func (d *Dispatcher) adjustLocked() {
	for _, l := range d.levels {
		l.allocation.keep = d.keepLocked()
		l.allocation.observe(l.takeDemand())
	}
	d.lendLocked()
}

// lendLocked applies the limits that follow from the most recently observed demand.
func (d *Dispatcher) lendLocked() {
	var claims []*allocation
	for _, l := range d.levels {
		claims = append(claims, &l.allocation)
	}
	d.fairFrac = lendSeats(claims)
	for _, l := range d.levels {
		// at least one request can be served at a time
		l.setLimit(max(l.allocation.limit, min(1, l.allocation.nominal)), d.seats)
	}
}

func (l *Level) takeDemand() (high int, mean, sd float64, long bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tickLocked(time.Now())
	return l.demand.take(l.inUse + l.waitingSeats)
}

// A seatDemand contains statistics about the number of seats that were in use or requested.
type seatDemand struct {
	high                  int
	elapsed, sum, squares float64 // seconds, seats·s, seats²·s
}

func (m *seatDemand) note(seats int) { m.high = max(m.high, seats) }

// pass adds a number of seats that were in use or requested for the given time.
func (m *seatDemand) pass(seats int, seconds float64) {
	x := float64(seats)
	m.elapsed += seconds
	m.sum += x * seconds
	m.squares += x * x * seconds
}

// take returns the highest demand, the mean and the standard deviation since the previous call.
// long reports whether any time has passed since. The next period starts with a demand of seats.
func (m *seatDemand) take(seats int) (high int, mean, sd float64, long bool) {
	high = m.high
	if m.elapsed > 0 {
		mean = m.sum / m.elapsed
		sd = math.Sqrt(max(0, m.squares/m.elapsed-mean*mean))
	}
	long = m.elapsed > 0
	*m = seatDemand{high: seats}
	return high, mean, sd, long
}

// each calls f for all levels, sorted by name. The locks of the dispatcher and the level are held
// during the call, so f must not block.
func (d *Dispatcher) each(f func(l *Level)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(d.levels)) {
		l := d.levels[name]
		l.mu.Lock()
		l.tickLocked(time.Now())
		f(l)
		l.mu.Unlock()
	}
}

func (d *Dispatcher) fairFraction() float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.fairFrac
}

// Statistics

// The bounds of the histograms are Kubernetes'.
var (
	durationBounds = []float64{0, .005, .02, .05, .1, .2, .5, 1, 2, 5, 10, 15, 30}
	lengthBounds   = []float64{0, 10, 25, 50, 100, 250, 500, 1000}
	seatBounds     = []float64{1, 2, 4, 8, 16, 32, 64, 100}
	watcherBounds  = []float64{0, 1, 10, 100, 1000, 10000}
	useBounds      = []float64{0, .1, .2, .3, .4, .5, .6, .7, .8, .9, .95, .99, 1}
	demandBounds   = []float64{.2, .4, .6, .8, 1, 1.2, 1.4, 1.7, 2, 2.8, 4, 6}
	trafficBounds  = []float64{0, .001, .01, .1, .2, .3, .4, .5, .6, .7, .8, .9, .95, .99, 1}
	requestBounds  = []float64{0, .001, .003, .01, .03, .1, .25, .5, .75, 1}
)

// A histogram counts values, or weights each value by the nanoseconds during which it held.
type histogram struct {
	bounds []float64
	counts []uint64 // one per bound (not cumulative) and one for larger values
	sum    float64
}

func newHistogram(bounds []float64) histogram {
	return histogram{bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

func (h *histogram) add(value float64, weight uint64) {
	i := 0
	for i < len(h.bounds) && value > h.bounds[i] {
		i++
	}
	h.counts[i] += weight
	h.sum += value * float64(weight)
}

func (h *histogram) total() (n uint64) {
	for _, count := range h.counts {
		n += count
	}
	return n
}

// A traffic records the number of requests of the whole server over time, separately for waiting
// and executing requests, and for reads and writes.
type traffic struct {
	mu    sync.Mutex // guards lanes; may be acquired while holding the mu of a level
	lanes [2][2]trafficLane
}

type trafficLane struct {
	now   int
	since time.Time
	scale float64
	use   histogram
}

type trafficPhase int

const (
	trafficWaiting trafficPhase = iota
	trafficExecuting
)

func (tr *traffic) move(phase trafficPhase, mutating bool, by int, now time.Time) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.moveLocked(phase, mutating, by, now)
}

func (tr *traffic) moveLocked(phase trafficPhase, mutating bool, by int, now time.Time) {
	ln := &tr.lanes[phase][0]
	if mutating {
		ln = &tr.lanes[phase][1]
	}
	if dt := now.Sub(ln.since); dt > 0 {
		ln.use.add(float64(ln.now)/ln.scale, uint64(dt))
		ln.since = now
	}
	ln.now += by
}

func (tr *traffic) scale(places, seats float64) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for kind := range tr.lanes[0] {
		tr.moveLocked(trafficWaiting, kind == 1, 0, time.Now())
		tr.moveLocked(trafficExecuting, kind == 1, 0, time.Now())
		tr.lanes[trafficWaiting][kind].scale = max(1, places)
		tr.lanes[trafficExecuting][kind].scale = max(1, seats)
	}
}

// A schemaStats contains statistics about the requests of a flow schema.
type schemaStats struct {
	waiting, waitingSeats, executing, executingSeats int
	dispatched, noAccommodation                      uint64
	rejected                                         map[string]uint64 // by reason
	waitedThenRan, waitedInVain                      histogram         // seconds
	ranRegular, ranWatch                             histogram         // seconds
	queueLength, estimated, watchers                 histogram
}

// maxSchemaStats is the maximum number of schemas with statistics at a level. There must be a limit
// because the counters are kept when a schema is deleted.
const (
	maxSchemaStats = 512
	otherSchemas   = "other" // shared by all schemas beyond the limit
)

// statsOf returns the statistics for a schema's name. They outlive the schema, so counters do not
// restart when a schema is changed. Schemas beyond the limit share one schemaStats.
func (l *Level) statsOf(schema string) *schemaStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	stats := l.stats[schema]
	if stats == nil && len(l.stats) >= maxSchemaStats {
		schema = otherSchemas
		stats = l.stats[schema]
	}
	if stats == nil {
		stats = &schemaStats{rejected: map[string]uint64{}, waitedThenRan: newHistogram(durationBounds),
			waitedInVain: newHistogram(durationBounds), ranRegular: newHistogram(durationBounds),
			ranWatch: newHistogram(durationBounds), queueLength: newHistogram(lengthBounds),
			estimated: newHistogram(seatBounds), watchers: newHistogram(watcherBounds)}
		l.stats[schema] = stats
	}
	return stats
}

func (stats *schemaStats) ended(watch bool, ran time.Duration) {
	stats.executing--
	if watch {
		stats.ranWatch.add(ran.Seconds(), 1)
	} else {
		stats.ranRegular.add(ran.Seconds(), 1)
	}
}

// observeLocked adds the current state to the statistics, weighted by dt.
func (l *Level) observeLocked(dt time.Duration) {
	l.demand.pass(l.inUse+l.waitingSeats, dt.Seconds())
	l.use.pass(l.inUse, l.waiting > 0, dt)
	weight := uint64(dt)
	l.seatUse.add(float64(l.inUse)/l.denominator, weight)
	l.seatDemand.add(float64(l.inUse+l.waitingSeats)/l.nominal, weight)
	l.startUse.add(float64(l.running.n)/l.denominator, weight)
	if !l.exempt {
		l.waitingUse.add(float64(l.waiting)/max(1, float64(l.deck)*float64(l.queueLength)), weight)
	}
}
