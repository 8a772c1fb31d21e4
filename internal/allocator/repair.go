package allocator

// This file repairs differences between claims and Services. They occur if a server stops between
// two writes, if an earlier version allocated addresses without claims, or if a user deletes an
// IPAddress. A Service always gets the claims for its values, even if they have another owner. A
// claim without a Service may belong to a create in progress. Therefore an IPAddress is only
// released if it is older than a minute, and a port is only released after several rounds. This is
// the same as in kube-apiserver.

import (
	"context"
	"errors"
	"maps"
	"math/big"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"apilet/internal/store"
)

const (
	repairInterval = 3 * time.Minute
	orphanGrace    = time.Minute // age of an IPAddress without a Service
	leakRounds     = 3           // the round in which a node port without a Service is released
	repairWorkers  = 16          // maximum number of concurrent writes
)

// Run repairs claims regularly until ctx ends. It must only run on one server at a time.
func (a *Allocator) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := a.repair(ctx); ctx.Err() == nil && a.Report != nil {
			a.Report(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(repairInterval):
		}
	}
}

// repair runs one round.
func (a *Allocator) repair(ctx context.Context) error {
	a.mu.Lock()
	err := a.catchUp()
	taken, claimed := maps.Clone(a.taken), maps.Clone(a.claimed)
	a.mu.Unlock()
	if err != nil {
		return err
	}
	return errors.Join(a.repairAddresses(ctx, taken, claimed, time.Now()), a.repairPorts(ctx, taken))
}

// repairAddresses deletes claims with a wrong owner, and creates missing claims.
func (a *Allocator) repairAddresses(ctx context.Context, taken map[string]string, claimed map[string]claim, now time.Time) error {
	type repair struct{ address, from, to string }
	var repairs []repair
	for address, c := range claimed {
		owner := taken[address]
		if c.managed && c.owner != "" && c.owner != owner && (owner != "" || now.Sub(c.created) > orphanGrace) {
			repairs = append(repairs, repair{address, c.owner, owner})
		}
	}
	for address, owner := range taken {
		_, err := netip.ParseAddr(address)
		if _, has := claimed[address]; err == nil && !has {
			repairs = append(repairs, repair{address, "", owner})
		}
	}
	return inParallel(ctx, repairs, func(r repair) error {
		if r.from != "" {
			if err := a.freeAddress(ctx, r.address, r.from); err != nil {
				return err
			}
		}
		if r.to == "" || !a.stillHas(r.to, r.address) {
			return nil
		}
		if err := a.claimAddress(ctx, r.address, r.to); !errors.Is(err, ErrAlreadyClaimed) {
			return err
		}
		return nil
	})
}

// stillHas reports whether the stored Service has the address or port.
func (a *Allocator) stillHas(service, text string) (has bool) {
	rec, err := a.st.Get(service)
	if err == nil {
		eachValue(rec.JSON, func(one string) { has = has || one == text })
	}
	return has
}

// repairPorts sets the bits of the ports of all Services. If a bit has had no Service for several
// rounds, it is cleared.
func (a *Allocator) repairPorts(ctx context.Context, taken map[string]string) error {
	if !a.Shared {
		return nil
	}
	used := new(big.Int)
	for text := range taken {
		if port, err := strconv.Atoi(text); err == nil && inNodePorts(int32(port)) {
			used.SetBit(used, port-firstNodePort, 1)
		}
	}
	a.mu.Lock()
	held := maps.Clone(a.pending)
	a.mu.Unlock()
	leaks := map[int32]int{}
	err := a.changePorts(ctx, func(bits *big.Int) (changed bool, err error) {
		clear(leaks)
		for i := range nodePortCount {
			port := int32(firstNodePort + i)
			switch set, is := bits.Bit(i) == 1, used.Bit(i) == 1; {
			case is && !set:
				bits.SetBit(bits, i, 1)
				changed = true
			case set && !is && !held[strconv.Itoa(int(port))]:
				if leaks[port] = a.leaks[port] + 1; leaks[port] >= leakRounds {
					delete(leaks, port)
					bits.SetBit(bits, i, 0)
					changed = true
				}
			}
		}
		return changed, nil
	})
	if err == nil {
		a.leaks = leaks
	}
	return err
}

// inParallel calls do for all elements concurrently until a call fails or ctx ends. It ignores
// store.ErrNotFound.
func inParallel[T any](ctx context.Context, all []T, do func(T) error) error {
	var mu sync.Mutex // guards failed
	var failed error
	next := make(chan T)
	var workers sync.WaitGroup
	for range min(repairWorkers, len(all)) {
		workers.Go(func() {
			for one := range next {
				if err := do(one); err != nil && !errors.Is(err, store.ErrNotFound) {
					mu.Lock()
					failed = errors.Join(failed, err)
					mu.Unlock()
				}
			}
		})
	}
	for _, one := range all {
		mu.Lock()
		stop := failed != nil || ctx.Err() != nil
		mu.Unlock()
		if stop {
			break
		}
		next <- one
	}
	close(next)
	workers.Wait()
	return failed
}
