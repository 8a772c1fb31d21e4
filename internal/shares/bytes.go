package shares

// This file has the bytes: what a request holds, who waits for some, and who is cut.

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
	// Large is the number of bytes above which an answer, or a body, asks for room before it is made.
	Large = 256 << 10

	poolBytes  = 64 << 20
	smallLimit = 96 << 20        // of GOMEMLIMIT: below it a pool is
	smallShare = 8               // of the limit, one part in so many
	slowest    = 256 << 10       // bytes a second, while others wait
	grace      = 5 * time.Second // that a connection may take besides
	lookEvery  = time.Second     // who waits looks for those who are too slow so often
)

// Bytes are those of a server. Every request has a Claim on them.
type Bytes struct {
	patience         time.Duration // with room that does not come
	tenants, masters pool
}

// NewBytes makes the two pools. patience is for how long a request waits for room before it is sent away.
func NewBytes(patience time.Duration) *Bytes {
	return newBytes(patience, poolSize(debug.SetMemoryLimit(-1))) // which sets nothing
}

// poolSize returns the size of each pool for a memory limit of Go's runtime. While a large document is decoded and written it takes several times its size,
// so a server with little memory takes fewer of them at once. One that is larger than the pool is still let in, alone.
func poolSize(limit int64) int64 {
	if limit < smallLimit {
		return max(Large, limit/smallShare)
	}
	return poolBytes
}

func newBytes(patience time.Duration, size int64) *Bytes {
	return &Bytes{patience: patience, tenants: pool{size: size, share: size / part}, masters: pool{size: size, share: size}}
}

// A pool is the bytes of tenants, or of administrators.
type pool struct {
	size, share int64 // of all, and of one owner

	mu       sync.Mutex // guards what follows, and the fields of claims
	used     int64
	owners   map[string]*owner // that hold or wait for something
	line     []*owner          // that wait, in the order of their turns
	claims   map[*Claim]struct{}
	exceeded *Claim // that was let in without room; nil: none
	looked   time.Time
}

type owner struct {
	name    string
	held    int64
	waiting []*waiter // those that hold something already come first
}

type waiter struct {
	claim   *Claim
	n       int64 // that the claim is to have
	granted chan struct{}
	gone    bool
}

// A Claim is what one request holds. The zero value, without Bytes, is given all that it asks for. A response writer of the chain has it; so it
// needs no memory of its own.
type Claim struct {
	Bytes *Bytes

	pool  *pool  // from the first time on that it asks for something
	owner string // likewise
	n     int64
	since time.Time
	cut   func() // ends the connection; nil: it is not the client who is waited for
}

// A claimant is the writer that has the Claim.
type claimant interface{ Claim() *Claim }

// A lender is a writer that knows what others can use while a request waits.
type lender interface{ WhileLent(wait func()) }

// claimOf looks through a chain of writers, as http.ResponseController does.
func claimOf(w http.ResponseWriter) (c *Claim, lent func(wait func())) {
	lent = func(wait func()) { wait() }
	for {
		if l, ok := w.(lender); ok {
			lent = l.WhileLent
		}
		if holder, ok := w.(claimant); ok {
			return holder.Claim(), lent
		}
		wrapper, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return &Claim{}, lent
		}
		w = wrapper.Unwrap()
	}
}

// Fits takes room for n bytes altogether if there is some now. What is not Large fits.
func Fits(ctx context.Context, w http.ResponseWriter, n int) bool {
	if n <= Large {
		return true
	}
	c, _ := claimOf(w)
	return !c.enter(ctx, w) || c.try(int64(n))
}

// Hold takes room for n bytes altogether, and waits for it. err is the Status of a request that is to come again, or that of ctx.
func Hold(ctx context.Context, w http.ResponseWriter, n int) (err error) {
	if Fits(ctx, w, n) {
		return nil
	}
	c, lent := claimOf(w)
	lent(func() { err = c.wait(ctx, int64(n)) })
	return err
}

// Insist takes room for n bytes altogether whether there is some or not: for what cannot be refused any more.
func Insist(ctx context.Context, w http.ResponseWriter, n int) {
	if n <= Large {
		return
	}
	if c, _ := claimOf(w); c.enter(ctx, w) {
		c.pool.mu.Lock()
		defer c.pool.mu.Unlock()
		c.pool.grantLocked(c, min(int64(n), c.pool.share))
	}
}

// Settle says that the body has come: from here on the client is not what the request waits for, until it holds more.
func Settle(w http.ResponseWriter) {
	if c, _ := claimOf(w); c.pool != nil {
		c.pool.mu.Lock()
		defer c.pool.mu.Unlock()
		c.cut = nil
	}
}

// Release gives back what a request holds.
func Release(w http.ResponseWriter) {
	c, _ := claimOf(w)
	c.Release()
}

// Release gives back what the claim holds. It may be called at any time.
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

// enter finds the pool and names what cuts the connection. false: there is no bound, and the claim is not to be looked at.
func (c *Claim) enter(ctx context.Context, w http.ResponseWriter) bool {
	if c.Bytes == nil {
		return false
	}
	if c.pool == nil {
		c.pool = &c.Bytes.masters
		if rec := request.From(ctx); rec != nil && !isMaster(rec.User) {
			c.pool, c.owner = &c.Bytes.tenants, ownerOf(rec.User)
		}
	}
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	control := http.NewResponseController(w)
	c.since, c.cut = time.Now(), func() {
		past := time.Unix(1, 0)
		_ = control.SetReadDeadline(past)
		_ = control.SetWriteDeadline(past) // what cannot be cut ends by itself
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

// forgetLocked removes an owner who neither holds nor waits for anything.
func (p *pool) forgetLocked(o *owner) {
	if o.held == 0 && len(o.waiting) == 0 {
		delete(p.owners, o.name)
	}
}

// try takes room if it is there and nobody waits.
func (c *Claim) try(n int64) bool {
	p := c.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	n = min(n, p.share)
	if n <= c.n {
		return true
	}
	if c.n == 0 && len(p.line) > 0 || !p.fitsLocked(c, n) {
		return false
	}
	p.grantLocked(c, n)
	return true
}

// fitsLocked tells whether a claim may have n bytes altogether.
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

// wait stands in line.
func (c *Claim) wait(ctx context.Context, n int64) error {
	p := c.pool
	w := &waiter{claim: c, n: min(n, p.share), granted: make(chan struct{})}
	p.join(w)
	timer, ticker := time.NewTimer(c.Bytes.patience), time.NewTicker(lookEvery)
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
		p.line = append(p.line, o)
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

// leave takes a waiter out of the line, unless its turn has come in between.
func (p *pool) leave(w *waiter) (granted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-w.granted:
		return true
	default:
	}
	w.gone = true
	p.admitLocked() // it may have been one that others stood behind
	return false
}

// admitLocked lets in whoever fits, one of each owner after the other. Those for whom the pool has too little are not overtaken by smaller ones.
func (p *pool) admitLocked() {
	full := false
	for i := 0; i < len(p.line); {
		o := p.line[i]
		for len(o.waiting) > 0 && o.waiting[0].gone {
			o.waiting = o.waiting[1:]
		}
		if len(o.waiting) == 0 {
			p.line = slices.Delete(p.line, i, i+1)
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
		p.line = append(slices.Delete(p.line, i, i+1), o)
	}
}

// cutSlow ends the connections of those who have held what they hold for longer than it takes to read it. A claim that is still in the pool is of a
// request that has not ended; so its connection is still its own.
func (p *pool) cutSlow(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.looked) < lookEvery/2 {
		return
	}
	p.looked = now
	for c := range p.claims {
		allowed := grace + time.Duration(float64(c.n)/slowest*float64(time.Second))
		if c.cut != nil && now.Sub(c.since) > allowed {
			c.cut()
			c.cut = nil
		}
	}
}
