package etcd

// This file tests a replica on a full disk. The disk is a tmpfs in a mount namespace of the server,
// which does not require root if unprivileged user namespaces are allowed. A file of the test fills
// it, so that removing the file frees space.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"apilet/apilettest"
)

// ownDisk mounts DIR with a limited size, writes the filler, and executes the program.
const ownDisk = `mount -t tmpfs -o size=$2 tmpfs "$1" && head -c $3 /dev/zero > "$1/filler" && shift 3 && exec "$@"`

// onOwnDisk stores the replica on a separate disk that is partly filled.
func (s *server) onOwnDisk(size, taken int) (filler func() string) {
	s.t.Helper()
	dir := filepath.Dir(s.data)
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
	wrapped := func(program string, args ...string) []string {
		return append([]string{"-c", ownDisk, "sh", dir, fmt.Sprint(size), fmt.Sprint(taken), program}, args...)
	}
	try := exec.Command("sh", wrapped("true")...)
	try.SysProcAttr = attr
	if out, err := try.CombinedOutput(); err != nil {
		s.t.Skipf("no file system of our own here: %v %s", err, out)
	}
	s.Args, s.Path, s.Attr = wrapped(s.Path, s.Args...), "sh", attr
	return func() string { return fmt.Sprintf("/proc/%d/root%s/filler", s.Process().PID, dir) }
}

// TestReplicasDiskIsFull checks that a replica on a full disk answers requests if possible, rejects
// others in bounded time, reports the reason, and catches up when space is available.
func TestReplicasDiskIsFull(t *testing.T) {
	t.Parallel()
	const size, taken, objects, bytes = 16 << 20, 10 << 20, 40, 300 << 10
	c := startCluster(t, 1)
	whole, small := c.startServer(), c.aServer()
	filler := small.onOwnDisk(size, taken)
	small.run()
	whole.do(201, "POST", maps, aMap("early", "x", ""))
	since := read(t, small.do(200, "GET", maps, "")).Metadata.ResourceVersion
	watching := small.watch(t, maps, since)

	padding := strings.Repeat("x", bytes)
	var want []string
	for i := range objects {
		name := fmt.Sprintf("much-%02d", i)
		whole.do(201, "POST", maps, aMap(name, padding, ""))
		want = append(want, "ADDED "+name)
	}
	apilettest.Until(t, "the server is not ready, and says why", func() error {
		code, text, err := small.try("GET", "/readyz?verbose", "", patience)
		if err != nil || code == 200 || !strings.Contains(text, "[-]etcd") {
			return fmt.Errorf("%d %s %v", code, text, err)
		}
		return nil
	})
	apilettest.Until(t, "the figures say how far behind it is", func() error {
		if now := small.figures(); now["apilet_replica_lag_revisions"] < 1 || now["apilet_replica_lag_seconds"] <= 0 || now["apilet_disk_full"] != 1 {
			return fmt.Errorf("%v revisions, %v seconds, disk %v", now["apilet_replica_lag_revisions"], now["apilet_replica_lag_seconds"], now["apilet_disk_full"])
		}
		return nil
	})
	var asking sync.WaitGroup
	consistent := func() (refused chan struct{}) {
		refused = make(chan struct{})
		asking.Go(func() {
			defer close(refused)
			if code, text, err := small.try("GET", maps, "", patience); err != nil || code != 504 {
				t.Errorf("a consistent list: got %d %.300s %v", code, text, err)
			}
		})
		return refused
	}
	apilettest.Until(t, "what needs nothing new is answered while what does still waits", func() error {
		refused := consistent()
		small.do(200, "GET", maps+"/early?resourceVersion=0", "")
		select {
		case <-refused:
			return fmt.Errorf("it was answered later")
		default:
			return nil
		}
	})
	asking.Go(func() {
		if code, text, err := small.try("POST", maps, aMap("written-meanwhile", "x", ""), patience); err != nil || code != 201 {
			t.Errorf("a write that etcd has carried out: got %d %.300s %v", code, text, err)
		}
	})
	asking.Wait()
	want = append(want, "ADDED written-meanwhile")
	whole.do(200, "GET", maps+"/written-meanwhile", "")
	if told := len(watching.story()); told >= len(want) {
		t.Errorf("a watch was told %d events of a replica that is full: was it?", told)
	}

	if err := os.Remove(filler()); err != nil {
		t.Fatal(err)
	}
	apilettest.Until(t, "the server is ready again", func() error { return small.answers("/readyz?verbose") })
	if got, all := len(read(t, small.do(200, "GET", maps, "")).Items), len(read(t, whole.do(200, "GET", maps, "")).Items); got != all {
		t.Errorf("the server lists %d objects, the other one %d", got, all)
	}
	apilettest.Until(t, "the watch has told all", func() error {
		if story := watching.story(); !slices.Equal(story, want) {
			return fmt.Errorf("got %v", story)
		}
		return nil
	})
	written := change{"ADDED", "written-meanwhile", "Go-http-client/1.1"}
	if all := small.changes(since); !slices.Contains(all, written) {
		t.Errorf("who wrote %v is not told: %v", written, all)
	}
}
