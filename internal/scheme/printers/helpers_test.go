package printers

import (
	"fmt"
	"runtime"
	"testing"
)

// totalAllocated is what this process has allocated so far, in bytes; what was freed counts, too.
func totalAllocated() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.TotalAlloc
}

func expect(t *testing.T, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
