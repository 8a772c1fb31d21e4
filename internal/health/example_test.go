package health_test

import (
	"errors"
	"fmt"
	"net/http/httptest"

	"apilet/internal/health"
)

// A check that fails makes the whole fail; one that only warns is told, and leaves the server in service.
func ExampleEndpoint() {
	var store error
	ready := health.Endpoint{Name: "readyz", Checks: []health.Check{
		health.Ping,
		{Name: "store", Err: func() error { return store }},
		{Name: "disk", Err: func() error { return errors.New("nine tenths full") }, WarnOnly: true},
	}}
	ask := func(path string) {
		w := httptest.NewRecorder()
		ready.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		fmt.Printf("%s: %d\n%s\n", path, w.Code, w.Body)
	}
	ask("/readyz?verbose")
	store = errors.New("the file is gone")
	ask("/readyz/store")
	ask("/readyz?exclude=store")
	// Output:
	// /readyz?verbose: 200
	// [+]ping ok
	// [+]store ok
	// [!]disk warns: reason withheld
	// readyz check passed
	//
	// /readyz/store: 500
	// internal server error: the file is gone
	//
	// /readyz?exclude=store: 200
	// ok
}
