// Package exposition extends Prometheus' client library. It provides functions that create and
// register metrics, gauges for peak values, and a limit on the number of label values.
//
//	r := exposition.NewRegistry()
//	calls := r.Counters("apilet_calls_total", "Calls, by name.", []string{"name"})
//	running := r.Peak("apiserver_current_inflight_requests", "...", "readOnly")
//	names := exposition.Bounded[string]{Max: 1024}
//	if !names.Admits(name) { name = "other" } // a series is never removed
package exposition

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Registry holds the metrics of one server. There is no global registry.
type Registry struct{ *prometheus.Registry }

// NewRegistry returns an empty registry.
func NewRegistry() Registry { return Registry{prometheus.NewRegistry()} }

// Counters creates and registers counters with these labels.
func (r Registry) Counters(name, help string, labels []string) *prometheus.CounterVec {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	r.MustRegister(vec)
	return vec
}

// Gauges creates and registers gauges with these labels.
func (r Registry) Gauges(name, help string, labels []string) *prometheus.GaugeVec {
	vec := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	r.MustRegister(vec)
	return vec
}

// Histograms creates and registers histograms with these labels and bucket bounds.
func (r Registry) Histograms(name, help string, labels []string, buckets []float64) *prometheus.HistogramVec {
	vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	r.MustRegister(vec)
	return vec
}

// PeakGauge returns the maximum value during the current and the previous second. A scrape every
// half minute would rarely see a current value above zero.
type PeakGauge struct {
	mu         sync.Mutex // guards the following fields
	now        int
	second     int64 // Unix time of the second that peak refers to
	peak, last int
}

// Peak creates and registers a PeakGauge for one kind of requests.
func (r Registry) Peak(name, help, kind string) *PeakGauge {
	g := &PeakGauge{}
	r.MustRegister(prometheus.NewGaugeFunc(
		prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: prometheus.Labels{"request_kind": kind}}, g.value))
	return g
}

// Add changes the value by delta. now is the current time, which the caller has already read.
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
	// usually equal, but may be less if the clock was set back
	if second <= g.second {
		return
	}
	g.last = g.now
	if second == g.second+1 {
		g.last = g.peak
	}
	g.second, g.peak = second, g.now
}

// Bounded is a set that admits a limited number of label values. It is safe for concurrent use.
type Bounded[T comparable] struct {
	Max int // maximum number of values

	mu   sync.Mutex // guards seen
	seen map[T]bool
}

// Admits reports whether value is one of the first Max values.
func (b *Bounded[T]) Admits(value T) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.seen[value] || len(b.seen) >= b.Max {
		return b.seen[value]
	}
	if b.seen == nil {
		b.seen = map[T]bool{}
	}
	b.seen[value] = true
	return true
}
