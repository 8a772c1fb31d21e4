package request_test

import (
	"fmt"
	"net/http/httptest"

	"apilet/internal/request"
)

// Method and path say what is asked; what is no path of a resource is a request all the same.
func ExampleParse() {
	for _, asked := range [][2]string{
		{"GET", "/api/v1/namespaces/shop/pods?labelSelector=app%3Dweb"},
		{"GET", "/api/v1/pods?watch=true"},
		{"PUT", "/apis/apps/v1/namespaces/shop/deployments/web/scale"},
		{"DELETE", "/api/v1/namespaces/shop"},
		{"GET", "/healthz"},
	} {
		info := request.Parse(httptest.NewRequest(asked[0], asked[1], nil))
		fmt.Printf("%-6s group=%q namespace=%q resource=%q name=%q subresource=%q\n", info.Verb, info.Group, info.Namespace, info.Resource, info.Name, info.Subresource)
	}
	// Output:
	// list   group="" namespace="shop" resource="pods" name="" subresource=""
	// watch  group="" namespace="" resource="pods" name="" subresource=""
	// update group="apps" namespace="shop" resource="deployments" name="web" subresource="scale"
	// delete group="" namespace="shop" resource="namespaces" name="shop" subresource=""
	// get    group="" namespace="" resource="" name="" subresource=""
}

// What a query asks of a list is read once; a number that is none is an error for a 400.
func ExampleInfo_ListOptions() {
	for _, query := range []string{"limit=500&resourceVersion=7&resourceVersionMatch=Exact", "limit=many"} {
		info := request.Parse(httptest.NewRequest("GET", "/api/v1/pods?"+query, nil))
		opts, err := info.ListOptions()
		fmt.Println(opts.Limit, opts.ResourceVersion, opts.ResourceVersionMatch, err != nil)
	}
	// Output:
	// 500 7 Exact false
	// 0   true
}

// A watch may take for ever, so no deadline ends it.
func ExampleIsLongRunning() {
	for _, path := range []string{"/api/v1/pods", "/api/v1/pods?watch=1", "/api/v1/namespaces/a/pods/b/log"} {
		info := request.Parse(httptest.NewRequest("GET", path, nil))
		fmt.Println(path, request.IsLongRunning(&info))
	}
	// Output:
	// /api/v1/pods false
	// /api/v1/pods?watch=1 true
	// /api/v1/namespaces/a/pods/b/log true
}

// The name of a service account says where it lives.
func ExampleSplitServiceAccount() {
	fmt.Println(request.SplitServiceAccount("system:serviceaccount:shop:app"))
	fmt.Println(request.SplitServiceAccount("alice"))
	// Output:
	// shop app true
	// alice  false
}

// Groups follow from how somebody was authenticated, and from the name. A User is never changed in place.
func ExampleUser_WithAuthenticatedGroup() {
	alice := request.User{Name: "alice", Groups: []string{"dev"}}
	fmt.Println(alice.WithAuthenticatedGroup().Groups, alice.Groups)
	// Output:
	// [dev system:authenticated] [dev]
}
