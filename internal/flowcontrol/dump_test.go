package flowcontrol

import (
	"fmt"
	"runtime"
	"testing"
)

// TestMemoryOfAWaitingRequest checks how much memory is used by a waiting request, not including
// its goroutine.
func TestMemoryOfAWaitingRequest(t *testing.T) {
	d := oneLevel(1, 64, 6, 1000)
	l := d.levels["level"]
	schema := (*d.schemas.Load())[0]
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC() // the first call only marks the memory of earlier tests
	runtime.ReadMemStats(&before)
	const n = 10_000
	tickets := make([]*Ticket, n)
	for i := range tickets {
		var err error
		if tickets[i], err = l.enter(schema, &Digest{User: fmt.Sprint("user", i)}, narrowRequest); err != nil {
			t.Fatal(err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if each := (after.HeapAlloc - before.HeapAlloc) / n; each > 1024 {
		t.Errorf("%d bytes each", each)
	} else {
		t.Logf("%d bytes each", each)
	}
	runtime.KeepAlive(tickets)
}
