package store

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// BenchmarkWriter is what the writer alone costs: batches of changes given to commitBatch, and the processor time of the thread that runs it
// (µs/commit), which a busy machine disturbs less than the clock. "nosync" writes the same without waiting for the disk.
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

// benchWriter stands in for the writer of a store in which nobody else writes. Before it begins there are 20,000 objects.
func benchWriter(b *testing.B, op ChangeOp, size int, sync bool) {
	const before = 20_000
	st := openTestStore(b, filepath.Join(b.TempDir(), "a.db"))
	mustWrite(b, st, OpCreate, "//namespaces//first", 0, "") // the log is there from now on
	doSync := st.wal.sync
	st.wal.sync = func() error { return nil }
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
		st.wal.sync = doSync
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

// threadTime is the processor time of the calling thread.
func threadTime() time.Duration {
	const ofThread = 3 // CLOCK_THREAD_CPUTIME_ID
	var at syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, ofThread, uintptr(unsafe.Pointer(&at)), 0)
	return time.Duration(at.Nano())
}
