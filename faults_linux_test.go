package main

// These tests run servers on a small file system of their own, which fills up and which becomes read-only. It is a tmpfs in a mount
// namespace of a child's own, for which nobody needs to be root where unprivileged user namespaces are allowed.

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestFullDiskServer(t *testing.T)     { runOnTmpfs(t, "full") }
func TestReadOnlyDiskServer(t *testing.T) { runOnTmpfs(t, "readonly") }

func runOnTmpfs(t *testing.T, what string) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestTmpfsChild$", "-test.v")
	cmd.Env = append(os.Environ(), "APILET_TMPFS_CHILD="+what, "APILET_TMPFS_DIR="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	switch {
	case cmd.Process == nil:
		t.Skipf("no file system of our own here: %v", err)
	case strings.Contains(string(out), "--- SKIP"):
		t.Skipf("%s", out)
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	}
}

// TestTmpfsChild is no test but what the others run in a namespace of its own.
func TestTmpfsChild(t *testing.T) {
	dir := os.Getenv("APILET_TMPFS_DIR")
	if dir == "" {
		t.Skip("for other tests")
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=6m"); err != nil {
		t.Skipf("mounting a tmpfs: %v", err)
	}
	if os.Getenv("APILET_TMPFS_CHILD") == "full" {
		fillTheDisk(t, dir)
	} else {
		lockTheDisk(t, dir)
	}
}

// remount changes the file system under everybody's feet.
func remount(t *testing.T, dir string, flags uintptr, options string) {
	t.Helper()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|flags, options); err != nil {
		t.Fatal(err)
	}
}

// fillTheDisk writes until a server's disk is full, tries everything that there is to try then, makes room, and looks whether anything
// is lost. A server that ends the process ends the test.
func fillTheDisk(t *testing.T, dir string) {
	s := startTest(t, onFile(filepath.Join(dir, "a.db")))
	maps := s.namespace("full")
	made := 0
	full := func(what string, a answer) {
		t.Helper()
		if a.code != 500 || a.get("reason").String() != "InternalError" || !strings.Contains(a.get("message").String(), errDiskFull.Error()) {
			t.Errorf("%s: %s", what, a.failure())
		}
	}
	for ; ; made++ {
		a := s.send("POST", maps, configMap(fmt.Sprintf("m%d", made), "pad", strings.Repeat("x", 20_000)))
		if a.code != 201 {
			full("create", a)
			break
		}
	}
	intact := func(what string) {
		t.Helper()
		names := strings.Fields(s.want(200, "GET", maps, "").names())
		have := 0
		for _, name := range names {
			if name != "kube-root-ca.crt" {
				have++
			}
		}
		if have != made {
			t.Errorf("%s: %d of %d objects are listed", what, have, made)
		}
	}
	intact("when full")
	s.want(200, "GET", "/readyz", "")
	full("backup over HTTP", s.send("GET", "/debug/backup", ""))
	dest := filepath.Join(dir, "copy.db")
	if err := s.upkeep.backup(t.Context(), dest); err == nil || !isDiskFull(err) {
		t.Errorf("backup: %v", err)
	}
	if err := (backupSource{server: s.url}).download(dest); err == nil {
		t.Error("a download found room")
	}
	if _, err := s.upkeep.compact(t.Context(), s.st.revision()); err != nil && !isDiskFull(err) && err != errDiskFull {
		t.Errorf("compaction: %v", err)
	}
	intact("after the attempts")
	s.restart() // on the full disk
	intact("after a restart")
	full("create", s.send("POST", maps, configMap("again", "pad", strings.Repeat("x", 200_000))))
	s.halt()
	data := filepath.Join(dir, "a.db")
	before, _ := os.ReadFile(data)
	if err := defragFile(data); err == nil || !isDiskFull(err) {
		t.Errorf("defrag: %v", err)
	}
	if after, _ := os.ReadFile(data); sha256.Sum256(before) != sha256.Sum256(after) {
		t.Error("the failed defrag has changed the file")
	}
	if _, err := openStore(filepath.Join(dir, "new.db"), storeOptions{}); err == nil || !isDiskFull(err) {
		t.Errorf("a new store: %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
	s.start()
	intact("after another restart")
	remount(t, dir, 0, "size=64m")
	s.want(201, "POST", maps, configMap(fmt.Sprintf("m%d", made), "pad", strings.Repeat("x", 200_000)))
	made++
	if _, err := s.upkeep.compact(t.Context(), s.st.revision()); err != nil {
		t.Errorf("compaction with room: %v", err)
	}
	if err := (backupSource{server: s.url}).download(dest); err != nil {
		t.Errorf("download with room: %v", err)
	}
	intact("with room")
	s.halt()
	if err := defragFile(data); err != nil {
		t.Errorf("defrag with room: %v", err)
	}
	for _, path := range []string{data, dest} {
		if rep, err := checkFile(path); err != nil || len(rep.problems) > 0 || rep.objects < int64(made) {
			t.Errorf("check of %s: %v, %+v", path, err, rep)
		}
	}
}

// lockTheDisk starts a server on a read-only file system.
func lockTheDisk(t *testing.T, dir string) {
	data := filepath.Join(dir, "a.db")
	s := startTest(t, onFile(data))
	s.want(201, "POST", s.namespace("locked"), configMap("m"))
	s.halt()
	remount(t, dir, syscall.MS_RDONLY, "")
	conf := s.conf
	if _, err := startServer(&conf); err == nil || !strings.Contains(err.Error(), data) || !strings.Contains(err.Error(), "read-only file system") {
		t.Errorf("start: %v", err)
	}
	for what, err := range map[string]error{
		"a new store": func() error { _, err := openStore(filepath.Join(dir, "new.db"), storeOptions{}); return err }(),
		"defrag":      defragFile(data),
	} {
		if err == nil || !strings.Contains(err.Error(), "read-only file system") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if rep, err := checkFile(data); err != nil || len(rep.problems) > 0 {
		t.Errorf("check: %v, %v", err, rep.problems)
	}
	remount(t, dir, 0, "")
	s.start()
	s.want(http.StatusOK, "GET", "/api/v1/namespaces/locked/configmaps/m", "")
}
