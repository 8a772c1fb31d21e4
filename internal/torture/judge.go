package torture

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"apilet/internal/history"
)

// Verdicts of a plan.
const (
	OK     = "ok"
	Slower = "slower" // right, but much slower than the plain runs
	Wrong  = "wrong"
	// Depends is wrong only if the controller should restore an object of a type that it does not
	// watch. The author of the workload decides whether it should.
	Depends   = "depends"
	Unreached = "unreached" // The run has not reached the point of the plan, so the result is unknown.
)

// A Verdict is the result of executing a plan.
type Verdict struct {
	Plan        Plan         `json:"plan"`
	What        string       `json:"what"` // description of the plan in one line
	Verdict     string       `json:"verdict"`
	Why         []string     `json:"why,omitempty"` // the reasons if the verdict is wrong
	Differences []Difference `json:"differences,omitempty"`
	Seconds     float64      `json:"seconds"`
	Shrunk      *Shrunk      `json:"shrunk,omitempty"`
	story       *story       // the report, or nil if nothing went wrong
}

const (
	slowFactor = 3               // a run is slower if it takes this many times the longest plain run,
	slowMore   = 2 * time.Second // and this much longer than it
)

// try runs a plan and judges the outcome. An edit by another client may influence the controller's
// work, for example if the controller stores a hash of the object. Therefore the result of the same
// edit in an undisturbed run is also accepted. This requires an additional run when it is needed
// for the first time.
func try(ctx context.Context, cfg *Config, l *learned, plan *Plan) (Verdict, error) {
	l.mu.Lock()
	want, known := l.edits[plan.Write]
	l.mu.Unlock()
	if !known || plan.Kind != edited {
		want = l.want
	}
	o, err := perform(ctx, cfg, plan, want)
	if err != nil {
		return Verdict{}, err
	}
	v := judge(cfg, l, plan, o)
	if o.edited == "" || len(v.Differences) == 0 || known {
		return v, nil
	}
	if o.want, err = l.editedInPeace(ctx, cfg, plan.Write, o.alias(o.edited)); err != nil {
		return Verdict{}, err
	}
	return judge(cfg, l, plan, o), nil
}

// editedInPeace returns the reference for plans that edit the object of a write. It also accepts
// the differences that the same edit causes after all work is done.
func (l *learned) editedInPeace(ctx context.Context, cfg *Config, write, object string) (*reference, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.edits[write]; known != nil {
		return known, nil
	}
	quietly := *cfg
	quietly.Wait = nil
	o, err := perform(ctx, &quietly, &Plan{Kind: edited, Object: object}, l.want)
	if err != nil {
		return nil, err
	}
	lawful := map[Difference]bool{}
	for _, d := range l.want.compare(o.state) {
		lawful[d] = o.reached
	}
	l.edits[write] = l.want.but(lawful)
	return l.edits[write], nil
}

// judge compares the outcome of a plan with the plain runs.
func judge(cfg *Config, l *learned, plan *Plan, o *outcome) Verdict {
	v := Verdict{Plan: *plan, What: plan.String(), Seconds: o.took.Seconds(), Verdict: OK}
	if !o.reached {
		v.Verdict = Unreached
		return v
	}
	if o.process != "" {
		v.Why = append(v.Why, o.process)
	}
	if o.stuck != nil {
		v.Why = append(v.Why, "the workload did not get on: "+o.stuck.Error())
	}
	if o.odd != "" {
		v.Why = append(v.Why, o.odd)
	}
	if !o.quiet {
		v.Why = append(v.Why, fmt.Sprintf("it did not become quiet within %v: %d writes in the last second", cfg.Patience, o.retries))
	}
	v.Why = append(v.Why, o.forbidden(cfg)...)
	v.Why = append(v.Why, o.lost(l, plan)...)
	if plan.Kind == ending {
		v.Differences = endedWithout(o.lines, plan.Object)
	} else {
		v.Differences = o.want.compare(o.state)
	}
	other := len(v.Why) > 0
	v.Differences = append(v.Differences, o.quietDifferences(plan.Kind, v.Differences)...)
	for _, d := range v.Differences {
		v.Why = append(v.Why, d.String())
	}
	switch {
	case len(v.Why) > 0 && !other && dependsOnWorkload(l, plan, v.Differences):
		v.Verdict = Depends
		v.story = tell(l, &v, o)
		v.story.notes = append(v.story.notes, dependsNote)
	case len(v.Why) > 0:
		v.Verdict = Wrong
		v.story = tell(l, &v, o)
	case o.took > slowFactor*l.longest && o.took > l.longest+slowMore:
		v.Verdict = Slower
	}
	return v
}

const dependsNote = "This depends on the workload: the controller does not watch the type of the deleted object, so it cannot notice the deletion. It is wrong " +
	"only if the controller should bring the object back. It does not count as wrong, and does not change the exit code."

// dependsOnWorkload reports whether the only fault is a missing object that another client deleted,
// of a type that the controller does not watch. The controller would not check again before a
// watched object is changed, but the workload has already ended.
func dependsOnWorkload(l *learned, plan *Plan, differences []Difference) bool {
	if plan.Kind != deleted && (plan.Kind != held || plan.Write != "") {
		return false
	}
	for _, d := range differences {
		if d.Path != "" || d.Want == "" {
			return false
		}
	}
	resource, _, _ := strings.Cut(plan.Object, " ")
	for _, o := range l.plain {
		for i := range o.requests {
			if p := &o.requests[i]; p.info.Verb == "watch" && resourceOf(p) == resource {
				return false
			}
		}
	}
	return true
}

// forbidden returns all writes of the controller for which a --never expression is true.
func (o *outcome) forbidden(cfg *Config) (why []string) {
	for i := range o.lines {
		line := &o.lines[i]
		if whoWrote(line) != byController {
			continue
		}
		old, object := decoded(line.Old), decoded(line.New)
		if line.Type == "DELETED" {
			object = nil
		}
		for n, p := range cfg.never {
			if holds(p, old, object) {
				why = append(why, fmt.Sprintf("%s %s is forbidden by %q", line.Verb, keyOfLine(line), cfg.Never[n]))
			}
		}
	}
	return why
}

// decoded returns an object in the format required by CEL, or nil if the object does not exist.
func decoded(raw json.RawMessage) any {
	var object map[string]any
	if json.Unmarshal(raw, &object) != nil || object == nil {
		return nil
	}
	return object
}

// lost returns unwanted deletions and overwritten edits. It is an error if the controller deletes
// an object that it did not create, or that holds data, unless it also does so in plain runs. It is
// also an error if the annotation added by another client has been removed.
func (o *outcome) lost(l *learned, plan *Plan) (why []string) {
	for i := range o.lines {
		line := &o.lines[i]
		if !deletes(line.Verb) || whoWrote(line) != byController || plan.Kind == ending {
			continue
		}
		key := keyOfLine(line)
		holdsData := line.Group == "" && strings.HasPrefix(line.Resource, "persistentvolume")
		if (holdsData || o.makerOf(key) != byController) && !l.deletes(aliasOf(line)) {
			why = append(why, key+" was deleted by it, which it does in no plain run")
		}
	}
	if o.edited == "" {
		return why
	}
	if last := o.last(o.edited); last != nil && last.Type != "DELETED" && !isMarked(last) {
		why = append(why, "somebody else's edit of "+o.edited+" is written over (an annotation is gone)")
	}
	return why
}

func isMarked(line *history.Line) bool {
	return gjson.GetBytes(line.New, "metadata.annotations").Get(gjson.Escape(mark)).Exists()
}

// deletes reports whether the controller deletes an object in plain runs as well.
func (l *learned) deletes(alias string) bool {
	for _, o := range l.plain {
		for i := range o.lines {
			if deletes(o.lines[i].Verb) && whoWrote(&o.lines[i]) == byController && aliasOf(&o.lines[i]) == alias {
				return true
			}
		}
	}
	return false
}
