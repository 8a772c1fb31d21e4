// Package history tells what has changed, when, by whom and how: each record of the log as one line.
//
//	l := history.New(history.Config{Store: st, Maintenance: maintenance, Types: types, Reach: reach, ...})
//	mux.Handle(history.Path, l)
//
//	GET /debug/history?since=-5m&resource=deployments.apps&namespace=shop&by=my-controller
//	{"revision":812,"time":"2026-11-23T05:02:11.204Z","verb":"patch","type":"MODIFIED",...,"changes":[{"path":".spec.replicas","old":1,"new":2}]}
//
//	m, err := history.ParseMoment("-90s", now)        // a revision or a time
//	rev, then, err := history.Moments{st, maintenance}.At(m, now) // the revision that was current then; 410 when that is compacted
//
// The log is the store's: whoever asks has a position in it, a revision, and reads on from there in batches, in short transactions, so that
// a history of a million changes takes no more memory than one of a hundred. An answer ends at its limit, at the newest revision, or when
// its time is over, and says where to go on. One that follows goes on as a watch does: it sleeps until the next commit, and ends when its
// client takes nothing.
//
// Each change is shown to those who may list its resource in its namespace, by the rules of now, and as far back as these reach (reach.go). What is told of it is what
// package changes tells: never the values of a Secret.
//
// Read this file first (the request, and the walk through the log), then query.go (what is asked), tail.go (the last lines), line.go (what is
// told), moment.go and past.go (the API as it was), reach.go (how far back somebody may look).
package history

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"apilet/internal/apierror"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/shares"
	"apilet/internal/store"
)

const (
	// Path is where the history is asked for.
	Path = "/debug/history"

	followersMax = 256              // that follow at the same time, a quarter of them of one user
	pagesMax     = 32               // that do not, likewise
	batchEvents  = 256              // taken from the log at once
	pieceBytes   = 32 << 10         // sent at once
	beatEvery    = 30 * time.Second // of a stream in which nothing happens
	rulesEvery   = 10 * time.Second // who follows is judged anew so often
)

// Config is what a Log works with.
type Config struct {
	Store       *store.Store        // where the changes are
	Maintenance *store.Maintenance  // knows which revision was current when
	Types       *scheme.Registry    // of now
	Selectable  map[string][]string // fields by which objects can be selected whose types are not in Types, by what their keys begin with; may be nil

	Reach        Reach                                           // the rules of now, and how far back they go
	MayAnything  func(request.User) bool                         // whether there is anything that a user may list
	Begun        func(context.Context)                           // told when a follower has what was there; may be nil
	Fail         func(http.ResponseWriter, *http.Request, error) // answers with an error
	Patience     time.Duration                                   // with a client that takes nothing
	Lifetime     time.Duration                                   // of a follower: between one and two of these
	ShuttingDown <-chan struct{}                                 // closed when followers have to end
}

// A Log answers what has happened.
type Log struct {
	Config
	followers, pages *shares.Places // of those who follow, and who read a page
	reading          chan struct{}  // a token for each who is at the store now
}

// New makes a Log.
func New(c Config) *Log {
	return &Log{Config: c, followers: shares.NewPlaces(followersMax), pages: shares.NewPlaces(pagesMax),
		reading: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
}

// Follows tells whether a request follows the log, and so lasts as a watch does.
func Follows(r *http.Request) bool {
	if r.URL.Path != Path || !strings.Contains(r.URL.RawQuery, "follow") {
		return false
	}
	follow, _ := strconv.ParseBool(r.URL.Query().Get("follow"))
	return follow
}

// ServeHTTP answers GET Path.
func (l *Log) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := l.serve(w, r); err != nil {
		l.Fail(w, r, err)
	}
}

func (l *Log) serve(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet {
		return apierror.MethodNotAllowed()
	}
	rec := request.From(r.Context())
	decision := request.Allowed
	if !l.MayAnything(rec.User) {
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
	release, ok := places.Take(rec.User)
	if !ok {
		return apierrors.NewTooManyRequests("as many requests read the history as may at once, of this user or of all", 1)
	}
	defer release()
	s := &stream{log: l, query: q, user: rec.User, types: l.typesByBase(), w: w}
	s.answer(r.Context())
	return nil
}

// A stream is one answer on its way.
type stream struct {
	log *Log
	*query
	user  request.User
	types map[string]*scheme.Resource
	w     http.ResponseWriter

	pos     int64 // all up to here is sent, or was not asked for
	sent    int64 // lines
	last    int64 // the revision of the last of them
	buf     []byte
	events  []store.Event
	since   map[scope]int64 // from which revision on who asks may be told; none where they may not list
	judged  time.Time
	control *http.ResponseController
	stalled *time.Timer // runs while the client is waited for, and cuts the connection
}

// A scope is what a right to list is about.
type scope struct{ group, resource, namespace string }

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, pieceBytes+4096); return &b }}

// errEnd ends a stream that has said what it has to say, or that nobody hears.
var errEnd = errors.New("end of stream")

func (s *stream) answer(ctx context.Context) {
	s.control = http.NewResponseController(s.w)
	s.stalled = time.AfterFunc(time.Hour, func() { _ = s.control.SetWriteDeadline(time.Now()) })
	s.stalled.Stop()
	defer s.stalled.Stop()
	defer s.rest()
	if s.follow {
		life := s.log.Lifetime + time.Duration(rand.Int64N(int64(s.log.Lifetime)+1))
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, life)
		defer cancel()
		_ = s.control.SetWriteDeadline(time.Now().Add(life + 10*time.Second)) // in place of the server's, which is too short
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
		s.sayStatus(err)
		_ = s.flush()
		return
	}
	more, err := s.drain(ctx)
	if s.log.Begun != nil {
		s.log.Begun(ctx)
	}
	if err == nil && s.follow && !more {
		more, err = s.wait(ctx)
	}
	switch {
	case errors.Is(err, errEnd):
		return
	case err != nil:
		s.sayStatus(err)
	case more:
		s.sayContinue("continue")
	}
	_ = s.flush()
}

// wait follows the log until the client, its time or the server ends it.
func (s *stream) wait(ctx context.Context) (more bool, err error) {
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for {
		wake := s.log.Store.Wake(s.prefix) // before the log is read: a commit in between closes it
		more, err := s.drain(ctx)
		if err == nil {
			err = s.flush()
		}
		if more || err != nil {
			return more, err
		}
		s.rest()
		select {
		case <-wake:
		case <-beat.C:
			if s.sse { // where to resume, also when nothing of interest happens
				s.sayContinue("position")
			}
		case <-ctx.Done():
			return true, nil
		case <-s.log.ShuttingDown:
			return true, nil
		}
	}
}

// drain tells what the log has behind pos. more says that it ended before the end of what was asked for.
func (s *stream) drain(ctx context.Context) (more bool, err error) {
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

// batch reads a part of the log, at a moment when not too many do, and tells of it. full says that the limit is reached.
func (s *stream) batch(ctx context.Context, newest int64) (full bool, err error) {
	release := s.log.begin(ctx)
	if release == nil {
		return true, nil
	}
	defer release()
	events, upTo, err := s.read(s.pos)
	if err != nil {
		return false, err
	}
	if large := heavy(events); !shares.Fits(ctx, s.w, large) {
		release()
		clear(events) // who waits holds nothing
		err := shares.Hold(ctx, s.w, large)
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
		if s.limit > 0 && s.sent >= s.limit && ev.Rev != s.last { // a revision is not cut
			s.pos = ev.Rev - 1
			return true, nil
		}
		if !s.tells(ev) {
			continue
		}
		whole := i+1 == len(events) || events[i+1].Rev != ev.Rev
		if err := s.tell(ev, whole); err != nil {
			return false, err
		}
		if len(s.buf) >= pieceBytes {
			release() // nobody waits for a slow client
			if err := s.push(); err != nil {
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

// heavy is what events of large objects take, with what they replaced and as lines; 0 where there are none.
func heavy(events []store.Event) (n int) {
	for i := range events {
		if size := len(events[i].JSON) + len(events[i].Prev); size > shares.Large {
			n += 2 * size
		}
	}
	return n
}

// begin waits until not too many are at the store. It returns what ends the work there, and may be called twice; nil when ctx was over first.
func (l *Log) begin(ctx context.Context) (release func()) {
	select {
	case l.reading <- struct{}{}:
		return sync.OnceFunc(func() { <-l.reading })
	case <-ctx.Done():
		return nil
	}
}

// read takes from the log what lies after a revision. What nobody asks for is mostly left in the file.
func (s *stream) read(after int64) (events []store.Event, upTo int64, err error) {
	s.events, upTo, err = s.log.Store.EventsOf(s.prefix, s.filter, after, batchEvents, s.events[:0])
	return s.events, upTo, err
}

// filter is asked in the middle of a read, and so asks nothing of the store but who an author is.
func (s *stream) filter(key []byte, by store.AuthorID) bool {
	return s.asksFor(string(key)) && (s.by == "" || s.wanted(s.log.Store.Author(by)))
}

// tells says whether an event is asked for, and may be seen.
func (s *stream) tells(ev *store.Event) bool {
	return s.asked(ev) && s.wanted(s.log.Store.Author(ev.Author)) && s.may(ev)
}

// may tells whether who asks may list what an event is about, and as of then.
func (s *stream) may(ev *store.Event) bool {
	if s.since == nil || s.follow && time.Since(s.judged) > rulesEvery || len(s.since) > 100_000 {
		s.since, s.judged = map[scope]int64{}, time.Now()
	}
	base, namespace, _, _ := scheme.SplitKey(ev.Key)
	group, resource := groupResource(base)
	return ev.Rev >= s.sinceOf(scope{group, resource, namespace}, base)
}

// never is the revision from which on somebody is told of what they may not list.
const never = math.MaxInt64

// sinceOf is the revision from which on who asks may be told of a scope.
func (s *stream) sinceOf(at scope, base string) int64 {
	since, known := s.since[at]
	if !known {
		since = s.judge(at, base)
		s.since[at] = since
	}
	return since
}

// judge finds it, by the rules of now.
func (s *stream) judge(at scope, base string) int64 {
	info := request.Info{ResourceRequest: true, Verb: "list", APIPrefix: "apis", Group: at.group, Resource: at.resource, Namespace: at.namespace}
	if at.group == "" {
		info.APIPrefix = "api"
	}
	if res := s.types[base]; res != nil {
		info.Version = res.Version
	}
	switch {
	case !s.log.Reach.May(s.user, info):
		return never
	case at.namespace == "" || s.sinceOf(scope{at.group, at.resource, ""}, base) == 0:
		return 0
	}
	since, err := s.log.Reach.Since(s.user, info, "")
	if err != nil { // damage, of which a scrub tells
		return never
	}
	return since
}

// tell adds a line about an event. whole says that it is the last of its revision.
func (s *stream) tell(ev *store.Event, whole bool) error {
	line, err := json.Marshal(s.line(ev))
	if err != nil {
		return err
	}
	s.sent, s.last = s.sent+1, ev.Rev
	id := ev.Rev
	if !whole { // who resumes here has not seen all of it
		id = 0
	}
	s.say("", id, line)
	return nil
}

// say adds a line, or an event of that name.
func (s *stream) say(event string, id int64, line []byte) {
	if s.buf == nil {
		s.buf = (*buffers.Get().(*[]byte))[:0]
	}
	if !s.sse {
		s.buf = append(append(s.buf, line...), '\n')
		return
	}
	if event != "" {
		s.buf = append(append(append(s.buf, "event: "...), event...), '\n')
	}
	if id > 0 {
		s.buf = append(strconv.AppendInt(append(s.buf, "id: "...), id, 10), '\n')
	}
	s.buf = append(append(append(s.buf, "data: "...), line...), "\n\n"...)
}

// sayContinue says where to go on.
func (s *stream) sayContinue(event string) {
	s.say(event, s.pos, fmt.Appendf(nil, `{"continue":%d}`, s.pos))
}

// sayStatus ends a stream with the Status of an error.
func (s *stream) sayStatus(err error) {
	if errors.Is(err, store.ErrCompacted) {
		err = Moments{s.log.Store, s.log.Maintenance}.compacted(fmt.Sprintf("revision %d", s.pos))
	}
	status, _ := response.ErrorStatus(err)
	status.Kind, status.APIVersion = "Status", "v1"
	if line, err := json.Marshal(&status); err == nil {
		s.say("status", 0, line)
	}
}

// push hands what has gathered to the connection, in pieces: however slow the line is, a client that reads takes one in time.
func (s *stream) push() error {
	defer s.stalled.Stop()
	s.stalled.Reset(s.log.Patience)
	for rest := s.buf; len(rest) > 0; {
		piece := rest[:min(len(rest), pieceBytes)]
		rest = rest[len(piece):]
		if len(s.buf) <= shares.Large { // of what is large, all of it has to be taken in time
			s.stalled.Reset(s.log.Patience)
		}
		if _, err := s.w.Write(piece); err != nil {
			return errEnd
		}
	}
	s.buf = s.buf[:0]
	return nil
}

func (s *stream) flush() error {
	if err := s.push(); err != nil {
		return err
	}
	s.stalled.Reset(s.log.Patience)
	defer s.stalled.Stop()
	if s.control.Flush() != nil {
		return errEnd
	}
	return nil
}

// rest gives the buffers back: who sleeps costs a connection and a goroutine.
func (s *stream) rest() {
	if s.buf != nil && cap(s.buf) <= 2*pieceBytes {
		buf := s.buf
		buffers.Put(&buf)
	}
	s.buf, s.events = nil, nil
	shares.Release(s.w)
}
