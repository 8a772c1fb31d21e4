package e2e

// These tests damage the data file of a running server. Requests for objects on damaged pages get
// an error that names them. All other objects can still be read and written. The server never
// returns wrong data, and no request ends or hangs for this reason.
//
//	APILET_DAMAGES=10000 go test -run TestRefusedFilesAreLeftAsTheyAre -v ./internal/e2e # the long version, with counts

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"apilet/internal/apitest"
	"apilet/internal/store/storetest"
)

const livePage = 4096

// ---- With a running server

// A request for an object on a damaged page must return an error. All other requests must succeed.
func TestDamageIsToldAndTheRestIsServed(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a file in use cannot be written")
	}
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	// A write of a controller could come between the reading and the writing of a page.
	s := startTest(t, onFile(path), "--controllers=false")
	maps := s.namespace("broken")
	for i := range 30 {
		s.want(201, "POST", maps, configMap(fmt.Sprintf("m%02d", i), "pad", strings.Repeat("x", 900)))
	}
	other := s.namespace("whole")
	s.want(201, "POST", other, configMap("before"))
	storetest.ZeroPages(t, path, `"name":"m10"`)
	told := func(what string, a answer) {
		t.Helper()
		message := a.get("message").String()
		if a.code != 500 || a.get("reason").String() != "InternalError" || !strings.Contains(message, path) || !strings.Contains(message, "restore a backup") {
			t.Errorf("%s: %s", what, a.failure())
		}
	}
	for range 2 {
		told("get", s.send("GET", maps+"/m10", ""))
	}
	told("list", s.send("GET", maps, ""))
	told("update", s.send("PATCH", maps+"/m10", `{"data":{"a":"b"}}`, "Content-Type: application/merge-patch+json"))
	told("backup", s.send("GET", "/debug/backup", ""))
	if w := s.watch(maps + "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=60"); w.code != 200 {
		t.Errorf("watch: %d", w.code)
	} else {
		for f := range w.frames {
			if f.kind == "ERROR" && f.object.Get("code").Int() == 500 && strings.Contains(f.object.Get("message").String(), path) {
				w = nil
				break
			}
		}
		if w != nil {
			t.Error("the watch ended without a word")
		}
	}
	s.want(200, "GET", maps+"/m29", "")
	s.want(200, "GET", other, "")
	s.want(201, "POST", other, configMap("after"))
	s.want(201, "POST", maps, configMap("after"))
	if a := s.send("GET", "/readyz?verbose", ""); a.code != 500 || !strings.Contains(string(a.body), "[-]damage failed") {
		t.Errorf("/readyz: %d %s", a.code, a.body)
	}
	s.want(200, "GET", "/livez", "")
	if n := metricValue(s, "apilet_store_damaged_places"); n < 1 {
		t.Errorf("the metric says %v", n)
	}
	if n := strings.Count(s.log.String(), `"message":"the data file is damaged"`); n < 1 || n != int(metricValue(s, "apilet_store_damaged_places")) {
		t.Errorf("%d lines in the log:\n%s", n, s.log.String())
	}
	// After a kill, the log still contains all writes since the checkpoint, including the writes
	// before the damage. The next start rewrites the pages.
	killed, _ := os.ReadFile(path)
	log, _ := os.ReadFile(path + "-wal")
	left := storetest.WriteFile(t, killed)
	if err := os.WriteFile(left+"-wal", log, 0o600); err != nil {
		t.Fatal(err)
	}
	st := storetest.Open(t, left)
	if _, err := st.Get("//configmaps/whole/after"); err != nil {
		t.Errorf("after a kill: %v", err)
	}
	if _, err := st.Get("//configmaps/broken/m10"); err != nil {
		t.Errorf("after a kill: %v", err)
	}
	s.restart()
	told("get after a restart", s.send("GET", maps+"/m10", ""))
	s.want(200, "GET", maps+"/after", "")
	s.want(200, "DELETE", maps+"/m10", "")
	s.want(404, "GET", maps+"/m10", "")
	s.want(200, "DELETE", maps, "") // the other objects on the page
	s.want(200, "GET", maps, "")
	copied := storetest.WriteFile(t, s.want(200, "GET", "/debug/backup", "").body)
	if err := tryCommand(t, "check", "--data", copied); err != nil {
		t.Errorf("a backup without what is damaged: %v", err)
	}
}

// If a dependent is damaged while its owner's foreground deletion waits for it, the owner remains
// until the dependent is deleted. The dependent's finalizers do not matter.
func TestDamagedDependentHoldsNobodyBack(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a file in use cannot be written")
	}
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	s := startTest(t, onFile(path))
	maps := s.namespace("x")
	owner := s.want(201, "POST", maps, configMap("owner"))
	refs := fmt.Sprintf(`"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":%q,"blockOwnerDeletion":true}]`, owner.get("metadata.uid"))
	for _, name := range []string{"held", "free"} {
		s.want(201, "POST", maps, `{"metadata":{"name":"`+name+`","finalizers":["x.io/y"],`+refs+`},"data":{"pad":"`+strings.Repeat("x", 12_000)+"middle of "+name+strings.Repeat("x", 12_000)+`"}}`)
	}
	s.want(200, "DELETE", maps+"/owner?propagationPolicy=Foreground", "")
	apitest.WaitFor(t, "the dependents are going", func() bool {
		held, free := s.want(200, "GET", maps+"/held", ""), s.want(200, "GET", maps+"/free", "")
		return held.get("metadata.deletionTimestamp").Exists() && free.get("metadata.deletionTimestamp").Exists()
	})
	storetest.ZeroPages(t, path, "middle of held")
	s.want(500, "GET", maps+"/held", "")
	s.want(200, "PATCH", maps+"/free", `{"metadata":{"finalizers":null}}`, asMergePatch)
	s.want(200, "DELETE", maps+"/held", "")
	apitest.WaitFor(t, "the owner is gone", func() bool { return s.send("GET", maps+"/owner", "").code == 404 })
	if n := strings.Count(s.log.String(), `"message":"the data file is damaged"`); n != int(metricValue(s, "apilet_store_damaged_places")) {
		t.Errorf("%d such lines in the log:\n%s", n, s.log.String())
	}
}

// A server that cannot start with a damaged file does not change the file.
func TestRefusedFilesAreLeftAsTheyAre(t *testing.T) {
	t.Parallel()
	for _, clean := range []bool{true, false} {
		path := filepath.Join(t.TempDir(), "a.db")
		s := startTest(t, onFile(path), "--controllers=false") // there should be no writes while the file is copied
		s.want(201, "POST", s.namespace("x"), configMap("m", "pad", strings.Repeat("x", 9000)))
		copied, _ := os.ReadFile(path)
		s.halt()
		if clean {
			copied, _ = os.ReadFile(path)
		}
		high := int(storetest.UsedBytes(t, copied) / livePage)
		flips, _ := strconv.Atoi(cmp.Or(os.Getenv("APILET_DAMAGES"), "10"))
		refused, every := 0, apitest.Every(10)
		if os.Getenv("APILET_DAMAGES") != "" {
			every = 1
		}
		for round := rand.IntN(every); round < high+flips; round += every {
			b := bytes.Clone(copied[:high*livePage])
			what := fmt.Sprintf("page %d zeroed", round)
			if round < high {
				clear(b[round*livePage : (round+1)*livePage])
			} else {
				at := rand.IntN(len(b))
				b[at] ^= 1 << rand.IntN(8)
				what = fmt.Sprintf("byte %d, was %x, is %x", at, copied[at], b[at])
			}
			os.WriteFile(path, b, 0o600)
			why, ok := s.tryStart()
			if ok {
				s.halt()
				continue
			}
			refused++
			if after, _ := os.ReadFile(path); !bytes.Equal(after, b) {
				t.Errorf("clean %v: %s: refused, and changed: %s", clean, what, why)
			}
		}
		t.Logf("clean %v: %d of %d starts refused", clean, refused, high+flips)
	}
}
