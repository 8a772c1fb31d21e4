package main

// This file is the timetable. A trouble is planted, clients go on meanwhile, it is mended; then the servers have to be ready again, every
// list is held against the ledger, and a row tells what was planted and what the clients saw:
//
//	2m14s shaken  SIGKILL   for 0.4 s: written 0, refused 0, cut off 31, expired 1; the bystander waited 0.5 s; all in order 0.2 s after
//
// (written: acknowledged writes; refused: answers that say no, for the trouble's sake; cut off: requests without an answer; expired: watches and
// lists that were told 410 and began anew.)
//
// Each subject has its own timetable, all of whose troubles come once, in an order that -seed decides, before any comes again.

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

// A trouble is something that can go wrong. plant and mend return when it has come, or is over, which they find out by looking.
type trouble struct {
	name  string
	sees  leave                  // what clients may see of it
	plant func() (string, error) // and what is seen of it
	mend  func() error
	brief bool // nothing is to be seen by waiting: plant has seen it
}

// A leave is what clients may see besides the answers that are due. The zero leave is none.
type leave struct {
	cut     bool                                     // requests that end without an answer
	refuses func(method, path string, a answer) bool // answers; nil: none
	nothing bool                                     // a write that is refused has changed nothing: else nobody knows
	logs    bool                                     // errors in the log
	late    bool                                     // such errors also afterwards: what waits for etcd does so for ten seconds
	latest  bool                                     // a watch may be told that its revision has not come yet
}

// errLeftOut says that a trouble cannot be had on this machine.
var errLeftOut = errors.New("left out")

// suffer goes through the timetable until ctx ends. A trouble that has come is mended first.
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

// notReached tells of the troubles for which there was no time: none may be thought tried that was not.
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

// endure is one trouble, from its coming until all is in order.
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

// recover waits until every server says that it is ready.
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

// pause waits, and says whether ctx has not ended.
func pause(ctx context.Context, length time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(length):
		return ctx.Err() == nil
	}
}

// chosen are the troubles that -only names; "" names all.
func chosen(all []*trouble, only string) []*trouble {
	return slices.DeleteFunc(all, func(t *trouble) bool { return only != "" && !strings.Contains(t.name, only) })
}
