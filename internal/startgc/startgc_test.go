package startgc

import (
	"os"
	"runtime/debug"
	"testing"
)

// percentage returns the current percentage and leaves it as it is.
func percentage() int {
	now := debug.SetGCPercent(100)
	debug.SetGCPercent(now)
	return now
}

func TestCollectRestoresTheUsualRate(t *testing.T) {
	if os.Getenv("GOGC") != "" {
		t.Skip("GOGC is set")
	}
	if got := percentage(); got != startPercent {
		t.Errorf("the percentage is %d during a start, want %d", got, startPercent)
	}
	Collect()
	if got := percentage(); got != 100 {
		t.Errorf("the percentage is %d after the start, want 100", got)
	}
	debug.SetGCPercent(200)
	Collect()
	if got := percentage(); got != 200 {
		t.Errorf("the second Collect set the percentage to %d", got)
	}
}
