package flowcontrol

// This file lets the number of seats follow what the machine carries (--max-requests-inflight=auto): it brings what the dispatcher, Go's
// scheduler and the store's commits say to the controller (package autoseats, which tells the rule) and its answer to the dispatcher.
//
// A new number of seats is what a new configuration is to Kubernetes: levels get their nominal seats by shares, and what they lend and
// borrow is decided again by the demand that was seen last. Shares are rounded up, and there are seven limited levels; so that the levels'
// seats sum to the number wanted, and not to half as much again where it is small, they are those of a server of fewer seats:
//
//	wanted      8   12   16   32   64  128
//	divided     4    6   12   27   60  124    sum of the nominal seats ≤ wanted
//
// And since a few seats are soon missed, they are lent anew every second instead of every ten, at the same half-life.

import (
	"context"
	"fmt"
	"io"
	"math"
	"runtime"
	"runtime/metrics"
	"slices"
	"text/tabwriter"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"

	"apilet/internal/flowcontrol/autoseats"
)

const (
	autoPeriod  = time.Second / 4
	autoLending = time.Second
	leastSeats  = 7   // one for each limited level that is there on a fresh server
	mostSeats   = 600 // kube-apiserver's default
	tellPeriod  = time.Minute
	tellChange  = 0.25
	runQueue    = "/sched/latencies:seconds"
	longestWait = time.Second // that a request is expected to take, however long its like took
)

// An Auto keeps a dispatcher's seats at what the machine carries.
type Auto struct {
	dispatcher *Dispatcher
	controller *autoseats.Controller
	Commits    func() (bounds []float64, counts []int64) // how many of the store's commits took how many seconds, so far; may be nil
	Changed    func(from, to int, state autoseats.State) // is told of changes of more than a quarter, once a minute at most; may be nil

	told     int
	toldAt   time.Time
	delays   []metrics.Sample
	waits    []uint64 // of the run queue, as of the last tick, by bucket
	finished []int64  // commits, likewise
}

// NewAuto starts with as many seats as the processors suggest. Run has to be called for anything to happen.
func NewAuto(timeout time.Duration) (*Dispatcher, *Auto) {
	cores := runtime.GOMAXPROCS(0)
	c := autoseats.New(autoseats.Bounds{Cores: cores, Least: max(leastSeats, cores), Most: max(mostSeats, 4*cores)})
	d := NewDispatcher(1, timeout)
	a := &Auto{dispatcher: d, controller: c, told: c.State().Seats, delays: []metrics.Sample{{Name: runQueue}}}
	d.mu.Lock()
	d.period = autoLending
	d.mu.Unlock()
	d.setSeats(a.told)
	return d, a
}

// state is what the controller knows.
func (a *Auto) state() autoseats.State { return a.controller.State() }

// Metrics has the controller's.
func (a *Auto) Metrics() *autoseats.Controller { return a.controller }

// Run ticks until ctx ends.
func (a *Auto) Run(ctx context.Context) {
	tick := time.NewTicker(autoPeriod)
	defer tick.Stop()
	last := time.Now()
	for seats := a.told; ; {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if wanted := a.controller.Tick(a.sample(now, now.Sub(last))); wanted != seats {
				seats = wanted
				a.dispatcher.setSeats(seats)
			}
			last = now
			a.tell(now, seats)
		}
	}
}

func (a *Auto) sample(now time.Time, dt time.Duration) autoseats.Sample {
	held, pressed := a.dispatcher.takeUse()
	return autoseats.Sample{Now: now, InUse: held.Seconds() / max(dt, time.Millisecond).Seconds(), Pressed: pressed > dt/2,
		RunDelay: a.runDelay(), Commit: a.commit()}
}

// runDelay is what the longest tenth of the waits for a processor took at least, since the last call.
func (a *Auto) runDelay() time.Duration {
	metrics.Read(a.delays)
	if a.delays[0].Value.Kind() != metrics.KindFloat64Histogram {
		return 0
	}
	h := a.delays[0].Value.Float64Histogram()
	fresh := freshCounts(&a.waits, h.Counts)
	return atQuantile(0.9, fresh, h.Buckets)
}

// commit is the median of the commits' durations since the last call.
func (a *Auto) commit() time.Duration {
	if a.Commits == nil {
		return 0
	}
	bounds, counts := a.Commits()
	fresh := freshCounts(&a.finished, counts)
	return atQuantile(0.5, fresh, append([]float64{0}, bounds...))
}

// freshCounts returns by how much counts have grown since the last call.
func freshCounts[T int64 | uint64](last *[]T, counts []T) []T {
	fresh := slices.Clone(counts)
	for i := range *last {
		fresh[i] -= (*last)[i]
	}
	*last = slices.Clone(counts)
	return fresh
}

// atQuantile is the value below which a part of what was counted lies; bucket i is from bounds[i] to bounds[i+1]. 0 if there is nothing.
func atQuantile[T int64 | uint64](q float64, counts []T, bounds []float64) time.Duration {
	var total, below float64
	for _, n := range counts {
		total += float64(n)
	}
	for i, n := range counts {
		if below += float64(n); n == 0 || below < q*total {
			continue
		}
		low, high := max(0, bounds[i]), bounds[i]
		if i+1 < len(bounds) && !math.IsInf(bounds[i+1], 1) {
			high = bounds[i+1]
		}
		inside := 1 - (below-q*total)/float64(n)
		return time.Duration((low + (high-low)*inside) * 1e9)
	}
	return 0
}

func (a *Auto) tell(now time.Time, seats int) {
	change := math.Abs(float64(seats-a.told)) / float64(a.told)
	state := a.state()
	if change <= tellChange || now.Sub(a.toldAt) < tellPeriod || state.Probing || a.Changed == nil {
		return
	}
	a.Changed(a.told, seats, state)
	a.told, a.toldAt = seats, now
}

// Done tells what a request took: the time elsewhere, with its client or a webhook, and for the store's commit is not its own.
func (a *Auto) Done(t *Ticket, class uint64, ran, commit, elsewhere time.Duration) {
	commit = min(commit, ran)
	elsewhere = min(elsewhere, ran-commit)
	a.controller.Done(autoseats.Outcome{Class: class, Seats: t.width, Estimated: t.est.plain, Started: t.Started, Service: ran - commit - elsewhere, Commit: commit,
		Elsewhere: elsewhere})
}

// Learn corrects an estimate by what requests of the class took so far.
func (a *Auto) Learn(class uint64, list bool, est *Estimate) {
	seats, likely := a.controller.Learned(class, est.InitialSeats)
	est.Likely = min(likely, longestWait)
	if list {
		est.plain = est.InitialSeats
		est.InitialSeats = seats
	}
}

// Dump is the page dump_seats of the debug pages.
func (a *Auto) Dump(w io.Writer) {
	s := a.state()
	table := dumpTable{tabwriter.NewWriter(w, 8, 0, 1, ' ', 0)}
	table.row("Seats", "InUse", "Goodput", "Efficiency", "Headroom", "RunDelay", "Commit", "CalmCommit", "Probing", "Probes", "Classes")
	two := func(x float64) string { return fmt.Sprintf("%.2f", x) }
	table.row(s.Seats, two(s.InUse), two(s.Goodput), two(s.Efficiency), two(s.Headroom), s.RunDelay, s.Commit, s.CalmCommit, s.Probing, s.Probes, s.Classes)
	_ = table.Flush()
}

// setSeats divides another number of seats among the levels, as nearly as shares that are rounded up allow. Nobody loses a seat that is taken.
func (d *Dispatcher) setSeats(seats int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.carried = seats
	d.divideLocked(d.specsLocked())
	d.lendLocked()
}

// divideLocked gives the levels their nominal seats.
func (d *Dispatcher) divideLocked(specs map[string]*flowcontrolv1.PriorityLevelConfiguration) {
	var shares float64
	for _, l := range d.levels {
		shares += float64(l.allocation.shares)
	}
	if d.carried > 0 {
		d.fitLocked(shares)
	}
	for name, l := range d.levels {
		l.allocation.divide(d.seats, shares)
		if obj := specs[name]; obj != nil { // those that are leaving stay as they were
			l.shape(&obj.Spec, l.allocation.nominal)
		}
	}
	d.scaleTrafficLocked(specs)
}

// fitLocked chooses the seats that are divided so that the levels' sum to what the machine carries.
func (d *Dispatcher) fitLocked(shares float64) {
	sum := func() (sum int) {
		for _, l := range d.levels {
			sum += int(math.Ceil(float64(d.seats) * float64(l.allocation.shares) / shares))
		}
		return sum
	}
	for d.seats = d.carried; shares > 0 && d.seats > 1 && sum() > d.carried; {
		d.seats--
	}
}

// A seatUse is how much seats of a level were used since it was last asked, and for how long somebody waited for one.
type seatUse struct{ held, waited time.Duration }

func (u *seatUse) pass(seats int, waiting bool, dt time.Duration) {
	u.held += time.Duration(seats) * dt
	if waiting {
		u.waited += dt
	}
}

// takeUse returns the seat-time of all limited levels since the last call, and the longest time that one of them let somebody wait.
func (d *Dispatcher) takeUse() (held, waited time.Duration) {
	d.each(func(l *Level) {
		if !l.exempt {
			held += l.use.held
			waited = max(waited, l.use.waited)
		}
		l.use = seatUse{}
	})
	return held, waited
}

// keepLocked is what is kept of the demand's envelope in one of the dispatcher's periods.
func (d *Dispatcher) keepLocked() float64 {
	return math.Pow(smoothing, d.period.Seconds()/adjustPeriod.Seconds())
}

// Plain is how many seats the request was estimated to take before experience corrected it; 0 if it did not.
func (t *Ticket) Plain() int { return t.est.plain }
