// Package history implements the endpoint for the history of all objects. The response contains a
// line for each record in the log, with its time, its author and the fields that have changed.
//
//	l := history.New(history.Config{Store: st, Maintenance: maintenance, Types: types, Visibility: reach, ...})
//	mux.Handle(history.Path, l)
//
//	GET /debug/history?since=-5m&resource=deployments.apps&namespace=shop&by=my-controller
//	{"revision":812,"time":"2026-11-23T05:02:11.204Z","verb":"patch","type":"MODIFIED",...,"changes":[{"path":".spec.replicas","old":1,"new":2}]}
//
//	m, err := history.ParseMoment("-90s", now)        // a revision or a time
//	rev, then, err := history.Moments{st, maintenance}.RevisionAt(m, now) // the revision that was current then; 410 when that is compacted
//
// The log is the store's log. Each request keeps track of its position, which is a revision, and
// reads from there in batches. A new read transaction is used for each batch. This means that the
// use of memory does not depend on the length of the history. A response ends when it has reached
// the limit or the latest revision, or when the request times out. If there is more, the last line
// contains the revision to continue from. If the client follows the log, the request behaves like a
// watch. It sleeps until the next commit and is terminated if the client does not read from the
// connection.
//
// A user sees a change only if the current rules allow the user to list the resource in that
// namespace, and only as far back as these permissions reach (reach.go). The values of Secrets are
// masked by package changes.
//
// Read this file first (the request, and the walk through the log). Then read query.go (the
// parameters), stream.go (permissions and output), tail.go (the last lines), line.go (a line),
// moment.go and past.go (the API at a past revision) and reach.go (how far back a user may look).
package history

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"apilet/internal/apierror"
	"apilet/internal/limits"
	"apilet/internal/request"
	"apilet/internal/store"
)

const (
	// Path is the path of the endpoint.
	Path = "/debug/history"

	keepAliveInterval = 30 * time.Second // interval of keep-alives in an idle stream
)

// IsFollowRequest reports whether the request follows the log. Like a watch, such a request is not
// subject to the usual timeout.
func IsFollowRequest(r *http.Request) bool {
	if r.URL.Path != Path || !strings.Contains(r.URL.RawQuery, "follow") {
		return false
	}
	follow, _ := strconv.ParseBool(r.URL.Query().Get("follow"))
	return follow
}

// ServeHTTP serves GET Path.
func (l *Log) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := l.serve(w, r); err != nil {
		l.WriteError(w, r, err)
	}
}

func (l *Log) serve(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet {
		return apierror.MethodNotAllowed()
	}
	rec := request.From(r.Context())
	decision := request.Allowed
	if !l.MayListAny(rec.User) {
		decision = request.Forbidden
	}
	rec.Decision, rec.Reason = decision, "of each object that is told of, whoever may list it"
	if decision == request.Forbidden {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "history"}, "", fmt.Errorf("User %q may not list anything", rec.User.Name))
	}
	q, err := l.parseQuery(r)
	if err != nil {
		return err
	}
	places := l.pages
	if q.follow {
		places = l.followers
	}
	release, ok := places.TryAcquire(rec.User)
	if !ok {
		return apierrors.NewTooManyRequests("as many requests read the history as may at once, of this user or of all", 1)
	}
	defer release()
	s := &stream{log: l, query: q, user: rec.User, types: l.typesByBase(), w: w}
	s.answer(r.Context())
	return nil
}

func (s *stream) answer(ctx context.Context) {
	s.control = http.NewResponseController(s.w)
	s.writeTimer = time.AfterFunc(time.Hour, func() { _ = s.control.SetWriteDeadline(time.Now()) })
	s.writeTimer.Stop()
	defer s.writeTimer.Stop()
	defer s.releaseBuffers()
	if s.follow {
		life := s.log.Lifetime + time.Duration(rand.Int64N(int64(s.log.Lifetime)+1))
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, life)
		defer cancel()
		// replaces the server's write timeout, which is too short
		_ = s.control.SetWriteDeadline(time.Now().Add(life + 10*time.Second))
	}
	header := s.w.Header()
	header.Set("Content-Type", "application/x-ndjson")
	if s.sse {
		header.Set("Content-Type", "text/event-stream")
	}
	header.Set("Cache-Control", "no-cache, private")
	header.Set("X-Content-Type-Options", "nosniff")
	s.w.WriteHeader(http.StatusOK)
	if err := s.findTail(ctx); err != nil {
		s.appendStatus(err)
		_ = s.flush()
		return
	}
	more, err := s.sendChanges(ctx)
	if s.log.OnCaughtUp != nil {
		s.log.OnCaughtUp(ctx)
	}
	if err == nil && s.follow && !more {
		more, err = s.wait(ctx)
	}
	switch {
	case errors.Is(err, errEnd):
		return
	case err != nil:
		s.appendStatus(err)
	case more:
		s.appendContinue("continue")
	}
	_ = s.flush()
}

// wait follows the log until the client disconnects, the lifetime ends or the server shuts down.
func (s *stream) wait(ctx context.Context) (more bool, err error) {
	beat := time.NewTicker(keepAliveInterval)
	defer beat.Stop()
	for {
		// get the channel before reading the log, so that no commit is missed
		wake := s.log.Store.WakeChannel(s.prefix)
		more, err := s.sendChanges(ctx)
		if err == nil {
			err = s.flush()
		}
		if more || err != nil {
			return more, err
		}
		s.releaseBuffers()
		select {
		case <-wake:
		case <-beat.C:
			if s.sse { // send the position even if no change matches, so that the client can resume there
				s.appendContinue("position")
			}
		case <-ctx.Done():
			return true, nil
		case <-s.log.ShuttingDown:
			return true, nil
		}
	}
}

// sendChanges sends the changes after pos. more reports whether it stopped before the end of the
// requested range.
func (s *stream) sendChanges(ctx context.Context) (more bool, err error) {
	for {
		newest := s.log.Store.Revision()
		if s.until > 0 {
			newest = min(newest, s.until)
		}
		if s.pos >= newest {
			return false, nil
		}
		if ctx.Err() != nil {
			return true, nil
		}
		if full, err := s.batch(ctx, newest); full || err != nil {
			return full, err
		}
	}
}

// batch reads a batch of events from the log and writes them to the client. It first waits until
// few enough requests are reading. full reports whether the response must end here, because the
// limit was reached or ctx ended.
func (s *stream) batch(ctx context.Context, newest int64) (full bool, err error) {
	release := s.log.acquire(ctx)
	if release == nil {
		return true, nil
	}
	defer release()
	events, upTo, err := s.read(s.pos)
	if err != nil {
		return false, err
	}
	if large := memoryFor(events); !limits.TryReserve(ctx, s.w, large) {
		release()
		clear(events) // do not hold the objects while waiting for memory
		err := limits.Reserve(ctx, s.w, large)
		if ctx.Err() != nil {
			return true, nil
		}
		return false, err
	}
	for i := range events {
		ev := &events[i]
		if ev.Rev > newest {
			upTo = newest
			break
		}
		// do not split the changes of a revision
		if s.limit > 0 && s.sent >= s.limit && ev.Rev != s.last {
			s.pos = ev.Rev - 1
			return true, nil
		}
		if !s.isVisible(ev) {
			continue
		}
		whole := i+1 == len(events) || events[i+1].Rev != ev.Rev
		if err := s.addEvent(ev, whole); err != nil {
			return false, err
		}
		if len(s.buf) >= pieceBytes {
			release() // do not block other readers while a slow client reads
			if err := s.writeBuffer(); err != nil {
				return false, err
			}
			if ctx.Err() != nil {
				s.pos = ev.Rev
				if !whole {
					s.pos--
				}
				return true, nil
			}
		}
	}
	s.pos = max(s.pos, upTo)
	return false, nil
}

// memoryFor returns the amount of memory that is needed for events with large objects, including
// the previous versions and the generated lines. It returns 0 if no event is large.
func memoryFor(events []store.Event) (n int) {
	for i := range events {
		if size := len(events[i].JSON) + len(events[i].Prev); size > limits.Large {
			n += 2 * size
		}
	}
	return n
}

// addEvent adds a line for the given event. If it is the last event of its revision, whole must be
// true.
func (s *stream) addEvent(ev *store.Event, whole bool) error {
	line, err := json.Marshal(s.line(ev))
	if err != nil {
		return err
	}
	s.sent, s.last = s.sent+1, ev.Rev
	id := ev.Rev
	if !whole { // the revision is not complete, so the client must not resume from here
		id = 0
	}
	s.appendLine("", id, line)
	return nil
}
