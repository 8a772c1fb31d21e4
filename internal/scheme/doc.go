// Package scheme holds the table of resource types and derives the rest from it. A [Resource] is
// one type at one version: its Go type, names, verbs, subresources and lifecycle (introduced,
// deprecated, removed). Decoding, encoding, conversion between versions, keys and strict field
// validation follow from the row by reflection. A [Registry] holds the resources that the server
// currently serves: the built-in types and the custom resources.
//
//	res := reg.Lookup("apps", "v1", "deployments") // nil if it is not served
//	obj, strictErrs, err := res.Decode(body, contentType, "")
//	stored, revAt, err := res.EncodeStored(obj)
//	obj, err = res.DecodeStored(stored)
//
// The package replaces the Scheme of k8s.io/apimachinery/pkg/runtime, its serializers and the
// RESTMapper. It reads the same sources: the types of k8s.io/api with their tags and lifecycle
// methods. Its errors have the same texts. The storage versions are those of
// k8s.io/kubernetes/pkg/kubeapiserver/default_storage_factory_builder.go.
//
// Invariants: a [Resource] is immutable once a Registry holds it, and so is a [Catalog], which is
// one state of the registry. EncodeStored checks that its result can be decoded again: it limits
// the nesting and the years of times before an object is stored (package bounded). The package
// imports apierror, bounded, scheme/internalversion and scheme/protobuf.
package scheme
