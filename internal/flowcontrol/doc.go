// Package flowcontrol decides for each request whether it runs immediately, waits or is rejected.
// It implements API Priority and Fairness (KEP-1040). The Kubernetes implementation is in
// k8s.io/apiserver/pkg/util/flowcontrol, and its default objects are in
// pkg/apis/flowcontrol/bootstrap. The package does not depend on HTTP or on storage. It uses Go's
// clock, which tests may replace (testing/synctest).
//
//	d := flowcontrol.NewDispatcher(600, time.Minute) // seats of the server, timeout of requests
//	objs := flowcontrol.WithMandatory(flowcontrol.SuggestedObjects())
//	d.Configure(objs.Schemas, objs.Levels)           // may be called again at any time
//	go d.Run(ctx)                                    // lends seats between levels, every ten seconds
//	err := d.Dispatch(ctx, &digest, flowcontrol.Estimate{InitialSeats: 1}, func(t *flowcontrol.Ticket) {
//		serve() // t.Yield() and t.Reclaim() around a wait for the client; t.Finish() when the seats are no longer needed
//	})          // nil if the request ran; a *Rejection if it was rejected, and the client gets a 429
//
// The following diagram shows the path of a request:
//
//	Digest ──▶ flow schema ──▶ flow ──────▶ hand ────────▶ queue ─────────▶ seat ──▶ Finish
//	flows.go   first match     by user or   some of the    the shortest     free, and    scheduler.go
//	           names a level   namespace    level's        of the hand;     the flow with
//	                                        queues         full: 429        the lowest account
//
// Read flows.go for the configuration first, then scheduler.go for the scheduling. dump.go and
// metrics.go export the state. At the top level, apf.go is the HTTP side: it creates the [Digest],
// estimates the seats and sends the 429 responses.
//
// The package maintains these invariants:
//
//   - A level whose seats in use have reached its limit does not start requests.
//   - While two flows have waiting requests, their accounts differ by at most one request's usual
//     running time plus any overrun of running requests.
//   - A dispatched request either runs once, or its caller gets an error before the request's
//     deadline.
//   - The cost of a decision is logarithmic in the number of waiting requests.
//
// auto.go adjusts the number of seats to the capacity of the machine. The algorithm is in package
// autoseats, which is the only package of apilet that this package imports.
package flowcontrol
