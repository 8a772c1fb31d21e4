// Package autoseats finds how many seats a machine carries: the concurrency beyond which requests take longer and no more of them are done.
// KEP-1040 leaves it as future work; here --max-requests-inflight=auto asks for it. It knows no HTTP, no storage, and has no clock: who
// uses it says what time it is.
//
//	c := autoseats.New(autoseats.Bounds{Cores: 2, Least: 8, Most: 600})
//	c.Done(autoseats.Outcome{Class: class, Seats: 1, Started: t0, Service: ran, Commit: waited}) // of each request, when it has been answered
//	seats := c.Tick(autoseats.Sample{Now: now, InUse: 7.5, Pressed: true, RunDelay: delay})      // four times a second; gives the new total
//
// What is measured. A request's service time is the time that it held its seats, less what it waited for others: a client that does not
// read or send, a webhook. Of each class of requests (verb, resource, scope, size) the controller keeps the usual service time in calm; that is
// the work in it. Of all that requests spend on their seats, the part that is work is the efficiency e. With U seats in use the goodput
// is G = e·U, in seat-seconds a second: as many seats as the machine really works on. The others wait inside of it, for a processor, a lock, or
// whatever there is: nobody has to name it.
//
// How it moves. Seats are to be as many as are worked on, and some more, so that the machine never lacks work:
//
//	wanted = G + f·(G + cores)      f = 1 at first
//	seats  ← seats · wanted/U       by no more than 2/5 up or one half down at a tick, and only while somebody waits for a seat
//
// Where nothing queues inside, G = U, and seats more than double in a second. Where the machine is full, G stays as it is, and
// wanted with it: a fixed point and no saw. An example, two cores and LISTs of 20 ms of processor. With 4 seats in use a LIST takes 40
// ms: e = 1/2, G = 2, wanted = 2 + 4f. With 40 it would take 400 ms: e = 1/20, G = 2, wanted is the same.
//
// Two resources are looked at by name. Who waits for a processor waits in Go's run queue, and a light request behind all who are there: if
// a tenth of the waits there exceed 7 ms, f falls, to nearly 0 if need be, and below that it rises. (Fewer seats than G would only idle; and
// where e is high, the run queue is long because the processors are taken by other programs, which fewer seats do not help.) And a commit is
// a journey that many make together: a write that waits for it loads nothing, and more of them at once make the store faster, until the
// commits themselves take eight times what they do in calm. So the time in commits counts as work, up to there.
//
// Why the calm is believed. Under load that never ends nobody sees an empty machine, and what is usual would creep up until all seems calm.
// So in every ten seconds in which somebody waits there is a probe: the seats are halved below G for as long as a few requests take (at most 3/4 s),
// and those that both begin and end in it tell the time in calm. Otherwise that time is learned while nobody waits for a seat; and from
// requests in a crowd only if they are faster.
//
// Who could drive it? Not a slow reader: it holds no seat while it is waited for. A slow webhook makes seats more while creates wait for it,
// as it should, since those load nothing; when they are over, the crowd that finds so many seats is met by the rule above, and the surplus
// is given up. A client of long lists: they are a class of their own, compared with themselves. A burst: it has one tick's weight in an
// average over half a second. One who asks for what is cheap, to look efficient: G is at most U, and the run queue stops it.
//
// Idle, the seats stay as they are, but those beyond twice what was used lately are given up slowly, so that a crowd that comes after an
// idle night finds about what the first one found. A disk that stalls for a second: nothing ends, so there is nothing to learn, and then
// one commit is slow, which the median of commits leaves out. A processor quota that throttles: waits in the run queue, and service
// times above the usual; when they stay, the probes learn them. After a change of load by ten times: the rule above, in one to three
// seconds, since a tick multiplies.
//
// The package imports none of ours.
package autoseats

import (
	"math"
	"sync"
	"time"
)

const (
	maxRise, maxFall = 1.4, 0.5 // of the seats, at a tick
	brake            = 0.8      // instead of the rise where the run queue is twice as long as it may be
	memory           = time.Second / 2
	runTarget        = 7 * time.Millisecond  // of a tenth of the waits in the run queue; what a commit takes in calm, if that is more,
	mostRunTarget    = 20 * time.Millisecond // up to here
	leastHeadroom    = 0.05                  // of f
	headroomGain     = 0.08                  // of f at a tick, by how far the delay is from the target
	crowded          = 0.9                   // below this efficiency a long run queue is the server's doing; else the processors are taken by others
	batchPrice       = 8                     // times as long as in calm that a commit of many writes may take
	forgiven         = 30 * time.Second

	firstProbe   = time.Second // of pressure
	probeEvery   = 10 * time.Second
	probeLasts   = 750 * time.Millisecond
	probeNeeds   = 24  // requests
	probePart    = 0.5 // of the goodput
	comeBackRise = 1.6 // at a tick, after a probe

	blockSize   = 8 // requests whose mean is one observation
	maxClasses  = 512
	surplusKept = 2.0  // times the most seats in use lately
	surplusLost = 0.02 // at a tick
	crowdLoss   = 0.1  // at a tick in which the run queue is long though nobody waits for a seat
)

// Bounds are what the controller never leaves, and the number of processors.
type Bounds struct {
	Cores       int // processors
	Least, Most int // seats
}

// first is how many seats there are before anything is known: few, since growing takes a second.
func (b Bounds) first() int { return min(b.Most, max(b.Least, 2*b.Cores)) }

// An Outcome is a request that has been answered.
type Outcome struct {
	Class     uint64        // requests of a class take alike
	Seats     int           // it held
	Estimated int           // seats that a LIST was estimated to take before anything was learned; 0 for others
	Started   time.Time     // when it got them
	Service   time.Duration // that it held them, less what follows
	Commit    time.Duration // that it waited for the store's commit
	Elsewhere time.Duration // that it waited for others, as for a webhook
}

// A Sample is what happened between two ticks.
type Sample struct {
	Now      time.Time     // when it ends
	InUse    float64       // seats, on average
	Pressed  bool          // somebody waited for a seat, most of the time
	RunDelay time.Duration // a tenth of the waits for a processor were at least so long
	Commit   time.Duration // the median of the commits' durations; 0 if there was none
}

// A State is what can be seen of the controller.
type State struct {
	Seats      int           // how many there are now
	InUse      float64       // lately
	Goodput    float64       // seat-seconds a second
	Efficiency float64       // 0 to 1
	Headroom   float64       // f
	RunDelay   time.Duration // of the last sample
	Commit     time.Duration // likewise
	CalmCommit time.Duration // what a commit takes in calm
	Probing    bool          // another number of seats is being tried
	Probes     int           // since the start
	Classes    int           // of requests whose times are remembered
}

// A Controller decides upon the number of seats. Its methods may be called from many goroutines.
type Controller struct {
	bounds Bounds

	mu           sync.Mutex // guards what follows
	classes      map[uint64]*class
	fresh        tally // of requests that ended since the last tick
	lately       tally // decaying
	seats        float64
	state        State
	last         time.Time
	inUse, given float64 // seats in use and seats there were, decaying
	peak         float64 // decaying slowly
	headroom     float64
	calmSince    time.Time // zero: it is not calm
	pressed      time.Duration
	probeAt      time.Duration // of pressure
	probeBegan   time.Time     // zero: there is none
	returning    bool          // to the seats before the probe
	probed       int           // requests that began and ended in the probe
	calmCommit   time.Duration // what a commit takes in calm
	commitRatio  float64       // of what commits take lately to that
	seatTime     float64       // seconds that an estimated seat of a LIST stands for
}

// A tally is what requests spent on their seats, and what of it was work, in seat-seconds.
type tally struct{ work, spent float64 }

// A class is requests that take alike. Its observations are means, since single times scatter.
type class struct {
	usual       float64 // seconds; 0: nothing is known
	held        float64 // seconds that seats were held, all in all
	fromCalm    bool
	calm, crowd block
}

type block struct {
	n   int
	sum float64
}

// add returns the mean of a block when it is full.
func (b *block) add(x float64) (mean float64, full bool) {
	b.n++
	b.sum += x
	if b.n < blockSize {
		return 0, false
	}
	mean = b.sum / float64(b.n)
	*b = block{}
	return mean, true
}

// New starts with Bounds.first seats.
func New(b Bounds) *Controller {
	c := &Controller{bounds: b, classes: map[uint64]*class{}, seats: float64(b.first()), headroom: 1, probeAt: firstProbe, commitRatio: 1}
	c.state = State{Seats: b.first(), Headroom: 1, Efficiency: 1}
	return c
}

// State is what the last tick knew.
func (c *Controller) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// Done takes in a request that has been answered.
func (c *Controller) Done(o Outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.classOf(o.Class)
	inCalm := !c.calmSince.IsZero() && !o.Started.Before(c.calmSince)
	k.observe(o.Service.Seconds(), inCalm)
	c.noteWidthLocked(k, &o)
	if !c.probeBegan.IsZero() {
		if inCalm {
			c.probed++
		}
		return // how busy the machine is otherwise cannot be seen in a probe
	}
	seats, service, commit, elsewhere := float64(max(1, o.Seats)), o.Service.Seconds(), o.Commit.Seconds(), o.Elsewhere.Seconds()
	work := service
	if k.usual > 0 {
		work = k.usual
	}
	c.fresh.work += seats * (work + commit*min(1, batchPrice/c.commitRatio) + elsewhere)
	c.fresh.spent += seats * (service + commit + elsewhere)
}

// classOf bounds what is remembered: beyond it all are one class.
func (c *Controller) classOf(id uint64) *class {
	k := c.classes[id]
	if k == nil && len(c.classes) >= maxClasses {
		id = 0
		k = c.classes[id]
	}
	if k == nil {
		k = &class{}
		c.classes[id] = k
	}
	return k
}

func (k *class) observe(seconds float64, inCalm bool) {
	if inCalm {
		if mean, full := k.calm.add(seconds); full {
			if !k.fromCalm {
				k.usual, k.fromCalm = mean, true
			}
			k.usual += (mean - k.usual) / 4
		}
		return
	}
	if mean, full := k.crowd.add(seconds); full {
		switch {
		case k.usual == 0:
			k.usual = mean
		case mean < k.usual:
			k.usual += (mean - k.usual) / 4
		}
	}
}

// Tick is to be called a few times a second. It returns how many seats there shall be.
func (c *Controller) Tick(s Sample) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	dt := s.Now.Sub(c.last)
	if c.last.IsZero() || dt <= 0 {
		dt = memory / 4
	}
	c.last = s.Now
	c.noteCommits(s)
	switch {
	case !c.probeBegan.IsZero():
		c.probe(s)
	case c.returning:
		c.comeBack()
	case !s.Pressed:
		c.average(s, dt)
		c.rest(s)
	default:
		c.average(s, dt)
		c.calmSince = time.Time{}
		c.move(s, dt)
	}
	c.state.RunDelay, c.state.Classes, c.state.Probing = s.RunDelay, len(c.classes), !c.probeBegan.IsZero()
	c.state.Headroom = c.headroom
	return c.state.Seats
}

// noteCommits learns what commits take in calm, as classes do what their requests take.
func (c *Controller) noteCommits(s Sample) {
	if s.Commit <= 0 {
		return
	}
	if c.calmCommit == 0 {
		c.calmCommit = s.Commit
	}
	if !c.calmSince.IsZero() || s.Commit < c.calmCommit {
		c.calmCommit += (s.Commit - c.calmCommit) / 4
	}
	ratio := max(1, s.Commit.Seconds()/c.calmCommit.Seconds())
	c.commitRatio += (ratio - c.commitRatio) / 4
	c.state.Commit, c.state.CalmCommit = s.Commit, c.calmCommit
}

// average brings what happened into the memory of the last second or so.
func (c *Controller) average(s Sample, dt time.Duration) {
	keep := math.Exp(-dt.Seconds() / memory.Seconds())
	c.lately.work = keep*c.lately.work + c.fresh.work
	c.lately.spent = keep*c.lately.spent + c.fresh.spent
	c.fresh = tally{}
	c.inUse += (1 - keep) * (s.InUse - c.inUse)
	c.given += (1 - keep) * (c.seats - c.given)
	c.peak = max(s.InUse, c.peak-(c.peak-s.InUse)*dt.Seconds()/forgiven.Seconds())
	if c.lately.spent > 0 {
		c.state.Efficiency = min(1, c.lately.work/c.lately.spent)
	}
	c.state.InUse = c.inUse
	c.state.Goodput = c.state.Efficiency * c.inUse
}

// rest is a tick in which nobody had to wait. Few seats in use are calm.
func (c *Controller) rest(s Sample) {
	if s.InUse > max(1, float64(c.bounds.Cores)/2) && s.InUse > c.seats/4 || s.RunDelay > c.runTarget()/2 {
		c.calmSince = time.Time{}
	} else if c.calmSince.IsZero() {
		c.calmSince = s.Now
	}
	if s.RunDelay > c.runTarget() && c.state.Efficiency < crowded {
		c.set(c.seats * (1 - crowdLoss))
	} else if kept := max(float64(c.bounds.first()), surplusKept*c.peak); c.seats > kept {
		c.set(max(kept, c.seats*(1-surplusLost)))
	}
}

// move is a tick in which somebody waited for a seat.
func (c *Controller) move(s Sample, dt time.Duration) {
	if c.pressed += dt; c.pressed >= c.probeAt && c.state.Goodput > 0 {
		c.startProbe(s)
		return
	}
	c.headroom += headroomGain * (1 - min(3, s.RunDelay.Seconds()/c.runTarget().Seconds()))
	c.headroom = min(1, max(leastHeadroom, c.headroom))
	if c.lately.spent == 0 || c.inUse <= 0 { // nothing has ended: nothing is known
		return
	}
	goodput := c.state.Goodput
	wanted := goodput + c.headroom*(goodput+float64(c.bounds.Cores))
	rise := maxRise
	if s.RunDelay > 2*c.runTarget() && c.state.Efficiency < crowded { // seats given lately have not all been felt
		rise = brake
	}
	c.set(min(c.seats*rise, max(c.seats*maxFall, c.given*wanted/c.inUse)))
}

// runTarget is what a light request may wait: where a commit takes long, nobody feels less than that.
func (c *Controller) runTarget() time.Duration {
	return max(runTarget, min(c.calmCommit, mostRunTarget))
}

func (c *Controller) startProbe(s Sample) {
	c.pressed, c.probeAt = 0, probeEvery
	c.probeBegan, c.calmSince, c.probed = s.Now, s.Now, 0
	c.state.Probes++
	part := min(1, probePart*c.state.Goodput/c.inUse)
	c.state.Seats = max(1, int(c.seats*part))
}

// probe goes on until enough was seen, or it has lasted too long; then the seats are what they were.
func (c *Controller) probe(s Sample) {
	if c.probed < probeNeeds && s.Now.Sub(c.probeBegan) < probeLasts {
		return
	}
	c.probeBegan, c.calmSince = time.Time{}, time.Time{}
	c.returning = true
	c.comeBack()
}

// comeBack gives the seats back that a probe took, gradually: all at once they would be a burst. What ends meanwhile says nothing.
func (c *Controller) comeBack() {
	c.fresh = tally{}
	back := int(math.Round(c.seats))
	c.state.Seats = min(back, 1+int(comeBackRise*float64(c.state.Seats)))
	c.returning = c.state.Seats < back
}

func (c *Controller) set(seats float64) {
	c.seats = min(float64(c.bounds.Most), max(float64(c.bounds.Least), seats))
	c.state.Seats = int(math.Round(c.seats))
}

// How much one more answer counts among those of its like: of its width, and of how long it held its seats.
const (
	widthTrust = 1.0 / 64
	heldTrust  = 1.0 / 16
)

// noteWidthLocked takes in how long a request held its seats and, of a LIST, what so many estimated seats took.
func (c *Controller) noteWidthLocked(k *class, o *Outcome) {
	held := (o.Service + o.Commit + o.Elsewhere).Seconds()
	if k.held == 0 {
		k.held = held
	}
	k.held += heldTrust * (held - k.held)
	if o.Estimated > 0 && k.usual > 0 {
		each := k.usual / float64(o.Estimated)
		if c.seatTime == 0 {
			c.seatTime = each
		}
		c.seatTime += widthTrust * (each - c.seatTime)
	}
}
