package main

// This file contains the metrics of the server and the record of a request. Creating the record is
// the first step of a request. When the request ends, the log line, the metrics and the audit event
// are written from the record. A panic ends only its own request. The other files use this one. It
// uses only the warning recorder in warn.go.
//
// Metrics have the names, labels, buckets and help texts of Kubernetes, so that dashboards and
// alerts for a cluster also work here. As in kube-apiserver, the help text begins with the
// stability class. Metrics that only apilet has begin with apilet_. Each server has a separate
// registry.
//
// Each request is counted by observe when it ends. The observers of each label set are created on
// first use and stored in a map. The map also limits memory, because a Prometheus series is never
// freed. After maxSeries label sets, every new one is counted as resource "other". Requests stay
// far below the limit, because only served resources are named, and only for users who may access
// them. Labels such as the names of webhooks and custom types have a separate, smaller limit.
//
//	apiserver_request_total{verb="LIST",resource="pods",scope="namespace",code="200",...} 17

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"
	podsecurity "k8s.io/pod-security-admission/api"

	"apilet/internal/admission"
	"apilet/internal/admission/plugins"
	"apilet/internal/audit"
	"apilet/internal/cel/policy"
	"apilet/internal/etcd"
	"apilet/internal/exposition"
	"apilet/internal/findings"
	"apilet/internal/history"
	"apilet/internal/kubeconfig"
	"apilet/internal/limits"
	"apilet/internal/logonce"
	"apilet/internal/options"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/serving"
)

const (
	maxSeries   = 4096    // maximum number of label sets
	maxNames    = 1024    // maximum number of resources and of webhook names
	otherLabel  = "other" // replaces values beyond a limit
	alpha, beta = "[ALPHA] ", "[BETA] "
	stable      = "[STABLE] "
)

// Label names, in the order in which newSeries passes the values.
var (
	sliLabels      = []string{"verb", "group", "version", "resource", "subresource", "scope", "component"}
	durationLabels = append(slices.Clone(sliLabels), "dry_run")
	totalLabels    = append(slices.Clone(durationLabels), "code")
	kindLabels     = []string{"group", "version", "resource"}
	// notKept is not a label. It is the Cache-Control header of nearly all responses, and must not
	// be modified.
	notKept = []string{"no-cache, private"}
)

// requestLabels selects the series of a request. Each label needs a bounded set of values.
// Resources are named only if they are served. For a non-resource request, subresource is the
// route, such as "/livez", and component is empty.
type requestLabels struct {
	verb                                  string // from verbLabel
	group, version, resource, subresource string
	scope                                 string // from scopeLabel
	component                             string // "apiserver"
	dryRun                                string // "", "All" or "invalid"
}

// metrics contains the metrics of one server. Other files increment the counters without labels
// directly.
type metrics struct {
	registry exposition.Registry

	requestMetrics
	watchMetrics
	securityMetrics
	hookMetrics
	policyMetrics
	podMetrics
	aggregationMetrics

	kinds exposition.Bounded[[3]string] // group, version and resource

	mu     sync.RWMutex // guards series
	series map[seriesKey]*requestSeries
}

type requestMetrics struct {
	requests                           *prometheus.CounterVec
	durations, sliDurations, sizes     *prometheus.HistogramVec
	running, deprecated                *prometheus.GaugeVec
	terminations, aborts               *prometheus.CounterVec
	readOnlyInflight, mutatingInflight *exposition.PeakGauge
}

type watchMetrics struct {
	watchEvents                        *prometheus.CounterVec
	watchEventSizes, watchListDuration *prometheus.HistogramVec
}

type securityMetrics struct {
	authenticated, unauthenticated, authFailed prometheus.Counter // valid credentials, none, invalid ones
	allowed, forbidden                         prometheus.Counter
	auditEvents, auditRejected                 prometheus.Counter
	auditErrors, auditLevels                   *prometheus.CounterVec
	auditFailing                               prometheus.Gauge // 1 while events wait in memory
	tlsHandshakeErrors                         prometheus.Counter
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

// told returns l if the number of resources is below the limit, and the labels for "other" if not.
func (m *metrics) told(l requestLabels) requestLabels {
	if !m.kinds.Admits([3]string{l.group, l.version, l.resource}) {
		return requestLabels{verb: l.verb, resource: otherLabel, component: l.component}
	}
	return l
}

// A seriesKey is a label set and a status code. Code 0 is for running requests.
type seriesKey struct {
	requestLabels
	code int
}

// requestSeries contains the observers of one seriesKey. Observers that Kubernetes does not have
// are nil.
type requestSeries struct {
	total               prometheus.Counter
	duration, sli, size prometheus.Observer

	running    prometheus.Gauge // running, events and eventSizes are only for code 0
	events     prometheus.Counter
	eventSizes prometheus.Observer
}

// newMetrics returns the metrics of a server that implements the given version of Kubernetes.
func newMetrics(kubernetes [2]int) *metrics {
	m := &metrics{podMetrics: podMetrics{newest: podsecurity.MajorMinorVersion(kubernetes[0], kubernetes[1])},
		registry: exposition.NewRegistry(), series: map[seriesKey]*requestSeries{}}
	m.kinds.Max, m.hooks.Max, m.rules.Max, m.apiServices.Max = maxNames, maxNames, maxNames, maxNames
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.addRequestMetrics()
	m.addWatchMetrics()
	m.addInflightMetrics()
	m.addSecurityMetrics()
	m.addWebhookMetrics()
	m.addPolicyMetrics()
	m.addPodSecurityMetrics()
	m.unavailable = m.registry.Counters("aggregator_unavailable_apiservice_total",
		alpha+"Counter of APIServices which are marked as unavailable broken down by APIService name and reason.", []string{"name", "reason"})
	return m
}

func (m *metrics) addRequestMetrics() {
	sliBuckets := []float64{0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60}
	m.requests = m.registry.Counters("apiserver_request_total",
		stable+"Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.", totalLabels)
	m.durations = m.registry.Histograms("apiserver_request_duration_seconds",
		stable+"Response latency distribution in seconds for each verb, dry run value, group, version, resource, subresource, scope and component.",
		durationLabels, append([]float64{0.005, 0.025}, sliBuckets...))
	m.sliDurations = m.registry.Histograms("apiserver_request_sli_duration_seconds",
		alpha+"Response latency distribution (not counting webhook duration and priority & fairness queue wait times) in seconds for each verb, group, version, resource, subresource, scope and component.",
		sliLabels, sliBuckets)
	m.sizes = m.registry.Histograms("apiserver_response_sizes",
		stable+"Response size distribution in bytes for each group, version, verb, resource, subresource, scope and component.",
		sliLabels, prometheus.ExponentialBuckets(1000, 10, 7))
	m.running = m.registry.Gauges("apiserver_longrunning_requests",
		stable+"Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope and component. Not all requests are tracked this way.", sliLabels)
	m.deprecated = m.registry.Gauges("apiserver_requested_deprecated_apis",
		stable+"Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, subresource, and removed_release.",
		[]string{"group", "version", "resource", "subresource", "removed_release"})
	m.terminations = m.registry.Counters("apiserver_request_terminations_total",
		alpha+"Number of requests which apiserver terminated in self-defense.", append(slices.Clone(sliLabels), "code"))
	m.aborts = m.registry.Counters("apiserver_request_aborts_total",
		alpha+"Number of requests which apiserver aborted possibly due to a timeout, for each group, version, verb, resource, subresource and scope", sliLabels[:6])
}

func (m *metrics) addWatchMetrics() {
	m.watchEvents = m.registry.Counters("apiserver_watch_events_total", alpha+"Number of events sent in watch clients", kindLabels)
	m.watchEventSizes = m.registry.Histograms("apiserver_watch_events_sizes", alpha+"Watch event size distribution in bytes",
		kindLabels, prometheus.ExponentialBuckets(1024, 2, 8))
	m.watchListDuration = m.registry.Histograms("apiserver_watch_list_duration_seconds",
		beta+"Response latency distribution in seconds for watch list requests broken by group, version, resource and scope.",
		[]string{"group", "version", "resource", "scope"}, []float64{0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 15, 20, 30, 45, 60})
}

func (m *metrics) addInflightMetrics() {
	inflight := "Maximal number of currently used inflight request limit of this apiserver per request kind in last second."
	m.readOnlyInflight = m.registry.Peak("apiserver_current_inflight_requests", stable+inflight, "readOnly")
	m.mutatingInflight = m.registry.Peak("apiserver_current_inflight_requests", stable+inflight, "mutating")
}

func (m *metrics) addSecurityMetrics() {
	attempts := m.registry.Counters("authentication_attempts", alpha+"Counter of authenticated attempts.", []string{"result"})
	m.authenticated, m.unauthenticated, m.authFailed =
		attempts.WithLabelValues("success"), attempts.WithLabelValues("failure"), attempts.WithLabelValues("error")
	decisions := m.registry.Counters("authorization_attempts_total",
		alpha+"Counter of authorization attempts broken down by result. It can be either 'allowed', 'denied', 'no-opinion' or 'error'.", []string{"result"})
	m.allowed, m.forbidden = decisions.WithLabelValues("allowed"), decisions.WithLabelValues("no-opinion")
	m.auditEvents = m.registry.Counters("apiserver_audit_event_total",
		alpha+"Counter of audit events generated and sent to the audit backend.", nil).WithLabelValues()
	m.auditErrors = m.registry.Counters("apiserver_audit_error_total",
		alpha+"Counter of audit events that failed to be audited properly. Plugin identifies the plugin affected by the error.", []string{"plugin"})
	m.auditErrors.WithLabelValues("log")
	m.auditRejected = m.registry.Counters("apiserver_audit_requests_rejected_total",
		alpha+"Counter of apiserver requests rejected due to an error in audit logging backend.", nil).WithLabelValues()
	m.auditLevels = m.registry.Counters("apiserver_audit_level_total", alpha+"Counter of policy levels for audit events (1 per request).", []string{"level"})
	m.auditFailing = m.registry.Gauges("apilet_audit_failing", "1 while the audit log cannot be written and events wait in memory.", nil).WithLabelValues()
	m.health = m.registry.Gauges("kubernetes_healthcheck", stable+"This metric records the result of a single healthcheck.", []string{"name", "type"})
	m.tlsHandshakeErrors = m.registry.Counters("apiserver_tls_handshake_errors_total",
		alpha+"Number of requests dropped with 'TLS handshake error from' error", nil).WithLabelValues()
}

func (m *metrics) addWebhookMetrics() {
	m.hookDurations = m.registry.Histograms("apiserver_admission_webhook_admission_duration_seconds",
		stable+"Admission webhook latency histogram in seconds, identified by name and broken out for each operation and API resource and type (validate or admit).",
		[]string{"name", "type", "operation", "rejected"}, []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 25})
	m.hookCalls = m.registry.Counters("apiserver_admission_webhook_request_total",
		alpha+"Admission webhook request total, identified by name and broken out for each admission type (validating or admit) and operation. Additional labels specify whether the request was rejected or not and an HTTP status code. Codes greater than 600 are truncated to 600, to keep the metrics cardinality bounded.",
		[]string{"name", "type", "operation", "code", "rejected"})
	m.hookRejections = m.registry.Counters("apiserver_admission_webhook_rejection_count",
		alpha+"Admission webhook rejection count, identified by name and broken out for each admission type (validating or admit) and operation. Additional labels specify an error type (calling_webhook_error or apiserver_internal_error if an error occurred; no_error otherwise) and optionally a non-zero rejection code if the webhook rejects the request with an HTTP status code (honored by the apiserver when the code is greater or equal to 400). Codes greater than 600 are truncated to 600, to keep the metrics cardinality bounded.",
		[]string{"name", "type", "operation", "error_type", "rejection_code"})
	m.hookFailOpens = m.registry.Counters("apiserver_admission_webhook_fail_open_count",
		alpha+"Admission webhook fail open count, identified by name and broken out for each admission type (validating or admit).", []string{"name", "type"})
}

func (m *metrics) addPolicyMetrics() {
	buckets := []float64{0.0000005, 0.001, 0.01, 0.1, 1}
	validating := []string{"policy", "policy_binding", "error_type", "enforcement_action"}
	m.validations = m.registry.Counters("apiserver_validating_admission_policy_check_total",
		beta+"Validation admission policy check total, labeled by policy and further identified by binding and enforcement action taken.", validating)
	m.validationTimes = m.registry.Histograms("apiserver_validating_admission_policy_check_duration_seconds",
		beta+"Validation admission latency for individual validation expressions in seconds, labeled by policy and further including binding and enforcement action taken.",
		validating, buckets)
	m.mutations = m.registry.Counters("apiserver_mutating_admission_policy_check_total",
		alpha+"Mutation admission policy check total, labeled by policy and further identified by binding.", validating[:3])
	m.mutationTimes = m.registry.Histograms("apiserver_mutating_admission_policy_check_duration_seconds",
		alpha+"Mutation admission latency for individual mutation expressions in seconds, labeled by policy and binding.", validating[:3], buckets)
}

func (m *metrics) addPodSecurityMetrics() {
	write := []string{"request_operation", "resource", "subresource"}
	m.podChecks = m.registry.Counters("pod_security_evaluations_total",
		alpha+"Number of policy evaluations that occurred, not counting ignored or exempt requests.",
		append([]string{"decision", "policy_level", "policy_version", "mode"}, write...))
	m.podExemptions = m.registry.Counters("pod_security_exemptions_total", alpha+"Number of exempt requests, not counting ignored or out of scope requests.", write)
}

// apiServiceUnavailable counts how often an APIService became unavailable.
func (m *metrics) apiServiceUnavailable(name, reason string) {
	if !m.apiServices.Admits(name) {
		name = otherLabel
	}
	m.unavailable.WithLabelValues(name, reason).Inc()
}

// podChecked counts a check of the PodSecurity plug-in. Future versions of the standards share one
// series, because the label of a namespace may contain any version.
func (m *metrics) podChecked(c plugins.PodCheck) {
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

// policyChecked counts a check of an admission policy.
func (m *metrics) policyChecked(c policy.Check) {
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

// --- Requests

// verbLabel returns the verb for the metrics. Usually that is the HTTP method in upper case. It is
// LIST or WATCH for these reads, APPLY for a server-side apply, and CONNECT for a stream to a pod.
// resourceVerb is "" for a non-resource request.
func verbLabel(method, resourceVerb, subresource, contentType string) string {
	switch {
	case resourceVerb != "" && request.IsConnect(subresource):
		return "CONNECT"
	case resourceVerb == "watch":
		return "WATCH"
	case resourceVerb == "list":
		return "LIST"
	case method == http.MethodHead:
		return http.MethodGet
	case method == http.MethodPatch && contentType == "application/apply-patch+yaml":
		return "APPLY"
	}
	switch method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodConnect:
		return method
	}
	return otherLabel // lower case, as in kube-apiserver
}

// scopeLabel returns "resource", "namespace" or "cluster", or "" for a non-resource request.
func scopeLabel(resourceVerb, namespace, name string) string {
	switch {
	case resourceVerb == "":
		return ""
	case name != "" || resourceVerb == "create":
		return "resource"
	case namespace != "":
		return "namespace"
	}
	return "cluster"
}

// dryRunLabel returns the label for the values of the dryRun parameter.
func dryRunLabel(values []string) string {
	for _, v := range values {
		if v != "All" {
			return "invalid"
		}
	}
	if len(values) == 0 {
		return ""
	}
	return "All"
}

// A requestResult is the result of a request.
type requestResult struct {
	code    int
	bytes   int64         // of the body
	elapsed time.Duration // since the request was received
	waited  time.Duration // time in the queue of flow control
}

// observe counts a request that has ended.
func (m *metrics) observe(labels requestLabels, res requestResult) {
	if res.code == 0 {
		res.code = http.StatusOK // the default of net/http
	}
	s := m.seriesOf(seriesKey{labels, res.code})
	s.total.Inc()
	s.duration.Observe(res.elapsed.Seconds())
	if s.sli != nil {
		s.sli.Observe((res.elapsed - res.waited).Seconds())
	}
	if s.size != nil {
		s.size.Observe(float64(res.bytes))
	}
}

// longRunning returns the series of a watch. The caller must increment and decrement running, and
// call sent for each event.
func (m *metrics) longRunning(labels requestLabels) *requestSeries {
	return m.seriesOf(seriesKey{requestLabels: labels})
}

// sent counts one event.
func (s *requestSeries) sent(bytes int) {
	s.events.Inc()
	s.eventSizes.Observe(float64(bytes))
}

// deprecatedUse marks a deprecated version as used. removedRelease is a release such as "1.32", or
// "" if it is unknown.
func (m *metrics) deprecatedUse(labels requestLabels, removedRelease string) {
	labels = m.told(labels)
	m.deprecated.WithLabelValues(labels.group, labels.version, labels.resource, labels.subresource, removedRelease).Set(1)
}

// webhookCalled counts a call of an admission webhook. The number of names is limited, because
// users who configure webhooks choose them.
func (m *metrics) webhookCalled(c admission.Call) {
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
func (m *metrics) seriesOf(key seriesKey) *requestSeries {
	m.mu.RLock()
	s := m.series[key]
	m.mu.RUnlock()
	if s != nil {
		return s
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.series) >= maxSeries {
		key.requestLabels = requestLabels{verb: key.verb, resource: otherLabel, component: key.component}
	}
	if s = m.series[key]; s == nil {
		s = m.newSeries(key)
		m.series[key] = s
	}
	return s
}

func (m *metrics) newSeries(key seriesKey) *requestSeries {
	sli := []string{key.verb, key.group, key.version, key.resource, key.subresource, key.scope, key.component}
	kind := sli[1:4]
	if key.code == 0 {
		return &requestSeries{
			running:    m.running.WithLabelValues(sli...),
			events:     m.watchEvents.WithLabelValues(kind...),
			eventSizes: m.watchEventSizes.WithLabelValues(kind...),
		}
	}
	duration := append(slices.Clone(sli), key.dryRun)
	s := &requestSeries{
		total:    m.requests.WithLabelValues(append(slices.Clone(duration), strconv.Itoa(key.code))...),
		duration: m.durations.WithLabelValues(duration...),
	}
	// The SLI metric excludes dry runs and requests whose duration depends on the client.
	if key.verb != "WATCH" && key.verb != "CONNECT" && key.dryRun == "" {
		s.sli = m.sliDurations.WithLabelValues(sli...)
	}
	if key.verb == "GET" || key.verb == "LIST" {
		s.size = m.sizes.WithLabelValues(sli...)
	}
	return s
}

// terminated counts a request that the server has rejected or ended to protect itself (429, 504).
// observe counts it as well.
func (m *metrics) terminated(l requestLabels, code int) {
	l = m.told(l)
	m.terminations.WithLabelValues(l.verb, l.group, l.version, l.resource, l.subresource, l.scope, l.component, strconv.Itoa(code)).Inc()
}

// aborted increments the counter of responses that were interrupted after the first byte.
func (m *metrics) aborted(l requestLabels) {
	l = m.told(l)
	m.aborts.WithLabelValues(l.verb, l.group, l.version, l.resource, l.subresource, l.scope).Inc()
}

// watchListDone records the time from a watch request to the bookmark that ends its initial events.
func (m *metrics) watchListDone(l requestLabels, elapsed time.Duration) {
	l = m.told(l)
	m.watchListDuration.WithLabelValues(l.group, l.version, l.resource, l.scope).Observe(elapsed.Seconds())
}

// An errorCounter is the error log of an http.Server. It counts failed TLS handshakes, which
// net/http reports only there. Clients can cause many lines, so the rate of each kind is limited.
type errorCounter struct {
	handshakes      prometheus.Counter
	ofTLS, ofOthers lineLimit
}

func (m *metrics) countHandshakeErrors(log io.Writer) io.Writer {
	return &errorCounter{handshakes: m.tlsHandshakeErrors, ofTLS: lineLimit{log: log}, ofOthers: lineLimit{log: log}}
}

func (c *errorCounter) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("TLS handshake error from")) {
		c.handshakes.Inc()
		return c.ofTLS.Write(line)
	}
	return c.ofOthers.Write(line)
}

const (
	linesPerMinute = 10
	maxLine        = 1 << 10 // bytes; net/http quotes data from clients and servers
)

// A lineLimit limits the lines that are written to log to linesPerMinute per minute and to maxLine
// bytes per line. If there are more lines, it writes a note once.
type lineLimit struct {
	log io.Writer

	mu    sync.Mutex // guards the fields below
	since time.Time  // start of the minute
	lines int        // lines in this minute
}

func (l *lineLimit) Write(line []byte) (int, error) {
	switch n := l.count(time.Now()); {
	case n <= linesPerMinute:
		_, err := l.log.Write(line[:min(len(line), maxLine)])
		return len(line), err
	case n == linesPerMinute+1:
		_, err := io.WriteString(l.log, "further messages of this kind are not logged for a minute\n")
		return len(line), err
	}
	return len(line), nil
}

// count adds a line and returns the number of lines in this minute.
func (l *lineLimit) count(now time.Time) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.since) > time.Minute {
		l.since, l.lines = now, 0
	}
	l.lines++
	return l.lines
}

// limitOtherLogs sends the lines of Go's standard logger and of klog to log, at most linesPerMinute a
// minute, until restore is called. net/http logs errors of connections to other servers there, and
// Kubernetes' packages log through klog. Clients and other servers control the number of lines and a
// part of their text.
func limitOtherLogs(log zerolog.Logger) (restore func()) {
	limited := &lineLimit{log: levelWriter{log}}
	out, flags := stdlog.Writer(), stdlog.Flags()
	stdlog.SetOutput(limited)
	stdlog.SetFlags(0)
	klog.SetLogger(funcr.New(func(_, line string) { _, _ = limited.Write([]byte(line)) }, funcr.Options{}))
	return func() {
		stdlog.SetOutput(out)
		stdlog.SetFlags(flags)
		klog.ClearLogger()
	}
}

// A levelWriter logs each line of another logger as a warning.
type levelWriter struct{ log zerolog.Logger }

func (w levelWriter) Write(line []byte) (int, error) {
	w.log.Warn().Msg(string(bytes.TrimSpace(line)))
	return len(line), nil
}

// buildInfo registers a gauge with the version of Kubernetes that this server implements.
func (m *metrics) buildInfo(labels map[string]string) {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubernetes_build_info", ConstLabels: labels,
		Help: beta + "A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running."})
	g.Set(1)
	m.registry.MustRegister(g)
}

// featureGates reports which feature gates are enabled. They do not change while the server runs.
func (m *metrics) featureGates(gates featuregate.MutableFeatureGate) {
	m.registry.MustRegister(&gateCollector{gates, prometheus.NewDesc("kubernetes_feature_enabled",
		beta+"This metric records the data about the stage and enablement of a k8s feature.", []string{"name", "stage"}, nil)})
}

// A gateCollector reads the feature gates at each scrape. The first read of each gate is expensive
// and would slow down the start.
type gateCollector struct {
	gates featuregate.MutableFeatureGate
	desc  *prometheus.Desc
}

func (c *gateCollector) Describe(descs chan<- *prometheus.Desc) { descs <- c.desc }

func (c *gateCollector) Collect(out chan<- prometheus.Metric) {
	for name, spec := range c.gates.GetAll() {
		out <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, oneIf(c.gates.Enabled(name)), string(name), string(spec.PreRelease))
	}
}

// clockBehind registers a gauge with the lag of the machine's clock.
func (m *metrics) clockBehind(behind func() time.Duration) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "apilet_clock_behind_seconds",
		Help: "How far the machine's clock lies behind the newest moment that is known to have passed. The server goes on from that moment."},
		func() float64 { return behind().Seconds() }))
}

// leader registers a gauge that reports whether this server is the leader.
func (m *metrics) leader(leads func() bool) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "apilet_leader",
		Help: "1 while this server is the one that does what only one of several may do: garbage collection, tokens, statuses. A server on a file of its own always is."},
		func() float64 { return oneIf(leads()) }))
}

// checked records the result of a check of /livez, /readyz or /healthz. kube-apiserver exposes this
// metric at /metrics/slis.
func (m *metrics) checked(endpoint, check string, well bool) {
	m.health.WithLabelValues(check, endpoint).Set(oneIf(well))
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// certificateFigures collects the expiration times of the current certificates.
type certificateFigures func() []serving.Certificate

var certificateEnds = prometheus.NewDesc("apilet_certificate_expiration_timestamp_seconds",
	"When a certificate that the server or its administrator depends on ends: serving, authority or admin.", []string{"certificate"}, nil)

// Describe implements prometheus.Collector.
func (c certificateFigures) Describe(ch chan<- *prometheus.Desc) { ch <- certificateEnds }

// Collect implements prometheus.Collector.
func (c certificateFigures) Collect(ch chan<- prometheus.Metric) {
	for _, one := range c() {
		ch <- prometheus.MustNewConstMetric(certificateEnds, prometheus.GaugeValue, float64(one.Cert.NotAfter.Unix()), one.Name)
	}
}

// clusterFigures collects the state of the etcd cluster. Without a cluster it collects nothing.
type clusterFigures struct{ cluster *etcd.Cluster }

var (
	etcdReachable = prometheus.NewDesc("apilet_etcd_reachable", "1 if etcd answered a linearizable read when it was last asked, which is every ten seconds at least.", nil, nil)
	etcdNoSpace   = prometheus.NewDesc("apilet_etcd_space_exceeded", "1 if etcd has refused the last write because its own quota is exceeded.", nil, nil)
	lagRevisions  = prometheus.NewDesc("apilet_replica_lag_revisions", "Revisions that etcd was seen to have and that this server's replica does not show yet.", nil, nil)
	lagSeconds    = prometheus.NewDesc("apilet_replica_lag_seconds", "Since when this server's replica lacks what etcd was seen to have; 0 while it lacks nothing.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c clusterFigures) Describe(ch chan<- *prometheus.Desc) {
	ch <- etcdReachable
	ch <- etcdNoSpace
	ch <- lagRevisions
	ch <- lagSeconds
}

// Collect implements prometheus.Collector.
func (c clusterFigures) Collect(ch chan<- prometheus.Metric) {
	if c.cluster == nil {
		return
	}
	state := c.cluster.State()
	for d, v := range map[*prometheus.Desc]float64{etcdReachable: oneIf(state.Reachable), etcdNoSpace: oneIf(state.NoSpace),
		lagRevisions: float64(state.LagRevisions), lagSeconds: state.Lag.Seconds()} {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
}

// handler returns the handler for /metrics.
func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// knownPath returns the route of a non-resource request, or "" if the path is unknown.
func knownPath(path string) string {
	switch first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/"); first {
	case "api", "apis", "healthz", "livez", "readyz", "metrics", "openapi", "version", "debug":
		return "/" + first
	}
	return ""
}

// ---- The record of a request ----

// instrumentation creates a record for each request and uses it for the log, the metrics and the
// audit log.
type instrumentation struct {
	reg       *scheme.Registry
	metrics   *metrics
	audit     *audit.Log // nil if neither audit flag is set
	findings  *findings.Detector
	log       zerolog.Logger
	verbosity int            // requests are logged if it is at least 3
	timeout   time.Duration  // for requests other than watches
	bytes     *limits.Memory // limits the memory of large responses; nil means no limit
}

// An exchange combines the record, the response and the warnings of a request in one allocation.
type exchange struct {
	request  request.Request
	out      responseWriter
	warnings warningRecorder
}

// record creates the record of a request. When the request ends, record writes the log line, the
// metrics and the audit event. It recovers from panics, so it must be the outermost handler.
func (b *instrumentation) record(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{request: request.Request{Received: time.Now()}, out: responseWriter{ResponseWriter: w, claim: limits.Claim{Memory: b.bytes}},
			warnings: warningRecorder{header: w.Header()}}
		rec, out := &x.request, &x.out
		defer b.close(r, rec, out)
		asked := b.open(w, r, rec)
		out.asked = rec
		if b.audit != nil && (rec.Streaming || request.IsLongRunning(&rec.Info)) {
			out.begun = func() { b.audit.ResponseStarted(r, rec, out.code) }
		}
		ctx := warning.WithWarningRecorder(r.Context(), &x.warnings)
		// The record is the innermost value of the context, because it is looked up most often.
		inner := r.WithContext(context.WithValue(ctx, request.Key{}, rec))
		// Set the URL on the same copy of r, since copying a request is expensive.
		inner.URL = asked
		b.serveInTime(out, inner, rec, next)
	})
}

// open fills the record and counts the request as running. It returns the URL without the prefix
// /at/MOMENT. Logs and audit events contain the full URL.
func (b *instrumentation) open(w http.ResponseWriter, r *http.Request, rec *request.Request) (asked *url.URL) {
	asked = r.URL
	if moment, rest, ok := history.SplitMoment(r.URL); ok {
		rec.Moment, asked = cmp.Or(moment, "nothing"), rest
		stripped := *r
		stripped.URL = rest
		rec.Info = request.Parse(&stripped)
	} else {
		rec.Info = request.Parse(r)
	}
	rec.Agent, rec.Remote = r.UserAgent(), r.RemoteAddr
	rec.Streaming = rec.Info.Verb == "watch" || history.IsFollowRequest(r)
	if rec.ID = r.Header.Get("Audit-Id"); rec.ID == "" || len(rec.ID) > 64 {
		rec.ID = uuid.NewString()
	}
	w.Header()["Audit-Id"], w.Header()["Cache-Control"] = []string{rec.ID}, notKept
	if r.ProtoMajor == 1 && len(r.TransferEncoding) > 0 {
		// net/http removes a Content-Length header that was sent together with Transfer-Encoding. A
		// proxy may have used that length, and may have treated the next request as part of this
		// one. Therefore the connection is closed (RFC 9112, section 6.1).
		w.Header().Set("Connection", "close")
	}
	b.inflight(&rec.Info, +1, rec.Received)
	return asked
}

// close ends a request and must be deferred. If close itself panics, it logs the panic, so that
// net/http does not.
func (b *instrumentation) close(r *http.Request, rec *request.Request, out *responseWriter) {
	cause, now := recover(), time.Now()
	out.claim.Release()
	defer func() {
		if own := recover(); own != nil {
			b.logPanic(r, own)
			cause = own
		}
		if cause != nil {
			panic(http.ErrAbortHandler)
		}
	}()
	defer b.inflight(&rec.Info, -1, now)
	b.done(r, rec, out, now, cause)
}

// done is called when a request ends. It updates the metrics and writes the logs. If the request
// has panicked, done logs the stack. The client's connection is closed, and the server continues.
func (b *instrumentation) done(r *http.Request, rec *request.Request, out *responseWriter, now time.Time, cause any) {
	if cause != nil && cause != http.ErrAbortHandler {
		b.logPanic(r, cause)
	}
	code := cmp.Or(out.code, http.StatusOK)
	elapsed := now.Sub(rec.Received)
	if b.audit != nil {
		b.audit.Done(r, rec, code, cause)
	}
	b.countDecisions(r, rec, code)
	labels := b.labels(r, rec)
	switch {
	case cause != nil:
		b.metrics.aborted(labels)
	case code == http.StatusTooManyRequests || code == http.StatusGatewayTimeout:
		b.metrics.terminated(labels, code)
	}
	b.metrics.observe(labels, requestResult{code: code, bytes: out.bytes, elapsed: elapsed, waited: rec.Waited})
	b.findings.RecordRequest(rec, code, now)
	if b.verbosity >= 3 {
		b.log.Info().Str("verb", rec.Info.Verb).Str("uri", audit.URI(r.URL)).Int("code", code).Int64("bytes", out.bytes).
			Stringer("elapsed", elapsed).Str("user", rec.User.Name).Str("agent", r.UserAgent()).Str("from", r.RemoteAddr).
			Str("apf_pl", rec.Priority).Str("apf_fs", rec.FlowSchema).Str("id", rec.ID).Msg("request")
	}
}

// received reports each authenticated request to the audit log.
func (b *instrumentation) received(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rec := request.From(r.Context()); b.audit.RequestReceived(r, rec) {
			next.ServeHTTP(w, r)
			return
		}
		b.metrics.auditRejected.Inc()
		uri := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(strconv.Quote(r.RequestURI))
		http.Error(w, "Internal Server Error: "+uri+": failed to store audit event", http.StatusInternalServerError)
	})
}

// own returns a context with a record for a write of the server itself, which is used by admission.
// The returned function must be called with the result and writes the audit event.
func (b *instrumentation) own(ctx context.Context, by request.User, info request.Info) (context.Context, func(error)) {
	rec := &request.Request{Received: time.Now(), Info: info, User: by, Agent: "apilet/gc"}
	ctx = context.WithValue(ctx, request.Key{}, rec)
	if b.audit != nil {
		rec.ID = uuid.NewString()
	}
	return ctx, func(err error) {
		code := http.StatusOK
		if err != nil {
			status, _ := response.ErrorStatus(err)
			code, rec.ResponseStatus = int(status.Code), &status
		}
		b.findings.RecordRequest(rec, code, time.Now())
		if b.audit == nil {
			return
		}
		in := ""
		if info.Namespace != "" {
			in = "namespaces/" + info.Namespace
		}
		path := (&url.URL{Path: "/"}).JoinPath(info.APIPrefix, info.Group, info.Version, in, info.Resource, info.Name, info.Subresource)
		b.audit.Done(&http.Request{URL: path, Header: http.Header{"User-Agent": {"apilet"}}, RemoteAddr: "127.0.0.1:0"}, rec, code, nil)
	}
}

func (b *instrumentation) logPanic(r *http.Request, cause any) {
	b.log.Error().Interface("panic", cause).Str("path", r.URL.Path).Bytes("stack", debug.Stack()).Msg("panic while serving")
}

// serveInTime calls next. Unless the request is a watch or a stream, its context ends after
// --request-timeout, or earlier if the client sets the timeout parameter.
func (b *instrumentation) serveInTime(w http.ResponseWriter, r *http.Request, rec *request.Request, next http.Handler) {
	if rec.Streaming || request.IsLongRunning(&rec.Info) {
		next.ServeHTTP(w, r)
		return
	}
	limit := b.timeout
	if strings.Contains(r.URL.RawQuery, "timeout=") {
		text := r.URL.Query().Get("timeout")
		asked, err := time.ParseDuration(text)
		if err != nil && text != "" {
			response.Refuse(w, r, apierrors.NewBadRequest(fmt.Sprintf("invalid timeout specified in the request URL - %v", err)))
			return
		}
		if asked > 0 {
			limit = min(limit, asked)
		}
	}
	ctx, cancel := context.WithDeadline(r.Context(), rec.Received.Add(limit))
	defer cancel()
	*r = *r.WithContext(ctx) // The chain owns r since record has copied it.
	next.ServeHTTP(w, r)
}

// A responseWriter records the status and the size of the response.
type responseWriter struct {
	http.ResponseWriter
	code  int
	bytes int64
	begun func() // if not nil, it is called before the head is sent
	claim limits.Claim
	asked *request.Request // its audit policy may require the response body
}

// Claim returns the memory for large responses that the request has reserved.
func (w *responseWriter) Claim() *limits.Claim { return &w.claim }

func (w *responseWriter) WriteHeader(code int) {
	w.begin(code)
	w.ResponseWriter.WriteHeader(code)
}

func (w *responseWriter) begin(code int) {
	if w.code != 0 || code < http.StatusOK && code != http.StatusSwitchingProtocols {
		return
	}
	if w.code = code; w.begun != nil {
		w.begun()
	}
}

func (w *responseWriter) Write(p []byte) (int, error) {
	w.begin(http.StatusOK)
	if w.asked != nil && w.asked.AuditData.RecordsResponse() {
		w.asked.AuditData.RecordResponse(w.Header(), p)
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// Hijack implements the interface of http.ResponseController. The connection switches to another
// protocol.
func (w *responseWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.begin(http.StatusSwitchingProtocols)
	return http.NewResponseController(w.ResponseWriter).Hijack()
}

// Unwrap implements the interface of http.ResponseController.
func (w *responseWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// inflight changes the number of running requests. It does not count watches, which watching counts
// after they are authorized.
func (b *instrumentation) inflight(info *request.Info, delta int, now time.Time) {
	switch info.Verb {
	case "watch":
	case "get", "list":
		b.metrics.readOnlyInflight.Add(delta, now)
	default:
		b.metrics.mutatingInflight.Add(delta, now)
	}
}

// watching counts a running watch until the returned function is called. The watch must be
// authorized, and its resource must be served.
func (b *instrumentation) watching(info *request.Info) (ended func()) {
	running := b.metrics.longRunning(b.watchLabels(info)).running
	running.Inc()
	return running.Dec
}

// watchLabels returns the labels of an authorized watch. They contain only names of served
// resources.
func (b *instrumentation) watchLabels(info *request.Info) requestLabels {
	return requestLabels{verb: "WATCH", group: info.Group, version: info.Version, resource: info.Resource,
		scope: scopeLabel(info.Verb, info.Namespace, info.Name), component: "apiserver"}
}

// countDecisions counts the results of authentication and authorization.
func (b *instrumentation) countDecisions(r *http.Request, rec *request.Request, code int) {
	m := b.metrics
	switch shown := r.Header.Get("Authorization") != "" || r.TLS != nil && len(r.TLS.PeerCertificates) > 0; {
	case rec.User.Name != "":
		m.authenticated.Inc()
	case code == http.StatusUnauthorized && shown:
		m.authFailed.Inc()
	case code == http.StatusUnauthorized:
		m.unauthenticated.Inc()
	}
	switch rec.Decision {
	case request.Allowed:
		m.allowed.Inc()
	case request.Forbidden:
		m.forbidden.Inc()
	}
}

// labels returns the metric labels of a request. Resources that are not served have no labels, so
// that clients cannot create series. The same applies to unauthenticated and forbidden requests,
// which must not use up the limit of series. kube-apiserver does not count them either.
func (b *instrumentation) labels(r *http.Request, rec *request.Request) requestLabels {
	info := &rec.Info
	l := requestLabels{verb: verbLabel(r.Method, "", "", ""), component: ""}
	if !info.ResourceRequest {
		l.subresource = knownPath(info.Path)
		return l
	}
	res := b.reg.Lookup(info.Group, info.Version, info.Resource)
	if res == nil || rec.User.Name == "" || rec.Decision == request.Forbidden {
		return l
	}
	l = requestLabels{verb: verbLabel(r.Method, info.Verb, info.Subresource, r.Header.Get("Content-Type")), group: info.Group, version: info.Version,
		resource: res.Plural, scope: scopeLabel(info.Verb, info.Namespace, info.Name), component: "apiserver"}
	if res.Subresource(info.Subresource) != nil {
		l.subresource = info.Subresource
	}
	if strings.Contains(r.URL.RawQuery, "dryRun") {
		l.dryRun = dryRunLabel(r.URL.Query()["dryRun"])
	}
	return l
}

// ---- The audit log ----

// openAudit opens the audit log and the audit webhook. It returns nil if neither is configured.
func openAudit(flags *options.Audit, types *scheme.Registry, m *metrics, trouble *logonce.Log, log zerolog.Logger) (*audit.Log, error) {
	cfg := audit.Config{Path: flags.Path, Legacy: flags.Format == "legacy", Rotation: flags.Rotation, Truncate: flags.LogTruncate,
		Mode: audit.Mode(flags.Mode), Batches: flags.LogBatches, Unseal: func(sealed []byte) ([]byte, error) { return response.ProtobufToJSON(types, sealed) }}
	var err error
	if flags.Policy != "" {
		if cfg.Policy, err = audit.LoadPolicy(flags.Policy); err != nil {
			return nil, fmt.Errorf("--audit-policy-file: %w", err)
		}
	}
	if flags.Path == "" && flags.Webhook == "" {
		return nil, nil
	}
	if flags.Webhook != "" {
		if cfg.Webhook, err = auditWebhook(flags, m.auditErrors, trouble); err != nil {
			return nil, fmt.Errorf("--audit-webhook-config-file: initializing audit webhook: %w", err)
		}
	}
	opened, err := audit.Open(cfg, m.auditHooks(log))
	if err != nil {
		return nil, fmt.Errorf("--audit-log-path: %w", err)
	}
	if cfg.Webhook != nil {
		cfg.Webhook.Start()
	}
	return opened, nil
}

// auditWebhook returns a sender of events to the audit webhook.
func auditWebhook(flags *options.Audit, unsent *prometheus.CounterVec, trouble *logonce.Log) (*audit.Sender, error) {
	client, err := kubeconfig.NewWebhookClient(flags.Webhook, "apilet")
	if err != nil {
		return nil, err
	}
	const what = "sending audit events to the webhook"
	return &audit.Sender{Batches: flags.Batches, Mode: audit.Mode(flags.HookMode), Truncate: flags.HookTruncate, Sent: func(int) { trouble.Report(what, nil) },
		Lost: func(plugin string, n int, why error) {
			unsent.WithLabelValues(plugin).Add(float64(n))
			if why != nil {
				trouble.Report(what, why)
			}
		},
		Post: func(ctx context.Context, body []byte) error {
			code, _, err := client.Post(ctx, body, 64<<10)
			if err == nil && (code < 200 || code > 206) {
				err = fmt.Errorf("the webhook responded with status %d", code)
			}
			return err
		}}, nil
}

// auditHooks returns hooks that count audit events and log when the audit log cannot be written.
func (m *metrics) auditHooks(log zerolog.Logger) audit.Hooks {
	return audit.Hooks{
		Written: func(n int) { m.auditEvents.Add(float64(n)) },
		Dropped: func(plugin string, n int) { m.auditErrors.WithLabelValues(plugin).Add(float64(n)) },
		Leveled: func(level string) { m.auditLevels.WithLabelValues(level).Inc() },
		Failing: func(err error) {
			if err != nil {
				m.auditFailing.Set(1)
				log.Error().Err(err).Msg("cannot write the audit log; up to 1 MiB of events is kept in memory: free disk space, or fix the permissions")
				return
			}
			m.auditFailing.Set(0)
			log.Info().Msg("the audit log is writable again")
		},
	}
}
