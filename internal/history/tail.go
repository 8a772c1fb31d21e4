package history

// This file finds the start of the last lines (the tail parameter). The log can only be read
// forward, so findTail searches it in windows from the newest backward, each twice as large as the
// one before, until it has found enough matching changes. It keeps only their revisions in memory.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"apilet/internal/store"
)

const (
	windowMax = 1 << 14          // maximum number of revisions in a window
	tailTime  = 30 * time.Second // time limit of the search; at most half of the request's remaining time
)

// findTail sets pos to the start of the last lines if the query requests a tail. If it skipped
// older revisions, it sends {"earlier":REV} first, where REV is the last skipped revision.
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
		found, err := s.revisionsIn(ctx, low, high)
		if ctx.Err() != nil || errors.Is(err, store.ErrCompacted) { // revisions above low are still available
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
		s.appendLine("earlier", 0, fmt.Appendf(nil, `{"earlier":%d}`, s.pos))
	}
	return nil
}

// revisionsIn returns the revisions in (low, high] that have a change to send, in ascending order.
func (s *stream) revisionsIn(ctx context.Context, low, high int64) (revs []int64, err error) {
	for low < high {
		release := s.log.acquire(ctx)
		if release == nil {
			return revs, nil
		}
		events, upTo, err := s.read(low)
		release()
		if err != nil {
			return nil, err
		}
		for i := range events {
			if ev := &events[i]; ev.Rev <= high && s.isVisible(ev) {
				revs = append(revs, ev.Rev)
			}
		}
		low = max(upTo, low+1)
	}
	return revs, nil
}
