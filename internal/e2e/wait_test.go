package e2e

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"apilet/internal/apitest"
)

// A limitedTest is a test with a given deadline. It records its failure.
type limitedTest struct {
	testing.TB
	end     time.Time
	failure string
}

func (t *limitedTest) Deadline() (time.Time, bool) { return t.end, true }
func (t *limitedTest) Helper()                     {}
func (t *limitedTest) Fatalf(format string, args ...any) {
	t.failure = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// TestWaitsEndWithTheTest checks that a wait without success reports the last state before the test
// binary times out.
func TestWaitsEndWithTheTest(t *testing.T) {
	t.Parallel()
	limited, looks, ended := &limitedTest{TB: t, end: time.Now().Add(100 * time.Millisecond)}, 0, make(chan struct{})
	go func() {
		defer close(ended)
		apitest.WaitFor(limited, "a miracle", func() bool { looks++; return false }, func() any { return fmt.Sprintf("%d looks", looks) })
	}()
	<-ended
	if want := fmt.Sprintf("for a miracle; last seen: %d looks", looks); !strings.HasSuffix(limited.failure, want) {
		t.Errorf("got %q, want %q in it", limited.failure, want)
	}
	if left := time.Until(apitest.Deadline(&limitedTest{TB: t, end: time.Now().Add(10 * time.Minute)})); left > 9*time.Minute+30*time.Second {
		t.Errorf("%v remain of ten minutes, which leaves no time to report", left)
	}
	if at := apitest.Deadline(struct{ testing.TB }{t}); !at.IsZero() {
		t.Errorf("without a timeout, waits end at %v", at)
	}
}
