package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

const planted = "planted-value"

// A testSeal encrypts documents of Pods by flipping bits. The document starts with the key. It
// returns an error for documents that were encrypted with another key or stored under another name.
type testSeal struct{ key atomic.Int64 }

func (s *testSeal) sealing() *Sealing {
	turn := func(text []byte, by byte) []byte {
		turned := make([]byte, len(text))
		for i := range text {
			turned[i] = text[i] ^ by
		}
		return turned
	}
	does := func(key string) bool { return s.key.Load() > 0 && strings.HasPrefix(key, "//pods/") }
	return &Sealing{
		Encrypts: does,
		Seal: func(key string, json []byte) ([]byte, error) {
			if !does(key) {
				return nil, nil
			}
			by := byte(s.key.Load())
			return append([]byte{by}, turn([]byte(key+"\n"+string(json)), by)...), nil
		},
		Open: func(key string, sealed []byte) ([]byte, bool, error) {
			by := byte(s.key.Load())
			// as after a rotation, the previous key is also available
			if sealed[0] != by && sealed[0] != by-1 {
				return nil, false, fmt.Errorf("no key %d", sealed[0])
			}
			json, ok := bytes.CutPrefix(turn(sealed[1:], sealed[0]), []byte(key+"\n"))
			if !ok {
				return nil, false, errors.New("in another's place")
			}
			return json, sealed[0] != by, nil
		},
	}
}

func openSealed(t *testing.T, path string, s *Sealing) *Store {
	t.Helper()
	st, err := Open(path, Options{Sealing: s, Fatal: func(err error) { t.Errorf("fatal: %v", err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

// filesWith returns the files in the directory that contain the text.
func filesWith(t *testing.T, dir, text string) (found []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if b, err := os.ReadFile(filepath.Join(dir, entry.Name())); err != nil {
			t.Fatal(err)
		} else if bytes.Contains(b, []byte(text)) {
			found = append(found, entry.Name())
		}
	}
	return found
}

// TestSealedDocumentsAreNowhereInClear searches the file, the log and a backup for the text, after
// all operations and after a kill. Without encryption the same search must find the text, so that
// it searches the right places.
func TestSealedDocumentsAreNowhereInClear(t *testing.T) {
	for _, key := range []int64{0, 7} {
		dir := t.TempDir()
		path, s := filepath.Join(dir, "s.db"), new(testSeal)
		s.key.Store(key)
		st := openSealed(t, path, s.sealing())
		look := func(when string) {
			t.Helper()
			if found := filesWith(t, dir, planted); (len(found) > 0) != (key == 0) {
				t.Errorf("%s, with key %d: it is in %q", when, key, found)
			}
		}
		ctx, up := context.Background(), mustUpkeep(t, st)
		rec := mustWrite(t, st, OpCreate, "//pods/ns/a", 0, planted)
		for i := range 20 { // in batches and alone, growing and shrinking
			rec = mustWrite(t, st, OpUpdate, "//pods/ns/a", rec.Rev, strings.Repeat(planted, 1+i*i*50))
		}
		mustWrite(t, st, OpCreate, "//pods/ns/b", 0, planted)
		mustWrite(t, st, OpCreate, "//nodes//clear", 0, "in clear")
		look("written")
		mustWrite(t, st, OpDelete, "//pods/ns/a", rec.Rev, planted)
		if err := up.Backup(ctx, filepath.Join(dir, "backup.db"), nil); err != nil {
			t.Fatal(err)
		}
		killed := t.TempDir() // the files after a kill
		for _, name := range []string{"s.db", "s.db-wal"} {
			b, _ := os.ReadFile(filepath.Join(dir, name))
			if err := os.WriteFile(filepath.Join(killed, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		again := openSealed(t, filepath.Join(killed, "s.db"), s.sealing())
		if got, err := again.Get("//pods/ns/b"); err != nil || !strings.Contains(string(got.JSON), planted) {
			t.Errorf("after a kill: %v, %s", err, got.JSON)
		}
		if found := filesWith(t, killed, planted); (len(found) > 0) != (key == 0) {
			t.Errorf("after a kill, with key %d: it is in %q", key, found)
		}
		look("a backup was made")
		if _, err := up.Compact(ctx, st.Revision()); err != nil {
			t.Fatal(err)
		}
		look("compacted")
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
		look("closed")
		if err := Defrag(path, nil); err != nil {
			t.Fatal(err)
		}
		look("packed")
		rep, err := CheckObjects(path, Inspection{Decodes: func(_ string, json []byte) error {
			if !bytes.HasPrefix(json, []byte(`{"metadata"`)) {
				return errors.New("it is no document")
			}
			return nil
		}}, nil)
		if err != nil || len(rep.Problems) > 0 || rep.Sealed != min(key, 1) || rep.Objects != 2 {
			t.Errorf("%v: %+v", err, rep)
		}
		if len(filesWith(t, dir, "in clear")) == 0 {
			t.Error("what is not sealed is not there")
		}
	}
}

// TestSealedDocumentsAreReadEverywhere reads documents in all ways, from memory and from the file,
// and at earlier revisions.
func TestSealedDocumentsAreReadEverywhere(t *testing.T) {
	dir := t.TempDir()
	path, s := filepath.Join(dir, "s.db"), new(testSeal)
	s.key.Store(7)
	st := openSealed(t, path, s.sealing())
	one := mustWrite(t, st, OpCreate, "//pods/ns/a", 0, "one")
	two := mustWrite(t, st, OpUpdate, "//pods/ns/a", one.Rev, "two")
	gone := mustWrite(t, st, OpCreate, "//pods/ns/b", 0, "three")
	mustWrite(t, st, OpDelete, "//pods/ns/b", gone.Rev, "last")
	for _, when := range []string{"from memory", "from the file"} {
		got, err := st.Get("//pods/ns/a")
		if err != nil || !strings.Contains(string(got.JSON), "two") || got.Stale || !bytes.Contains(got.JSON, []byte(fmt.Sprintf(`"resourceVersion":"%d"`, two.Rev))) {
			t.Errorf("%s: %v, %+v", when, err, got)
		}
		if past, err := st.GetAt("//pods/ns/a", one.Rev); err != nil || !strings.Contains(string(past.JSON), "one") {
			t.Errorf("%s: %v, %s", when, err, past.JSON)
		}
		var c Chunk
		if err := st.Chunk(Span{Prefix: "//pods/"}, &c); err != nil || len(c.Records) != 1 || !strings.Contains(string(c.Records[0].JSON), "two") {
			t.Errorf("%s: %v, %+v", when, err, c.Records)
		}
		if old, _, err := st.OlderThan("//pods/", st.Revision(), 10, ""); err != nil || len(old) != 1 || !strings.Contains(string(old[0].JSON), "two") {
			t.Errorf("%s: %v, %+v", when, err, old)
		}
		evs, _, err := st.Events("//pods/", 0, 10, nil)
		if err != nil || len(evs) != 4 || !strings.Contains(string(evs[1].Prev), "one") || !strings.Contains(string(evs[1].JSON), "two") || !strings.Contains(string(evs[3].JSON), "last") {
			t.Fatalf("%s: %v, %+v", when, err, evs)
		}
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
		st = openSealed(t, path, s.sealing())
	}
	// the replaced version is read from the file
	if rec := mustWrite(t, st, OpUpdate, "//pods/ns/a", two.Rev, "after"); rec.CreateRev != one.Rev {
		t.Errorf("%+v", rec)
	}
	if evs, _, _ := st.Events("//pods/", gone.Rev+1, 10, nil); len(evs) != 1 || !strings.Contains(string(evs[0].Prev), "two") {
		t.Errorf("%+v", evs)
	}
}

// TestRotationMakesStale checks that documents are reported as stale until they are written again
// with the current key.
func TestRotationMakesStale(t *testing.T) {
	s := new(testSeal)
	st := openSealed(t, filepath.Join(t.TempDir(), "s.db"), s.sealing())
	stale := func(want bool) {
		t.Helper()
		if rec, err := st.Get("//pods/ns/a"); err != nil || rec.Stale != want {
			t.Errorf("%v: stale is %v, want %v", err, rec.Stale, want)
		}
	}
	rec := mustWrite(t, st, OpCreate, "//pods/ns/a", 0, "x")
	stale(false)
	for key := range int64(3) {
		s.key.Store(key + 1)
		stale(true)
		rec = mustWrite(t, st, OpUpdate, "//pods/ns/a", rec.Rev, "x")
		stale(false)
	}
	if rec, err := st.Get("//pods/ns/a"); err != nil || rec.Stale {
		t.Error(err, rec.Stale)
	}
}

// TestWhatCannotBeOpenedIsNamedAndKept checks that a missing key only affects requests for
// documents that were encrypted with it. Such documents are not deleted and can be read again when
// the key is available. The history contains the other documents, and an unreadable log stops.
func TestWhatCannotBeOpenedIsNamedAndKept(t *testing.T) {
	s, told := new(testSeal), map[string]bool{}
	s.key.Store(7)
	sealing := s.sealing()
	sealing.OnOpenError = func(key string, _ error) { told[key] = true }
	path := filepath.Join(t.TempDir(), "s.db")
	st := openSealed(t, path, sealing)
	a := mustWrite(t, st, OpCreate, "//pods/ns/a", 0, "a")
	s.key.Store(50)
	mustWrite(t, st, OpCreate, "//pods/ns/b", 0, "b")
	st.Close() // removes the events from memory
	st = openSealed(t, path, sealing)
	if _, err := st.Get("//pods/ns/a"); !errors.Is(err, ErrSealed) || errors.Is(err, ErrDamaged) || err.Error() != "no key 7" {
		t.Error(err)
	}
	var c Chunk
	if err := st.Chunk(Span{Prefix: "//pods/"}, &c); !errors.Is(err, ErrSealed) {
		t.Error(err)
	}
	if err := st.Chunk(Span{Prefix: "//pods/", SkipDamaged: true}, &c); err != nil || len(c.Records) != 1 || c.Records[0].Key != "//pods/ns/b" || len(c.Sealed) != 1 ||
		c.Sealed[0].Key != "//pods/ns/a" || len(c.Damaged) > 0 {
		t.Errorf("%v: %+v", err, c)
	}
	if _, _, err := st.Events("//pods/", 0, 10, nil); !errors.Is(err, ErrCompacted) {
		t.Error(err)
	}
	if evs, upTo, err := st.EventsOf("//pods/", nil, 0, 10, nil); err != nil || len(evs) != 1 || evs[0].Key != "//pods/ns/b" || upTo != st.Revision() {
		t.Errorf("%v: %+v", err, evs)
	}
	json, at := storeDoc("x")
	for _, change := range []Change{{Op: OpUpdate, Key: "//pods/ns/a", Expect: a.Rev, JSON: json, RevAt: at}, {Op: OpDelete, Key: "//pods/ns/a", Expect: a.Rev, JSON: json, RevAt: at},
		{Op: OpDelete, Key: "//pods/ns/a", Damaged: true}} {
		if _, err := st.Commit(context.Background(), change); !errors.Is(err, ErrSealed) && !errors.Is(err, ErrConflict) {
			t.Errorf("%+v: %v", change, err)
		}
	}
	up, copied := mustUpkeep(t, st), filepath.Join(t.TempDir(), "copy.db")
	if err := up.Backup(context.Background(), copied, nil); err != nil { // does not need a key
		t.Fatal(err)
	}
	rep, err := CheckObjects(copied, Inspection{Decodes: func(string, []byte) error { return nil }, Sealing: sealing}, nil)
	if err != nil || len(rep.Problems) != 1 || rep.Problems[0] != `key "//pods/ns/a": no key 7` {
		t.Errorf("%v: %v", err, rep.Problems)
	}
	if !told["//pods/ns/a"] || told["//pods/ns/b"] {
		t.Errorf("told of %v", told)
	}
	s.key.Store(7)
	if rec, err := st.Get("//pods/ns/a"); err != nil || !strings.Contains(string(rec.JSON), `"a"`) {
		t.Error(err)
	}
	st.Close()
	bare := openTestStore(t, path)
	if _, err := bare.Get("//pods/ns/a"); !errors.Is(err, ErrSealed) {
		t.Error(err)
	}
}

// TestRefusedSealingWritesNothing checks that a failed encryption does not affect other changes in
// the same commit.
func TestRefusedSealingWritesNothing(t *testing.T) {
	st := openSealed(t, filepath.Join(t.TempDir(), "s.db"), &Sealing{Encrypts: func(string) bool { return true }, Seal: func(key string, json []byte) ([]byte, error) {
		if strings.Contains(key, "bad") {
			return nil, errors.New("refused")
		}
		return nil, nil
	}})
	results := make(chan error, 40)
	for i := range 40 {
		go func() {
			_, err := storeWrite(st, OpCreate, fmt.Sprintf("//pods/ns/%s-%d", [...]string{"good", "good", "good", "bad"}[i%4], i), 0, "x")
			results <- err
		}()
	}
	refused := 0
	for range 40 {
		if err := <-results; errors.Is(err, ErrSealed) && err.Error() == "refused" {
			refused++
		} else if err != nil {
			t.Error(err)
		}
	}
	if refused != 10 || st.Objects() != 30 || st.Revision() != 30 {
		t.Errorf("%d are refused, %d are there at revision %d", refused, st.Objects(), st.Revision())
	}
}
