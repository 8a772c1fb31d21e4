// This file streams changes to watchers. A watch is a position in the event log of the store, which
// is a revision. The server sends all events after this position and then waits for the next change
// of the resource. There is no queue per watcher. The events of a slow client wait in the log,
// first in memory and then on disk, and only compaction deletes them. The watch is closed if the
// client does not read anything within --request-timeout. Because the log is on disk, a watch can
// resume at any retained revision, even after a restart of the server.
//
//	resourceVersion  sendInitialEvents  starts with
//	---------------  -----------------  ---------------------------------------------------------------
//	"", 0            unset              ADDED for every object (the same as true, the server's default)
//	N                unset              the events after N; an ERROR event 410 if N is compacted
//	F                any                an ERROR event 504, cause ResourceVersionTooLarge
//	"", 0, N         true               ADDED for every current object, then the bookmark that ends them, if requested
//	"", 0 / N        false              the events from now on / after N
//
// A watch also ends after its timeout, when the server stops, and when the definition of its type
// is changed or deleted.
//
// If a selector matched an object before a change but not after it, the watcher receives DELETED
// with the old content and the new revision. kube-apiserver sends nothing on a watch at a future
// revision. apilet reports the error immediately, so that the client lists again and does not wait
// in vain. In this way a client also notices that the store was restored from a backup.
package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/apierror"
	"apilet/internal/crd"
	"apilet/internal/limits"
	"apilet/internal/notify"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scan"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	watchBuffer = 32 << 10 // bytes of frames to collect before writing them
	watchBatch  = 256      // maximum number of events read from the log in one call
	lastCall    = 2 * time.Second
)

// A watchHandler handles WATCH.
type watchHandler struct {
	*readHandler
	minTimeout   time.Duration    // minimum duration of a watch if timeoutSeconds is not set
	bookmarks    time.Duration    // interval between bookmarks
	patience     time.Duration    // timeout for a client that does not read
	notifier     *notify.Notifier // wakes watches
	shuttingDown <-chan struct{}  // closed when watches must end
	encoded      response.EventCache
}

// watchHooks are called as a watch proceeds.
type watchHooks struct {
	// opened is called when the watch is running. at returns the revision up to which all events
	// were sent.
	opened func(at func() int64)
	// started is called at least once. If there are initial events, it is called after they have
	// been sent.
	started func()
	// listed is called after the bookmark that ends the initial events.
	listed func()
	// sent is called for each event.
	sent func(bytes int)
}

// A stream is one running watch.
type stream struct {
	wt          *watchHandler
	hooks       watchHooks
	sub         *notify.Subscription // wakes the stream
	w           http.ResponseWriter
	flush       func() error
	stalled     *time.Timer // runs while the stream waits for the client, and closes the connection
	v           *response.View
	q           *query
	resource    string      // the prefix of the resource's keys in the store
	pos         int64       // all events up to this revision were sent
	bookmarkDue atomic.Bool // a bookmark is due
	*workspace              // nil while the stream sleeps
	dirty       bool        // data was written since the last flush
	// fromLog is true if the events are read from the log. Their JSON is immutable, because all
	// readers of the log share it.
	fromLog bool
}

// A workspace holds the buffers that a stream needs while it is not sleeping.
type workspace struct {
	buf    []byte        // frames that were not written yet
	events []store.Event // events read from the log
}

var (
	workspaces     = sync.Pool{New: func() any { return &workspace{buf: make([]byte, 0, watchBuffer+4096)} }}
	errTypeChanged = errors.New("the type has changed") // or was deleted
)

// errStreamEnd ends a stream without an ERROR event.
var errStreamEnd = errors.New("end of stream")

// serve sends a stream of events. It returns errors before the first byte, and sends later ones as
// an ERROR event.
func (wt *watchHandler) serve(w http.ResponseWriter, r *http.Request, req *request.Request, res *scheme.Resource,
	hooks watchHooks) error {
	defer hooks.started()
	if wt.stopping() {
		return errShuttingDown()
	}
	v, err := response.NewView(r, req, res)
	if err != nil {
		return err
	}
	if v.Media.Format == scheme.YAMLFormat {
		return apierror.New(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
			"only the following media types are accepted: application/json;stream=watch, "+
				"application/vnd.kubernetes.protobuf;stream=watch")
	}
	if v.Media.As == "PartialObjectMetadataList" {
		v.Media.As = "PartialObjectMetadata"
	}
	q, err := parseQuery(res, &req.Info)
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
	// The write deadline of the server is too short for a watch.
	_ = control.SetWriteDeadline(time.Now().Add(lifetime + 10*time.Second))
	stalled := time.AfterFunc(time.Hour, func() { _ = control.SetWriteDeadline(time.Now()) })
	stalled.Stop()
	s := &stream{wt: wt, hooks: hooks, stalled: stalled, w: w, flush: control.Flush, v: v, q: q,
		resource: res.KeyPrefix(""), pos: from,
		workspace: workspaces.Get().(*workspace)}
	if s.fresh() {
		// Read the revision before the client receives the head. The client expects events for its
		// writes after that.
		s.pos = wt.Store.Revision()
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
	s.sub = wt.notifier.Subscribe(notify.InterestOf(res, &q.match))
	defer s.sub.Close()
	hooks.opened(s.sub.Progress)
	s.run(ctx)
	return nil
}

// mayResume returns an error if the log after from holds events that are hidden from the user. In
// this case the client lists again and does not miss any event.
func (wt *watchHandler) mayResume(ctx context.Context, res *scheme.Resource, q *query, from int64) error {
	if from == 0 || q.SendInitialEvents != nil && *q.SendInitialEvents {
		return nil
	}
	since, err := wt.past.OfRequest(ctx, res)
	if err == nil && from+1 < since {
		return response.WatchExpired(res, from, since-1)
	}
	return err
}

// stopping reports whether the server is shutting down.
func (wt *watchHandler) stopping() bool {
	select {
	case <-wt.shuttingDown:
		return true
	default:
		return false
	}
}

// errShuttingDown returns an error that makes client-go resume its watch after a moment. If the
// watch started and then ended immediately, client-go would list again.
func errShuttingDown() error {
	return apierrors.NewTooManyRequests("The apiserver is shutting down, please try again later.", 1)
}

// lifetimeOf returns the duration of a watch: timeoutSeconds if it is set, and otherwise a random
// time, so that watches do not all end together.
func lifetimeOf(q *query, least time.Duration) time.Duration {
	if q.TimeoutSeconds != nil && *q.TimeoutSeconds != 0 {
		return time.Duration(max(*q.TimeoutSeconds, 0)) * time.Second
	}
	return least + time.Duration(rand.Int64N(int64(least)+1))
}

// run sends the initial events and then the log, until the client, the deadline or the server ends
// the stream.
func (s *stream) run(ctx context.Context) {
	defer s.releaseWorkspace()
	err := s.begin(ctx)
	s.hooks.started()
	if err == nil {
		err = s.follow(ctx)
	}
	var status *apierrors.StatusError
	switch {
	// The type was changed or deleted just now. The client gets the reason when it starts a new
	// watch.
	case errors.Is(err, crd.ErrNoSuchVersion):
	case errors.Is(err, store.ErrCompacted):
		s.sendError(response.WatchExpired(s.v.Res, s.pos, s.oldest()))
	case errors.As(err, &status):
		s.sendError(status)
	case errors.Is(err, store.ErrDamaged), errors.Is(err, store.ErrSealed):
		s.sendError(apierrors.NewInternalError(err))
	}
}

// oldest returns the first revision after pos from which the client can watch. Where the log is
// damaged, that is the current revision.
func (s *stream) oldest() int64 {
	if compacted := s.wt.Store.Compacted(); compacted > s.pos {
		return compacted
	}
	return s.wt.Store.Revision()
}

// begin sends the initial events, if the client expects any, and sets pos to their revision.
func (s *stream) begin(ctx context.Context) error {
	initial := s.fresh()
	if s.q.SendInitialEvents != nil {
		initial = *s.q.SendInitialEvents
	}
	if ctx.Err() != nil { // timeoutSeconds is negative
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

// fresh reports whether the client has not seen any revision yet.
func (s *stream) fresh() bool { return s.q.ResourceVersion == "" || s.q.ResourceVersion == "0" }

// sendAll sends an ADDED event for each object. All objects are read at the same revision.
func (s *stream) sendAll(ctx context.Context) error {
	sc, m := s.wt.NewScan(s.w, s.v.Res), &s.q.match
	sc.NoSlot, sc.BeforeWait = true, s.write
	defer sc.Release()
	span := store.Span{Prefix: m.Span}
	// Use the revision from before the client received the head. Objects that the client has
	// deleted since then still existed.
	if s.fresh() {
		span.Rev = s.pos
	}
	for span.Keys, span.Rev = s.wt.Keys(ctx, m, span.Rev); ; {
		err := sc.Read(ctx, span, func(c *store.Chunk) error {
			span.Rev, span.Start = c.Rev, c.Next
			if err := s.wt.Convert(ctx, s.v.Res, c.Records, len(c.Records)); err != nil {
				return err
			}
			for i := range c.Records {
				rec := &c.Records[i]
				if !m.Matches(rec.Key, rec.JSON) {
					continue
				}
				if err := s.send("ADDED", rec); err != nil {
					return err
				}
			}
			return nil
		})
		switch {
		case ctx.Err() != nil && (err != nil || span.Start != ""):
			return errStreamEnd
		case err != nil:
			return err
		}
		if sc.Large > 0 {
			sc.Release()
			s.releaseLarge()
		}
		if span.Start == "" {
			s.pos = span.Rev
			return nil
		}
	}
}

// follow sends all events after pos and then waits for new ones. It skips the revisions that
// contain no events for this watch, according to Quiet.
func (s *stream) follow(ctx context.Context) error {
	reminder := s.remindOfBookmarks(ctx)
	if reminder != nil {
		defer reminder.Stop()
	}
	var typeChanged <-chan struct{} // closed when the definition of a custom type changes or is deleted
	if s.v.Res.Custom != nil {
		typeChanged = s.v.Res.Custom.Replaced
	}
	for {
		if err := s.sendEvents(ctx); err != nil {
			return err
		}
		if s.bookmarkDue.Swap(false) {
			if err := s.bookmark(nil); err != nil {
				return err
			}
			reminder.Reset(s.untilBookmark(ctx))
		}
		if s.wt.stopping() {
			return s.lastBookmark()
		}
		switch err := s.sleep(ctx, typeChanged); err {
		case nil:
		case errTypeChanged:
			_ = s.sendEvents(ctx) // send the deletions before the end; this fails if the type is already gone
			return errStreamEnd
		default:
			return err
		}
	}
}

// sleep waits for new events. It then sets pos to the revision of the last commit that was
// irrelevant for this watch.
func (s *stream) sleep(ctx context.Context, typeChanged <-chan struct{}) error {
	s.releaseWorkspace()
	defer func() { s.workspace = workspaces.Get().(*workspace) }()
	select {
	case <-s.sub.C:
		s.pos = max(s.pos, s.sub.QuietRevision())
		return nil
	case <-typeChanged:
		return errTypeChanged
	case <-ctx.Done():
		return errStreamEnd
	}
}

// remindOfBookmarks starts a timer that wakes the stream when a bookmark is due. It returns nil if
// the client does not want bookmarks.
func (s *stream) remindOfBookmarks(ctx context.Context) *time.Timer {
	if !s.q.AllowWatchBookmarks {
		return nil
	}
	return time.AfterFunc(s.untilBookmark(ctx), func() {
		s.bookmarkDue.Store(true)
		s.sub.Wake()
	})
}

// untilBookmark returns the time until the next bookmark: about a minute, or less if the deadline
// is near.
func (s *stream) untilBookmark(ctx context.Context) time.Duration {
	deadline, _ := ctx.Deadline()
	if left := time.Until(deadline) - lastCall; left > 0 {
		return min(left, s.wt.bookmarks)
	}
	return s.wt.bookmarks
}

// lastBookmark sends a bookmark, if the client wants any, so that it can resume at the newest
// revision after a restart of the server.
func (s *stream) lastBookmark() error {
	if s.q.AllowWatchBookmarks {
		_ = s.bookmarkNow()
	}
	return errStreamEnd
}

// sendEvents sends all events up to the newest revision and flushes the connection.
func (s *stream) sendEvents(ctx context.Context) error {
	s.fromLog = true
	for {
		newest := s.wt.Store.Revision()
		events, upTo, err := s.wt.Store.Events(s.resource, s.pos, watchBatch, s.events[:0])
		if err != nil {
			return err
		}
		s.events = events
		large := scan.SizeOfLargeEvents(events)
		if !limits.TryReserve(ctx, s.w, large) {
			clear(events)
			if err := s.hold(ctx, large); err != nil {
				return err
			}
			continue
		}
		if err := s.wt.ConvertEvents(ctx, s.v.Res, events, &s.q.match); err != nil {
			return err
		}
		for i := range events {
			if err := s.deliver(&events[i]); err != nil {
				return err
			}
		}
		clear(events) // the log may drop these events
		s.pos = upTo
		if large > 0 {
			s.releaseLarge()
		}
		if upTo >= newest || ctx.Err() != nil {
			break
		}
		s.sub.MarkRead(upTo)
	}
	s.fromLog = false
	return s.write()
}

// hold writes all pending frames and then waits for memory for large objects.
func (s *stream) hold(ctx context.Context, n int) error {
	if err := s.write(); err != nil {
		return err
	}
	err := limits.Reserve(ctx, s.w, n)
	if ctx.Err() != nil {
		return errStreamEnd
	}
	return err
}

// releaseLarge releases the memory after large objects were sent. Frames that are still pending are
// not large.
func (s *stream) releaseLarge() {
	if cap(s.buf) > 2*watchBuffer {
		s.buf = append(make([]byte, 0, watchBuffer+4096), s.buf...)
	}
	limits.Release(s.w)
}

// deliver sends an event of the log, if the selectors match the object before or after the change.
func (s *stream) deliver(ev *store.Event) error {
	m := &s.q.match
	created := ev.CreateRev == ev.Rev
	switch {
	case ev.Deleted:
		if m.Matches(ev.Key, ev.JSON) {
			return s.send("DELETED", &ev.Record)
		}
	case m.Matches(ev.Key, ev.JSON):
		if !created && (m.MatchesAll() || m.Matches(ev.Key, ev.Prev)) {
			return s.send("MODIFIED", &ev.Record)
		}
		return s.send("ADDED", &ev.Record)
	case !created && !m.MatchesAll() && m.Matches(ev.Key, ev.Prev):
		gone := ev.Record
		gone.JSON = store.WithRevision(ev.Prev, ev.Rev)
		return s.send("DELETED", &gone)
	}
	return nil
}

// send appends a frame, and writes the buffer when it is full.
func (s *stream) send(kind string, rec *store.Record) (err error) {
	if s.wt.Corrupt.Has(rec) {
		return nil
	}
	before := len(s.buf)
	var cache *response.EventCache
	if s.fromLog {
		cache = &s.wt.encoded
	}
	// If the object cannot be decoded, omit it and continue.
	if s.buf, err = s.v.AppendEvent(s.buf, kind, rec, cache); errors.Is(err, scheme.ErrUnreadable) {
		s.buf = s.buf[:before]
		return nil
	}
	if err != nil {
		return err
	}
	s.v.OmitColumns = true
	s.hooks.sent(len(s.buf) - before)
	if len(s.buf) < watchBuffer {
		return nil
	}
	defer s.stalled.Stop()
	return s.push()
}

// write writes the pending frames and flushes.
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

// push writes the pending frames to the connection in pieces. The timeout applies to each piece, so
// that a slow client is not disconnected as long as it reads. If the buffer is large, the client
// has that time for all pieces together. The caller must stop the timer. A write deadline per piece
// would be simpler, but HTTP/2 ends a stream at its deadline even if nothing is being written.
func (s *stream) push() (err error) {
	s.dirty = true
	s.stalled.Reset(s.wt.patience)
	for rest := s.buf; ; {
		if len(s.buf) <= limits.Large {
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

// releaseWorkspace returns the workspace to its pool. A sleeping watch then needs only its
// connection and its goroutine.
func (s *stream) releaseWorkspace() {
	clear(s.events)
	s.buf, s.events = s.buf[:0], s.events[:0]
	if cap(s.buf) <= 2*watchBuffer && cap(s.events) <= 2*watchBatch {
		workspaces.Put(s.workspace)
	}
	s.workspace = nil
	s.sub.MarkIdle(s.pos)
}

// bookmarkNow sends all pending events and then a bookmark with the newest revision, even if the
// last commits changed other resources.
func (s *stream) bookmarkNow() error {
	if err := s.sendEvents(context.Background()); err != nil {
		return err
	}
	return s.bookmark(nil)
}

// bookmark sends an object that contains only its resourceVersion, and the annotation that ends the
// initial events if it is given.
func (s *stream) bookmark(annotations map[string]string) error {
	rec, err := response.Bookmark(s.v.Res, annotations, s.pos)
	if err != nil {
		return err
	}
	if err := s.send("BOOKMARK", rec); err != nil {
		return err
	}
	return s.write()
}

// sendError sends an ERROR event. Its object is always a Status.
func (s *stream) sendError(status *apierrors.StatusError) {
	buf, err := s.v.AppendError(s.buf, status)
	if s.buf = buf; err == nil {
		_ = s.write()
	}
}
