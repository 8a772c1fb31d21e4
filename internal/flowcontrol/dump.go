package flowcontrol

// This file writes the state of the dispatcher as the pages of /debug/api_priority_and_fairness.
// The columns and their order are the same as in
// k8s.io/apiserver/pkg/util/flowcontrol/apf_controller_debug.go, for compatibility with scripts.

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// Dump writes the named page as a table with kube-apiserver's columns. It returns false if the page
// does not exist. Errors of w are ignored.
func (d *Dispatcher) Dump(w io.Writer, page string, details bool) bool {
	table := dumpTable{tabwriter.NewWriter(w, 8, 0, 1, ' ', 0)}
	switch page {
	case "dump_priority_levels":
		d.dumpLevels(table)
	case "dump_queues":
		d.dumpQueues(table)
	case "dump_requests":
		d.dumpRequests(table, details)
	default:
		return false
	}
	_ = table.Flush()
	return true
}

type dumpTable struct{ *tabwriter.Writer }

func (table dumpTable) row(cells ...any) {
	for i, cell := range cells {
		if i > 0 {
			_, _ = table.Write([]byte(",\t"))
		}
		_, _ = fmt.Fprint(table, cell)
	}
	_, _ = table.Write([]byte("\n"))
}

func (d *Dispatcher) dumpLevels(table dumpTable) {
	table.row("PriorityLevelName", "ActiveQueues", "IsIdle", "IsQuiescing", "WaitingRequests", "ExecutingRequests",
		"DispatchedRequests", "RejectedRequests", "TimedoutRequests", "CancelledRequests")
	d.each(func(l *Level) {
		active := 0
		for _, q := range l.queues {
			if q != nil && q.waiting > 0 {
				active++
			}
		}
		table.row(l.Name, active, l.waiting == 0 && l.running.n == 0, l.quiescing, l.waiting, l.running.n,
			l.counts.dispatched, l.counts.rejected, l.counts.timedOut, l.counts.cancelled)
	})
}

func (d *Dispatcher) dumpQueues(table dumpTable) {
	table.row("PriorityLevelName", "Index", "PendingRequests", "ExecutingRequests", "SeatsInUse", "NextDispatchR",
		"InitialSeatsSum", "MaxSeatsSum", "TotalWorkSum")
	d.each(func(l *Level) {
		initial := make([]int, len(l.queues))
		next := make([]time.Duration, len(l.queues))
		for i := range next {
			next[i] = l.vtime
		}
		for _, t := range waitingTickets(l) {
			i := t.queue.index
			if initial[i] == 0 {
				next[i] = t.flow.served
			}
			initial[i] += t.est.InitialSeats
		}
		for i, q := range l.queues {
			if q == nil {
				q = &queue{}
			}
			table.row(l.Name, i, q.waiting, q.running, q.heldSeats, seatSeconds(next[i]), initial[i], q.seats, seatSeconds(q.work))
		}
	})
}

// seatSeconds formats seat-time in the format of Kubernetes.
func seatSeconds(work time.Duration) string {
	return fmt.Sprintf("%d.%08dss", work/time.Second, work%time.Second/10)
}

// waitingTickets returns the waiting requests of a level in order of arrival.
func waitingTickets(l *Level) []*Ticket {
	var tickets []*Ticket
	for _, f := range l.turns {
		l.updateAccountLocked(f)
		for t := f.waiting.first; t != nil; t = t.next {
			tickets = append(tickets, t)
		}
	}
	slices.SortFunc(tickets, func(a, b *Ticket) int { return cmp.Compare(a.number, b.number) })
	return tickets
}

func (d *Dispatcher) dumpRequests(table dumpTable, details bool) {
	head := []any{"PriorityLevelName", "FlowSchemaName", "QueueIndex", "RequestIndexInQueue", "FlowDistingsher", "ArriveTime",
		"InitialSeats", "FinalSeats", "AdditionalLatency", "StartTime"}
	if details {
		head = append(head, "UserName", "Verb", "APIPath", "Namespace", "Name", "APIVersion", "Resource", "SubResource")
	}
	table.row(head...)
	d.each(func(l *Level) {
		place := make([]int, len(l.queues))
		for _, t := range waitingTickets(l) {
			table.row(requestCells(t, t.queue.index, place[t.queue.index], details)...)
			place[t.queue.index]++
		}
		for t := l.running.first; t != nil; t = t.next {
			index := -1
			if t.queue != nil {
				index = t.queue.index
			}
			table.row(requestCells(t, index, -1, details)...)
		}
	})
}

func requestCells(t *Ticket, queue, place int, details bool) []any {
	cells := []any{t.level.Name, t.Schema.Name, queue, place, t.distinguisher, t.Arrived.UTC().Format(time.RFC3339Nano),
		t.est.InitialSeats, t.est.FinalSeats, t.est.Tail, t.Started.UTC().Format(time.RFC3339Nano)}
	if !details {
		return cells
	}
	dig, apiVersion := &t.Digest, t.Digest.Version
	if dig.Group != "" {
		apiVersion = dig.Group + "/" + apiVersion
	}
	return append(cells, dig.User, dig.Verb, dig.Path, dig.Namespace, dig.Name, apiVersion, dig.Resource, dig.Subresource)
}
