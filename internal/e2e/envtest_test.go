package e2e

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"apilet/internal/envtest"
	"apilet/internal/options"
	"apilet/internal/scheme"
)

// ownFlags returns the flags of the command that serves.
func ownFlags() *flag.FlagSet {
	var o options.Options
	set := flag.NewFlagSet("apilet", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	for _, group := range o.Groups() {
		group.Define(set)
	}
	return set
}

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
		{"modes", "--authorization-mode=Node,RBAC", "--authorization-mode=Node,RBAC --listen=0.0.0.0:6443 --cert-dir=/var/run/kubernetes", ""},
		{"dual stack", "--service-cluster-ip-range=fd00::/112,10.0.0.0/24", "--service-cluster-ip-range=fd00::/112,10.0.0.0/24 --listen=0.0.0.0:6443 --cert-dir=/var/run/kubernetes", ""},
		{"log format", "--logging-format=text", "--log-format=console --listen=0.0.0.0:6443 --cert-dir=/var/run/kubernetes", ""},
		{"without effect", "--allow-privileged --etcd-servers http://x --watch-cache=false --etcd-servers=y", "--listen=0.0.0.0:6443 --cert-dir=/var/run/kubernetes", "allow-privileged --etcd-servers --watch-cache\n"},
		{"no service accounts", "--disable-admission-plugins=A,ServiceAccount", "--disable-admission-plugins=A,ServiceAccount --namespace-defaults=false --listen=0.0.0.0:6443 --cert-dir=/var/run/kubernetes", ""},
		{"another version", "--emulated-version kube=1.36", "--emulated-version=kube=1.36 --listen=0.0.0.0:6443 --cert-dir=/var/run/kubernetes", ""},
		{"other plug-ins", "--disable-admission-plugins=A,B", "--disable-admission-plugins=A,B --listen=0.0.0.0:6443 --cert-dir=/var/run/kubernetes", ""},
		{"certificates to make", "--cert-dir=/none", "--listen=0.0.0.0:6443 --cert-dir=/none", ""},
		{"certificates there", "--cert-dir=" + certs, "--listen=0.0.0.0:6443 " + strings.Join(made, " "), ""},
		{"certificates given", "--tls-cert-file=c --cert-dir=" + certs, "--tls-cert-file=c --listen=0.0.0.0:6443", ""},
	} {
		own := ownFlags()
		var notes bytes.Buffer
		got, err := envtest.TranslateAPIServer(strings.Fields(c.args), own, &notes)
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
		"--authorization-mode=AlwaysDeny": "--authorization-mode=AlwaysDeny: apilet has RBAC, Node and AlwaysAllow",
	} {
		own := ownFlags()
		if _, err := envtest.TranslateAPIServer([]string{args}, own, io.Discard); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", args, err, want)
		}
	}
}

// TestCalledAsAPIServer checks --help, --version and unknown flags. envtest uses the help text to
// detect whether a flag exists.
func TestCalledAsAPIServer(t *testing.T) {
	help := runAs(t, "kube-apiserver", "--help")
	if help.code != 0 || help.errs != "" {
		t.Errorf("--help: exit %d, %s", help.code, help.errs)
	}
	for name, want := range map[string]bool{"insecure-port": false, "secure-port": true, "etcd-servers": true, "token-auth-file": true} {
		if got := regexp.MustCompile(`(?m)^\s*--` + name + `\b`).MatchString(help.out); got != want {
			t.Errorf("the help names --%s: %v, want %v", name, got, want)
		}
	}
	if r := runAs(t, "kube-apiserver", "--version"); r.code != 0 || r.out != "Kubernetes "+scheme.KubernetesVersion+"+apilet\n" {
		t.Errorf("--version: exit %d, %s", r.code, r.out)
	}
	if r := runAs(t, "kube-apiserver", "--bogus"); r.code != 1 || r.errs != "kube-apiserver: unknown flag: --bogus\n" {
		t.Errorf("--bogus: exit %d, %s", r.code, r.errs)
	}
	for path, want := range map[string]string{"/a/etcd": "etcd", "kube-apiserver.exe": "kube-apiserver", "./apilet": "apilet"} {
		if got := envtest.ProgramName(path); got != want {
			t.Errorf("programName(%q) = %q, want %q", path, got, want)
		}
	}
}

func FuzzAPIServerArguments(f *testing.F) {
	f.Add("--secure-port=1 --etcd-servers x -v")
	f.Fuzz(func(t *testing.T, line string) {
		own := ownFlags()
		args, err := envtest.TranslateAPIServer(strings.Split(line, " "), own, io.Discard)
		if err == nil && !strings.HasPrefix(args[len(args)-1], "--") || errors.Is(err, flag.ErrHelp) && !strings.Contains(line, "-h") {
			t.Errorf("%q: %q, %v", line, args, err)
		}
	})
}

// TestEtcdSaysItsVersion checks that the output has the format of etcd, because scripts parse it.
func TestEtcdSaysItsVersion(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--version", "-version"} {
		if r := runAs(t, "etcd", flag); r.code != 0 || !regexp.MustCompile(`^etcd Version: \d+\.\d+\.\d+\n`).MatchString(r.out) {
			t.Errorf("etcd %s: exit %d, %q", flag, r.code, r.out)
		}
	}
}

// TestEnvtestAssetsAreMade checks that the links refer to this program, that a second run replaces
// them, and that the output is valid shell code.
func TestEnvtestAssetsAreMade(t *testing.T) {
	own := builtProgram(t)
	tools := t.TempDir()
	if err := os.WriteFile(filepath.Join(tools, "kubectl"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", tools)
	dir := filepath.Join(t.TempDir(), "it's here", "bin")
	for range 2 {
		if out, want := command(t, "envtest-assets", dir), "export KUBEBUILDER_ASSETS='"+strings.ReplaceAll(dir, "'", `'\''`)+"'\n"; out != want {
			t.Errorf("printed %q, want %q", out, want)
		}
		for link, want := range map[string]string{"kube-apiserver": own, "etcd": own, "kubectl": filepath.Join(tools, "kubectl")} {
			if got, err := os.Readlink(filepath.Join(dir, link)); got != want {
				t.Errorf("%s leads to %q (%v), want %s", link, got, err, want)
			}
		}
	}
	for _, link := range []string{"etcd", "kubectl"} { // now they are the user's own files
		if err := errors.Join(os.Remove(filepath.Join(dir, link)), os.WriteFile(filepath.Join(dir, link), []byte("mine"), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	if r := runAs(t, "apilet", "envtest-assets", dir); r.code != 1 || !strings.Contains(r.errs, "etcd: file exists") {
		t.Errorf("exit %d: %s", r.code, r.errs)
	}
	if text, _ := os.ReadFile(filepath.Join(dir, "etcd")); string(text) != "mine" {
		t.Errorf("etcd is now %q", text)
	}
	if r := runAs(t, "apilet", "envtest-assets", "--version=1.38", dir); r.code != 1 || !strings.Contains(r.errs, "emulation version 1.38 is not between [1.34, 1.37.0]") {
		t.Errorf("a later version: exit %d: %s", r.code, r.errs)
	}
	if r := runAs(t, "apilet", "envtest-assets"); r.code != 2 {
		t.Errorf("without a folder: exit %d", r.code)
	}
}
