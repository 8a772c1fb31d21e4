package clock

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fake is a machine's clock that a test sets.
type fake struct {
	ahead atomic.Int64
	kept  atomic.Bool
}

func (m *fake) set(at time.Time) { m.ahead.Store(int64(time.Until(at))) }
func (m *fake) clock() *Clock {
	c := New(func() time.Time { return time.Now().Add(time.Duration(m.ahead.Load())) })
	c.isSynchronized = m.kept.Load
	return c
}

var (
	lastWrite = Earliest.AddDate(1, 0, 0)
	epoch     = time.Unix(0, 0)
)

// within says that a clock shows a moment, to the seconds that a test took.
func within(t *testing.T, what string, got, want time.Time) {
	t.Helper()
	if got.Sub(want).Abs() > time.Second {
		t.Errorf("%s: the clock shows %s, want %s", what, got.UTC(), want.UTC())
	}
}

func TestClockBehindWhatHasPassedGoesOnFromThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m fake
		m.set(epoch)
		c := m.clock()
		within(t, "1970, nothing known", c.Now(), Earliest)
		c.Observe(lastWrite)
		within(t, "1970, a file known", c.Now(), lastWrite)
		if got, want := c.Lag(), lastWrite.Sub(epoch); (got - want).Abs() > time.Second {
			t.Errorf("behind by %s, want %s", got, want)
		}
		time.Sleep(time.Hour)
		within(t, "an hour later", c.Now(), lastWrite.Add(time.Hour))
		m.set(lastWrite.Add(48 * time.Hour))
		within(t, "put right", c.Now(), lastWrite.Add(48*time.Hour))
		if c.Lag() != 0 {
			t.Errorf("behind by %s once it was put right", c.Lag())
		}
	})
}

func TestRightClockIsBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m fake
		m.set(lastWrite.Add(time.Minute))
		c := m.clock()
		c.Observe(lastWrite)
		within(t, "a minute after the last write", c.Now(), lastWrite.Add(time.Minute))
		m.set(lastWrite.Add(-time.Minute))
		c = m.clock()
		c.Observe(lastWrite)
		within(t, "a minute before it", c.Now(), lastWrite)
		m.kept.Store(true)
		c = m.clock()
		c.Observe(lastWrite.AddDate(20, 0, 0))
		within(t, "kept by a time server", c.Now(), lastWrite.Add(-time.Minute))
		m.set(epoch)
		c = m.clock()
		c.Observe(lastWrite)
		within(t, "kept by a time server that is wrong", c.Now(), lastWrite)
	})
}

// Run tells each setting of the machine's clock; what it then takes for the time is in the last column.
func TestSettingTheClockIsTold(t *testing.T) {
	wrong := lastWrite.AddDate(12, 0, 0) // of a file that was written while the clock was ahead
	for _, c := range []struct {
		name                 string
		start, passed, setTo time.Time
		kept                 bool
		want                 time.Time
	}{
		{"forward by decades", epoch, lastWrite, lastWrite.Add(time.Hour), false, lastWrite.Add(time.Hour)},
		{"forward, and still behind", epoch, lastWrite, lastWrite.Add(-time.Hour), false, lastWrite},
		{"forward, still behind the file, but kept by a time server", epoch, wrong, lastWrite, true, lastWrite},
		{"back by minutes", lastWrite.Add(time.Hour), lastWrite, lastWrite.Add(50 * time.Minute), false, lastWrite.Add(50 * time.Minute)},
		{"back to before the file's last write", lastWrite.Add(time.Hour), lastWrite, lastWrite.Add(-time.Hour), false, lastWrite.Add(-time.Hour)},
		{"back from a wrong future, in which the file was written", wrong.Add(time.Minute), wrong, lastWrite, false, lastWrite},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var m fake
				m.set(c.start)
				clock, steps := m.clock(), []time.Duration{}
				clock.Observe(c.passed)
				ctx, cancel := context.WithCancel(t.Context())
				go clock.Run(ctx, CheckInterval, func(step time.Duration) { steps = append(steps, step) })
				time.Sleep(3*CheckInterval + time.Second)
				if len(steps) != 0 {
					t.Errorf("told of %v before anybody set it", steps)
				}
				was := clock.machine()
				m.set(c.setTo)
				m.kept.Store(c.kept)
				time.Sleep(CheckInterval)
				cancel()
				synctest.Wait()
				if want := c.setTo.Sub(was); len(steps) != 1 || (steps[0]-want).Abs() > time.Second {
					t.Errorf("told of %v, want one step of %s", steps, want)
				}
				lag := CheckInterval
				if c.want.Equal(c.passed) {
					lag += 3*CheckInterval + time.Second
				}
				within(t, "afterwards", clock.Now(), c.want.Add(lag))
			})
		})
	}
}

// Back to 1970 is no moment that can be: the clock goes on from the newest that was seen.
func TestSetBackToBeforeTheProgramIsNotBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m fake
		m.set(lastWrite.Add(time.Hour))
		c := m.clock()
		c.Observe(lastWrite)
		ctx, cancel := context.WithCancel(t.Context())
		go c.Run(ctx, CheckInterval, func(time.Duration) {})
		time.Sleep(CheckInterval + time.Second)
		m.set(epoch)
		time.Sleep(CheckInterval)
		cancel()
		synctest.Wait()
		within(t, "set to 1970 by somebody", c.Now(), lastWrite.Add(time.Hour+2*CheckInterval+time.Second))
	})
}
