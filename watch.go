// This file streams changes. A watch is nothing but a position, a revision, in the store's event log: it sends what happened after it,
// moves on, and sleeps until the next commit that touches its resource. There is no queue per watcher, so a slow client is simply
// behind: its events wait in the log, first in memory, then on disk, and only compaction can take them away. One that takes nothing at
// all for as long as any other request may last is let go. Because the log is on disk, a watch resumes at any retained revision, also
// across a restart.
//
//	resourceVersion  sendInitialEvents  starts with
//	---------------  -----------------  ---------------------------------------------------------------
//	"", 0            unset              ADDED for everything (the same as true, the server's default)
//	N                unset              what happened after N; an ERROR event 410 when N is compacted
//	F                any                an ERROR event 504, cause ResourceVersionTooLarge
//	"", 0, N         true               ADDED for everything now, then the bookmark that ends them, if wanted
//	"", 0 / N        false              what happens from now on / after N
//
// It ends after its timeout, when the server stops, or when the definition of its type changes or goes.
//
// An object that a selector matched before a change but not after it is DELETED for that watcher, with its old content and the new
// revision. The real server is silent about a watch in the future; saying so at once spares the client a wait for nothing (it lists
// again), and is how a client notices that the store was restored from a backup.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidwall/gjson"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/apierror"
	"apilet/internal/crd"
	"apilet/internal/notify"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/selector"
	"apilet/internal/shares"
	"apilet/internal/store"
)

const (
	watchBuffer = 32 << 10 // bytes of frames that are collected before they are written
	watchBatch  = 256      // events taken from the log at once
	lastCall    = 2 * time.Second
)

// watching answers WATCH.
type watching struct {
	*reads
	minTimeout   time.Duration    // a watch without timeoutSeconds lives between one and two of these
	bookmarks    time.Duration    // between two bookmarks of a watch
	patience     time.Duration    // with a watcher that takes nothing
	news         *notify.Notifier // wakes watches
	shuttingDown <-chan struct{}  // closed when watches are to end
	sealed       sealedLog        // events as protobuf
}

// watchHooks are told how a watch goes.
type watchHooks struct {
	opened func(at func() int64) // it runs; at tells up to which revision everything is out
	begun  func()                // the initial events are out, or none will come; called at least once
	listed func()                // the bookmark that ends them is out
	sent   func(bytes int)       // one event is
}

// A stream is one watch in progress.
type stream struct {
	wt         *watching
	hooks      watchHooks
	sub        *notify.Subscription // rings when there is news
	w          http.ResponseWriter
	flush      func() error
	stalled    *time.Timer // runs while the client is waited for, and cuts the connection
	v          *response.View
	q          *query
	resource   string      // the store's name of the resource: the prefix of its keys
	pos        int64       // everything up to this revision has been sent
	tell       atomic.Bool // a bookmark is due
	*workspace             // nil while it sleeps
	dirty      bool        // something was written since the last flush: net/http may keep the end of it
	logged     bool        // what is sent comes out of the log, whose JSON is shared by all who read it and never changes
}

// A workspace is what a stream needs while it is awake.
type workspace struct {
	buf    []byte        // frames not written yet
	events []store.Event // out of the log
}

var (
	workspaces = sync.Pool{New: func() any { return &workspace{buf: make([]byte, 0, watchBuffer+4096)} }}
	errOver    = errors.New("the type has changed") // or has gone
)

// errStreamEnd ends a stream that has said all it has to say.
var errStreamEnd = errors.New("end of stream")

// serve answers with a stream of events. Errors before the first byte are returned; later ones are sent as an ERROR event.
func (wt *watching) serve(w http.ResponseWriter, r *http.Request, asked *request.Request, res *scheme.Resource, hooks watchHooks) error {
	defer hooks.begun()
	if wt.leaving() {
		return errLeaving()
	}
	v, err := response.NewView(r, asked, res)
	if err != nil {
		return err
	}
	if v.Media.Format == scheme.YAMLFormat {
		return apierror.New(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
			"only the following media types are accepted: application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch")
	}
	if v.Media.As == "PartialObjectMetadataList" {
		v.Media.As = "PartialObjectMetadata"
	}
	q, err := parseQuery(res, &asked.Info)
	if err != nil {
		return err
	}
	from, err := wt.lowerBound(r.Context(), q.ResourceVersion, "")
	var future *apierrors.StatusError
	if err != nil && (!errors.As(err, &future) || future.ErrStatus.Code != http.StatusGatewayTimeout) {
		return err
	}
	if err == nil {
		if err := wt.mayResume(r.Context(), res, q, from); err != nil {
			return err
		}
	}
	lifetime := lifetimeOf(q, wt.minTimeout)
	ctx, cancel := context.WithTimeout(r.Context(), lifetime)
	defer cancel()
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(lifetime + 10*time.Second)) // in place of the server's, which is too short
	stalled := time.AfterFunc(time.Hour, func() { _ = control.SetWriteDeadline(time.Now()) })
	stalled.Stop()
	s := &stream{wt: wt, hooks: hooks, stalled: stalled, w: w, flush: control.Flush, v: v, q: q, resource: res.KeyPrefix(""), pos: from,
		workspace: workspaces.Get().(*workspace)}
	if s.fresh() {
		s.pos = wt.st.Revision() // before the client sees the head: what it writes then is news
	}
	w.Header().Set("Content-Type", v.StreamType())
	w.Header().Set("Cache-Control", "no-cache, private")
	w.WriteHeader(http.StatusOK)
	if future != nil {
		s.sendError(future)
		return nil
	}
	if err := s.flush(); err != nil {
		return nil
	}
	s.sub = wt.news.Subscribe(interest(res, &q.match))
	defer s.sub.Close()
	hooks.opened(s.sub.At)
	s.run(ctx)
	return nil
}

// mayResume returns an error if the log after from holds events that are hidden from the user. The client then lists again and misses nothing.
func (wt *watching) mayResume(ctx context.Context, res *scheme.Resource, q *query, from int64) error {
	if from == 0 || q.SendInitialEvents != nil && *q.SendInitialEvents {
		return nil
	}
	since, err := wt.visibleSince(ctx, res)
	if err == nil && from+1 < since {
		return errTooOld(res, from, since-1)
	}
	return err
}

// errTooOld returns the 410 after which clients list again. oldest is the first revision from which the client can watch.
// kube-apiserver has a second text for Events, because it serves them without a watch cache.
func errTooOld(res *scheme.Resource, from, oldest int64) *apierrors.StatusError {
	if res.Custom == nil && res.Plural == "events" {
		return apierrors.NewResourceExpired("The resourceVersion for the provided watch is too old.")
	}
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", from, oldest))
}

// interest says which events may matter to a watch: those of its span, and of these, if a selector demands one value of a label or a field, those
// that have it. What a webhook converts is not what is stored.
func interest(res *scheme.Resource, m *selector.Matcher) notify.Interest {
	in := notify.Interest{Resource: res.KeyPrefix(""), Span: m.Span}
	if m.Span == m.Prefix && !res.Converts() {
		in.Label, in.Field, in.Value = m.Demands()
	}
	return in
}

// leaving tells that the server stops.
func (wt *watching) leaving() bool {
	select {
	case <-wt.shuttingDown:
		return true
	default:
		return false
	}
}

// errLeaving sends a client away for a moment: client-go resumes where it was, while a watch that ends as it begins would have it list anew.
func errLeaving() error {
	return apierrors.NewTooManyRequests("The apiserver is shutting down, please try again later.", 1)
}

// lifetimeOf is how long a watch lasts: timeoutSeconds, or a random time so that watches do not all end at once.
func lifetimeOf(q *query, least time.Duration) time.Duration {
	if q.TimeoutSeconds != nil && *q.TimeoutSeconds != 0 {
		return time.Duration(max(*q.TimeoutSeconds, 0)) * time.Second
	}
	return least + time.Duration(rand.Int64N(int64(least)+1))
}

// run is the whole life of a stream: initial events, then the log, until the client, the deadline or the server ends it.
func (s *stream) run(ctx context.Context) {
	defer s.rest()
	err := s.begin(ctx)
	s.hooks.begun()
	if err == nil {
		err = s.follow(ctx)
	}
	var status *apierrors.StatusError
	switch {
	case errors.Is(err, crd.ErrNoSuchVersion): // the type goes at this moment: the end says so, and to begin again says the rest
	case errors.Is(err, store.ErrCompacted):
		s.sendError(errTooOld(s.v.Res, s.pos, s.oldest()))
	case errors.As(err, &status):
		s.sendError(status)
	case errors.Is(err, store.ErrDamaged), errors.Is(err, store.ErrSealed):
		s.sendError(apierrors.NewInternalError(err))
	}
}

// oldest returns the first revision after pos from which the client can watch. Where the log is damaged, that is the current revision.
func (s *stream) oldest() int64 {
	if compacted := s.wt.st.Compacted(); compacted > s.pos {
		return compacted
	}
	return s.wt.st.Revision()
}

// begin sends the initial events, if any are due, and leaves pos at the revision that they show.
func (s *stream) begin(ctx context.Context) error {
	initial := s.fresh()
	if s.q.SendInitialEvents != nil {
		initial = *s.q.SendInitialEvents
	}
	if ctx.Err() != nil { // timeoutSeconds=-1
		return errStreamEnd
	}
	if !initial {
		return nil
	}
	if err := s.sendAll(ctx); err != nil {
		return err
	}
	if s.q.AllowWatchBookmarks {
		err := s.bookmark(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		s.hooks.listed()
		return err
	}
	return s.write()
}

// fresh says that the client has seen nothing yet.
func (s *stream) fresh() bool { return s.q.ResourceVersion == "" || s.q.ResourceVersion == "0" }

// sendAll sends ADDED for every object as of one revision, in key order.
func (s *stream) sendAll(ctx context.Context) error {
	c := store.ChunkPool.Get().(*store.Chunk)
	defer store.ChunkPool.Put(c)
	at := store.Span{Prefix: s.q.match.Span}
	if s.fresh() { // as of the moment before the client saw the head: what it deletes since then was there
		at.Rev = s.pos
	}
	at.Keys, at.Rev = s.wt.keysOf(ctx, &s.q.match, at.Rev)
	for {
		if err := s.wt.st.Chunk(at, c); err != nil {
			return err
		}
		large := heavy(c.Records)
		if !shares.Fits(ctx, s.w, large) {
			at.Rev = c.Rev
			*c = store.Chunk{}
			if err := s.hold(ctx, large); err != nil {
				return err
			}
			continue
		}
		if err := s.convertAll(ctx, c.Records); err != nil {
			return err
		}
		for i := range c.Records {
			rec := &c.Records[i]
			if !s.q.match.Matches(rec.Key, rec.JSON) {
				continue
			}
			if err := s.send("ADDED", rec); err != nil {
				return err
			}
		}
		at.Rev, at.Start = c.Rev, c.Next
		if large > 0 {
			*c = store.Chunk{Rev: c.Rev, Next: c.Next}
			s.lighten()
		}
		if c.Next == "" {
			s.pos = c.Rev
			return nil
		}
		if ctx.Err() != nil {
			return errStreamEnd
		}
	}
}

// follow sends what the log has behind pos and sleeps for more. What others are told of meanwhile need not be looked through: it moves on by what
// Quiet says.
func (s *stream) follow(ctx context.Context) error {
	reminder := s.remindOfBookmarks(ctx)
	if reminder != nil {
		defer reminder.Stop()
	}
	var over <-chan struct{} // a type that a definition made may change, or go
	if s.v.Res.Custom != nil {
		over = s.v.Res.Custom.Over
	}
	for {
		if err := s.drain(ctx); err != nil {
			return err
		}
		if s.tell.Swap(false) {
			if err := s.bookmark(nil); err != nil {
				return err
			}
			reminder.Reset(s.untilBookmark(ctx))
		}
		if s.wt.leaving() {
			return s.lastBookmark()
		}
		switch err := s.sleep(ctx, over); err {
		case nil:
		case errOver:
			_ = s.drain(ctx) // the deletions that came before; the type may be too far gone for it
			return errStreamEnd
		default:
			return err
		}
	}
}

// sleep returns when there is news, and moves on by what it learns from not having been woken before.
func (s *stream) sleep(ctx context.Context, over <-chan struct{}) error {
	s.rest()
	defer func() { s.workspace = workspaces.Get().(*workspace) }()
	select {
	case <-s.sub.C:
		s.pos = max(s.pos, s.sub.Quiet())
		return nil
	case <-over:
		return errOver
	case <-ctx.Done():
		return errStreamEnd
	}
}

// remindOfBookmarks starts what wakes the stream when a bookmark is due; nil for a client that wants none.
func (s *stream) remindOfBookmarks(ctx context.Context) *time.Timer {
	if !s.q.AllowWatchBookmarks {
		return nil
	}
	return time.AfterFunc(s.untilBookmark(ctx), func() {
		s.tell.Store(true)
		s.sub.Ring()
	})
}

// untilBookmark is about a minute, or what is left until shortly before the deadline.
func (s *stream) untilBookmark(ctx context.Context) time.Duration {
	deadline, _ := ctx.Deadline()
	if left := time.Until(deadline) - lastCall; left > 0 {
		return min(left, s.wt.bookmarks)
	}
	return s.wt.bookmarks
}

// lastBookmark lets a client that wants bookmarks resume at "now" after the server's restart.
func (s *stream) lastBookmark() error {
	if s.q.AllowWatchBookmarks {
		_ = s.bookmarkNow()
	}
	return errStreamEnd
}

// drain sends every event up to the newest one and flushes once.
func (s *stream) drain(ctx context.Context) error {
	s.logged = true
	for {
		newest := s.wt.st.Revision()
		events, upTo, err := s.wt.st.Events(s.resource, s.pos, watchBatch, s.events[:0])
		if err != nil {
			return err
		}
		s.events = events
		large := heavyEvents(events)
		if !shares.Fits(ctx, s.w, large) {
			clear(events)
			if err := s.hold(ctx, large); err != nil {
				return err
			}
			continue
		}
		if err := s.convertEvents(ctx, events); err != nil {
			return err
		}
		for i := range events {
			if err := s.deliver(&events[i]); err != nil {
				return err
			}
		}
		clear(events) // of what the log may forget
		s.pos = upTo
		if large > 0 {
			s.lighten()
		}
		if upTo >= newest || ctx.Err() != nil {
			break
		}
		s.sub.Saw(upTo)
	}
	s.logged = false
	return s.write()
}

// hold waits for room for large objects, with nothing in hand.
func (s *stream) hold(ctx context.Context, n int) error {
	if err := s.write(); err != nil {
		return err
	}
	err := shares.Hold(ctx, s.w, n)
	if ctx.Err() != nil {
		return errStreamEnd
	}
	return err
}

// lighten gives the room back once large objects are out; what gathers behind them is not large.
func (s *stream) lighten() {
	if cap(s.buf) > 2*watchBuffer {
		s.buf = append(make([]byte, 0, watchBuffer+4096), s.buf...)
	}
	shares.Release(s.w)
}

// heavyEvents is what events of large objects take, with what they replaced and as frames; 0 where there are none. Those that the log has in memory
// are there anyway, but who reads them slowly keeps them when it has forgotten them.
func heavyEvents(events []store.Event) (n int) {
	for i := range events {
		if size := len(events[i].JSON); size > shares.Large {
			n += 2*size + len(events[i].Prev)
		}
	}
	return n
}

// convertAll has a webhook convert objects, if the type has one, before selectors look at them.
func (s *stream) convertAll(ctx context.Context, records []store.Record) error {
	if !s.v.Res.Converts() {
		return nil
	}
	var readable []*store.Record
	for i := range records {
		if !s.wt.lost.Has(&records[i]) {
			readable = append(readable, &records[i])
		}
	}
	return response.Convert(ctx, s.v.Res, readable...)
}

// convertEvents is the same for events, and for what selectors have to know of the time before.
func (s *stream) convertEvents(ctx context.Context, events []store.Event) error {
	if !s.v.Res.Converts() {
		return nil
	}
	var at []*[]byte
	for i := range events {
		ev := &events[i]
		if !strings.HasPrefix(ev.Key, s.q.match.Span) || s.wt.lost.Has(&ev.Record) {
			continue
		}
		at = append(at, &ev.JSON)
		if !ev.Deleted && ev.CreateRev != ev.Rev && !s.q.match.Everything() {
			at = append(at, &ev.Prev)
		}
	}
	docs := make([][]byte, len(at))
	for i := range at {
		docs[i] = *at[i]
	}
	err := s.v.Res.Custom.Webhook.Watch(ctx, docs)
	for i := range at {
		*at[i] = docs[i]
	}
	return err
}

// deliver sends one event of the log as this watcher sees it, if it does.
func (s *stream) deliver(ev *store.Event) error {
	m := &s.q.match
	created := ev.CreateRev == ev.Rev
	switch {
	case ev.Deleted:
		if m.Matches(ev.Key, ev.JSON) {
			return s.send("DELETED", &ev.Record)
		}
	case m.Matches(ev.Key, ev.JSON):
		if !created && (m.Everything() || m.Matches(ev.Key, ev.Prev)) {
			return s.send("MODIFIED", &ev.Record)
		}
		return s.send("ADDED", &ev.Record)
	case !created && !m.Everything() && m.Matches(ev.Key, ev.Prev):
		gone := ev.Record
		gone.JSON = withRevision(ev.Prev, ev.Rev)
		return s.send("DELETED", &gone)
	}
	return nil
}

// withRevision returns stored JSON with another resourceVersion.
func withRevision(json []byte, rev int64) []byte {
	at := gjson.GetBytes(json, "metadata.resourceVersion")
	out := append(make([]byte, 0, len(json)+8), json[:at.Index]...)
	out = append(strconv.AppendInt(append(out, '"'), rev, 10), '"')
	return append(out, json[at.Index+len(at.Raw):]...)
}

// send appends one frame and writes when enough of them have gathered.
func (s *stream) send(kind string, rec *store.Record) (err error) {
	if s.wt.lost.Has(rec) {
		return nil
	}
	before := len(s.buf)
	if s.buf, err = s.frame(s.buf, kind, rec); errors.Is(err, scheme.ErrUnreadable) { // of today's or of the log's: the rest is told
		s.buf = s.buf[:before]
		return nil
	}
	if err != nil {
		return err
	}
	s.v.Mute = true
	s.hooks.sent(len(s.buf) - before)
	if len(s.buf) < watchBuffer {
		return nil
	}
	defer s.stalled.Stop()
	return s.push()
}

// frame appends one event.
func (s *stream) frame(dst []byte, kind string, rec *store.Record) ([]byte, error) {
	if s.v.Media.Format == scheme.ProtobufFormat {
		return s.sealedFrame(dst, kind, rec)
	}
	dst = append(append(append(dst, `{"type":"`...), kind...), `","object":`...)
	dst, err := s.v.Object(dst, rec)
	return append(dst, "}\n"...), err
}

// write sends and flushes what has gathered.
func (s *stream) write() error {
	if len(s.buf) == 0 && !s.dirty {
		return nil
	}
	defer s.stalled.Stop()
	if err := s.push(); err != nil {
		return err
	}
	s.dirty = false
	return s.flush()
}

// push hands what has gathered to the connection, in pieces: however slow the line is, a client that reads takes one in time, for which it has
// from here on until the caller stops the timer; of what is large, all of them. (A write deadline for each piece would say the same, but
// HTTP/2 ends a stream at its deadline even when nothing is being written.)
func (s *stream) push() (err error) {
	s.dirty = true
	s.stalled.Reset(s.wt.patience)
	for rest := s.buf; ; {
		if len(s.buf) <= shares.Large {
			s.stalled.Reset(s.wt.patience)
		}
		piece := rest[:min(len(rest), watchBuffer)]
		if rest = rest[len(piece):]; len(piece) > 0 {
			_, err = s.w.Write(piece)
		}
		if err != nil || len(rest) == 0 {
			break
		}
	}
	s.buf = s.buf[:0]
	if err != nil {
		return errStreamEnd
	}
	return nil
}

// rest gives the workspace back: a sleeping watch costs its connection and its goroutine, nothing more.
func (s *stream) rest() {
	clear(s.events)
	s.buf, s.events = s.buf[:0], s.events[:0]
	if cap(s.buf) <= 2*watchBuffer && cap(s.events) <= 2*watchBatch {
		workspaces.Put(s.workspace)
	}
	s.workspace = nil
	s.sub.Rest(s.pos)
}

// bookmarkNow tells how far the stream is, also across commits that concern other resources.
func (s *stream) bookmarkNow() error {
	if err := s.drain(context.Background()); err != nil {
		return err
	}
	return s.bookmark(nil)
}

// bookmark sends an object that has nothing but its resourceVersion (and the annotation that ends the initial events).
func (s *stream) bookmark(annotations map[string]string) error {
	json, revAt, err := bookmarkOf(s.v.Res, annotations)
	if err != nil {
		return err
	}
	spliced := store.AppendRevision(make([]byte, 0, len(json)+20), json, revAt, s.pos)
	if err := s.send("BOOKMARK", &store.Record{Rev: s.pos, JSON: spliced}); err != nil {
		return err
	}
	return s.write()
}

// sendError ends a stream with an ERROR event; its object is a Status whatever the client accepts.
func (s *stream) sendError(status *apierrors.StatusError) {
	doc, _ := response.ErrorStatus(status)
	doc.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	if s.v.Media.Format == scheme.ProtobufFormat {
		sealed, err := response.SealObject(&doc)
		if err != nil {
			return
		}
		s.buf = response.AppendFrame(s.buf, "ERROR", sealed)
	} else {
		body, err := json.Marshal(&doc)
		if err != nil {
			return
		}
		s.buf = append(append(append(s.buf, `{"type":"ERROR","object":`...), body...), "}\n"...)
	}
	_ = s.write()
}

// bookmarkOf is an empty object of a resource.
func bookmarkOf(res *scheme.Resource, annotations map[string]string) (json []byte, revAt int, err error) {
	obj := res.NewObject()
	obj.SetAnnotations(annotations)
	return res.EncodeStored(obj)
}

// sealedFrame appends one event. Those of the log are remembered as they were sealed: a hundred watchers cost one encoding, not a hundred.
func (s *stream) sealedFrame(dst []byte, kind string, rec *store.Record) (_ []byte, err error) {
	var sealed []byte
	if s.logged {
		sealed = s.wt.sealed.find(s.v, rec)
	}
	if sealed == nil {
		if sealed, err = s.v.Sealed(nil, rec); err != nil {
			return dst, err
		}
		if s.logged {
			s.wt.sealed.remember(s.v, rec, sealed)
		}
	}
	return response.AppendFrame(dst, kind, sealed), nil
}

const (
	sealedEvents = 64
)

// A sealedLog remembers events by their revision, the newest few. Two watchers that need the same one at the same moment may both encode
// it; nobody waits for anybody.
type sealedLog [sealedEvents]atomic.Pointer[sealedEvent]

func (l *sealedLog) find(v *response.View, rec *store.Record) []byte {
	e := l[rec.Rev%sealedEvents].Load()
	if e == nil || e.res != v.Res || e.as != v.Media.As || e.version != v.Media.Version ||
		len(e.json) != len(rec.JSON) || &e.json[0] != &rec.JSON[0] {
		return nil
	}
	return e.sealed
}

func (l *sealedLog) remember(v *response.View, rec *store.Record, sealed []byte) {
	if len(rec.JSON) == 0 || max(len(rec.JSON), len(sealed)) > response.SealedMost {
		return
	}
	l[rec.Rev%sealedEvents].Store(&sealedEvent{v.Res, v.Media.As, v.Media.Version, rec.JSON, sealed})
}

// A sealedEvent is what a view made of a record's JSON.
type sealedEvent struct {
	res         *scheme.Resource
	as, version string
	json        []byte // told apart by where it lies, since nobody changes it: what leaves a selector shows other JSON at the same revision
	sealed      []byte
}
