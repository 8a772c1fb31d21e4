// Package footprint keeps small what a server holds mapped of its files: its own binary, and the data file.
//
//	go footprint.Run(ctx)
//
// Most of what ps calls the RSS of a server at rest is not heap. It is pages of the binary: the start touches its tables and its code once (types,
// schemas, descriptors), the kernel maps sixteen pages or more around each that is touched, and nobody takes them back while memory is plenty. Run
// gives them back when the start is over, and now and then what has come since. Such pages cost nothing to lose: they stay in the page cache,
// where the kernel may reclaim them, and who needs one again has a fault of a microsecond for it and its neighbours.
//
// Given back are files' mappings that nobody can write and of which the process holds no page of its own. (A page that a loader has relocated, or in
// which a debugger has set a breakpoint, is no longer the file's.) On other systems than Linux nothing is done.
package footprint

import (
	"context"
	"time"
)

const (
	afterStart = 10 * time.Second // the first requests have come then, and the workers have looked at everything
	thenEach   = 5 * time.Minute
)

// Run gives pages back until ctx ends.
func Run(ctx context.Context) {
	for wait := afterStart; ; wait = thenEach {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
			_ = GiveBack() // where there is no /proc the pages stay
		}
	}
}
