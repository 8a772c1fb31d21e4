// Package flowcontrol decides which request runs now, which waits, and which is turned away: API Priority and Fairness (KEP-1040; in
// Kubernetes k8s.io/apiserver/pkg/util/flowcontrol, whose defaults are in pkg/apis/flowcontrol/bootstrap). It knows no HTTP, no storage,
// and has no clock of its own but Go's, which a test may replace (testing/synctest).
//
//	d := flowcontrol.NewDispatcher(600, time.Minute) // seats of the server, longest wait
//	objs := flowcontrol.WithMandatory(flowcontrol.SuggestedObjects())
//	d.Configure(objs.Schemas, objs.Levels)           // may be called again at any time
//	go d.Run(ctx)                                    // lends seats between levels, every ten seconds
//	err := d.Dispatch(ctx, &digest, flowcontrol.Estimate{InitialSeats: 1}, func(t *flowcontrol.Ticket) {
//		serve() // t.Yield() and t.Reclaim() around a wait for the client; t.Finish() when the seats are no longer needed
//	})          // nil when it ran; *Rejection when it was turned away: the client gets a 429
//
// A request on its way to a seat, and where each step is told:
//
//	Digest ──▶ flow schema ──▶ flow ──────▶ hand ────────▶ queue ─────────▶ seat ──▶ Finish
//	flows.go   first match     by user or   some of the    the shortest     free, and    scheduler.go
//	           names a level   namespace    level's        of the hand;     the flow that was
//	                                        queues         full: 429        served least is next
//
// Read flows.go for what the configuration says, then scheduler.go for what moves; dump.go and metrics.go show it. apf.go at the top is the
// HTTP side: it makes the [Digest], estimates the seats and answers the 429.
//
// Invariants: a level whose seats in use have reached its limit starts nothing; while two flows wait, what they were served differs by no
// more than one request's usual running time and what running requests have overdrawn; a request that is dispatched either runs, once, or
// its caller gets an error before its deadline; what a decision costs grows with the logarithm of those who wait. auto.go lets the number
// of seats follow what the machine carries; package autoseats, the only one of ours that is imported, decides upon it.
package flowcontrol
