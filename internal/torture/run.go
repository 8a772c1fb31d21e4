package torture

// This file is one run: a server, the controller before its door, the workload, and at most one perturbation. A run ends when the controller is quiet
// and has come to the state that it has to come to, or when there is no more patience with it.

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"apilet/internal/history"
	"apilet/internal/kubeconfig"
)

// A replica is one process of the controller, with a door of its own.
type replica struct {
	*door
	*controller
}

// A run is one on its way.
type run struct {
	cfg      *Config
	plan     *Plan      // nil: a plain run
	want     *reference // nil: nobody knows yet
	server   *server
	record   *record
	replicas []*replica
	dir      string // for files
	out      *outcome
	gap      gap         // hides the workload from the controller
	points   sync.Mutex  // held in quietPoint: a script may ask twice at the same time
	isRight  func() bool // the state is the plain runs' end state

	pending   atomic.Int32                // things that a plan has begun and not ended: nothing is quiet before, and no patience is lost
	lagging   atomic.Int32                // events that are held back: nothing is quiet before
	reached   atomic.Bool                 // the plan's point
	pointAt   atomic.Int64                // when, in nanoseconds since 1970
	afterward func(context.Context) error // what the plan does behind the workload; nil: nothing
}

// perform makes a run. What goes wrong with the machinery is an error, what with the controller a part of the outcome.
func perform(ctx context.Context, cfg *Config, plan *Plan, want *reference) (_ *outcome, err error) {
	dir, err := os.MkdirTemp("", "apilet-torture-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &run{cfg: cfg, plan: plan, want: want, dir: dir, out: &outcome{ignored: cfg.Ignored, want: want}}
	r.isRight = r.matches(want)
	if r.server, err = startServer(ctx, cfg.Program, cfg.base, cfg.ServerFlags); err != nil {
		return nil, err
	}
	defer r.server.stop()
	rev, err := r.server.revision(ctx)
	if err != nil {
		return nil, err
	}
	r.record = newRecord(rev, cfg.Ignored)
	go r.record.follow(ctx, r.server) // until the run ends
	r.out.began = time.Now()
	defer r.stopControllers()
	if err := r.startControllers(); err != nil {
		return nil, err
	}
	r.work(ctx)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.stopControllers()
	return r.outcome(), nil
}

func (r *run) startControllers() error {
	tricks := r.tricks()
	for i := range r.cfg.Replicas {
		d, err := openDoor(r.server, i, r.record.counts, tricks)
		if err != nil {
			return err
		}
		path := filepath.Join(r.dir, "kubeconfig"+strconv.Itoa(i))
		err = kubeconfig.Write(path, map[string]any{"server": d.url}, map[string]any{})
		if err != nil {
			d.close()
			return err
		}
		c, err := newController(r.cfg.Command, path, d.url)
		if err != nil {
			d.close()
			return err
		}
		r.replicas = append(r.replicas, &replica{d, c})
	}
	for _, rep := range r.replicas {
		if err := rep.start(); err != nil {
			return fmt.Errorf("starting the controller: %w", err)
		}
	}
	return nil
}

func (r *run) stopControllers() {
	for _, rep := range r.replicas {
		rep.controller.stop()
		rep.door.close()
	}
}

// work plays the workload and what the plan does behind it.
func (r *run) work(ctx context.Context) {
	r.settle(ctx, nil)
	for i := range r.cfg.steps {
		s := &r.cfg.steps[i]
		if s.Quiet {
			r.quietPoint(ctx)
			continue
		}
		if r.out.stuck = s.play(ctx, r.server, r.cfg.Patience, r.givenUp); r.out.stuck != nil {
			return
		}
		r.record.touch() // the history tells of it later: nothing is quiet because it has not come yet
	}
	if r.cfg.Script != "" {
		if r.out.stuck = r.playScript(ctx); r.out.stuck != nil {
			return
		}
	}
	r.out.quiet = r.settle(ctx, r.isRight)
	if r.afterward != nil {
		if r.out.stuck = r.afterward(ctx); r.out.stuck != nil {
			return
		}
		r.record.touch()
		right := r.isRight
		switch r.plan.Kind {
		case ending:
			right = func() bool { return len(endedWithout(r.record.all(), r.plan.Object)) == 0 }
		case edited: // what comes of it is right
			right = nil
		}
		r.out.quiet = r.settle(ctx, right)
	}
}

// settle waits until the controller is quiet, and what there is is right; nil asks for no more than quiet. It tells whether it became quiet.
func (r *run) settle(ctx context.Context, right func() bool) bool {
	quiet := false
	for begin := time.Now(); ctx.Err() == nil; {
		if quiet = r.isQuiet(); quiet && (right == nil || right()) {
			return true
		}
		if time.Since(begin) > r.cfg.Patience || r.givenUp() {
			return quiet
		}
		if r.pending.Load() > 0 || r.gap.isOpen() { // patience is with the controller, not with what is done to it
			begin = time.Now()
		}
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
		}
	}
	return false
}

// givenUp tells whether there is no controller to wait for.
func (r *run) givenUp() bool {
	return !slices.ContainsFunc(r.replicas, func(rep *replica) bool { return !rep.givenUp() })
}

// matches returns a function that reports whether the state is the reference's. It compares again only after new lines. Every state matches nil.
func (r *run) matches(want *reference) func() bool {
	looked, right := -1, true
	return func() bool {
		if want == nil {
			return true
		}
		if lines := r.record.all(); len(lines) != looked {
			looked, right = len(lines), len(want.compare(normalise(lines, r.cfg.Ignored))) == 0
		}
		return right
	}
}

// isQuiet tells whether nothing has happened for a while, and nothing is about to.
func (r *run) isQuiet() bool {
	if r.pending.Load() > 0 || r.lagging.Load() > 0 {
		return false
	}
	last, idle := r.record.lastChange(), true
	for _, rep := range r.replicas {
		wrote, busy := rep.quietSince()
		if wrote.After(last) {
			last = wrote
		}
		idle = idle && busy
	}
	return !idle && time.Since(last) >= r.cfg.Quiet
}

func (r *run) outcome() *outcome {
	o := r.out
	o.lines = r.record.all()
	o.state = normalise(o.lines, r.cfg.Ignored)
	o.reached, o.took = r.reached.Load(), time.Since(o.began)
	if at := r.pointAt.Load(); at != 0 {
		o.pointAt = time.Unix(0, at)
	}
	for _, rep := range r.replicas {
		all := rep.requests()
		for i := range all {
			if all[i].writes && time.Since(all[i].at) < time.Second+r.cfg.Quiet {
				o.retries++
			}
		}
		o.requests = append(o.requests, all...)
		if how := rep.misbehaviour(); how != "" {
			o.process = how
		}
		o.said += rep.out.String()
	}
	return o
}

// endedWithout is what is left of a namespace that should be gone.
func endedWithout(lines []history.Line, key string) []Difference {
	live := map[string]bool{}
	var all []Difference
	var order []string
	for i := range lines {
		k := keyOfLine(&lines[i])
		if keyOf("", "namespaces", "", lines[i].Namespace) != key && k != key {
			continue
		}
		if _, known := live[k]; !known {
			order = append(order, k)
		}
		live[k] = lines[i].Type != "DELETED"
	}
	for _, k := range order {
		if live[k] {
			all = append(all, Difference{Object: k, Have: "(there)"})
		}
	}
	return all
}
