package history

// This file is one answer on its way: what it reads of the log, of which events it may tell whom, and how it writes lines. A line is gathered, and
// pushed when enough have gathered or nothing else is to come at once.

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/shares"
	"apilet/internal/store"
)

const (
	batchEvents = 256              // taken from the log at once
	pieceBytes  = 32 << 10         // sent at once
	rulesEvery  = 10 * time.Second // who follows is judged anew so often
)

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

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, pieceBytes+4096); return &b }}

// errEnd ends a stream that has said what it has to say, or that nobody hears.
var errEnd = errors.New("end of stream")

// never is the revision from which on somebody is told of what they may not list.
const never = math.MaxInt64

// A scope is what a right to list is about.
type scope struct{ group, resource, namespace string }

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
