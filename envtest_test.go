package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestAPIServerArgumentsAreTranslated(t *testing.T) {
	certs := t.TempDir()
	for _, name := range []string{"apiserver.crt", "apiserver.key"} {
		if err := os.WriteFile(filepath.Join(certs, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	made := []string{"--tls-cert-file=" + certs + "/apiserver.crt", "--tls-private-key-file=" + certs + "/apiserver.key"}
	for _, c := range []struct{ name, args, want, notes string }{
		{"defaults", "", "--listen=0.0.0.0:6443 --cert-dir=/var/run/kubernetes", ""},
		{"address and port", "--bind-address=127.0.0.1 --secure-port 4000", "--listen=127.0.0.1:4000 --cert-dir=/var/run/kubernetes", ""},
		{"ipv6", "--bind-address=::1 --secure-port=1", "--listen=[::1]:1 --cert-dir=/var/run/kubernetes", ""},
		{"apilet's own", "--client-ca-file=ca --anonymous-auth=false -v=3 --v 4", "--client-ca-file=ca --anonymous-auth=false --v=3 --v=4 --listen=0.0.0.0:6443 --cert-dir=/var/run/kubernetes", ""},
		{"switches take no word", "--enable-priority-and-fairness --token-auth-file t", "--enable-priority-and-fairness=true --token-auth-file=t --listen=0.0.0.0:6443 --cert-dir=/var/run/kubernetes", ""},
		{"underscores", "--client_ca_file=a_b", "--client-ca-file=a_b --listen=0.0.0.0:6443 --cert-dir=/var/run/kubernetes", ""},
		{"seconds", "--min-request-timeout=300", "--min-request-timeout=300s --listen=0.0.0.0:6443 --cert-dir=/var/run/kubernetes", ""},
		{"modes", "--authorization-mode=Node,RBAC", "--authorization-mode=RBAC --listen=0.0.0.0:6443 --cert-dir=/var/run/kubernetes", ""},
		{"dual stack", "--service-cluster-ip-range=fd00::/112,10.0.0.0/24", "--service-cluster-ip-range=10.0.0.0/24 --listen=0.0.0.0:6443 --cert-dir=/var/run/kubernetes", ""},
		{"log format", "--logging-format=text", "--log-format=console --listen=0.0.0.0:6443 --cert-dir=/var/run/kubernetes", ""},
		{"without effect", "--allow-privileged --etcd-servers http://x --watch-cache=false --etcd-servers=y", "--listen=0.0.0.0:6443 --cert-dir=/var/run/kubernetes", "allow-privileged --etcd-servers --watch-cache\n"},
		{"certificates to make", "--cert-dir=/none", "--listen=0.0.0.0:6443 --cert-dir=/none", ""},
		{"certificates there", "--cert-dir=" + certs, "--listen=0.0.0.0:6443 " + strings.Join(made, " "), ""},
		{"certificates given", "--tls-cert-file=c --cert-dir=" + certs, "--tls-cert-file=c --listen=0.0.0.0:6443", ""},
	} {
		_, own := newConfig(io.Discard)
		var notes bytes.Buffer
		got, err := translateAPIServer(strings.Fields(c.args), own, &notes)
		if want := append([]string{"--ephemeral"}, strings.Fields(c.want)...); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, want)
		}
		if !strings.HasSuffix(notes.String(), c.notes) || c.notes == "" && notes.Len() > 0 {
			t.Errorf("%s: notes %q, want %q", c.name, notes.String(), c.notes)
		}
		if err := own.Parse(got); err != nil {
			t.Errorf("%s: apilet does not take %q: %v", c.name, got, err)
		}
	}
}

func TestUnknownAPIServerArgumentsAreRefused(t *testing.T) {
	for args, want := range map[string]string{
		"--etcd-server=x":                 "unknown flag: --etcd-server",
		"--insecure-port=0":               "unknown flag: --insecure-port",
		"serve":                           `unexpected argument "serve"`,
		"-x":                              `unexpected argument "-x"`,
		"--":                              `unexpected argument "--"`,
		"":                                `unexpected argument ""`,
		"--secure-port":                   "flag needs an argument: --secure-port",
		"--authorization-mode=AlwaysDeny": "--authorization-mode=AlwaysDeny: apilet has RBAC and AlwaysAllow",
	} {
		_, own := newConfig(io.Discard)
		if _, err := translateAPIServer([]string{args}, own, io.Discard); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", args, err, want)
		}
	}
}

// TestCalledAsAPIServer asks what tools ask before they start it: envtest looks in the help for a flag that went with 1.24.
func TestCalledAsAPIServer(t *testing.T) {
	var help, version, errs bytes.Buffer
	if code := commandAs("kube-apiserver", []string{"--help"}, &help, &errs); code != 0 || errs.Len() > 0 {
		t.Errorf("--help: exit %d, %s", code, &errs)
	}
	for name, want := range map[string]bool{"insecure-port": false, "secure-port": true, "etcd-servers": true, "token-auth-file": true} {
		if got := regexp.MustCompile(`(?m)^\s*--` + name + `\b`).Match(help.Bytes()); got != want {
			t.Errorf("the help names --%s: %v, want %v", name, got, want)
		}
	}
	if code := commandAs("kube-apiserver", []string{"--version"}, &version, &errs); code != 0 || version.String() != "Kubernetes "+gitVersion+"\n" {
		t.Errorf("--version: exit %d, %s", code, &version)
	}
	if code := commandAs("kube-apiserver", []string{"--bogus"}, &version, &errs); code != 1 || errs.String() != "kube-apiserver: unknown flag: --bogus\n" {
		t.Errorf("--bogus: exit %d, %s", code, &errs)
	}
	for path, want := range map[string]string{"/a/etcd": "etcd", "kube-apiserver.exe": "kube-apiserver", "./apilet": "apilet"} {
		if got := programName(path); got != want {
			t.Errorf("programName(%q) = %q, want %q", path, got, want)
		}
	}
}

func TestCalledAsEtcdIsHealthyUntilTold(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at, said, done := "http://"+free.Addr().String(), &bytes.Buffer{}, make(chan error, 1)
	free.Close()
	go func() {
		done <- serveAsEtcd(ctx, []string{"--data-dir=x", "--listen-client-urls", at, "--unsafe-no-fsync=true"}, said)
	}()
	answer := func(path string) (int, string) {
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			resp, err := http.Get(at + path)
			if err == nil {
				defer resp.Body.Close()
				body, _ := io.ReadAll(resp.Body)
				return resp.StatusCode, string(body)
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
	if code, body := answer("/health"); code != 200 || body != `{"health":"true","reason":""}` {
		t.Errorf("/health: %d %s", code, body)
	}
	if code, body := answer("/v3/kv/range"); code != 404 || !strings.Contains(body, "kube-apiserver") {
		t.Errorf("/v3/kv/range: %d %s", code, body)
	}
	if err := serveAsEtcd(ctx, []string{"-listen-client-urls=" + at}, io.Discard); err == nil {
		t.Error("a second one on the same port started")
	}
	for _, bad := range []string{"https://localhost:0", "unix://x", "localhost:1", ""} {
		if err := serveAsEtcd(ctx, []string{"--listen-client-urls=" + bad}, io.Discard); err == nil || !strings.Contains(err.Error(), "no http:// URL") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	cancel()
	if err := <-done; err != nil || !strings.Contains(said.String(), "stores nothing") {
		t.Errorf("%v, said %q", err, said)
	}
}

func FuzzAPIServerArguments(f *testing.F) {
	f.Add("--secure-port=1 --etcd-servers x -v")
	f.Fuzz(func(t *testing.T, line string) {
		_, own := newConfig(io.Discard)
		args, err := translateAPIServer(strings.Split(line, " "), own, io.Discard)
		if err == nil && !strings.HasPrefix(args[len(args)-1], "--") || errors.Is(err, flag.ErrHelp) && !strings.Contains(line, "-h") {
			t.Errorf("%q: %q, %v", line, args, err)
		}
	})
}
