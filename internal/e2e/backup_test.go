package e2e

// These tests make backups of running servers. They check their content and the necessary rights.

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/store"
)

// Each writer creates a chain of objects. It only creates the next object after the previous one
// was acknowledged. If the backup contains an object, it must also contain its predecessor.
func TestBackupIsOneRevisionBesideWriters(t *testing.T) {
	t.Parallel()
	s := startTest(t, onFile(filepath.Join(t.TempDir(), "a.db")))
	maps := s.namespace("chains")
	var made [4]atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for w := range made {
		writers.Go(func() {
			for i := 1; ctx.Err() == nil; i++ {
				if a, err := s.try("POST", maps, configMap(fmt.Sprintf("w%d-%d", w, i), "pad", strings.Repeat("x", 500))); err != nil || a.code != 201 {
					t.Errorf("create: %d, %v", a.code, err)
					return
				}
				made[w].Store(int64(i))
			}
		})
	}
	for n := range 3 {
		apitest.WaitFor(t, "writes", func() bool { return made[0].Load() > int64(20*(n+1)) })
		var before [4]int64
		for w := range made {
			before[w] = made[w].Load()
		}
		copied := filepath.Join(t.TempDir(), "copy.db")
		if err := tryCommand(t, "backup", "--server", s.url, copied); err != nil {
			t.Fatal(err)
		}
		checkChains(t, copied, before)
	}
	cancel()
	writers.Wait()
}

// checkChains restores a backup by starting a server with it.
func checkChains(t *testing.T, path string, before [4]int64) {
	t.Helper()
	s := startTest(t, onFile(path))
	defer s.halt()
	have := map[string]bool{}
	for _, name := range strings.Fields(s.want(200, "GET", "/api/v1/namespaces/chains/configmaps", "").names()) {
		have[name] = true
	}
	total := 0
	for w := range before {
		n := int64(0)
		for have[fmt.Sprintf("w%d-%d", w, n+1)] {
			n++
		}
		if total += int(n); n < before[w] {
			t.Errorf("writer %d: %d of at least %d objects are in the backup", w, n, before[w])
		}
	}
	if delete(have, "kube-root-ca.crt"); total != len(have) {
		t.Errorf("%d objects, of which %d follow what was there before them", len(have), total)
	}
	s.want(201, "POST", "/api/v1/namespaces/chains/configmaps", configMap("new"))
}

// tryCommand runs a command. If it fails, the error contains its standard error.
func tryCommand(t testing.TB, args ...string) error {
	t.Helper()
	if r := runAs(t, "apilet", args...); r.code != 0 {
		return fmt.Errorf("exit code %d: %s", r.code, r.errs)
	}
	return nil
}

// tlsFiles writes the token and the server's CA to files. The server must have been started by
// startTLS.
func tlsFiles(t *testing.T, s *testServer, token string) (tokenFile, caFile string) {
	t.Helper()
	return apitest.TempFile(t, "token", token+"\n"), apitest.TempFile(t, "ca.pem", string(s.servedAuthority()))
}

// backUpTLS runs a backup of a server that was started by startTLS.
func backUpTLS(t *testing.T, s *testServer, token, dest string) error {
	t.Helper()
	tokenFile, caFile := tlsFiles(t, s, token)
	return tryCommand(t, "backup", "--server", s.url+"/", "--token-file", tokenFile, "--certificate-authority", caFile, dest)
}

func TestBackupIsForAdministrators(t *testing.T) {
	t.Parallel()
	s, _ := startTLS(t)
	root := "Authorization: Bearer root-token"
	s.want(201, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
		`{"metadata":{"name":"dev-admin"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},
		"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"dev"}]}`, root)
	apitest.WaitFor(t, "bob's role", func() bool {
		return s.send("GET", "/api/v1/secrets", "", "Authorization: Bearer bob-token").code == 200
	})
	for _, c := range []struct{ title, token, want string }{
		{"a master", "root-token", ""},
		{"a cluster-admin", "bob-token", `403 Forbidden: forbidden: User "bob" cannot get path "/debug/backup"`},
		{"a stranger", "no-token", "401 Unauthorized: Unauthorized"},
	} {
		dest := filepath.Join(t.TempDir(), "copy.db")
		if err := backUpTLS(t, s, c.token, dest); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", c.title, err, c.want)
		}
		if _, err := os.Stat(dest); (err == nil) != (c.want == "") {
			t.Errorf("%s: the file: %v", c.title, err)
		}
	}
	s.want(201, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles",
		`{"metadata":{"name":"keeper"},"rules":[{"nonResourceURLs":["/debug/backup"],"verbs":["get"]}]}`, root)
	s.want(201, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
		`{"metadata":{"name":"keeper"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"keeper"},
		"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"bob"}]}`, root)
	apitest.WaitFor(t, "bob's backup", func() bool {
		return backUpTLS(t, s, "bob-token", filepath.Join(t.TempDir(), "copy.db")) == nil
	})
}

func TestBackupCommandLine(t *testing.T) {
	t.Parallel()
	s, _ := startTLS(t)
	tokenFile, caFile := tlsFiles(t, s, "root-token")
	dest := filepath.Join(t.TempDir(), "copy.db")
	for _, c := range []struct {
		title string
		args  []string
		code  int
		want  string
	}{
		{"no authority", []string{"--server", s.url, "--token-file", tokenFile, dest}, 1, "certificate"},
		{"no token", []string{"--server", s.url, "--certificate-authority", caFile, dest}, 1, `User "system:anonymous" cannot get path`},
		{"a token for all to read", []string{"--server", "http://127.0.0.1:1", "--token-file", tokenFile, dest}, 1, "requires a --server with https"},
		{"no such token file", []string{"--server", s.url, "--token-file", dest, dest}, 1, "--token-file: open"},
		{"an authority that is none", []string{"--server", s.url, "--certificate-authority", tokenFile, dest}, 1, "no certificate in"},
		{"all", []string{"--server", s.url, "--token-file", tokenFile, "--certificate-authority", caFile, dest}, 0, ""},
		{"there already", []string{"--server", s.url, "--token-file", tokenFile, "--certificate-authority", caFile, dest}, 1, "file already exists"},
	} {
		if r := runAs(t, "apilet", append([]string{"backup"}, c.args...)...); r.code != c.code || !strings.Contains(r.errs, c.want) {
			t.Errorf("%s: exit code %d, %s", c.title, r.code, r.errs)
		}
	}
	if rep, err := store.Check(dest); err != nil || len(rep.Problems) > 0 || rep.Objects == 0 {
		t.Errorf("check: %v, %+v", err, rep)
	}
}

func TestBackupLeavesNothingBesideTheData(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := startTest(t, onFile(filepath.Join(dir, "a.db")))
	if a := s.want(200, "GET", "/debug/backup", ""); gjson.ValidBytes(a.body) || a.header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("%v %.80s", a.header, a.body)
	}
	s.halt()
	os.MkdirAll(filepath.Join(dir, ".a.db.backup-123", "backup"), 0o700) // of a server that was killed
	os.MkdirAll(filepath.Join(dir, ".b.db.backup-123", "backup"), 0o700) // belongs to another server
	s.start()
	left, _ := os.ReadDir(dir)
	if len(left) != 3 || left[2].Name() != "a.db-wal" || left[0].Name() != ".b.db.backup-123" || left[1].Name() != "a.db" {
		t.Errorf("beside the data file: %v", left)
	}
}
