package boltfile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
)

// revisionTree creates a file with the given keys in the bucket rev. It returns a copy of the
// pages.
func revisionTree(t *testing.T, keys [][]byte, valueSize int) Tree {
	t.Helper()
	db, err := bbolt.Open(filepath.Join(t.TempDir(), "a.db"), 0o600, dbOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	value := make([]byte, valueSize)
	err = db.Update(func(tx *bbolt.Tx) error {
		revs, err := tx.CreateBucket(Buckets[InRev])
		if err != nil {
			return err
		}
		for i, key := range keys {
			binary.BigEndian.PutUint64(value, uint64(i))
			if err := revs.Put(key, bytes.Clone(value)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var copied Tree
	err = db.View(func(tx *bbolt.Tx) error {
		m, err := mappedMeta(db, uint64(tx.ID()))
		if err != nil {
			return err
		}
		p := newPages(db, m)
		p.mapped = bytes.Clone(p.mapped)
		copied, _ = p.Bucket(InRev)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return copied
}

// revisionKeys returns keys of revisions with gaps. If shared is true, some revisions have several
// records.
func revisionKeys(rnd *rand.Rand, n int, gap int64, shared bool) (keys [][]byte, last int64) {
	for range n {
		last += 1 + rnd.Int64N(gap)
		if !shared || rnd.IntN(8) > 0 {
			keys = append(keys, revisionKey(last))
		}
		for i := 0; shared && i < 20 && rnd.IntN(4) > 0; i++ {
			keys = append(keys, longRevisionKey(last, fmt.Appendf(nil, "//pods/x/n%03d", i)))
		}
	}
	return keys, last
}

// TestFingerFindsWhatTheTreeHas checks that a SearchHint returns the same results as a search from
// the root.
func TestFingerFindsWhatTheTreeHas(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		n, size int
		gap     int64
		shared  bool
	}{{0, 8, 1, false}, {1, 8, 1, false}, {40, 8, 3, true}, {300, 1100, 1, false}, {3000, 1100, 2, false}, {3000, 600, 1 << 40, true}, {500, 9000, 5, true},
		{9000, 600, 1, false}} {
		keys, last := revisionKeys(rnd, c.n, c.gap, c.shared)
		tr := revisionTree(t, keys, c.size)
		f := SearchHint{}
		ask := func(rev int64) {
			if got, want := f.Get(&tr, uint64(rev)), tr.Get(revisionKey(rev)); !bytes.Equal(got, want) || (got == nil) != (want == nil) {
				t.Fatalf("%+v: revision %d: %.8x, want %.8x", c, rev, got, want)
			}
		}
		for i, key := range keys { // all keys in both orders and the revisions between them
			ask(revisionOf(key))
			ask(revisionOf(keys[len(keys)-1-i]))
			ask(revisionOf(key) + 1)
		}
		for _, i := range rnd.Perm(len(keys)) {
			ask(revisionOf(keys[i]))
		}
		for range 1000 {
			ask(rnd.Int64N(last + 3))
		}
	}
}

// TestFingerStaysWhereItIs checks that a SearchHint finds adjacent keys without reading the pages
// above.
func TestFingerStaysWhereItIs(t *testing.T) {
	t.Parallel()
	keys, _ := revisionKeys(rand.New(rand.NewPCG(1, 2)), 3000, 1, false)
	tr := revisionTree(t, keys, 1100)
	f := SearchHint{}
	moved := 0
	for i := range keys {
		before := f.leaf.first
		if f.Get(&tr, uint64(i+1)) == nil {
			t.Fatalf("revision %d is missing", i+1)
		}
		if f.leaf.first != before {
			moved++
		}
	}
	if moved > len(keys)/2 {
		t.Errorf("%d of %d neighbours lie on another leaf", moved, len(keys))
	}
	f.Get(&tr, 1500)
	for _, above := range []uint64{tr.root, binary.NativeEndian.Uint64(f.branch.page)} {
		clear(tr.p.mapped[int(above)*tr.p.pageSize:][:pageHeaderSize])
	}
	if first := f.leaf.first; f.Get(&tr, first) == nil || f.Get(&tr, f.leaf.last) == nil {
		t.Error("what is on the leaf is not found without what is above")
	}
}

// TestFingerOnDamagedPages checks that searches in damaged pages end, and that they find the
// undamaged keys.
func TestFingerOnDamagedPages(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(3, 4))
	keys, _ := revisionKeys(rnd, 2000, 2, true)
	tr := revisionTree(t, keys, 600)
	sound := bytes.Clone(tr.p.mapped)
	right, unknown := 0, 0
	for range 300 {
		copy(tr.p.mapped, sound)
		for range 1 + rnd.IntN(20) {
			damagePage(rnd, tr.p)
		}
		f := SearchHint{}
		for range 20 {
			at := rnd.IntN(len(keys))
			for i := at; i < min(at+4, len(keys)); i++ {
				value := f.Get(&tr, uint64(revisionOf(keys[i])))
				switch {
				case value == nil && len(keys[i]) == 8:
					unknown++
				// otherwise the record's checksum would show it
				case len(keys[i]) == 8 && len(value) == 600 && binary.BigEndian.Uint64(value) == uint64(i):
					right++
				}
			}
		}
	}
	if right < unknown || unknown == 0 {
		t.Errorf("%d found, %d not known: no damage was met, or it spread", right, unknown)
	}
}

// damagePage changes one page other than the meta pages.
func damagePage(rnd *rand.Rand, p *Pages) {
	id := 2 + rnd.IntN(int(p.high)-2)
	b := p.mapped[id*p.pageSize:][:p.pageSize]
	switch rnd.IntN(4) {
	case 0:
		clear(b)
	case 1:
		copy(b, p.mapped[rnd.IntN(int(p.high))*p.pageSize:][:p.pageSize])
	case 2: // in the offsets
		b[rnd.IntN(pageHeaderSize+20*pageElementSize)] ^= 1 << rnd.IntN(8)
	case 3:
		b[rnd.IntN(len(b))] = byte(rnd.IntN(256))
	}
}

// revisionKey, longRevisionKey and revisionOf convert revisions to keys as the store does.
func revisionKey(rev int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(rev)) }

func longRevisionKey(rev int64, key []byte) []byte { return append(revisionKey(rev), key...) }

func revisionOf(key []byte) int64 { return int64(binary.BigEndian.Uint64(key)) }
