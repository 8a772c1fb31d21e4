package flowcontrol

import (
	"context"
	"fmt"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"apilet/internal/flowcontrol/autoseats"
)

func (d *Dispatcher) nominals() (sum int, byName map[string]int) {
	byName = map[string]int{}
	d.each(func(l *Level) {
		byName[l.Name] = l.allocation.nominal
		sum += l.allocation.nominal
	})
	return sum, byName
}

// TestSeatsThatFollowTheMachineSumUp checks that the seats of all levels add up to the total number
// of seats, except for rounding errors, and that every level has at least one seat.
func TestSeatsThatFollowTheMachineSumUp(t *testing.T) {
	t.Parallel()
	objs := freshServer()
	d, _ := NewAutoDispatcher(time.Minute)
	d.Configure(objs.Schemas, objs.Levels)
	for seats := 7; seats <= 600; seats++ {
		d.setSeats(seats)
		sum, byName := d.nominals()
		if sum > seats || sum < seats-6 {
			t.Fatalf("%d seats are wanted, levels have %d: %v", seats, sum, byName)
		}
		for name, n := range byName {
			if n < 1 && name != "exempt" {
				t.Fatalf("%d seats: %s has %d", seats, name, n)
			}
		}
	}
	d.setSeats(8)
	d.Configure(objs.Schemas, objs.Levels)
	if sum, byName := d.nominals(); sum != 8 {
		t.Errorf("after a change of the configuration levels have %v", byName)
	}
	given := NewDispatcher(8, time.Minute)
	given.Configure(objs.Schemas, objs.Levels)
	if sum, _ := given.nominals(); sum != 12 {
		t.Errorf("a given number of 8 seats is %d for the levels, 12 in Kubernetes", sum)
	}
}

// crowd simulates clients that send the next request as soon as they receive a response. take
// returns how long the request should run.
func crowd(ctx context.Context, d *Dispatcher, a *SeatTuner, clients int, take func() (ran, elsewhere time.Duration)) (wait func()) {
	var wg sync.WaitGroup
	dig := Digest{User: "system:serviceaccount:a:b", Groups: []string{"system:serviceaccounts", "system:authenticated"}, ResourceRequest: true,
		Verb: "create", Version: "v1", Resource: "configmaps", Namespace: "a"}
	for range clients {
		wg.Go(func() {
			for ctx.Err() == nil {
				dig := dig
				dig.Received = time.Now()
				_ = d.Dispatch(ctx, &dig, Estimate{InitialSeats: 1}, func(t *Ticket) {
					ran, elsewhere := take()
					time.Sleep(ran + elsewhere)
					a.Done(t, 1, time.Since(t.Started), 0, elsewhere)
				})
			}
		})
	}
	return wg.Wait
}

// TestSeatsFollowWhatRequestsTake checks that the number of seats grows if requests are only
// waiting for other servers. The limits of the levels must be updated within a second, and only one
// line per minute may be logged.
func TestSeatsFollowWhatRequestsTake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		objs := freshServer()
		d, a := NewAutoDispatcher(time.Minute)
		// ignore the scheduling delays of this test's process
		a.delays = []metrics.Sample{{Name: "/none"}}
		d.Configure(objs.Schemas, objs.Levels)
		var told []string
		a.OnChange = func(from, to int, _ autoseats.State) {
			told = append(told, fmt.Sprint(time.Now().Format("05"), " ", to > from))
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { a.Run(ctx) })
		running.Go(func() { d.Run(ctx) })
		wait := crowd(ctx, d, a, 300, func() (ran, elsewhere time.Duration) { return time.Millisecond, 300 * time.Millisecond })
		time.Sleep(8 * time.Second)
		if sum, byName := d.nominals(); sum < 200 || a.state().Seats < 200 {
			t.Errorf("levels have %d seats, %v, the controller wants %d", sum, byName, a.state().Seats)
		}
		d.levels["workload-low"].mu.Lock()
		if l := d.levels["workload-low"]; l.limit < 150 || l.inUse < 150 {
			t.Errorf("the level that is busy has %d seats, %d in use", l.limit, l.inUse)
		}
		d.levels["workload-low"].mu.Unlock()
		time.Sleep(30 * time.Second)
		if len(told) != 1 {
			t.Errorf("the log was told %q in half a minute", told)
		}
		var page strings.Builder
		a.Dump(&page)
		if !strings.HasPrefix(page.String(), "Seats") || strings.Count(page.String(), "\n") != 2 {
			t.Errorf("the dump is %q", page.String())
		}
		cancel()
		wait()
		running.Wait()
	})
}

// TestSeatsStayFewWhereRequestsOnlyQueue checks that the number of seats stays small if more
// concurrent requests only take longer.
func TestSeatsStayFewWhereRequestsOnlyQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		objs := freshServer()
		d, a := NewAutoDispatcher(time.Minute)
		a.delays = []metrics.Sample{{Name: "/none"}}
		d.Configure(objs.Schemas, objs.Levels)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { a.Run(ctx) })
		running.Go(func() { d.Run(ctx) })
		door := make(chan struct{}, 2)
		wait := crowd(ctx, d, a, 200, func() (ran, elsewhere time.Duration) {
			door <- struct{}{}
			time.Sleep(10 * time.Millisecond)
			<-door
			return 0, 0
		})
		time.Sleep(40 * time.Second)
		if s := a.state(); s.Seats > 8*2+2*7 {
			t.Errorf("%d seats for what does two requests at a time: %+v", s.Seats, s)
		}
		cancel()
		wait()
		running.Wait()
	})
}

func TestQuantileOfCounts(t *testing.T) {
	t.Parallel()
	bounds := []float64{0, .001, .002, .004}
	for _, test := range []struct {
		counts []int64
		q      float64
		want   time.Duration
	}{
		{[]int64{0, 0, 0, 0}, .5, 0},
		{[]int64{10, 0, 0, 0}, .5, 500 * time.Microsecond},
		{[]int64{0, 10, 0, 0}, 1, 2 * time.Millisecond},
		{[]int64{5, 0, 5, 0}, .9, 3600 * time.Microsecond},
		{[]int64{0, 0, 0, 3}, .5, 4 * time.Millisecond}, // beyond all bounds
	} {
		if got := atQuantile(test.q, test.counts, bounds); got.Round(time.Microsecond) != test.want {
			t.Errorf("%v at %v: %v, want %v", test.counts, test.q, got, test.want)
		}
	}
	var last []int64
	freshCounts(&last, []int64{1, 2})
	if fresh := freshCounts(&last, []int64{4, 2}); fresh[0] != 3 || fresh[1] != 0 {
		t.Errorf("fresh counts %v", fresh)
	}
}

// TestEstimatesLearn checks that the estimate is increased for LISTs that take four times as long
// per seat as other requests, and that the expected duration is correct.
func TestEstimatesLearn(t *testing.T) {
	t.Parallel()
	_, a := NewAutoDispatcher(time.Minute)
	start := time.Unix(1000, 0)
	// no request waits, so the following measurements count as calm
	a.controller.Tick(autoseats.Sample{Now: start})
	for range 400 {
		start = start.Add(time.Second)
		a.controller.Done(autoseats.Outcome{Class: 1, Seats: 10, Estimated: 10, Started: start, Service: 10 * time.Millisecond})
		a.controller.Done(autoseats.Outcome{Class: 2, Seats: 10, Estimated: 10, Started: start, Service: 40 * time.Millisecond})
		a.controller.Done(autoseats.Outcome{Class: 3, Seats: 1, Started: start, Service: time.Millisecond, ExternalWait: time.Minute})
	}
	seats := func(class uint64) (n int, likely time.Duration) {
		est := Estimate{InitialSeats: 10}
		a.CorrectEstimate(class, true, &est)
		return est.InitialSeats, est.ExpectedDuration
	}
	small, _ := seats(1)
	large, likely := seats(2)
	if large < 14 || small > 6 || large < 3*small || likely.Round(time.Millisecond) != 40*time.Millisecond {
		t.Errorf("learned %d and %d seats from 10, likely %v", small, large, likely)
	}
	if n, likely := seats(4); n != 10 || likely != 0 {
		t.Errorf("of what nobody has seen: %d, %v", n, likely)
	}
	est := Estimate{InitialSeats: 1}
	if a.CorrectEstimate(3, false, &est); est.InitialSeats != 1 || est.ExpectedDuration != maxExpectedDuration {
		t.Errorf("a create that a webhook delays is estimated at %+v", est)
	}
}
