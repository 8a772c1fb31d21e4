package main

import (
	"apilet/internal/scheme"
)

// testResource finds a resource by plural name alone, the custom resource foos of x.io included.
func testResource(plural string) *scheme.Resource {
	reg := scheme.NewRegistry()
	reg.ReplaceCustom([]*scheme.Resource{customFoo()})
	var found *scheme.Resource
	for _, res := range reg.All() {
		if res.Plural == plural && (found == nil || res.Version == "v1") {
			found = res
		}
	}
	return found
}

func customFoo() *scheme.Resource {
	return &scheme.Resource{Group: "x.io", Version: "v1", Kind: "Foo", Plural: "foos", Singular: "foo", StorageGroup: "x.io", Namespaced: true,
		Verbs: []string{"create", "get", "list"}}
}
