package e2e

// These tests open data files of earlier versions. testdata/golden has a file that was closed and
// the files of a killed server, compressed with gzip. For both, there is a file with a line of JSON
// for each live object and each event.
//
// A new format gets new files. go test -run TestGolden -update writes the missing files. It never
// replaces existing ones, because users have such files on their disks.

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"apilet/internal/apitest"
	"apilet/internal/store"
	"apilet/internal/store/storetest"
)

// A goldenLine describes a live object or an event. Its kind is "object", "event", or "gone" for
// the event of a tombstone.
type goldenLine struct {
	What      string
	Key       string
	Rev       int64
	CreateRev int64
	PrevRev   int64         `json:",omitempty"`
	Deleting  bool          `json:",omitempty"`
	Time      int64         `json:",omitempty"`
	Author    *store.Author `json:",omitempty"`
	JSON      json.RawMessage
}

func TestGoldenFile(t *testing.T) {
	t.Parallel()
	if order := uint16(1); *(*byte)(unsafe.Pointer(&order)) == 0 {
		t.Skip("bbolt's files have the byte order of the machine that wrote them, and these are little endian")
	}
	name := fmt.Sprintf("../../testdata/golden/format-%d", store.Format)
	if _, err := os.Stat(name + ".db.gz"); err != nil && *update {
		makeGolden(t, name, false)
	}
	file := storetest.Unpack(t, name+".db.gz")
	want, err := os.ReadFile(name + ".jsonl")
	if err != nil {
		t.Fatal(err)
	}
	path := storetest.WriteFile(t, file)
	if rep, err := store.Check(path); err != nil || len(rep.Problems) > 0 {
		t.Errorf("check: %v, %v", err, rep.Problems)
	}
	st := storetest.Open(t, path)
	if got := goldenLines(t, st); got != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	next := st.Revision() + 1
	if rec := storetest.MustWrite(t, st, store.OpCreate, "//configmaps/later/a", 0, ""); rec.Rev != next {
		t.Errorf("the next write has revision %d, want %d", rec.Rev, next)
	}
	if _, err := storetest.Maintain(t, st).Compact(t.Context(), next); err != nil {
		t.Error(err)
	}
	st.Close()
	if rep, err := store.Check(path); err != nil || len(rep.Problems) > 0 {
		t.Errorf("check after use: %v, %v", err, rep.Problems)
	}
	serveGolden(t, file, string(want))
}

// The files of a killed server are a data file in use and the log with the latest writes.
func TestGoldenFileAndLog(t *testing.T) {
	t.Parallel()
	if order := uint16(1); *(*byte)(unsafe.Pointer(&order)) == 0 {
		t.Skip("the golden files are little endian")
	}
	const name = "../../testdata/golden/format-3"
	if _, err := os.Stat(name + ".db.gz"); err != nil && *update {
		makeGolden(t, name, true)
	}
	want := apitest.ReadFile(t, name+".jsonl")
	path := storetest.WriteFile(t, storetest.Unpack(t, name+".db.gz"))
	if err := os.WriteFile(path+"-wal", storetest.Unpack(t, name+".db-wal.gz"), 0o600); err != nil {
		t.Fatal(err)
	}
	if rep, err := store.Check(path); err != nil || len(rep.Problems) > 0 || rep.Logged == 0 {
		t.Errorf("check: %v, %+v", err, rep)
	}
	if got := goldenLines(t, storetest.Open(t, path)); got != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// serveGolden starts a server with the file and lists its objects over HTTP.
func serveGolden(t *testing.T, file []byte, lines string) {
	s := startTest(t, onFile(storetest.WriteFile(t, file)))
	served := map[string]bool{}
	for _, item := range s.want(200, "GET", "/api/v1/configmaps", "").get("items").Array() {
		served[item.Get("metadata.namespace").String()+"/"+item.Get("metadata.name").String()+"@"+item.Get("metadata.resourceVersion").String()] = true
	}
	for _, text := range strings.Split(strings.TrimSpace(lines), "\n") {
		var line goldenLine
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatal(err)
		}
		name, ours := strings.CutPrefix(line.Key, "//configmaps/")
		if ours && line.What == "object" && !served[fmt.Sprintf("%s@%d", name, line.Rev)] {
			t.Errorf("%s is not served: %v", line.Key, served)
		}
	}
}

func goldenLines(t *testing.T, st *store.Store) string {
	var b bytes.Buffer
	put := func(what string, r *store.Record) {
		line := goldenLine{what, r.Key, r.Rev, r.CreateRev, r.PrevRev, r.Deleting, r.Time, nil, r.JSON}
		if author := st.Author(r.Author); author != (store.Author{}) {
			line.Author = &author
		}
		text, err := json.Marshal(line)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(text, '\n'))
	}
	for sp, c := (store.Span{Prefix: "/"}), new(store.Chunk); ; sp.Start = c.Next {
		if err := st.Chunk(sp, c); err != nil {
			t.Fatal(err)
		}
		for _, r := range c.Records {
			put("object", &r)
		}
		if c.Next == "" {
			break
		}
	}
	for at := st.Compacted(); at < st.Revision(); {
		evs, upTo, err := st.Events(store.Everything, at, 100, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range evs {
			what := "event"
			if ev.Deleted {
				what = "gone"
			}
			put(what, &ev.Record)
		}
		at = upTo
	}
	return b.String()
}

// makeGolden creates a data file with objects in all states. Some have been updated, deleted or
// recreated, and some are waiting for a finalizer. A part of the history is compacted. If killed is
// set, the files include the log of a killed server.
func makeGolden(t *testing.T, name string, killed bool) {
	path := filepath.Join(t.TempDir(), "golden.db")
	s := startTest(t, onFile(path), "--enable-priority-and-fairness=false")
	maps := s.namespace("golden")
	for i := range 6 {
		s.want(201, "POST", maps, configMap(fmt.Sprintf("m%d", i), "k", strings.Repeat("v", i*i*60)))
	}
	s.want(200, "PUT", maps+"/m1", configMap("m1", "k", "second"))
	s.want(200, "DELETE", maps+"/m2", "")
	s.compactNow(s.revision())
	s.want(200, "PUT", maps+"/m1", configMap("m1", "k", "third"))
	s.want(200, "DELETE", maps+"/m3", "")
	s.want(201, "POST", maps, configMap("m3", "k", "again"))
	s.want(201, "POST", maps, `{"metadata":{"name":"held","finalizers":["example.com/hold"]}}`)
	s.want(200, "DELETE", maps+"/held", "")
	s.want(200, "DELETE", maps+"/m4", "")
	suffixes := []string{".db"}
	if killed {
		suffixes = append(suffixes, ".db-wal")
	} else {
		s.halt()
	}
	files := map[string][]byte{}
	for _, suffix := range suffixes {
		files[suffix] = apitest.ReadFile(t, strings.TrimSuffix(path, ".db")+suffix)
	}
	if killed {
		s.halt()
	}
	lines := goldenLines(t, storetest.Open(t, path))
	os.MkdirAll(filepath.Dir(name), 0o755)
	for suffix, b := range files {
		if suffix == ".db" && !killed {
			b = b[:storetest.UsedBytes(t, b)]
		}
		var packed bytes.Buffer
		z, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression)
		z.Write(b)
		z.Close()
		if err := os.WriteFile(name+suffix+".gz", packed.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(name+".jsonl", []byte(lines), 0o644); err != nil {
		t.Fatal(err)
	}
}
