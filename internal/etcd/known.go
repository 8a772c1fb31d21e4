//go:build !noetcd

package etcd

// This file contains caches for the latest revision of etcd and for existing namespaces and
// definitions.

import (
	"sync"
	"time"
)

const dependenciesKnown = 1024 // maximum number of cached namespaces and definitions

// A sighting is the latest known state of etcd.
type healthState struct {
	mu        sync.Mutex // guards the fields below
	reachable bool
	newest    int64     // newest revision of etcd
	awaited   int64     // first known revision that the replica had not reached, or zero
	since     time.Time // when awaited was set
}

// note updates the sighting with the result of a read and the current revision of the replica.
func (s *healthState) note(newest int64, err error, replica int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reachable = err == nil
	if err != nil {
		return
	}
	s.newest = max(s.newest, newest)
	if s.awaited <= replica {
		s.awaited = 0
	}
	if s.awaited == 0 && replica < newest {
		s.awaited, s.since = newest, time.Now()
	}
}

// knownDependencies maps namespaces and definitions to a mod revision at which they existed and
// were not being deleted. The entries may be outdated.
type knownDependencies struct {
	mu sync.Mutex // guards at
	at map[string]int64
}

func (k *knownDependencies) get(key string) (at int64, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	at, ok = k.at[key]
	return at, ok
}

func (k *knownDependencies) put(key string, at int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.at == nil || len(k.at) == dependenciesKnown {
		k.at = map[string]int64{}
	}
	k.at[key] = at
}
