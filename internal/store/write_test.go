package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"apilet/internal/store/boltfile"
)

// TestWaitsInVainGetShort checks that the time a commit waits is reduced if no writes arrive while
// it is waiting.
func TestWaitsInVainGetShort(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(*testing.T) {
		const took = time.Millisecond
		p := batchPacer{size: 3, waiting: 2, ended: time.Now(), took: took}
		want := func(patience time.Duration) {
			t.Helper()
			if expected, got := p.next(); expected != 5 || got != patience {
				t.Fatalf("waits for %d changes for %v, want 5 for %v", expected, got, patience)
			}
		}
		for _, short := range []int{1, 3, 7, 15, 31, 63, 63} {
			want(took)
			p.observe(2, 0)
			for range short {
				want(took / 3)
				p.observe(2, 0)
			}
		}
		want(took)
		p.observe(2, 1) // half of the waits are worth it
		want(took)
		p.observe(3, 1)
		want(took / 3) // as at the start
		p.observe(3, 0)
		want(took)

		p.took = time.Minute
		want(maxCommitDelay)
		time.Sleep(maxCommitDelay) // no write arrived in this time
		if expected, patience := p.next(); expected != 0 || patience != 0 {
			t.Errorf("waits for %d changes for %v after all that", expected, patience)
		}
	})
}

// TestCommitWaitsForThoseWhoComeBack checks that a commit waits for the clients of the previous
// commit. It starts when all of these clients have sent another write, or when the time limit is
// reached.
func TestCommitWaitsForThoseWhoComeBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st, err := Open(filepath.Join(t.TempDir(), "a.db"), Options{Fatal: func(err error) { t.Errorf("fatal: %v", err) }})
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		// the clock of a synctest bubble does not advance during disk writes
		const held, late = time.Millisecond, 300 * time.Microsecond
		create := func(name, parent string) error {
			json, at := storeDoc(name)
			_, err := st.Commit(t.Context(), Change{Op: OpCreate, Key: "//pods/x/" + name, Parent: parent, JSON: json, RevAt: at})
			return err
		}
		for turn, comes := range []bool{true, false} {
			name := func(s string) string { return fmt.Sprint(s, turn) }
			var wg sync.WaitGroup
			// a long write, to make the next commit wait, and two writes that arrive in the
			// meantime
			wg.Go(func() {
				if err := st.maintain(t.Context(), func(*boltfile.WriteTx) error { time.Sleep(held); return nil }); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(held / 2)
			before, took := st.Stats(), make([]time.Duration, 2)
			for i, s := range []string{"a", "b"} {
				wg.Go(func() {
					began := time.Now()
					if err := create(name(s), ""); err != nil {
						t.Error(err)
					}
					took[i] = time.Since(began)
				})
			}
			time.Sleep(held/2 + late)
			gone := new(pendingWrite)
			gone.state.Store(writeAbandoned) // the commit does not wait for this one
			st.queue <- gone
			want := held / 2
			if comes {
				// in the same commit
				if err := create(name("c"), "//pods/x/"+name("a")); err != nil {
					t.Error(err)
				}
				want += late
			} else {
				want += held
			}
			wg.Wait()
			if n := st.Stats().Commits - before.Commits; n != 2 || took[0] != want || took[1] != want {
				t.Errorf("turn %d: %d commits, answers after %v, want %v", turn, n, took, want)
			}
			time.Sleep(time.Second)
		}
	})
}

// TestWriterAnswers tests PingWriter. It must not change the file, must return even if writes fail,
// and must not return while the writer is blocked.
func TestWriterAnswers(t *testing.T) {
	t.Parallel()
	st := openTestStore(t, filepath.Join(t.TempDir(), "x.db"))
	mustWrite(t, st, OpCreate, "//pods/x/a", 0, "")
	before, err := os.ReadFile(st.File.Path)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := st.PingWriter(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if after, err := os.ReadFile(st.File.Path); err != nil || !bytes.Equal(before, after) {
		t.Error("asking has changed the file", err)
	}
	mustWrite(t, st, OpCreate, "//pods/x/b", 0, "")

	stuck, free := make(chan struct{}), make(chan struct{})
	go st.maintain(context.Background(), func(*boltfile.WriteTx) error {
		close(stuck)
		<-free
		return nil
	})
	<-stuck
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := st.PingWriter(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the writer is stuck, and the answer is %v", err)
	}
	close(free)
	if err := st.PingWriter(t.Context()); err != nil {
		t.Error(err)
	}
	refusal := ErrDiskFull
	st.File.Refusal.Store(&refusal)
	if err := st.PingWriter(t.Context()); err != nil {
		t.Error("a file that cannot be written is no lack of life:", err)
	}
	st.File.Refusal.Store(nil)
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	if err := st.PingWriter(t.Context()); err == nil {
		t.Error("a closed store answers")
	}
}
