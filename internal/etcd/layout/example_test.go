package layout_test

import (
	"fmt"

	"apilet/internal/etcd/layout"
	"apilet/internal/scheme"
)

// A key of the store and kube-apiserver's key of the same object.
func ExampleLayout_EtcdKey() {
	lay := layout.New("/registry", scheme.NewRegistry())
	for _, key := range []string{"//services/default/web", "/rbac.authorization.k8s.io/roles/ns/r", "/a.example.com/widgets/ns/w"} {
		at, err := lay.EtcdKey(key)
		back, ok := lay.StoreKey(at)
		fmt.Println(at, err, back == key, ok)
	}
	// Output:
	// /registry/services/specs/default/web <nil> true true
	// /registry/roles/ns/r <nil> true true
	// /registry/a.example.com/widgets/ns/w <nil> true true
}

// In etcd a value names its kind; in the store the key does, and the revision is in the document.
func ExampleLayout_Encode() {
	lay := layout.New("/registry", scheme.NewRegistry())
	value, err := lay.Encode("//configmaps/shop/a", []byte(`{"metadata":{"name":"a","namespace":"shop","resourceVersion":"7"},"data":{"k":"v"}}`))
	fmt.Printf("%s %v\n", value, err)
	stored, err := lay.Decode("//configmaps/shop/a", value)
	fmt.Printf("%s %v\n", stored.JSON, err)
	// Output:
	// {"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"shop"},"data":{"k":"v"}}
	//  <nil>
	// {"metadata":{"name":"a","namespace":"shop","resourceVersion":""},"data":{"k":"v"}} <nil>
}
