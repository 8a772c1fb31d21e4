package main

import (
	"errors"
	"sync"
	"time"
)

const (
	leaseFor   = 500 * time.Millisecond
	renewEvery = 100 * time.Millisecond
	microTime  = "2006-01-02T15:04:05.000000Z07:00"
)

var (
	errNotLeader = errors.New("another one leads")
	errAgain     = errors.New("once more")
)

// A lease elects the leader among several processes.
type lease struct {
	zoo *zoo

	mu      sync.Mutex // guards the fields below
	renewed time.Time  // time of the last successful renewal
}

// valid reports whether this process is the leader according to its own clock.
func (l *lease) valid() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.renewed) < leaseFor
}

// run acquires and renews the lease.
func (l *lease) run() {
	for ; ; time.Sleep(renewEvery) {
		asked, led := time.Now(), l.valid()
		if l.renew(asked) == nil {
			l.mu.Lock()
			l.renewed = asked
			l.mu.Unlock()
			if !led {
				l.zoo.caches[nests].tell()
			}
		}
	}
}

func (l *lease) renew(now time.Time) error {
	mine := &object{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Metadata: metadata{Name: "zoo", Namespace: "default"},
		Spec: map[string]any{"holderIdentity": l.zoo.id, "leaseDurationSeconds": 1, "renewTime": now.UTC().Format(microTime)}}
	have, err := l.zoo.get(leases, "default", "zoo")
	if is(err, 404) {
		_, err := l.zoo.create(leases, mine)
		return err
	}
	if err != nil {
		return err
	}
	renewed, _ := have.Spec["renewTime"].(string)
	at, _ := time.Parse(microTime, renewed)
	if have.Spec["holderIdentity"] != l.zoo.id && now.Sub(at) < leaseFor+renewEvery {
		return errNotLeader
	}
	mine.Metadata.ResourceVersion = have.Metadata.ResourceVersion
	return l.zoo.update(leases, mine)
}
