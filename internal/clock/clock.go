// Package clock tells the time on a machine whose own clock may be wrong.
//
// Most small boards have no battery for their clock: they start in 1970, or at their last shutdown, and go on from there until a time server
// is reached. What is issued meanwhile (certificates, tokens) would end in 1971, tokens that have expired would be good again, and a history
// of the last hour would be one of the last fifty years. But nobody needs a clock to know that a moment has passed: this program was written
// after [Earliest], and the newest record of the data file was written when it says.
//
//	c := clock.New(nil)                  // the machine's clock, but never before Earliest
//	c.Passed(st.TimeOf(st.Revision()))   // nor before what the data file has seen
//	now := c.Now()
//	go c.Run(ctx, clock.LookEvery, func(step time.Duration) { ... }) // told when somebody sets the machine's clock
//
// A clock that lies behind such a moment is not believed: [Clock.Now] goes on from the moment, at the pace of the monotonic clock, until
//
//   - the machine's clock has passed it, or
//   - the kernel says that a time server keeps the machine's clock (Linux: adjtimex(2), STA_UNSYNC), or
//   - somebody sets the machine's clock back while the server runs, to a moment after [Earliest]: the file's moment was wrong, then.
//
// A clock that is ahead cannot be told from one that is right. Durations (deadlines, intervals, seats) are none of this package's business:
// time.Now has a monotonic reading, which no setting of the clock changes. systemd-timesyncd and fake-hwclock keep such a moment, too, in a file.
package clock

import (
	"context"
	"sync/atomic"
	"time"
)

// Earliest has passed wherever this program runs: the Go and the Kubernetes that it is made of are younger.
var Earliest = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

const (
	LookEvery = 10 * time.Second // between two looks whether the machine's clock has been set
	smallest  = 2 * time.Second  // step of the machine's clock that counts as one: time servers slew smaller ones
)

// A Clock is a machine's, corrected by what is known to have passed. Safe for concurrent use.
type Clock struct {
	machine func() time.Time
	kept    func() bool // whether a time server keeps the machine's clock
	floor   atomic.Pointer[floor]
}

// A floor is a moment that has passed, and when that became known by the monotonic clock.
type floor struct{ at, since time.Time }

func (f *floor) now() time.Time { return f.at.Add(time.Since(f.since)) }

// New makes a clock. machine stands for the machine's own in tests; nil is that one.
func New(machine func() time.Time) *Clock {
	c := &Clock{machine: machine, kept: func() bool { return false }}
	if machine == nil {
		c.machine, c.kept = time.Now, keptByTimeServer
	}
	c.floor.Store(&floor{Earliest, time.Now()})
	c.believe()
	return c
}

// Now is the time, or the latest moment that is known to have passed where the machine's clock lies behind it.
func (c *Clock) Now() time.Time {
	now := c.machine()
	if at := c.floor.Load().now(); now.Before(at) {
		return at
	}
	return now
}

// Behind is how far the machine's clock lies behind what is known to have passed; 0 where it does not.
func (c *Clock) Behind() time.Duration {
	if by := c.floor.Load().now().Sub(c.machine()); by >= smallest {
		return by
	}
	return 0
}

// Passed says that a moment has passed. Those who know such moments tell them one after the other, before Run.
func (c *Clock) Passed(at time.Time) {
	if at.After(c.Now()) && !(c.plausible() && c.kept()) {
		c.floor.Store(&floor{at.Round(0), time.Now()})
	}
}

func (c *Clock) plausible() bool { return !c.machine().Before(Earliest) }

// believe takes what the machine's clock shows for a moment that has passed, so that it goes on from here if the clock is set to 1970.
func (c *Clock) believe() {
	if c.plausible() {
		c.floor.Store(&floor{c.machine().Round(0), time.Now()})
	}
}

// Run looks at the machine's clock again and again, until ctx ends, and tells by how much it has been set, forward or back. A machine that
// has slept is one whose clock was set forward.
func (c *Clock) Run(ctx context.Context, every time.Duration, set func(step time.Duration)) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for wall, steady := c.machine(), time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		wallNow, steadyNow := c.machine(), time.Now()
		step := wallNow.Round(0).Sub(wall.Round(0)) - steadyNow.Sub(steady)
		wall, steady = wallNow, steadyNow
		if step <= -smallest || c.Behind() == 0 || c.kept() {
			c.believe()
		}
		if step.Abs() >= smallest {
			set(step)
		}
	}
}
