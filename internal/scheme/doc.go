// Package scheme is the table of types and what is derived from it. A Resource is one type at one version: its Go type, names, verbs,
// subresources and life (introduced, deprecated, removed); decoding and encoding, versions and their conversion, keys and strict field
// checking follow from the row by reflection. A [Registry] holds the rows that are served now, the built-in ones and those of definitions.
//
//	res := reg.Lookup("apps", "v1", "deployments") // nil when it is not served
//	obj, strictErrs, err := res.Decode(body, contentType, "")
//	stored, revAt, err := res.EncodeStored(obj)
//	obj, err = res.DecodeStored(stored)
//
// It does the work of k8s.io/apimachinery/pkg/runtime's Scheme, its serializers and RESTMapper, from the same sources: the types of
// k8s.io/api with their tags and lifecycle methods. The words of errors are theirs. Which version is stored is
// k8s.io/kubernetes/pkg/kubeapiserver/default_storage_factory_builder.go's decision.
//
// Invariants: a [Resource] does not change once a Registry has it, nor does a [Catalog], one state of the registry; what EncodeStored returns is
// known to decode again: depth and years are checked before anything is stored (package bounded). Of ours it imports apierror, bounded,
// scheme/internalversion and scheme/protobuf (how a body in protobuf begins).
package scheme
