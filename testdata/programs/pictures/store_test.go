package pictures

// This file draws the pictures of the store: the versions of a key before and after a compaction, a
// list in chunks, and the format of a record and a token.

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"apilet/internal/store"
)

// A writer writes small documents with short names, and remembers the newest revision of each.
type writer struct {
	t    *testing.T
	st   *store.Store
	path string
	last map[string]int64
}

func newWriter(t *testing.T) *writer {
	path := filepath.Join(t.TempDir(), "apilet.db")
	st, err := store.Open(path, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return &writer{t: t, st: st, path: path, last: map[string]int64{}}
}

const prefix = "//configmaps/default/"

func (w *writer) write(op store.ChangeOp, name string) int64 {
	w.t.Helper()
	head := `{"metadata":{"name":"` + name + `","resourceVersion":"`
	rec, err := w.st.Commit(context.Background(), store.Change{Op: op, Key: prefix + name, Expect: w.last[name], JSON: []byte(head + `"}}`), RevAt: len(head)})
	if err != nil {
		w.t.Fatal(op, name, err)
	}
	w.last[name] = rec.Rev
	return rec.Rev
}

// A version is a record in the file.
type version struct {
	rev, prev, created uint64
	name               string
	tombstone          bool
	bytes              []byte // of the value
}

// versions reads the file with bbolt only. It closes the store first.
func (w *writer) versions() (all []version) {
	w.t.Helper()
	if err := w.st.Close(); err != nil {
		w.t.Fatal(err)
	}
	db, err := bbolt.Open(w.path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		w.t.Fatal(err)
	}
	err = db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte("rev")).ForEach(func(k, v []byte) error {
			key := string(v[23 : 23+int(binary.BigEndian.Uint16(v[21:]))])
			all = append(all, version{rev: binary.BigEndian.Uint64(k), prev: binary.BigEndian.Uint64(v[1:]), created: binary.BigEndian.Uint64(v[9:]),
				name: strings.TrimPrefix(key, prefix), tombstone: v[0]&1 != 0, bytes: slices.Clone(v)})
			return nil
		})
	})
	if err := errors.Join(err, db.Close()); err != nil {
		w.t.Fatal(err)
	}
	if w.st, err = store.Open(w.path, store.Options{}); err != nil {
		w.t.Fatal(err)
	}
	return all
}

func drawVersions(t *testing.T) *drawing {
	w := newWriter(t)
	for _, step := range []struct {
		op   store.ChangeOp
		name string
	}{{store.OpCreate, "a"}, {store.OpCreate, "b"}, {store.OpUpdate, "a"}, {store.OpDelete, "b"}, {store.OpCreate, "b"}, {store.OpCreate, "c"}, {store.OpUpdate, "a"}, {store.OpDelete, "c"}} {
		w.write(step.op, step.name)
	}
	const compactTo = 4
	before := w.versions()
	up, err := store.NewMaintenance(w.st)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := up.Compact(t.Context(), compactTo); err != nil {
		t.Fatal(err)
	}
	after := w.versions()
	d := newDrawing(720, 330, "Versions of three keys over eight revisions, before and after compaction to revision 4")
	for i, part := range []struct {
		title string
		all   []version
	}{{"Before compaction", before}, {fmt.Sprintf("After compaction to %d: the newest version of each key up to it stays, but no deletion", compactTo), after}} {
		top := 30 + float64(i)*155
		d.text(30, top-10, "bold", "%s", part.title)
		at := func(rev uint64) float64 { return 20 + float64(rev)*78 }
		for row, name := range []string{"a", "b", "c"} {
			y := top + 10 + float64(row)*32
			d.text(30, y+16, "bold", "%s", name)
			d.line(60, y+12, 700, y+12, "thin")
			for _, v := range part.all {
				if v.name != name {
					continue
				}
				class, word := "c1", "changed"
				switch {
				case v.tombstone:
					class, word = "c2", "deleted"
				case v.rev == v.created:
					class, word = "c4", "created"
				}
				if v.prev != 0 && slices.ContainsFunc(part.all, func(o version) bool { return o.rev == v.prev }) {
					d.line(at(v.prev)+60, y+12, at(v.rev), y+12, "line thick")
				}
				d.rect(at(v.rev), y, 60, 24, class)
				d.text(at(v.rev)+30, y+16, "small mid on", "%s", word)
			}
		}
		for rev := uint64(1); rev <= 8; rev++ {
			d.text(at(rev)+30, top+122, "small mid", "%d", rev)
		}
		if i == 1 {
			d.line(at(compactTo)+69, top, at(compactTo)+69, top+110, "line dash")
		}
	}
	d.text(30, 325, "small", "A line joins a version with the one that it replaced. A read at a revision takes, for each key, the newest box at or left of it.")
	return d
}

func drawChunks(t *testing.T) *drawing {
	w := newWriter(t)
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"}
	for _, name := range names {
		if name != "f" {
			w.write(store.OpCreate, name)
		}
	}
	d := newDrawing(720, 320, "Three chunks of one list at one revision, while keys are changed, deleted and created between them")
	column := func(name string) float64 { return 170 + float64(slices.Index(names, name))*44 }
	pinned := w.st.Revision()
	start, row := "", 0
	show := func(y float64, chunk *store.Chunk, class string) {
		for i := range chunk.Records {
			rec := &chunk.Records[i]
			x := column(strings.TrimPrefix(rec.Key, prefix))
			d.rect(x, y, 38, 24, class)
			d.text(x+19, y+16, "small mid"+map[bool]string{true: " on"}[class != "c5"], "%s", strings.TrimPrefix(rec.Key, prefix)+strconv.FormatInt(rec.Rev, 10))
		}
	}
	between := [][]struct {
		op   store.ChangeOp
		name string
	}{{{store.OpUpdate, "b"}, {store.OpDelete, "e"}, {store.OpCreate, "f"}}, {{store.OpDelete, "k"}, {store.OpUpdate, "j"}, {store.OpUpdate, "a"}}, nil}
	d.text(20, 22, "bold", "Each request reads four keys at revision %d, whatever was written since", pinned)
	seen := 0
	for n, changes := range between {
		y := 45 + float64(row)*31
		var chunk, now store.Chunk
		if err := w.st.Chunk(store.Span{Prefix: prefix, Start: start, Rev: pinned, Items: 4}, &chunk); err != nil {
			t.Fatal(err)
		}
		if err := w.st.Chunk(store.Span{Prefix: prefix, Items: 100}, &now); err != nil {
			t.Fatal(err)
		}
		d.text(20, y+16, "small", "newest, revision %d", now.Rev)
		show(y, &now, "c5")
		d.text(20, y+47, "small bold", "chunk %d, revision %d", n+1, chunk.Rev)
		show(y+31, &chunk, "c1")
		for i := range chunk.Records {
			seen++
			start = chunk.Records[i].Key + "\x00"
			if chunk.Records[i].Rev > pinned {
				t.Errorf("chunk %d shows revision %d", n+1, chunk.Records[i].Rev)
			}
		}
		for _, change := range changes {
			w.write(change.op, change.name)
		}
		row += 3
	}
	if seen != len(names)-1 {
		t.Errorf("the chunks have %d objects", seen)
	}
	d.text(20, 312, "small", "The second chunk has e, which is gone, and not f, which is new; the third has k, which is gone, and j as it was.")
	return d
}

// A byteField describes a field in a row of boxes.
type byteField struct {
	name, value string
	size        int
	class       string
}

func boxes(d *drawing, y float64, fields []byteField) {
	x, offset := 20.0, 0
	for _, f := range fields {
		w := max(88, min(160, float64(f.size)*9), float64(len(f.value))*7+10)
		d.rect(x, y, w-4, 44, f.class)
		class := " on"
		if f.class == "c5" || f.class == "c0" {
			class = ""
		}
		d.text(x+(w-4)/2, y+19, "small mid bold"+class, "%s", f.name)
		d.text(x+(w-4)/2, y+35, "mono mid"+class, "%s", f.value)
		d.text(x, y+58, "small", "%d", offset)
		x, offset = x+w, offset+f.size
	}
	d.text(x, y+58, "small", "%d", offset)
}

func drawRecord(t *testing.T) *drawing {
	w := newWriter(t)
	w.write(store.OpCreate, "a")
	w.write(store.OpCreate, "b")
	w.write(store.OpUpdate, "a")
	all := w.versions()
	v := all[len(all)-1]
	key := prefix + v.name
	d := newDrawing(830, 190, "The bytes of a record: its revision is the key, then flags, previous and creating revision, checksum, key, time, author and JSON")
	d.text(20, 24, "bold", "Bucket rev, revision %d: the update of a, which was created at %d", v.rev, v.created)
	boxes(d, 40, []byteField{{"flags", fmt.Sprintf("%02x", v.bytes[0]), 1, "c5"}, {"previous", fmt.Sprint(v.prev), 8, "c1"}, {"created", fmt.Sprint(v.created), 8, "c1"},
		{"CRC-32C", "…", 4, "c3"}, {"length", fmt.Sprint(len(key)), 2, "c5"}, {"key", key, len(key), "c4"},
		{"time, ms", "…", 6, "c1"}, {"author", fmt.Sprint(v.bytes[29+len(key)]), 1, "c5"}})
	d.text(20, 130, "small", "then %d bytes of JSON, as a client gets it but for kind and apiVersion, which one object may have several of:", len(v.bytes)-30-len(key))
	d.text(20, 150, "mono", "%s", v.bytes[30+len(key):])
	d.text(20, 176, "small", "Integers are big endian. The checksum starts from the revision: a record in another's place shows.")
	return d
}

// drawToken gets a token from a real server, and decodes it with the program in ../token.
func drawToken(t *testing.T) *drawing {
	dir := t.TempDir()
	binary, keys := filepath.Join(dir, "apilet"), filepath.Join(dir, "keys")
	if out, err := exec.Command("go", "build", "-o", binary, "../../..").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.WriteFile(keys, []byte(base64.StdEncoding.EncodeToString(make([]byte, 32))+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "kubeconfig")
	cmd := exec.Command(binary, "--ephemeral", "--listen", "127.0.0.1:0", "--kubeconfig", config, "--continue-key-file", keys)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait()
	}()
	out, err := exec.Command("go", "run", "../token", "-keys", keys, "-list", "//namespaces/", tokenOf(t, config)).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var sealed, plain []byteField
	total := 0
	for line := range strings.Lines(string(out)) {
		cells := strings.Fields(line)
		size, err := strconv.Atoi(cells[1])
		if err != nil {
			t.Fatal(line)
		}
		f := byteField{name: cells[2], size: size, class: "c1"}
		switch f.name {
		case "version":
			f.value, f.class = cells[3], "c5"
		case "key":
			f.value, f.class = "which one", "c5"
		case "tag":
			f.value, f.class = "HMAC-SHA-256", "c3"
		case "hidden":
			f.value = "AES-CTR"
		case "lineage":
			f.value = "of the file"
		default:
			f.value = strings.TrimSuffix(strings.Join(cells[3:], " "), ", after the range's beginning")
		}
		if f.name == "revision" {
			f.value = "of the list"
		}
		if total += size; slices.Contains([]string{"version", "key", "tag", "hidden"}, f.name) {
			sealed = append(sealed, f)
		} else {
			f.class = "c4"
			plain = append(plain, f)
		}
	}
	d := newDrawing(720, 230, "The bytes of a continue token, sealed and opened")
	d.text(20, 24, "bold", "As a client holds it (base64url of this)")
	boxes(d, 36, sealed)
	d.text(20, 128, "bold", "What is hidden, once the server's key has opened it")
	boxes(d, 140, plain)
	d.text(20, 222, "small", "The tag is over what is hidden, the list's key range and its selectors. It is the cipher's initialization vector as well.")
	return d
}

// tokenOf waits for the kubeconfig of the server and lists the objects of a namespace.
func tokenOf(t *testing.T, config string) string {
	var file struct {
		Clusters []struct{ Cluster struct{ Server string } }
	}
	for range 4800 { // two minutes
		text, err := os.ReadFile(config)
		if err == nil && json.Unmarshal(text, &file) == nil && len(file.Clusters) > 0 {
			break
		}
		time.Sleep(25 * time.Millisecond)
	}
	if len(file.Clusters) == 0 {
		t.Fatal("the server did not start")
	}
	resp, err := http.Get(file.Clusters[0].Cluster.Server + "/api/v1/namespaces?limit=1")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Metadata struct{ Continue string } }
	if err := json.Unmarshal(text, &list); err != nil || list.Metadata.Continue == "" {
		t.Fatalf("%v: %s", err, text)
	}
	return list.Metadata.Continue
}
