package limits

// This file implements the memory pools. It also disconnects clients that are too slow.

import (
	"context"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"apilet/internal/request"
)

const (
	// Large is the size above which a response or a body must reserve memory before it is created.
	Large = 256 << 10

	poolBytes  = 64 << 20
	smallLimit = 96 << 20        // memory limit (GOMEMLIMIT) below which the pools are reduced
	smallShare = 8               // a reduced pool is the limit divided by this
	minRate    = 256 << 10       // minimum bytes per second while other requests wait
	grace      = 5 * time.Second // additional time for a connection
	// how often a waiting request checks for clients that read too slowly
	checkInterval = time.Second
)

// Memory contains the memory pools of a server. Every request has a Claim on them.
type Memory struct {
	timeout          time.Duration // how long a request waits for memory
	tenants, masters pool
}

// NewMemory creates the two pools. timeout is the maximum time that a request can wait for memory.
func NewMemory(timeout time.Duration) *Memory {
	// a negative limit only returns the current limit
	return newBytes(timeout, poolSize(debug.SetMemoryLimit(-1)))
}

// poolSize returns the size of each pool for a memory limit of Go's runtime. Decoding and encoding
// a large document temporarily takes several times its size, so a server with little memory handles
// fewer of them concurrently. A document that is larger than the pool is still accepted, one at a
// time.
func poolSize(limit int64) int64 {
	if limit < smallLimit {
		return max(Large, limit/smallShare)
	}
	return poolBytes
}

func newBytes(patience time.Duration, size int64) *Memory {
	return &Memory{timeout: patience, tenants: pool{size: size, share: size / ownerDivisor}, masters: pool{size: size, share: size}}
}

// A pool contains the bytes for tenants or for administrators.
type pool struct {
	size, share int64 // total size and the limit per owner

	mu        sync.Mutex // guards the following fields, and the fields of claims
	used      int64
	owners    map[string]*owner // owners that are holding or waiting for bytes
	queue     []*owner          // owners that are waiting, in order
	claims    map[*Claim]struct{}
	exceeded  *Claim // claim that was granted beyond the limit, or nil
	lastCheck time.Time
}

type owner struct {
	name    string
	held    int64
	waiting []*waiter // waiters that already hold bytes come first
}

type waiter struct {
	claim   *Claim
	n       int64 // total number of bytes of the claim after the grant
	granted chan struct{}
	gone    bool
}

// A Claim represents the bytes that are held by a request. There is no limit if Memory is nil. The
// Claim is embedded in a response writer to avoid an allocation.
type Claim struct {
	Memory *Memory

	pool  *pool  // set by the first reservation
	owner string // set by the first reservation
	n     int64
	since time.Time
	cut   func() // closes the connection, or nil if the request does not wait for its client
}

// A claimant is a response writer that contains the Claim.
type claimHolder interface{ Claim() *Claim }

// A lender is a response writer that can lend its resources while the request waits.
type lender interface{ WhileLent(wait func()) }

// claimOf searches a chain of response writers in the same way as http.ResponseController.
func claimOf(w http.ResponseWriter) (c *Claim, lent func(wait func())) {
	lent = func(wait func()) { wait() }
	for {
		if l, ok := w.(lender); ok {
			lent = l.WhileLent
		}
		if holder, ok := w.(claimHolder); ok {
			return holder.Claim(), lent
		}
		wrapper, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return &Claim{}, lent
		}
		w = wrapper.Unwrap()
	}
}

// TryReserve reserves n bytes in total if they are available immediately, and reports whether it
// did. Sizes that are not Large always fit.
func TryReserve(ctx context.Context, w http.ResponseWriter, n int) bool {
	if n <= Large {
		return true
	}
	c, _ := claimOf(w)
	return !c.join(ctx, w) || c.try(int64(n))
}

// Reserve reserves n bytes in total, and waits for them if necessary. The error is a Status that
// asks the client to retry, or the error of ctx.
func Reserve(ctx context.Context, w http.ResponseWriter, n int) (err error) {
	if TryReserve(ctx, w, n) {
		return nil
	}
	c, lent := claimOf(w)
	lent(func() { err = c.wait(ctx, int64(n)) })
	return err
}

// ForceReserve reserves n bytes in total even if they are not available. It is used for responses
// that can no longer be rejected.
func ForceReserve(ctx context.Context, w http.ResponseWriter, n int) {
	if n <= Large {
		return
	}
	if c, _ := claimOf(w); c.join(ctx, w) {
		c.pool.mu.Lock()
		defer c.pool.mu.Unlock()
		c.pool.grantLocked(c, min(int64(n), c.pool.share))
	}
}

// MarkBodyReceived records that the body has been received. The client is not considered slow until
// the next reservation.
func MarkBodyReceived(w http.ResponseWriter) {
	if c, _ := claimOf(w); c.pool != nil {
		c.pool.mu.Lock()
		defer c.pool.mu.Unlock()
		c.cut = nil
	}
}

// Release releases the bytes of a request.
func Release(w http.ResponseWriter) {
	c, _ := claimOf(w)
	c.Release()
}

// Release releases the bytes of the claim. It may be called at any time.
func (c *Claim) Release() {
	if c.pool == nil || c.n == 0 {
		return
	}
	p := c.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.ownerLocked(c.owner)
	p.used -= c.n
	o.held -= c.n
	c.n, c.cut = 0, nil
	delete(p.claims, c)
	p.forgetLocked(o)
	if p.exceeded == c {
		p.exceeded = nil
	}
	p.admitLocked()
}

// join selects the pool and sets the function that closes the connection. It returns false if
// there is no limit, and the claim must not be used then.
func (c *Claim) join(ctx context.Context, w http.ResponseWriter) bool {
	if c.Memory == nil {
		return false
	}
	if c.pool == nil {
		c.pool = &c.Memory.masters
		if rec := request.From(ctx); rec != nil && !isMaster(rec.User) {
			c.pool, c.owner = &c.Memory.tenants, ownerOf(rec.User)
		}
	}
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	control := http.NewResponseController(w)
	c.since, c.cut = time.Now(), func() {
		past := time.Unix(1, 0)
		_ = control.SetReadDeadline(past)
		_ = control.SetWriteDeadline(past) // connections without deadlines end by themselves
	}
	return true
}

func (p *pool) ownerLocked(name string) *owner {
	o := p.owners[name]
	if o == nil {
		if p.owners == nil {
			p.owners, p.claims = map[string]*owner{}, map[*Claim]struct{}{}
		}
		o = &owner{name: name}
		p.owners[name] = o
	}
	return o
}

// forgetLocked removes the owner if it does not hold any bytes and is not waiting for them.
func (p *pool) forgetLocked(o *owner) {
	if o.held == 0 && len(o.waiting) == 0 {
		delete(p.owners, o.name)
	}
}

// try reserves bytes if they are available and no other request waits.
func (c *Claim) try(n int64) bool {
	p := c.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	n = min(n, p.share)
	if n <= c.n {
		return true
	}
	if c.n == 0 && len(p.queue) > 0 || !p.fitsLocked(c, n) {
		return false
	}
	p.grantLocked(c, n)
	return true
}

// fitsLocked reports whether a claim may have n bytes in total.
func (p *pool) fitsLocked(c *Claim, n int64) bool {
	more, held := n-c.n, int64(0)
	if o := p.owners[c.owner]; o != nil {
		held = o.held
	}
	return p.used+more <= p.size && held+more <= p.share || c.n > 0 && p.exceeded == nil
}

func (p *pool) grantLocked(c *Claim, n int64) {
	o, more := p.ownerLocked(c.owner), n-c.n
	if more <= 0 {
		return
	}
	if p.used+more > p.size || o.held+more > p.share {
		p.exceeded = c
	}
	p.used += more
	o.held += more
	c.n, c.since = n, time.Now()
	p.claims[c] = struct{}{}
}

// wait queues the claim until it is granted, patience is over or ctx is done.
func (c *Claim) wait(ctx context.Context, n int64) error {
	p := c.pool
	w := &waiter{claim: c, n: min(n, p.share), granted: make(chan struct{})}
	p.join(w)
	timer, ticker := time.NewTimer(c.Memory.timeout), time.NewTicker(checkInterval)
	defer timer.Stop()
	defer ticker.Stop()
	for {
		select {
		case <-w.granted:
			return nil
		case <-ticker.C:
			p.cutSlow(time.Now())
			continue
		case <-timer.C:
		case <-ctx.Done():
		}
		if p.leave(w) {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		return apierrors.NewTooManyRequests("the server has no room for another answer of this size at the moment, please try again later", 1)
	}
}

func (p *pool) join(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.ownerLocked(w.claim.owner)
	if len(o.waiting) == 0 {
		p.queue = append(p.queue, o)
	}
	at := len(o.waiting)
	if w.claim.n > 0 {
		at = slices.IndexFunc(o.waiting, func(other *waiter) bool { return other.claim.n == 0 })
		if at < 0 {
			at = len(o.waiting)
		}
	}
	o.waiting = slices.Insert(o.waiting, at, w)
	p.admitLocked()
}

// leave removes a waiter from the queue, unless it has been granted in the meantime.
func (p *pool) leave(w *waiter) (granted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-w.granted:
		return true
	default:
	}
	w.gone = true
	p.admitLocked() // it may have blocked other waiters
	return false
}

// admitLocked grants the requests that fit, in turns between owners. If there is not enough memory
// for a request, it is not overtaken by smaller requests.
func (p *pool) admitLocked() {
	full := false
	for i := 0; i < len(p.queue); {
		o := p.queue[i]
		for len(o.waiting) > 0 && o.waiting[0].gone {
			o.waiting = o.waiting[1:]
		}
		if len(o.waiting) == 0 {
			p.queue = slices.Delete(p.queue, i, i+1)
			p.forgetLocked(o)
			continue
		}
		w := o.waiting[0]
		grows, fits := w.claim.n > 0, p.fitsLocked(w.claim, w.n)
		if !fits || full && !grows {
			full = full || p.used+w.n-w.claim.n > p.size
			i++
			continue
		}
		p.grantLocked(w.claim, w.n)
		close(w.granted)
		o.waiting = o.waiting[1:]
		p.queue = append(slices.Delete(p.queue, i, i+1), o)
	}
}

// cutSlow closes the connections of clients that are reading too slowly. A claim in the pool
// belongs to a request that has not ended, so the connection is still its own.
func (p *pool) cutSlow(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.lastCheck) < checkInterval/2 {
		return
	}
	p.lastCheck = now
	for c := range p.claims {
		allowed := grace + time.Duration(float64(c.n)/minRate*float64(time.Second))
		if c.cut != nil && now.Sub(c.since) > allowed {
			c.cut()
			c.cut = nil
		}
	}
}
