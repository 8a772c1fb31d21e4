// Package simulated simulates a machine for tests of the seat controller. The simulation includes
// the clients, the processors with their run queue, a disk with group commits, and a door that
// limits the number of concurrent lists. It is a discrete-event simulation with a heap of events.
// It uses virtual time, which makes it fast and reproducible.
//
//	requests ──▶ queue ──▶ seats ──▶ door ──▶ processor ──▶ disk ──▶ done
//	             (bounded)           (lists)  10 ms each,   all waiting writes
//	                                          in turn       share a commit
//
// Only tests and the programs that plot the results import this package.
package simulated

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"apilet/internal/flowcontrol/autoseats"
)

const (
	quantum  = 0.010 // time slice in seconds after which Go preempts a goroutine
	tickTime = 0.25
	mostWait = 15.0 // maximum seconds in the queue
	places   = 300  // length of the queue
)

// A Kind describes a type of request. All durations are in seconds. Processor and Elsewhere are the
// means of random values.
type Kind struct {
	Name      string  // name in the output
	Share     float64 // relative frequency among the arrivals
	Processor float64 // processor time
	Scatter   float64 // 0 for a constant time, 1 for an exponential distribution
	Commits   bool    // reports whether the request waits for the disk
	Elsewhere float64 // waiting time for a webhook or a reader, which does not load the machine
	Door      bool    // reports whether Setup.Doors limits the concurrency
	Seats     int     // number of seats that it takes
}

// A Change modifies the load or the machine at some time.
type Change struct {
	At     float64   // seconds from the start
	Rate   float64   // arrivals per second, unchanged if negative
	Speed  float64   // of the processors, unchanged if 0
	Stall  float64   // seconds during which the disk does nothing
	Shares []float64 // new Share of each kind, unchanged if nil
}

// A Setup describes a machine and its load.
type Setup struct {
	Cores            int      // number of processors
	Doors            int      // number of requests that may pass a Door concurrently
	Commit, PerWrite float64  // seconds per commit, and additional seconds per write
	Crowding         float64  // relative slowdown by each executing request
	Kinds            []Kind   // kinds of requests
	Changes          []Change // ordered by time
	Seconds          float64  // duration of the simulation
	From             float64  // start of the measurement
	Static           int      // number of seats, or 0 to use the controller
	// lease renewals per second; these have separate seats
	Light     float64
	Seed      uint64                                  // seed of the random numbers
	EveryTick func(at float64, seats int, m *Machine) // may be nil
}

// A Result contains the measurements from the second From on.
type Result struct {
	Goodput  float64       // work completed per second, in seconds on an idle machine
	Served   float64       // requests per second
	Refused  float64       // requests per second
	LightP50 time.Duration // median latency of the renewals, including the wait for a seat
	LightP99 time.Duration // 99th percentile of the same latency
	P50      time.Duration // median latency of the other requests, including the wait for a seat
	Seats    float64       // average number of seats
}

// A Machine simulates a Setup.
type Machine struct {
	Setup
	now      float64
	events   eventHeap
	numbered uint64
	rng      *rand.Rand
	rate     float64
	arrivals int // number of the current stream of arrivals
	speed    float64
	seats    int
	InUse    int    // number of seats
	Waiting  []*job // requests that wait for a seat
	ready    []*job // run queue
	free     int    // number of idle processors
	doors    int
	atDoor   []*job
	disk     struct {
		busy    bool
		stalled float64 // end of the stall
		pending []*job
	}
	controller *autoseats.Controller

	delays    []float64 // delays in the run queue since the last tick
	commits   []float64
	useTime   float64 // seat-seconds since the last tick
	waitTime  float64 // seconds during which requests waited
	accounted float64

	Work              float64 // completed work, in seconds on an idle machine
	served, refused   int
	light, heavy      []float64
	seatSum, seatSpan float64
}

// A job is a request.
type job struct {
	kind                      *Kind
	arrived, started          float64
	left                      float64 // remaining processor time before the next step
	after                     float64 // processor time after the commit
	elsewhere, waitedToCommit float64
	commits, light, hasDoor   bool
	readyAt, commitAt         float64
	empty                     float64 // seconds on an idle machine
	seats                     int
}

type event struct {
	at     float64
	number uint64
	do     func()
}

// An eventHeap is a heap with the next event at index 0. (container/heap would allocate each
// event.)
type eventHeap []event

func (e *event) before(f *event) bool { return e.at < f.at || e.at == f.at && e.number < f.number }

func (h *eventHeap) push(e event) {
	*h = append(*h, e)
	all := *h
	for slot := len(all) - 1; slot > 0; {
		above := (slot - 1) / 2
		if !all[slot].before(&all[above]) {
			break
		}
		all[slot], all[above] = all[above], all[slot]
		slot = above
	}
}

func (h *eventHeap) pop() event {
	all := *h
	first, last := all[0], len(all)-1
	all[0], all[last] = all[last], event{}
	all = all[:last]
	for slot := 0; ; {
		least := slot
		for child := 2*slot + 1; child <= 2*slot+2 && child < last; child++ {
			if all[child].before(&all[least]) {
				least = child
			}
		}
		if least == slot {
			break
		}
		all[slot], all[least] = all[least], all[slot]
		slot = least
	}
	*h = all
	return first
}

// Run simulates a setup and returns the result.
func Run(s Setup) Result {
	m := &Machine{Setup: s, rng: rand.New(rand.NewPCG(s.Seed, 18)), speed: 1, free: s.Cores, doors: s.Doors, seats: s.Static}
	if s.Static == 0 {
		m.controller = autoseats.New(autoseats.Bounds{Cores: s.Cores, MinSeats: max(2, s.Cores), MaxSeats: 600})
		m.seats = m.controller.State().Seats
	}
	for _, ch := range s.Changes {
		m.at(ch.At, func() { m.change(ch) })
	}
	if s.Light > 0 {
		m.at(0, m.lightArrives)
	}
	m.at(tickTime, m.tick)
	for len(m.events) > 0 && m.now < s.Seconds {
		e := m.events.pop()
		m.now = e.at
		e.do()
	}
	return m.result()
}

func (m *Machine) at(when float64, do func()) {
	m.numbered++
	m.events.push(event{when, m.numbered, do})
}

func (m *Machine) in(seconds float64, do func()) { m.at(m.now+seconds, do) }

func (m *Machine) change(ch Change) {
	if ch.Speed > 0 {
		m.speed = ch.Speed
	}
	if ch.Stall > 0 {
		m.disk.stalled = m.now + ch.Stall
	}
	if ch.Shares != nil {
		m.Kinds = slices.Clone(m.Kinds)
		for i := range m.Kinds {
			m.Kinds[i].Share = ch.Shares[i]
		}
	}
	if ch.Rate >= 0 {
		m.rate = ch.Rate
		m.arrivals++
		m.arrive(m.arrivals)
	}
}

// ---- Clients

func (m *Machine) arrive(stream int) {
	if stream != m.arrivals || m.rate <= 0 {
		return
	}
	m.in(m.rng.ExpFloat64()/m.rate, func() {
		if stream != m.arrivals {
			return
		}
		m.enqueue()
		m.arrive(stream)
	})
}

func (m *Machine) draw() *job {
	x, total := m.rng.Float64(), 0.0
	for i := range m.Kinds {
		total += m.Kinds[i].Share
	}
	kind := &m.Kinds[0]
	for i := range m.Kinds {
		if kind = &m.Kinds[i]; x*total < kind.Share {
			break
		}
		x -= kind.Share / total
	}
	scattered := func(mean float64) float64 { return mean * (1 - kind.Scatter + kind.Scatter*m.rng.ExpFloat64()) }
	j := &job{kind: kind, arrived: m.now, commits: kind.Commits, seats: max(1, kind.Seats)}
	j.left = scattered(kind.Processor)
	if kind.Elsewhere > 0 {
		j.elsewhere = scattered(kind.Elsewhere)
	}
	j.empty = j.left + j.elsewhere
	if j.commits {
		j.empty += m.Commit + m.PerWrite
		j.left, j.after = 0.75*j.left, 0.25*j.left
	}
	return j
}

// lightArrives simulates the renewal of a lease, which needs a little processor time before and
// after a commit.
func (m *Machine) lightArrives() {
	j := &job{arrived: m.now, started: m.now, left: 0.0003, after: 0.0001, commits: m.Commit > 0, light: true}
	m.run(j)
	m.in(m.rng.ExpFloat64()/m.Light, m.lightArrives)
}

func (m *Machine) enqueue() {
	m.account()
	for len(m.Waiting) > 0 && m.now-m.Waiting[0].arrived > mostWait {
		m.Waiting = m.Waiting[1:]
		m.refuse()
	}
	if m.InUse >= m.seats && len(m.Waiting) >= places {
		m.refuse()
		return
	}
	m.Waiting = append(m.Waiting, m.draw())
	m.fill()
}

func (m *Machine) refuse() {
	if m.now >= m.From {
		m.refused++
	}
}

func (m *Machine) fill() {
	for len(m.Waiting) > 0 && (m.InUse+m.Waiting[0].seats <= m.seats || m.InUse == 0) {
		j := m.Waiting[0]
		m.Waiting = m.Waiting[1:]
		m.InUse += j.seats
		j.started = m.now
		m.begin(j)
	}
}

// ---- The machine

func (m *Machine) begin(j *job) {
	if j.elsewhere > 0 {
		m.in(j.elsewhere, func() { m.enter(j) })
		return
	}
	m.enter(j)
}

func (m *Machine) enter(j *job) {
	if j.kind.Door && m.Doors > 0 {
		if m.doors == 0 {
			m.atDoor = append(m.atDoor, j)
			return
		}
		m.doors--
		j.hasDoor = true
	}
	m.run(j)
}

// run appends a job to the run queue.
func (m *Machine) run(j *job) {
	j.readyAt = m.now
	m.ready = append(m.ready, j)
	m.schedule()
}

func (m *Machine) schedule() {
	for m.free > 0 && len(m.ready) > 0 {
		j := m.ready[0]
		m.ready = m.ready[1:]
		m.free--
		m.delays = append(m.delays, m.now-j.readyAt)
		slowed := (1 + m.Crowding*float64(m.InUse)) / m.speed
		slice := min(quantum, j.left*slowed)
		m.in(slice, func() {
			m.free++
			if j.left -= slice / slowed; j.left > 1e-9 {
				m.run(j)
				return
			}
			m.computed(j)
			m.schedule()
		})
	}
}

func (m *Machine) computed(j *job) {
	if j.hasDoor {
		j.hasDoor = false
		m.doors++
		if len(m.atDoor) > 0 {
			next := m.atDoor[0]
			m.atDoor = m.atDoor[1:]
			m.enter(next)
		}
	}
	if j.commits {
		j.commits, j.commitAt = false, m.now
		m.disk.pending = append(m.disk.pending, j)
		m.commit()
		return
	}
	m.done(j)
}

// commit starts a commit of all waiting writes.
func (m *Machine) commit() {
	if m.disk.busy || len(m.disk.pending) == 0 {
		return
	}
	m.disk.busy = true
	batch := m.disk.pending
	m.disk.pending = nil
	took := m.Commit*(0.8+0.4*m.rng.Float64()) + m.PerWrite*float64(len(batch))
	took += max(0, m.disk.stalled-m.now)
	m.in(took, func() {
		m.disk.busy = false
		m.commits = append(m.commits, took)
		for _, j := range batch {
			j.waitedToCommit = m.now - j.commitAt
			j.left = j.after
			m.run(j)
		}
		m.commit()
	})
}

func (m *Machine) done(j *job) {
	if j.light {
		if m.now >= m.From {
			m.light = append(m.light, m.now-j.arrived)
		}
		return
	}
	m.account()
	m.InUse -= j.seats
	if m.controller != nil {
		service := m.now - j.started - j.elsewhere - j.waitedToCommit
		m.controller.Done(autoseats.Outcome{Class: uint64(len(j.kind.Name)) + uint64(j.kind.Name[0])<<8, Seats: j.seats, Started: moment(j.started),
			Service: seconds(service), Commit: seconds(j.waitedToCommit), ExternalWait: seconds(j.elsewhere)})
	}
	if m.now >= m.From {
		m.Work += j.empty
		m.served++
		m.heavy = append(m.heavy, m.now-j.arrived)
	}
	m.fill()
}

// ---- The controller's view

func moment(s float64) time.Time      { return time.Unix(1000, 0).Add(seconds(s)) }
func seconds(s float64) time.Duration { return time.Duration(s * 1e9) }

// account updates the averages to the current time.
func (m *Machine) account() {
	dt := m.now - m.accounted
	m.accounted = m.now
	m.useTime += dt * float64(m.InUse)
	if len(m.Waiting) > 0 {
		m.waitTime += dt
	}
}

func (m *Machine) tick() {
	m.account()
	if m.controller != nil {
		m.seats = m.controller.Tick(autoseats.Sample{Now: moment(m.now), InUse: m.useTime / tickTime, Saturated: m.waitTime > tickTime/2,
			RunDelay: seconds(percentile(m.delays, 0.9)), Commit: seconds(percentile(m.commits, 0.5))})
		m.fill()
	}
	if m.now >= m.From {
		m.seatSum += float64(m.seats)
		m.seatSpan++
	}
	m.useTime, m.waitTime, m.delays, m.commits = 0, 0, m.delays[:0], m.commits[:0]
	if m.EveryTick != nil {
		m.EveryTick(m.now, m.seats, m)
	}
	m.in(tickTime, m.tick)
}

// State returns the controller's state. If there is no controller, only the number of seats is set.
func (m *Machine) State() autoseats.State {
	if m.controller == nil {
		return autoseats.State{Seats: m.seats}
	}
	return m.controller.State()
}

// LightSince returns the latencies of the light requests since the last call.
func (m *Machine) LightSince() []float64 {
	taken := m.light
	m.light = nil
	return taken
}

func percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[int(math.Ceil(p*float64(len(values)))-1)]
}

func (m *Machine) result() Result {
	span := m.Seconds - m.From
	return Result{Goodput: m.Work / span, Served: float64(m.served) / span, Refused: float64(m.refused) / span,
		LightP50: seconds(percentile(m.light, 0.5)), LightP99: seconds(percentile(m.light, 0.99)), P50: seconds(percentile(m.heavy, 0.5)),
		Seats: m.seatSum / max(1, m.seatSpan)}
}
