// Package clients tests real client programs with a real apilet process: client-go's typed, dynamic
// and metadata clients, discovery, informers, the pager, leader election, event recorders,
// server-side apply, a controller-runtime manager with webhooks, and envtest. The folder clients31
// has clients that are two years old, and the folder controller has a small operator to run by
// hand. They are used like in a real controller, without knowledge of the server. The name of a
// test describes the guarantee for the author.
//
// It is a separate module to avoid that the server depends on its clients. To run it, in this
// folder:
//
//	go test ./...                      # builds apilet from ../..
//	APILET=/usr/local/bin/apilet go test ./...
//	go test -v -run TestManager .      # also prints how long a manager takes to start, and how fast it reconciles
//
// The tests of informers run twice, with and without streaming lists. client-go reads the variable
// KUBE_FEATURE_WatchListClient once per process, so the test binary runs itself again for the other
// half.
package clients
