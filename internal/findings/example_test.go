package findings_test

import (
	"fmt"
	"time"

	"apilet/internal/findings"
	"apilet/internal/request"
)

// A controller that asks for the same object fifty times in ten seconds, thrice in a row, goes in circles.
func ExampleDetector() {
	d := findings.New(func(f findings.Finding) { fmt.Println(f.Kind, f.Verb, f.Resource, f.Objects) })
	at := time.Date(2026, time.November, 1, 12, 0, 0, 0, time.UTC)
	rec := &request.Request{
		User: request.User{Name: "robot"}, Agent: "controller/v1",
		Info: request.Info{ResourceRequest: true, Verb: "get", APIPrefix: "api", Version: "v1", Namespace: "shop", Resource: "configmaps", Name: "settings"},
	}
	for range 400 {
		at = at.Add(100 * time.Millisecond)
		d.RecordRequest(rec, 200, at)
	}
	// Output:
	// read get configmaps [shop/settings]
}
