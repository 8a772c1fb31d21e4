package main

// This file simulates other clients of the server, including a user with small requests and an
// anonymous client. The third meter measures how long they wait.

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	pause       = 100 * time.Millisecond // between two requests of one bystander
	calibration = 1500 * time.Millisecond
	leastBound  = time.Second
	// limit for the duration of a request, relative to its duration on the idle server
	slower = 20
)

// A wait contains the result of a bystander's request.
type wait struct {
	took    time.Duration
	refused bool // true if the status was 429 or 5xx or if there was no response
}

// Bystanders send requests continuously.
type bystanders struct {
	bound time.Duration // set once, after the calibration

	mu      sync.Mutex // guards the fields below
	waits   []wait     // since the mark
	pending map[int]time.Time
}

// watchBystanders sends requests until ctx ends. It returns when the latency of the idle server has
// been measured.
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

// mark discards the waits recorded so far.
func (b *bystanders) mark() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waits = nil
}

// suffered returns the longest wait since the mark (including pending requests), the number of
// waits above the bound, and the number of refused requests.
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

// recovered waits until all bystanders are served within the bound again. It reports whether they
// are before the limit.
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
