// Package browser opens the page /debug/ui/ in a real browser, as tests: Debian's chromium without a window, driven over the DevTools
// protocol. To run it, in this folder:
//
//	go test ./...                       # builds apilet from ../.., and leaves all out where there is no chromium
//	APILET=/usr/local/bin/apilet CHROMIUM=/usr/bin/chromium go test ./...
//	go test -run TestPictures -update . # takes the pictures of docs/pictures anew
//
// Nothing leaves the machine: the browser resolves no name but this machine's, and speaks to the test through a pipe.
package browser
