package main

// This file answers requests: the chain of steps that every one goes through, the one list of routes behind it, and what stands at their ends.
//
//	record ──▶ deadline ──▶ Authenticate ──▶ Impersonate ──▶ seated ──▶ throughTime ──▶ routes ──▶ serveAPI ──▶ serveResource
//
// The outermost step makes the record of a request when it comes, and writes log line, metrics and audit event from it when it is over; a panic
// ends its request and nothing else.
//
// Two types answer. A readAPI is what is served at one moment, for reading: types, and objects one by one and in lists. An api is the one of now,
// which has what else there is: a writer, watches, pages about itself. What is asked about a moment that is over (/at/MOMENT/...) is answered by a
// readAPI that is made for the request, and nothing that it has can write.
//
// Invariant: a handler is reached by whoever may ask for it, and by nobody else: each route stands behind withAuthorization, but for those that ask
// for each object that they tell of.

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/rs/zerolog"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/warning"

	"apilet/internal/apierror"
	"apilet/internal/audit"
	"apilet/internal/auth"
	"apilet/internal/crd"
	"apilet/internal/dashboard"
	"apilet/internal/datafile"
	"apilet/internal/deprecations"
	"apilet/internal/discovery"
	"apilet/internal/findings"
	"apilet/internal/health"
	"apilet/internal/history"
	"apilet/internal/options"
	"apilet/internal/registry"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/routing"
	"apilet/internal/scheme"
	"apilet/internal/shares"
)

const (
	minorVersion = "36"
	gitVersion   = "v1.36.0+apilet"
	lateAnswer   = 5 * time.Second // for a refusal to be written once the time of its request is over
)

// speaks is the version of Kubernetes that this server speaks as.
func speaks() [2]int { return serverVersion("1", minorVersion) }

// A readAPI is what is served at one moment, for reading.
type readAPI struct {
	types      *scheme.Registry
	rd         *reads
	auth       *auth.Authenticator
	deprecated *deprecatedVersions
	log        zerolog.Logger
}

// An api answers requests about now, and leads those about what was to a readAPI.
type api struct {
	readAPI
	wr          *registry.Writer
	wt          *watching
	definitions *crd.Definitions
	storage     *storage
	fc          *flowControl // nil without flow control
	instruments *instrumentation
	usage       *deprecations.Tracker
	shown       dashboard.Watches  // that are served
	health      []*health.Endpoint // /livez and its like
	options     *options.Options
	keysURL     string // where this server has the keys that check service accounts' tokens
}

// ---- The chain and the routes ----

// handler is the way of every request: what is done for all of them, from the outside in, then the route.
func (a *api) handler() http.Handler {
	way := a.routes()
	for _, step := range slices.Backward([]func(http.Handler) http.Handler{
		a.instruments.record, a.instruments.deadline, a.auth.Authenticate, a.auth.Impersonate, a.seated, a.throughTime,
	}) {
		way = step(way)
	}
	return way
}

// seated gives requests their seats: by flow control, or by counting alone when that is switched off.
func (a *api) seated(next http.Handler) http.Handler {
	if a.fc == nil {
		return maxInFlight(a.options.MaxReadonly, a.options.MaxMutating, next)
	}
	return a.fc.middleware(next)
}

// routes lists everything that is served.
func (a *api) routes() http.Handler {
	r := chi.NewRouter()
	var checked []string
	for _, endpoint := range a.health {
		for _, check := range endpoint.Checks {
			checked = append(checked, "/"+endpoint.Name+"/"+check.Name)
		}
		endpoint.Shows = a.maySee
		r.Handle("/"+endpoint.Name, a.withAuthorization(endpoint.ServeHTTP))
		r.Handle("/"+endpoint.Name+"/*", a.withAuthorization(endpoint.ServeHTTP))
	}
	r.Handle("/version", a.withAuthorization(a.serveVersion))
	r.Handle("/version/", a.withAuthorization(a.serveVersion))
	if config, ok := a.auth.Accounts.OpenIDConfiguration(cmp.Or(a.options.JWKSURI, a.keysURL)); ok {
		r.Handle("/.well-known/openid-configuration", a.withAuthorization(document("application/json", config)))
		r.Handle("/openid/v1/jwks", a.withAuthorization(document("application/jwk-set+json", a.auth.Accounts.KeySet())))
	}
	r.Handle("/metrics", a.withAuthorization(a.instruments.metrics.handler().ServeHTTP))
	r.Handle("/openapi/v2", a.withAuthorization(a.serveSwagger))
	r.Handle("/openapi/v3", a.withAuthorization(a.serveOpenAPI))
	r.Handle("/openapi/v3/*", a.withAuthorization(a.serveOpenAPI))
	r.Handle("/debug/deprecations", a.withAuthorization(a.usage.ServeHTTP))
	r.Handle(history.Path, a.history()) // which asks for each object that it tells of
	r.HandleFunc(findings.Path, func(w http.ResponseWriter, r *http.Request) {
		a.instruments.findings.Serve(w, r, findings.Rights{May: may(a.auth), MayAnything: a.auth.MayListAnything, Since: a.timeSince})
	})
	if a.fc != nil {
		pages := []string{"dump_priority_levels", "dump_queues", "dump_requests"}
		if a.fc.auto != nil {
			pages = append(pages, "dump_seats")
		}
		for _, page := range pages {
			r.Handle("/debug/api_priority_and_fairness/"+page, a.withAuthorization(a.fc.serveDump))
		}
	}
	backups := datafile.Backups{Store: a.storage.st, Maintenance: a.storage.upkeep, Ephemeral: a.options.Ephemeral, Fail: a.fail}
	r.Handle(request.PathBackup, a.withAuthorization(backups.ServeHTTP))
	page := a.page()
	r.Handle("/debug/ui", http.RedirectHandler(request.PathUI, http.StatusMovedPermanently))
	r.HandleFunc(request.PathUI+"*", page.ServePage) // for anybody: nothing of the server is in it
	r.Handle(dashboard.DataPath, a.withAuthorization(page.ServeData))
	r.Handle("/api", a.withAuthorization(a.serveDiscovery))
	r.Handle("/apis", a.withAuthorization(a.serveDiscovery))
	r.Handle("/api/*", a.withAuthorization(a.serveAPI))
	r.Handle("/apis/*", a.withAuthorization(a.serveAPI))
	r.Handle("/", a.withAuthorization(routing.Index(r, a.types, checked...)))
	r.NotFound(a.withAuthorization(http.NotFound))
	r.MethodNotAllowed(routing.WhateverMethod(r))
	return r
}

// document serves bytes that do not change while the server runs.
func document(contentType string, body []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			response.WriteError(w, r, apierror.MethodNotAllowed())
			return
		}
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Cache-Control", "public, max-age=3600")
		_, _ = w.Write(body) // the client is gone otherwise
	}
}

// withAuthorization authorizes a request before it is handled.
func (a *api) withAuthorization(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := a.auth.Authorize(request.From(r.Context())); err != nil {
			a.fail(w, r, err)
			return
		}
		next(w, r)
	}
}

// throughTime answers what asks about a moment (/at/MOMENT/...) as of then, and leaves the rest to now.
func (a *api) throughTime(now http.Handler) http.Handler {
	past := history.Past{Moments: history.Moments{Store: a.storage.st, Maintenance: a.storage.upkeep},
		Has: hadAnswer, Types: a.definitions.At, Show: a.serveThen, Fail: a.fail}
	then := a.withAuthorization(past.ServeHTTP) // by the rules of now
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if request.From(r.Context()).At == "" {
			now.ServeHTTP(w, r)
			return
		}
		then(w, r)
	})
}

// hadAnswer says which paths are shown as they were.
func hadAnswer(path string) history.Answer {
	root, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch {
	case root == "api" || root == "apis" || path == "/openapi/v2" || path == "/openapi/v3" || strings.HasPrefix(path, "/openapi/v3/"):
		return history.Typed
	case path == "/version" || path == "/version/":
		return history.Timeless
	}
	return history.Nothing
}

// serveThen answers with what this server showed at a revision; types is nil for what is the same at all times.
func (a *api) serveThen(w http.ResponseWriter, r *http.Request, types *scheme.Registry, rev int64) {
	if types == nil {
		a.serveVersion(w, r)
		return
	}
	then := a.at(types, rev)
	switch asked := request.From(r.Context()).Info.Path; {
	case asked == "/openapi/v2":
		then.serveSwagger(w, r)
	case strings.HasPrefix(asked, "/openapi/"):
		discovery.ServeOpenAPI(types, history.PathThen+strconv.FormatInt(rev, 10), w, r) // where it may be kept for a year
	default:
		then.serveAPI(w, r)
	}
}

// at is the API as it was at a revision, by the rules of now.
func (a *api) at(types *scheme.Registry, rev int64) *readAPI {
	return &readAPI{types: types, rd: a.rd.asOf(rev), auth: a.auth, deprecated: a.deprecated, log: a.log}
}

// history answers what has changed, to those who may list what it was.
func (a *api) history() *history.Log {
	return history.New(history.Config{Store: a.storage.st, Maintenance: a.storage.upkeep, Types: a.types, MayAnything: a.auth.MayListAnything,
		Begun: watchBegun, Fail: a.fail, Reach: a.rd.past,
		Patience: a.options.RequestTimeout, Lifetime: a.options.MinTimeout, ShuttingDown: a.wt.shuttingDown})
}

// timeSince is from when on somebody may know of what a request is about.
func (a *api) timeSince(u request.User, info request.Info) time.Time {
	switch rev, err := a.rd.past.Since(u, info, ""); {
	case err != nil: // damage, of which a scrub tells
		return time.Now()
	case rev > 0:
		return a.rd.st.TimeOf(rev)
	}
	return time.Time{}
}

// may tells whether somebody may do something, by the rules of now.
func may(by *auth.Authenticator) func(u request.User, info request.Info) bool {
	return func(u request.User, info request.Info) bool {
		allowed, _ := by.Decide(u, info)
		return allowed
	}
}

// maySee tells whether who asks may get another path, too.
func (a *api) maySee(r *http.Request, path string) bool {
	return a.auth.Check(request.From(r.Context()).User, request.Info{Verb: "get", Path: path}) == nil
}

// page is what /debug/ui/ shows.
func (a *api) page() *dashboard.Page {
	p := &dashboard.Page{Store: a.storage.st, Types: a.types, Watches: &a.shown, Version: gitVersion, Kept: a.options.Kept(),
		Deprecations: func(most int) any { return a.usage.List(most) }}
	if a.fc != nil {
		p.Flows = a.fc.dispatcher
	}
	return p
}

// ---- Types and their objects, for reading ----

func (ra *readAPI) serveDiscovery(w http.ResponseWriter, r *http.Request) {
	discovery.ServeDiscovery(ra.types, w, r)
}

func (ra *readAPI) serveOpenAPI(w http.ResponseWriter, r *http.Request) {
	discovery.ServeOpenAPI(ra.types, "", w, r)
}

func (ra *readAPI) serveSwagger(w http.ResponseWriter, r *http.Request) {
	discovery.ServeSwagger(ra.types, w, r)
}

func (*readAPI) serveVersion(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		response.WriteError(w, r, apierror.MethodNotAllowed())
		return
	}
	body, _ := json.MarshalIndent(version.Info{Major: "1", Minor: minorVersion, EmulationMajor: "1", EmulationMinor: minorVersion,
		MinCompatibilityMajor: "1", MinCompatibilityMinor: "35", GitVersion: gitVersion, GitTreeState: "clean",
		GoVersion: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH}, "", "  ")
	response.WriteJSON(w, r, http.StatusOK, body)
}

// serveAPI answers everything below /api/ and /apis/.
func (ra *readAPI) serveAPI(w http.ResponseWriter, r *http.Request) {
	res, err := ra.typeOf(w, r)
	if res != nil && err == nil {
		err = ra.serveResource(w, r, res)
	}
	ra.end(w, r, err)
}

// typeOf is the type that a request is for, once it is known that it has such a path and method. It is nil where the request is for none and has been
// answered.
func (ra *readAPI) typeOf(w http.ResponseWriter, r *http.Request) (*scheme.Resource, error) {
	info := &request.From(r.Context()).Info
	if !info.ResourceRequest {
		ra.serveDiscovery(w, r)
		return nil, nil
	}
	if legacy := info.APIPrefix == "api"; legacy != (info.Group == "") { // /apis//v1/pods
		http.NotFound(w, r)
		return nil, nil
	}
	res := ra.types.Lookup(info.Group, info.Version, info.Resource)
	if res == nil {
		discovery.ServeUnknown(ra.types, w, r, info.Group)
		return nil, nil
	}
	if res.GoType == nil && !routing.HasPath(res, info) {
		http.NotFound(w, r)
		return nil, nil
	}
	routed := routing.Routed(res, info, r.Method)
	if routed != nil && res.Custom == nil {
		return nil, routed
	}
	if problems := path.IsValidPathSegmentName(info.Name); info.Form.Named && len(problems) > 0 {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("Name parameter invalid: %q: %s", info.Name, strings.Join(problems, ";")))
	}
	return res, cmp.Or(ra.deprecated.note(r, res), routed) // of a custom resource's version also where it has no such part
}

// end is the end of a request that was answered, or is to be by an error.
func (ra *readAPI) end(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, response.ErrAborted) {
		panic(http.ErrAbortHandler)
	}
	if err != nil {
		ra.fail(w, r, err)
	}
}

// fail answers with an error, and logs the ones that are nobody's fault but ours. A request that ran out
// of time is not.
func (ra *readAPI) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil { // a computation may have gone on for longer than the connection was to be written to
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(lateAnswer))
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
	}
	if unexpected := response.Refuse(w, r, err); unexpected != nil {
		ra.log.Error().Err(unexpected).Str("path", r.URL.Path).Str("id", request.From(r.Context()).ID).Msg("internal error")
	}
}

// serveResource answers a read of a resource that is served.
func (ra *readAPI) serveResource(w http.ResponseWriter, r *http.Request, res *scheme.Resource) error {
	info := &request.From(r.Context()).Info
	if err := ra.rd.begun(r.Context(), res); err != nil {
		return err
	}
	if info.Subresource != "" {
		return ra.serveSubresource(w, r, res)
	}
	switch {
	case info.Verb != "get" && info.Verb != "list":
		return apierror.MethodNotAllowed()
	case res.Virtual:
		return ra.rd.components(w, r, res)
	case info.Verb == "get":
		return ra.rd.get(w, r, res)
	}
	return ra.rd.list(w, r, res)
}

// serveSubresource answers a read of a part of an object.
func (ra *readAPI) serveSubresource(w http.ResponseWriter, r *http.Request, res *scheme.Resource) error {
	info := &request.From(r.Context()).Info
	if err := routing.HasVerb(res, info); err != nil {
		return err
	}
	switch {
	case request.Connects(info.Subresource):
		return registry.NoPodsRun(ra.rd.newest, res, info, r.URL.Query())
	case info.Verb != "get":
		return apierror.MethodNotAllowed()
	case info.Subresource == "scale":
		return registry.ShowScale(ra.rd.newest, w, r, res)
	}
	return ra.rd.get(w, r, res)
}

// ---- Writes and watches ----

// serveAPI answers everything below /api/ and /apis/.
func (a *api) serveAPI(w http.ResponseWriter, r *http.Request) {
	res, err := a.typeOf(w, r)
	if res != nil && err == nil {
		err = a.serveResource(w, r, res)
	}
	a.end(w, r, err)
}

// serveResource answers a request for a resource that is served.
func (a *api) serveResource(w http.ResponseWriter, r *http.Request, res *scheme.Resource) error {
	info := &request.From(r.Context()).Info
	if info.Name != "" && request.IsMutating(info) && !res.Virtual { // before anything is done: afterwards nothing can be refused
		_, size, _ := a.rd.st.GetUpTo(res.Key(res.Scope(info.Namespace), info.Name), 0)
		if err := shares.Hold(r.Context(), w, size); err != nil {
			return err
		}
	}
	if info.Subresource != "" {
		return a.serveSubresource(w, r, res)
	}
	switch info.Verb {
	case "get", "list":
		return a.readAPI.serveResource(w, r, res)
	case "create":
		if res.Group == "" && res.Kind == "Binding" {
			return registry.Bind(a.wr, w, r, res)
		}
		return a.wr.Create(w, r, res)
	}
	if res.Virtual {
		return apierror.MethodNotAllowed()
	}
	switch info.Verb {
	case "watch":
		defer a.instruments.watching(info)()
		hooks, done := a.watchHooks(r, res)
		defer done()
		return a.wt.serve(w, r, res, hooks)
	case "update":
		return a.wr.Update(w, r, res)
	case "patch":
		return a.wr.Patch(w, r, res)
	case "delete":
		return a.wr.Remove(w, r, res)
	case "deletecollection":
		if _, err := parseQuery(res, info); err != nil { // told before what is wrong with the body
			return err
		}
		removeEach, err := a.wr.RemoveEach(w, r, res)
		if err != nil {
			return err
		}
		return a.rd.listAnd(w, r, res, removeEach)
	}
	return apierror.MethodNotAllowed()
}

// watchHooks connect a watch with flow control, the metrics and the page. done is to be called when it is over.
func (a *api) watchHooks(r *http.Request, res *scheme.Resource) (hooks watchHooks, done func()) {
	rec := request.From(r.Context())
	labels := a.instruments.watchLabels(&rec.Info)
	options, _ := rec.Info.ListOptions() // those that are wrong are refused further on
	shown := &dashboard.Watch{User: rec.User.Name, Agent: r.UserAgent(), Group: res.Group, Resource: res.Plural, Namespace: rec.Info.Namespace,
		LabelSelector: options.LabelSelector, FieldSelector: options.FieldSelector, Base: res.KeyPrefix(""), Started: rec.Received}
	a.shown.Begin(shown)
	return watchHooks{
		begun:  func() { watchBegun(r.Context()) },
		listed: func() { a.instruments.metrics.watchListDone(labels, time.Since(rec.Received)) },
		sent:   a.instruments.metrics.longRunning(labels).sent,
		opened: shown.Follow,
	}, func() { a.shown.End(shown) }
}

// serveSubresource answers a request for a part of an object.
func (a *api) serveSubresource(w http.ResponseWriter, r *http.Request, res *scheme.Resource) error {
	info := &request.From(r.Context()).Info
	if info.Verb == "get" || request.Connects(info.Subresource) {
		return a.readAPI.serveSubresource(w, r, res)
	}
	if err := routing.HasVerb(res, info); err != nil {
		return err
	}
	switch info.Subresource {
	case "scale":
		return registry.ServeScale(a.wr, w, r, res)
	case "binding":
		return registry.Bind(a.wr, w, r, res)
	case "eviction":
		return registry.Evict(a.wr, w, r, res)
	case "token":
		return registry.IssueToken(a.wr, w, r, res)
	}
	switch info.Verb {
	case "update":
		return a.wr.Update(w, r, res)
	case "patch":
		return a.wr.Patch(w, r, res)
	}
	return apierror.MethodNotAllowed()
}

// noteUse remembers who has used a deprecated version.
func (a *api) noteUse(r *http.Request, res *scheme.Resource) {
	rec := request.From(r.Context())
	labels, release := a.instruments.labels(r, rec), removedRelease(res.Deprecation)
	a.usage.Record(deprecations.Use{User: rec.User.Name, Agent: r.UserAgent(), Verb: rec.Info.Verb, Group: res.Group, Version: res.Version,
		Resource: res.Plural, Subresource: labels.subresource, Removed: release, UseInstead: replacementOf(res.Deprecation)}, time.Now())
	a.instruments.metrics.deprecatedUse(labels, release)
}

// ---- The record of a request ----

// Instrumentation keeps the records of requests.
type instrumentation struct {
	reg       *scheme.Registry
	metrics   *metrics
	audit     *audit.Log // nil without --audit-log-path
	findings  *findings.Detector
	log       zerolog.Logger
	verbosity int           // from 3 on every request has a log line
	timeout   time.Duration // for a request that is no watch
	bytes     *shares.Bytes // for what is large; nil: without bound
}

// An exchange is what there is of one request, in one piece of memory: its record, its response, and what that warns of.
type exchange struct {
	request  request.Request
	out      responseWriter
	warnings warningRecorder
}

// record makes the request's record, and writes from it when the request is over: log line and metrics. What recovers from a panic stands
// first: nothing is done for a request that it does not see.
func (b *instrumentation) record(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{request: request.Request{Received: time.Now()}, out: responseWriter{ResponseWriter: w, claim: shares.Claim{Bytes: b.bytes}},
			warnings: warningRecorder{header: w.Header()}}
		rec, out := &x.request, &x.out
		defer b.close(r, rec, out)
		asked := b.open(w, r, rec)
		if b.audit != nil && (rec.Follows || request.LongRunning(&rec.Info)) {
			out.begun = func() { b.audit.Begun(r, rec, out.code) }
		}
		ctx := warning.WithWarningRecorder(r.Context(), &x.warnings)
		inner := r.WithContext(context.WithValue(ctx, request.Key{}, rec)) // the record last: everybody asks for it
		inner.URL = asked
		next.ServeHTTP(out, inner) // one copy of r for both: that is what a value costs most
	})
}

// open makes the record, and counts the request among those that run. It returns the URL without the moment that it may ask about: log and
// audit tell the whole.
func (b *instrumentation) open(w http.ResponseWriter, r *http.Request, rec *request.Request) (asked *url.URL) {
	asked = r.URL
	if moment, rest, ok := history.Then(r.URL); ok {
		rec.At, asked = cmp.Or(moment, "nothing"), rest
		stripped := *r
		stripped.URL = rest
		rec.Info = request.Parse(&stripped)
	} else {
		rec.Info = request.Parse(r)
	}
	rec.Agent, rec.Remote = r.UserAgent(), r.RemoteAddr
	rec.Follows = rec.Info.Verb == "watch" || history.Follows(r)
	if rec.ID = r.Header.Get("Audit-Id"); rec.ID == "" || len(rec.ID) > 64 {
		rec.ID = uuid.NewString()
	}
	w.Header()["Audit-Id"], w.Header()["Cache-Control"] = []string{rec.ID}, notKept
	if r.ProtoMajor == 1 && len(r.TransferEncoding) > 0 {
		// net/http hides a Content-Length that stood beside it. A proxy may have gone by that, and taken what is the next request here for
		// a part of this one, so there is none (RFC 9112, section 6.1).
		w.Header().Set("Connection", "close")
	}
	b.inflight(&rec.Info, +1, rec.Received)
	return asked
}

// close is to be deferred. A panic of its own is one of ours, too: the server goes on, and net/http has nothing to tell about.
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

// done is the end of a request, which comes now. A panic is logged with its stack; the client's connection is closed, the server goes on.
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
	b.findings.Notice(rec, code, now)
	if b.verbosity >= 3 {
		b.log.Info().Str("verb", rec.Info.Verb).Str("uri", audit.URI(r.URL)).Int("code", code).Int64("bytes", out.bytes).
			Dur("elapsed", elapsed).Str("user", rec.User.Name).Str("agent", r.UserAgent()).Str("from", r.RemoteAddr).
			Str("apf_pl", rec.Priority).Str("apf_fs", rec.FlowSchema).Str("id", rec.ID).Msg("request")
	}
}

// own makes the record of a write that the server makes by itself, for admission, and for the audit event that says how it ended.
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
			code, rec.Answered = int(status.Code), &status
		}
		b.findings.Notice(rec, code, time.Now())
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

// deadline ends a request that is no watch after --request-timeout, or sooner if the client says so.
func (b *instrumentation) deadline(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if request.From(r.Context()).Follows {
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
		ctx, cancel := request.WithDeadline(r.Context(), request.From(r.Context()).Received.Add(limit))
		defer cancel()
		*r = *r.WithContext(ctx) // this request is the chain's own since it has a record
		next.ServeHTTP(w, r)
	})
}

// responseWriter remembers what was answered.
type responseWriter struct {
	http.ResponseWriter
	code  int
	bytes int64
	begun func() // called before the head goes out; may be nil
	claim shares.Claim
}

// Claim is what the request holds of the memory for large answers.
func (w *responseWriter) Claim() *shares.Claim { return &w.claim }

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

// inflight counts a request among those that run. Watches are counted apart, once they are known to be let in; see watching.
func (b *instrumentation) inflight(info *request.Info, delta int, now time.Time) {
	switch info.Verb {
	case "watch":
	case "get", "list":
		b.metrics.readOnlyInflight.Add(delta, now)
	default:
		b.metrics.mutatingInflight.Add(delta, now)
	}
}

// watching counts a watch of a resource that is served, for somebody who may, until the returned function is called.
func (b *instrumentation) watching(info *request.Info) (ended func()) {
	running := b.metrics.longRunning(b.watchLabels(info)).running
	running.Inc()
	return running.Dec
}

// watchLabels are those of a watch that is let in, so that all of them are names of what is served.
func (b *instrumentation) watchLabels(info *request.Info) requestLabels {
	return requestLabels{verb: "WATCH", group: info.Group, version: info.Version, resource: info.Resource,
		scope: scopeLabel(info.Verb, info.Namespace, info.Name), component: "apiserver"}
}

// countDecisions counts how the request came through authentication and authorization.
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

// labels are the metric labels of a request; what is not served has none of its own, so that clients cannot invent series. Nor has what
// is refused before it is known who asks, or because they may not: strangers are not to fill the room for series either. (kube-apiserver
// counts neither.)
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
