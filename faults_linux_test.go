package main

// These tests run servers on a small file system of their own, which fills up and which becomes read-only. It is a tmpfs in a mount
// namespace of a child's own, for which nobody needs to be root where unprivileged user namespaces are allowed.

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"apilet/internal/apitest"
	"apilet/internal/store"
)

func TestFullDiskServer(t *testing.T)     { runOnTmpfs(t, "full") }
func TestReadOnlyDiskServer(t *testing.T) { runOnTmpfs(t, "readonly") }

func runOnTmpfs(t *testing.T, what string) {
	t.Parallel()
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
	f := &fullDisk{testServer: startTest(t, onFile(filepath.Join(dir, "a.db"))), dir: dir, dest: filepath.Join(dir, "copy.db")}
	f.maps = f.namespace("full")
	for a := f.create(20_000); ; a = f.create(20_000) {
		if a.code != 201 {
			f.full("create", a)
			break
		}
		f.made++
	}
	f.intact("when full")
	f.attempts()
	f.restart() // on the full disk
	f.intact("after a restart")
	f.full("create", f.create(200_000))
	f.halt()
	f.attemptsWhenStopped()
	f.start()
	f.intact("after another restart")
	remount(t, dir, 0, "size=64m")
	if a := f.create(200_000); a.code != 201 {
		t.Errorf("create with room: %s", a.failure())
	}
	f.made++
	f.cleanUp()
}

// A fullDisk is a server whose disk is small.
type fullDisk struct {
	*testServer
	dir, dest, maps string
	made            int // objects that were acknowledged
}

func (f *fullDisk) create(size int) answer {
	return f.send("POST", f.maps, configMap(fmt.Sprintf("m%d", f.made), "pad", strings.Repeat("x", size)))
}

// full wants an answer that names the disk.
func (f *fullDisk) full(what string, a answer) {
	f.t.Helper()
	if a.code != 500 || a.get("reason").String() != "InternalError" || !strings.Contains(a.get("message").String(), store.ErrDiskFull.Error()) {
		f.t.Errorf("%s: %s", what, a.failure())
	}
}

// intact wants all that was acknowledged, and nothing else.
func (f *fullDisk) intact(what string) {
	f.t.Helper()
	have := 0
	for _, name := range strings.Fields(f.want(200, "GET", f.maps, "").names()) {
		if name != "kube-root-ca.crt" {
			have++
		}
	}
	if have != f.made {
		f.t.Errorf("%s: %d of %d objects are listed", what, have, f.made)
	}
}

// attempts at what needs room may fail, and change nothing.
func (f *fullDisk) attempts() {
	f.want(200, "GET", "/readyz", "")
	f.full("backup over HTTP", f.send("GET", "/debug/backup", ""))
	if err := f.upkeep.Backup(f.t.Context(), f.dest, nil); err == nil || !store.IsDiskFull(err) {
		f.t.Errorf("backup: %v", err)
	}
	if err := runCommand("backup", "--server", f.url, f.dest); err == nil {
		f.t.Error("a download found room")
	}
	if _, err := f.upkeep.Compact(f.t.Context(), f.st.Revision()); err != nil && !errors.Is(err, store.ErrDiskFull) {
		f.t.Errorf("compaction: %v", err)
	}
	f.intact("after the attempts")
}

func (f *fullDisk) attemptsWhenStopped() {
	data := filepath.Join(f.dir, "a.db")
	before, _ := os.ReadFile(data)
	if err := store.Defrag(data, nil); err == nil || !store.IsDiskFull(err) {
		f.t.Errorf("defrag: %v", err)
	}
	if after, _ := os.ReadFile(data); sha256.Sum256(before) != sha256.Sum256(after) {
		f.t.Error("the failed defrag has changed the file")
	}
	if _, err := store.Open(filepath.Join(f.dir, "new.db"), store.Options{}); err == nil || !store.IsDiskFull(err) {
		f.t.Errorf("a new store: %v", err)
	}
	if left, _ := os.ReadDir(f.dir); len(left) != 1 {
		f.t.Errorf("left: %v", left)
	}
}

// cleanUp does with room what failed without.
func (f *fullDisk) cleanUp() {
	data := filepath.Join(f.dir, "a.db")
	if _, err := f.upkeep.Compact(f.t.Context(), f.st.Revision()); err != nil {
		f.t.Errorf("compaction with room: %v", err)
	}
	if err := runCommand("backup", "--server", f.url, f.dest); err != nil {
		f.t.Errorf("download with room: %v", err)
	}
	f.intact("with room")
	f.halt()
	if err := store.Defrag(data, nil); err != nil {
		f.t.Errorf("defrag with room: %v", err)
	}
	for _, path := range []string{data, f.dest} {
		if rep, err := store.Check(path); err != nil || len(rep.Problems) > 0 || rep.Objects < int64(f.made) {
			f.t.Errorf("check of %s: %v, %+v", path, err, rep)
		}
	}
}

// lockTheDisk starts a server on a read-only file system.
func lockTheDisk(t *testing.T, dir string) {
	data := filepath.Join(dir, "a.db")
	s := startTest(t, onFile(data))
	s.want(201, "POST", s.namespace("locked"), configMap("m"))
	s.halt()
	certs := filepath.Join(dir, "certs")
	if _, _, err := openTestCerts(t, certs); err != nil {
		t.Fatal(err)
	}
	apitest.Chmod(t, filepath.Join(certs, "ca.key"), 0o644)
	remount(t, dir, syscall.MS_RDONLY, "")
	if _, _, err := openTestCerts(t, certs); err == nil || !strings.Contains(err.Error(), "ca.key holds secrets, others may read it (mode 0644)") {
		t.Errorf("an authority whose key is everybody's for good: %v", err)
	}
	conf := s.conf
	if _, err := startServer(&conf); err == nil || !strings.Contains(err.Error(), data) || !strings.Contains(err.Error(), "read-only file system") {
		t.Errorf("start: %v", err)
	}
	for what, err := range map[string]error{
		"a new store": func() error { _, err := store.Open(filepath.Join(dir, "new.db"), store.Options{}); return err }(),
		"defrag":      store.Defrag(data, nil),
	} {
		if err == nil || !strings.Contains(err.Error(), "read-only file system") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if rep, err := store.Check(data); err != nil || len(rep.Problems) > 0 {
		t.Errorf("check: %v, %v", err, rep.Problems)
	}
	remount(t, dir, 0, "")
	s.start()
	s.want(http.StatusOK, "GET", "/api/v1/namespaces/locked/configmaps/m", "")
}
