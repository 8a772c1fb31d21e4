package main

// This file is somebody else on the same server: a user with small requests of his own, a stranger, a probe. What they wait is the third meter.

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	pause       = 100 * time.Millisecond // between the questions of one bystander
	calibration = 1500 * time.Millisecond
	leastBound  = time.Second
	slower      = 20 // times as long as on the idle server is too long
)

// A wait is one question: how long its answer took, and whether it was one.
type wait struct {
	took    time.Duration
	refused bool // 429, 5xx, or no answer
}

// Bystanders ask all the time.
type bystanders struct {
	bound time.Duration // set once, after the calibration

	mu      sync.Mutex // guards what follows
	waits   []wait     // since the mark
	pending map[int]time.Time
}

// watchBystanders has them ask until ctx ends, and returns when it is known how long they wait while nothing happens.
func watchBystanders(ctx context.Context, s *server) *bystanders {
	b := &bystanders{pending: map[int]time.Time{}}
	questions := []struct{ persona, path string }{{"bystander", bystandersPath}, {"passer-by", "/version"}, {"passer-by", "/readyz"}}
	for i, question := range questions {
		q := request{As: question.persona, Method: "GET", Path: question.path}
		if q.As == "passer-by" {
			q.As = "stranger"
		}
		go b.ask(ctx, s, i, s.clients[question.persona], &q)
	}
	select {
	case <-ctx.Done():
	case <-time.After(calibration):
	}
	var took []time.Duration
	b.mu.Lock()
	for _, w := range b.waits {
		took = append(took, w.took)
	}
	b.mu.Unlock()
	slices.Sort(took)
	b.bound = leastBound
	if len(took) > 0 {
		b.bound = max(leastBound, slower*took[len(took)/2])
	}
	return b
}

func (b *bystanders) ask(ctx context.Context, s *server, who int, client *http.Client, q *request) {
	for ; ctx.Err() == nil; time.Sleep(pause) {
		r, err := q.http(s.url, nil)
		if err != nil {
			return
		}
		began := time.Now()
		b.mu.Lock()
		b.pending[who] = began
		b.mu.Unlock()
		w := wait{}
		response, err := client.Do(r.WithContext(ctx))
		if err == nil {
			w.refused = response.StatusCode == http.StatusTooManyRequests || response.StatusCode >= 500
			response.Body.Close()
		}
		w.took, w.refused = time.Since(began), w.refused || err != nil
		b.mu.Lock()
		delete(b.pending, who)
		if ctx.Err() == nil {
			b.waits = append(b.waits, w)
		}
		b.mu.Unlock()
	}
}

// mark forgets what was.
func (b *bystanders) mark() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waits = nil
}

// suffered is the longest wait since the mark, also one that goes on, the number of those beyond the bound, and of refusals.
func (b *bystanders) suffered() (longest time.Duration, beyond, refused int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	waits := slices.Clone(b.waits)
	for _, since := range b.pending {
		waits = append(waits, wait{took: time.Since(since)})
	}
	for _, w := range waits {
		longest = max(longest, w.took)
		if w.took > b.bound {
			beyond++
		}
		if w.refused {
			refused++
		}
	}
	return longest, beyond, refused
}

// recovered waits until all of them are served at once again.
func (b *bystanders) recovered(ctx context.Context, limit time.Duration) bool {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline) && ctx.Err() == nil; {
		b.mark()
		time.Sleep(5 * pause)
		if _, beyond, refused := b.suffered(); beyond == 0 && refused == 0 {
			return true
		}
	}
	return false
}
