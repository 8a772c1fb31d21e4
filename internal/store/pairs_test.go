package store

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"apilet/internal/apitest"
	"apilet/internal/store/boltfile"
)

// These tests copy the data file and the log of a running server, as users do with cp and rsync,
// and open the copies.

// A lifetime contains the acknowledged states of a store by revision.
type lifetime struct{ states map[int64]uint64 }

// A copiedFile contains a copy of a data file or log file.
type copiedFile struct {
	name   string // describes the copy
	bytes  []byte
	absent bool // the original did not exist
	life   *lifetime
	began  int64 // the acknowledged revision at the start of the copy
	backup bool  // created by the store itself
}

// A pairMaker runs a store and copies its files.
type pairMaker struct {
	t      *testing.T
	rnd    *rand.Rand
	seed   maphash.Seed
	dir    string
	st     *Store
	life   *lifetime
	live   map[string]int64
	writes int
	data   []copiedFile
	logs   []copiedFile
}

// begin creates a new store. Copies of the previous store are kept.
func (p *pairMaker) begin() {
	if p.st != nil {
		p.st.Close()
	}
	folder, err := os.MkdirTemp(p.dir, "store-")
	if err != nil {
		p.t.Fatal(err)
	}
	p.st, p.life, p.live = p.open(filepath.Join(folder, "a.db")), &lifetime{map[int64]uint64{}}, map[string]int64{}
	p.remember()
	for range 30 {
		p.step()
	}
}

func (p *pairMaker) open(path string) *Store {
	p.t.Helper()
	st, err := Open(path, Options{LogBytes: 64 << 10, Fatal: func(err error) { p.t.Errorf("fatal: %v", err) }})
	if err != nil {
		p.t.Fatal(err)
	}
	return st
}

// fingerprint returns a hash of all current objects and their revisions.
func (p *pairMaker) fingerprint(st *Store) (uint64, error) {
	shown, err := listShown(st)
	var h maphash.Hash
	h.SetSeed(p.seed)
	for _, key := range slices.Sorted(maps.Keys(shown)) {
		h.WriteString(key + " " + shown[key] + "\n")
	}
	return h.Sum64(), err
}

// step performs a write.
func (p *pairMaker) step() {
	p.t.Helper()
	p.writes++
	op, key, expect := OpCreate, fmt.Sprintf("//pods/x/n%d", p.writes), int64(0)
	if names := slices.Sorted(maps.Keys(p.live)); len(names) > 0 {
		old := names[p.rnd.IntN(len(names))]
		switch way := p.rnd.IntN(40); {
		case way < 10:
			op, key, expect = OpUpdate, old, p.live[old]
		case way < len(names):
			op, key, expect = OpDelete, old, p.live[old]
		}
	}
	pad := strings.Repeat(string(rune('a'+p.writes%26)), p.rnd.IntN([...]int{60, 300, 2000, 6000}[p.rnd.IntN(4)]))
	rec := mustWrite(p.t, p.st, op, key, expect, pad)
	if p.live[key] = rec.Rev; op == OpDelete {
		delete(p.live, key)
	}
	p.remember()
}

func (p *pairMaker) remember() {
	sum, err := p.fingerprint(p.st)
	if err != nil {
		p.t.Fatal(err)
	}
	p.life.states[p.st.Revision()] = sum
}

// work performs up to n writes. Occasionally it runs maintenance or restarts the store.
func (p *pairMaker) work(n int) {
	for range p.rnd.IntN(n + 1) {
		switch way := p.rnd.IntN(60); {
		case way == 0 && p.st.Revision() > 20:
			if _, err := mustUpkeep(p.t, p.st).Compact(p.t.Context(), p.st.Revision()-10); err != nil {
				p.t.Fatal(err)
			}
		case way == 1:
			path := p.st.File.Path
			if err := p.st.Close(); err != nil {
				p.t.Fatal(err)
			}
			p.st = p.open(path)
		case way < 8: // to make sure that the last checkpoint is complete
			maintainTest(p.t, p.st, func(*boltfile.WriteTx) error { return errors.Join(p.st.File.WaitCheckpoint(), errRefused) })
		default:
			p.step()
		}
	}
}

// copyFile copies one of the files in several pieces. The store performs up to busy writes between
// two pieces.
func (p *pairMaker) copyFile(suffix string, busy int) copiedFile {
	c := copiedFile{name: fmt.Sprintf("%s copied at revision %d (%d)", "file"+suffix, p.st.Revision(), busy), life: p.life, began: p.st.Revision()}
	file, err := os.Open(p.st.File.Path + suffix)
	if c.absent = errors.Is(err, os.ErrNotExist); c.absent {
		return c
	}
	if err != nil {
		p.t.Fatal(err)
	}
	defer file.Close()
	piece := make([]byte, 8<<10<<p.rnd.IntN(5))
	for {
		n, err := file.Read(piece)
		c.bytes = append(c.bytes, piece[:n]...)
		if err == io.EOF {
			return c
		}
		if err != nil {
			p.t.Fatal(err)
		}
		if p.st.Revision() < c.began+200 {
			p.work(busy)
		}
	}
}

// copies makes one or two copies in an order that might be used by an administrator.
func (p *pairMaker) copies() {
	takeData := func(busy int) { p.data = append(p.data, p.copyFile("", busy)) }
	takeLog := func(busy int) { p.logs = append(p.logs, p.copyFile(boltfile.LogSuffix, busy)) }
	busy := [...]int{0, 0, 1, 6, 40}[p.rnd.IntN(5)]
	switch p.rnd.IntN(8) {
	case 0:
		takeData(busy)
	case 1:
		takeLog(busy)
	case 2:
		takeData(busy)
		takeLog(busy)
	// nothing is written between the two copies, so the first pages of the file are consistent
	case 3, 4:
		takeLog(0)
		takeData(busy)
	case 5:
		takeLog(busy)
		p.work(2)
		takeData(busy)
	case 6:
		takeData(busy)
		p.work(30)
		takeLog(busy)
	case 7:
		p.another()
	}
	p.data, p.logs = p.data[max(0, len(p.data)-12):], p.logs[max(0, len(p.logs)-12):]
}

// another makes copies of a different lifetime of the store, such as a backup or a copy that was
// used by another server.
func (p *pairMaker) another() {
	folder, err := os.MkdirTemp(p.dir, "life-")
	if err != nil {
		p.t.Fatal(err)
	}
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "a.db")
	if p.rnd.IntN(4) == 0 {
		if err := mustUpkeep(p.t, p.st).Backup(p.t.Context(), path, nil); err != nil {
			p.t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			p.t.Fatal(err)
		}
		p.data = append(p.data, copiedFile{name: "backup", bytes: b, life: p.life, began: p.st.Revision(), backup: true})
		return
	}
	data, log := p.copyFile("", 0), p.copyFile(boltfile.LogSuffix, 0)
	writePair(p.t, path, data, log)
	first, live := *p, maps.Clone(p.live)
	defer func() { p.st, p.life, p.live = first.st, first.life, live }()
	p.st, p.life = p.open(path), &lifetime{maps.Clone(p.life.states)}
	defer func() { p.st.Close() }()
	p.remember()
	p.work(60)
	p.data, p.logs = append(p.data, p.copyFile("", 0)), append(p.logs, p.copyFile(boltfile.LogSuffix, 0))
	if p.rnd.IntN(2) == 0 {
		p.work(10)
		p.data, p.logs = append(p.data, p.copyFile("", 0)), append(p.logs, p.copyFile(boltfile.LogSuffix, 0))
	}
}

func writePair(t *testing.T, path string, data, log copiedFile) {
	t.Helper()
	for suffix, c := range map[string]copiedFile{"": data, boltfile.LogSuffix: log} {
		os.Remove(path + suffix)
		if c.absent {
			continue
		}
		if err := os.WriteFile(path+suffix, c.bytes, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// damage changes a copy and describes the change.
func (p *pairMaker) damage(c *copiedFile) string {
	if len(c.bytes) == 0 {
		return ""
	}
	b := bytes.Clone(c.bytes)
	at := p.rnd.IntN(len(b))
	if p.rnd.IntN(4) == 0 { // the area of the meta pages and the heads
		at = p.rnd.IntN(min(len(b), headsBytes))
	}
	size := min([...]int{1, 512, 4096, 16 << 10}[p.rnd.IntN(4)], len(b)-at)
	var what string
	switch p.rnd.IntN(4) {
	case 0:
		at = [...]int{at, at / 512 * 512, at / 4096 * 4096, min(len(b), 512<<p.rnd.IntN(6))}[p.rnd.IntN(4)]
		b, what = b[:at], fmt.Sprintf("cut to %d", at)
	case 1:
		b[at] ^= 1 << p.rnd.IntN(8)
		what = fmt.Sprintf("a bit of byte %d flipped", at)
	case 2:
		at -= at % size
		clear(b[at : at+size])
		what = fmt.Sprintf("%d bytes from %d on zeroed", size, at)
	case 3:
		other := p.rnd.IntN(len(b)-size+1) / size * size
		at = min(at/size*size, len(b)-size)
		moved := bytes.Clone(b[at : at+size])
		copy(b[at:], b[other:other+size])
		copy(b[other:], moved)
		what = fmt.Sprintf("%d bytes at %d and %d swapped", size, at, other)
	}
	c.bytes = b
	return what
}

// pick returns two of the copies and a description of how they were changed.
func (p *pairMaker) pick() (data, log copiedFile, what string, damaged bool) {
	n := p.rnd.IntN(len(p.data))
	data, log = p.data[n], p.logs[p.rnd.IntN(len(p.logs))]
	if p.rnd.IntN(3) > 0 { // the two latest copies
		data, log = p.data[len(p.data)-1], p.logs[len(p.logs)-1]
	}
	what = data.name + ", " + log.name
	if p.rnd.IntN(50) == 0 {
		data, log, what = log, data, what+", swapped"
	}
	way := p.rnd.IntN(10)
	if way == 1 || way == 2 {
		what, damaged = what+"; file: "+p.damage(&data), true
	}
	if way == 2 || way == 3 || way == 4 {
		what, damaged = what+"; log: "+p.damage(&log), true
	}
	return data, log, what, damaged
}

// TestCopiesOfARunningServer copies the data file and the log of a running server at random times.
// Some of the copies are damaged. A pair must open to an acknowledged state that is not older than
// the first copy, or Open and check must reject it with a clear message.
//
//	APILET_PAIRS=10000 go test -run TestCopiesOfARunningServer -v ./internal/store
func TestCopiesOfARunningServer(t *testing.T) {
	t.Parallel()
	pairs, _ := strconv.Atoi(os.Getenv("APILET_PAIRS"))
	if pairs == 0 {
		pairs = apitest.Rounds(200)
	}
	seed, _ := strconv.ParseUint(os.Getenv("APILET_PAIRS_SEED"), 10, 64)
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	p := &pairMaker{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), seed: maphash.MakeSeed(), dir: t.TempDir()}
	p.begin()
	for len(p.data) == 0 || len(p.logs) == 0 {
		p.copies()
	}
	counts := map[string]int{}
	for n := 0; n < pairs && !t.Failed(); n++ {
		if p.st.Revision() > 2000 {
			p.begin()
		}
		if n%3 == 0 {
			p.work(4)
			p.copies()
		}
		data, log, what, damaged := p.pick()
		verdict, wrong := p.judge(data, log, damaged)
		if wrong != "" {
			t.Errorf("pair %d: %s: %s", n, what, wrong)
		}
		counts[verdict]++
	}
	p.st.Close()
	for _, verdict := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%6d %s", counts[verdict], verdict)
	}
	if counts["opened, complete"] < pairs/20 || counts["refused"] < pairs/5 {
		t.Error("not everything has come up")
	}
}

// judge opens a pair of copies. wrong describes the problem, if any.
func (p *pairMaker) judge(data, log copiedFile, damaged bool) (verdict, wrong string) {
	path := filepath.Join(p.dir, "pair.db")
	if data.absent && log.absent {
		return "neither file", ""
	}
	writePair(p.t, path, data, log)
	rep, checked := Check(path)
	var told []string
	st, err := Open(path, Options{LogBytes: 64 << 10, Warn: func(text string) { told = append(told, text) }, Fatal: func(err error) { wrong = err.Error() }})
	if err != nil {
		return "refused", p.judgeRefusal(path, data, log, err, checked != nil || len(rep.Problems) > 0)
	}
	defer st.Close()
	sum, err := p.fingerprint(st)
	rev := st.Revision()
	known := data.life.states[rev] == sum || log.life.states[rev] == sum
	switch {
	case wrong != "":
		return "", wrong
	case err != nil && len(rep.Problems) > 0:
		return "opened, damage is named", ""
	case err != nil:
		return "", fmt.Sprintf("check finds nothing, and a LIST fails: %v", err)
	case data.backup && log.absent || data.backup && data.life.states[data.began] == sum && rev > 1e9:
		return "opened, a backup", ""
	case known && rev >= min(data.began, log.began) && checked == nil && len(rep.Problems) == 0:
		return "opened, complete", ""
	case known && rev >= min(data.began, log.began) && damaged:
		return "opened, complete, and damage is named", ""
	case damaged && len(rep.Problems) > 0 && (log.absent || slices.ContainsFunc(told, func(text string) bool { return strings.Contains(text, "the last commit is gone") })):
		return "opened, what is missing is named", ""
	}
	return "", fmt.Sprintf("opened at revision %d, known: %v; the file's copy began at %d, the log's at %d; check: %v, %q; told %q", rev, known, data.began, log.began, checked, rep.Problems, told)
}

// judgeRefusal checks a rejection: the error must be one sentence that names a file, check must
// agree, and the files must be unchanged.
func (p *pairMaker) judgeRefusal(path string, data, log copiedFile, err error, checked bool) string {
	text := err.Error()
	if !strings.Contains(text, path) || strings.ContainsAny(text, "\n") || strings.Contains(text, "runtime error") || len(text) > 600 {
		return "no clear sentence: " + text
	}
	if !checked {
		return "check finds nothing, and it is refused: " + text
	}
	for suffix, c := range map[string]copiedFile{"": data, boltfile.LogSuffix: log} {
		if b, err := os.ReadFile(path + suffix); (err != nil) != c.absent || !bytes.Equal(b, c.bytes) {
			return "refused, and changed: " + text
		}
	}
	return ""
}
