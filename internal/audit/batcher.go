package audit

// This file gathers events behind the requests' backs (--audit-log-mode=batch, --audit-webhook-mode=batch): whoever asks waits for nobody. What waits is
// bounded in number and in bytes; what does not fit is lost, and counted.
//
//	request ──▶ add ──▶ lines that wait ──▶ a batch: full, or old enough ──▶ deliver: one write to the log's file, or a POST
//
// One batch is on its way at a time, so that events come in their order. (kube-apiserver sends those for a webhook side by side.)

import (
	"context"
	"sync"
	"time"
)

// A Mode says who waits until an event is where it belongs.
type Mode string

// The modes have kube-apiserver's names.
const (
	ModeBatch    Mode = "batch"           // nobody
	ModeBlocking Mode = "blocking"        // the request, which goes on whatever comes of it
	ModeStrict   Mode = "blocking-strict" // the request, which is refused if it cannot be told that it has come
)

// Batches say how events are gathered: kube-apiserver's --audit-log-batch-... and --audit-webhook-batch-...
type Batches struct {
	BufferSize, MaxSize int           // events that wait, and of a batch
	MaxWait             time.Duration // for a batch that does not fill
	Throttle            bool
	QPS                 float64 // batches a second
	Burst               int
	Backoff             time.Duration // of a webhook: before the second try; each later one waits longer by half
}

const (
	queuedMost = 64 << 20        // bytes that wait
	lastMoment = 3 * time.Second // for what waits when the server stops
)

// A batcher gathers lines.
type batcher struct {
	Batches
	most    int64                                     // bytes of a batch; 0: without bound
	deliver func(ctx context.Context, batch [][]byte) // one at a time
	stop    context.CancelFunc                        // ends what ctx was given to
	wake    chan struct{}                             // of room for one token: something waits
	done    chan struct{}                             // closed at run's end

	mu     sync.Mutex // guards what follows
	queue  [][]byte   // lines
	bytes  int
	closed bool
}

// startBatcher begins to deliver, until close.
func startBatcher(rules Batches, most int64, deliver func(ctx context.Context, batch [][]byte)) *batcher {
	ctx, stop := context.WithCancel(context.Background())
	b := &batcher{Batches: rules, most: most, deliver: deliver, stop: stop, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go b.run(ctx)
	return b
}

// add has a line delivered, and says whether there was room. It does not wait. The line is the batcher's from here on.
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
	if b.closed || len(b.queue) >= b.BufferSize || b.bytes+len(line) > queuedMost {
		return false
	}
	b.queue, b.bytes = append(b.queue, line), b.bytes+len(line)
	return true
}

// take takes a batch off the queue.
func (b *batcher) take() (batch [][]byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	size := 0
	for len(b.queue) > 0 && len(batch) < b.MaxSize {
		if size += len(b.queue[0]); len(batch) > 0 && b.most > 0 && int64(size) > b.most {
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
	var pace pace
	for ctx.Err() == nil {
		b.gather(ctx)
		for b.waiting() > 0 && ctx.Err() == nil {
			if b.Throttle {
				pace.wait(ctx, b.QPS, b.Burst)
			}
			b.deliver(ctx, b.take())
			if b.waiting() < b.MaxSize {
				break // and gather again
			}
		}
	}
	last, cancel := context.WithTimeout(context.Background(), lastMoment)
	defer cancel()
	for batch := b.take(); len(batch) > 0; batch = b.take() {
		b.deliver(last, batch)
	}
}

// gather waits until a batch is full, or its first event has waited for long enough.
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

// close delivers what waits, if that is soon done, and ends. nil: nothing was gathered.
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

// A pace is a bucket of tokens, full at first.
type pace struct {
	tokens float64
	last   time.Time
}

// wait takes a token, and waits for one that is not there yet.
func (p *pace) wait(ctx context.Context, qps float64, burst int) {
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
