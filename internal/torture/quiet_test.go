package torture

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"apilet/internal/apitest"
	"apilet/internal/history"
	"apilet/internal/request"
)

// stateOf returns a state with ConfigMaps in the namespace x, given as name=value.
func stateOf(objects ...string) state {
	h := &teller{}
	for _, object := range objects {
		name, value, _ := strings.Cut(object, "=")
		h.tell("ADDED", "c", "x/"+name, configMap(name, "", uid(1), value, ""))
	}
	return normalise(h.lines, nil)
}

// plainRun returns the outcome of a plain run with these states at its quiet points and nothing at its end.
func plainRun(quiet ...state) *outcome {
	o := &outcome{state: stateOf()}
	for _, st := range quiet {
		o.quietStates = append(o.quietStates, quietState{st, true})
	}
	return o
}

func learnedFrom(plain ...*outcome) *learned {
	l := &learned{plain: plain, longest: time.Minute}
	var states []state
	for _, o := range plain {
		states = append(states, o.state)
	}
	l.want = newReference(states)
	l.want.quiet = quietReferences(plain)
	return l
}

func TestStatesAtQuietPointsAreJudged(t *testing.T) {
	t.Parallel()
	l := learnedFrom(plainRun(stateOf("a=1"), stateOf("a=2", "b=1")), plainRun(stateOf("a=1"), stateOf("a=2", "b=2"), stateOf("a=3")))
	for name, c := range map[string]struct {
		kind  string
		quiet []quietState
		end   state
		want  string
	}{
		"right":                             {died, []quietState{{stateOf("a=1"), true}, {stateOf("a=2", "b=7"), true}}, stateOf(), "ok []"},
		"a duplicate that is deleted later": {died, []quietState{{stateOf("a=1"), true}, {stateOf("a=2", "b=1", "c=1"), true}}, stateOf(), "wrong [at quiet point 2: configmaps x/c is left over]"},
		"before the plan's point":           {died, []quietState{{stateOf(), false}, {stateOf("a=2", "b=1"), true}}, stateOf(), "ok []"},
		"reported once": {died, []quietState{{stateOf("a=1", "c=1"), true}, {stateOf("a=2", "b=1", "c=1"), true}}, stateOf("d=1"),
			"wrong [configmaps x/d is left over at quiet point 1: configmaps x/c is left over]"},
		"at the end too":                       {died, []quietState{{stateOf("a=1", "c=1"), true}}, stateOf("c=1"), "wrong [configmaps x/c is left over]"},
		"a value":                              {died, []quietState{{stateOf("a=9"), true}}, stateOf(), "wrong [at quiet point 1: configmaps x/a has .data.k: 9, and not 1]"},
		"a value after somebody's edit":        {edited, []quietState{{stateOf("a=9"), true}}, stateOf(), "ok []"},
		"an object after somebody's edit":      {edited, []quietState{{stateOf(), true}}, stateOf(), "wrong [at quiet point 1: configmaps x/a is missing]"},
		"a point that not all plain runs have": {died, []quietState{{stateOf("a=1"), true}, {stateOf("a=2", "b=1"), true}, {stateOf("z=1"), true}}, stateOf(), "ok []"},
	} {
		o := &outcome{reached: true, quiet: true, state: c.end, quietStates: c.quiet, want: l.want}
		v := judge(&Config{}, l, &Plan{Kind: c.kind}, o)
		if got := fmt.Sprint(v.Verdict, " ", v.Why); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}

func TestAMissingObjectOfATypeThatIsNotWatchedDependsOnTheWorkload(t *testing.T) {
	t.Parallel()
	watches := func(resource string) *outcome {
		o := plainRun()
		o.state = stateOf("a=1")
		o.requests = []passed{{info: request.Info{Verb: "watch", Resource: resource}}}
		return o
	}
	for name, c := range map[string]struct {
		plan    Plan
		watched string
		end     state
		process string
		want    string
	}{
		"deleted":                   {Plan{Kind: deleted, Object: "configmaps x/a"}, "nests", stateOf(), "", Depends},
		"deleted, held for a while": {Plan{Kind: held, Object: "configmaps x/a"}, "nests", stateOf(), "", Depends},
		"watched":                   {Plan{Kind: deleted, Object: "configmaps x/a"}, "configmaps", stateOf(), "", Wrong},
		"deleted by the controller": {Plan{Kind: held, Object: "configmaps x/a", Write: "delete configmaps x/a"}, "nests", stateOf(), "", Wrong},
		"another plan":              {Plan{Kind: died, Object: "configmaps x/a"}, "nests", stateOf(), "", Wrong},
		"another value":             {Plan{Kind: deleted, Object: "configmaps x/a"}, "nests", stateOf("a=2"), "", Wrong},
		"an extra object":           {Plan{Kind: deleted, Object: "configmaps x/a"}, "nests", stateOf("b=1"), "", Wrong},
		"a panic":                   {Plan{Kind: deleted, Object: "configmaps x/a"}, "nests", stateOf(), "it panicked", Wrong},
		"brought back":              {Plan{Kind: deleted, Object: "configmaps x/a"}, "nests", stateOf("a=1"), "", OK},
	} {
		l := learnedFrom(watches(c.watched))
		v := judge(&Config{}, l, &c.plan, &outcome{reached: true, quiet: true, state: c.end, process: c.process, want: l.want})
		if v.Verdict != c.want {
			t.Errorf("%s: got %s (%q), want %s", name, v.Verdict, v.Why, c.want)
		}
	}
}

func TestVerdictsThatDependOnTheWorkloadAreMarked(t *testing.T) {
	t.Parallel()
	l := learnedFrom(plainRun())
	l.plain[0].state = stateOf("a=1")
	l.want = newReference([]state{l.plain[0].state})
	v := judge(&Config{}, l, &Plan{Kind: deleted, Object: "configmaps x/a"}, &outcome{reached: true, quiet: true, state: stateOf(), want: l.want})
	r := &Report{Verdicts: []Verdict{v}, Planned: 1}
	var junit, report strings.Builder
	if err := r.writeJUnit(&junit); err != nil {
		t.Fatal(err)
	}
	if err := r.writeJSON(&report); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"row": v.row(), "summary": r.summary(), "junit": junit.String(), "json": report.String(),
		"page": v.story.html(), "markdown": v.story.markdown()} {
		if !strings.Contains(text, "depend") || strings.Contains(text, "<failure") || strings.Contains(text, "What is wrong") {
			t.Errorf("%s: %s", name, text)
		}
	}
	if r.Wrong() != 0 || !strings.Contains(junit.String(), `failures="0" skipped="1"`) {
		t.Error("the verdict counts as wrong")
	}
}

func TestTheFirstQuietPointInAGapIsPassed(t *testing.T) {
	t.Parallel()
	g := &gap{}
	if g.isOpen() || g.pass(1) {
		t.Error("a gap that has not begun is open")
	}
	g.wait(context.Background())
	g.begin()
	if got, want := []bool{g.isOpen(), g.pass(2), g.pass(2), g.pass(3)}, []bool{true, true, true, false}; !reflect.DeepEqual(got, want) {
		t.Errorf("open: got %v, want %v", got, want)
	}
	g.end()
	g.end()
	g.wait(context.Background())
	if g.isOpen() || g.pass(2) {
		t.Error("a gap that has ended is open")
	}
}

func leaseLine(rev int64, who, old, now string, seconds int) history.Line {
	spec := func(holder string) json.RawMessage {
		return json.RawMessage(fmt.Sprintf(`{"spec":{"holderIdentity":%q,"leaseDurationSeconds":%d}}`, holder, seconds))
	}
	return history.Line{Revision: rev, Agent: who, Group: "coordination.k8s.io", Resource: "leases", Type: "MODIFIED", Verb: "update", Old: spec(old), New: spec(now)}
}

func TestAnotherReplicaLeadsWhenItTakesTheLease(t *testing.T) {
	t.Parallel()
	other := leaseLine(9, "c", "a", "b", 15)
	other.Resource = "configmaps"
	for name, c := range map[string]struct {
		line history.Line
		want bool
	}{
		"taken":             {leaseLine(9, "c", "a", "b", 15), true},
		"renewed":           {leaseLine(9, "c", "a", "a", 15), false},
		"first taken":       {leaseLine(9, "c", "", "a", 15), false},
		"released":          {leaseLine(9, "c", "a", "", 15), false},
		"before the pause":  {leaseLine(5, "c", "a", "b", 15), false},
		"written by a user": {leaseLine(9, agent, "a", "b", 15), false},
		"no Lease":          {other, false},
	} {
		if got := elected([]history.Line{c.line}, 5); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
	if got := longestLease([]history.Line{leaseLine(1, "c", "", "a", 15), leaseLine(2, "c", "", "b", 3), leaseLine(3, agent, "", "a", 60), other}); got != 15*time.Second {
		t.Error(got)
	}
}

func TestAWorkloadThatLeavesNothingIsWarnedOf(t *testing.T) {
	t.Parallel()
	made := func() *teller { return (&teller{}).tell("ADDED", agent, "x/n", "{}").tell("ADDED", "c", "x/a", "{}") }
	lease := made().tell("DELETED", "apilet", "x/a", "{}")
	lease.lines = append(lease.lines, leaseLine(200, "c", "", "a", 15))
	for name, c := range map[string]struct {
		lines []history.Line
		quiet int
		want  string
	}{
		"an object is left":              {made().lines, 0, ""},
		"all is deleted":                 {made().tell("DELETED", "apilet", "x/a", "{}").lines, 1, "seen at quiet points only"},
		"all is deleted, no quiet point": {made().tell("DELETED", "apilet", "x/a", "{}").lines, 0, "has none"},
		"a Lease is left":                {lease.lines, 1, "seen at quiet points only"},
		"a user's object, which the controller has written, is left": {made().tell("MODIFIED", "c", "x/n", "{}").tell("DELETED", "apilet", "x/a", "{}").lines, 1, ""},
	} {
		got := strings.Join((&outcome{lines: c.lines, quietStates: make([]quietState, c.quiet)}).warnings(), "; ")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) || (c.quiet > 0 && strings.Contains(got, "has none")) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// pausedRun returns a run whose only replica has just been paused at revision 6, while it held a Lease.
func pausedRun(t *testing.T) *run {
	t.Helper()
	r, _ := runOf(t, Plan{Kind: zombie, Write: "create configmaps x/a", Nth: 1}, "")
	r.replicas = []*replica{{&door{watches: 1}, &controller{}}}
	r.record.add(leaseLine(5, "c", "a", "a", 3600))
	tricks := r.tricks()
	if no := tricks.after(&passed{what: "create configmaps x/a", nth: 1, writes: true, code: 201, rev: 6}); no != nil || !r.gap.isOpen() {
		t.Fatalf("answered %v, or not paused", no)
	}
	return r
}

func TestAPausedReplicaIsWokenWhenAnotherLeads(t *testing.T) {
	t.Parallel()
	r := pausedRun(t)
	r.record.add(leaseLine(7, "c", "a", "b", 3600)) // and the run has not reached the end of its workload
	apitest.WaitFor(t, "the replica is woken", func() bool { return !r.gap.isOpen() })
}

func TestAQuietPointIsPassedWhileALeaderIsPausedAndTheNextIsNot(t *testing.T) {
	t.Parallel()
	r := pausedRun(t)
	r.quietPoint(context.Background())
	second := make(chan struct{})
	go func() { // until the gap ends
		r.quietPoint(context.Background())
		close(second)
	}()
	select {
	case <-second:
		t.Error("the second quiet point did not wait for the new leader")
	case <-time.After(50 * time.Millisecond): // too short only lets a wrong program pass
	}
	r.record.add(leaseLine(7, "c", "a", "b", 3600))
	<-second
	var judged []bool
	for _, q := range r.out.quietStates {
		judged = append(judged, q.judged)
	}
	if !reflect.DeepEqual(judged, []bool{false, true}) {
		t.Error(judged)
	}
}
