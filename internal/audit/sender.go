package audit

// This file hands events to a webhook (--audit-webhook-config-file), many at a time and behind the requests' backs: whoever asks waits for nobody. What
// waits is bounded in number and in bytes, and what does not fit, or what the webhook does not take in five tries, is lost, counted and told.
//
//	POST URL   {"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":[{"level":"Metadata",...},...]}
//
// One batch is on its way at a time, so that events come in their order. (kube-apiserver sends batches side by side.)

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	queuedMost  = 64 << 20         // bytes that wait
	postTimeout = 30 * time.Second // as kube-apiserver's
	tries       = 5
	backoffGrow = 1.5
	lastMoment  = 3 * time.Second // for what waits when the server stops
)

// Batches say how events are gathered: kube-apiserver's --audit-webhook-batch-...
type Batches struct {
	BufferSize, MaxSize int           // events that wait, and of a batch
	MaxWait             time.Duration // for a batch that does not fill
	Throttle            bool
	QPS                 float64 // batches a second
	Burst               int
	Backoff             time.Duration // before the second try; each later one waits longer by half
}

// A Sender sends events to a webhook.
type Sender struct {
	Batches
	Truncate Truncate
	Post     func(ctx context.Context, body []byte) error
	Sent     func(events int)
	Lost     func(events int, why error)

	mu     sync.Mutex // guards what follows
	queue  [][]byte   // lines
	bytes  int
	closed bool

	wake chan struct{} // of room for one token: something waits
	stop context.CancelFunc
	done chan struct{} // closed at Run's end
}

// Start begins to send, until close.
func (s *Sender) Start() {
	ctx, stop := context.WithCancel(context.Background())
	s.wake, s.stop, s.done = make(chan struct{}, 1), stop, make(chan struct{})
	go s.run(ctx)
}

// add has an event sent. It does not wait. The line is the sender's from here on.
func (s *Sender) add(line []byte) {
	if !s.fits(line) {
		s.dropped(1)
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Sender) fits(line []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.queue) >= s.BufferSize || s.bytes+len(line) > queuedMost {
		return false
	}
	s.queue, s.bytes = append(s.queue, line), s.bytes+len(line)
	return true
}

func (s *Sender) dropped(events int) { s.Lost(events, nil) }

// take takes a batch off the queue.
func (s *Sender) take() (batch [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size := 0
	for len(s.queue) > 0 && len(batch) < s.MaxSize {
		if size += len(s.queue[0]); len(batch) > 0 && s.Truncate.Enabled && int64(size) > s.Truncate.MaxBatch {
			break
		}
		batch, s.bytes = append(batch, s.queue[0]), s.bytes-len(s.queue[0])
		s.queue[0], s.queue = nil, s.queue[1:]
	}
	return batch
}

func (s *Sender) waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

func (s *Sender) run(ctx context.Context) {
	defer close(s.done)
	var pace pace
	for ctx.Err() == nil {
		s.gather(ctx)
		for s.waiting() > 0 && ctx.Err() == nil {
			if s.Throttle {
				pace.wait(ctx, s.QPS, s.Burst)
			}
			s.send(ctx, s.take())
			if s.waiting() < s.MaxSize {
				break // and gather again
			}
		}
	}
	last, cancel := context.WithTimeout(context.Background(), lastMoment)
	defer cancel()
	for batch := s.take(); len(batch) > 0; batch = s.take() {
		s.send(last, batch)
	}
}

// gather waits until a batch is full, or its first event has waited for long enough.
func (s *Sender) gather(ctx context.Context) {
	var over <-chan time.Time
	for s.waiting() < s.MaxSize {
		if over == nil && s.waiting() > 0 {
			over = time.After(s.MaxWait)
		}
		select {
		case <-ctx.Done():
			return
		case <-over:
			return
		case <-s.wake:
		}
	}
}

// send posts a batch until it is taken, five times at most.
func (s *Sender) send(ctx context.Context, batch [][]byte) {
	if len(batch) == 0 {
		return
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
	for try := range tries {
		if err = s.post(ctx, body); err == nil {
			s.Sent(len(batch))
			return
		}
		if try == tries-1 || ctx.Err() != nil && try > 0 {
			break
		}
		select {
		case <-time.After(time.Duration(float64(wait) * (1 + 0.2*rand.Float64()))):
		case <-ctx.Done():
		}
		wait = time.Duration(float64(wait) * backoffGrow)
	}
	s.Lost(len(batch), err)
}

func (s *Sender) post(ctx context.Context, body []byte) error {
	if ctx.Err() != nil { // the server stops: once more, shortly
		ctx = context.Background()
		short, cancel := context.WithTimeout(ctx, lastMoment/2)
		defer cancel()
		return s.Post(short, body)
	}
	ctx, cancel := context.WithTimeout(ctx, postTimeout)
	defer cancel()
	return s.Post(ctx, body)
}

// close sends what waits, if that is soon done, and ends.
func (s *Sender) close() {
	if s == nil || s.stop == nil {
		return
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	<-s.done
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
