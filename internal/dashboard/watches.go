package dashboard

// This file keeps track of all open watches. The lag of each watch is only computed when the
// document is requested.

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"apilet/internal/store"
)

const (
	shownWatches = 200
	shownRunes   = 120 // maximum length of strings from clients
)

// Watches is the set of open watches. The zero value is empty.
type Watches struct {
	mu   sync.Mutex // guards open, and behindSince of its watches
	open map[*Watch]struct{}
}

// A Watch describes an open watch. All fields except at and behindSince must not be modified after
// the call to Add.
type Watch struct {
	User, Agent                  string    // the user and the user agent
	Group, Resource              string    // the watched resource
	Namespace                    string    // "" means all
	LabelSelector, FieldSelector string    // as requested; "" means none
	Base                         string    // key prefix of the resource
	Started                      time.Time // time of the request
	at                           atomic.Pointer[func() int64]
	behindSince                  time.Time // when the watch was first seen to lag; zero if it does not lag
}

// Add adds a watch. The caller must call Remove when the watch ends.
func (ws *Watches) Add(w *Watch) {
	// clone the strings, because a substring would keep the whole header in memory
	w.User, w.Agent = strings.Clone(truncate(w.User)), strings.Clone(truncate(w.Agent))
	w.LabelSelector, w.FieldSelector = strings.Clone(truncate(w.LabelSelector)), strings.Clone(truncate(w.FieldSelector))
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.open == nil {
		ws.open = map[*Watch]struct{}{}
	}
	ws.open[w] = struct{}{}
}

// Remove removes a watch.
func (ws *Watches) Remove(w *Watch) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	delete(ws.open, w)
}

// Follow registers a function that returns the latest revision for which all events have been sent
// to the client.
func (w *Watch) Follow(at func() int64) { w.at.Store(&at) }

type watchesState struct {
	Total  int          `json:"total"`
	Behind int          `json:"behind"`
	Items  []watchState `json:"items"` // ordered by lag, largest first, and then newest first
}

type watchState struct {
	User          string    `json:"user"`
	Agent         string    `json:"agent"`
	Group         string    `json:"group"`
	Resource      string    `json:"resource"`
	Namespace     string    `json:"namespace,omitempty"`
	LabelSelector string    `json:"labelSelector,omitempty"`
	FieldSelector string    `json:"fieldSelector,omitempty"`
	Started       time.Time `json:"started"`
	At            int64     `json:"at"`
	// number of revisions from At to the newest event of the resource; 0 if all events were sent
	Lag        int64   `json:"lag"`
	LagSeconds float64 `json:"lagSeconds"`
}

func (ws *Watches) state(st *store.Store, now time.Time) watchesState {
	ws.mu.Lock()
	items := make([]watchState, 0, len(ws.open))
	for w := range ws.open {
		items = append(items, w.stateLocked(st.NewestEvent(w.Base), now))
	}
	ws.mu.Unlock()
	slices.SortFunc(items, func(a, b watchState) int { return cmp.Or(cmp.Compare(b.Lag, a.Lag), b.Started.Compare(a.Started)) })
	behind, _ := slices.BinarySearchFunc(items, 0, func(w watchState, _ int) int { return cmp.Compare(0, w.Lag) })
	return watchesState{Total: len(items), Behind: behind, Items: items[:min(len(items), shownWatches)]}
}

// stateLocked returns the state of the watch. newest is the revision of the resource's newest
// event. The caller must hold the mutex of Watches.
func (w *Watch) stateLocked(newest int64, now time.Time) watchState {
	s := watchState{User: w.User, Agent: w.Agent, Group: w.Group, Resource: w.Resource, Namespace: w.Namespace,
		LabelSelector: w.LabelSelector, FieldSelector: w.FieldSelector, Started: w.Started.UTC(), At: newest}
	if at := w.at.Load(); at != nil {
		s.At = (*at)()
	}
	switch s.Lag = max(0, newest-s.At); {
	case s.Lag == 0:
		w.behindSince = time.Time{}
	case w.behindSince.IsZero():
		w.behindSince = now
	default:
		s.LagSeconds = now.Sub(w.behindSince).Seconds()
	}
	return s
}

// truncate cuts a client's text, to limit the size of the document.
func truncate(text string) string {
	n := 0
	for i := range text {
		if n++; n > shownRunes {
			return text[:i] + "…"
		}
	}
	return text
}
