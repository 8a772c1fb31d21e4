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

// Allocated returns the number of bytes that this process has allocated since it started.
func Allocated() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.TotalAlloc
}

// ProcessorTime measures the CPU time of the benchmark's process until the returned function is
// called. On a machine with other work this says more than the elapsed time. It reports nothing on
// systems without CPU accounting.
func ProcessorTime(b *testing.B) func() {
	before, ok := usedProcessor()
	return func() {
		if after, _ := usedProcessor(); ok {
			b.ReportMetric(float64(after-before)/float64(b.N), "cpu-ns/op")
		}
	}
}

// AnonymousMemory returns the anonymous memory of a process in bytes, or 0 if there is no /proc.
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

// Processor returns the CPU time of this process, or 0 on systems without CPU accounting.
func Processor() time.Duration {
	used, _ := usedProcessor()
	return used
}
