// This file is the outermost layer, what is done for every request whatever it asks: a record is made when it comes, its deadline is set,
// and when it is over the log line, the metrics and the audit event are written from the record. A panic ends its request and nothing
// else.
package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A bookkeeper keeps the records of requests.
type bookkeeper struct {
	reg       *registry
	metrics   *metrics
	audit     *auditLog // nil without --audit-log-path
	log       zerolog.Logger
	verbosity int           // from 3 on every request has a log line
	timeout   time.Duration // for a request that is no watch
}

// record makes the request's record, and writes from it when the request is over: log line and metrics.
func (b *bookkeeper) record(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := &request{id: r.Header.Get("Audit-Id"), received: time.Now(), info: parseRequest(r)}
		if rec.id == "" || len(rec.id) > 64 {
			rec.id = uuid.NewString()
		}
		w.Header().Set("Audit-Id", rec.id)
		w.Header().Set("Cache-Control", "no-cache, private")
		if r.ProtoMajor == 1 && len(r.TransferEncoding) > 0 {
			// net/http hides a Content-Length that stood beside it. A proxy may have gone by that, and taken what is the next request here for
			// a part of this one, so there is none (RFC 9112, section 6.1).
			w.Header().Set("Connection", "close")
		}
		out := &response{ResponseWriter: w}
		if b.audit != nil && longRunning(&rec.info) {
			out.begun = func() { b.logBegun(r, rec, out.code) }
		}
		inflight := b.inflight(rec)
		inflight(1)
		defer func() {
			inflight(-1)
			cause := recover()
			b.done(r, rec, out, cause)
			if cause != nil {
				panic(http.ErrAbortHandler)
			}
		}()
		ctx := context.WithValue(r.Context(), requestKey{}, rec)
		next.ServeHTTP(out, r.WithContext(warningContext(ctx, w.Header()))) // one copy of r for both: that is what a value costs most
	})
}

// inflight counts a request among those that run. Watches are counted apart.
func (b *bookkeeper) inflight(rec *request) func(delta int) {
	switch verb := rec.info.verb; {
	case verb == "watch":
		series := b.metrics.longRunning(b.watchLabels(&rec.info))
		return func(delta int) { series.running.Add(float64(delta)) }
	case verb == "get" || verb == "list":
		return func(delta int) { b.metrics.readOnlyInflight.add(delta, time.Now()) }
	}
	return func(delta int) { b.metrics.mutatingInflight.add(delta, time.Now()) }
}

func (b *bookkeeper) watchLabels(info *requestInfo) requestLabels {
	return requestLabels{verb: "WATCH", group: info.group, version: info.version, resource: b.knownResource(info),
		scope: scopeLabel(info.verb, info.namespace, info.name), component: "apiserver"}
}

// done is the end of a request. A panic is logged with its stack; the client's connection is closed, the server goes on.
func (b *bookkeeper) done(r *http.Request, rec *request, out *response, cause any) {
	if cause != nil && cause != http.ErrAbortHandler {
		b.log.Error().Interface("panic", cause).Str("path", r.URL.Path).Bytes("stack", debug.Stack()).Msg("panic while serving")
	}
	code := out.code
	if code == 0 {
		code = http.StatusOK
	}
	elapsed := time.Since(rec.received)
	if b.audit != nil {
		b.logDone(r, rec, code, cause)
	}
	b.countDecisions(r, rec, code)
	labels := b.labels(r, rec)
	switch {
	case cause != nil:
		b.metrics.aborted(labels)
	case code == http.StatusTooManyRequests || code == http.StatusGatewayTimeout:
		b.metrics.terminated(labels, code)
	}
	b.metrics.observe(labels, requestResult{code: code, bytes: out.bytes, elapsed: elapsed, waited: rec.waited})
	if b.verbosity >= 3 {
		b.log.Info().Str("verb", rec.info.verb).Str("uri", auditURI(r.URL)).Int("code", code).Int64("bytes", out.bytes).
			Dur("elapsed", elapsed).Str("user", rec.user.name).Str("agent", r.UserAgent()).Str("from", r.RemoteAddr).
			Str("apf_pl", rec.priority).Str("apf_fs", rec.flowSchema).Str("id", rec.id).Msg("request")
	}
}

// countDecisions counts how the request came through authentication and authorization.
func (b *bookkeeper) countDecisions(r *http.Request, rec *request, code int) {
	m := b.metrics
	switch shown := r.Header.Get("Authorization") != "" || r.TLS != nil && len(r.TLS.PeerCertificates) > 0; {
	case rec.user.name != "":
		m.authenticated.Inc()
	case code == http.StatusUnauthorized && shown:
		m.authFailed.Inc()
	case code == http.StatusUnauthorized:
		m.unauthenticated.Inc()
	}
	switch rec.annotations["authorization.k8s.io/decision"] {
	case "allow":
		m.allowed.Inc()
	case "forbid":
		m.forbidden.Inc()
	}
}

// logBegun writes the audit event of a request that may last for hours and whose response begins. One that nobody could be made out for
// has no other event, so it is left to logDone.
func (b *bookkeeper) logBegun(r *http.Request, rec *request, code int) {
	if rec.user.name != "" {
		b.logAudit(r, rec, auditEvent{stage: auditStarted, code: code, status: rec.answered})
	}
}

// logDone writes the audit event of a request that has ended.
func (b *bookkeeper) logDone(r *http.Request, rec *request, code int, cause any) {
	ev := auditEvent{stage: auditComplete, code: code, status: rec.answered}
	switch {
	case cause != nil && cause != http.ErrAbortHandler:
		ev.stage, ev.status = auditPanic, auditPanicStatus(cause)
	case rec.user.name == "":
		ev.stage = auditStarted
	}
	b.logAudit(r, rec, ev)
}

// logAudit writes an audit event; the caller says what the request has come to.
func (b *bookkeeper) logAudit(r *http.Request, rec *request, ev auditEvent) {
	ev.id, ev.received, ev.at, ev.annotations = rec.id, rec.received, time.Now(), rec.annotations
	ev.uri, ev.verb, ev.agent, ev.sourceIPs = r.URL, rec.info.verb, r.UserAgent(), auditSourceIPs(r)
	ev.user = auditUserOf(rec.user)
	if rec.impersonator != nil {
		acting := ev.user
		ev.user, ev.impersonated, ev.constraint = auditUserOf(*rec.impersonator), &acting, rec.constraint
	}
	if info := &rec.info; info.resourceRequest {
		ev.object = &auditObject{Resource: info.resource, Namespace: cmp.Or(info.namespace, rec.sent.namespace),
			Name: cmp.Or(info.name, rec.sent.name), UID: rec.sent.uid, APIGroup: info.group, APIVersion: info.version,
			ResourceVersion: rec.sent.resourceVersion, Subresource: info.subresource}
	}
	b.audit.log(ev)
}

func auditUserOf(u user) auditUser {
	return auditUser{Username: u.name, UID: u.uid, Groups: u.groups, Extra: u.extra}
}

// labels are the metric labels of a request; what is not served has none of its own, so that clients cannot invent series.
func (b *bookkeeper) labels(r *http.Request, rec *request) requestLabels {
	info := &rec.info
	l := requestLabels{verb: verbLabel(r.Method, "", "", ""), component: ""}
	if !info.resourceRequest {
		l.subresource = knownPath(info.path)
		return l
	}
	resource := b.knownResource(info)
	if resource == "" {
		return l
	}
	l = requestLabels{verb: verbLabel(r.Method, info.verb, info.subresource, r.Header.Get("Content-Type")), group: info.group, version: info.version,
		resource: resource, scope: scopeLabel(info.verb, info.namespace, info.name), component: "apiserver"}
	if res := b.reg.lookup(info.group, info.version, resource); res.subresource(info.subresource) != nil {
		l.subresource = info.subresource
	}
	if strings.Contains(r.URL.RawQuery, "dryRun") {
		l.dryRun = dryRunLabel(r.URL.Query()["dryRun"])
	}
	return l
}

func (b *bookkeeper) knownResource(info *requestInfo) string {
	if b.reg.lookup(info.group, info.version, info.resource) == nil {
		return ""
	}
	return info.resource
}

// knownPath is the route of a request that is for no resource.
func knownPath(path string) string {
	switch first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/"); first {
	case "api", "apis", "healthz", "livez", "readyz", "metrics", "openapi", "version", "debug":
		return "/" + first
	}
	return ""
}

// deadline ends a request that is no watch after --request-timeout, or sooner if the client says so.
func (b *bookkeeper) deadline(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info := &requestFrom(r.Context()).info
		if info.verb == "watch" {
			next.ServeHTTP(w, r)
			return
		}
		limit := b.timeout
		if strings.Contains(r.URL.RawQuery, "timeout=") {
			text := r.URL.Query().Get("timeout")
			asked, err := time.ParseDuration(text)
			if err != nil && text != "" {
				refuse(w, r, apierrors.NewBadRequest(fmt.Sprintf("invalid timeout specified in the request URL - %v", err)))
				return
			}
			if asked > 0 {
				limit = min(limit, asked)
			}
		}
		ctx, cancel := context.WithTimeout(r.Context(), limit)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// response remembers what was answered.
type response struct {
	http.ResponseWriter
	code  int
	bytes int64
	begun func() // called before the head goes out; may be nil
}

func (w *response) WriteHeader(code int) {
	w.begin(code)
	w.ResponseWriter.WriteHeader(code)
}

func (w *response) begin(code int) {
	if w.code != 0 {
		return
	}
	if w.code = code; w.begun != nil {
		w.begun()
	}
}

func (w *response) Write(p []byte) (int, error) {
	w.begin(http.StatusOK)
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }
