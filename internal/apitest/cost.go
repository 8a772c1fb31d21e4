package apitest

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
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

// AnonymousMemory is what a process holds beside files, in bytes; 0 where there is no /proc.
func AnonymousMemory(pid int) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kib << 10
		}
	}
	return 0
}

// Processor is how much of the processors this process has used; 0 where it cannot be asked.
func Processor() time.Duration {
	used, _ := usedProcessor()
	return used
}
