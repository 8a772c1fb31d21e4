package store

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestWaitsInVainGetShort: the next commit waits as long as the last one took, but hardly ever while nobody comes for it.
func TestWaitsInVainGetShort(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(*testing.T) {
		const took = time.Millisecond
		p := pace{size: 3, waiting: 2, ended: time.Now(), took: took}
		want := func(patience time.Duration) {
			t.Helper()
			if expected, got := p.next(); expected != 5 || got != patience {
				t.Fatalf("waits for %d changes for %v, want 5 for %v", expected, got, patience)
			}
		}
		for _, short := range []int{1, 3, 7, 15, 31, 63, 63} {
			want(took)
			p.learn(2, 0)
			for range short {
				want(took / 3)
				p.learn(2, 0)
			}
		}
		want(took)
		p.learn(2, 1) // half of them are worth it
		want(took)
		p.learn(3, 1)
		want(took / 3) // as at first
		p.learn(3, 0)
		want(took)

		p.took = time.Minute
		want(maxPatience)
		time.Sleep(maxPatience) // in which nobody came
		if expected, patience := p.next(); expected != 0 || patience != 0 {
			t.Errorf("waits for %d changes for %v after all that", expected, patience)
		}
	})
}
