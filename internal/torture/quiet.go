package torture

// This file implements the quiet points of a workload. The state at each quiet point is compared
// with the state of the plain runs at the same point. This is necessary because some errors are not
// visible at the end. For example, duplicates may be removed by the garbage collector together with
// their owner.
//
//	apply Nest     quiet point 1        patch Nest     quiet point 2         delete Nest   end
//	a-1            a-1, a-2 is extra    a-1, a-2       a-1, a-2 is extra     -             nothing is left: right
//
// Quiet points before the plan's point are not compared. A plan may also hide the workload from the
// controller for some time: it pauses the leader, or delays a list. In that time, the run passes
// the first quiet point without comparing, so that the controller misses the user's next change.
// The next quiet point then waits until the workload is no longer hidden.

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/tidwall/gjson"

	"apilet/internal/history"
)

// A quietState is the state at a quiet point.
type quietState struct {
	state  state
	judged bool // the point of the plan was reached, and no change was hidden from the controller
}

// A gap is a time in which the workload is hidden from the controller. The zero gap has not begun.
type gap struct {
	mu     sync.Mutex    // guards the fields below
	over   chan struct{} // closed at the end of the gap, nil before it
	passed int           // number of the quiet point that was passed during the gap, starting at 1; 0 if none
}

func (g *gap) begin() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = make(chan struct{})
}

// end ends the gap. It may be called more than once.
func (g *gap) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isOpenLocked() {
		close(g.over)
	}
}

// isOpen reports whether the gap has begun and not ended.
func (g *gap) isOpen() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.isOpenLocked()
}

func (g *gap) isOpenLocked() bool {
	select {
	case <-g.over:
		return false
	default:
		return g.over != nil
	}
}

// pass reports whether the nth quiet point may be passed without comparing, because it is the first
// one in the open gap.
func (g *gap) pass(n int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isOpenLocked() && g.passed == 0 {
		g.passed = n
	}
	return g.isOpenLocked() && g.passed == n
}

// wait returns when the gap is not open.
func (g *gap) wait(ctx context.Context) {
	g.mu.Lock()
	over := g.over
	g.mu.Unlock()
	if over == nil {
		return
	}
	select {
	case <-over:
	case <-ctx.Done():
	}
}

// quietPoint waits until the controller is quiet. If the state is compared at this quiet point, it
// also waits until the state is that of the plain runs.
func (r *run) quietPoint(ctx context.Context) {
	r.points.Lock()
	defer r.points.Unlock()
	n := len(r.out.quietStates) + 1
	isRight := r.matches(r.want.atQuiet(n))
	judged := false
	r.settle(ctx, func() bool {
		judged = false
		switch {
		case r.plan != nil && !r.reached.Load(), r.gap.pass(n):
			return true
		case r.gap.isOpen():
			return false
		}
		judged = true
		return isRight()
	})
	r.out.quietStates = append(r.out.quietStates, quietState{normalise(r.record.all(), r.cfg.Ignored), judged})
}

// atQuiet returns the reference for the nth quiet point, starting at 1, or nil if the plain runs
// have none.
func (ref *reference) atQuiet(n int) *reference {
	if ref == nil || n > len(ref.quiet) {
		return nil
	}
	return ref.quiet[n-1]
}

// quietReferences returns the references for the quiet points that all plain runs have.
func quietReferences(plain []*outcome) (all []*reference) {
	for n := 0; ; n++ {
		var states []state
		for _, o := range plain {
			if n >= len(o.quietStates) {
				return all
			}
			states = append(states, o.quietStates[n].state)
		}
		all = append(all, newReference(states))
	}
}

// quietDifferences returns the differences at the quiet points, except for those that also exist at
// an earlier quiet point or at the end. If another client has edited an object, only whole objects
// are compared, because a controller may compute values from the edited object.
func (o *outcome) quietDifferences(kind string, atEnd []Difference) (all []Difference) {
	known := map[Difference]bool{}
	for _, d := range atEnd {
		known[d] = true
	}
	for i, q := range o.quietStates {
		ref := o.want.atQuiet(i + 1)
		if ref == nil || !q.judged {
			continue
		}
		for _, d := range ref.compare(q.state) {
			if known[d] || kind == edited && d.Path != "" {
				continue
			}
			known[d] = true
			d.At = "quiet point " + strconv.Itoa(i+1)
			all = append(all, d)
		}
	}
	return all
}

// leftOfController reports whether an object that the controller has written still exists at the end.
func (o *outcome) leftOfController() bool {
	written, live := map[string]bool{}, map[string]bool{}
	for i := range o.lines {
		line := &o.lines[i]
		if !counts(o.ignored, line.Group, line.Resource) {
			continue
		}
		key := keyOfLine(line)
		written[key] = written[key] || whoWrote(line) == byController
		live[key] = line.Type != "DELETED"
	}
	for key := range written {
		if written[key] && live[key] {
			return true
		}
	}
	return false
}

// warnings returns warnings about the workload based on the result of a plain run.
func (o *outcome) warnings() (all []string) {
	if o.leftOfController() {
		return nil
	}
	text := "nothing that the controller wrote is left at the end of the workload: errors that the deletion removes are seen at quiet points only, " +
		"and no plan deletes the controller's objects. Keep one of the user's objects to the end"
	if len(o.quietStates) == 0 {
		text += ", and add quiet points: this workload has none"
	}
	return []string{text}
}

// ---- Leader election

// elected reports whether the holder of a Lease has changed after the given revision.
func elected(lines []history.Line, after int64) bool {
	for i := range lines {
		line := &lines[i]
		if line.Revision <= after || !isLease(line) || whoWrote(line) != byController {
			continue
		}
		old, now := gjson.GetBytes(line.Old, "spec.holderIdentity").String(), gjson.GetBytes(line.New, "spec.holderIdentity").String()
		if old != "" && now != "" && old != now {
			return true
		}
	}
	return false
}

// longestLease returns the longest duration of any Lease of the controller, or zero if there is
// none.
func longestLease(lines []history.Line) (longest time.Duration) {
	for i := range lines {
		if line := &lines[i]; isLease(line) && whoWrote(line) == byController {
			seconds := gjson.GetBytes(line.New, "spec.leaseDurationSeconds").Int()
			longest = max(longest, time.Duration(seconds)*time.Second)
		}
	}
	return longest
}

func isLease(line *history.Line) bool {
	return line.Group == "coordination.k8s.io" && line.Resource == "leases"
}
