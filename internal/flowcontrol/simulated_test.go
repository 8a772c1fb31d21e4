package flowcontrol_test

import (
	"fmt"
	"testing"
	"time"

	"apilet/internal/flowcontrol/autoseats"
	"apilet/internal/flowcontrol/autoseats/simulated"
)

// These tests use virtual time and seeded random numbers, so that their results are always the
// same.

// limit for the 99th percentile of a light request's duration
const lightBound = 25 * time.Millisecond

// TestAsMuchIsDoneAsWithTheBestFixedNumber checks that the throughput is at least 90 % of the one
// with the best fixed number of seats, and that a light request gets a processor soon, or nearly as
// soon as with that number.
func TestAsMuchIsDoneAsWithTheBestFixedNumber(t *testing.T) {
	t.Parallel()
	for _, w := range simulated.Workloads() {
		for _, load := range []float64{0.5, 2, 10} {
			t.Run(fmt.Sprint(w.Name, " at ", load), func(t *testing.T) {
				t.Parallel()
				w := w
				w.Statics = []int{2, 4, 16, 32, 192}
				// at full capacity, additional load has no effect
				_, best := w.Best(min(load, 2), 1)
				auto, idle := w.At(load, 0, 1), w.At(0.01, 0, 1)
				bound := max(lightBound, 3*idle.LightP99, best.LightP99*5/4)
				// additional seats have an effect only after the webhook has responded
				if w.Name == simulated.Hooked {
					bound *= 3
				}
				if auto.Goodput < 0.9*best.Goodput {
					t.Errorf("%.2f of work are done a second, with the best fixed number %.2f", auto.Goodput, best.Goodput)
				}
				if auto.LightP99 > bound {
					t.Errorf("light requests take %v (p99), at most %v were to be", auto.LightP99, bound)
				}
			})
		}
	}
}

// perSecond runs a setup. It returns the amount of work and the number of seats for every second of
// the simulation.
func perSecond(s simulated.Setup) (done, seats []float64) {
	work := 0.0
	s.EveryTick = func(at float64, n int, m *simulated.Machine) {
		if len(done) < int(at+1e-9) {
			done, seats = append(done, m.Work-work), append(seats, float64(n))
			work = m.Work
		}
	}
	simulated.Run(s)
	return done, seats
}

func listsOn(cores int, changes ...simulated.Change) simulated.Setup {
	w := simulated.Workloads()[0]
	s := w.Setup
	s.Cores, s.Seed, s.Changes, s.Seconds = cores, 1, changes, changes[len(changes)-1].At+11
	return s
}

// settled returns the average of five seconds.
func settled(values []float64, from int) (mean float64) {
	for _, x := range values[from : from+5] {
		mean += x / 5
	}
	return mean
}

// TestLoadThatChangesTenfold checks that the controller adapts to tenfold changes of load, up and
// down, within five seconds.
func TestLoadThatChangesTenfold(t *testing.T) {
	t.Parallel()
	done, seats := perSecond(listsOn(2, simulated.Change{Rate: 50}, simulated.Change{At: 10, Rate: 500}, simulated.Change{At: 20, Rate: 50}, simulated.Change{At: 30, Rate: 500}))
	for _, from := range []int{15, 35} {
		if n, seats := settled(done, from), settled(seats, from); n < 1.75 || seats > 8 {
			t.Errorf("from second %d: %.2f of 2 processors do work, with %.1f seats", from, n, seats)
		}
	}
	if n := settled(done, 25); n < 0.7 {
		t.Errorf("at half the load %.2f are done", n)
	}
}

// TestProcessorsThatAreThrottled simulates a quota that reduces two processors to half a processor
// and back. The number of seats must follow, and requests must not wait longer.
func TestProcessorsThatAreThrottled(t *testing.T) {
	t.Parallel()
	done, seats := perSecond(listsOn(2, simulated.Change{Rate: 300}, simulated.Change{At: 10, Rate: -1, Speed: 0.25}, simulated.Change{At: 25, Rate: -1, Speed: 1}))
	for from, want := range map[int]float64{5: 1.75, 15: 0.43, 20: 0.43, 30: 1.75} {
		if n, seats := settled(done, from), settled(seats, from); n < want || seats > 8 {
			t.Errorf("from second %d: %.2f processors do work, at least %.2f could; %.1f seats", from, n, want, seats)
		}
	}
}

// TestDiskThatStalls checks that the number of seats is restored after the disk has stalled for a
// second.
func TestDiskThatStalls(t *testing.T) {
	t.Parallel()
	s := simulated.Workloads()[3].Setup
	s.Seed, s.Seconds = 1, 21
	s.Changes = []simulated.Change{{Rate: 8000}, {At: 10, Rate: -1, Stall: 1}}
	done, seats := perSecond(s)
	if before, after := settled(done, 5), settled(done, 15); after < 0.9*before {
		t.Errorf("%.2f a second were done before the stall, %.2f from four seconds after it; seats %v", before, after, seats)
	}
}

// TestQueueThatIsNotForAProcessor checks that additional seats are not used if they would not help,
// even if the run queue is long.
func TestQueueThatIsNotForAProcessor(t *testing.T) {
	t.Parallel()
	for _, w := range simulated.Workloads() {
		if w.Name != "lists, one at a time" {
			continue
		}
		if r := w.At(10, 0, 1); r.Seats > 20 {
			t.Errorf("%.0f seats, of which a list that runs takes 4", r.Seats)
		}
	}
}

// TestProcessorsThatOthersTake checks that load of other programs does not reduce the number of
// seats. The run queue is long, but fewer seats would not make requests faster.
func TestProcessorsThatOthersTake(t *testing.T) {
	t.Parallel()
	c := autoseats.New(autoseats.Bounds{Cores: 2, MinSeats: 7, MaxSeats: 600})
	now := time.Unix(1000, 0)
	for range 100 {
		now = now.Add(250 * time.Millisecond)
		n := c.State().Seats
		for range 10 {
			c.Done(autoseats.Outcome{Class: 1, Seats: 1, Started: now.Add(-10 * time.Millisecond), Service: time.Millisecond, Commit: 9 * time.Millisecond})
		}
		c.Tick(autoseats.Sample{Now: now, InUse: float64(n), Saturated: true, RunDelay: 50 * time.Millisecond, Commit: 5 * time.Millisecond})
	}
	if n := c.State().Seats; n < 16 {
		t.Errorf("%d seats, though requests take no longer for more of them", n)
	}
}

// TestIdleServerForgetsSurplus checks that the number of seats returns to its initial value on an
// idle server.
func TestIdleServerForgetsSurplus(t *testing.T) {
	t.Parallel()
	c := autoseats.New(autoseats.Bounds{Cores: 2, MinSeats: 7, MaxSeats: 600})
	now := time.Unix(1000, 0)
	for range 100 { // requests of webhooks use seats, but the processors are idle
		now = now.Add(250 * time.Millisecond)
		n := c.State().Seats
		for range 10 {
			c.Done(autoseats.Outcome{Class: 1, Seats: 1, Started: now.Add(-time.Second), Service: time.Millisecond, ExternalWait: time.Second})
		}
		c.Tick(autoseats.Sample{Now: now, InUse: float64(n), Saturated: true})
	}
	if n := c.State().Seats; n < 300 {
		t.Errorf("%d seats while all wait for others, want hundreds", n)
	}
	for range 4 * 600 {
		now = now.Add(250 * time.Millisecond)
		c.Tick(autoseats.Sample{Now: now})
	}
	if n := c.State().Seats; n > 8 {
		t.Errorf("%d seats after ten idle minutes", n)
	}
}
