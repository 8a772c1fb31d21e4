package e2e

// These tests run servers on a small file system that becomes full or read-only. It is a tmpfs in
// the mount namespace of a child process. If unprivileged user namespaces are allowed, this does
// not require root.

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
	cmd.Env = append(os.Environ(), "APILET_TMPFS_CHILD="+what, "APILET_TMPFS_DIR="+t.TempDir(), "APILET_PROGRAM="+builtProgram(t))
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

// TestTmpfsChild is not a test. It is run by the other tests, in a child process with separate
// namespaces.
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

// remount changes the mounted file system while the server uses it.
func remount(t *testing.T, dir string, flags uintptr, options string) {
	t.Helper()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|flags, options); err != nil {
		t.Fatal(err)
	}
}

// fillTheDisk writes until the server only accepts deletes, and frees space with deletes. Then it
// fills the disk to the last byte, tries all operations that need space, frees space again, and
// checks that no object is lost. The test ends if the server exits.
func fillTheDisk(t *testing.T, dir string) {
	// If there is not enough space, the server does not wait for the compaction interval.
	f := &fullDisk{testServer: startTest(t, onFile(filepath.Join(dir, "a.db")), "--quota-backend-bytes=-1", "--compaction-interval=24h"),
		dir: dir, dest: filepath.Join(dir, "copy.db")}
	f.maps = f.namespace("full")
	f.want(201, "POST", f.maps, `{"metadata":{"name":"held","finalizers":["example.com/hold"]}}`)
	f.made++
	f.fill(20_000)
	f.fill(10)
	f.reserved()
	f.deletes()
	// Compaction may free space several times.
	if begun, over := f.troubleLines("writing (full disk)"); begun < 1 || begun != over || begun > 9 {
		t.Errorf("the log says %d times that it begins and %d times that it ends:\n%s", begun, over, f.log)
	}
	f.fill(20_000)
	f.toTheLastByte()
	f.intact("when full")
	f.attempts()
	f.restart() // while the disk is full
	f.intact("after a restart")
	f.fill(200_000)
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

// A fullDisk is a server with a small disk.
type fullDisk struct {
	*testServer
	dir, dest, maps string
	made            int      // number of acknowledged objects
	next            int      // number of the last create
	names           []string // of the objects that fill created
}

func (f *fullDisk) create(size int) answer {
	f.next++
	return f.send("POST", f.maps, configMap(fmt.Sprintf("m%d", f.next), "pad", strings.Repeat("x", size)))
}

// fill creates objects until the disk is full, even after a compaction.
func (f *fullDisk) fill(size int) {
	f.t.Helper()
	for again := true; again; {
		again = false
		for a := f.create(size); ; a = f.create(size) {
			if a.code != 201 {
				f.full("create", a)
				break
			}
			again = true
			f.made++
			f.names = append(f.names, a.get("metadata.name").String())
		}
		f.awaitCompaction()
	}
}

// reserved checks a server that reserves the remaining space for deletes. It must report this in
// its health checks and metrics, and be ready.
func (f *fullDisk) reserved() {
	f.t.Helper()
	if free, reserve := f.wantMetric("apilet_disk_free_bytes"), f.wantMetric("apilet_disk_reserve_bytes"); free < reserve/2 || reserve == 0 {
		f.t.Errorf("%v bytes are free, and %v reserved", free, reserve)
	}
	f.full("update", f.send("PATCH", f.maps+"/m1", `{"data":{"more":"x"}}`, "Content-Type: application/merge-patch+json"))
	f.want(200, "GET", "/readyz", "")
	if text := string(f.want(200, "GET", "/readyz?verbose", "").body); !strings.Contains(text, "[!]disk warns: "+filepath.Join(f.dir, "a.db")+": no space left on the disk") {
		f.t.Error(text)
	}
	if a := f.send("GET", "/readyz/disk", ""); a.code != 500 || !strings.Contains(string(a.body), "delete objects") {
		f.t.Errorf("/readyz/disk: %d %s", a.code, a.body)
	}
	f.figures(map[string]float64{"apilet_disk_full": 1, `kubernetes_healthcheck{name="disk",type="readyz"}`: 0, "apilet_disk_bytes": 6 << 20})
}

func (f *fullDisk) figures(want map[string]float64) {
	f.t.Helper()
	for series, value := range want {
		if got := metricValue(f.testServer, series); got != value {
			f.t.Errorf("%s is %v, want %v", series, got, value)
		}
	}
}

// deletes removes most objects. Their tombstones need several times the reserve. Afterwards creates
// must succeed again.
func (f *fullDisk) deletes() {
	f.t.Helper()
	before := len(f.want(200, "GET", f.maps, "").body)
	f.want(200, "DELETE", f.maps+"/held", "")
	f.want(200, "PATCH", f.maps+"/held", `{"metadata":{"finalizers":null}}`, "Content-Type: application/merge-patch+json")
	f.want(404, "GET", f.maps+"/held", "")
	f.made--
	for _, name := range f.names[:len(f.names)*3/4] {
		f.want(200, "DELETE", f.maps+"/"+name, "")
		f.made--
	}
	deleted, reserve := before-len(f.want(200, "GET", f.maps, "").body), int(f.wantMetric("apilet_disk_reserve_bytes"))
	if deleted < 3*reserve {
		f.t.Errorf("%d bytes were deleted, with a reserve of %d: that shows nothing", deleted, reserve)
	}
	apitest.WaitFor(f.t, "room for a create", func() bool { return f.create(20_000).code == 201 })
	f.made++
	apitest.WaitFor(f.t, "the check of the disk", func() bool { return f.send("GET", "/readyz/disk", "").code == 200 })
	f.figures(map[string]float64{"apilet_disk_full": 0, `kubernetes_healthcheck{name="disk",type="readyz"}`: 1})
}

// toTheLastByte fills the rest of the disk from outside of the server.
func (f *fullDisk) toTheLastByte() {
	file, err := os.Create(filepath.Join(f.dir, "filler"))
	for size := 1 << 16; err == nil && size > 0; size /= 2 {
		for _, full := file.Write(make([]byte, size)); full == nil; _, full = file.Write(make([]byte, size)) {
		}
	}
	if err := errors.Join(err, file.Close()); err != nil {
		f.t.Fatal(err)
	}
}

// full checks that the response is an error about a full disk.
func (f *fullDisk) full(what string, a answer) {
	f.t.Helper()
	if a.code != 500 || a.get("reason").String() != "InternalError" || !strings.Contains(a.get("message").String(), store.ErrDiskFull.Error()) {
		f.t.Errorf("%s: %s", what, a.failure())
	}
}

// intact checks that exactly the acknowledged objects exist.
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

// attempts checks that operations that need space fail without changing anything.
func (f *fullDisk) attempts() {
	f.want(200, "GET", "/readyz", "")
	f.full("backup over HTTP", f.send("GET", "/debug/backup", ""))
	if told := runAs(f.t, "apilet", "backup", "--server", f.url, f.dest); told.code == 0 {
		f.t.Error("a download found room")
	}
	f.intact("after the attempts")
}

func (f *fullDisk) attemptsWhenStopped() {
	data, rest := filepath.Join(f.dir, "a.db"), filepath.Join(f.dir, "rest")
	if file, err := os.Create(rest); err == nil { // uses the space of the log
		for err == nil {
			_, err = file.Write(make([]byte, 4096))
		}
		file.Close()
	}
	defer os.Remove(rest)
	before, _ := os.ReadFile(data)
	if err := store.Defrag(data, nil); err == nil || !store.IsDiskFull(err) {
		f.t.Errorf("defrag: %v", err)
	}
	f.backupStopped(data)
	if after, _ := os.ReadFile(data); sha256.Sum256(before) != sha256.Sum256(after) {
		f.t.Error("the failed defrag has changed the file")
	}
	if _, err := store.Open(filepath.Join(f.dir, "new.db"), store.Options{}); err == nil || !store.IsDiskFull(err) {
		f.t.Errorf("a new store: %v", err)
	}
	if left, _ := os.ReadDir(f.dir); len(left) != 3 { // the data file and the two fillers
		f.t.Errorf("left: %v", left)
	}
}

// cleanUp repeats the failed operations with enough space.
func (f *fullDisk) cleanUp() {
	data := filepath.Join(f.dir, "a.db")
	if told := runAs(f.t, "apilet", "backup", "--server", f.url, f.dest); told.code != 0 {
		f.t.Errorf("download with room: %s", told.errs)
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

// lockTheDisk runs a server on a read-only file system.
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
	if _, _, err := openTestCerts(t, certs); err == nil || !strings.Contains(err.Error(), "ca.key contains secrets, other users can read it (mode 0644)") {
		t.Errorf("an authority whose key is everybody's for good: %v", err)
	}
	if why := startFails(t, onFile(data)); !strings.Contains(why, data) || !strings.Contains(why, "read-only file system") {
		t.Errorf("start: %s", why)
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

// backupStopped checks that a backup of the stopped server's file fails.
func (f *fullDisk) backupStopped(data string) {
	f.t.Helper()
	told := runAs(f.t, "apilet", "backup", "--data", data, f.dest)
	if told.code == 0 || !strings.Contains(told.errs, "no space left") {
		f.t.Errorf("backup of the file: %d %s", told.code, told.errs)
	}
}
