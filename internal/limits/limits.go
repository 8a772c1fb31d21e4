// Package limits limits the number of concurrent requests of some kinds, and the memory that is
// used by large requests and responses.
//
//	release, ok := places.TryAcquire(user)   // for example one of 256 followers of the history; at most a quarter of them for one owner
//	leave, err := places.Acquire(user)       // the same, with a 429 for the client as the error
//	err := limits.Reserve(ctx, w, size)      // memory for a response of this size, before it is created; waits, or returns a 429
//	limits.Release(w)                        // also called when the request ends
//
// The bytes limit the memory of large responses. A request that writes to a slow client lends its
// seat of flow control to other requests, so seats do not limit the number of such responses, and
// each response occupies memory. The number of connections does not limit it either, because a
// watch may last for an hour. Therefore the total size of all responses and request bodies that are
// [Large] is limited:
//
//	            64 MiB for tenants                    64 MiB for administrators
//	alice  ████████▒▒▒▒        at most a quarter      ███
//	bob    ███
//
// A request that gets no memory waits without holding any. The data that was read to determine the
// size is dropped, and read again later. The request lends its seat meanwhile. Owners take turns.
// Requests that are not Large do not reserve memory and have no overhead.
//
// An owner is a user. All service accounts in a namespace are treated as one owner, because a user
// with permission to create one of them can also create a hundred. There is a separate pool for
// administrators (system:masters), so they cannot be blocked by tenants.
//
// Memory is released when responses have been sent. If a client does not read at all, its
// connection is closed at the end of the request's timeout. While other requests wait, a client
// that reads less than slowest bytes per second is disconnected earlier.
//
// Some responses grow after they have started, for example a list that contains a large object.
// They have priority over requests that do not hold any memory. One such response at a time may
// exceed the pool, because otherwise two responses could wait for each other. If a response is
// larger than a share, it is counted as one share. The total memory is therefore limited by the
// pool, one response, and the sizes by which single responses exceed their share.
package limits

import (
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"apilet/internal/request"
)

// ownerDivisor is the divisor for the limit per owner, which is a quarter of the pool.
const ownerDivisor = 4

// ownerOf returns the owner of a user's requests.
func ownerOf(u request.User) string {
	if namespace, _, ok := request.SplitServiceAccount(u.Name); ok {
		return request.ServiceAccountPrefix + namespace
	}
	return u.Name
}

func isMaster(u request.User) bool { return slices.Contains(u.Groups, request.GroupMasters) }

// Slots limits the number of concurrent requests of some kind. Each owner is limited to a quarter
// of the places. Administrators have the same number of separate places without this limit.
type Slots struct {
	all       int
	fullError string // error message if no place is free

	mu      sync.Mutex // guards the following fields
	taken   int
	masters int
	each    map[string]int
}

// NewSlots returns the given number of places.
func NewSlots(all int) *Slots {
	return &Slots{all: all, fullError: "too many requests of this kind at once, by this user or by all", each: map[string]int{}}
}

// maxUpgraded bounds connections that were upgraded to another protocol (WebSocket, SPDY). Each
// connection uses two file descriptors and about 100 KiB of memory. It does not hold a seat.
const maxUpgraded = 512

// NewUpgradeSlots returns the places for upgraded connections. The same pool should be used for all
// upgraded connections of a server.
func NewUpgradeSlots() *Slots {
	p := NewSlots(maxUpgraded)
	p.fullError = "too many upgraded connections (exec, attach, port-forward, WebSocket) are open, by this user or by all; close some and try again"
	return p
}

// TryAcquire takes a place until release is called, which must happen once. ok reports whether a
// place was free for this user.
func (p *Slots) TryAcquire(u request.User) (release func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if isMaster(u) {
		if p.masters == p.all {
			return nil, false
		}
		p.masters++
		return func() { p.grant(&p.masters) }, true
	}
	owner := ownerOf(u)
	if p.taken == p.all || p.each[owner] >= max(1, p.all/ownerDivisor) {
		return nil, false
	}
	p.taken++
	p.each[owner]++
	return func() {
		p.grant(&p.taken)
		p.release(owner)
	}, true
}

// Acquire is like TryAcquire, but returns an error. The status code of the error is 429.
func (p *Slots) Acquire(u request.User) (leave func(), err error) {
	leave, ok := p.TryAcquire(u)
	if !ok {
		return nil, apierrors.NewTooManyRequests(p.fullError, 1)
	}
	return leave, nil
}

func (p *Slots) grant(n *int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*n--
}

func (p *Slots) release(owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.each[owner]--; p.each[owner] == 0 {
		delete(p.each, owner)
	}
}
