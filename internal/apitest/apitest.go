// Package apitest is what the tests of several rooms stand on; nothing but tests imports it, and it imports none of our packages, so that a
// room's own tests may use it. What needs Kubernetes' types is in kubetest.
//
// [Main] runs a package's tests where they wait more than they compute, and where they start this test's own binary as a child.
package apitest

import (
	"flag"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
)

// Main is the body of a TestMain, for packages whose tests start servers or children.
//
// Such tests wait for timers, disks and other programs, so that as many at once as there are processors, which is testing's own choice,
// leave the processors idle: four times as many run, unless -parallel says how many.
//
// They also make much that is garbage at once: the collector waits until the heap has grown fivefold, not twofold, which is a fifth of all
// processor time, but not beyond two gigabytes, of which the race detector makes five. GOGC overrides that, and benchmarks run as the program does.
//
// A program built with -race sleeps for a second at its end, so that a race of its last moment is still told. That second is right for
// the test's own binary, which has it; the hundred children of a test are given a fiftieth of it.
func Main(m *testing.M, prepare ...func() (done func())) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(4*runtime.GOMAXPROCS(0)))
	}
	switch benchmarks := flag.Lookup("test.bench").Value.String() != ""; {
	case os.Getenv("GOGC") != "":
	case benchmarks:
		debug.SetGCPercent(100)      // startgc may have set another percentage
		_ = os.Setenv("GOGC", "100") // for children, who do not know that they are measured
	default:
		debug.SetGCPercent(400)
		if os.Getenv("GOMEMLIMIT") == "" {
			debug.SetMemoryLimit(2 << 30)
		}
	}
	_ = os.Setenv("GORACE", "atexit_sleep_ms=20 "+os.Getenv("GORACE"))
	os.Exit(run(m, prepare))
}

// run runs the tests between what a package prepares for all of them and the end of that.
func run(m *testing.M, prepare []func() (done func())) int {
	for _, p := range prepare {
		defer p()()
	}
	if flag.Lookup("test.bench").Value.String() == "" { // benchmarks measure the disk
		defer tempInMemory()()
	}
	return m.Run()
}

// Rounds is how often a random search tries where what it looks for is wrong answers, not races: n times, and a fifth of that with -short or
// -race, which makes each try ten times as dear and finds nothing more in the later ones.
func Rounds(n int) int {
	if Race || testing.Short() {
		return n / 5
	}
	return n
}
