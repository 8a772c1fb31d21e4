package history

// This file implements one response. It reads events from the log and writes a line for each event
// that is visible to the user. Lines are buffered, and sent when the buffer is full or when no
// further line is available.

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"apilet/internal/limits"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	batchEvents   = 256              // maximum number of events in one read of the log
	pieceBytes    = 32 << 10         // maximum size in bytes of one write
	rulesInterval = 10 * time.Second // interval for re-evaluating the permissions of a follower
)

// A stream is one response in progress.
type stream struct {
	log *Log
	*query
	user  request.User
	types map[string]*scheme.Resource
	w     http.ResponseWriter

	pos    int64 // all changes up to this revision were sent or did not match
	sent   int64 // number of lines sent
	last   int64 // revision of the last line
	buf    []byte
	events []store.Event
	// the first revision visible to the user in each scope, or never if listing is not allowed
	since       map[scope]int64
	evaluatedAt time.Time
	control     *http.ResponseController
	writeTimer  *time.Timer // closes the connection if the client does not read, active during writes
}

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, pieceBytes+4096); return &b }}

// errEnd is returned when a stream is complete or the client has disconnected.
var errEnd = errors.New("end of stream")

// never is used as the first visible revision if the user is not allowed to list the resource.
const never = math.MaxInt64

// A scope is a combination of a resource and a namespace for which permissions are evaluated.
type scope struct{ group, resource, namespace string }

// read reads the events after a revision. The store skips most events that do not match the query
// without decoding them.
func (s *stream) read(after int64) (events []store.Event, upTo int64, err error) {
	s.events, upTo, err = s.log.Store.EventsOf(s.prefix, s.filter, after, batchEvents, s.events[:0])
	return s.events, upTo, err
}

// filter runs inside a read transaction of the store. The only data that it may read from the store
// is the author.
func (s *stream) filter(key []byte, by store.AuthorID) bool {
	return s.matchesKey(string(key)) && (s.by == "" || s.matchesAuthor(s.log.Store.Author(by)))
}

// isVisible reports whether the event matches the query and is visible to the user.
func (s *stream) isVisible(ev *store.Event) bool {
	return s.matchesEvent(ev) && s.matchesAuthor(s.log.Store.Author(ev.Author)) && s.mayList(ev)
}

// mayList reports whether the user may list the event's resource, and whether that permission
// reaches back to the event.
func (s *stream) mayList(ev *store.Event) bool {
	if s.since == nil || s.follow && time.Since(s.evaluatedAt) > rulesInterval || len(s.since) > 100_000 {
		s.since, s.evaluatedAt = map[scope]int64{}, time.Now()
	}
	base, namespace, _, _ := scheme.SplitKey(ev.Key)
	group, resource := groupResource(base)
	return ev.Rev >= s.sinceOf(scope{group, resource, namespace}, base)
}

// sinceOf returns the first revision of the scope that the user may see.
func (s *stream) sinceOf(at scope, base string) int64 {
	since, known := s.since[at]
	if !known {
		since = s.evaluateRules(at, base)
		s.since[at] = since
	}
	return since
}

// evaluateRules evaluates the current rules for sinceOf.
func (s *stream) evaluateRules(at scope, base string) int64 {
	info := request.Info{ResourceRequest: true, Verb: "list", APIPrefix: "apis", Group: at.group, Resource: at.resource, Namespace: at.namespace}
	if at.group == "" {
		info.APIPrefix = "api"
	}
	if res := s.types[base]; res != nil {
		info.Version = res.Version
	}
	switch {
	case !s.log.Visibility.Authorize(s.user, info):
		return never
	case at.namespace == "" || s.sinceOf(scope{at.group, at.resource, ""}, base) == 0:
		return 0
	}
	since, err := s.log.Visibility.VisibleSince(s.user, info, "")
	if err != nil { // the record is damaged, which is reported by the scrub
		return never
	}
	return since
}

// appendLine appends a line, or a server-sent event with the given name.
func (s *stream) appendLine(event string, id int64, line []byte) {
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

// appendContinue appends the position from which the client can continue.
func (s *stream) appendContinue(event string) {
	s.appendLine(event, s.pos, fmt.Appendf(nil, `{"continue":%d}`, s.pos))
}

// appendStatus appends the Status of an error that ends the stream.
func (s *stream) appendStatus(err error) {
	if errors.Is(err, store.ErrCompacted) {
		err = Moments{s.log.Store, s.log.Maintenance}.compacted(fmt.Sprintf("revision %d", s.pos))
	}
	status, _ := response.ErrorStatus(err)
	status.Kind, status.APIVersion = "Status", "v1"
	if line, err := json.Marshal(&status); err == nil {
		s.appendLine("status", 0, line)
	}
}

// writeBuffer writes the buffer to the connection in pieces. The timer is reset after each piece,
// so slow connections are not closed as long as the client keeps reading.
func (s *stream) writeBuffer() error {
	defer s.writeTimer.Stop()
	s.writeTimer.Reset(s.log.WriteTimeout)
	for rest := s.buf; len(rest) > 0; {
		piece := rest[:min(len(rest), pieceBytes)]
		rest = rest[len(piece):]
		if len(s.buf) <= limits.Large { // a large buffer must be read completely within one period
			s.writeTimer.Reset(s.log.WriteTimeout)
		}
		if _, err := s.w.Write(piece); err != nil {
			return errEnd
		}
	}
	s.buf = s.buf[:0]
	return nil
}

func (s *stream) flush() error {
	if err := s.writeBuffer(); err != nil {
		return err
	}
	s.writeTimer.Reset(s.log.WriteTimeout)
	defer s.writeTimer.Stop()
	if s.control.Flush() != nil {
		return errEnd
	}
	return nil
}

// releaseBuffers returns the buffers to the pool. An idle follower needs only a connection and a
// goroutine.
func (s *stream) releaseBuffers() {
	if s.buf != nil && cap(s.buf) <= 2*pieceBytes {
		buf := s.buf
		buffers.Put(&buf)
	}
	s.buf, s.events = nil, nil
	limits.Release(s.w)
}
