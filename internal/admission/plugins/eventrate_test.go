package plugins

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// bucketsOf are one limit's, at a time that the test sets.
func bucketsOf(limit eventLimit, now func() time.Time) *eventBuckets {
	return newEventLimiter([]eventLimit{limit}, now)[0]
}

// TestBucketsFillAndAreForgotten: qps a second up to burst; of the keys those that were used last are known.
func TestBucketsFillAndAreForgotten(t *testing.T) {
	now := time.Unix(1_900_000_000, 0)
	b := bucketsOf(eventLimit{Type: "Namespace", QPS: 2, Burst: 3, CacheSize: 2}, func() time.Time { return now })
	took := func(key string, tries int) (n int) {
		for range tries {
			if b.take(key) {
				n++
			}
		}
		return n
	}
	for i, c := range []struct {
		wait time.Duration
		key  string
		want int
	}{
		{0, "a", 3}, {400 * time.Millisecond, "a", 0}, {100 * time.Millisecond, "a", 1}, {time.Second, "a", 2}, {time.Hour, "a", 3},
		{-time.Minute, "a", 0}, // a clock that is put back gives nothing
		{0, "b", 3}, {0, "a", 0}, {0, "c", 3}, {0, "a", 0}, {0, "b", 3}, {0, "c", 3}, {0, "a", 3},
	} {
		now = now.Add(c.wait)
		if got := took(c.key, 5); got != c.want {
			t.Errorf("%d: %s gave %d tokens, want %d", i, c.key, got, c.want)
		}
	}
	if len(b.known) != 2 || b.recent.Len() != 2 {
		t.Errorf("%d keys and %d buckets are known, want 2", len(b.known), b.recent.Len())
	}
}

// TestBucketsHoldUnderRaces: however many take at once, burst get through; and long keys cost no more memory than short ones.
func TestBucketsHoldUnderRaces(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_900_000_000, 0)
	b := bucketsOf(eventLimit{Type: "Namespace", QPS: 1, Burst: 50}, func() time.Time { return now })
	var taken atomic.Int64
	var running sync.WaitGroup
	for w := range 8 {
		running.Go(func() {
			for i := range 1000 {
				if b.take("shared") {
					taken.Add(1)
				}
				b.take(strings.Repeat("x", 1000) + fmt.Sprint(w, i))
			}
		})
	}
	running.Wait()
	if taken.Load() != 50 || len(b.known) > defaultBuckets || b.recent.Len() != len(b.known) {
		t.Errorf("%d were let through, want 50; %d keys are known", taken.Load(), len(b.known))
	}
}
