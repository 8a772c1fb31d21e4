package boltfile

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// filePages returns the pages of the file on the disk, without the notes behind the meta pages.
func filePages(t *testing.T, f *File) map[int]string {
	t.Helper()
	b, err := os.ReadFile(f.Path)
	if err != nil {
		t.Fatal(err)
	}
	pages, size := map[int]string{}, f.PageSize()
	for n := 0; n*size < len(b); n++ {
		page := b[n*size:]
		if page = page[:min(size, len(page))]; n < 2 {
			page = page[:noteAt]
		}
		pages[n] = string(page)
	}
	return pages
}

// differing counts the pages that differ.
func differing(before, after map[int]string) (n int) {
	for id, page := range after {
		if before[id] != page {
			n++
		}
	}
	return n
}

// TestCommitsLeaveTheFileAlone: pages that many commits change are written once, by the checkpoint, and only if they are still in use.
func TestCommitsLeaveTheFileAlone(t *testing.T) {
	t.Parallel()
	f := openTestFile(t)
	write := func(n int) {
		t.Helper()
		if err := f.Update(func(l *WriteTx) error { return put(l, "key", fmt.Sprint("value ", n)) }); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 20 { // pages ahead and their checkpoint
		write(n)
	}
	if err := f.wal.checkpointNow(); err != nil {
		t.Fatal(err)
	}
	if f.wal.overlay.mapped == nil {
		t.Fatal("the overlay is closed")
	}
	before := filePages(t, f)
	for n := range 50 {
		write(n)
	}
	if n := differing(before, filePages(t, f)); n > 0 {
		t.Errorf("commits have changed %d pages of the file", n)
	}
	if err := f.wal.checkpointNow(); err != nil {
		t.Fatal(err)
	}
	after := filePages(t, f)
	if n := differing(before, after); n == 0 || n > 8 { // 2 meta pages, the root, a leaf, and some that a new commit of each uses
		t.Errorf("a checkpoint of 50 commits to one leaf has changed %d pages of the file", n)
	}
	if err := f.View(func(p *Pages) error {
		keys, _ := p.Bucket(InKeys)
		if got := string(keys.Get([]byte("key"))); got != "value 49" {
			t.Errorf("the key has %q", got)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestSectorsKeepWhatIsBeforeARecord writes a sequence of records. It overwrites some of them and
// then writes them again. The result must have the same content as a file without direct writes.
func TestSectorsKeepWhatIsBeforeARecord(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Log("seed", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	const size = 1 << 20
	path := filepath.Join(t.TempDir(), "log")
	want := make([]byte, size)
	if err := os.WriteFile(path, want, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	s := openSectors(path, file)
	defer s.close()
	if s.direct == nil {
		t.Skip("no direct writes here")
	}
	direct := 0
	write := func(b []byte, at int) {
		t.Helper()
		if n, err := s.writeAt(b, int64(at), size); n != len(b) || err != nil {
			t.Fatal(n, err)
		}
		if s.at >= 0 {
			direct++
		}
		copy(want[at:], b)
	}
	for at := 0; ; {
		b := bytes.Repeat([]byte{byte('a' + rnd.IntN(26))}, 1+rnd.IntN(1500))
		if at+len(b) > size {
			break
		}
		write(b, at)
		switch rnd.IntN(8) {
		case 0: // taken back: the rest of the record stays, until the next one is written there
			write(make([]byte, 32), at)
			clear(want[at:]) // the next record is longer, or a direct write clears its sector
			write(bytes.Repeat([]byte{'z'}, 1600), at)
			at += 1600
		case 1:
			at = (at + len(b) + logBlock - 1) / logBlock * logBlock
		default:
			at = (at + len(b) + 7) &^ 7
		}
		if at+4000 > size {
			break
		}
	}
	if s.direct == nil {
		t.Skip("no direct writes here")
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) || direct < 100 {
		t.Errorf("the file differs after %d direct writes, or %v", direct, err)
	}
}
