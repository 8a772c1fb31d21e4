// Package browser tests the page /debug/ui/ in a real browser: Debian's Chromium without a window,
// controlled by the DevTools protocol. To run it, in this folder:
//
//	go test ./...                       # builds apilet from ../.., and skips the tests without chromium
//	APILET=/usr/local/bin/apilet CHROMIUM=/usr/bin/chromium go test ./...
//	go test -run TestPictures -update . # replaces the pictures in docs/pictures
//
// The tests do not need network access. The browser can only resolve the names of this machine, and
// a pipe connects it with the test.
package browser
