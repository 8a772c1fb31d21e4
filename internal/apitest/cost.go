package apitest

import (
	"runtime"
	"testing"
	"time"
)

// Allocated is how many bytes this process has ever allocated.
func Allocated() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.TotalAlloc
}

// ProcessorTime reports what the benchmark's process used until the result is called: it says more than the clock on a machine with other
// work. Where a process cannot be asked it reports nothing.
func ProcessorTime(b *testing.B) func() {
	before, ok := usedProcessor()
	return func() {
		if after, _ := usedProcessor(); ok {
			b.ReportMetric(float64(after-before)/float64(b.N), "cpu-ns/op")
		}
	}
}

// Processor is how much of the processors this process has used; 0 where it cannot be asked.
func Processor() time.Duration {
	used, _ := usedProcessor()
	return used
}
