package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apilet/internal/apitest"
)

// TestForgedBases checks base files whose meta pages and page headers an attacker has written with
// correct checksums. They must be rejected or served. check and a start must agree, and both must
// end.
func TestForgedBases(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	f := &forger{rnd: rand.New(rand.NewPCG(seed, 1))}
	sound := smallFile(t, 200, true)
	path, opened, refused := filepath.Join(t.TempDir(), "base.db"), 0, 0
	for n := range apitest.Rounds(200) {
		b := bytes.Clone(sound)
		for range 1 + f.rnd.IntN(2) {
			page := b[f.rnd.IntN(len(b)/livePage)*livePage:]
			if f.rnd.IntN(2) == 0 {
				page = b[f.rnd.IntN(2)*livePage:]
			}
			at := [...]int{0, 8, 24, 32, 40, 48, 56, 64, 80}[f.rnd.IntN(9)]
			binary.NativeEndian.PutUint64(page[at:], f.number())
		}
		for _, meta := range [][]byte{b[:livePage], b[livePage:]} {
			sum := fnv.New64a()
			sum.Write(meta[16:72])
			binary.NativeEndian.PutUint64(meta[72:], sum.Sum64())
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		_, checked := Check(path)
		st, err := Open("", Options{Ephemeral: true, Base: path, Fatal: func(err error) { t.Errorf("round %d: fatal: %v", n, err) }})
		if err != nil {
			refused++
			if text := err.Error(); strings.Contains(text, "runtime error") || strings.Contains(text, "\n") {
				t.Errorf("round %d: %v", n, err)
			}
			continue
		}
		opened++
		if checked != nil && !errors.Is(checked, ErrDamaged) {
			t.Logf("round %d: opened, and check says: %v", n, checked)
		}
		_, _ = listShown(st)
		_, _ = storeWrite(st, OpCreate, "//pods/x/again", 0, "a")
		st.Close()
	}
	if t.Logf("%d opened, %d refused", opened, refused); refused == 0 {
		t.Error("nothing was refused")
	}
}

// TestSparseBase checks that only the pages of a sparse base file are copied, and that the file is
// not read into memory.
func TestSparseBase(t *testing.T) {
	t.Parallel()
	const hole = 1 << 36
	path := writeDataFile(t, smallFile(t, 20, true))
	if err := os.Truncate(path, hole); err != nil {
		t.Skip("this file system has no such files: ", err)
	}
	st, err := Open("", Options{Ephemeral: true, Base: path})
	if err != nil {
		t.Fatal(err)
	}
	st.Close()
	b, err := os.ReadFile(writeDataFile(t, smallFile(t, 20, true)))
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(b); at += livePage {
		if at < 2*livePage { // all pages up to the end of the hole belong to the file
			binary.NativeEndian.PutUint64(b[at+56:], hole/livePage)
			sum := fnv.New64a()
			sum.Write(b[at+16 : at+72])
			binary.NativeEndian.PutUint64(b[at+72:], sum.Sum64())
			continue
		}
		binary.NativeEndian.PutUint32(b[at+12:], hole/livePage-1000)
	}
	forged := writeDataFile(t, b)
	if err := os.Truncate(forged, hole); err != nil {
		t.Fatal(err)
	}
	if rep, err := Check(forged); err == nil && len(rep.Problems) == 0 {
		t.Errorf("%+v", rep)
	}
	if st, err := Open("", Options{Ephemeral: true, Base: forged}); err == nil {
		st.Close()
		t.Error("opened")
	}
}
