//go:build !noetcd

package etcd

// This file is what is remembered of etcd between two questions: the newest that was seen of it, and which namespaces and definitions are there.

import (
	"sync"
	"time"
)

const dependenciesKnown = 1024 // namespaces and definitions

// A sighting is the newest that was seen of etcd.
type sighting struct {
	mu        sync.Mutex // guards what follows
	reachable bool
	newest    int64     // revision of etcd
	awaited   int64     // the first revision seen that the replica did not have; 0: none
	since     time.Time // it was seen
}

// note keeps what a read has found, while the replica was at a revision.
func (s *sighting) note(newest int64, err error, replica int64) {
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

// knownDependencies are namespaces and definitions, each with a mod revision at which it was there and not going away. They may be old.
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
