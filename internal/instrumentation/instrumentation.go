// Package instrumentation creates the record of each request, and writes the log line, the metrics
// and the audit event from it when the request ends. Creating the record is the first step of a
// request, and every later step finds it in the context (request.From). A panic ends only its own
// request.
//
//	rec := &instrumentation.Recorder{Types: types, Metrics: m, Audit: log, Timeout: time.Minute, ...}
//	handler = rec.Record(handler) // the outermost step
//
// Record also limits the duration of a request, because the deadline starts when the request is
// received. Watches and streams have their own limits.
//
// Invariant: a client cannot create metrics series. A label has a name from the request only if the
// server serves the resource and the user may access it.
package instrumentation

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/warning"

	"apilet/internal/audit"
	"apilet/internal/findings"
	"apilet/internal/history"
	"apilet/internal/limits"
	"apilet/internal/metrics"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
)

// A Recorder creates a record for each request and uses it for the log, the metrics and the
// audit log.
type Recorder struct {
	Types     *scheme.Registry
	Metrics   *metrics.Metrics
	Audit     *audit.Log // nil if neither audit flag is set
	Findings  *findings.Detector
	Log       zerolog.Logger
	Verbosity int            // requests are logged if it is at least 3
	Timeout   time.Duration  // for requests other than watches
	Bytes     *limits.Memory // limits the memory of large responses; nil means no limit
	// Warnings returns a recorder that adds warnings to the header of a response.
	Warnings func(http.Header) warning.Recorder
}

// notKept is the Cache-Control header of nearly all responses, and must not be modified.
var notKept = []string{"no-cache, private"}

// An exchange combines the record and the response of a request in one allocation.
type exchange struct {
	request request.Request
	out     responseWriter
}

// Record creates the record of a request. When the request ends, Record writes the log line, the
// metrics and the audit event. It recovers from panics, so it must be the outermost handler.
func (b *Recorder) Record(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{request: request.Request{Received: time.Now()}, out: responseWriter{ResponseWriter: w, claim: limits.Claim{Memory: b.Bytes}}}
		rec, out := &x.request, &x.out
		defer b.close(r, rec, out)
		asked := b.open(w, r, rec)
		out.asked = rec
		if b.Audit != nil && (rec.Streaming || request.IsLongRunning(&rec.Info)) {
			out.begun = func() { b.Audit.ResponseStarted(r, rec, out.code) }
		}
		ctx := warning.WithWarningRecorder(r.Context(), b.Warnings(w.Header()))
		// The record is the innermost value of the context, because it is looked up most often.
		inner := r.WithContext(context.WithValue(ctx, request.Key{}, rec))
		// Set the URL on the same copy of r, since copying a request is expensive.
		inner.URL = asked
		b.serveInTime(out, inner, rec, next)
	})
}

// open fills the record and counts the request as running. It returns the URL without the prefix
// /at/MOMENT. Logs and audit events contain the full URL.
func (b *Recorder) open(w http.ResponseWriter, r *http.Request, rec *request.Request) (asked *url.URL) {
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
func (b *Recorder) close(r *http.Request, rec *request.Request, out *responseWriter) {
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
func (b *Recorder) done(r *http.Request, rec *request.Request, out *responseWriter, now time.Time, cause any) {
	if cause != nil && cause != http.ErrAbortHandler {
		b.logPanic(r, cause)
	}
	code := cmp.Or(out.code, http.StatusOK)
	elapsed := now.Sub(rec.Received)
	if b.Audit != nil {
		b.Audit.Done(r, rec, code, cause)
	}
	b.countDecisions(r, rec, code)
	labels := b.Labels(r, rec)
	switch {
	case cause != nil:
		b.Metrics.Aborted(labels)
	case code == http.StatusTooManyRequests || code == http.StatusGatewayTimeout:
		b.Metrics.Terminated(labels, code)
	}
	b.Metrics.Observe(labels, metrics.Result{Code: code, Bytes: out.bytes, Elapsed: elapsed, Queued: rec.Waited})
	b.Findings.RecordRequest(rec, code, now)
	if b.Verbosity >= 3 {
		b.Log.Info().Str("verb", rec.Info.Verb).Str("uri", audit.URI(r.URL)).Int("code", code).Int64("bytes", out.bytes).
			Stringer("elapsed", elapsed).Str("user", rec.User.Name).Str("agent", r.UserAgent()).Str("from", r.RemoteAddr).
			Str("apf_pl", rec.Priority).Str("apf_fs", rec.FlowSchema).Str("id", rec.ID).Msg("request")
	}
}

// Received reports each authenticated request to the audit log.
func (b *Recorder) Received(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rec := request.From(r.Context()); b.Audit.RequestReceived(r, rec) {
			next.ServeHTTP(w, r)
			return
		}
		b.Metrics.AuditRejected.Inc()
		uri := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(strconv.Quote(r.RequestURI))
		http.Error(w, "Internal Server Error: "+uri+": failed to store audit event", http.StatusInternalServerError)
	})
}

// BeginInternal returns a context with a record for a write of the server itself, which is used by admission.
// The returned function must be called with the result and writes the audit event.
func (b *Recorder) BeginInternal(ctx context.Context, by request.User, info request.Info) (context.Context, func(error)) {
	rec := &request.Request{Received: time.Now(), Info: info, User: by, Agent: "apilet/gc"}
	ctx = context.WithValue(ctx, request.Key{}, rec)
	if b.Audit != nil {
		rec.ID = uuid.NewString()
	}
	return ctx, func(err error) {
		code := http.StatusOK
		if err != nil {
			status, _ := response.ErrorStatus(err)
			code, rec.ResponseStatus = int(status.Code), &status
		}
		b.Findings.RecordRequest(rec, code, time.Now())
		if b.Audit == nil {
			return
		}
		in := ""
		if info.Namespace != "" {
			in = "namespaces/" + info.Namespace
		}
		path := (&url.URL{Path: "/"}).JoinPath(info.APIPrefix, info.Group, info.Version, in, info.Resource, info.Name, info.Subresource)
		b.Audit.Done(&http.Request{URL: path, Header: http.Header{"User-Agent": {"apilet"}}, RemoteAddr: "127.0.0.1:0"}, rec, code, nil)
	}
}

func (b *Recorder) logPanic(r *http.Request, cause any) {
	b.Log.Error().Interface("panic", cause).Str("path", r.URL.Path).Bytes("stack", debug.Stack()).Msg("panic while serving")
}

// serveInTime calls next. Unless the request is a watch or a stream, its context ends after
// --request-timeout, or earlier if the client sets the timeout parameter.
func (b *Recorder) serveInTime(w http.ResponseWriter, r *http.Request, rec *request.Request, next http.Handler) {
	if rec.Streaming || request.IsLongRunning(&rec.Info) {
		next.ServeHTTP(w, r)
		return
	}
	limit := b.Timeout
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

// inflight changes the number of running requests. It does not count watches, which CountWatch counts
// after they are authorized.
func (b *Recorder) inflight(info *request.Info, delta int, now time.Time) {
	switch info.Verb {
	case "watch":
	case "get", "list":
		b.Metrics.ReadOnlyInflight.Add(delta, now)
	default:
		b.Metrics.MutatingInflight.Add(delta, now)
	}
}

// CountWatch counts a running watch until the returned function is called. The watch must be
// authorized, and its resource must be served.
func (b *Recorder) CountWatch(info *request.Info) (ended func()) {
	running := b.Metrics.LongRunning(b.WatchLabels(info)).Running
	running.Inc()
	return running.Dec
}

// WatchLabels returns the labels of an authorized watch. They contain only names of served
// resources.
func (b *Recorder) WatchLabels(info *request.Info) metrics.Labels {
	return metrics.Labels{Verb: "WATCH", Group: info.Group, Version: info.Version, Resource: info.Resource,
		Scope: metrics.ScopeLabel(info.Verb, info.Namespace, info.Name), Component: "apiserver"}
}

// countDecisions counts the results of authentication and authorization.
func (b *Recorder) countDecisions(r *http.Request, rec *request.Request, code int) {
	m := b.Metrics
	switch shown := r.Header.Get("Authorization") != "" || r.TLS != nil && len(r.TLS.PeerCertificates) > 0; {
	case rec.User.Name != "":
		m.Authenticated.Inc()
	case code == http.StatusUnauthorized && shown:
		m.AuthFailed.Inc()
	case code == http.StatusUnauthorized:
		m.Unauthenticated.Inc()
	}
	switch rec.Decision {
	case request.Allowed:
		m.Allowed.Inc()
	case request.Forbidden:
		m.Forbidden.Inc()
	}
}

// Labels returns the metric labels of a request. Resources that are not served have no labels, so
// that clients cannot create series. The same applies to unauthenticated and forbidden requests,
// which must not use up the limit of series. kube-apiserver does not count them either.
func (b *Recorder) Labels(r *http.Request, rec *request.Request) metrics.Labels {
	info := &rec.Info
	l := metrics.Labels{Verb: metrics.VerbLabel(r.Method, "", "", "")}
	if !info.ResourceRequest {
		l.Subresource = metrics.RouteLabel(info.Path)
		return l
	}
	res := b.Types.Lookup(info.Group, info.Version, info.Resource)
	if res == nil || rec.User.Name == "" || rec.Decision == request.Forbidden {
		return l
	}
	l = metrics.Labels{Verb: metrics.VerbLabel(r.Method, info.Verb, info.Subresource, r.Header.Get("Content-Type")), Group: info.Group, Version: info.Version,
		Resource: res.Plural, Scope: metrics.ScopeLabel(info.Verb, info.Namespace, info.Name), Component: "apiserver"}
	if res.Subresource(info.Subresource) != nil {
		l.Subresource = info.Subresource
	}
	if strings.Contains(r.URL.RawQuery, "dryRun") {
		l.DryRun = metrics.DryRunLabel(r.URL.Query()["dryRun"])
	}
	return l
}
