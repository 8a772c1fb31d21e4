// Package aggregation lets other servers have a part of the API. An APIService that names a Service says that a group version is that Service's: requests
// for it are passed on, and what comes back is passed back.
//
//	                            ┌────────────── Aggregator ──────────────┐
//	GET /apis/wardle…/flunders ─▶ table ─▶ no server: not ours to answer │
//	by alice, may list           │    └──▶ X-Remote-User: alice ─────────┼──▶ wardle/api:443, who sees our certificate
//	                             │  ▲                                    │
//	      APIServices, Services ─┼─▶ loop: asks each server now and then ┼──▶ GET /apis/wardle…/v1alpha1, /apis, /openapi/v3
//	                            └──┼─────────────────────────────────────┘
//	                               └─▶ status of the APIService: Available, and why not
//
// It does what k8s.io/kube-aggregator does. Who asks was found out here, and whether they may; the server believes what headers say because of the
// certificate that comes with them (--proxy-client-cert-file, or one of this server's making), which it checks by what is published in ConfigMap
// kube-system/extension-apiserver-authentication. No credential of the caller's is passed on, and no header that says who asks but ours.
//
//	g := &aggregation.Aggregator{Store: st, ...}
//	err := g.Load(ctx)          // what is stored is in force before the first request
//	go g.Run(ctx)               // until ctx ends: it follows what is stored, and asks the servers how they are
//	if g.Serve(w, r) { return } // it was another server's to answer
//
// Files: aggregation.go has the table and the loop that makes it; proxy.go passes requests on; ask.go is what the loop asks servers: whether they are
// there, which types they have; namespaces.go empties namespaces there.
//
// Invariants. A table never changes: a request sees one state of it. Without an APIService that names a Service there is no table, and a request costs
// one look at a nil pointer. A server that hangs, floods or lies costs those who ask for its types: what the loop asks has bounds in time, bytes and
// number, and whoever asks for anything else meets what the loop has learned. Which server is there is told by the condition in the store, so
// that several servers on one etcd agree; the one that leads finds out.
package aggregation
