package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"apilet/internal/apitest"
	"apilet/internal/store/boltfile"
)

// A forger changes logs and computes correct checksums.
type forger struct {
	rnd *rand.Rand
	log []byte
}

// sumHeads updates the checksums of both heads and the meta pages.
func (f *forger) sumHeads() {
	for _, b := range [][]byte{f.log[:headBytes], f.log[headBytes:headsBytes]} {
		sum := fnv.New64a()
		sum.Write(b[88+16 : 88+72])
		binary.NativeEndian.PutUint64(b[88+72:], sum.Sum64())
		binary.BigEndian.PutUint32(b[168:], crc32.Checksum(b[:168], castagnoli))
	}
}

// records returns the offset and size of each record that would be replayed.
func (f *forger) records() (at, sizes []int) {
	epoch := f.log[48:56]
	for i := headsBytes; i+32 <= len(f.log); i += 8 {
		size := 32 + int(binary.BigEndian.Uint32(f.log[i:]))
		if bytes.Equal(f.log[i+8:i+16], epoch) && binary.BigEndian.Uint64(f.log[i+24:]) == uint64(i) && size <= len(f.log)-i {
			at, sizes = append(at, i), append(sizes, size)
		}
	}
	return at, sizes
}

func (f *forger) sumRecord(at, size int) {
	b := f.log[at : at+size]
	binary.BigEndian.PutUint32(b[4:], crc32.Update(crc32.Checksum(b[:4], castagnoli), castagnoli, b[8:]))
}

// number returns an unusual number.
func (f *forger) number() uint64 {
	return [...]uint64{0, 1, 2, 3, 4095, 4096, 1 << 20, 1 << 30, 1 << 31, 1<<32 - 1, 1 << 40, 1 << 62, math.MaxInt64, 1 << 63, math.MaxUint64, f.rnd.Uint64()}[f.rnd.IntN(16)]
}

// forge changes a field in both heads or the contents of a record.
func (f *forger) forge() string {
	defer f.sumHeads()
	at, sizes := f.records()
	switch way := f.rnd.IntN(4); {
	case way == 0:
		field, n := [...]int{12, 16, 24, 40, 48, 56, 64, 72, 80}[f.rnd.IntN(9)], f.number()
		for _, b := range [][]byte{f.log[:headBytes], f.log[headBytes:]} {
			binary.BigEndian.PutUint64(b[field:], n)
		}
		return fmt.Sprintf("the head's field at %d is %d", field, n)
	case way == 1:
		field, n := 88+[...]int{24, 32, 40, 48, 56, 64}[f.rnd.IntN(6)], f.number()
		for _, b := range [][]byte{f.log[:headBytes], f.log[headBytes:]} {
			binary.NativeEndian.PutUint64(b[field:], n)
		}
		return fmt.Sprintf("the checkpoint's field at %d is %d", field-88, n)
	case len(at) == 0:
		return "nothing"
	}
	i := f.rnd.IntN(len(at))
	for range 1 + f.rnd.IntN(4) {
		if sizes[i] > 32 {
			f.log[at[i]+32+f.rnd.IntN(min(sizes[i]-32, 60))] = byte(f.number())
		}
	}
	f.sumRecord(at[i], sizes[i])
	return fmt.Sprintf("a record at %d", at[i])
}

// TestForgedLogs checks logs that an attacker has written with correct checksums. They must be
// rejected or replayed. A start must not panic, end the process, or allocate more memory than the
// log's size justifies.
//
//	APILET_PAIRS=10000 go test -run TestForgedLogs -v ./internal/store
func TestForgedLogs(t *testing.T) {
	t.Parallel()
	rounds, _ := strconv.Atoi(os.Getenv("APILET_PAIRS"))
	if rounds == 0 {
		rounds = apitest.Rounds(300)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	f := &forger{rnd: rand.New(rand.NewPCG(seed, 1))}
	st := openLogged(t, filepath.Join(t.TempDir(), "a.db"))
	for i := range 40 {
		rec := mustWrite(t, st, OpCreate, fmt.Sprintf("//pods/x/n%d", i), 0, strings.Repeat("a", 300))
		if i%4 == 0 {
			mustWrite(t, st, OpDelete, rec.Key, rec.Rev, "")
		}
	}
	data, err := os.ReadFile(st.File.Path)
	log, failed := os.ReadFile(st.File.Path + boltfile.LogSuffix)
	if err = errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	path, opened, refused := filepath.Join(t.TempDir(), "a.db"), 0, 0
	for n := range rounds {
		f.log = bytes.Clone(log)
		what := f.forge()
		if err := errors.Join(os.WriteFile(path, data, 0o600), os.WriteFile(path+boltfile.LogSuffix, f.log, 0o600)); err != nil {
			t.Fatal(err)
		}
		again, err := Open(path, Options{LogBytes: 64 << 10, Fatal: func(err error) { t.Errorf("round %d: %s: fatal: %v", n, what, err) }})
		if err != nil {
			refused++
			if text := err.Error(); strings.Contains(text, "runtime error") || strings.Contains(text, "\n") {
				t.Errorf("round %d: %s: %v", n, what, err)
			}
			continue
		}
		opened++
		if rev := again.Revision(); rev < 0 {
			t.Errorf("round %d: %s: revision %d", n, what, rev)
		}
		_, _ = listShown(again)
		_, _ = storeWrite(again, OpCreate, "//pods/x/again", 0, "a")
		again.Close()
	}
	t.Logf("%d opened, %d refused", opened, refused)
}

// TestLogOfManyHeads checks that a start is not delayed by a log that contains only headers of long
// records.
func TestLogOfManyHeads(t *testing.T) {
	t.Parallel()
	st, err := Open(filepath.Join(t.TempDir(), "a.db"), Options{LogBytes: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	mustWrite(t, st, OpCreate, "//pods/x/a", 0, "a")
	path := copyOpen(t, st)
	log, err := os.ReadFile(path + boltfile.LogSuffix)
	if err != nil {
		t.Fatal(err)
	}
	half := int(binary.BigEndian.Uint64(log[40:]))
	log = append(log, make([]byte, headsBytes+2*half-len(log))...)
	epoch, first := binary.BigEndian.Uint64(log[48:]), binary.BigEndian.Uint64(log[56:])
	for at := headsBytes + int(first)*half + 32; at+32 <= headsBytes+(int(first)+1)*half; at += 32 {
		b := log[at:]
		binary.BigEndian.PutUint32(b, uint32(headsBytes+(int(first)+1)*half-at-32))
		binary.BigEndian.PutUint64(b[8:], epoch)
		binary.BigEndian.PutUint64(b[24:], uint64(at))
	}
	if err := os.WriteFile(path+boltfile.LogSuffix, log, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Check(path); err == nil || !strings.Contains(err.Error(), "many records that do not check") {
		t.Error(err)
	}
}
