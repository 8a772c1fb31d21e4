package flowcontrol_test

import (
	"fmt"
	"testing"
	"time"

	"apilet/internal/flowcontrol/autoseats"
	"apilet/internal/flowcontrol/autoseats/simulated"
)

// Time is virtual and chance has a seed, so these tests are the same each time.

const lightBound = 25 * time.Millisecond // for the 99th percentile of what a light request takes

// As much is done as with the best fixed number of seats, but for a tenth, and a light request finds a processor soon. Where it does not
// with the best fixed number either, it is to find one as soon, or nearly.
func TestAsMuchIsDoneAsWithTheBestFixedNumber(t *testing.T) {
	t.Parallel()
	for _, w := range simulated.Workloads() {
		for _, load := range []float64{0.5, 2, 10} {
			t.Run(fmt.Sprint(w.Name, " at ", load), func(t *testing.T) {
				t.Parallel()
				w := w
				w.Statics = []int{2, 4, 16, 32, 192}
				_, best := w.Best(min(load, 2), 1) // beyond what can be done, more of it changes nothing
				auto, idle := w.At(load, 0, 1), w.At(0.01, 0, 1)
				bound := max(lightBound, 3*idle.LightP99, best.LightP99*5/4)
				if w.Name == simulated.Hooked { // seats that are given now are felt when the webhook has answered
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

// perSecond plays a setup, and returns by second how much was done of what an empty machine could have, and the seats.
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

// settled is the average of the five seconds from a second on.
func settled(values []float64, from int) (mean float64) {
	for _, x := range values[from : from+5] {
		mean += x / 5
	}
	return mean
}

// A change of load by ten times, up and down, is over after five seconds.
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

// Half a processor where there were two, as a quota does it: fewer seats, no more waiting, and back again.
func TestProcessorsThatAreThrottled(t *testing.T) {
	t.Parallel()
	done, seats := perSecond(listsOn(2, simulated.Change{Rate: 300}, simulated.Change{At: 10, Rate: -1, Speed: 0.25}, simulated.Change{At: 25, Rate: -1, Speed: 1}))
	for from, want := range map[int]float64{5: 1.75, 15: 0.43, 20: 0.43, 30: 1.75} {
		if n, seats := settled(done, from), settled(seats, from); n < want || seats > 8 {
			t.Errorf("from second %d: %.2f processors do work, at least %.2f could; %.1f seats", from, n, want, seats)
		}
	}
}

// A disk that does nothing for a second takes nobody's seats away for longer than that.
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

// What few lists at a time can use is not exceeded for more of them, whatever the run queue says.
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

// Where other programs take the processors the run queue is long as well, but requests take what they take: fewer seats would not help.
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

// An idle night leaves the seats as few as a start does.
func TestIdleServerForgetsSurplus(t *testing.T) {
	t.Parallel()
	c := autoseats.New(autoseats.Bounds{Cores: 2, MinSeats: 7, MaxSeats: 600})
	now := time.Unix(1000, 0)
	for range 100 { // webhooks: seats are in use, and nothing is crowded
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
