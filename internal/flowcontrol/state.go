package flowcontrol

// This file exports the state of the dispatcher for the dashboard. The state includes the seats and
// queues of each level, and the flows in scheduling order. The same data is written by dump.go in
// the format of kube-apiserver.

import (
	"cmp"
	"slices"
	"time"
)

// Maximum number of flows and queues in the State of a level.
const (
	shownFlows  = 40
	shownQueues = 64
)

// A State is a snapshot of a dispatcher.
type State struct {
	Seats  int          `json:"seats"` // total number of seats of the server
	Levels []LevelState `json:"levels"`
}

// A LevelState is the state of a priority level. If Limit is greater than Nominal, the level has
// borrowed seats. If it is less, the level has lent seats.
type LevelState struct {
	Name         string  `json:"name"`
	Exempt       bool    `json:"exempt,omitempty"`
	Quiescing    bool    `json:"quiescing,omitempty"`
	Nominal      int     `json:"nominal"`
	Least        int     `json:"least"` // limit if it lends the maximum
	Most         int     `json:"most"`  // limit if it borrows the maximum
	Limit        int     `json:"limit"`
	Demand       float64 `json:"demand"` // smoothed demand, which determines lending
	InUse        int     `json:"inUse"`  // number of seats in use, including tails
	Executing    int     `json:"executing"`
	Waiting      int     `json:"waiting"`
	WaitingSeats int     `json:"waitingSeats"`
	Dispatched   uint64  `json:"dispatched"`
	Rejected     uint64  `json:"rejected"`
	// 0 means that requests are rejected if no seat is free
	QueueCount  int          `json:"queueCount"`
	QueueLength int          `json:"queueLength"`
	Queues      []QueueState `json:"queues"` // only queues with requests
	FlowCount   int          `json:"flowCount"`
	Flows       []FlowState  `json:"flows"`
}

// A QueueState is the state of a queue.
type QueueState struct {
	Index     int `json:"index"`
	Waiting   int `json:"waiting"`
	Executing int `json:"executing"`
	Seats     int `json:"seats"` // held by requests from this queue
}

// A FlowState represents a flow, which includes all requests for a schema from the same user or
// namespace.
type FlowState struct {
	Schema        string `json:"schema"`
	Distinguisher string `json:"distinguisher"` // empty if the schema has a single flow
	// the flow with 1 gets the next free seat; 0 if the flow has no waiting requests
	Turn      int `json:"turn"`
	Waiting   int `json:"waiting"`
	Executing int `json:"executing"`
	Seats     int `json:"seats"`
	// Behind is the number of seat-seconds that the flow is owed: virtual time minus its account,
	// including promises.
	Behind float64 `json:"behind"`
}

// State returns a snapshot of the dispatcher.
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
			s.Queues = append(s.Queues, QueueState{Index: q.index, Waiting: q.waiting, Executing: q.running, Seats: q.heldSeats})
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

// flowStatesLocked lists the waiting flows in the order in which they get seats, then the flows
// that have only running requests.
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
		if !t.yielded {
			states[i].Seats += t.width
		}
	}
	return states
}
