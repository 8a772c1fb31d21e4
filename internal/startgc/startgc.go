// Package startgc makes garbage collections rarer while the program starts. The runtime starts the first
// collection when the heap reaches 4 MiB. The package variables of Kubernetes' packages alone need more,
// and a start that does not collect takes two thirds of the processor time.
//
//	import "apilet/internal/startgc" // from now on the first collection is at 16 MiB
//
//	startgc.Collect() // the server is ready
//
// The package does nothing if the environment variable GOGC is set.
package startgc

import (
	"os"
	"runtime/debug"
	"sync"
)

// startPercent replaces the usual 100 of GOGC. The size of the first collection is in proportion to it.
const startPercent = 400

// previousPercent is the percentage to restore. Its initialization makes collections rarer. That
// has to happen before other packages allocate, therefore this package imports only packages that
// are initialized early.
var previousPercent = postpone()

func postpone() int {
	if os.Getenv("GOGC") != "" {
		return startPercent // not used
	}
	return debug.SetGCPercent(startPercent)
}

// Resume restores the usual rate of collections. Calls after the first do nothing.
var Resume = sync.OnceFunc(func() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(previousPercent)
	}
})

// Collect restores the usual rate of collections, collects the garbage of the start and returns its
// memory to the system. Calls after the first do nothing.
var Collect = sync.OnceFunc(func() {
	if os.Getenv("GOGC") == "" {
		Resume()
		debug.FreeOSMemory()
	}
})
