package scan

// This file prepares the events of the log for a watch.

import (
	"context"
	"strings"

	"apilet/internal/limits"
	"apilet/internal/scheme"
	"apilet/internal/selector"
	"apilet/internal/store"
)

// SizeOfLargeEvents returns the memory that the events of large objects need, including their previous
// versions and frames. They are counted even if the log has them in memory, because a slow client
// may keep them for longer than the log.
func SizeOfLargeEvents(events []store.Event) (n int) {
	for i := range events {
		if size := len(events[i].JSON); size > limits.Large {
			n += 2*size + len(events[i].Prev)
		}
	}
	return n
}

// ConvertEvents is like Convert for events of the log. It also converts the previous versions if m
// has selectors.
func (s *Source) ConvertEvents(ctx context.Context, res *scheme.Resource, events []store.Event, m *selector.Matcher) error {
	if !res.NeedsConversion() {
		return nil
	}
	var at []*[]byte
	for i := range events {
		ev := &events[i]
		if !strings.HasPrefix(ev.Key, m.Span) || s.Corrupt.Has(&ev.Record) {
			continue
		}
		at = append(at, &ev.JSON)
		if !ev.Deleted && ev.CreateRev != ev.Rev && !m.MatchesAll() {
			at = append(at, &ev.Prev)
		}
	}
	docs := make([][]byte, len(at))
	for i := range at {
		docs[i] = *at[i]
	}
	err := res.Custom.Webhook.Watch(ctx, docs)
	for i := range at {
		*at[i] = docs[i]
	}
	return err
}
