// Package aggregation delegates parts of the API to other servers. An APIService with a Service
// declares that the Service serves a group version. Requests for that group version are proxied to
// it, and its responses are returned to the client.
//
//	                            ┌────────────── Aggregator ──────────────┐
//	GET /apis/wardle…/flunders ─▶ table ─▶ no server: served by apilet   │
//	by alice, authorized         │    └──▶ X-Remote-User: alice ─────────┼──▶ wardle/api:443, with our client certificate
//	                             │  ▲                                    │
//	      APIServices, Services ─┼─▶ loop: checks each server            ┼──▶ GET /apis/wardle…/v1alpha1, /apis, /openapi/v3
//	                            └──┼─────────────────────────────────────┘
//	                               └─▶ status of the APIService: Available and its reason
//
// It works like k8s.io/kube-aggregator. This server authenticates and authorizes the client. The
// other server trusts the identity in the headers because of the client certificate
// (--proxy-client-cert-file, or a generated one), which it verifies with the CA in ConfigMap
// kube-system/extension-apiserver-authentication. Credentials of the client are not forwarded, nor
// are identity headers that the client sent.
//
//	g := &aggregation.Aggregator{Store: st, ...}
//	err := g.Load(ctx)          // the stored APIServices are in effect before the first request
//	go g.Run(ctx)               // follows the store and checks the servers until ctx ends
//	if g.Serve(w, r) { return } // another server has handled the request
//
// The loop and the table are in aggregation.go. Requests are proxied by proxy.go, and responses are
// filtered by answer.go. The file ask.go checks the servers and reads their types, and
// namespaces.go deletes the contents of namespaces on other servers.
//
// Tables are immutable, so that each request uses a consistent state. If no APIService refers to a
// Service, the table is nil and a request only costs a nil check. If a server hangs or sends too
// much data, only requests for its own types are affected. The requests of the loop are limited in
// time, size and number, and all other requests use the results of the loop. The condition in the
// store decides whether a server is available, so that several apilets on the same etcd agree; the
// leader writes it.
package aggregation
