// Package apitest contains helpers for the tests of several packages. Only tests import it. It does
// not import other packages of apilet, so that it can be used in all tests. Helpers that need
// Kubernetes' types are in kubetest.
//
// [Main] runs the tests of a package whose tests mostly wait, or start the test binary as a child
// process.
package apitest

import (
	"flag"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
)

// Main is the body of a TestMain, for packages whose tests start servers or child processes.
//
// Such tests wait for timers, disks and other programs. By default, the number of parallel tests is
// the number of processors, which would leave the processors idle. Unless -parallel is set, Main
// uses four times as many.
//
// The tests also create much garbage. The collector runs when the heap has grown fivefold instead
// of twofold, which saves a fifth of the processor time, but at most up to two gigabytes. GOGC overrides this setting, and benchmarks run with the
// default of the program.
//
// A program built with -race sleeps for a second before it exits, to report late races. For child
// processes this is reduced to 20 ms, because a test may start a hundred of them.
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
		debug.SetGCPercent(100) // startgc may have set another percentage
		// for children, which do not know that they are measured
		_ = os.Setenv("GOGC", "100")
	default:
		debug.SetGCPercent(400)
		if os.Getenv("GOMEMLIMIT") == "" {
			debug.SetMemoryLimit(2 << 30)
		}
	}
	_ = os.Setenv("GORACE", "atexit_sleep_ms=20 "+os.Getenv("GORACE"))
	os.Exit(run(m, prepare))
}

// run runs the tests. The functions in prepare are called before the tests, and the returned
// functions are called after the tests.
func run(m *testing.M, prepare []func() (done func())) int {
	for _, p := range prepare {
		defer p()()
	}
	if flag.Lookup("test.bench").Value.String() == "" { // benchmarks measure the disk
		defer tempInMemory()()
	}
	return m.Run()
}

// Long reports whether the tests run in their long form, which APILET_LONG=1 asks for: all rounds of
// random searches, all commands of the documents, and other work that takes minutes. The short form of
// a test finds the same kinds of faults in fewer places. With the race detector only the short form
// runs, because each round is ten times as expensive and later rounds find no further races.
func Long() bool { return os.Getenv("APILET_LONG") != "" && !Race }

// Rounds returns the number of rounds of a random search: n in the long form, a fifth of it in the
// short form.
func Rounds(n int) int {
	if Long() {
		return n
	}
	return n / 5
}

// Every returns the distance between the cases that a test tries: 1 in the long form, n in the short
// form.
func Every(n int) int {
	if Long() {
		return 1
	}
	return n
}
