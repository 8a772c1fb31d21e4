package history

// This file finds where the last lines begin. The log is read forward only, so it is looked through in windows from the newest back, each
// larger than the one after it, until there are enough changes that are asked for. What is remembered of them is their revisions.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"apilet/internal/store"
)

const (
	windowMax = 1 << 14          // revisions that are looked through before those before them are
	tailTime  = 30 * time.Second // for finding the beginning, or half of what the request has
)

// findTail makes the answer begin with the last lines, where they are asked for, and says first up to where it has none: {"earlier":REV}.
func (s *stream) findTail(ctx context.Context) error {
	s.pos = s.after
	if s.tail == 0 {
		return nil
	}
	patience := tailTime
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(deadline)/2)
	}
	limit := time.Now().Add(patience)
	if !s.follow && s.until == 0 {
		s.until = s.log.Store.Revision()
	}
	high, missing, window := s.log.Store.Revision(), int(s.tail), s.tail
	if s.until > 0 {
		high = s.until
	}
	for high > s.after && missing > 0 && ctx.Err() == nil && time.Now().Before(limit) {
		low := max(s.after, high-window)
		found, err := s.told(ctx, low, high)
		if ctx.Err() != nil || errors.Is(err, store.ErrCompacted) { // just now: what is above it is still there
			break
		}
		if err != nil {
			return err
		}
		if len(found) >= missing {
			low = found[len(found)-missing] - 1
		}
		missing -= min(len(found), missing)
		high, window = low, min(2*window, windowMax)
	}
	if s.pos = max(high, s.after); s.pos > s.after {
		s.say("earlier", 0, fmt.Appendf(nil, `{"earlier":%d}`, s.pos))
	}
	return nil
}

// told are the revisions above low and up to high of which there is something to tell, rising.
func (s *stream) told(ctx context.Context, low, high int64) (revs []int64, err error) {
	for low < high {
		release := s.log.begin(ctx)
		if release == nil {
			return revs, nil
		}
		events, upTo, err := s.read(low)
		release()
		if err != nil {
			return nil, err
		}
		for i := range events {
			if ev := &events[i]; ev.Rev <= high && s.tells(ev) {
				revs = append(revs, ev.Rev)
			}
		}
		low = max(upTo, low+1)
	}
	return revs, nil
}
