// Package discovery serves the list of types and their schemas: legacy and aggregated discovery,
// OpenAPI v3 per group version, and OpenAPI v2 as a single document, in JSON and protobuf.
//
//	discovery.ServeDiscovery(reg, w, r) // /api, /apis and the paths below
//	discovery.ServeOpenAPI(reg, "", w, r)    // /openapi/v3: an index, and a document for each group version
//	discovery.ServeSwagger(reg, nil, w, r)   // /openapi/v2
//
// The formats are defined by k8s.io/apiserver/pkg/endpoints/discovery and k8s.io/kube-openapi. See
// also KEP-3352 for aggregated discovery and KEP-2896 for OpenAPI v3. Groups and schemas use the
// same order and names as in kube-apiserver. All documents are derived from the entries of package
// scheme; package response negotiates the encoding.
//
// Invariants: documents are generated on demand from one state of the registry (scheme.Catalog),
// and are not kept. Its hash or ETag changes if and only if that state changes.
package discovery
