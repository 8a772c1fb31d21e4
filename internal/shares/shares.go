// Package shares divides what a server has once among those who ask for it at the same time: places, and bytes of memory.
//
//	release, ok := places.Take(user)         // one of 256 followers of the history, say; a quarter of them at most for one owner
//	leave, err := places.Enter(user)         // the same, with a 429 for the client as the error
//	err := shares.Hold(ctx, w, size)         // room for an answer of so many bytes, before it is made; waits, or is a 429
//	shares.Release(w)                        // also by itself, when the request ends
//
// Large answers are what this is for. A request that writes to a client which does not read lends its seat of flow control to others, as it
// should; so seats say nothing of how many such answers there are, and each has its bytes in memory. Nor does the number of connections bound it:
// a watch lasts for an hour. So there is a number of bytes for all answers that are [Large], and bodies of requests as well:
//
//	            64 MiB for tenants                    64 MiB for administrators
//	alice  ████████▒▒▒▒        a quarter at most      ███
//	bob    ███
//
// Who finds no room waits, with nothing in hand: what was read to learn the size is dropped, and read again when there is room. Meanwhile the
// seat is lent. Owners take turns. What is not Large asks nobody, and pays nothing.
//
// An owner is a user; service accounts of one namespace are one owner, since who may make one of them may make a hundred. Administrators
// (system:masters) have a pool of their own, so that no tenant is ever in their way.
//
// Room comes back when answers are out. A client that reads nothing is cut by the time of its request; while somebody waits, one that takes less
// than slowest bytes a second is cut before that.
//
// What grows after it has begun, as a list that meets a large object, goes before those who hold nothing, and one such answer at a time may
// exceed the pool: or two that hold something could wait for each other. What is larger than a share counts as one share. So what is held in all
// is at most a pool, one answer, and what single answers exceed their share by.
package shares

import (
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"apilet/internal/request"
)

// part is how much of a pool one owner may have: a quarter.
const part = 4

// ownerOf is whose share a user draws on.
func ownerOf(u request.User) string {
	if namespace, _, ok := request.SplitServiceAccount(u.Name); ok {
		return request.ServiceAccountPrefix + namespace
	}
	return u.Name
}

func isMaster(u request.User) bool { return slices.Contains(u.Groups, request.GroupMasters) }

// Places are a number of equal places. One owner has at most a quarter of them; administrators have as many of their own, without that limit.
type Places struct {
	all  int
	full string // the error when no place is left

	mu      sync.Mutex // guards what follows
	taken   int
	masters int
	each    map[string]int
}

// NewPlaces makes so many places.
func NewPlaces(all int) *Places {
	return &Places{all: all, full: "too many requests of this kind at once, by this user or by all", each: map[string]int{}}
}

// maxUpgraded bounds connections that were upgraded to another protocol (WebSocket, SPDY). Each has two descriptors and
// about 100 KiB of buffers, and keeps no seat of flow control.
const maxUpgraded = 512

// NewUpgrades returns the places for upgraded connections. A server has one such pool for everything that upgrades
// connections.
func NewUpgrades() *Places {
	p := NewPlaces(maxUpgraded)
	p.full = "too many upgraded connections (exec, attach, port-forward, WebSocket) are open, by this user or by all; close some and try again"
	return p
}

// Take takes a place until release is called, once; ok is false when there is none for this user.
func (p *Places) Take(u request.User) (release func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if isMaster(u) {
		if p.masters == p.all {
			return nil, false
		}
		p.masters++
		return func() { p.give(&p.masters) }, true
	}
	owner := ownerOf(u)
	if p.taken == p.all || p.each[owner] >= max(1, p.all/part) {
		return nil, false
	}
	p.taken++
	p.each[owner]++
	return func() {
		p.give(&p.taken)
		p.leave(owner)
	}, true
}

// Enter takes a place until leave is called, once. If no place is left for the user, the error is a 429 for the client.
func (p *Places) Enter(u request.User) (leave func(), err error) {
	leave, ok := p.Take(u)
	if !ok {
		return nil, apierrors.NewTooManyRequests(p.full, 1)
	}
	return leave, nil
}

func (p *Places) give(n *int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*n--
}

func (p *Places) leave(owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.each[owner]--; p.each[owner] == 0 {
		delete(p.each, owner)
	}
}
