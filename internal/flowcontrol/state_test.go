package flowcontrol

import (
	"fmt"
	"testing"
)

// TestStateSaysWhoseTurnItIs checks that the next request belongs to the flow that the state names.
func TestStateSaysWhoseTurnItIs(t *testing.T) {
	t.Parallel()
	d := oneLevel(1, 64, 6, 50)
	l, schema := d.levels["level"], (*d.schemas.Load())[0]
	enter := func(user string) *Ticket {
		ticket, err := l.enter(schema, &Digest{User: user}, narrowRequest)
		if err != nil {
			t.Fatal(err)
		}
		return ticket
	}
	running := enter("elephant")
	waiting := map[string]*Ticket{}
	for range 5 {
		waiting["elephant"] = enter("elephant")
	}
	waiting["mouse"] = enter("mouse")
	level := func() LevelState {
		for _, l := range d.State().Levels {
			if l.Name == "level" {
				return l
			}
		}
		t.Fatal("no level")
		return LevelState{}
	}
	s := level()
	if s.InUse != 1 || s.Executing != 1 || s.Waiting != 6 || s.FlowCount != 2 || len(s.Queues) == 0 || s.QueueCount != 64 {
		t.Fatalf("%+v", s)
	}
	for i, f := range s.Flows {
		want := map[string][2]int{"elephant": {5, 1}, "mouse": {1, 0}}[f.Distinguisher]
		if i > 0 && f.Behind > s.Flows[i-1].Behind {
			t.Errorf("%v is due to turn %d, and %v to the one before", f.Behind, i+1, s.Flows[i-1].Behind)
		}
		if f.Turn != i+1 || f.Waiting != want[0] || f.Seats != want[1] {
			t.Errorf("%+v", f)
		}
	}
	next := s.Flows[0].Distinguisher
	running.Finish()
	after := level()
	if first := l.running.first; first == nil || first.distinguisher != next {
		t.Errorf("%s was next; %+v runs", next, first)
	}
	if after.Waiting != 5 || after.Dispatched != s.Dispatched+1 {
		t.Errorf("%+v", after)
	}
}

func TestStateHasABound(t *testing.T) {
	t.Parallel()
	d := oneLevel(1, 512, 6, 50)
	l, schema := d.levels["level"], (*d.schemas.Load())[0]
	for i := range 3000 {
		if _, err := l.enter(schema, &Digest{User: fmt.Sprint("user", i)}, narrowRequest); err != nil {
			t.Fatal(err)
		}
	}
	s := d.State().Levels[0]
	if len(s.Flows) != shownFlows || s.FlowCount != 3000 || len(s.Queues) != shownQueues {
		t.Errorf("%d of %d flows, %d queues", len(s.Flows), s.FlowCount, len(s.Queues))
	}
}
