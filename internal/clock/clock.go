// Package clock provides the time on machines whose own clock may be wrong.
//
// Most small boards do not have a battery for the clock. Until a time server is reached, the clock
// starts in 1970 or at the time of the last shutdown. If such a clock were used, new certificates
// and tokens would expire in 1971, and expired tokens would be valid again. However, some times are
// known to be in the past. This program was written after [Earliest], and the newest record of the
// data file contains the time of its write.
//
//	c := clock.New(nil)                  // the machine's clock, but never before Earliest
//	c.Observe(st.TimeOf(st.Revision()))  // nor before the newest time in the data file
//	now := c.Now()
//	go c.Run(ctx, clock.CheckInterval, func(step time.Duration) { ... }) // called when the machine's clock is set
//
// While the machine's clock is behind such a time, [Clock.Now] continues from that time with the
// monotonic clock until
//
//   - the machine's clock has passed it, or
//   - the kernel reports that a time server controls the machine's clock (Linux: adjtimex(2), STA_UNSYNC), or
//   - the machine's clock is set back to a time after [Earliest] while the server runs, because then the time in the file was wrong.
//
// A clock that is ahead cannot be distinguished from a correct clock. This package does not affect
// durations (deadlines, intervals, seats), because time.Now has a monotonic reading that is
// independent of the clock's settings. systemd-timesyncd and fake-hwclock also keep such a time in
// a file.
package clock

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// Earliest is always in the past, because the versions of Go and Kubernetes in this program are
// newer.
var Earliest = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

const (
	// interval between two checks whether the machine's clock has been set
	CheckInterval = 10 * time.Second
	// minimum step of the machine's clock; time servers slew smaller differences
	smallest = 2 * time.Second
)

// A Clock is the machine's clock, corrected by times that are known to be in the past. It is safe
// for concurrent use.
type Clock struct {
	machine        func() time.Time
	isSynchronized func() bool // reports whether a time server controls the machine's clock
	floor          atomic.Pointer[floor]
}

// A floor contains a time that is known to have passed and the monotonic time when it was recorded.
type floor struct{ at, since time.Time }

func (f *floor) now() time.Time { return f.at.Add(time.Since(f.since)) }

// New returns a clock. Tests may pass a replacement for the machine's clock, and other callers nil.
func New(machine func() time.Time) *Clock {
	c := &Clock{machine: machine, isSynchronized: func() bool { return false }}
	if machine == nil {
		c.machine, c.isSynchronized = time.Now, isTimeServerActive
	}
	c.floor.Store(&floor{Earliest, time.Now()})
	c.recordPassed()
	return c
}

// Now returns the time of the machine's clock, or the latest time that is known to have passed if
// that is later.
func (c *Clock) Now() time.Time {
	now := c.machine()
	if at := c.floor.Load().now(); now.Before(at) {
		return at
	}
	return now
}

// Lag returns the difference between the latest time that is known to have passed and the
// machine's clock, or 0 if the clock is not behind.
func (c *Clock) Lag() time.Duration {
	if by := c.floor.Load().now().Sub(c.machine()); by >= smallest {
		return by
	}
	return 0
}

// Check returns an error if the machine's clock is too far behind to be trusted.
func (c *Clock) Check() error {
	if by := c.Lag(); by > 0 {
		return fmt.Errorf("the machine's clock is at least %s slow: set it, for example with timedatectl, or wait for a time server",
			by.Round(time.Second))
	}
	return nil
}

// Observe records a time that has passed. It must be called before Run, and not concurrently.
func (c *Clock) Observe(at time.Time) {
	if at.After(c.Now()) && !(c.plausible() && c.isSynchronized()) {
		c.floor.Store(&floor{at.Round(0), time.Now()})
	}
}

func (c *Clock) plausible() bool { return !c.machine().Before(Earliest) }

// recordPassed records the machine's time as passed, so the clock continues from it if the
// machine's clock is set to 1970.
func (c *Clock) recordPassed() {
	if c.plausible() {
		c.floor.Store(&floor{c.machine().Round(0), time.Now()})
	}
}

// Run checks the machine's clock periodically until ctx is done. It calls set with the step if the
// clock has been set forward or back. For a machine that was suspended, the clock appears to have
// been set forward.
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
		if step <= -smallest || c.Lag() == 0 || c.isSynchronized() {
			c.recordPassed()
		}
		if step.Abs() >= smallest {
			set(step)
		}
	}
}
