// Package scheme holds the table of resource types and derives the rest from it. A [Resource] is
// a type at a version. It contains the Go type, names, verbs, subresources and the lifecycle
// (introduced, deprecated, removed). Decoding, encoding, conversion between versions, keys and
// strict field validation follow from the row by reflection. A [Registry] holds the resources
// that the server currently serves: the built-in types and the custom resources.
//
//	res := reg.Lookup("apps", "v1", "deployments") // nil if it is not served
//	obj, strictErrs, err := res.Decode(body, contentType, "")
//	stored, revAt, err := res.EncodeStored(obj)
//	obj, err = res.DecodeStored(stored)
//
// The package replaces the Scheme of k8s.io/apimachinery/pkg/runtime, its serializers and the
// RESTMapper. It uses the types of k8s.io/api with the tags and lifecycle methods. Its errors
// have the same texts. The storage versions are those of
// k8s.io/kubernetes/pkg/kubeapiserver/default_storage_factory_builder.go.
//
// Invariants: A [Resource] must not be modified after it is added to a Registry. A [Catalog] is
// the current state of the registry and is immutable. EncodeStored checks that the result can be
// decoded again. The depth and the years of times are limited (see package bounded). The package
// imports apierror, bounded, scheme/internalversion and scheme/protobuf.
package scheme
