package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// BenchmarkWriter measures the writer by calling commitBatch. It reports the CPU time of the thread
// (µs/commit), because it depends less on the load of the machine than the elapsed time. "nosync"
// does not wait for the disk.
func BenchmarkWriter(b *testing.B) {
	for _, sync := range []bool{true, false} {
		for _, op := range []ChangeOp{OpCreate, OpUpdate} {
			for _, size := range []int{1, 16, 64} {
				name := fmt.Sprintf("%s/%s/batch=%d", map[bool]string{true: "sync", false: "nosync"}[sync], [...]string{"create", "update"}[op], size)
				b.Run(name, func(b *testing.B) { benchWriter(b, op, size, sync) })
			}
		}
	}
}

// benchWriter replaces the writer of a store that is not used by other clients. The store starts
// with 20,000 objects.
func benchWriter(b *testing.B, op ChangeOp, size int, sync bool) {
	const before = 20_000
	st := openTestStore(b, filepath.Join(b.TempDir(), "a.db"))
	mustWrite(b, st, OpCreate, "//namespaces//first", 0, "") // creates the log
	doSync := st.File.Disk().Sync
	st.File.Disk().Sync = func() error { return nil }
	random := rand.New(rand.NewPCG(1, 2))
	author := Author{User: "admin", Agent: "benchmark/v1", Verb: "create"}
	revs, made := map[int]int64{}, 0
	change := func(op ChangeOp, i int) *pendingWrite {
		e := &pendingWrite{answer: make(chan struct{}, 1)}
		e.Change = Change{Op: op, Key: fmt.Sprintf("//configmaps/default/made-%05x", i*7919%0xfffff), Expect: revs[i], JSON: benchRecord, RevAt: benchRevAt, Author: author}
		if op == OpCreate {
			e.Parent = "//namespaces//default"
		}
		return e
	}
	var members []*pendingWrite
	var which []int // the objects of the members
	commit := func() {
		st.commitBatch(members)
		for n, e := range members {
			if <-e.answer; e.err != nil {
				b.Fatal(e.err)
			}
			revs[which[n]] = e.rec.Rev
		}
	}
	mustWrite(b, st, OpCreate, "//namespaces//default", 0, "")
	fill := func(op ChangeOp, size int) {
		members, which = members[:0], which[:0]
		for chosen := map[int]bool{}; len(members) < size; {
			i := made
			if op == OpCreate {
				made++
			} else if i = random.IntN(made); chosen[i] {
				continue
			}
			chosen[i] = true
			members, which = append(members, change(op, i)), append(which, i)
		}
	}
	for made < before {
		fill(OpCreate, 50)
		commit()
	}
	if sync {
		st.File.Disk().Sync = doSync
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b.ReportAllocs()
	var used time.Duration
	for b.Loop() {
		b.StopTimer()
		fill(op, size)
		began := threadTime()
		b.StartTimer()
		commit()
		used += threadTime() - began
	}
	b.ReportMetric(float64(used.Nanoseconds())/1000/float64(b.N), "cpu-µs/commit")
}

// threadTime returns the processor time of the calling thread.
func threadTime() time.Duration {
	const ofThread = 3 // CLOCK_THREAD_CPUTIME_ID
	var at syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, ofThread, uintptr(unsafe.Pointer(&at)), 0)
	return time.Duration(at.Nano())
}

// BenchmarkBytesToDisk measures the bytes that the kernel writes to the disk for each acknowledged
// write of 1 KiB (KB/write): the log, and each page of the data file that becomes dirty. The names
// of "random" are not ordered, like the names of Pods. Other names are ascending.
func BenchmarkBytesToDisk(b *testing.B) {
	for _, before := range []int{100, 20_000} {
		for _, names := range []string{"following", "random"} {
			for _, op := range []ChangeOp{OpCreate, OpUpdate} {
				for _, clients := range []int{1, 16} {
					b.Run(fmt.Sprintf("objects=%d/names=%s/%s/clients=%d", before, names, [...]string{"create", "update"}[op], clients), func(b *testing.B) {
						benchBytes(b, op, before, clients, names == "random")
					})
				}
			}
		}
	}
}

func benchBytes(b *testing.B, op ChangeOp, before, clients int, random bool) {
	st := openTestStore(b, filepath.Join(b.TempDir(), "a.db"))
	author := Author{User: "admin", Agent: "benchmark/v1", Verb: "create"}
	name := func(i int) string {
		if random {
			i = i * 7919 % 0xfffff
		}
		return fmt.Sprintf("//configmaps/default/made-%05x", i)
	}
	var mu sync.Mutex // guards revs
	revs := map[int]int64{}
	write := func(op ChangeOp, i int) {
		mu.Lock()
		expect := revs[i]
		mu.Unlock()
		rec, err := st.Commit(context.Background(), Change{Op: op, Key: name(i), Expect: expect, JSON: benchRecord, RevAt: benchRevAt, Author: author})
		if err != nil {
			b.Error(err)
		}
		mu.Lock()
		revs[i] = rec.Rev
		mu.Unlock()
	}
	all := func(op ChangeOp, from, n, clients int) {
		var wait sync.WaitGroup
		for c := range clients {
			wait.Go(func() {
				for i := from + c; i < from+n; i += clients {
					write(op, i)
				}
			})
		}
		wait.Wait()
	}
	all(OpCreate, 0, before, 64)
	from := before
	if op == OpUpdate {
		from = 0
	}
	b.ResetTimer()
	begun, device := diskBytes(b), deviceBytes(b, st.File.Path)
	for done := 0; done < b.N; {
		n := b.N - done
		if op == OpUpdate {
			n = min(n, before)
		}
		all(op, from, n, clients)
		if done += n; op == OpCreate {
			from += n
		}
	}
	b.ReportMetric(float64(st.File.Checkpoints()), "turns")
	b.ReportMetric(float64(diskBytes(b)-begun)/1000/float64(b.N), "KB/write")
	b.ReportMetric(float64(deviceBytes(b, st.File.Path)-device)/1000/float64(b.N), "device-KB/write")
}

// BenchmarkBytesAtRest measures the bytes that the kernel writes to the disk for each lone update of
// a lease (B/write). The kernel writes changed pages about every thirty seconds, which is every three
// updates if one lease is renewed each ten seconds, and every 4,410 if a thousand nodes are idle.
func BenchmarkBytesAtRest(b *testing.B) {
	for _, c := range []struct{ leases, every int }{{1, 3}, {1000, 4410}} {
		b.Run(fmt.Sprintf("leases=%d/writeback=%d", c.leases, c.every), func(b *testing.B) { benchRest(b, c.leases, c.every) })
	}
}

func benchRest(b *testing.B, leases, every int) {
	st := openTestStore(b, filepath.Join(b.TempDir(), "a.db"))
	author := Author{User: "system:node:node-1", Agent: "kubelet/v1.37.2", Verb: "update"}
	revs := make([]int64, leases)
	put := func(op ChangeOp, i int) {
		c := Change{Op: op, Key: fmt.Sprintf("/coordination.k8s.io/leases/kube-node-lease/node-%d", i), Expect: revs[i], JSON: benchRecord[:600], RevAt: benchRevAt, Author: author}
		rec, err := st.Commit(context.Background(), c)
		if err != nil {
			b.Fatal(err)
		}
		revs[i] = rec.Rev
	}
	for i := range revs {
		put(OpCreate, i)
	}
	file, err := os.Open(st.File.Path)
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	n := 0
	for range 3 * every {
		put(OpUpdate, n%leases)
		n++
	}
	file.Sync()
	b.ResetTimer()
	begun, turns, device := diskBytes(b), st.File.Checkpoints(), deviceBytes(b, st.File.Path)
	for range b.N {
		put(OpUpdate, n%leases)
		if n++; n%every == 0 {
			file.Sync()
		}
	}
	b.ReportMetric(float64(st.File.Checkpoints()-turns), "turns")
	b.ReportMetric(float64(diskBytes(b)-begun)/float64(b.N), "B/write")
	b.ReportMetric(float64(deviceBytes(b, st.File.Path)-device)/float64(b.N), "device-B/write")
}

// deviceBytes returns the number of bytes that all processes have written to the device of a file.
func deviceBytes(b *testing.B, path string) (n int64) {
	syscall.Sync()
	var info syscall.Stat_t
	if err := syscall.Stat(path, &info); err != nil {
		b.Fatal(err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", info.Dev>>8&0xfff, info.Dev&0xff))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	fmt.Sscan(fields[6], &n)
	return n * 512
}

// diskBytes returns the number of bytes that this process has written to the disk.
func diskBytes(b *testing.B) (n int64) {
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		b.Skip(err)
	}
	_, rest, _ := strings.Cut(string(text), "\nwrite_bytes: ")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		b.Fatal(err)
	}
	return n
}
