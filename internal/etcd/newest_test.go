//go:build !noetcd

package etcd

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A simulatedLog serves reads one after another, as etcd does when its processors have no more to give.
type simulatedLog struct {
	service time.Duration // of one read

	mu      sync.Mutex // guards what follows
	rev     int64
	free    time.Time // when the reads that wait are served
	waiting int
	most    int // that waited at once
	reads   int
}

func (l *simulatedLog) read(context.Context) (int64, error) {
	l.mu.Lock()
	l.reads++
	l.waiting++
	l.most = max(l.most, l.waiting)
	if now := time.Now(); l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(l.service)
	served := time.Until(l.free)
	l.mu.Unlock()
	time.Sleep(served)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting--
	return l.rev, nil
}

func (l *simulatedLog) write() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rev++
}

func (l *simulatedLog) newest() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rev
}

// TestHundredServersAskOneLog: with a hundred servers of twenty clients, all of which read "most recent" as fast as they can, etcd has one read of
// each server's at a time, nobody waits for more than two rounds of these, and every answer is as new as its question.
func TestHundredServersAskOneLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const servers, clients, asks = 100, 20, 20
		log := &simulatedLog{service: 60 * time.Microsecond}
		writing, stop := context.WithCancel(t.Context())
		var writer sync.WaitGroup
		writer.Go(func() {
			for writing.Err() == nil {
				log.write()
				time.Sleep(time.Millisecond)
			}
		})
		var slowest atomic.Int64
		var asking sync.WaitGroup
		for range servers {
			shared := &newestReads{read: log.read}
			for range clients {
				asking.Go(func() {
					for range asks {
						known, begun := log.newest(), time.Now()
						rev, err := shared.get(t.Context())
						if err != nil || rev < known {
							t.Errorf("got revision %d, %v; the log had reached %d before the question", rev, err, known)
						}
						raise(&slowest, int64(time.Since(begun)))
					}
				})
			}
		}
		asking.Wait()
		stop()
		writer.Wait()
		if log.most > servers {
			t.Errorf("etcd had %d reads at once, from %d servers", log.most, servers)
		}
		if all := servers * clients * asks; log.reads > all/5 {
			t.Errorf("%d questions came to %d reads", all, log.reads)
		}
		if most := 2*servers*log.service + log.service; time.Duration(slowest.Load()) > most {
			t.Errorf("somebody waited for %v; two rounds are %v", time.Duration(slowest.Load()), most)
		}
	})
}

// A read that fails fails for those who wait for it, and for nobody after.
func TestNewestReadFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("no leader")
		down := true
		shared := &newestReads{read: func(context.Context) (int64, error) {
			time.Sleep(time.Second)
			if down {
				return 0, broken
			}
			return 7, nil
		}}
		var asking sync.WaitGroup
		for range 3 {
			asking.Go(func() {
				if _, err := shared.get(t.Context()); !errors.Is(err, broken) {
					t.Errorf("got %v", err)
				}
			})
		}
		asking.Wait()
		down = false
		if rev, err := shared.get(t.Context()); rev != 7 || err != nil {
			t.Errorf("got %d, %v", rev, err)
		}
		hasty, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := shared.get(hasty); err == nil {
			t.Error("who has no time gets an answer after it")
		}
		synctest.Wait()
		time.Sleep(2 * time.Second) // the read that was begun ends
	})
}
