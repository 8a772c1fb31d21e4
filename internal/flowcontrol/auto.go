package flowcontrol

// This file adjusts the number of seats to the capacity of the machine
// (--max-requests-inflight=auto). It passes measurements of the dispatcher, of Go's scheduler and
// of the store's commits to the controller in package autoseats, which documents the algorithm, and
// passes the controller's result to the dispatcher.
//
// A new number of seats has the same effect as a new configuration has in Kubernetes. The levels
// get their nominal seats by shares, and lending is computed again from the most recently observed
// demand. Shares are rounded up, and there are seven limited levels, so the sum of the levels'
// seats can exceed a small number of seats by half. To make the sum match the wanted number, the
// seats are divided as for a server with fewer seats:
//
//	wanted      8   12   16   32   64  128
//	divided     4    6   12   27   60  124    sum of the nominal seats ≤ wanted
//
// If there are only a few seats, every lent seat matters. Lending is therefore updated every second
// instead of every ten seconds. The half-life of the envelope does not change.

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/bits"
	"runtime"
	"runtime/metrics"
	"slices"
	"text/tabwriter"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"

	"apilet/internal/flowcontrol/autoseats"
)

const (
	autoPeriod          = time.Second / 4
	autoLending         = time.Second
	minSeats            = 7   // one for each limited level of a new server
	maxSeats            = 600 // kube-apiserver's default
	logPeriod           = time.Minute
	logChange           = 0.25
	runQueue            = "/sched/latencies:seconds"
	maxExpectedDuration = time.Second // limit of the expected running time of a request
)

// A SeatTuner adjusts the seats of a dispatcher to the capacity of the machine.
type SeatTuner struct {
	dispatcher *Dispatcher
	controller *autoseats.Controller
	// Commits returns the cumulative histogram of the store's commit durations in seconds. It may
	// be nil.
	Commits func() (bounds []float64, counts []int64)
	// OnChange is called if the number of seats has changed by more than a quarter, at most once
	// per minute. It may be nil.
	OnChange func(from, to int, state autoseats.State)

	loggedSeats int
	loggedAt    time.Time
	delays      []metrics.Sample
	waits       []uint64 // run queue counts at the last tick, by bucket
	finished    []int64  // commit counts at the last tick
}

// NewAutoDispatcher returns a dispatcher whose initial number of seats depends on the number of
// processors. The caller must call Run to start the adjustment.
func NewAutoDispatcher(timeout time.Duration) (*Dispatcher, *SeatTuner) {
	cores := runtime.GOMAXPROCS(0)
	c := autoseats.New(autoseats.Bounds{Cores: cores, MinSeats: max(minSeats, cores), MaxSeats: max(maxSeats, 4*cores)})
	d := NewDispatcher(1, timeout)
	a := &SeatTuner{dispatcher: d, controller: c, loggedSeats: c.State().Seats, delays: []metrics.Sample{{Name: runQueue}}}
	d.mu.Lock()
	d.period = autoLending
	d.mu.Unlock()
	d.setSeats(a.loggedSeats)
	return d, a
}

// state returns the state of the controller.
func (a *SeatTuner) state() autoseats.State { return a.controller.State() }

// Metrics returns the collector for the metrics of the controller.
func (a *SeatTuner) Metrics() *autoseats.Controller { return a.controller }

// Run samples and adjusts the seats periodically until ctx is done.
func (a *SeatTuner) Run(ctx context.Context) {
	tick := time.NewTicker(autoPeriod)
	defer tick.Stop()
	last := time.Now()
	for seats := a.loggedSeats; ; {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if wanted := a.controller.Tick(a.sample(now, now.Sub(last))); wanted != seats {
				seats = wanted
				a.dispatcher.setSeats(seats)
			}
			last = now
			a.logSeats(now, seats)
		}
	}
}

func (a *SeatTuner) sample(now time.Time, dt time.Duration) autoseats.Sample {
	held, pressed := a.dispatcher.takeUse()
	return autoseats.Sample{Now: now, InUse: held.Seconds() / max(dt, time.Millisecond).Seconds(), Saturated: pressed > dt/2,
		RunDelay: a.runDelay(), Commit: a.commit()}
}

// runDelay returns the 90th percentile of the waits for a processor since the last call.
func (a *SeatTuner) runDelay() time.Duration {
	metrics.Read(a.delays)
	if a.delays[0].Value.Kind() != metrics.KindFloat64Histogram {
		return 0
	}
	h := a.delays[0].Value.Float64Histogram()
	fresh := freshCounts(&a.waits, h.Counts)
	return atQuantile(0.9, fresh, h.Buckets)
}

// commit returns the median of the commit durations since the last call.
func (a *SeatTuner) commit() time.Duration {
	if a.Commits == nil {
		return 0
	}
	bounds, counts := a.Commits()
	fresh := freshCounts(&a.finished, counts)
	return atQuantile(0.5, fresh, append([]float64{0}, bounds...))
}

// freshCounts returns the increase of each count since the last call.
func freshCounts[T int64 | uint64](last *[]T, counts []T) []T {
	fresh := slices.Clone(counts)
	for i := range *last {
		fresh[i] -= (*last)[i]
	}
	*last = slices.Clone(counts)
	return fresh
}

// atQuantile returns the q-quantile of a histogram, or 0 if it is empty. Bucket i contains the
// values from bounds[i] to bounds[i+1].
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

func (a *SeatTuner) logSeats(now time.Time, seats int) {
	change := math.Abs(float64(seats-a.loggedSeats)) / float64(a.loggedSeats)
	state := a.state()
	if change <= logChange || now.Sub(a.loggedAt) < logPeriod || state.Probing || a.OnChange == nil {
		return
	}
	a.OnChange(a.loggedSeats, seats, state)
	a.loggedSeats, a.loggedAt = seats, now
}

// Done records the cost of a finished request. The time of the store's commit, and the time
// elsewhere (waiting for the client or a webhook), are not part of the service time.
func (a *SeatTuner) Done(t *Ticket, class uint64, ran, commit, elsewhere time.Duration) {
	commit = min(commit, ran)
	elsewhere = min(elsewhere, ran-commit)
	a.controller.Done(autoseats.Outcome{Class: class, Seats: t.width, Estimated: t.est.plain, Started: t.Started, Service: ran - commit - elsewhere, Commit: commit,
		ExternalWait: elsewhere})
}

// CorrectEstimate corrects an estimate by the measured costs of earlier requests of the class.
func (a *SeatTuner) CorrectEstimate(class uint64, list bool, est *Estimate) {
	seats, likely := a.controller.CorrectSeats(class, est.InitialSeats)
	est.ExpectedDuration = min(likely, maxExpectedDuration)
	if list {
		est.plain = est.InitialSeats
		est.InitialSeats = seats
	}
}

// Dump writes the debug page dump_seats.
func (a *SeatTuner) Dump(w io.Writer) {
	s := a.state()
	table := dumpTable{tabwriter.NewWriter(w, 8, 0, 1, ' ', 0)}
	table.row("Seats", "InUse", "Goodput", "Efficiency", "Headroom", "RunDelay", "Commit", "CalmCommit", "Probing", "Probes", "Classes")
	two := func(x float64) string { return fmt.Sprintf("%.2f", x) }
	table.row(s.Seats, two(s.InUse), two(s.Goodput), two(s.Efficiency), two(s.Headroom), s.RunDelay, s.Commit, s.IdleCommit, s.Probing, s.Probes, s.Classes)
	_ = table.Flush()
}

// setSeats sets the total number of seats and divides them among the levels. Running requests keep
// their seats.
func (d *Dispatcher) setSeats(seats int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tunedSeats = seats
	d.divideLocked(d.specsLocked())
	d.lendLocked()
}

// divideLocked computes the nominal seats of the levels.
func (d *Dispatcher) divideLocked(specs map[string]*flowcontrolv1.PriorityLevelConfiguration) {
	var shares float64
	for _, l := range d.levels {
		shares += float64(l.allocation.shares)
	}
	if d.tunedSeats > 0 {
		d.fitLocked(shares)
	}
	for name, l := range d.levels {
		l.allocation.divide(d.seats, shares)
		if obj := specs[name]; obj != nil { // the level is not being removed
			l.shape(&obj.Spec, l.allocation.nominal)
		}
	}
	d.scaleTrafficLocked(specs)
}

// fitLocked sets d.seats so that the levels' nominal seats sum to at most the seats that the
// machine can carry.
func (d *Dispatcher) fitLocked(shares float64) {
	sum := func() (sum int) {
		for _, l := range d.levels {
			sum += int(math.Ceil(float64(d.seats) * float64(l.allocation.shares) / shares))
		}
		return sum
	}
	for d.seats = d.tunedSeats; shares > 0 && d.seats > 1 && sum() > d.tunedSeats; {
		d.seats--
	}
}

// A seatUse contains the seat-time of a level since the last call of takeUse, and the time during
// which requests were waiting.
type seatUse struct{ held, waited time.Duration }

func (u *seatUse) pass(seats int, waiting bool, dt time.Duration) {
	u.held += time.Duration(seats) * dt
	if waiting {
		u.waited += dt
	}
}

// takeUse returns the seat-time of all limited levels since the last call, and the longest waiting
// time among these levels.
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

// keepLocked returns the decay factor of the demand's envelope for the current period.
func (d *Dispatcher) keepLocked() float64 {
	return math.Pow(smoothing, d.period.Seconds()/adjustPeriod.Seconds())
}

// UncorrectedSeats returns the estimated number of seats before the correction by experience, or 0
// if there was no correction.
func (t *Ticket) UncorrectedSeats() int { return t.est.plain }

// WorkClass returns a hash that is equal for similar requests, whose running times are learned
// together. They have the same words (such as verb and resource) and the same flags, and a similar
// number of seats.
func WorkClass(seats int, inNamespace, past bool, words ...string) uint64 {
	const prime = 1099511628211
	h := uint64(14695981039346656037) // FNV-1a
	for _, word := range words {
		for i := range len(word) {
			h = (h ^ uint64(word[i])) * prime
		}
		h *= prime
	}
	if inNamespace {
		h = (h ^ 1) * prime
	}
	if past {
		h = (h ^ 2) * prime
	}
	return (h ^ uint64(bits.Len(uint(seats)))) * prime
}
