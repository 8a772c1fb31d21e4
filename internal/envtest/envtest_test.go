package envtest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apilet/internal/apitest"
)

func TestCalledAsEtcdIsHealthyUntilTold(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at, said, done := "http://"+free.Addr().String(), &bytes.Buffer{}, make(chan error, 1)
	free.Close()
	go func() {
		done <- ServeAsEtcd(ctx, []string{"--data-dir=x", "--listen-client-urls", at, "--unsafe-no-fsync=true"}, io.Discard, said)
	}()
	answer := func(path string) (int, string) {
		var resp *http.Response
		var err error
		apitest.WaitFor(t, "an answer", func() bool {
			resp, err = http.Get(at + path)
			return err == nil
		}, func() any { return err })
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	if code, body := answer("/health"); code != 200 || body != `{"health":"true","reason":""}` {
		t.Errorf("/health: %d %s", code, body)
	}
	if code, body := answer("/v3/kv/range"); code != 404 || !strings.Contains(body, "kube-apiserver") {
		t.Errorf("/v3/kv/range: %d %s", code, body)
	}
	if err := ServeAsEtcd(ctx, []string{"-listen-client-urls=" + at}, io.Discard, io.Discard); err == nil {
		t.Error("a second one on the same port started")
	}
	for _, bad := range []string{"https://localhost:0", "unix://x", "localhost:1", ""} {
		if err := ServeAsEtcd(ctx, []string{"--listen-client-urls=" + bad}, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "not an http:// URL") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	cancel()
	if err := <-done; err != nil || !strings.Contains(said.String(), "stores nothing") {
		t.Errorf("%v, said %q", err, said)
	}
}

func TestFlagsBesideAProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "emulated-version"), []byte("1.36\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "kube-apiserver")
	for _, c := range []struct {
		program string
		args    []string
		want    string
	}{
		{program, nil, "[--emulated-version=1.36]"},
		{program, []string{"--v=3"}, "[--emulated-version=1.36]"},
		{program, []string{"--emulated-version=1.35"}, "[]"},
		{"kube-apiserver", nil, "[]"},
	} {
		if got := fmt.Sprint(FlagsBeside(c.program, c.args)); got != c.want {
			t.Errorf("%s %v: got %s, want %s", c.program, c.args, got, c.want)
		}
	}
}
