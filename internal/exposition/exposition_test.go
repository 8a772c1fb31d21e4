package exposition

import (
	"testing"
	"time"
)

func TestPeakGaugeKeepsThePeakForASecond(t *testing.T) {
	t.Parallel()
	g := &PeakGauge{}
	at := func(second int64) int { g.rollLocked(second); return max(g.peak, g.last) }
	now := time.Unix(1000, 0)
	g.Add(1, now)
	g.Add(1, now)
	g.Add(-2, now)
	for _, c := range []struct {
		second int64
		want   int
	}{{1000, 2}, {999, 2}, {1001, 2}, {1002, 0}} {
		if got := at(c.second); got != c.want {
			t.Errorf("at second %d: got %d, want %d", c.second, got, c.want)
		}
	}
	g.Add(1, time.Unix(1003, 0))
	if got := at(2000); got != 1 {
		t.Errorf("with one still running, much later: got %d, want 1", got)
	}
}

func BenchmarkPeakGauge(b *testing.B) {
	g, now := &PeakGauge{}, time.Now()
	b.ReportAllocs()
	for b.Loop() {
		g.Add(1, now)
		g.Add(-1, now)
	}
}
