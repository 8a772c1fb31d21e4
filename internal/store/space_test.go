package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"apilet/internal/apitest"
)

// A smallStore is a store with a quota of 4 MiB. It is compacted once a day or if the quota has
// been exceeded.
type smallStore struct {
	*Store
	t      *testing.T
	rounds chan Compaction // the first compaction is part of the start
}

func openSmallStore(t *testing.T, yields bool) *smallStore {
	t.Helper()
	st, err := Open(filepath.Join(t.TempDir(), "a.db"), Options{Quota: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	s := &smallStore{Store: st, t: t, rounds: make(chan Compaction, 100)}
	up := mustUpkeep(t, st)
	up.CompactWhenFull = yields
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		up.Run(ctx, 24*time.Hour, 24*time.Hour, func(done Compaction, err error) {
			if err != nil && ctx.Err() == nil {
				t.Errorf("compaction: %v", err)
			}
			select {
			case s.rounds <- done:
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() { cancel(); <-ended; st.Close() })
	if done := s.round(); done.ForSpace {
		t.Errorf("the first round: %+v", done)
	}
	return s
}

// round returns the next compaction.
func (s *smallStore) round() Compaction {
	s.t.Helper()
	select {
	case done := <-s.rounds:
		return done
	case <-apitest.Timeout(s.t):
		s.t.Fatal("nothing is compacted")
		return Compaction{}
	}
}

// update writes the same object until the quota is exceeded. It returns the newest revision.
func (s *smallStore) update(rev int64) int64 {
	s.t.Helper()
	payload := strings.Repeat("x", 100_000)
	for range 100 {
		rec, err := storeWrite(s.Store, OpUpdate, "//pods/x/updated", rev, payload)
		if errors.Is(err, ErrQuota) {
			return rev
		}
		if err != nil {
			s.t.Fatal(err)
		}
		rev = rec.Rev
	}
	s.t.Fatal("there is no quota")
	return 0
}

// TestRefusedWriteCompactsImmediately fills the file with history. The rejected write must start a
// compaction, and later writes must succeed.
func TestRefusedWriteCompactsImmediately(t *testing.T) {
	t.Parallel()
	s := openSmallStore(t, true)
	rev := s.update(mustWrite(t, s.Store, OpCreate, "//pods/x/updated", 0, "").Rev)
	if done := s.round(); !done.ForSpace || done.Deleted == 0 || done.Rev != rev {
		t.Errorf("compacted to %d of %d: %+v", done.Rev, rev, done)
	}
	if err := s.WithinQuota(); err != nil {
		t.Error(err)
	}
	mustWrite(t, s.Store, OpUpdate, "//pods/x/updated", rev, "short")
}

// TestDeleteAboveTheQuotaMakesRoom fills the file with objects. A delete must make room for a
// create without an explicit compaction.
func TestDeleteAboveTheQuotaMakesRoom(t *testing.T) {
	t.Parallel()
	s := openSmallStore(t, true)
	large, first := strings.Repeat("x", 500_000), int64(0)
	for i := 0; ; i++ {
		rec, err := storeWrite(s.Store, OpCreate, fmt.Sprintf("//pods/x/%d", i), 0, large)
		if errors.Is(err, ErrQuota) {
			break
		}
		if i == 0 {
			first = rec.Rev
		}
		if err != nil || i == 20 {
			t.Fatalf("object %d: %v", i, err)
		}
	}
	for range 10 { // nothing can be compacted, so all writes fail
		if _, err := storeWrite(s.Store, OpCreate, "//pods/x/more", 0, ""); !errors.Is(err, ErrQuota) {
			t.Fatalf("a create above the quota: %v", err)
		}
	}
	mustWrite(t, s.Store, OpDelete, "//pods/x/0", first, "")
	apitest.WaitFor(t, "room for a create", func() bool {
		for len(s.rounds) > 0 {
			<-s.rounds
		}
		return s.WithinQuota() == nil
	})
	mustWrite(t, s.Store, OpCreate, "//pods/x/more", 0, "")
}

// TestRefusedWriteLeavesTheHistoryThatWasAskedFor checks that the compaction does not delete
// history within the retention period.
func TestRefusedWriteLeavesTheHistoryThatWasAskedFor(t *testing.T) {
	t.Parallel()
	s := openSmallStore(t, false)
	s.update(mustWrite(t, s.Store, OpCreate, "//pods/x/updated", 0, "").Rev)
	if done := s.round(); !done.ForSpace || done.Deleted != 0 || done.Rev != 0 {
		t.Errorf("%+v", done)
	}
	if s.Compacted() != 0 || s.WithinQuota() == nil {
		t.Errorf("compacted to %d, %v", s.Compacted(), s.WithinQuota())
	}
}
