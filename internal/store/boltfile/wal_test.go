package boltfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
)

// openTestFile opens a new file with empty buckets.
func openTestFile(t *testing.T) *File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.db")
	if err := Create(path, func(db *bbolt.DB) error {
		return db.Update(func(tx *bbolt.Tx) error {
			for _, name := range Buckets {
				if _, err := tx.CreateBucket(name); err != nil {
					return err
				}
			}
			l := &WriteTx{Tx: tx}
			return errors.Join(l.PutMetaInt("format", FormatClosed), l.Put(InMeta, []byte("lineage"), make([]byte, 16)))
		})
	}); err != nil {
		t.Fatal(err)
	}
	return reopen(t, path)
}

func reopen(t *testing.T, path string) *File {
	t.Helper()
	verdict, err := VetToWrite(path, func(*Pages) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	f, err := Open(path, verdict.Log, Options{LogBytes: 64 << 10, Fatal: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func put(l *WriteTx, key, value string) error {
	guard, err := l.Guard(map[uint64]PageMark{})
	if err != nil {
		return err
	}
	keys, err := guard.Bucket(l, InKeys)
	return errors.Join(err, keys.Put([]byte(key), []byte(value)))
}

// TestMappingIsKnownAfterAKill checks that the size of the mapping is known after a kill. Otherwise
// the first commits would require checkpoints, because the mapping might have to grow.
func TestMappingIsKnownAfterAKill(t *testing.T) {
	t.Parallel()
	f := openTestFile(t)
	if err := f.Update(func(l *WriteTx) error { return put(l, "a", "1") }); err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "b.db")
	for _, suffix := range []string{"", LogSuffix} {
		b, err := os.ReadFile(f.Path + suffix)
		if err == nil {
			err = os.WriteFile(copied+suffix, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	again := reopen(t, copied)
	if want := int64(dbOptions().InitialMmapSize); again.wal == nil || again.wal.mapped < want {
		t.Errorf("bbolt is taken to map too little: %+v, want %d", again.wal, want)
	}
	if err := again.View(func(p *Pages) error {
		keys, _ := p.Bucket(InKeys)
		if got := keys.Get([]byte("a")); string(got) != "1" {
			t.Errorf("a is %q", got)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestNotesThatCannotBeRead checks that the body of a record is either decoded or rejected, and is
// never read beyond its end.
func TestNotesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	f := openTestFile(t)
	var notes []byte
	refused := errors.New("nothing is to be committed")
	if err := f.Update(func(l *WriteTx) error {
		err := errors.Join(put(l, "key", "value"), l.SetSequence(InRev, 300), l.Remove(InKeys, []byte("key")))
		notes = bytes.Clone(l.notes)
		return errors.Join(err, refused)
	}); !errors.Is(err, refused) {
		t.Fatal(err)
	}
	shown := 0
	count := func(byte, []byte, []byte, uint64) error { shown++; return nil }
	if err := eachNoted(notes, count); err != nil || shown != 3 {
		t.Errorf("%d shown, %v", shown, err)
	}
	whole := 0
	for n := range notes {
		if eachNoted(notes[:n], count) == nil {
			whole++
		}
	}
	if whole != 3 { // the empty list, and the end of the first and second change
		t.Errorf("%d beginnings of the list can be read, want 3", whole)
	}
	for _, bad := range [][]byte{{4, 1, 'k', 0}, {64, 1, 'k', 0}, {notedDelete, 0}, {notedSequence}, binary.AppendUvarint([]byte{0, 1, 'k'}, 1<<62)} {
		if eachNoted(bad, count) == nil {
			t.Errorf("%v is read", bad)
		}
	}
}
