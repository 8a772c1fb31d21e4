package torture

// This file makes a wrong plan small (--shrink): the fewest objects of the workload, and the earliest point, with which the same still goes wrong. A
// workload with less in it comes to another state, so each try learns anew: some plain runs, then the plan. What is left out is one object at a time, with
// all steps about it, the last first, since what comes later stands on what was before. Then the points of the same kind are tried, from the first.
//
//	robin, ledger, blackbird; died after create blackbird-1 (wrong)
//	    without blackbird   the point is not reached      no
//	    without ledger      wrong, likewise               yes
//	    without robin       wrong, likewise               yes
//	    ... and died after create blackbird-0             no: the first is the earliest
//
// Wrong likewise means for one reason that both have, whatever the objects are called. Plans that went wrong alike are shrunk once, the first of them.

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A Shrunk is a smaller plan that goes wrong likewise.
type Shrunk struct {
	Without []string `json:"without,omitempty"` // objects of the workload that it does not need
	Plan    Plan     `json:"plan"`
	What    string   `json:"what"`
	Tries   int      `json:"tries"`
}

func (s *Shrunk) String() string {
	if len(s.Without) == 0 {
		return s.What
	}
	return s.What + ", without " + strings.Join(s.Without, ", ")
}

// A shrinker is on its way from a wrong plan to a smaller one.
type shrinker struct {
	cfg   Config // with the steps that are left
	l     *learned
	best  Verdict // of the smallest until now
	left  int     // tries
	out   Shrunk
	until time.Time // no try is begun after it; zero: no limit
}

// shrinkAll shrinks what is wrong, each cause once.
func shrinkAll(ctx context.Context, cfg *Config, l *learned, report *Report, began time.Time, notes io.Writer) error {
	known := map[string]bool{}
	for i := range report.Verdicts {
		v := &report.Verdicts[i]
		cause := strings.Join(shapes(v.Why), "\n")
		if v.Verdict != Wrong || known[cause] {
			continue
		}
		known[cause] = true
		s := shrinker{cfg: *cfg, l: l, best: *v, left: cfg.Shrink, out: Shrunk{Plan: v.Plan}}
		if cfg.Budget > 0 {
			s.until = began.Add(cfg.Budget)
		}
		s.leaveOut(ctx)
		s.earlier(ctx)
		if err := ctx.Err(); err != nil {
			return err
		}
		s.out.What, s.out.Tries = s.out.Plan.String(), cfg.Shrink-s.left
		if len(s.out.Without) == 0 && s.out.Plan == v.Plan {
			fmt.Fprintf(notes, "not shrunk in %d tries: %s\n", s.out.Tries, v.What)
			continue
		}
		fmt.Fprintf(notes, "shrunk in %d tries: %s\n    to: %s\n", s.out.Tries, v.What, &s.out)
		v.Shrunk, v.story = &s.out, s.best.story
		v.story.notes = append(v.story.notes, fmt.Sprintf("This is a smaller plan. What went wrong first: %s.", v.What))
		if len(s.out.Without) > 0 {
			v.story.notes = append(v.story.notes, fmt.Sprintf("The workload does not need: %s.", strings.Join(s.out.Without, ", ")))
		}
	}
	return nil
}

// again tells whether there is a try left, and takes it.
func (s *shrinker) again(ctx context.Context) bool {
	if s.left == 0 || ctx.Err() != nil || !s.until.IsZero() && time.Now().After(s.until) {
		return false
	}
	s.left--
	return true
}

// leaveOut leaves objects out, as long as it goes wrong likewise.
func (s *shrinker) leaveOut(ctx context.Context) {
	objects := objectsOf(s.cfg.steps)
	for _, object := range slices.Backward(objects) {
		if holdsOthers(s.cfg.steps, object) {
			continue
		}
		if !s.again(ctx) {
			return
		}
		less := s.cfg
		less.plainPatience = less.Patience // a workload that lacks something is not to be waited for as long as a whole one
		less.steps = withoutObjects(s.cfg.steps, []string{object})
		l, err := learn(ctx, &less)
		if err != nil { // it needs the object, or wants nothing of the controller without it
			continue
		}
		if v, is := s.wrongLikewise(ctx, &less, l, s.out.Plan); is {
			s.cfg, s.l, s.best = less, l, v
			s.out.Without = append(s.out.Without, object)
		}
	}
}

// earlier looks for the first point of the plan's kind at which it goes wrong likewise.
func (s *shrinker) earlier(ctx context.Context) {
	for _, p := range collectPlans(s.l.plain[0], s.cfg.Replicas) {
		p.rank = s.out.Plan.rank
		if p == s.out.Plan {
			return
		}
		if p.Kind != s.out.Plan.Kind || p.Detail != s.out.Plan.Detail || (p.Object == "") != (s.out.Plan.Object == "") {
			continue
		}
		if !s.again(ctx) {
			return
		}
		if v, is := s.wrongLikewise(ctx, &s.cfg, s.l, p); is {
			s.best, s.out.Plan = v, p
			return
		}
	}
}

// wrongLikewise runs a plan. What the machinery cannot do is no proof of anything.
func (s *shrinker) wrongLikewise(ctx context.Context, cfg *Config, l *learned, p Plan) (Verdict, bool) {
	v, err := try(ctx, cfg, l, &p)
	if err != nil {
		return Verdict{}, false
	}
	reasons := shapes(s.best.Why)
	return v, v.Verdict == Wrong && slices.ContainsFunc(shapes(v.Why), func(shape string) bool { return slices.Contains(reasons, shape) })
}

var (
	namePattern   = regexp.MustCompile(`\S+/\S+`)
	numberPattern = regexp.MustCompile(`\d+`)
)

// shapes are reasons without names and numbers.
func shapes(why []string) []string {
	var all []string
	for _, text := range why {
		all = append(all, numberPattern.ReplaceAllString(namePattern.ReplaceAllString(text, "*"), "0"))
	}
	return all
}

// objectsOf are those that a workload is about, in the order in which they come.
func objectsOf(steps []step) (all []string) {
	for i := range steps {
		if name := steps[i].ref.String(); !steps[i].Quiet && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// holdsOthers tells whether an object is a namespace with others in it.
func holdsOthers(steps []step, object string) bool {
	name, is := strings.CutPrefix(object, "Namespace ")
	return is && slices.ContainsFunc(steps, func(s step) bool { return s.ref.Namespace == name })
}

func withoutObjects(steps []step, objects []string) []step {
	return slices.DeleteFunc(slices.Clone(steps), func(s step) bool { return !s.Quiet && slices.Contains(objects, s.ref.String()) })
}
