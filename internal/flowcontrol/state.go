package flowcontrol

// This file gives what the dispatcher has in its hands as values, for a page that draws it: a level's seats, its busy queues, and its flows
// in the order in which their turn comes. dump.go writes the same as kube-apiserver's tables.

import (
	"cmp"
	"slices"
	"time"
)

// What a State shows of one level at most: the flows that come next, and the fullest queues.
const (
	shownFlows  = 40
	shownQueues = 64
)

// A State is a dispatcher at one moment.
type State struct {
	Seats  int          `json:"seats"` // of the server
	Levels []LevelState `json:"levels"`
}

// A LevelState is one priority level. Limit is what it has now: above Nominal it has borrowed, below it has lent.
type LevelState struct {
	Name         string       `json:"name"`
	Exempt       bool         `json:"exempt,omitempty"`
	Quiescing    bool         `json:"quiescing,omitempty"`
	Nominal      int          `json:"nominal"`
	Least        int          `json:"least"` // that it keeps when it lends all it may
	Most         int          `json:"most"`  // that it has when it borrows all it may
	Limit        int          `json:"limit"`
	Demand       float64      `json:"demand"` // smoothed; what lending goes by
	InUse        int          `json:"inUse"`  // seats, those of tails included
	Executing    int          `json:"executing"`
	Waiting      int          `json:"waiting"`
	WaitingSeats int          `json:"waitingSeats"`
	Dispatched   uint64       `json:"dispatched"`
	Rejected     uint64       `json:"rejected"`
	QueueCount   int          `json:"queueCount"` // 0: who finds no seat is rejected
	QueueLength  int          `json:"queueLength"`
	Queues       []QueueState `json:"queues"` // that are in use
	FlowCount    int          `json:"flowCount"`
	Flows        []FlowState  `json:"flows"`
}

// A QueueState is one waiting room.
type QueueState struct {
	Index     int `json:"index"`
	Waiting   int `json:"waiting"`
	Executing int `json:"executing"`
	Seats     int `json:"seats"` // held by requests that came from it
}

// A FlowState is what one user or namespace has at a level under one schema.
type FlowState struct {
	Schema        string  `json:"schema"`
	Distinguisher string  `json:"distinguisher"` // "" where the schema is one flow
	Turn          int     `json:"turn"`          // 1: the next free seat is its own; 0: it has nothing waiting
	Waiting       int     `json:"waiting"`
	Executing     int     `json:"executing"`
	Seats         int     `json:"seats"`
	Behind        float64 `json:"behind"` // what is due to it, in seat-seconds: virtual time less its account, what its requests are promised included
}

// State returns what is there now.
func (d *Dispatcher) State() State {
	s := State{Seats: d.seats, Levels: []LevelState{}}
	d.each(func(l *Level) { s.Levels = append(s.Levels, l.stateLocked()) })
	return s
}

func (l *Level) stateLocked() LevelState {
	c := &l.allocation
	s := LevelState{Name: l.Name, Exempt: l.exempt, Quiescing: l.quiescing, Nominal: c.nominal, Least: c.min, Most: c.max, Limit: l.limit,
		Demand: c.smoothed, InUse: l.inUse, Executing: l.executing, Waiting: l.waiting, WaitingSeats: l.waitingSeats,
		Dispatched: l.counts.dispatched, Rejected: l.counts.rejected, QueueCount: l.deck, QueueLength: l.queueLength, Queues: []QueueState{}}
	for _, q := range l.queues {
		if q != nil && (q.waiting > 0 || q.running > 0) {
			s.Queues = append(s.Queues, QueueState{Index: q.index, Waiting: q.waiting, Executing: q.running, Seats: q.held})
		}
	}
	if len(s.Queues) > shownQueues {
		slices.SortFunc(s.Queues, func(a, b QueueState) int { return cmp.Compare(b.Waiting, a.Waiting) })
		s.Queues = s.Queues[:shownQueues]
	}
	flows := l.flowStatesLocked()
	s.FlowCount = len(flows)
	s.Flows = flows[:min(len(flows), shownFlows)]
	return s
}

// flowStatesLocked lists those that wait, in the order of their turns, then those that only run.
func (l *Level) flowStatesLocked() []FlowState {
	type name struct{ schema, distinguisher string }
	states, at := []FlowState{}, map[name]int{}
	type place struct {
		flow *flow
		key  time.Duration
	}
	waiting := make([]place, 0, len(l.turns))
	for _, f := range l.turns {
		waiting = append(waiting, place{f, l.keyLocked(f)})
	}
	slices.SortFunc(waiting, func(a, b place) int { return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.flow.turn, b.flow.turn)) })
	for i, p := range waiting {
		first := p.flow.waiting.first
		at[name{first.Schema.Name, first.distinguisher}] = len(states)
		states = append(states, FlowState{Schema: first.Schema.Name, Distinguisher: first.distinguisher, Turn: i + 1,
			Waiting: p.flow.waiting.n, Behind: (l.vtime - p.key).Seconds()})
	}
	for t := l.running.first; t != nil; t = t.next {
		key := name{t.Schema.Name, t.distinguisher}
		i, known := at[key]
		if !known {
			i, at[key] = len(states), len(states)
			states = append(states, FlowState{Schema: key.schema, Distinguisher: key.distinguisher})
		}
		states[i].Executing++
		if !t.lent {
			states[i].Seats += t.width
		}
	}
	return states
}
