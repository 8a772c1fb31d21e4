// Package clients holds real client programs, as tests, against a real apilet process: client-go's typed, dynamic and metadata clients,
// discovery, informers, the pager, leader election, event recorders, server-side apply, a controller-runtime manager with webhooks, and
// envtest. The folder clients31 has those of two years ago, the folder controller a small operator to run by hand. Each is used
// as a controller's author would use it, with no knowledge of the server; a test's name is what such an author may count on.
//
// It is a module of its own, so that the server does not depend on its clients. To run it, in this folder:
//
//	go test ./...                      # builds apilet from ../..
//	APILET=/usr/local/bin/apilet go test ./...
//	go test -v -run TestManager .      # also prints how long a manager takes to start, and how fast it reconciles
//
// The tests of informers run twice, with streaming lists and without; client-go decides that once per process, by the variable
// KUBE_FEATURE_WatchListClient, so the test binary starts itself again for the other half.
package clients
