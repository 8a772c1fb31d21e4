package e2e

// These tests fork prepared files from running servers, and start servers with them.

import (
	"bytes"
	"crypto/tls"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"apilet/internal/apitest"
)

// prepared returns a data file that was forked from a server. Its namespace prepared has the given
// ConfigMaps.
func prepared(t *testing.T, names ...string) string {
	t.Helper()
	s := startTest(t)
	maps := s.namespace("prepared")
	for _, name := range names {
		s.want(201, "POST", maps, configMap(name))
	}
	path := filepath.Join(t.TempDir(), "prepared.db")
	command(t, "fork", "--server", s.url, path)
	return path
}

func TestServersBeginWithAPreparedFileEachByItself(t *testing.T) {
	t.Parallel()
	path := prepared(t, "a", "b")
	before := apitest.ReadFile(t, path)
	one, two := startTest(t, "--base="+path), startTest(t, "--base="+path)
	const maps = "/api/v1/namespaces/prepared/configmaps"
	one.want(201, "POST", maps, configMap("c"))
	two.want(200, "DELETE", maps+"/a", "")
	if names := one.want(200, "GET", maps, "").names(); names != "a b c kube-root-ca.crt" && names != "a b c" {
		t.Errorf("the first has %q", names)
	}
	if names := two.want(200, "GET", maps, "").names(); names != "b kube-root-ca.crt" && names != "b" {
		t.Errorf("the second has %q", names)
	}
	one.halt()
	two.halt()
	if !bytes.Equal(apitest.ReadFile(t, path), before) {
		t.Error("the prepared file was written to")
	}
}

func TestForkIsOfTheMomentThatIsNamed(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	maps := s.namespace("fork")
	then := s.want(201, "POST", maps, configMap("a", "k", "old")).rev()
	s.want(200, "PUT", maps+"/a", configMap("a", "k", "new"))
	s.want(201, "POST", maps, configMap("b"))
	dir := t.TempDir()
	past := filepath.Join(dir, "past.db")
	command(t, "fork", "--server", s.url, "--at", strconv.FormatInt(then, 10), past)
	of := startTest(t, "--base="+past)
	if a := of.want(200, "GET", maps+"/a", ""); a.get("data.k").String() != "old" {
		t.Errorf("the fork has %s", a.body)
	}
	of.want(404, "GET", maps+"/b", "")
	for moment, want := range map[string]string{"123456789": "in the future", "banana": "is not a moment"} {
		r := runAs(t, "apilet", "fork", "--server", s.url, "--at", moment, filepath.Join(dir, "no.db"))
		if _, err := os.Stat(filepath.Join(dir, "no.db")); r.code != 1 || !strings.Contains(r.errs, want) || err == nil {
			t.Errorf("--at %s: %d %s %v", moment, r.code, r.errs, err)
		}
	}
	if r := runAs(t, "apilet", "fork", filepath.Join(dir, "no.db")); r.code != 1 || !strings.Contains(r.errs, "--server or --kubeconfig") {
		t.Errorf("of nobody: %d %s", r.code, r.errs)
	}
}

func TestWhatIsNoPreparedFileIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage.db")
	if err := os.WriteFile(garbage, bytes.Repeat([]byte("apilet"), 10_000), 0o600); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(dir, "open.db")
	s := startTest(t, onFile(open))
	s.namespace("x")
	for base, want := range map[string]string{garbage: "is not an apilet data file", filepath.Join(dir, "missing.db"): "missing.db", dir: "not a regular file", open: "was not closed"} {
		if why := startFails(t, "--base="+base); !strings.Contains(why, want) || !strings.Contains(why, "--base") {
			t.Errorf("--base=%s: %s", base, why)
		}
	}
	if why := startFails(t, "--base="+garbage, "--data="+filepath.Join(dir, "own.db")); !strings.Contains(why, "--ephemeral") {
		t.Errorf("--base and --data: %s", why)
	}
}

func TestEnvtestBeginsWithAPreparedFileAndVersion(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("files have no modes here")
	}
	path, dir := prepared(t, "a"), t.TempDir()
	own := filepath.Join(dir, "apilet") // envtest's links refer to the program that created them
	if err := os.Symlink(builtProgram(t), own); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "bin")
	command(t, "envtest-assets", "--base", path, "--version", "1.36.0", bin)
	cmd := exec.Command(filepath.Join(bin, "kube-apiserver"), "--cert-dir="+filepath.Join(dir, "certs"), "--bind-address=127.0.0.1", "--secure-port=0",
		"--authorization-mode=AlwaysAllow", "--logging-format=json")
	begun := make(chan string, 1)
	log := &serverLog{serving: begun}
	cmd.Stderr = log
	endWithTests(cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	apitest.WaitFor(t, "the server", func() bool { return len(begun) > 0 })
	s := &testServer{t: t, url: <-begun, client: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}}
	s.want(200, "GET", "/api/v1/namespaces/prepared/configmaps/a", "")
	apitest.Expect(t, s.want(200, "GET", "/version", "").get("emulationMinor"), "36")
	command(t, "envtest-assets", bin)
	for _, name := range []string{"base.db", "emulated-version"} {
		if _, err := os.Lstat(filepath.Join(bin, name)); err == nil {
			t.Errorf("%s outlives a call without its flag", name)
		}
	}
}
