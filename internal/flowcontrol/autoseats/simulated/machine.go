// Package simulated is a machine in a computer, to try the choice of seats on: processors with a run queue, a disk that commits in groups, a
// door through which so many lists go at once, and clients. Time is virtual, so a minute of it takes a moment, and is the same
// each time: a simulation of discrete events, which stand in a heap.
//
//	requests ──▶ queue ──▶ seats ──▶ door ──▶ processor ──▶ disk ──▶ done
//	             (bounded)           (lists)  10 ms each,   all who wait
//	                                          in turn       go together
//
// Nothing but tests and the programs that draw it import it.
package simulated

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"apilet/internal/flowcontrol/autoseats"
)

const (
	quantum  = 0.010 // seconds that Go lets a goroutine run while others wait
	tickTime = 0.25
	mostWait = 15.0 // seconds in the queue
	places   = 300  // in the queue
)

// A Kind is what requests of one sort do, in seconds. Processor and Elsewhere are means; times scatter around them.
type Kind struct {
	Name      string  // as it is printed
	Share     float64 // of the arrivals
	Processor float64 // time that it computes
	Scatter   float64 // 0: always the same; 1: exponential
	Commits   bool    // it waits for the disk
	Elsewhere float64 // waits for a webhook or a reader, which do not load the machine
	Door      bool    // only so many at a time
	Seats     int     // that it takes
}

// A Change is a load or a machine from some second on.
type Change struct {
	At     float64   // seconds from the start
	Rate   float64   // arrivals a second; less than 0: as before
	Speed  float64   // of the processors; 0: as before
	Stall  float64   // seconds in which the disk does nothing
	Shares []float64 // of the kinds in the arrivals; nil: as before
}

// A Setup is a machine and what comes to it.
type Setup struct {
	Cores            int                                     // processors
	Doors            int                                     // how many requests pass a Door at a time
	Commit, PerWrite float64                                 // seconds that a commit takes, and what each write in it adds
	Crowding         float64                                 // by how much each request in execution slows all others, as a part
	Kinds            []Kind                                  // what comes
	Changes          []Change                                // by their time
	Seconds          float64                                 // that it runs
	From             float64                                 // what is before is not measured
	Static           int                                     // seats; 0: by the controller
	Light            float64                                 // renewals a second, which have seats of their own
	Seed             uint64                                  // of what is left to chance
	EveryTick        func(at float64, seats int, m *Machine) // may be nil
}

// A Result is what came of it, from the second From on.
type Result struct {
	Goodput  float64       // seconds of work done a second, as an empty machine takes for them
	Served   float64       // requests a second
	Refused  float64       // requests a second
	LightP50 time.Duration // the median of the renewals, with their wait for a seat
	LightP99 time.Duration // their 99th percentile
	P50      time.Duration // of the others, with their wait for a seat
	Seats    float64       // on average
}

// A Machine runs a Setup.
type Machine struct {
	Setup
	now      float64
	events   eventHeap
	numbered uint64
	rng      *rand.Rand
	rate     float64
	arrivals int // the number of the stream of arrivals that counts
	speed    float64
	seats    int
	InUse    int    // seats
	Waiting  []*job // for a seat
	ready    []*job // the run queue
	free     int    // processors
	doors    int
	atDoor   []*job
	disk     struct {
		busy    bool
		stalled float64 // until
		pending []*job
	}
	controller *autoseats.Controller

	delays    []float64 // in the run queue, since the last tick
	commits   []float64
	useTime   float64 // seat-seconds since the last tick
	waitTime  float64 // seconds in which somebody waited
	accounted float64

	Work              float64 // seconds of work done, as an empty machine takes for them
	served, refused   int
	light, heavy      []float64
	seatSum, seatSpan float64
}

// A job is one request.
type job struct {
	kind                      *Kind
	arrived, started          float64
	left                      float64 // of the processor time before the next step
	after                     float64 // processor time after the commit
	elsewhere, waitedToCommit float64
	commits, light, hasDoor   bool
	readyAt, commitAt         float64
	empty                     float64 // what an empty machine takes for it
	seats                     int
}

type event struct {
	at     float64
	number uint64
	do     func()
}

// An eventHeap has the next event at 0. (container/heap would make each event an allocation.)
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

// Run plays a setup to its end.
func Run(s Setup) Result {
	m := &Machine{Setup: s, rng: rand.New(rand.NewPCG(s.Seed, 18)), speed: 1, free: s.Cores, doors: s.Doors, seats: s.Static}
	if s.Static == 0 {
		m.controller = autoseats.New(autoseats.Bounds{Cores: s.Cores, Least: max(2, s.Cores), Most: 600})
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

// lightArrives is a renewal of a lease: a little processor, a commit, and a little processor again.
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

// run puts a job at the end of the run queue.
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

// commit takes all who wait along.
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
			Service: seconds(service), Commit: seconds(j.waitedToCommit), Elsewhere: seconds(j.elsewhere)})
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

// account lets time pass for what is averaged.
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
		m.seats = m.controller.Tick(autoseats.Sample{Now: moment(m.now), InUse: m.useTime / tickTime, Pressed: m.waitTime > tickTime/2,
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

// State is the controller's, if there is one.
func (m *Machine) State() autoseats.State {
	if m.controller == nil {
		return autoseats.State{Seats: m.seats}
	}
	return m.controller.State()
}

// LightSince returns and forgets the latencies of the light requests so far.
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
