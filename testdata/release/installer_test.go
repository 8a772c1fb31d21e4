package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// wantInstalls installs the programs of a release over HTTP.
func wantInstalls(t *testing.T, repo, folder string) {
	t.Helper()
	server := httptest.NewServer(http.FileServer(http.Dir(folder)))
	t.Cleanup(server.Close)
	for flavour, tags := range map[string]string{"full": "grpcnotrace", "noetcd": "noetcd"} {
		to := t.TempDir()
		run(t, "sh", filepath.Join(folder, "install.sh"), "--from", server.URL, "--to", to, "--flavour", flavour)
		wantVersion(t, repo, filepath.Join(to, "apilet"), tags)
	}
}

// smallRelease writes a release whose program is a shell script, for this machine.
func smallRelease(t *testing.T, url string) (folder, archive string) {
	t.Helper()
	source, err := filepath.Abs("../..")
	must(t, err)
	folder = t.TempDir()
	r := &release{options: options{url: url}, source: source, made: folder, version: "v1.2.3"}
	title := r.title(build{target: target{runtime.GOOS, runtime.GOARCH}})
	archive = filepath.Join(folder, title+".tar.gz")
	var packed bytes.Buffer
	must(t, writeTarGz(&packed, []file{{name: title + "/apilet", mode: 0o755, content: []byte("#!/bin/sh\necho small\n")}}, time.Now()))
	must(t, os.WriteFile(archive, packed.Bytes(), 0o644))
	must(t, r.writeInstaller(t.Context()))
	must(t, r.writeSums(t.Context()))
	return folder, archive
}

// install runs the script of a release and returns its output.
func install(folder string, args ...string) (string, error) {
	out, err := exec.Command("sh", append([]string{filepath.Join(folder, "install.sh")}, args...)...).CombinedOutput()
	return string(out), err
}

// TestInstallScript installs over HTTP from the URL in the script, from a file URL and from a
// folder. A program that exists is replaced.
func TestInstallScript(t *testing.T) {
	t.Parallel()
	wantShell(t)
	var folder string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.FileServer(http.Dir(folder)).ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	folder, _ = smallRelease(t, server.URL+"/")
	for name, args := range map[string][]string{"its own URL": {}, "a file": {"--from", "file://" + folder}, "a folder": {"--from", folder}} {
		t.Run(name, func(t *testing.T) {
			to := filepath.Join(t.TempDir(), "new")
			for range 2 {
				if out, err := install(folder, append(args, "--to", to)...); err != nil || !strings.Contains(out, "installed "+to+"/apilet v1.2.3\n"+to+" is not in PATH") {
					t.Fatalf("%v\n%s", err, out)
				}
			}
			if got := run(t, filepath.Join(to, "apilet")); got != "small" || len(names(t, to)) != 1 {
				t.Errorf("the program prints %q, and the folder has %q", got, names(t, to))
			}
		})
	}
}

// TestInstallScriptRefuses runs the script on releases that are damaged or incomplete. It installs
// nothing.
func TestInstallScriptRefuses(t *testing.T) {
	t.Parallel()
	wantShell(t)
	nothing := func(string, string) error { return nil }
	for _, c := range []struct {
		title  string
		damage func(folder, archive string) error
		args   []string
		want   string
	}{
		{"a changed archive", func(_, archive string) error { return os.WriteFile(archive, []byte("other"), 0o644) }, nil, "has the checksum"},
		{"no archive", func(_, archive string) error { return os.Remove(archive) }, nil, "cannot get"},
		{"no checksum", func(folder, _ string) error { return os.WriteFile(filepath.Join(folder, "SHA256SUMS"), nil, 0o644) }, nil, "SHA256SUMS does not have"},
		{"no checksums", func(folder, _ string) error { return os.Remove(filepath.Join(folder, "SHA256SUMS")) }, nil, "cannot get"},
		{"a flavour that was not built", nothing, []string{"--flavour", "noetcd"}, "SHA256SUMS does not have"},
		{"an unknown flavour", nothing, []string{"--flavour", "half"}, "--flavour is full or noetcd"},
		{"an unknown argument", nothing, []string{"--prefix", "x"}, "unknown argument --prefix"},
		{"half an argument", nothing, []string{"--from"}, "--from needs a value"},
		{"no URL", nothing, []string{"--from", ""}, "--from URL is missing"},
	} {
		t.Run(c.title, func(t *testing.T) {
			folder, archive := smallRelease(t, "")
			must(t, c.damage(folder, archive))
			to := filepath.Join(t.TempDir(), "new")
			out, err := install(folder, append([]string{"--from", folder, "--to", to}, c.args...)...)
			if err == nil || !strings.Contains(out, c.want) {
				t.Errorf("%v, want %q:\n%s", err, c.want, out)
			}
			if _, err := os.Stat(to); !os.IsNotExist(err) {
				t.Errorf("the folder was created: %v", err)
			}
		})
	}
}

func TestURLThatCannotBeQuoted(t *testing.T) {
	t.Parallel()
	r := &release{options: options{url: "https://example.com/'; echo x"}, source: "../..", made: t.TempDir()}
	if err := r.writeInstaller(t.Context()); err == nil {
		t.Error("the script was written")
	}
}

// wantShell skips the test on a machine that cannot run the script.
func wantShell(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		t.Skip(fmt.Sprint("the script is not for ", runtime.GOOS))
	}
}
