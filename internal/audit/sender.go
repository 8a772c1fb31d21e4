package audit

// This file sends events to a webhook (--audit-webhook-config-file). Batches are sent in the
// background. In the blocking modes, each event is sent while its request waits. Events that the
// webhook has not accepted after five attempts are lost, counted and reported.
//
//	POST URL   {"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":[{"level":"Metadata",...},...]}

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	postTimeout = 30 * time.Second // as in kube-apiserver
	maxAttempts = 5
	backoffGrow = 1.5
)

// A Sender sends events to a webhook.
type Sender struct {
	Batches
	Mode     Mode // default: ModeBatch
	Truncate Truncate
	Post     func(ctx context.Context, body []byte) error
	Sent     func(events int)
	// Lost is called with lost events. why is nil if no attempt was made to send them.
	Lost func(plugin string, events int, why error)

	queue *batcher        // nil in the blocking modes
	until context.Context // canceled by close, which ends waiting
	stop  context.CancelFunc
}

// Start starts the background delivery, which ends with close.
func (s *Sender) Start() {
	if s.until, s.stop = context.WithCancel(context.Background()); s.Mode != ModeBlocking && s.Mode != ModeStrict {
		most := s.Truncate.MaxBatch
		if !s.Truncate.Enabled {
			most = 0
		}
		s.queue = startBatcher(s.Batches, most, func(ctx context.Context, batch [][]byte) { s.send(ctx, batch) })
	}
}

// add sends or queues an event. It reports whether the request may continue. The caller must not
// modify the line afterwards.
func (s *Sender) add(line []byte) bool {
	if s.queue == nil {
		return s.send(s.until, [][]byte{line}) || s.Mode != ModeStrict
	}
	if !s.queue.add(line) {
		s.Lost(pluginBuffered, 1, nil)
	}
	return true
}

// send posts a batch, with at most five attempts. It reports whether the webhook accepted the
// batch.
func (s *Sender) send(ctx context.Context, batch [][]byte) (taken bool) {
	if len(batch) == 0 {
		return true
	}
	body := []byte(`{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":[`)
	for i, line := range batch {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, line[:len(line)-1]...)
	}
	body = append(body, "]}"...)
	var err error
	wait := s.Backoff
	for try := range maxAttempts {
		if err = s.post(ctx, body); err == nil {
			s.Sent(len(batch))
			return true
		}
		if try == maxAttempts-1 || ctx.Err() != nil && try > 0 {
			break
		}
		select {
		case <-time.After(time.Duration(float64(wait) * (1 + 0.2*rand.Float64()))):
		case <-ctx.Done():
		}
		wait = time.Duration(float64(wait) * backoffGrow)
	}
	s.Lost(pluginWebhook, len(batch), err)
	return false
}

func (s *Sender) post(ctx context.Context, body []byte) error {
	if ctx.Err() != nil { // the server stops, so this is the last attempt
		ctx = context.Background()
		short, cancel := context.WithTimeout(ctx, closeTimeout/2)
		defer cancel()
		return s.Post(short, body)
	}
	ctx, cancel := context.WithTimeout(ctx, postTimeout)
	defer cancel()
	return s.Post(ctx, body)
}

// close sends the queue within a limited time and stops the sender.
func (s *Sender) close() {
	if s == nil || s.stop == nil {
		return
	}
	s.stop()
	s.queue.close()
}
