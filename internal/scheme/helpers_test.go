package scheme

import (
	"testing"

	"apilet/internal/scheme/protobuf"
)

// generatedBytes are a document's protobuf by way of its Go type.
func generatedBytes(t testing.TB, res *Resource, doc []byte) []byte {
	t.Helper()
	obj, err := res.DecodeStored(doc)
	if err != nil {
		t.Fatalf("%v: %s", err, doc)
	}
	m, err := protobuf.AsMessage(obj)
	if err != nil {
		t.Fatal(err)
	}
	want, err := protobuf.AppendMessage(nil, m, m.Size())
	if err != nil {
		t.Fatal(err)
	}
	return want
}

func customFoo() *Resource {
	return &Resource{Group: "x.io", Version: "v1", Kind: "Foo", Plural: "foos", Singular: "foo", StorageGroup: "x.io", Namespaced: true,
		Verbs: []string{"create", "get", "list"}}
}

// testResource finds a resource by plural name alone, the custom resource foos of x.io included.
func testResource(plural string) *Resource {
	reg := NewRegistry()
	reg.ReplaceCustom([]*Resource{customFoo()})
	var found *Resource
	for _, res := range reg.All() {
		if res.Plural == plural && (found == nil || res.Version == "v1") {
			found = res
		}
	}
	return found
}
