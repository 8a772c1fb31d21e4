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
	"k8s.io/apiserver/pkg/warning"

	"apilet/internal/audit"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
)

// A bookkeeper keeps the records of requests.
type bookkeeper struct {
	reg       *scheme.Registry
	metrics   *metrics
	audit     *audit.Log // nil without --audit-log-path
	log       zerolog.Logger
	verbosity int           // from 3 on every request has a log line
	timeout   time.Duration // for a request that is no watch
}

// An exchange is what there is of one request, in one piece of memory: its record, its response, and what that warns of.
type exchange struct {
	request  request.Request
	out      responseWriter
	warnings warningRecorder
}

// record makes the request's record, and writes from it when the request is over: log line and metrics. What recovers from a panic stands
// first: nothing is done for a request that it does not see.
func (b *bookkeeper) record(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{request: request.Request{Received: time.Now()}, out: responseWriter{ResponseWriter: w}, warnings: warningRecorder{header: w.Header()}}
		rec, out := &x.request, &x.out
		defer b.close(r, rec, out)
		b.open(w, r, rec)
		if b.audit != nil && request.LongRunning(&rec.Info) {
			out.begun = func() { b.logBegun(r, rec, out.code) }
		}
		ctx := context.WithValue(r.Context(), request.Key{}, rec)
		ctx = warning.WithWarningRecorder(ctx, &x.warnings)
		next.ServeHTTP(out, r.WithContext(ctx)) // one copy of r for both: that is what a value costs most
	})
}

// open makes the record, and counts the request among those that run.
func (b *bookkeeper) open(w http.ResponseWriter, r *http.Request, rec *request.Request) {
	rec.Info = request.Parse(r)
	if rec.ID = r.Header.Get("Audit-Id"); rec.ID == "" || len(rec.ID) > 64 {
		rec.ID = uuid.NewString()
	}
	w.Header().Set("Audit-Id", rec.ID)
	w.Header().Set("Cache-Control", "no-cache, private")
	if r.ProtoMajor == 1 && len(r.TransferEncoding) > 0 {
		// net/http hides a Content-Length that stood beside it. A proxy may have gone by that, and taken what is the next request here for
		// a part of this one, so there is none (RFC 9112, section 6.1).
		w.Header().Set("Connection", "close")
	}
	b.inflight(&rec.Info, +1)
}

// close is to be deferred. A panic of its own is one of ours, too: the server goes on, and net/http has nothing to tell about.
func (b *bookkeeper) close(r *http.Request, rec *request.Request, out *responseWriter) {
	cause := recover()
	defer func() {
		if own := recover(); own != nil {
			b.logPanic(r, own)
			cause = own
		}
		if cause != nil {
			panic(http.ErrAbortHandler)
		}
	}()
	defer b.inflight(&rec.Info, -1)
	b.done(r, rec, out, cause)
}

// inflight counts a request among those that run. Watches are counted apart, once they are known to be let in; see watching.
func (b *bookkeeper) inflight(info *request.Info, delta int) {
	switch info.Verb {
	case "watch":
	case "get", "list":
		b.metrics.readOnlyInflight.add(delta, time.Now())
	default:
		b.metrics.mutatingInflight.add(delta, time.Now())
	}
}

// watching counts a watch of a resource that is served, for somebody who may, until the returned function is called.
func (b *bookkeeper) watching(info *request.Info) (ended func()) {
	running := b.metrics.longRunning(b.watchLabels(info)).running
	running.Inc()
	return running.Dec
}

// watchLabels are those of a watch that is let in, so that all of them are names of what is served.
func (b *bookkeeper) watchLabels(info *request.Info) requestLabels {
	return requestLabels{verb: "WATCH", group: info.Group, version: info.Version, resource: info.Resource,
		scope: scopeLabel(info.Verb, info.Namespace, info.Name), component: "apiserver"}
}

// done is the end of a request. A panic is logged with its stack; the client's connection is closed, the server goes on.
func (b *bookkeeper) done(r *http.Request, rec *request.Request, out *responseWriter, cause any) {
	if cause != nil && cause != http.ErrAbortHandler {
		b.logPanic(r, cause)
	}
	code := out.code
	if code == 0 {
		code = http.StatusOK
	}
	elapsed := time.Since(rec.Received)
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
	b.metrics.observe(labels, requestResult{code: code, bytes: out.bytes, elapsed: elapsed, waited: rec.Waited})
	if b.verbosity >= 3 {
		b.log.Info().Str("verb", rec.Info.Verb).Str("uri", audit.URI(r.URL)).Int("code", code).Int64("bytes", out.bytes).
			Dur("elapsed", elapsed).Str("user", rec.User.Name).Str("agent", r.UserAgent()).Str("from", r.RemoteAddr).
			Str("apf_pl", rec.Priority).Str("apf_fs", rec.FlowSchema).Str("id", rec.ID).Msg("request")
	}
}

func (b *bookkeeper) logPanic(r *http.Request, cause any) {
	b.log.Error().Interface("panic", cause).Str("path", r.URL.Path).Bytes("stack", debug.Stack()).Msg("panic while serving")
}

// countDecisions counts how the request came through authentication and authorization.
func (b *bookkeeper) countDecisions(r *http.Request, rec *request.Request, code int) {
	m := b.metrics
	switch shown := r.Header.Get("Authorization") != "" || r.TLS != nil && len(r.TLS.PeerCertificates) > 0; {
	case rec.User.Name != "":
		m.authenticated.Inc()
	case code == http.StatusUnauthorized && shown:
		m.authFailed.Inc()
	case code == http.StatusUnauthorized:
		m.unauthenticated.Inc()
	}
	switch rec.Annotations["authorization.k8s.io/decision"] {
	case "allow":
		m.allowed.Inc()
	case "forbid":
		m.forbidden.Inc()
	}
}

// logBegun writes the audit event of a request that may last for hours and whose response begins. One that nobody could be made out for
// has no other event, so it is left to logDone.
func (b *bookkeeper) logBegun(r *http.Request, rec *request.Request, code int) {
	if rec.User.Name != "" {
		b.logAudit(r, rec, audit.Event{Stage: audit.StageResponseStarted, Code: code, Status: rec.Answered})
	}
}

// logDone writes the audit event of a request that has ended.
func (b *bookkeeper) logDone(r *http.Request, rec *request.Request, code int, cause any) {
	ev := audit.Event{Stage: audit.StageResponseComplete, Code: code, Status: rec.Answered}
	switch {
	case cause != nil && cause != http.ErrAbortHandler:
		ev.Stage, ev.Status = audit.StagePanic, audit.PanicStatus(cause)
	case rec.User.Name == "":
		ev.Stage = audit.StageResponseStarted
	}
	b.logAudit(r, rec, ev)
}

// logAudit writes an audit event; the caller says what the request has come to.
func (b *bookkeeper) logAudit(r *http.Request, rec *request.Request, ev audit.Event) {
	ev.ID, ev.Received, ev.At, ev.Annotations = rec.ID, rec.Received, time.Now(), rec.Annotations
	ev.URI, ev.Verb, ev.Agent, ev.SourceIPs = r.URL, rec.Info.Verb, r.UserAgent(), audit.SourceIPs(r)
	ev.User = auditUserOf(rec.User)
	if rec.Impersonator != nil {
		acting := ev.User
		ev.User, ev.Impersonated, ev.Constraint = auditUserOf(*rec.Impersonator), &acting, rec.Constraint
	}
	if info := &rec.Info; info.ResourceRequest {
		ev.Object = &audit.Object{Resource: info.Resource, Namespace: cmp.Or(info.Namespace, rec.Sent.Namespace),
			Name: cmp.Or(info.Name, rec.Sent.Name), UID: rec.Sent.UID, APIGroup: info.Group, APIVersion: info.Version,
			ResourceVersion: rec.Sent.ResourceVersion, Subresource: info.Subresource}
	}
	b.audit.Write(ev)
}

func auditUserOf(u request.User) audit.User {
	return audit.User{Username: u.Name, UID: u.UID, Groups: u.Groups, Extra: u.Extra}
}

// labels are the metric labels of a request; what is not served has none of its own, so that clients cannot invent series. Nor has what
// is refused before it is known who asks, or because they may not: strangers are not to fill the room for series either. (kube-apiserver
// counts neither.)
func (b *bookkeeper) labels(r *http.Request, rec *request.Request) requestLabels {
	info := &rec.Info
	l := requestLabels{verb: verbLabel(r.Method, "", "", ""), component: ""}
	if !info.ResourceRequest {
		l.subresource = knownPath(info.Path)
		return l
	}
	res := b.reg.Lookup(info.Group, info.Version, info.Resource)
	if res == nil || rec.User.Name == "" || rec.Annotations["authorization.k8s.io/decision"] == "forbid" {
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
		info := &request.From(r.Context()).Info
		if info.Verb == "watch" {
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
		ctx, cancel := context.WithTimeout(r.Context(), limit)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// responseWriter remembers what was answered.
type responseWriter struct {
	http.ResponseWriter
	code  int
	bytes int64
	begun func() // called before the head goes out; may be nil
}

func (w *responseWriter) WriteHeader(code int) {
	w.begin(code)
	w.ResponseWriter.WriteHeader(code)
}

func (w *responseWriter) begin(code int) {
	if w.code != 0 {
		return
	}
	if w.code = code; w.begun != nil {
		w.begun()
	}
}

func (w *responseWriter) Write(p []byte) (int, error) {
	w.begin(http.StatusOK)
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (w *responseWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
