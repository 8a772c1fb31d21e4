package discovery_test

import (
	"fmt"
	"net/http/httptest"

	"apilet/internal/request"
	"apilet/internal/routing"
	"apilet/internal/scheme"
)

// A path that says two things leads nowhere, and a method that does more than its path says is refused.
func Example_routing() {
	reg := scheme.NewRegistry()
	for _, asked := range [][2]string{
		{"GET", "/api/v1/namespaces/shop/secrets"},
		{"DELETE", "/api/v1/secrets"},                // all of all namespaces
		{"GET", "/api/v1/namespaces/a/namespaces/b"}, // the Namespace b in the namespace a
		{"GET", "/api/v1/nodes/n1"},
		{"POST", "/api/v1/nodes/n1"},
	} {
		info := request.Parse(httptest.NewRequest(asked[0], asked[1], nil))
		res := reg.Lookup(info.Group, info.Version, info.Resource)
		fmt.Println(asked[0], asked[1], routing.CheckRoute(res, &info, asked[0]))
	}
	// Output:
	// GET /api/v1/namespaces/shop/secrets <nil>
	// DELETE /api/v1/secrets the server does not allow this method on the requested resource
	// GET /api/v1/namespaces/a/namespaces/b the server could not find the requested resource
	// GET /api/v1/nodes/n1 <nil>
	// POST /api/v1/nodes/n1 the server does not allow this method on the requested resource
}
