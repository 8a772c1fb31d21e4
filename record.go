// This file is the outermost layer, what is done for every request whatever it asks: a record is made when it comes, its deadline is set,
// and when it is over the log line, the metrics and the audit event are written from the record. A panic ends its request and nothing
// else.
package main

import (
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
		next.ServeHTTP(out, r.WithContext(context.WithValue(r.Context(), requestKey{}, rec)))
	})
}

// inflight counts a request among those that run. Watches are counted apart.
func (b *bookkeeper) inflight(rec *request) func(delta int) {
	switch verb := rec.info.verb; {
	case verb == "watch":
		series := b.metrics.longRunning(requestLabels{verb: "WATCH", group: rec.info.group, version: rec.info.version, resource: b.knownResource(&rec.info),
			scope: scopeLabel(verb, rec.info.namespace, rec.info.name), component: "apiserver"})
		return func(delta int) { series.running.Add(float64(delta)) }
	case verb == "get" || verb == "list":
		return func(delta int) { b.metrics.readOnlyInflight.add(delta, time.Now()) }
	}
	return func(delta int) { b.metrics.mutatingInflight.add(delta, time.Now()) }
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
		b.logAudit(r, rec, code, cause)
	}
	labels := b.labels(r, rec)
	switch {
	case cause != nil:
		b.metrics.aborted(labels)
	case code == http.StatusTooManyRequests || code == http.StatusGatewayTimeout:
		b.metrics.terminated(labels, code)
	}
	b.metrics.observe(labels, requestResult{code: code, bytes: out.bytes, elapsed: elapsed})
	if b.verbosity >= 3 {
		b.log.Info().Str("verb", rec.info.verb).Str("uri", auditURI(r.URL)).Int("code", code).Int64("bytes", out.bytes).
			Dur("elapsed", elapsed).Str("user", rec.user.name).Str("agent", r.UserAgent()).Str("from", r.RemoteAddr).
			Str("apf_pl", rec.priority).Str("apf_fs", rec.flowSchema).Str("id", rec.id).Msg("request")
	}
}

// logAudit writes the audit event of a request that has ended.
func (b *bookkeeper) logAudit(r *http.Request, rec *request, code int, cause any) {
	ev := auditEvent{id: rec.id, stage: auditComplete, uri: r.URL, verb: rec.info.verb, user: auditUserOf(rec.user), sourceIPs: auditSourceIPs(r),
		agent: r.UserAgent(), code: code, status: rec.answered, received: rec.received, at: time.Now(), annotations: rec.annotations}
	if rec.impersonator != nil {
		acting := auditUserOf(rec.user)
		ev.user, ev.impersonated = auditUserOf(*rec.impersonator), &acting
	}
	if info := &rec.info; info.resourceRequest {
		ev.object = &auditObject{Resource: info.resource, Namespace: info.namespace, Name: info.name, APIGroup: info.group,
			APIVersion: info.version, Subresource: info.subresource}
	}
	if cause != nil && cause != http.ErrAbortHandler {
		ev.stage, ev.status = auditPanic, auditPanicStatus(cause)
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
				writeError(w, r, apierrors.NewBadRequest(fmt.Sprintf("invalid timeout specified in the request URL - %v", err)))
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
}

func (w *response) WriteHeader(code int) {
	if w.code == 0 {
		w.code = code
	}
	w.ResponseWriter.WriteHeader(code)
}

func (w *response) Write(p []byte) (int, error) {
	if w.code == 0 {
		w.code = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }
