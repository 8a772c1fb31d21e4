//go:build linux && (amd64 || arm64)

package e2e

// This test makes single system calls of a writing store fail, as a broken disk would
// (powertrace_test.go). The store must end the process with one line, because the content of such a
// disk is unknown. After a restart it must have all acknowledged writes.

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"apilet/internal/store"
	"apilet/internal/store/storetest"
)

func TestFailingDiskEndsTheServer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		title string
		fails func(ev diskEvent) bool
		after int // the number of such calls that succeed first
	}{
		{"sync", func(ev diskEvent) bool { return ev.op == diskSync && ev.file != 0 }, 24},
		{"the sync behind it", func(ev diskEvent) bool { return ev.op == diskSync && ev.file != 0 }, 25},
		// Extending the log takes hundreds of writes.
		{"write", func(ev diskEvent) bool { return ev.op == diskWrite && ev.off >= 2*powerPage }, 1500},
		{"write of a meta page", func(ev diskEvent) bool { return ev.op == diskWrite && ev.off < 2*powerPage }, 15},
	} {
		t.Run(c.title, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.db")
			storetest.Open(t, path).Close() // another test covers the creation of the file
			cmd := exec.Command(os.Args[0], "-test.run=^TestWritingChild$", "-test.v")
			cmd.Env = append(os.Environ(), "APILET_WRITE_PATH="+path)
			cmd.Env = append(cmd.Env, "GODEBUG=asyncpreemptoff=1")
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			tr, calls := newDiskRecording(filepath.Dir(path)).newTracer(), 0
			tr.fault = func(ev diskEvent) syscall.Errno {
				if !c.fails(ev) {
					return 0
				}
				if calls++; calls <= c.after {
					return 0
				}
				return syscall.EIO // all later calls also fail, since the disk is broken
			}
			tr.record(t, cmd)
			said := strings.TrimSpace(errs.String())
			if tr.exit != 1 || strings.Contains(said, "\n") || !strings.Contains(said, "cannot write "+path) || !strings.Contains(said, syscall.EIO.Error()) {
				t.Errorf("exit code %d: %s", tr.exit, said)
			}
			acked := map[int64]string{}
			for _, line := range strings.Split(out.String(), "\n") {
				var rev int64
				var key string
				if n, _ := fmt.Sscanf(line, "ack %d %s", &rev, &key); n == 2 {
					acked[rev] = key
				}
			}
			if len(acked) == 0 {
				t.Errorf("nothing was acknowledged before: %s", out.String())
			}
			storetest.VerifyAcked(t, path, acked)
		})
	}
}

// TestWritingChild is not a test. It runs in the traced process.
func TestWritingChild(t *testing.T) {
	path := os.Getenv("APILET_WRITE_PATH")
	if path == "" {
		t.Skip("for TestFailingDiskEndsTheServer")
	}
	writeUntilTheDiskFails(path)
}

// writeUntilTheDiskFails writes until it is killed. It prints every acknowledged write and
// compaction as "ack REVISION KEY".
func writeUntilTheDiskFails(path string) {
	st, err := store.Open(path, store.Options{})
	if err != nil {
		fmt.Println("fail", err)
		os.Exit(3)
	}
	up, _ := store.NewMaintenance(st)
	fmt.Println("ready")
	for w := range 6 {
		go func() {
			revs := map[string]int64{}
			for i := 0; ; i++ {
				key := fmt.Sprintf("//pods/w%d/n%d", w, i%9)
				op := store.OpCreate
				if revs[key] != 0 {
					op = store.OpUpdate
				} else if r, err := st.Get(key); err == nil {
					op, revs[key] = store.OpUpdate, r.Rev
				}
				if op == store.OpUpdate && i%5 == 0 {
					op = store.OpDelete
				}
				rec, err := storetest.Write(st, op, key, revs[key], strings.Repeat("x", i%3000))
				if err != nil {
					fmt.Println("fail", err)
					os.Exit(3)
				}
				if revs[key] = rec.Rev; op == store.OpDelete {
					revs[key] = 0
				}
				fmt.Printf("ack %d %s\n", rec.Rev, key)
			}
		}()
	}
	for {
		time.Sleep(5 * time.Millisecond)
		if _, err := up.Compact(context.Background(), max(st.Compacted(), st.Revision()-300)); err != nil {
			fmt.Println("fail", err)
			os.Exit(3)
		}
	}
}
