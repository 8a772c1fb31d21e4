// Package autoseats determines the number of seats that a machine can carry, which is the
// concurrency beyond which requests take longer without increasing the throughput. KEP-1040 leaves
// this as future work. In apilet, --max-requests-inflight=auto enables it. The package does not
// depend on HTTP, storage or a clock. The caller passes the time.
//
//	c := autoseats.New(autoseats.Bounds{Cores: 2, MinSeats: 8, MaxSeats: 600})
//	c.Done(autoseats.Outcome{Class: class, Seats: 1, Started: t0, Service: ran, Commit: waited}) // after each request
//	seats := c.Tick(autoseats.Sample{Now: now, InUse: 7.5, Saturated: true, RunDelay: delay})    // four times per second; returns the new total
//
// # Measurements
//
// The service time of a request is the time during which it held its seats. It does not include the
// time that was spent waiting for a webhook or for the client. For each class of requests (verb,
// resource, scope, size), the controller keeps the usual service time on an idle machine, which is
// the work of the request. The efficiency e is the fraction of all seat-time that is work. If U
// seats are in use, the goodput is G = e·U in seat-seconds per second, which is the number of seats
// that the machine actually works on. The requests in the remaining seats wait inside the server,
// for a processor, a lock or any other resource. The controller does not need to know which.
//
// # Control
//
// The number of seats should be the number that the machine works on plus some headroom, so the
// machine always has work:
//
//	wanted = G + f·(G + cores)      f = 1 at first
//	seats  ← seats · wanted/U       at most 2/5 up or one half down per tick, and only while requests wait for seats
//
// If requests do not wait inside the server, G = U, and the seats more than double in a second. If
// the machine is saturated, G does not change, and neither does wanted, which makes it a fixed
// point without oscillation. For example, assume two cores, and LISTs that take 20 ms of processor
// time. With 4 seats in use a LIST takes 40 ms: e = 1/2, G = 2, wanted = 2 + 4f. With 40 seats it
// would take 400 ms: e = 1/20, G = 2, and wanted is the same.
//
// The controller measures two resources separately. The first is the processor. The controller
// measures how long goroutines wait in Go's run queue. Even a light request has to wait there. If
// more than a tenth of these waits exceed 7 ms, f decreases, almost to 0 if necessary. Otherwise f
// increases. (Fewer seats than G would leave processors idle. If e is high, the run queue is long
// because other programs use the processors, and fewer seats would not help.) The second resource
// is the store. A write does not load the machine while it is waiting for a commit, and a commit
// can contain many writes. The throughput of the store increases with the number of concurrent
// writes until a commit takes eight times as long as on an idle machine. Up to that limit, the time
// in commits counts as work.
//
// # Probes
//
// Under permanent load the controller would never see an idle machine, and the usual service times
// would creep upward until the machine seemed idle. Therefore it starts a probe after every ten
// seconds during which requests waited. A probe reduces the seats to half of G for the duration of
// a few requests (at most 3/4 s). Requests that both start and end in the probe show the service
// time on an idle machine. Outside of probes, this time is learned while no request waits for a
// seat. Requests in a crowd only count if they are faster.
//
// # Robustness
//
// Clients can influence the controller only in limited ways:
//
//   - A slow reader does not hold a seat while the server waits for it.
//   - A slow webhook increases the seats while creates wait for it. This is intended, because these
//     creates do not load the machine. If a crowd then uses the additional seats, the rule above
//     reduces them again.
//   - Long lists form a class of their own, and are compared only with each other.
//   - A burst has the weight of one tick in an average over half a second.
//   - A client that sends cheap requests to appear efficient is limited by the run queue, and by G
//     ≤ U.
//
// The controller handles the following conditions of the machine:
//
//   - While the server is idle, it keeps its seats. Only the seats beyond twice the recent maximum
//     in use are reduced, slowly. A crowd after an idle night therefore finds about as many seats
//     as the first one.
//   - If the disk stalls for a second, no request ends, and the controller learns nothing. The slow
//     commit that follows does not affect the median of the commits.
//   - Throttling by a processor quota appears as waits in the run queue and as longer service
//     times. If it persists, the probes learn the new times.
//   - After a tenfold change of the load, the rule above finds the new number in one to three
//     seconds, because ticks multiply the seats.
//
// The package does not import other packages of apilet.
package autoseats

import (
	"math"
	"sync"
	"time"
)

const (
	maxRise, maxFall = 1.4, 0.5 // limits of the change of the seats per tick
	// factor instead of the rise if the run queue is twice as long as allowed
	crowdedBrake = 0.8
	memory       = time.Second / 2
	// runTarget is the allowed wait in the run queue for a tenth of the waits, or the duration of a
	// commit on an idle machine if that is longer.
	runTarget    = 7 * time.Millisecond
	maxRunTarget = 20 * time.Millisecond // limit of the run target
	minHeadroom  = 0.05                  // minimum of f
	// change of f per tick, relative to the distance of the delay from the target
	headroomGain = 0.08
	// Below this efficiency the server itself causes a long run queue. Otherwise, the processors
	// are used by other programs.
	crowded = 0.9
	// maximum duration of a commit of many writes, relative to a commit on an idle machine
	batchPrice = 8
	forgiven   = 30 * time.Second

	firstProbe    = time.Second // duration of pressure before the first probe
	probeInterval = 10 * time.Second
	probeDuration = 750 * time.Millisecond
	probeRequests = 24  // number of requests
	probeFraction = 0.5 // fraction of the goodput
	restoreRise   = 1.6 // maximum rise per tick after a probe

	blockSize   = 8 // number of requests per observation
	maxClasses  = 512
	surplusKept = 2.0  // relative to the recent maximum of seats in use
	surplusLost = 0.02 // reduction per tick
	// reduction per tick while the run queue is long although no request waits for a seat
	crowdLoss = 0.1
)

// Bounds contains the limits for the number of seats and the number of processors.
type Bounds struct {
	Cores              int // number of processors
	MinSeats, MaxSeats int // minimum and maximum number of seats
}

// first returns the initial number of seats. It is small, because growing takes only a second.
func (b Bounds) first() int { return min(b.MaxSeats, max(b.MinSeats, 2*b.Cores)) }

// An Outcome describes a finished request.
type Outcome struct {
	Class        uint64        // identifies requests with similar service times
	Seats        int           // number of seats that it held
	Estimated    int           // estimated seats of a LIST before any correction, or 0 for other requests
	Started      time.Time     // time when it got its seats
	Service      time.Duration // the time for which it held its seats, excluding Commit and ExternalWait
	Commit       time.Duration // the time it waited for the commit
	ExternalWait time.Duration // the time it waited for others, such as a webhook
}

// A Sample contains the measurements between two ticks.
type Sample struct {
	Now       time.Time     // end of the sample
	InUse     float64       // average number of seats in use
	Saturated bool          // reports whether requests waited for seats most of the time
	RunDelay  time.Duration // 90th percentile of the waits for a processor
	Commit    time.Duration // median duration of commits, or 0 without commits
}

// A State is a snapshot of the controller.
type State struct {
	Seats      int           // current number of seats
	InUse      float64       // recent average
	Goodput    float64       // seat-seconds per second
	Efficiency float64       // 0 to 1
	Headroom   float64       // f in the documentation of the package
	RunDelay   time.Duration // from the last sample
	Commit     time.Duration // from the last sample
	IdleCommit time.Duration // duration of a commit on an idle machine
	Probing    bool          // reports whether a probe is in progress
	Probes     int           // number of probes since the start
	Classes    int           // number of request classes with learned times
}

// A Controller determines the number of seats. It is safe for concurrent use.
type Controller struct {
	bounds Bounds

	mu               sync.Mutex // guards the following fields
	classes          map[uint64]*class
	fresh            tally // requests that ended since the last tick
	recent           tally // decaying sum
	seats            float64
	state            State
	last             time.Time
	inUse, available float64 // decaying averages of the seats in use and of the seats provided
	peak             float64 // maximum of the seats in use, decaying slowly
	headroom         float64
	calmSince        time.Time // zero if the machine is not idle
	pressure         time.Duration
	probeAt          time.Duration // duration of pressure after which the next probe starts
	probeBegan       time.Time     // zero if no probe is in progress
	returning        bool          // reports whether the seats are returning to their number before the probe
	probed           int           // number of requests that started and ended in the probe
	calmCommit       time.Duration // duration of a commit on an idle machine
	commitRatio      float64       // recent duration of commits, relative to calmCommit
	seatTime         float64       // seconds per estimated seat of a LIST
}

// A tally contains the total time spent by requests and the part of it that was work, in
// seat-seconds.
type tally struct{ work, spent float64 }

// A class contains the learned times of similar requests. Each observation is a mean, because
// single times vary too much.
type class struct {
	usual       float64 // seconds of service on an idle machine, or 0 if unknown
	held        float64 // moving average of the seconds for which requests hold their seats
	fromCalm    bool
	calm, crowd block
}

type block struct {
	n   int
	sum float64
}

// add adds x to the block. If the block is full, add returns its mean and starts a new block.
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

// New returns a controller that starts with Bounds.first seats.
func New(b Bounds) *Controller {
	c := &Controller{bounds: b, classes: map[uint64]*class{}, seats: float64(b.first()), headroom: 1, probeAt: firstProbe, commitRatio: 1}
	c.state = State{Seats: b.first(), Headroom: 1, Efficiency: 1}
	return c
}

// State returns the state after the last tick.
func (c *Controller) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// Done records a finished request.
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
		return // the load is not representative during a probe
	}
	seats, service, commit, elsewhere := float64(max(1, o.Seats)), o.Service.Seconds(), o.Commit.Seconds(), o.ExternalWait.Seconds()
	work := service
	if k.usual > 0 {
		work = k.usual
	}
	c.fresh.work += seats * (work + commit*min(1, batchPrice/c.commitRatio) + elsewhere)
	c.fresh.spent += seats * (service + commit + elsewhere)
}

// classOf returns the class with the given id. When the maximum number of classes is reached, all
// other ids share one class.
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

// Tick processes a sample and returns the new number of seats. It should be called a few times per
// second.
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
		c.restoreSeats()
	case !s.Saturated:
		c.average(s, dt)
		c.handleIdle(s)
	default:
		c.average(s, dt)
		c.calmSince = time.Time{}
		c.adjust(s, dt)
	}
	c.state.RunDelay, c.state.Classes, c.state.Probing = s.RunDelay, len(c.classes), !c.probeBegan.IsZero()
	c.state.Headroom = c.headroom
	return c.state.Seats
}

// noteCommits learns the duration of commits on an idle machine, in the same way as class.observe.
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
	c.state.Commit, c.state.IdleCommit = s.Commit, c.calmCommit
}

// average adds the sample to the decaying averages.
func (c *Controller) average(s Sample, dt time.Duration) {
	keep := math.Exp(-dt.Seconds() / memory.Seconds())
	c.recent.work = keep*c.recent.work + c.fresh.work
	c.recent.spent = keep*c.recent.spent + c.fresh.spent
	c.fresh = tally{}
	c.inUse += (1 - keep) * (s.InUse - c.inUse)
	c.available += (1 - keep) * (c.seats - c.available)
	c.peak = max(s.InUse, c.peak-(c.peak-s.InUse)*dt.Seconds()/forgiven.Seconds())
	if c.recent.spent > 0 {
		c.state.Efficiency = min(1, c.recent.work/c.recent.spent)
	}
	c.state.InUse = c.inUse
	c.state.Goodput = c.state.Efficiency * c.inUse
}

// handleIdle handles a tick in which no request had to wait. The machine is idle if few seats are
// in use.
func (c *Controller) handleIdle(s Sample) {
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

// adjust handles a tick in which requests waited for seats.
func (c *Controller) adjust(s Sample, dt time.Duration) {
	if c.pressure += dt; c.pressure >= c.probeAt && c.state.Goodput > 0 {
		c.startProbe(s)
		return
	}
	c.headroom += headroomGain * (1 - min(3, s.RunDelay.Seconds()/c.runTarget().Seconds()))
	c.headroom = min(1, max(minHeadroom, c.headroom))
	if c.recent.spent == 0 || c.inUse <= 0 { // no request has finished yet
		return
	}
	goodput := c.state.Goodput
	wanted := goodput + c.headroom*(goodput+float64(c.bounds.Cores))
	rise := maxRise
	// recently added seats have not had their full effect
	if s.RunDelay > 2*c.runTarget() && c.state.Efficiency < crowded {
		rise = crowdedBrake
	}
	c.set(min(c.seats*rise, max(c.seats*maxFall, c.available*wanted/c.inUse)))
}

// runTarget returns the allowed delay of a light request. If commits take longer, a shorter delay
// would not be noticeable.
func (c *Controller) runTarget() time.Duration {
	return max(runTarget, min(c.calmCommit, maxRunTarget))
}

func (c *Controller) startProbe(s Sample) {
	c.pressure, c.probeAt = 0, probeInterval
	c.probeBegan, c.calmSince, c.probed = s.Now, s.Now, 0
	c.state.Probes++
	part := min(1, probeFraction*c.state.Goodput/c.inUse)
	c.state.Seats = max(1, int(c.seats*part))
}

// probe ends the probe when enough requests were observed or the time is over, and then restores
// the seats.
func (c *Controller) probe(s Sample) {
	if c.probed < probeRequests && s.Now.Sub(c.probeBegan) < probeDuration {
		return
	}
	c.probeBegan, c.calmSince = time.Time{}, time.Time{}
	c.returning = true
	c.restoreSeats()
}

// restoreSeats restores the seats gradually after a probe, because restoring all of them together
// would cause a burst. Requests that end meanwhile are not counted.
func (c *Controller) restoreSeats() {
	c.fresh = tally{}
	back := int(math.Round(c.seats))
	c.state.Seats = min(back, 1+int(restoreRise*float64(c.state.Seats)))
	c.returning = c.state.Seats < back
}

func (c *Controller) set(seats float64) {
	c.seats = min(float64(c.bounds.MaxSeats), max(float64(c.bounds.MinSeats), seats))
	c.state.Seats = int(math.Round(c.seats))
}

// Weights of a new observation in the moving averages of the seat time and of the time for which
// seats were held.
const (
	widthTrust = 1.0 / 64
	heldTrust  = 1.0 / 16
)

// noteWidthLocked records how long a request held its seats and, for a LIST, the service time per
// estimated seat.
func (c *Controller) noteWidthLocked(k *class, o *Outcome) {
	held := (o.Service + o.Commit + o.ExternalWait).Seconds()
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
