package request

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestDeadlineIsContexts: each of these stories ends as with context.WithDeadline, in whatever order its end is asked for.
func TestDeadlineIsContexts(t *testing.T) {
	why := errors.New("because")
	type key struct{}
	stories := map[string]func(parentEnds context.CancelCauseFunc, cancel context.CancelFunc){
		"nothing happens":           func(context.CancelCauseFunc, context.CancelFunc) {},
		"it is over":                func(_ context.CancelCauseFunc, cancel context.CancelFunc) { cancel() },
		"its time comes":            func(context.CancelCauseFunc, context.CancelFunc) { time.Sleep(time.Minute) },
		"its parent ends":           func(parentEnds context.CancelCauseFunc, _ context.CancelFunc) { parentEnds(why) },
		"its time comes, it ends":   func(_ context.CancelCauseFunc, cancel context.CancelFunc) { time.Sleep(time.Minute); cancel() },
		"it ends, then the parent":  func(parentEnds context.CancelCauseFunc, cancel context.CancelFunc) { cancel(); parentEnds(why) },
		"the parent ends, its time": func(parentEnds context.CancelCauseFunc, _ context.CancelFunc) { parentEnds(why); time.Sleep(time.Hour) },
	}
	asked := map[string]func(context.Context){
		"nobody asks":  func(context.Context) {},
		"Done":         func(ctx context.Context) { ctx.Done() },
		"Err":          func(ctx context.Context) { _ = ctx.Err() },
		"Done, twice":  func(ctx context.Context) { ctx.Done(); ctx.Done() },
		"Err and Done": func(ctx context.Context) { _ = ctx.Err(); ctx.Done() },
	}
	tell := func(within time.Duration, make func(context.Context, time.Time) (context.Context, context.CancelFunc),
		before func(context.Context), story func(context.CancelCauseFunc, context.CancelFunc)) (told string) {
		synctest.Test(t, func(t *testing.T) {
			parent, parentEnds := context.WithCancelCause(context.WithValue(t.Context(), key{}, "v"))
			defer parentEnds(nil)
			parent, stop := context.WithTimeout(parent, 30*time.Second)
			defer stop()
			began := time.Now()
			ctx, cancel := make(parent, began.Add(within))
			defer cancel()
			at, ok := ctx.Deadline()
			before(ctx)
			child, stopChild := context.WithCancel(ctx)
			defer stopChild()
			ran := false
			context.AfterFunc(ctx, func() { ran = true })
			story(parentEnds, cancel)
			synctest.Wait()
			done := false
			select {
			case <-ctx.Done():
				done = true
			default:
			}
			told = fmt.Sprint(at.Sub(began), ok, " done ", done, " ", ctx.Err(), " ", context.Cause(ctx), " child ", child.Err(), " ", context.Cause(child),
				" ran ", ran, " ", ctx.Value(key{}), " again ", ctx.Err(), " ", context.Cause(ctx))
		})
		return told
	}
	for name, story := range stories {
		for when, before := range asked {
			for _, within := range []time.Duration{time.Second, time.Hour, -time.Second} {
				want, got := tell(within, context.WithDeadline, before, story), tell(within, WithDeadline, before, story)
				if got != want {
					t.Errorf("%s, after %s, within %v:\n got %s\nwant %s", name, when, within, got, want)
				}
			}
		}
	}
}

// TestDeadlineSaysTheSameTwice: what Err says first stays, though nobody has waited.
func TestDeadlineSaysTheSameTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, first := range []string{"parent", "time", "cancel"} {
			parent, parentEnds := context.WithCancel(t.Context())
			ctx, cancel := WithDeadline(parent, time.Now().Add(time.Second))
			ends := map[string]func(){"parent": parentEnds, "time": func() { time.Sleep(time.Second) }, "cancel": cancel}
			ends[first]()
			said := ctx.Err()
			for _, end := range ends {
				end()
			}
			if again := ctx.Err(); said == nil || again != said {
				t.Errorf("%s: first %v, then %v", first, said, again)
			}
			select {
			case <-ctx.Done():
			default:
				t.Errorf("%s: an error, and not done", first)
			}
		}
	})
}

func BenchmarkDeadline(b *testing.B) {
	parent, cancel := context.WithCancel(b.Context())
	defer cancel()
	for _, of := range []struct {
		name string
		make func(context.Context, time.Time) (context.Context, context.CancelFunc)
	}{{"this", WithDeadline}, {"context", context.WithDeadline}} {
		b.Run(of.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, end := of.make(parent, time.Now().Add(time.Minute))
				end()
			}
		})
	}
}
