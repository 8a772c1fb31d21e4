package audit

// This file sends events in the background (--audit-log-mode=batch, --audit-webhook-mode=batch), so
// that requests do not wait. The queue is limited in number and in bytes. If an event does not fit,
// it is dropped and counted.
//
//	request ──▶ add ──▶ lines that wait ──▶ a batch: full, or old enough ──▶ deliver: one write to the log's file, or a POST
//
// Only one batch is sent at a time, to preserve the order of events. kube-apiserver sends the
// batches for a webhook concurrently.

import (
	"context"
	"sync"
	"time"
)

// A Mode determines whether requests wait until their events have been delivered.
type Mode string

// The modes are named as in kube-apiserver.
const (
	ModeBatch    Mode = "batch"           // requests do not wait
	ModeBlocking Mode = "blocking"        // requests wait, but continue if the delivery fails
	ModeStrict   Mode = "blocking-strict" // requests wait, and are rejected if the event for their arrival cannot be delivered
)

// Batches configures the batches: kube-apiserver's --audit-log-batch-... and
// --audit-webhook-batch-...
type Batches struct {
	BufferSize, MaxSize int           // maximum number of events in the queue and in a batch
	MaxWait             time.Duration // maximum time until a batch is sent
	Throttle            bool
	QPS                 float64 // batches a second
	Burst               int
	// Backoff is the time to wait before the first retry of a webhook. Each later retry waits 50 %
	// longer.
	Backoff time.Duration
}

const (
	maxQueuedBytes = 64 << 20        // maximum size of the queue in bytes
	closeTimeout   = 3 * time.Second // maximum time for the queue when the server stops
)

// A batcher collects lines and delivers them in batches.
type batcher struct {
	Batches
	maxBatchBytes int64                                     // maximum size of a batch in bytes, or 0 for no limit
	deliver       func(ctx context.Context, batch [][]byte) // calls are not concurrent
	stop          context.CancelFunc                        // cancels the context of run
	wake          chan struct{}                             // buffered, so that add does not block
	done          chan struct{}                             // closed when run returns

	mu     sync.Mutex // guards the fields below
	queue  [][]byte   // lines
	bytes  int
	closed bool
}

// startBatcher starts a batcher. The caller must call close to stop it.
func startBatcher(rules Batches, most int64, deliver func(ctx context.Context, batch [][]byte)) *batcher {
	ctx, stop := context.WithCancel(context.Background())
	b := &batcher{Batches: rules, maxBatchBytes: most, deliver: deliver, stop: stop, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go b.run(ctx)
	return b
}

// add queues a line without waiting. It reports whether there was room. The caller must not modify
// the line afterwards.
func (b *batcher) add(line []byte) bool {
	if !b.fits(line) {
		return false
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
	return true
}

func (b *batcher) fits(line []byte) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || len(b.queue) >= b.BufferSize || b.bytes+len(line) > maxQueuedBytes {
		return false
	}
	b.queue, b.bytes = append(b.queue, line), b.bytes+len(line)
	return true
}

// take removes a batch from the queue.
func (b *batcher) take() (batch [][]byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	size := 0
	for len(b.queue) > 0 && len(batch) < b.MaxSize {
		if size += len(b.queue[0]); len(batch) > 0 && b.maxBatchBytes > 0 && int64(size) > b.maxBatchBytes {
			break
		}
		batch, b.bytes = append(batch, b.queue[0]), b.bytes-len(b.queue[0])
		b.queue[0], b.queue = nil, b.queue[1:]
	}
	return batch
}

func (b *batcher) waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue)
}

func (b *batcher) run(ctx context.Context) {
	defer close(b.done)
	var pace tokenBucket
	for ctx.Err() == nil {
		b.gather(ctx)
		for b.waiting() > 0 && ctx.Err() == nil {
			if b.Throttle {
				pace.wait(ctx, b.QPS, b.Burst)
			}
			b.deliver(ctx, b.take())
			if b.waiting() < b.MaxSize {
				break // and collect again
			}
		}
	}
	last, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	for batch := b.take(); len(batch) > 0; batch = b.take() {
		b.deliver(last, batch)
	}
}

// gather waits until there is a full batch, or until MaxWait has passed.
func (b *batcher) gather(ctx context.Context) {
	var over <-chan time.Time
	for b.waiting() < b.MaxSize {
		if over == nil && b.waiting() > 0 {
			over = time.After(b.MaxWait)
		}
		select {
		case <-ctx.Done():
			return
		case <-over:
			return
		case <-b.wake:
		}
	}
}

// close delivers the queue within a limited time and stops the batcher. It does nothing if b is
// nil.
func (b *batcher) close() {
	if b == nil {
		return
	}
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.stop()
	<-b.done
}

// A pace is a token bucket. It is full at first.
type tokenBucket struct {
	tokens float64
	last   time.Time
}

// wait takes a token, and waits if the bucket is empty.
func (p *tokenBucket) wait(ctx context.Context, qps float64, burst int) {
	now := time.Now()
	if p.last.IsZero() {
		p.tokens = float64(burst)
	} else {
		p.tokens = min(float64(burst), p.tokens+now.Sub(p.last).Seconds()*qps)
	}
	p.last = now
	if p.tokens--; p.tokens >= 0 {
		return
	}
	select {
	case <-time.After(time.Duration(-p.tokens / qps * float64(time.Second))):
	case <-ctx.Done():
	}
}
