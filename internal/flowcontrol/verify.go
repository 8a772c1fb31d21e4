//go:build verify

package flowcontrol

import "fmt"

// verifyLocked checks that the data structures of a level are consistent. It is called before each
// change. It visits the whole level, so it is only enabled in tests and the soak (`-tags verify`).
// It panics if it finds an inconsistency, which is a bug in this package.
func (l *Level) verifyLocked() {
	l.verifyQueuesLocked()
	l.verifyTurnsLocked()
	executing, seats := 0, 0
	for t := l.running.first; t != nil; t = t.next {
		if l.verify(t.state == isExecuting, "a request that runs is in state %d", t.state); !t.yielded {
			executing, seats = executing+1, seats+t.width
		}
	}
	l.verify(executing == l.executing, "%d requests hold seats, and %d are counted", executing, l.executing)
	// the remaining seats are held by tails
	l.verify(seats <= l.inUse, "requests that run hold %d seats, and %d are in use", seats, l.inUse)
	l.verify(!l.retired || l.emptyLocked(), "a level that is retired has requests")
}

// verifyQueuesLocked checks that the counters of the queues match the counters of the level.
func (l *Level) verifyQueuesLocked() {
	waiting, seats := 0, 0
	for i, q := range l.queues {
		if q == nil {
			continue
		}
		waiting, seats = waiting+q.waiting, seats+q.seats
		l.verify(q.index == i, "queue %d has place %d", q.index, i)
		l.verify(q.waiting >= 0 && q.running >= 0 && q.heldSeats >= 0 && q.work >= 0 && q.tickets >= q.waiting+q.running,
			"queue %d has %d tickets, %d wait and %d run; %d seats", i, q.tickets, q.waiting, q.running, q.heldSeats)
	}
	l.verify(waiting == l.waiting && seats == l.waitingSeats, "%d requests of %d seats wait in queues, and %d of %d are counted", waiting, seats, l.waiting, l.waitingSeats)
}

// verifyTurnsLocked checks that exactly the flows with waiting requests are in the heap, and that
// the heap is ordered.
func (l *Level) verifyTurnsLocked() {
	waiting, flows := 0, 0
	for hash, f := range l.flows {
		l.verify(f.hash == hash && f.tickets > 0 && f.seats >= 0 && f.promised >= 0, "flow %x has %d tickets, %d seats, %s promised", hash, f.tickets, f.seats, f.promised)
		if waiting += f.waiting.n; f.waiting.n > 0 {
			flows++
			l.verify(f.heapSlot < len(l.turns) && l.turns[f.heapSlot] == f, "flow %x waits, and has no turn", hash)
		}
	}
	l.verify(flows == len(l.turns) && waiting == l.waiting, "%d flows wait with %d requests; there are %d turns and %d requests", flows, waiting, len(l.turns), l.waiting)
	for slot := 1; slot < len(l.turns); slot++ {
		l.verify(!l.turns[slot].before(l.turns[(slot-1)/2]), "the turn in slot %d is before the one above it", slot)
	}
}

func (l *Level) verify(ok bool, format string, args ...any) {
	if !ok {
		panic("flowcontrol: level " + l.Name + ": " + fmt.Sprintf(format, args...))
	}
}
