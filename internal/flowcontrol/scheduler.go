package flowcontrol

// This file is what moves: levels, queues, flows and the tickets of requests, and the rule by which a seat that is free finds the next of
// them. The picture of a request's way is in doc.go.
//
// A server can run only so many requests at a time: it has that many seats. A request that lists thousands of objects takes
// several seats (its width). The seats are divided among priority levels, so that garbage collection cannot starve leader
// election; a level that does not need its seats lends some of them. Within a level the seats are divided among flows, so
// that one runaway client cannot starve its neighbours.
//
// Why a hand and queues? A level of 128 queues of 50 places bounds what waiting costs, whatever names clients invent. Why not one
// queue of 6400 then? An elephant (a flow with a thousand requests) fills the six queues of its hand; a mouse's hand almost surely
// has a card that the elephant's lacks, and there is room for the mouse.
//
// Whose turn is it? Every flow with business here has an account: the seat-time that it was served (two seats for three seconds
// are six seconds). A free seat goes to the flow that was served least. The difficulty is the account that a newcomer starts
// with. With zero it would own the level until it had caught up with years of others' service; so there is virtual time, the
// account of a flow that always gets exactly an even share, and newcomers start there:
//
//	vtime' = seats in use / active flows, and vtime is never less than the account of a flow whose request is being started.
//
// An example with two seats and requests of 1 s. Flow A alone keeps both seats busy; requests of A wait, and its account grows
// by 2 a second, and with it vtime, which at t=10 is 20. Now flow B comes with many requests and starts at 20. The next free
// seat is B's (20 is less than what A has by then), the one after is A's, and so on: each gets a seat, from B's first second.
// Had B used a seat now and then since t=0, it would start at 20 all the same, because a flow with nothing waiting is lifted to
// vtime by its next request: it saves nothing up, and A, which only took what nobody else wanted, owes nothing. (Kubernetes lets
// virtual time go at the even share alone; there A would be starved for as long as it had taken more.)
//
// And when nobody waits there is no one to be unfair to: the books are closed, and the next contention begins with everyone equal.
//
// How long a request will run is unknown at its start, so an account grows while the request runs, not when it ends. To this
// the order adds a promise, the usual running time at this level for each seat that the flow holds: without it, every seat that
// frees up within a second would go to the one flow that was a little behind, and the seats would swing to and fro.
//
// The bound: while two flows both have requests waiting, their accounts, promises included, differ by no more than one request's
// promise and what running requests have taken beyond theirs. The latter cannot be helped; nobody is interrupted.
//
// Between two events an account can only grow. So the flows that wait stand in a heap whose keys may be too low, never too high,
// and a few corrections at its top find the least: starting a request costs the logarithm of the flows that wait, where Kubernetes
// visits all queues. (A queue for each flow's turn, as there, would also make an elephant as many flows as its hand has cards.)

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
	guessedTime  = 3 * time.Millisecond // what a request is taken to run of which nobody knows better
	maxQueueWait = time.Minute          // nobody waits longer; and no longer than a quarter of the request's time
	lookPeriod   = time.Second / 4      // how often one who waits is asked whether it is still there, if there is no other way
	adjustPeriod = 10 * time.Second     // how often seats are lent anew
	maxLevelPart = 0.15                 // of a level's nominal seats that one request may take
	highVtime    = 1 << 62              // virtual time is set back here, at half of what its type holds
)

// Why a request was turned away, as the metrics' label reason has it.
const (
	reasonQueueFull        = "queue-full"        // the shortest queue of its hand is full, and so are the seats
	reasonConcurrencyLimit = "concurrency-limit" // the seats are taken, and the level has no queues
	reasonTimeout          = "time-out"          // it waited as long as it may, or its client left
)

// A Rejection is the error of a request that never ran.
type Rejection struct {
	reason     string
	RetryAfter int         // seconds
	Schema     *FlowSchema // the one that classified it
}

// Error is why: a reason as the metrics call it.
func (rej *Rejection) Error() string { return "rejected by flow control: " + rej.reason }

// An Estimate is what a request will take: seats while it runs, and seats for the tail that its watchers need after it has been
// answered. It holds the greater of the two from its start to the end of its tail.
type Estimate struct {
	InitialSeats, FinalSeats int           // held while it runs, and during its tail
	Tail                     time.Duration // how long FinalSeats are held
	Mutating                 bool          // for the metrics' label request_kind
	Watchers                 int           // who will be told of the change; -1 where nobody counted
	plain                    int           // of a LIST whose seats were corrected by experience, what they were; else 0
	Likely                   time.Duration // how long such requests run, where that is known; 0: nobody knows
}

func (est Estimate) seats() int { return max(est.InitialSeats, est.FinalSeats) }

func (est Estimate) work() time.Duration {
	return time.Duration(est.InitialSeats)*cmp.Or(est.Likely, guessedTime) + time.Duration(est.FinalSeats)*est.Tail
}

// within narrows the estimate to a number of seats (0: no bound). A tail becomes longer as it becomes narrower.
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

// A Dispatcher holds the configuration and the priority levels. It panics when asked to Dispatch before Configure.
type Dispatcher struct {
	timeout time.Duration // of requests whose context has no deadline
	schemas atomic.Pointer[[]*FlowSchema]
	drained chan struct{} // capacity 1: a level that is no longer wanted has become empty; run takes it
	traffic traffic

	mu       sync.Mutex // guards what follows; taken before a level's
	wanted   []*flowcontrolv1.FlowSchema
	shapes   []*flowcontrolv1.PriorityLevelConfiguration
	seats    int               // the server's
	carried  int               // with an Auto, what seats follows; else 0
	period   time.Duration     // after which seats are lent anew
	levels   map[string]*Level // by name
	fairFrac float64
}

// NewDispatcher divides seats among levels, once Configure has named them. timeout bounds the wait of requests whose context has no
// deadline.
func NewDispatcher(seats int, timeout time.Duration) *Dispatcher {
	d := &Dispatcher{seats: seats, period: adjustPeriod, timeout: timeout, levels: map[string]*Level{}, drained: make(chan struct{}, 1)}
	for phase := range d.traffic.lanes {
		for kind := range d.traffic.lanes[phase] {
			d.traffic.lanes[phase][kind] = trafficLane{since: time.Now(), scale: 1, use: newHistogram(trafficBounds)}
		}
	}
	return d
}

// Run lends seats among the levels until ctx ends.
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

// Dispatch runs a request in the caller's goroutine as soon as it has its seats, and takes them back when run returns or panics.
// It returns a *Rejection, and run was not called, if there are too many requests or ctx ended first.
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
			d.mu.Lock()   // whoever retired the level holds this until the schemas lead elsewhere
			d.mu.Unlock() //lint:ignore SA2001 there is nothing to do but to wait
			continue
		}
		if err != nil || t.ready == nil {
			return t, err
		}
		return t, t.wait(ctx, d.patience(ctx, dig.Received))
	}
}

// patience is how long a request received then may still wait.
func (d *Dispatcher) patience(ctx context.Context, received time.Time) time.Duration {
	limit := d.timeout / 4
	if deadline, ok := ctx.Deadline(); ok {
		limit = deadline.Sub(received) / 4
	}
	return min(limit, maxQueueWait) - time.Since(received)
}

// A FlowSchema is a schema whose level is there. Immutable.
type FlowSchema struct {
	rules
	UIDHeader, LevelUIDHeader []string     // of its object and of its level's
	Level                     *Level       // whose seats its requests take
	sharded                   bool         // the level has queues to choose from; otherwise the schema is one flow
	stats                     *schemaStats // guarded by Level.mu
}

// classify returns the first schema that matches, or the catch-all if none does.
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

// errRetired sends a request back to classification: its level was dropped meanwhile. Nobody outside this file sees it.
var errRetired = errors.New("priority level is gone")

// A Level is one priority level: its seats, its queues and what is known of its traffic.
type Level struct {
	Name       string // of its PriorityLevelConfiguration
	drained    chan<- struct{}
	traffic    *traffic
	allocation allocation // what lending knows of it, guarded by the dispatcher's mu

	mu          sync.Mutex // guards what follows, and the tickets, queues, flows and stats of this level
	exempt      bool       // every request starts at once
	quiescing   bool       // no longer wanted, not yet empty
	retired     bool       // no longer wanted and empty: nobody may enter
	deck, hand  int        // how many queues there shall be (0: who finds no seat is rejected), how many of them a flow may use
	queueLength int
	maxSeats    int     // of one request; 0: no bound
	limit       int     // how many seats there are now
	denominator float64 // what the use of seats is measured by: limit, unless that is 0
	nominal     float64

	inUse        int // seats, those of lingering tails included
	executing    int // requests that hold seats and are not yet answered
	waiting      int // requests in queues
	waitingSeats int
	running      ticketList // in order of start, those that lent their seats included, without tails
	queues       []*queue   // nil until used, for there may be ten million; those beyond deck drain
	flows        map[uint64]*flow
	turns        flowHeap // the flows that have somebody waiting
	spare        []*flow  // to be used again
	arrivals     uint64   // turns the hand, so that equally short queues are filled in turn
	nextTurn     uint64   // in the ring of queues, for equal keys

	last      time.Time     // of the newest event
	contended time.Duration // how long anybody has waited here, all in all: the time that accounts know
	vtime     time.Duration
	closedAt  time.Duration // contended and vtime when the books were closed
	closedTag time.Duration
	usual     time.Duration // how long requests run

	stats                map[string]*schemaStats // by the schema's name
	counts               levelCounts             // what has happened here so far
	retry                retryAfter
	demand               seatDemand
	seatUse, seatDemand  histogram
	waitingUse, startUse histogram
	use                  seatUse
}

// levelCounts only grow, but for the last two, which are those of the last start.
type levelCounts struct {
	dispatched, rejected, timedOut, cancelled, rewinds uint64
	startVtime, startTag                               time.Duration
}

// A queue is a waiting room with a bounded number of places. Its requests leave it when it is their flow's turn.
type queue struct {
	index   int
	waiting int
	work    time.Duration // estimated, of those who wait
	seats   int           // of those who wait
	running int           // requests from here that are not yet answered
	held    int           // seats of requests from here, tails included
	tickets int           // from here: waiting, executing or lingering
}

// A flow is the account of one flow while it has requests here.
type flow struct {
	hash     uint64
	tickets  int           // waiting, executing or lingering
	waiting  ticketList    // in order of arrival, whatever queues they are in
	seats    int           // held now
	served   time.Duration // seat-time, up to when contended was at
	at       time.Duration
	promised time.Duration // for the seats held now
	key      time.Duration // too low perhaps, never too high
	turn     uint64
	heapSlot int
}

type ticketState int8

const (
	isWaiting ticketState = iota
	isExecuting
	isLingering // answered, but its tail holds the seats
	hasLeft
)

// A Ticket is one request at a level. Its methods are what may be asked of flow control while it runs.
type Ticket struct {
	level         *Level
	Schema        *FlowSchema // that classified the request
	Digest        Digest      // of the request
	distinguisher string
	hash          uint64
	number        uint64 // of its arrival
	mutating      bool   // as est says, but never changed
	est           Estimate
	width         int
	queue         *queue // nil where there are none
	flow          *flow
	ready         chan struct{} // closed at its start; nil if it never had to wait
	next, prev    *Ticket
	Arrived       time.Time // when it came to the level
	Started       time.Time // when it got its seats; zero while it waits
	promise       time.Duration
	state         ticketState
	lent          bool // executing, but its seats are with others
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

// A flowHeap has the flow whose turn it is at 0. (container/heap would call each of these through an interface, which doubles the
// price of a turn.)
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

// fix finds the place of a flow whose key has changed.
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

// rise puts a flow into a slot or above it.
func (h flowHeap) rise(f *flow, slot int) {
	for slot > 0 && f.before(h[(slot-1)/2]) {
		h.put(h[(slot-1)/2], slot)
		slot = (slot - 1) / 2
	}
	h.put(f, slot)
}

// newLevel is a level without seats or queues, which its configuration gives it. It tells drained when it has become empty.
func newLevel(name string, drained chan<- struct{}, all *traffic) *Level {
	return &Level{Name: name, drained: drained, traffic: all, last: time.Now(), usual: guessedTime, denominator: 1, nominal: 1,
		flows: map[uint64]*flow{}, stats: map[string]*schemaStats{}, retry: retryAfter{seconds: 1},
		seatUse: newHistogram(useBounds), seatDemand: newHistogram(demandBounds),
		waitingUse: newHistogram(requestBounds), startUse: newHistogram(requestBounds)}
}

// enter starts a request, lets it wait (its ticket then has a ready channel), or returns why neither may be.
func (l *Level) enter(schema *FlowSchema, dig *Digest, est Estimate) (*Ticket, error) {
	t := &Ticket{level: l, Schema: schema, Digest: *dig, mutating: est.Mutating}
	if schema.sharded { // with a single queue first come is first served
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
	case l.exempt, l.deck == 0 && l.fitsLocked(t.width):
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

// wait returns when the request may run, or why it will not.
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
	if t.state != isWaiting { // started in between: then it runs, and its handler sees what became of ctx
		return nil
	}
	now := time.Now()
	l.tickLocked(now)
	l.unqueueLocked(t)
	l.forgetLocked(t)
	l.fillLocked(now) // it may have been a wide one that all others stood behind
	rej := l.rejectLocked(t, reasonTimeout)
	if cancelled {
		l.counts.cancelled++
	} else {
		l.counts.timedOut++
	}
	return rej
}

// await returns what came first: the start, the client's leaving, or (neither) the end of patience.
func (t *Ticket) await(ctx context.Context, patience time.Duration) (started, cancelled bool) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	var look <-chan time.Time
	if t.Digest.PeerClosed != nil {
		ticker := time.NewTicker(lookPeriod)
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

// tickLocked lets time pass at the level. Everything that changes it calls this first.
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

// rewindLocked sets virtual time back to 0, and with it everything that is compared with it.
func (l *Level) rewindLocked() {
	back := l.vtime
	for _, f := range l.flows {
		l.settleLocked(f)
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

// settleLocked brings a flow's account up to now. An account from before the books were last closed starts at that point.
func (l *Level) settleLocked(f *flow) {
	if f.at <= l.closedAt {
		f.at, f.served = l.closedAt, l.closedTag
	}
	f.served += time.Duration(f.seats) * (l.contended - f.at)
	f.at = l.contended
}

// enqueueLocked puts a request into the queue of its hand with the least work, unless that queue and the seats are full.
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
		l.settleLocked(f)
		f.served = max(f.served, l.vtime) // it was content until now, so nothing is due to it
		l.rankLocked(f)
		l.turns.push(f)
	}
	return true
}

func (l *Level) chooseLocked(hash uint64) *queue {
	var room [maxHand]int
	cards := deal(hash, l.deck, l.hand, room[:0])
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

// keyLocked is the account that a flow would show if its first request were started now.
func (l *Level) keyLocked(f *flow) time.Duration {
	l.settleLocked(f)
	return f.served + f.promised + f.waiting.first.est.work()
}

// rankLocked gives a flow its place among those that wait. Equal keys go around the ring of queues.
func (l *Level) rankLocked(f *flow) {
	f.key = l.keyLocked(f)
	n := uint64(len(l.queues))
	f.turn = l.nextTurn + (uint64(f.waiting.first.queue.index)+n-l.nextTurn%n)%n
}

// leastLocked returns the flow whose turn it is.
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

func (l *Level) fitsLocked(width int) bool {
	// A request wider than the level must run some time: alone.
	return l.inUse+width <= l.limit || width > l.limit && l.executing == 0
}

// fillLocked starts requests while there are seats. Nothing overtakes a wide request whose turn it is and that must wait until
// enough seats are free; else a stream of narrow ones would keep it waiting for ever.
func (l *Level) fillLocked(now time.Time) {
	for len(l.turns) > 0 && l.inUse < l.limit {
		f := l.leastLocked()
		t := f.waiting.first
		if !l.fitsLocked(t.width) {
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

// unqueueLocked takes a request out of its queue: to start it, or because it leaves.
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
	if l.waiting == 0 { // the books are closed
		l.closedAt, l.closedTag = l.contended, l.vtime
	}
}

// startLocked seats a request that waits in no queue (any more).
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

// seatLocked gives an executing request its seats, unseatLocked takes them back.
func (l *Level) seatLocked(t *Ticket) {
	l.inUse += t.width
	l.executing++
	t.Schema.stats.executingSeats += t.width
	l.demand.note(l.inUse + l.waitingSeats)
	if t.flow == nil {
		return
	}
	l.settleLocked(t.flow)
	t.promise = time.Duration(t.width) * cmp.Or(t.est.Likely, l.usual)
	t.flow.promised += t.promise
	t.flow.seats += t.width
	t.queue.held += t.width
}

func (l *Level) unseatLocked(t *Ticket) {
	l.inUse -= t.width
	t.Schema.stats.executingSeats -= t.width
	if t.flow == nil {
		return
	}
	l.settleLocked(t.flow)
	t.flow.promised -= t.promise
	t.flow.seats -= t.width
	t.queue.held -= t.width
	if t.flow.waiting.n > 0 { // its key is too high now
		l.rankLocked(t.flow)
		l.turns.fix(t.flow)
	}
}

// Finish is to be called when the request is done, or earlier: a watch needs its seats only until it has sent what was there at
// its start. Calls after the first do nothing.
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
	l.usual = max(guessedTime, l.usual+(ran+t.est.Tail-l.usual)/16)
	t.Schema.stats.ended(t.Digest.Verb == "watch", ran)
	l.running.remove(t)
	l.traffic.move(trafficExecuting, t.mutating, -1, now)
	if t.queue != nil {
		t.queue.running--
	}
	if !t.lent {
		l.executing--
	}
	if !t.lent && t.est.FinalSeats > 0 && t.est.Tail > 0 {
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

// unlockAfter gives the seats of one who leaves to others, and unlocks.
func (l *Level) unlockAfter(t *Ticket, now time.Time) {
	if !t.lent {
		l.unseatLocked(t)
	}
	l.forgetLocked(t)
	l.fillLocked(now)
	empty := l.quiescing && l.emptyLocked()
	l.mu.Unlock()
	if empty {
		select {
		case l.drained <- struct{}{}:
		default: // run has been told already
		}
	}
}

// Yield lets others have the seats while the request waits for its own client, as when that does not read the response.
func (t *Ticket) Yield() {
	l := t.level
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.state != isExecuting || t.lent {
		return
	}
	now := time.Now()
	l.tickLocked(now)
	t.lent = true
	l.executing--
	l.unseatLocked(t)
	l.fillLocked(now)
}

// Reclaim takes lent seats back at once, though there may be more in use than there are for a moment: to wait in line amid a
// response would punish a client for one slow packet.
func (t *Ticket) Reclaim() {
	l := t.level
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.state != isExecuting || !t.lent {
		return
	}
	l.tickLocked(time.Now())
	t.lent = false
	l.seatLocked(t)
}

// forgetLocked removes the last traces of a request, and the queues beyond the deck that have become empty: from the end, so
// that no index changes.
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

// setLimit changes how many seats the level has; nobody loses one that is taken.
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

// shape sets up what a configuration object asks of the level. Requests that wait keep their places.
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

// retire drops the level if it is empty.
func (l *Level) retire() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.quiescing = true
	l.retired = l.emptyLocked()
	return l.retired
}

// A retryAfter is how many seconds a level tells those to wait whom it turns away. It doubles while many are, and decreases by one
// while few are; as often as once a second, from what happened in as many seconds as it says.
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

// Configure replaces the whole configuration while requests come and go. Levels that are gone first let those out that are in.
// The schemas must include one that takes every request.
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

// scaleTrafficLocked sets what the numbers of requests are measured by: the places in all queues, and the seats.
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

// compileLocked returns the schemas in the order in which they are tried. One whose level is missing is left out.
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

// adjust is one period's end.
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

// lendLocked puts in force what follows from the demand that was seen last.
func (d *Dispatcher) lendLocked() {
	var claims []*allocation
	for _, l := range d.levels {
		claims = append(claims, &l.allocation)
	}
	d.fairFrac = lendSeats(claims)
	for _, l := range d.levels {
		l.setLimit(max(l.allocation.limit, min(1, l.allocation.nominal)), d.seats) // a level that lent everything still serves one at a time
	}
}

func (l *Level) takeDemand() (high int, mean, sd float64, long bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tickLocked(time.Now())
	return l.demand.take(l.inUse + l.waitingSeats)
}

// A seatDemand sums up how many seats were in use or waited for.
type seatDemand struct {
	high                  int
	elapsed, sum, squares float64 // seconds, seats·s, seats²·s
}

func (m *seatDemand) note(seats int) { m.high = max(m.high, seats) }

// pass says how many seats were wanted for some seconds.
func (m *seatDemand) pass(seats int, seconds float64) {
	x := float64(seats)
	m.elapsed += seconds
	m.sum += x * seconds
	m.squares += x * x * seconds
}

// take returns the figures since it was last called: the highest, the mean and the standard deviation, if any time has passed.
// The next period starts at seats.
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

// each calls f for every level, by name, while the level and its claim hold still: f must not wait for anything.
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

// What is counted

// The bounds of histograms, which are Kubernetes'.
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

// A histogram counts values, or weighs them by the nanoseconds for which they held.
type histogram struct {
	bounds []float64
	counts []uint64 // by bound, not cumulative; the last is beyond all bounds
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

// A traffic keeps the number of requests of the whole server over time: those that wait and those that run, and of each those
// that read and those that do not.
type traffic struct {
	mu    sync.Mutex // guards lanes; a level's mu may be held
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

// A schemaStats is what is known of a schema's requests at its level.
type schemaStats struct {
	waiting, waitingSeats, executing, executingSeats int
	dispatched, noAccommodation                      uint64
	rejected                                         map[string]uint64 // by reason
	waitedThenRan, waitedInVain                      histogram         // seconds
	ranRegular, ranWatch                             histogram         // seconds
	queueLength, estimated, watchers                 histogram
}

// maxSchemaStats bounds what is remembered of schemas at one level: they come and go, and their counters stay.
const (
	maxSchemaStats = 512
	otherSchemas   = "other" // the one that the late share
)

// statsOf outlives the schema: counters do not start anew because a schema was changed. Those that come late share one.
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

// observeLocked weighs the state that held for dt.
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
