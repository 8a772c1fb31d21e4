package metrics

// This file creates the metrics. Each function registers the metrics of one part of the server.

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// The stability classes of Kubernetes, with which the help texts begin.
const (
	alpha  = "[ALPHA] "
	beta   = "[BETA] "
	stable = "[STABLE] "
)

// Label names, in the order in which newSeries passes the values.
var (
	sliLabels      = []string{"verb", "group", "version", "resource", "subresource", "scope", "component"}
	durationLabels = append(slices.Clone(sliLabels), "dry_run")
	totalLabels    = append(slices.Clone(durationLabels), "code")
	kindLabels     = []string{"group", "version", "resource"}
)

func (m *Metrics) addRequestMetrics() {
	sliBuckets := []float64{0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60}
	m.requests = m.Registry.Counters("apiserver_request_total",
		stable+"Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.", totalLabels)
	m.durations = m.Registry.Histograms("apiserver_request_duration_seconds",
		stable+"Response latency distribution in seconds for each verb, dry run value, group, version, resource, subresource, scope and component.",
		durationLabels, append([]float64{0.005, 0.025}, sliBuckets...))
	m.sliDurations = m.Registry.Histograms("apiserver_request_sli_duration_seconds",
		alpha+"Response latency distribution (not counting webhook duration and priority & fairness queue wait times) in seconds for each verb, group, version, resource, subresource, scope and component.",
		sliLabels, sliBuckets)
	m.sizes = m.Registry.Histograms("apiserver_response_sizes",
		stable+"Response size distribution in bytes for each group, version, verb, resource, subresource, scope and component.",
		sliLabels, prometheus.ExponentialBuckets(1000, 10, 7))
	m.running = m.Registry.Gauges("apiserver_longrunning_requests",
		stable+"Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope and component. Not all requests are tracked this way.", sliLabels)
	m.deprecated = m.Registry.Gauges("apiserver_requested_deprecated_apis",
		stable+"Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, subresource, and removed_release.",
		[]string{"group", "version", "resource", "subresource", "removed_release"})
	m.terminations = m.Registry.Counters("apiserver_request_terminations_total",
		alpha+"Number of requests which apiserver terminated in self-defense.", append(slices.Clone(sliLabels), "code"))
	m.aborts = m.Registry.Counters("apiserver_request_aborts_total",
		alpha+"Number of requests which apiserver aborted possibly due to a timeout, for each group, version, verb, resource, subresource and scope", sliLabels[:6])
}

func (m *Metrics) addWatchMetrics() {
	m.watchEvents = m.Registry.Counters("apiserver_watch_events_total", alpha+"Number of events sent in watch clients", kindLabels)
	m.watchEventSizes = m.Registry.Histograms("apiserver_watch_events_sizes", alpha+"Watch event size distribution in bytes",
		kindLabels, prometheus.ExponentialBuckets(1024, 2, 8))
	m.watchListDuration = m.Registry.Histograms("apiserver_watch_list_duration_seconds",
		beta+"Response latency distribution in seconds for watch list requests broken by group, version, resource and scope.",
		[]string{"group", "version", "resource", "scope"}, []float64{0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 15, 20, 30, 45, 60})
}

func (m *Metrics) addInflightMetrics() {
	inflight := "Maximal number of currently used inflight request limit of this apiserver per request kind in last second."
	m.ReadOnlyInflight = m.Registry.Peak("apiserver_current_inflight_requests", stable+inflight, "readOnly")
	m.MutatingInflight = m.Registry.Peak("apiserver_current_inflight_requests", stable+inflight, "mutating")
}

func (m *Metrics) addSecurityMetrics() {
	attempts := m.Registry.Counters("authentication_attempts", alpha+"Counter of authenticated attempts.", []string{"result"})
	m.Authenticated, m.Unauthenticated, m.AuthFailed =
		attempts.WithLabelValues("success"), attempts.WithLabelValues("failure"), attempts.WithLabelValues("error")
	decisions := m.Registry.Counters("authorization_attempts_total",
		alpha+"Counter of authorization attempts broken down by result. It can be either 'allowed', 'denied', 'no-opinion' or 'error'.", []string{"result"})
	m.Allowed, m.Forbidden = decisions.WithLabelValues("allowed"), decisions.WithLabelValues("no-opinion")
	m.AuditEvents = m.Registry.Counters("apiserver_audit_event_total",
		alpha+"Counter of audit events generated and sent to the audit backend.", nil).WithLabelValues()
	m.AuditErrors = m.Registry.Counters("apiserver_audit_error_total",
		alpha+"Counter of audit events that failed to be audited properly. Plugin identifies the plugin affected by the error.", []string{"plugin"})
	m.AuditErrors.WithLabelValues("log")
	m.AuditRejected = m.Registry.Counters("apiserver_audit_requests_rejected_total",
		alpha+"Counter of apiserver requests rejected due to an error in audit logging backend.", nil).WithLabelValues()
	m.AuditLevels = m.Registry.Counters("apiserver_audit_level_total", alpha+"Counter of policy levels for audit events (1 per request).", []string{"level"})
	m.AuditFailing = m.Registry.Gauges("apilet_audit_failing", "1 while the audit log cannot be written and events wait in memory.", nil).WithLabelValues()
	m.health = m.Registry.Gauges("kubernetes_healthcheck", stable+"This metric records the result of a single healthcheck.", []string{"name", "type"})
	m.TLSHandshakeErrors = m.Registry.Counters("apiserver_tls_handshake_errors_total",
		alpha+"Number of requests dropped with 'TLS handshake error from' error", nil).WithLabelValues()
}

func (m *Metrics) addWebhookMetrics() {
	m.hookDurations = m.Registry.Histograms("apiserver_admission_webhook_admission_duration_seconds",
		stable+"Admission webhook latency histogram in seconds, identified by name and broken out for each operation and API resource and type (validate or admit).",
		[]string{"name", "type", "operation", "rejected"}, []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 25})
	m.hookCalls = m.Registry.Counters("apiserver_admission_webhook_request_total",
		alpha+"Admission webhook request total, identified by name and broken out for each admission type (validating or admit) and operation. Additional labels specify whether the request was rejected or not and an HTTP status code. Codes greater than 600 are truncated to 600, to keep the metrics cardinality bounded.",
		[]string{"name", "type", "operation", "code", "rejected"})
	m.hookRejections = m.Registry.Counters("apiserver_admission_webhook_rejection_count",
		alpha+"Admission webhook rejection count, identified by name and broken out for each admission type (validating or admit) and operation. Additional labels specify an error type (calling_webhook_error or apiserver_internal_error if an error occurred; no_error otherwise) and optionally a non-zero rejection code if the webhook rejects the request with an HTTP status code (honored by the apiserver when the code is greater or equal to 400). Codes greater than 600 are truncated to 600, to keep the metrics cardinality bounded.",
		[]string{"name", "type", "operation", "error_type", "rejection_code"})
	m.hookFailOpens = m.Registry.Counters("apiserver_admission_webhook_fail_open_count",
		alpha+"Admission webhook fail open count, identified by name and broken out for each admission type (validating or admit).", []string{"name", "type"})
}

func (m *Metrics) addPolicyMetrics() {
	buckets := []float64{0.0000005, 0.001, 0.01, 0.1, 1}
	validating := []string{"policy", "policy_binding", "error_type", "enforcement_action"}
	m.validations = m.Registry.Counters("apiserver_validating_admission_policy_check_total",
		beta+"Validation admission policy check total, labeled by policy and further identified by binding and enforcement action taken.", validating)
	m.validationTimes = m.Registry.Histograms("apiserver_validating_admission_policy_check_duration_seconds",
		beta+"Validation admission latency for individual validation expressions in seconds, labeled by policy and further including binding and enforcement action taken.",
		validating, buckets)
	m.mutations = m.Registry.Counters("apiserver_mutating_admission_policy_check_total",
		alpha+"Mutation admission policy check total, labeled by policy and further identified by binding.", validating[:3])
	m.mutationTimes = m.Registry.Histograms("apiserver_mutating_admission_policy_check_duration_seconds",
		alpha+"Mutation admission latency for individual mutation expressions in seconds, labeled by policy and binding.", validating[:3], buckets)
}

func (m *Metrics) addPodSecurityMetrics() {
	write := []string{"request_operation", "resource", "subresource"}
	m.podChecks = m.Registry.Counters("pod_security_evaluations_total",
		alpha+"Number of policy evaluations that occurred, not counting ignored or exempt requests.",
		append([]string{"decision", "policy_level", "policy_version", "mode"}, write...))
	m.podExemptions = m.Registry.Counters("pod_security_exemptions_total", alpha+"Number of exempt requests, not counting ignored or out of scope requests.", write)
}
