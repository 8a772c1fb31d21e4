package torture

// This file shrinks a wrong plan (--shrink). It finds the fewest objects of the workload, and the
// earliest point, with which the same error still occurs. Since a smaller workload leads to a
// different state, the plain runs have to be repeated for each try before the plan is executed.
// Objects are removed one at a time, along with all steps that refer to them. This begins with the
// last object, because later objects may depend on earlier ones. After that, the points of the same
// kind are tried, beginning with the first.
//
//	robin, ledger, blackbird; died after create blackbird-1 (wrong)
//	    without blackbird   the point is not reached      no
//	    without ledger      the same error                yes
//	    without robin       the same error                yes
//	    ... and died after create blackbird-0             no: the first is the earliest
//
// Two errors are considered to be the same if they have a reason in common, ignoring the names of
// objects. Of several plans with the same error, only the first is shrunk.

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A Shrunk is a smaller plan with the same error.
type Shrunk struct {
	Without []string `json:"without,omitempty"` // objects that can be removed from the workload
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

// A shrinker shrinks one wrong plan.
type shrinker struct {
	cfg   Config // with the remaining steps
	l     *learned
	best  Verdict // of the smallest plan so far
	left  int     // number of remaining tries
	out   Shrunk
	until time.Time // no new try is started after this, if not zero
}

// shrinkAll shrinks the wrong plans, one for each cause.
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

// again reports whether there are any tries left. If so, it decrements the number of remaining
// tries.
func (s *shrinker) again(ctx context.Context) bool {
	if s.left == 0 || ctx.Err() != nil || !s.until.IsZero() && time.Now().After(s.until) {
		return false
	}
	s.left--
	return true
}

// leaveOut removes objects from the workload as long as the error remains.
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
		// use a shorter timeout, since an incomplete workload is more likely to block
		less.plainPatience = less.Patience
		less.steps = withoutObjects(s.cfg.steps, []string{object})
		l, err := learn(ctx, &less)
		if err != nil { // the workload depends on the object, or the controller has nothing to do without it
			continue
		}
		if v, is := s.wrongLikewise(ctx, &less, l, s.out.Plan); is {
			s.cfg, s.l, s.best = less, l, v
			s.out.Without = append(s.out.Without, object)
		}
	}
}

// earlier finds the first point of the plan's kind with the same error.
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

// wrongLikewise runs a plan and reports whether it has the same error. If the run fails, it returns
// false.
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

// shapes returns reasons without names and numbers.
func shapes(why []string) []string {
	var all []string
	for _, text := range why {
		all = append(all, numberPattern.ReplaceAllString(namePattern.ReplaceAllString(text, "*"), "0"))
	}
	return all
}

// objectsOf returns the objects of a workload in order of appearance.
func objectsOf(steps []step) (all []string) {
	for i := range steps {
		if name := steps[i].ref.String(); !steps[i].Quiet && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// holdsOthers reports whether an object is a namespace that contains other objects.
func holdsOthers(steps []step, object string) bool {
	name, is := strings.CutPrefix(object, "Namespace ")
	return is && slices.ContainsFunc(steps, func(s step) bool { return s.ref.Namespace == name })
}

func withoutObjects(steps []step, objects []string) []step {
	return slices.DeleteFunc(slices.Clone(steps), func(s step) bool { return !s.Quiet && slices.Contains(objects, s.ref.String()) })
}
