// Package exposition is what a server's metrics need beside Prometheus' client library: families that are made and registered in one line,
// gauges that show peaks, and a bound on what may become a label.
//
//	r := exposition.NewRegistry()
//	calls := r.Counters("apilet_calls_total", "Calls, by name.", []string{"name"})
//	running := r.Peak("apiserver_current_inflight_requests", "...", "readOnly")
//	names := exposition.Bounded[string]{Most: 1024}
//	if !names.Admits(name) { name = "other" } // a series is never given back
package exposition

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A Registry has one server's families: there is no global one.
type Registry struct{ *prometheus.Registry }

// NewRegistry makes an empty one.
func NewRegistry() Registry { return Registry{prometheus.NewRegistry()} }

// Counters makes counters with these labels, and registers them. So do the next two.
func (r Registry) Counters(name, help string, labels []string) *prometheus.CounterVec {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	r.MustRegister(vec)
	return vec
}

// Gauges makes gauges.
func (r Registry) Gauges(name, help string, labels []string) *prometheus.GaugeVec {
	vec := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	r.MustRegister(vec)
	return vec
}

// Histograms makes histograms with buckets up to these bounds.
func (r Registry) Histograms(name, help string, labels []string, buckets []float64) *prometheus.HistogramVec {
	vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	r.MustRegister(vec)
	return vec
}

// A PeakGauge shows the highest value of the running second and the one before: a scrape each half minute would hardly ever see the
// value of the moment above zero.
type PeakGauge struct {
	mu         sync.Mutex // guards what follows
	now        int
	second     int64 // Unix time of the second that peak is about
	peak, last int
}

// Peak makes a PeakGauge for one kind of requests, and registers it.
func (r Registry) Peak(name, help, kind string) *PeakGauge {
	g := &PeakGauge{}
	r.MustRegister(prometheus.NewGaugeFunc(
		prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: prometheus.Labels{"request_kind": kind}}, g.value))
	return g
}

// Add changes the value by delta; now is the caller's clock, which it has read anyway.
func (g *PeakGauge) Add(delta int, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rollLocked(now.Unix())
	g.now += delta
	g.peak = max(g.peak, g.now)
}

func (g *PeakGauge) value() float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rollLocked(time.Now().Unix())
	return float64(max(g.peak, g.last))
}

func (g *PeakGauge) rollLocked(second int64) {
	if second <= g.second { // equal nearly always; a clock set back must not hide a peak
		return
	}
	g.last = g.now
	if second == g.second+1 {
		g.last = g.peak
	}
	g.second, g.peak = second, g.now
}

// Bounded is the first so many values of a label, or of several. Safe for concurrent use.
type Bounded[T comparable] struct {
	Most int // values

	mu   sync.Mutex // guards seen
	seen map[T]bool
}

// Admits says whether a value is one of the first Most.
func (b *Bounded[T]) Admits(value T) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.seen[value] || len(b.seen) >= b.Most {
		return b.seen[value]
	}
	if b.seen == nil {
		b.seen = map[T]bool{}
	}
	b.seen[value] = true
	return true
}
