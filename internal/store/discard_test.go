package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
)

// damageFile changes a value in the file of a stopped store without using the store.
func damageFile(t *testing.T, path, bucket string, key []byte, change func(value []byte) []byte) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(bucket))
		value := bytes.Clone(b.Get(key))
		if value == nil {
			return fmt.Errorf("%s has no %x", bucket, key)
		}
		if value = change(value); value == nil {
			return b.Delete(key)
		}
		return b.Put(key, value)
	}); err != nil {
		t.Fatal(err)
	}
}

func flipMiddle(value []byte) []byte {
	value[len(value)/2] ^= 1
	return value
}

func TestDamagedObjectIsPassedOverAndDiscarded(t *testing.T) {
	t.Parallel()
	for what, damage := range map[string]func(t *testing.T, path string, rev int64){
		"record": func(t *testing.T, path string, rev int64) { damageFile(t, path, "rev", revKey(rev), flipMiddle) },
		"entry": func(t *testing.T, path string, _ int64) {
			damageFile(t, path, "keys", []byte("//pods/x/b"), flipMiddle)
		},
		"missing": func(t *testing.T, path string, rev int64) {
			damageFile(t, path, "rev", revKey(rev), func([]byte) []byte { return nil })
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "a.db")
			st := openTestStore(t, path)
			for _, name := range []string{"a", "b", "c"} {
				mustWrite(t, st, OpCreate, "//pods/x/"+name, 0, "first")
			}
			rev := mustWrite(t, st, OpUpdate, "//pods/x/b", 2, "second").Rev
			st.Close()
			damage(t, path, rev)
			var told []string
			st, err := Open(path, Options{Damaged: func(place string) { told = append(told, place) }})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { st.Close() })
			passOver(t, st)
			discardB(t, st, rev)
			up := mustUpkeep(t, st)
			if _, err := up.Compact(t.Context(), st.Revision()); err != nil {
				t.Fatal(err)
			}
			rep, err := up.Scrub(t.Context())
			// the only reference to the previous version was lost
			if err != nil || len(rep.Problems) > 0 && what != "missing" {
				t.Errorf("scrub: %v %v", err, rep.Problems)
			}
			slices.Sort(told)
			if len(slices.Compact(told)) != len(told) {
				t.Errorf("told twice: %q", told)
			}
		})
	}
}

// passOver reads the objects other than b.
func passOver(t *testing.T, st *Store) {
	t.Helper()
	var c Chunk
	if err := st.Chunk(Span{Prefix: "//pods/"}, &c); !errors.Is(err, ErrDamaged) {
		t.Errorf("chunk: %v", err)
	}
	if err := st.Chunk(Span{Prefix: "//pods/", SkipDamaged: true}, &c); err != nil || len(c.Records) != 2 || strings.Join(c.Damaged, " ") != "//pods/x/b" || c.Next != "" {
		t.Errorf("chunk of what is sound: %v, %d records, damaged %q", err, len(c.Records), c.Damaged)
	}
	if records, next, err := st.OlderThan("//pods/", st.Revision(), 10, ""); err != nil || len(records) != 2 || next != "" {
		t.Errorf("older: %d records, %q, %v", len(records), next, err)
	}
	if objects, _, _ := st.Count("//pods/x/"); objects != 3 {
		t.Errorf("%d are counted", objects)
	}
	if _, err := storeWrite(st, OpCreate, "//pods/x/b", 0, "new"); err != ErrExists {
		t.Errorf("create: %v", err)
	}
}

// discardB deletes b, which is damaged since a revision.
func discardB(t *testing.T, st *Store, rev int64) {
	t.Helper()
	before := st.Revision()
	discard := func(key string) (Record, error) {
		return st.Commit(context.Background(), Change{Op: OpDelete, Key: key, Damaged: true})
	}
	if _, err := discard("//pods/x/a"); err != ErrConflict {
		t.Errorf("what can be read: %v", err)
	}
	if _, err := discard("//pods/x/none"); err != ErrNotFound {
		t.Errorf("what is not there: %v", err)
	}
	gone, err := discard("//pods/x/b")
	if err != nil || !gone.Deleted || !gone.Lost || len(gone.JSON) > 0 || gone.Rev != before+1 {
		t.Fatalf("%+v, %v", gone, err)
	}
	if _, err := st.Get("//pods/x/b"); err != ErrNotFound {
		t.Errorf("get: %v", err)
	}
	if objects, _, _ := st.Count("//pods/x/"); objects != 2 {
		t.Errorf("%d are counted", objects)
	}
	if _, _, err := st.Events("//pods/", before, 0, nil); err != ErrCompacted {
		t.Errorf("events from before: %v", err)
	}
	if evs, _, err := st.Events("//services/", before, 0, nil); err != nil || len(evs) > 0 {
		t.Errorf("events of others: %v, %v", evs, err)
	}
	if evs, upTo, err := st.EventsOf("//pods/", nil, before, 0, nil); err != nil || len(evs) != 1 || !evs[0].Lost || upTo != gone.Rev {
		t.Errorf("all events: %+v up to %d, %v", evs, upTo, err)
	}
	again := mustWrite(t, st, OpCreate, "//pods/x/b", 0, "third")
	if evs, _, err := st.Events("//pods/", gone.Rev, 0, nil); err != nil || len(evs) != 1 || evs[0].Rev != again.Rev {
		t.Errorf("events from then on: %+v, %v", evs, err)
	}
	mustWrite(t, st, OpDelete, "//pods/x/b", again.Rev, "third")
	restated, err := st.Commit(context.Background(), Change{Op: OpUpdate, Key: "//pods/x/a", Damaged: true})
	if err != ErrConflict {
		t.Errorf("%+v, %v", restated, err)
	}
}

// TestHistoryPassesOverDamage checks that the history continues after damage, and that followers
// get an error.
func TestHistoryPassesOverDamage(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	st := openTestStore(t, path)
	for i := range 600 {
		mustWriteNoSync(t, st, fmt.Sprintf("//pods/x/%03d", i))
	}
	st.Close()
	damageFile(t, path, "rev", revKey(200), flipMiddle)
	damageFile(t, path, "rev", revKey(400), func([]byte) []byte { return nil })
	st = openTestStore(t, path)
	seen := 0
	for at := int64(0); at < st.Revision(); {
		evs, upTo, err := st.EventsOf(Everything, nil, at, 50, nil)
		if err != nil || upTo <= at {
			t.Fatalf("after %d: up to %d, %v", at, upTo, err)
		}
		seen, at = seen+len(evs), upTo
	}
	if seen != 598 {
		t.Errorf("%d events", seen)
	}
	if _, _, err := st.Events(Everything, 190, 50, nil); !errors.Is(err, ErrDamaged) {
		t.Errorf("who follows: %v", err)
	}
}
