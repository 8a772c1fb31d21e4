package limits

import (
	"math"
	"testing"
)

func TestPoolFollowsTheMemoryLimit(t *testing.T) {
	t.Parallel()
	for limit, want := range map[int64]int64{math.MaxInt64: 64 << 20, 256 << 20: 64 << 20, 96 << 20: 64 << 20, 40 << 20: 5 << 20, 1 << 20: Large, 0: Large} {
		if got := poolSize(limit); got != want {
			t.Errorf("a limit of %d: %d, want %d", limit, got, want)
		}
	}
}
