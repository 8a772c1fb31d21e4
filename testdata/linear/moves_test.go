package linear

// This file moves clients from apilet to a kube-apiserver on the same etcd, and back, while they
// write. The proxy is switched from one server to the other. Both servers run before the switch.
// The old server then ends, half of the times by SIGKILL while clients are connected, otherwise by
// SIGTERM a second later, and is restarted for the next move. The test requires a kube-apiserver
// program:
//
//	KUBE_APISERVER=kube-apiserver go test -run Moves .
//
// The responses must be linearizable, as in the other tests of this module. Another apilet with
// only one client, a watch, runs all the time. The events are compared with the writes and with the
// other watches. If a watch resumes on a kube-apiserver that is younger than its revision, the
// server returns 410, and the watch continues from a list, which must match the witness at that
// revision.

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"apilet-harness"
	"apilet/apilettest"
)

const (
	// duration of a round, because kube-apiserver takes several seconds to start
	moveLength = 45 * time.Second
	together   = time.Second // time with both servers
)

// moves moves the clients of a round to the other server.
type moves struct {
	r       *round
	servers [2]*apilettest.Server
	current atomic.Pointer[apilettest.Server] // receives the requests
	// waits for the followers to reach the end of the round
	until sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	segments []segment
}

// A segment contains the events that were received from a watch without interruption.
type segment struct {
	from int64
	// the objects at the start, or nil at the start of the round
	listed map[int]cell
	story  []event
	whole  bool // it reached the end of the round
}

func TestHistoriesAcrossMovesAreLinearizable(t *testing.T) {
	if os.Getenv("KUBE_APISERVER") == "" {
		t.Skip("KUBE_APISERVER names no kube-apiserver")
	}
	length := moveLength
	if text := os.Getenv("LINEAR"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatal("LINEAR:", err)
		}
	}
	etcd, urls, _ := startMembers(t)
	m := &moves{servers: [2]*apilettest.Server{startApilet(t, "--etcd-servers", urls), harness.Kubernetes(t, urls)}}
	m.current.Store(m.servers[0])
	witness := startApilet(t, "--etcd-servers", urls)
	moved := 0
	for n, begin := 1, time.Now(); n == 1 || time.Since(begin)+moveLength/2 < length; n++ {
		m.r = &round{t: t, s: witness, more: m.servers[:], members: etcd, moving: m, name: fmt.Sprint("round-", n), begin: time.Now()}
		moved += m.r.play()
		if t.Failed() {
			return
		}
	}
	t.Logf("%d moves", moved)
}

// play moves the clients between the servers until the round ends.
func (m *moves) play(over <-chan struct{}) (n int) {
	for {
		old := m.current.Load()
		next := m.servers[0]
		if old == next {
			next = m.servers[1]
		}
		select {
		case <-next.Process().Done:
			if err := next.Run(); err != nil {
				m.r.t.Error(err)
				return n
			}
		default: // it is still in use
		}
		killed := n%4 < 2 // both servers are stopped in both ways
		if killed {
			old.Kill()
		}
		m.current.Store(next)
		n++
		select {
		case <-over:
			return n
		case <-time.After(together):
		}
		if !killed {
			old.Stop()
		}
	}
}

// ---- Watches ----

// follow watches from a revision until the round's last object, on the current server, in segments.
func (m *moves) follow(since int64) {
	defer m.until.Done()
	s := segment{from: since}
	for begin := time.Now(); time.Since(begin) < moveLength+2*patience; time.Sleep(time.Millisecond) {
		err := m.watch(&s, since)
		switch {
		case errors.Is(err, errEnd):
			s.whole = true
			m.keep(s)
			return
		case errors.Is(err, errExpired):
			list, listed, err := m.list()
			if err != nil {
				continue
			}
			m.keep(s)
			s = segment{from: list, listed: listed}
		case err != nil:
			m.r.t.Errorf("a watch at %d: %v", since, err)
			return
		}
		since = s.from
		if n := len(s.story); n > 0 {
			since = s.story[n-1].rev
		}
		if s.listed[lastKey].there {
			s.whole = true
			m.keep(s)
			return
		}
	}
	m.r.t.Error("a watch across moves has not come to the round's end")
}

func (m *moves) keep(s segment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.segments = append(m.segments, s)
}

var errEnd = errors.New("the round's last object")

// watch follows one server. It returns nil if the server has ended or is unavailable.
func (m *moves) watch(s *segment, since int64) error {
	response, err := ask(m.r.anyServer(), fmt.Sprintf("%s?watch=1&resourceVersion=%d", m.r.path(-1), since))
	if err != nil {
		return nil
	}
	defer response.Body.Close()
	switch code := response.StatusCode; {
	case code == http.StatusGone:
		return errExpired
	case code != http.StatusOK:
		return nil // the server is starting or stopping
	}
	for lines := bufio.NewReader(response.Body); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return nil
		}
		ev, err := eventOf(line)
		switch {
		case errors.Is(err, errBehind):
			return nil
		case err != nil:
			return err
		case ev.key == lastKey:
			return errEnd
		}
		s.story = append(s.story, ev)
	}
}

// list returns the objects and the revision.
func (m *moves) list() (rev int64, listed map[int]cell, err error) {
	code, body, err := exchange(m.r.anyServer(), "GET", m.r.path(-1), "", "")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%d %s", code, body)
	}
	if err != nil {
		return 0, nil, err
	}
	l, err := listOf(body)
	listed = map[int]cell{}
	for _, o := range l.Items {
		listed[o.key()] = o.cell()
	}
	return l.rev(), listed, err
}

// judge compares the segments with the witness's events.
func (m *moves) judge(told []event) (problems []string) {
	events := 0
	for _, s := range m.segments {
		at, was := 0, map[int]cell{}
		for ; at < len(told) && told[at].rev <= s.from; at++ {
			ev := told[at]
			if was[ev.key] = (cell{there: true, rev: ev.rev, v: ev.v, p: ev.p}); ev.kind == "DELETED" {
				delete(was, ev.key)
			}
		}
		if delete(s.listed, lastKey); s.listed != nil && !maps.Equal(s.listed, was) {
			problems = append(problems, fmt.Sprintf("listed at %d is %v, and there was %v", s.from, s.listed, was))
		}
		for i, ev := range s.story {
			if at+i >= len(told) || told[at+i] != ev {
				problems = append(problems, fmt.Sprintf("event %d after %d is %+v, and the witness has %+v", i, s.from, ev, told[min(at+i, len(told)-1)]))
				break
			}
		}
		if s.whole && at+len(s.story) != len(told) {
			problems = append(problems, fmt.Sprintf("after %d there are %d events, and the witness has %d", s.from, len(s.story), len(told)-at))
		}
		events += len(s.story)
	}
	m.r.t.Logf("%d events in %d segments of %d watches", events, len(m.segments), watchers)
	m.segments = nil
	return problems
}
