package torture

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/cel-go/cel"

	"apilet/internal/history"
	"apilet/internal/request"
)

// line makes up one write.
func line(who, verb, kind, resource, name, doc string) history.Line {
	l := history.Line{Type: kind, Verb: verb, Version: "v1", Resource: resource, Namespace: "x", Name: name, Agent: who}
	if l.New = []byte(doc); kind == "DELETED" {
		l.Old, l.New = l.New, nil
	}
	return l
}

// TestWhatIsLostIsTold: a controller is wrong if it deletes objects of others, or anything that
// holds data, and deletes them in no plain run; if it writes over somebody else's edit; and if it
// makes a forbidden write. How it comes to the right state then does not matter.
func TestWhatIsLostIsTold(t *testing.T) {
	t.Parallel()
	const ours, theirs = "c", agent
	const deletes, lost = "delete", "was deleted by it"
	marked := `{"metadata":{"name":"a","annotations":{"` + mark + `":"x"}}}`
	made := func(who, resource string) history.Line {
		return line(who, "create", "ADDED", resource, "a", `{"metadata":{"name":"a"}}`)
	}
	gone := func(verb, resource string) history.Line {
		return line(ours, verb, "DELETED", resource, "a", `{"metadata":{"name":"a"}}`)
	}
	for name, c := range map[string]struct {
		lines, plain []history.Line
		plan         Plan
		edited       string
		never        string
		want         string // in the reasons; "": none
	}{
		"a user's":                  {lines: []history.Line{made(theirs, "configmaps"), gone(deletes, "configmaps")}, want: lost},
		"a user's, all at once":     {lines: []history.Line{made(theirs, "configmaps"), gone("deletecollection", "configmaps")}, want: lost},
		"there from the beginning":  {lines: []history.Line{gone(deletes, "configmaps")}, want: lost},
		"its own":                   {lines: []history.Line{made(ours, "configmaps"), gone(deletes, "configmaps")}},
		"its own, all at once":      {lines: []history.Line{made(ours, "configmaps"), gone("deletecollection", "configmaps")}},
		"its own, with data":        {lines: []history.Line{made(ours, "persistentvolumeclaims"), gone(deletes, "persistentvolumeclaims")}, want: lost},
		"its own, all data at once": {lines: []history.Line{made(ours, "persistentvolumeclaims"), gone("deletecollection", "persistentvolumeclaims")}, want: lost},
		"marked as deleting":        {lines: []history.Line{made(theirs, "configmaps"), line(ours, deletes, "MODIFIED", "configmaps", "a", `{"metadata":{"name":"a"}}`)}, want: lost},
		"by a user":                 {lines: []history.Line{made(theirs, "configmaps"), line(theirs, deletes, "DELETED", "configmaps", "a", "{}")}},
		"in plain runs, too":        {lines: []history.Line{made(theirs, "configmaps"), gone(deletes, "configmaps")}, plain: []history.Line{gone("deletecollection", "configmaps")}},
		"with its namespace":        {lines: []history.Line{made(theirs, "configmaps"), gone(deletes, "configmaps")}, plan: Plan{Kind: ending, Object: "namespaces y"}},

		"the edit is there":        {edited: "configmaps x/a", lines: []history.Line{line(ours, "update", "MODIFIED", "configmaps", "a", marked)}},
		"the edit is written over": {edited: "configmaps x/a", lines: []history.Line{line(theirs, "patch", "MODIFIED", "configmaps", "a", marked), line(ours, "update", "MODIFIED", "configmaps", "a", `{"metadata":{"name":"a"}}`)}, want: "is written over"},
		"the object is gone, too":  {edited: "configmaps x/a", lines: []history.Line{line(theirs, deletes, "DELETED", "configmaps", "a", `{"metadata":{"name":"a"}}`)}},

		"forbidden":                  {never: "object.data.n == 'bad'", lines: []history.Line{line(ours, "update", "MODIFIED", "configmaps", "a", `{"data":{"n":"bad"}}`)}, want: "is forbidden by"},
		"allowed":                    {never: "object.data.n == 'bad'", lines: []history.Line{line(ours, "update", "MODIFIED", "configmaps", "a", `{"data":{"n":"good"}}`)}},
		"forbidden, by a user":       {never: "object.data.n == 'bad'", lines: []history.Line{line(theirs, "update", "MODIFIED", "configmaps", "a", `{"data":{"n":"bad"}}`)}},
		"forbidden to be deleted":    {never: "object == null && oldObject.data.n == 'bad'", lines: []history.Line{made(ours, "configmaps"), line(ours, deletes, "DELETED", "configmaps", "a", `{"data":{"n":"bad"}}`)}, want: "is forbidden by"},
		"forbidden, cannot be asked": {never: "object.data.n == 'bad'", lines: []history.Line{made(ours, "configmaps")}},
	} {
		l := learnedFrom(&outcome{state: stateOf(), lines: c.plain})
		cfg := &Config{}
		if c.never != "" {
			p, err := compile(c.never)
			if err != nil {
				t.Fatal(err)
			}
			cfg.Never, cfg.never = []string{c.never}, []cel.Program{p}
		}
		if c.plan.Kind == "" {
			c.plan.Kind = died
		}
		v := judge(cfg, l, &c.plan, &outcome{reached: true, quiet: true, state: stateOf(), want: l.want, lines: c.lines, edited: c.edited})
		why := strings.Join(v.Why, "\n")
		if (why == "") != (c.want == "") || !strings.Contains(why, c.want) || (v.Verdict == OK) != (c.want == "") {
			t.Errorf("%s: %s %q, want %q", name, v.Verdict, why, c.want)
		}
	}
}

// TestWhatGoesWrongBesideTheState is a verdict, too: a workload that is stuck, a process that ends,
// a controller that never is quiet, or a slow one.
func TestWhatGoesWrongBesideTheState(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*outcome)
		want   string
	}{
		"right":             {func(*outcome) {}, OK},
		"did not get there": {func(o *outcome) { o.reached, o.process = false, "it panicked" }, Unreached},
		"panicked":          {func(o *outcome) { o.process = "it panicked" }, Wrong},
		"stuck":             {func(o *outcome) { o.stuck = errors.New("no") }, Wrong},
		"not quiet":         {func(o *outcome) { o.quiet = false }, Wrong},
		"odd":               {func(o *outcome) { o.noteOdd("not made again") }, Wrong},
		"as slow as others": {func(o *outcome) { o.took = 3 * time.Minute }, OK},
		"slower":            {func(o *outcome) { o.took = 3*time.Minute + time.Second }, Slower},
		"slower and wrong":  {func(o *outcome) { o.took, o.process = time.Hour, "it panicked" }, Wrong},
	} {
		l := learnedFrom(plainRun())
		o := &outcome{reached: true, quiet: true, state: stateOf(), want: l.want}
		c.change(o)
		if v := judge(&Config{}, l, &Plan{Kind: died}, o); v.Verdict != c.want {
			t.Errorf("%s: %s %q, want %s", name, v.Verdict, v.Why, c.want)
		}
	}
}

// TestNamespacesThatEndAreEmpty: what is left in a namespace that was deleted, or the namespace
// itself, is told, and what is elsewhere is not.
func TestNamespacesThatEndAreEmpty(t *testing.T) {
	t.Parallel()
	namespace := line(agent, "create", "ADDED", "namespaces", "x", "{}")
	ended := line(agent, "delete", "DELETED", "namespaces", "x", "{}")
	other := line("c", "create", "ADDED", "configmaps", "a", "{}")
	other.Namespace = "y"
	there, gone := line("c", "create", "ADDED", "configmaps", "a", "{}"), line("apilet", "delete", "DELETED", "configmaps", "a", "{}")
	for name, c := range map[string]struct {
		lines []history.Line
		want  string
	}{
		"empty":             {[]history.Line{namespace, there, gone, ended, other}, ""},
		"one is left":       {[]history.Line{namespace, there, ended}, "configmaps x/a is left over"},
		"made again":        {[]history.Line{namespace, there, gone, ended, there}, "configmaps x/a is left over"},
		"it does not go":    {[]history.Line{namespace, there, gone}, "namespaces x is left over"},
		"neither of them":   {[]history.Line{namespace, there}, "namespaces x is left over, configmaps x/a is left over"},
		"another namespace": {[]history.Line{other}, ""},
	} {
		var got []string
		for _, d := range endedWithout(c.lines, "namespaces x") {
			got = append(got, d.String())
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestDeletionsAreInterrupted: a write that deletes is one of the points at which a controller
// dies, whether it deletes one object or all of a kind.
func TestDeletionsAreInterrupted(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"delete", "deletecollection"} {
		o := &outcome{requests: []passed{{info: request.Info{Verb: verb, Resource: "configmaps", Namespace: "x"}, what: verb + " configmaps x/", nth: 1, writes: true, code: 200}}}
		kinds := map[string]bool{}
		for _, p := range collectPlans(o, 1) {
			kinds[p.Kind+p.Detail] = true
		}
		if !kinds[died] || !kinds[refused+carriedOut] || kinds[held] != (verb == "delete") {
			t.Errorf("%s: plans %v", verb, kinds)
		}
	}
}
