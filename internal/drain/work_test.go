package drain

import (
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Wait ends with the work, or with the time; then it names what has not ended.
func TestWaitNamesWhatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var work Work
		if err := work.Wait(time.Second); err != nil {
			t.Error("no work:", err)
		}
		hang := make(chan struct{})
		work.Go("b", func() { <-hang })
		work.Go("a", func() { <-hang })
		work.Go("a", func() { <-hang })
		work.Go("what ends", func() { time.Sleep(time.Second) })
		begun := time.Now()
		err := work.Wait(4 * time.Second)
		if !errors.Is(err, ErrUnfinished) || err.Error() != "a, b did not end within 4s" || time.Since(begun) != 4*time.Second {
			t.Errorf("got %v after %v", err, time.Since(begun))
		}
		close(hang)
		if err := work.Wait(4 * time.Second); err != nil {
			t.Error("all has ended:", err)
		}
	})
}

// The first signal tells, the second ends; so does the time.
func TestTold(t *testing.T) {
	for _, c := range []struct {
		name, why string
		again     bool
		within    time.Duration
	}{
		{"a second signal", "told a second time", true, time.Hour},
		{"too late", "did not stop within 1ms", false, time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			ended := make(chan string, 1)
			told, forget := SignalContext(c.within, func(why string) { ended <- why }, tellable)
			defer forget()
			if told.Err() != nil {
				t.Fatal("told before any signal")
			}
			tell(t)
			<-told.Done()
			if c.again {
				tell(t)
			}
			if why := <-ended; !strings.Contains(why, c.why) {
				t.Errorf("got %q", why)
			}
		})
	}
	told, forget := SignalContext(time.Hour, func(string) { t.Error("ended") }, tellable)
	forget()
	forget()
	<-told.Done()
}

func tell(t *testing.T) {
	t.Helper()
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Signal(tellable)
	}
	if err != nil {
		t.Skip("no signal to oneself here:", err)
	}
}

var tellable = os.Interrupt
