// Package metrics defines the Prometheus metrics of an API server. They have the names, labels,
// buckets and help texts of Kubernetes, so that dashboards and alerts for a cluster also work for
// apilet. As in kube-apiserver, the help text begins with the stability class. Metrics that only
// apilet has begin with apilet_. Each server has a separate registry.
//
// Each request is counted by Observe when it ends. The observers of each label set are created on
// first use and stored in a map. The map also limits memory, because a Prometheus series is never
// freed. After maxSeries label sets, every new one is counted as resource "other". Requests stay
// far below the limit, because only served resources are named, and only for users who may access
// them. Labels such as the names of webhooks and custom types have a separate, smaller limit.
//
//	m := metrics.New([2]int{1, 37})
//	m.Observe(metrics.Labels{Verb: "LIST", Resource: "pods", Scope: "namespace", ...}, metrics.Result{Code: 200, ...})
//	mux.Handle("/metrics", m.Handler())
//
//	apiserver_request_total{verb="LIST",resource="pods",scope="namespace",code="200",...} 17
//
// The package has four parts: this file counts requests, labels.go defines their labels, tables.go
// creates the metrics, and state.go contains metrics that are computed at each scrape.
package metrics

import (
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	podsecurity "k8s.io/pod-security-admission/api"

	"apilet/internal/admission"
	"apilet/internal/admission/plugins"
	"apilet/internal/cel/policy"
	"apilet/internal/exposition"
)

const (
	maxSeries  = 4096    // maximum number of label sets
	maxNames   = 1024    // maximum number of resources and of webhook names
	otherLabel = "other" // replaces values beyond a limit
)

// Metrics contains the metrics of one server. Other packages increment the exported counters
// directly.
type Metrics struct {
	Registry exposition.Registry

	requestMetrics
	watchMetrics
	securityMetrics
	hookMetrics
	policyMetrics
	podMetrics
	aggregationMetrics

	kinds exposition.Bounded[[3]string] // group, version and resource

	mu     sync.RWMutex // guards series
	series map[seriesKey]*Series
}

type requestMetrics struct {
	requests                           *prometheus.CounterVec
	durations, sliDurations, sizes     *prometheus.HistogramVec
	running, deprecated                *prometheus.GaugeVec
	terminations, aborts               *prometheus.CounterVec
	ReadOnlyInflight, MutatingInflight *exposition.PeakGauge
}

type watchMetrics struct {
	watchEvents                        *prometheus.CounterVec
	watchEventSizes, watchListDuration *prometheus.HistogramVec
}

type securityMetrics struct {
	Authenticated, Unauthenticated, AuthFailed prometheus.Counter // valid credentials, none, invalid ones
	Allowed, Forbidden                         prometheus.Counter
	AuditEvents, AuditRejected                 prometheus.Counter
	AuditErrors, AuditLevels                   *prometheus.CounterVec
	AuditFailing                               prometheus.Gauge // 1 while events wait in memory
	TLSHandshakeErrors                         prometheus.Counter
	health                                     *prometheus.GaugeVec
}

type hookMetrics struct {
	hookCalls, hookRejections, hookFailOpens *prometheus.CounterVec
	hookDurations                            *prometheus.HistogramVec
	hooks                                    exposition.Bounded[string] // their names
}

type policyMetrics struct {
	validations, mutations         *prometheus.CounterVec
	validationTimes, mutationTimes *prometheus.HistogramVec
	rules                          exposition.Bounded[[2]string] // admission policies and their bindings
}

type podMetrics struct {
	podChecks, podExemptions *prometheus.CounterVec
	newest                   podsecurity.Version // the newest version of the Pod security standards
}

type aggregationMetrics struct {
	unavailable *prometheus.CounterVec
	apiServices exposition.Bounded[string] // their names
}

// limit returns l if the number of resources is below the limit, and the labels for "other" if not.
func (m *Metrics) limit(l Labels) Labels {
	if !m.kinds.Admits([3]string{l.Group, l.Version, l.Resource}) {
		return Labels{Verb: l.Verb, Resource: otherLabel, Component: l.Component}
	}
	return l
}

// A seriesKey is a label set and a status code. Code 0 is for running requests.
type seriesKey struct {
	Labels
	code int
}

// Series contains the observers of one label set and status code. Observers that Kubernetes does
// not have are nil.
type Series struct {
	total               prometheus.Counter
	duration, sli, size prometheus.Observer

	Running    prometheus.Gauge // running, events and eventSizes are only for code 0
	events     prometheus.Counter
	eventSizes prometheus.Observer
}

// New returns the metrics of a server that implements the given version of Kubernetes.
func New(kubernetes [2]int) *Metrics {
	m := &Metrics{podMetrics: podMetrics{newest: podsecurity.MajorMinorVersion(kubernetes[0], kubernetes[1])},
		Registry: exposition.NewRegistry(), series: map[seriesKey]*Series{}}
	m.kinds.Max, m.hooks.Max, m.rules.Max, m.apiServices.Max = maxNames, maxNames, maxNames, maxNames
	m.Registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.addRequestMetrics()
	m.addWatchMetrics()
	m.addInflightMetrics()
	m.addSecurityMetrics()
	m.addWebhookMetrics()
	m.addPolicyMetrics()
	m.addPodSecurityMetrics()
	m.unavailable = m.Registry.Counters("aggregator_unavailable_apiservice_total",
		alpha+"Counter of APIServices which are marked as unavailable broken down by APIService name and reason.", []string{"name", "reason"})
	return m
}

// APIServiceUnavailable counts how often an APIService became unavailable.
func (m *Metrics) APIServiceUnavailable(name, reason string) {
	if !m.apiServices.Admits(name) {
		name = otherLabel
	}
	m.unavailable.WithLabelValues(name, reason).Inc()
}

// PodChecked counts a check of the PodSecurity plug-in. Future versions of the standards share one
// series, because the label of a namespace may contain any version.
func (m *Metrics) PodChecked(c plugins.PodCheck) {
	if c.Mode == "" {
		m.podExemptions.WithLabelValues(c.Operation, c.Resource, c.Subresource).Inc()
		return
	}
	decision, version := "deny", c.Policy.Version.String()
	if c.Allowed {
		decision = "allow"
	}
	switch {
	case c.Policy.Version.Latest() || c.Policy.Level == podsecurity.LevelPrivileged:
		version = "latest"
	case m.newest.Older(c.Policy.Version):
		version = "future"
	}
	m.podChecks.WithLabelValues(decision, string(c.Policy.Level), version, c.Mode, c.Operation, c.Resource, c.Subresource).Inc()
}

// PolicyChecked counts a check of an admission policy.
func (m *Metrics) PolicyChecked(c policy.Check) {
	if !m.rules.Admits([2]string{c.Policy, c.Binding}) {
		c.Policy, c.Binding = otherLabel, otherLabel
	}
	if c.Mutating {
		m.mutations.WithLabelValues(c.Policy, c.Binding, c.Error).Inc()
		m.mutationTimes.WithLabelValues(c.Policy, c.Binding, c.Error).Observe(c.Duration.Seconds())
		return
	}
	m.validations.WithLabelValues(c.Policy, c.Binding, c.Error, c.Action).Inc()
	m.validationTimes.WithLabelValues(c.Policy, c.Binding, c.Error, c.Action).Observe(c.Duration.Seconds())
}

// A Result describes the end of a request.
type Result struct {
	Code    int
	Bytes   int64         // size of the body
	Elapsed time.Duration // since the request was received
	Queued  time.Duration // time in the queue of flow control
}

// Observe counts a request that has ended.
func (m *Metrics) Observe(labels Labels, res Result) {
	s := m.seriesOf(seriesKey{labels, res.Code})
	s.total.Inc()
	s.duration.Observe(res.Elapsed.Seconds())
	if s.sli != nil {
		s.sli.Observe((res.Elapsed - res.Queued).Seconds())
	}
	if s.size != nil {
		s.size.Observe(float64(res.Bytes))
	}
}

// LongRunning returns the series of a watch. The caller must increment and decrement
// Running, and call Sent for each event.
func (m *Metrics) LongRunning(labels Labels) *Series {
	return m.seriesOf(seriesKey{Labels: labels})
}

// Sent counts one event.
func (s *Series) Sent(bytes int) {
	s.events.Inc()
	s.eventSizes.Observe(float64(bytes))
}

// DeprecatedUse marks a deprecated version as used. removedRelease is a release such as "1.32", or
// "" if it is unknown.
func (m *Metrics) DeprecatedUse(labels Labels, removedRelease string) {
	labels = m.limit(labels)
	m.deprecated.WithLabelValues(labels.Group, labels.Version, labels.Resource, labels.Subresource, removedRelease).Set(1)
}

// WebhookCalled counts a call of an admission webhook. The number of names is limited, because
// users who configure webhooks choose them.
func (m *Metrics) WebhookCalled(c admission.Call) {
	code, rejected := strconv.Itoa(c.Code), strconv.FormatBool(c.Rejected)
	if !m.hooks.Admits(c.Name) {
		c.Name = otherLabel
	}
	m.hookCalls.WithLabelValues(c.Name, c.Kind, c.Operation, code, rejected).Inc()
	m.hookDurations.WithLabelValues(c.Name, c.Kind, c.Operation, rejected).Observe(c.Duration.Seconds())
	if c.Cause != "" {
		m.hookRejections.WithLabelValues(c.Name, c.Kind, c.Operation, c.Cause, code).Inc()
	}
	if c.FailedOpen {
		m.hookFailOpens.WithLabelValues(c.Name, c.Kind).Inc()
	}
}

// seriesOf returns the observers of a key, and creates them if necessary.
func (m *Metrics) seriesOf(key seriesKey) *Series {
	m.mu.RLock()
	s := m.series[key]
	m.mu.RUnlock()
	if s != nil {
		return s
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.series) >= maxSeries {
		key.Labels = Labels{Verb: key.Verb, Resource: otherLabel, Component: key.Component}
	}
	if s = m.series[key]; s == nil {
		s = m.newSeries(key)
		m.series[key] = s
	}
	return s
}

func (m *Metrics) newSeries(key seriesKey) *Series {
	sli := []string{key.Verb, key.Group, key.Version, key.Resource, key.Subresource, key.Scope, key.Component}
	kind := sli[1:4]
	if key.code == 0 {
		return &Series{
			Running:    m.running.WithLabelValues(sli...),
			events:     m.watchEvents.WithLabelValues(kind...),
			eventSizes: m.watchEventSizes.WithLabelValues(kind...),
		}
	}
	duration := append(slices.Clone(sli), key.DryRun)
	s := &Series{
		total:    m.requests.WithLabelValues(append(slices.Clone(duration), strconv.Itoa(key.code))...),
		duration: m.durations.WithLabelValues(duration...),
	}
	// The SLI metric excludes dry runs and requests whose duration depends on the client.
	if key.Verb != "WATCH" && key.Verb != "CONNECT" && key.DryRun == "" {
		s.sli = m.sliDurations.WithLabelValues(sli...)
	}
	if key.Verb == "GET" || key.Verb == "LIST" {
		s.size = m.sizes.WithLabelValues(sli...)
	}
	return s
}

// Terminated counts a request that the server has rejected or ended to protect itself (429, 504).
// Observe counts it as well.
func (m *Metrics) Terminated(l Labels, code int) {
	l = m.limit(l)
	m.terminations.WithLabelValues(l.Verb, l.Group, l.Version, l.Resource, l.Subresource, l.Scope, l.Component, strconv.Itoa(code)).Inc()
}

// Aborted increments the counter of responses that were interrupted after the first byte.
func (m *Metrics) Aborted(l Labels) {
	l = m.limit(l)
	m.aborts.WithLabelValues(l.Verb, l.Group, l.Version, l.Resource, l.Subresource, l.Scope).Inc()
}

// WatchListDone records the time from a watch request to the bookmark that ends its initial events.
func (m *Metrics) WatchListDone(l Labels, elapsed time.Duration) {
	l = m.limit(l)
	m.watchListDuration.WithLabelValues(l.Group, l.Version, l.Resource, l.Scope).Observe(elapsed.Seconds())
}

// Handler returns the handler for /metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.Registry, promhttp.HandlerOpts{})
}

// HealthChecked records the result of a check of /livez, /readyz or /healthz. kube-apiserver
// exposes this metric at /metrics/slis.
func (m *Metrics) HealthChecked(endpoint, check string, well bool) {
	m.health.WithLabelValues(check, endpoint).Set(oneIf(well))
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
