package admission

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"apilet/internal/scheme"
)

// What an outsider changes the built-in plug-ins see once more, and nobody a third time.
func TestChainIsWalkedAgainAfterAChangeFromOutside(t *testing.T) {
	var walked []string
	row := func(name string, changes bool) Plugin {
		return Plugin{Name: name, Resources: []string{"pods"}, Operations: []string{OpCreate}, Admit: func(_ context.Context, a *Attributes) error {
			walked = append(walked, name)
			if changes {
				a.MarkChanged()
			}
			return nil
		}}
	}
	table := []Plugin{row("Builtin", false), row("Outside", true), row("Off", true), {Name: "Quiet", Idle: func() bool { return true },
		Admit: func(context.Context, *Attributes) error { t.Error("an idle plug-in is asked"); return nil }}}
	chain := NewChain(table, map[string]bool{"Builtin": true, "Outside": true, "Quiet": true})
	types := scheme.NewRegistry()
	a := Attributes{Resource: types.Lookup("", "v1", "pods"), Operation: OpCreate, Object: &corev1.Pod{}}
	if _, err := chain.Admit(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	if want := []string{"Builtin", "Outside", "Builtin", "Outside"}; !slices.Equal(walked, want) {
		t.Errorf("walked %v, want %v", walked, want)
	}
	walked = nil
	for _, other := range []Attributes{{Resource: a.Resource, Operation: OpUpdate}, {Resource: a.Resource, Subresource: "binding", Operation: OpCreate},
		{Resource: types.Lookup("", "v1", "services"), Operation: OpCreate}} {
		other.Object = &corev1.Pod{}
		if _, err := chain.Admit(t.Context(), other); err != nil || len(walked) > 0 || chain.Handles(other) {
			t.Errorf("%s %s/%s: walked %v, %v", other.Operation, other.Resource.Plural, other.Subresource, walked, err)
		}
	}
}

// A row that attends is asked beside others and never alone.
func TestAttendingPluginsAreNotAskedAlone(t *testing.T) {
	asked, idle := 0, true
	table := []Plugin{{Name: "Attends", OnlyWithOthers: true, Admit: func(context.Context, *Attributes) error { asked++; return nil }},
		{Name: "Other", Idle: func() bool { return idle }, Admit: func(context.Context, *Attributes) error { return nil }}}
	chain := NewChain(table, map[string]bool{"Attends": true, "Other": true})
	a := Attributes{Resource: scheme.NewRegistry().Lookup("", "v1", "configmaps"), Operation: OpCreate, Object: &corev1.ConfigMap{}}
	for _, idle = range []bool{true, false} {
		if _, err := chain.Admit(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int{true: 0, false: 1}[idle]; asked != want {
			t.Errorf("others idle: %v, asked %d times", idle, asked)
		}
	}
}
