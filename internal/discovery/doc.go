// Package discovery tells clients which types there are and what they look like: discovery (legacy and aggregated), OpenAPI v3 by group
// version, and OpenAPI v2 whole, in JSON and protobuf.
//
//	discovery.ServeDiscovery(reg, w, r) // /api, /apis and what is below
//	discovery.ServeOpenAPI(reg, w, r)   // /openapi/v3: an index, and a document for each group version
//	discovery.ServeSwagger(reg, nil, w, r)   // /openapi/v2
//
// The forms are those of k8s.io/apiserver/pkg/endpoints/discovery (aggregated: KEP-3352) and of k8s.io/kube-openapi (version 3: KEP-2896);
// order of groups and names of schemas are kube-apiserver's. Everything is derived from the rows of package scheme; package response
// negotiates.
//
// Invariants: a document follows from one state of the registry (scheme.Catalog) and nothing else, so it is made when it is asked for and
// let go; its hash or ETag changes when, and only when, that state does.
package discovery
