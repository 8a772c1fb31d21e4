package main

// This file is the timetable. Faults are caused and repaired while the clients are running. After a
// fault, all servers must become ready, and all lists are compared with the ledger. The effects are
// printed in a row:
//
//	2m14s shaken  SIGKILL   for 0.4 s: written 0, refused 0, cut off 31, expired 1; the bystander waited 0.5 s; all in order 0.2 s after
//
// (written: acknowledged writes. refused: errors caused by the fault. cut off: requests without a
// response. expired: watches and lists that had to be restarted after a 410.)
//
// Each subject has a separate timetable. The order depends on -seed. All faults are caused once
// before the first one is repeated.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"
)

// A trouble is a fault. plant and mend return after they have checked that the fault is present or
// repaired.
type trouble struct {
	name  string
	sees  leave                  // the effects that clients may see
	plant func() (string, error) // also returns a description
	mend  func() error
	brief bool // plant has already checked the effects; no need to wait
}

// A leave describes the effects of a fault that are allowed. The zero leave allows none.
type leave struct {
	cut     bool                                     // requests without a response
	refuses func(method, path string, a answer) bool // allowed error responses; nil means none
	// if set, a refused write must not have been executed
	nothing bool
	logs    bool // errors in the log are allowed
	// they are also allowed afterwards, because requests wait ten seconds for etcd
	late bool
	// a watch may fail because the server has not reached the revision yet
	latest bool
}

// errLeftOut means that this machine cannot cause a fault.
var errLeftOut = errors.New("left out")

// suffer runs the timetable until ctx ends. The last fault is repaired before suffer returns.
func (s *subject) suffer(ctx context.Context, out *table, all []*trouble, order *rand.Rand) error {
	for len(all) > 0 {
		order.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for i, t := range slices.Clone(all) {
			if !pause(ctx, *every) {
				s.notReached(out, all[i:])
				return nil
			}
			err := s.endure(ctx, out, t)
			if errors.Is(err, errLeftOut) {
				out.line(s, "%-24s %v", t.name, err)
				all = slices.DeleteFunc(all, func(other *trouble) bool { return other == t })
				continue
			}
			if err != nil {
				return fmt.Errorf("%s: %s: %w", s.name, t.name, err)
			}
		}
	}
	<-ctx.Done()
	return nil
}

// notReached prints the faults that were not tested for lack of time.
func (s *subject) notReached(out *table, left []*trouble) {
	var names []string
	for _, t := range left {
		if s.had[t.name] == 0 {
			names = append(names, t.name)
		}
	}
	if len(names) > 0 {
		out.line(s, "no time was left for: %s", strings.Join(names, ", "))
	}
}

// endure causes a fault and waits until it is repaired and all checks have passed.
func (s *subject) endure(ctx context.Context, out *table, t *trouble) error {
	before, faults, begin := s.counts.now(), s.faults(), time.Now()
	if err := s.checkLogs(s.late); err != nil {
		return err
	}
	s.late = t.sees.late
	s.leave.Store(&t.sees)
	s.silence.Store(0)
	what, err := t.plant()
	if err == nil && !t.brief {
		pause(ctx, *hold)
	}
	if err == nil {
		err = t.mend()
	}
	lasted, mended := time.Since(begin), time.Now()
	if err == nil {
		err = s.recover()
	}
	s.leave.Store(&s.standing)
	if err != nil {
		return err
	}
	saw := s.counts.now().minus(before)
	took := time.Since(mended)
	s.compareAll()
	s.had[t.name]++
	text := fmt.Sprintf("%-24s for %.1f s: written %d, refused %d, cut off %d, expired %d; the bystander waited %.1f s; all in order %.1f s after", t.name,
		lasted.Seconds(), saw.written, saw.refused, saw.cutOff, saw.expired, time.Duration(s.silence.Load()).Seconds(), took.Seconds())
	if what != "" {
		text += "; " + what
	}
	if n := s.faults() - faults; n > 0 {
		text += fmt.Sprintf("; FAULTS %d", n)
	}
	out.line(s, "%s", text)
	return s.checkLogs(t.sees.logs)
}

// recover waits until every server is ready.
func (s *subject) recover() error {
	for _, server := range s.running() {
		var last answer
		if err := await(server.name+" is ready", func() bool {
			var err error
			last, err = s.askServer(server, "/readyz?verbose")
			return err == nil && last.code == http.StatusOK
		}); err != nil {
			return fmt.Errorf("%w: %d %s", err, last.code, last.body)
		}
	}
	s.client.CloseIdleConnections()
	return nil
}

// pause waits for the given time. It reports whether ctx is still active.
func pause(ctx context.Context, length time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(length):
		return ctx.Err() == nil
	}
}

// chosen returns the faults that match -only. An empty string matches all faults.
func chosen(all []*trouble, only string) []*trouble {
	return slices.DeleteFunc(all, func(t *trouble) bool { return only != "" && !strings.Contains(t.name, only) })
}
