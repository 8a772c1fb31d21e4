package e2e

// These tests break a resource that a running server needs, repair it, and check the log and the
// health checks.

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
)

func TestLostFileAndQuotaAreToldOnceAndWhenTheyEnd(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	s := startTest(t, onFile(path))
	maps := s.namespace("shop")
	told := func(what, message string) int {
		return len(regexp.MustCompile(`"what":"`+regexp.QuoteMeta(what)+`"[^\n]*"`+message+`"`).FindAllString(s.log.String(), -1))
	}
	const fails, works = "failing; the log will say when it recovers", "recovered"
	expect := func(what string, begun, over int) {
		t.Helper()
		apitest.WaitFor(t, "the log to tell", func() bool { return told(what, fails) >= begun && told(what, works) >= over })
		if told(what, fails) != begun || told(what, works) != over {
			t.Errorf("%s: begun %d, over %d times, want %d, %d:\n%s", what, told(what, fails), told(what, works), begun, over, s.log.String())
		}
	}
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s.want(500, "POST", maps, configMap("a"))
	}
	expect("writing (lost data file)", 1, 0)
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	s.want(201, "POST", maps, configMap("a"))
	expect("writing (lost data file)", 1, 1)
	s.halt()

	s.flags = append(s.flags, "--quota-backend-bytes=4194304", "--compaction-interval=100ms", "--history=100ms")
	s.start()
	large := strings.Repeat("x", 900_000)
	for i := 0; s.send("POST", maps, configMap(fmt.Sprint("large", i), "k", large)).code == 201; i++ {
		if i == 20 {
			t.Fatal("there is no quota")
		}
	}
	for range 3 {
		a := s.want(500, "POST", maps, configMap("b"))
		for _, word := range []string{"--quota-backend-bytes", "delete objects", "--history"} {
			if !strings.Contains(a.get("message").String(), word) {
				t.Errorf("%s is not in %s", word, a.get("message"))
			}
		}
	}
	expect("writing (quota)", 1, 0)
	// Delete only one object. If a compaction runs in between, another delete may need more space.
	s.want(200, "DELETE", maps+"/large0", "")
	apitest.WaitFor(t, "room below the quota", func() bool { return s.send("POST", maps, configMap("b")).code == 201 })
	expect("writing (quota)", 1, 1)
}

// A rejected write causes a compaction of the history, although the next regular one is a day away.
// The log reports the loss of history once.
func TestQuotaShortensHistoryAndTheLogSaysSo(t *testing.T) {
	t.Parallel()
	s := startTest(t, onFile(filepath.Join(t.TempDir(), "a.db")), "--quota-backend-bytes=4194304", "--compaction-interval=24h")
	maps := s.namespace("shop")
	s.want(201, "POST", maps, configMap("large"))
	replace := func(i int) int {
		return s.send("PUT", maps+"/large", configMap("large", "k", strings.Repeat("x", 900_000), "n", fmt.Sprint(i))).code
	}
	for range 2 {
		for i := 0; replace(i) == 200; i++ {
			if i == 20 {
				t.Fatal("there is no quota")
			}
		}
		apitest.WaitFor(t, "room for the next version", func() bool { return replace(-1) == 200 })
	}
	const early = `"message":"deleted all history early, because a write was refused for lack of space: earlier versions can no longer be read"`
	if n := strings.Count(s.log.String(), early); n != 1 {
		t.Errorf("the log says %d times that history is gone:\n%s", n, s.log.String())
	}
}

// The metrics must be equal to the sizes of the files.
func TestStoreBytesAreThoseOfTheFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	s := startTest(t, onFile(path))
	maps := s.namespace("shop")
	for i := range 30 {
		s.want(201, "POST", maps, configMap(fmt.Sprint("m", i), "k", strings.Repeat("x", 100_000)))
	}
	apitest.WaitFor(t, "no work beside requests that makes a file grow", func() bool {
		for series, name := range map[string]string{"apilet_store_file_bytes": path, "apilet_store_log_bytes": path + "-wal"} {
			info, err := os.Stat(name)
			if err != nil {
				t.Fatal(err)
			}
			if metricValue(s, series) != float64(info.Size()) {
				return false
			}
		}
		return metricValue(s, "apilet_store_used_bytes") == metricValue(s, "apilet_store_file_bytes")-metricValue(s, "apilet_store_free_bytes")
	})
}

// As in kube-apiserver, the reason of a failure is only visible to users who can access the check
// itself.
func TestReadyzTellsTheReasonToWhoeverMayReadIt(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	s, _ := startTLS(t, onFile(path))
	root, bob := "Authorization: Bearer root-token", "Authorization: Bearer bob-token"
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ page, who, want string }{
		{"/readyz?verbose", root, "[-]store failed: the data file was removed"},
		{"/readyz?verbose", bob, "[-]store failed: reason withheld"},
		{"/readyz?verbose", "", "[-]store failed: reason withheld"},
		{"/readyz", root, "[-]store failed: reason withheld"},
	} {
		if a := s.send("GET", c.page, "", c.who); a.code != 500 || !strings.Contains(string(a.body), c.want) {
			t.Errorf("%s as %q: %d %s", c.page, c.who, a.code, a.body)
		}
	}
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
}

func TestRootListsThePathsThatAreServed(t *testing.T) {
	t.Parallel()
	s, _ := startTLS(t)
	root, bob := "Authorization: Bearer root-token", "Authorization: Bearer bob-token"
	a := s.want(200, "GET", "/", "", root)
	listed := map[string]bool{}
	for _, path := range a.get("paths").Array() {
		listed[path.String()] = true
		if got := s.send("GET", path.String(), "", root); got.code >= 400 {
			t.Errorf("%s is listed and answers %d", path, got.code)
		}
	}
	for _, path := range []string{"/api", "/api/v1", "/apis", "/apis/", "/apis/apps", "/apis/apps/v1", "/healthz", "/livez/ping", "/readyz/shutdown",
		"/metrics", "/openapi/v2", "/openapi/v3", "/openapi/v3/", "/openid/v1/jwks", "/.well-known/openid-configuration", "/version"} {
		if !listed[path] {
			t.Errorf("%s is missing", path)
		}
	}
	for _, who := range []string{bob, ""} {
		if got := s.want(403, "GET", "/", "", who).failure(); !strings.HasSuffix(got, `cannot get path "/"`) {
			t.Errorf("got %s", got)
		}
	}
}

// This includes the messages of Go's HTTP server.
func TestEveryJSONLogLineHasALevel(t *testing.T) {
	t.Parallel()
	s, _ := startTLS(t, "--v=3")
	s.want(200, "GET", "/version", "")
	if answer, err := http.Get("http" + strings.TrimPrefix(s.url, "https")); err == nil { // does not use TLS
		answer.Body.Close()
	}
	if answer, err := http.Get(s.url); err == nil { // the client does not trust the CA
		answer.Body.Close()
	}
	apitest.WaitFor(t, "the failed handshake", func() bool { return strings.Contains(s.log.String(), "TLS handshake error") })
	for line := range strings.Lines(s.log.String()) {
		if gjson.Get(line, "level").String() == "" {
			t.Errorf("no level: %s", line)
		}
	}
}

func TestFailingWebhookIsToldOnce(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	maps := s.namespace("shop")
	s.want(201, "POST", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", `{"metadata":{"name":"down"},"webhooks":[{"name":"down.example.com",
		"clientConfig":{"url":"https://127.0.0.1:1/x"},"failurePolicy":"Ignore","sideEffects":"None","admissionReviewVersions":["v1"],
		"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"]}]}]}`)
	for _, name := range []string{"a", "b", "c"} {
		s.want(201, "POST", maps, configMap(name))
	}
	if n := strings.Count(s.log.String(), `"what":"webhook down.example.com of validating configuration down"`); n != 1 {
		t.Errorf("told %d times:\n%s", n, s.log.String())
	}
}
