package dashboard

// This file knows which watches there are and where each stands. Nothing is done for that until somebody looks.

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
	shownRunes   = 120 // of a text that a client sent
)

// Watches are those that are served. The zero value has none.
type Watches struct {
	mu   sync.Mutex // guards open and, of its watches, behindSince
	open map[*Watch]struct{}
}

// A Watch is one of them. What says who watches what is set once.
type Watch struct {
	User, Agent                  string    // who watches, and by which program
	Group, Resource              string    // what
	Namespace                    string    // "" for all
	LabelSelector, FieldSelector string    // as they were asked; "" for none
	Base                         string    // of the resource's keys
	Started                      time.Time // when it was asked for
	at                           atomic.Pointer[func() int64]
	behindSince                  time.Time // when it was first seen to lag; zero while it does not
}

// Begin adds a watch. End takes it away again.
func (ws *Watches) Begin(w *Watch) {
	w.User, w.Agent = strings.Clone(shortened(w.User)), strings.Clone(shortened(w.Agent)) // what is cut from a header holds on to all of it
	w.LabelSelector, w.FieldSelector = strings.Clone(shortened(w.LabelSelector)), strings.Clone(shortened(w.FieldSelector))
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.open == nil {
		ws.open = map[*Watch]struct{}{}
	}
	ws.open[w] = struct{}{}
}

// End takes a watch away that is over.
func (ws *Watches) End(w *Watch) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	delete(ws.open, w)
}

// Follow names a function that tells up to which revision everything has been sent.
func (w *Watch) Follow(at func() int64) { w.at.Store(&at) }

type watchesState struct {
	Total  int          `json:"total"`
	Behind int          `json:"behind"`
	Items  []watchState `json:"items"` // those that lag most first, then the newest
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
	Lag           int64     `json:"lag"` // revisions from there to its resource's newest event; 0: it has seen all
	LagSeconds    float64   `json:"lagSeconds"`
}

func (ws *Watches) state(st *store.Store, now time.Time) watchesState {
	ws.mu.Lock()
	items := make([]watchState, 0, len(ws.open))
	for w := range ws.open {
		items = append(items, w.stateLocked(st.Newest(w.Base), now))
	}
	ws.mu.Unlock()
	slices.SortFunc(items, func(a, b watchState) int { return cmp.Or(cmp.Compare(b.Lag, a.Lag), b.Started.Compare(a.Started)) })
	behind, _ := slices.BinarySearchFunc(items, 0, func(w watchState, _ int) int { return cmp.Compare(0, w.Lag) })
	return watchesState{Total: len(items), Behind: behind, Items: items[:min(len(items), shownWatches)]}
}

// stateLocked is about a watch of a resource whose newest event has the revision newest.
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

// shortened keeps a client's text from filling the document.
func shortened(text string) string {
	n := 0
	for i := range text {
		if n++; n > shownRunes {
			return text[:i] + "…"
		}
	}
	return text
}
