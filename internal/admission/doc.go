// Package admission lets programs outside decide about writes: admission webhooks, as MutatingWebhookConfiguration and
// ValidatingWebhookConfiguration name them; and it is the chain in which they and the built-in plug-ins are asked.
//
//	chain := admission.NewChain(table, on)    // rows of plug-ins (package plugins), two of which are the webhooks
//	hooks.Reload()                            // and hooks.Committed(res) after each write to a configuration
//	obj, err = chain.Admit(ctx, attributes)   // the object as plug-ins have changed it
//	err = chain.Validate(ctx, attributes)     // a Status error: denied, or a webhook failed whose failurePolicy is Fail
//
// A write meets them twice on its walk:
//
//	decode ──▶ default ──▶ mutating webhooks, one after the other ──▶ prepare ──▶ validate ──▶ validating ones, all at once ──▶ commit
//
// The rules are those of k8s.io/apiserver/pkg/admission/plugin/webhook. chain.go has the order of all plug-ins; the built-in ones are
// package plugins. Package matching decides which requests a webhook wants, by rules, selectors and CEL conditions. The documents of a
// call in review.go, and how a webhook is reached in package webhook.
//
// Invariants: nothing is locked while a webhook thinks; a write that waits costs the others nothing; no webhook can hold a request longer
// than its timeoutSeconds (30 s at most), send more than maxReviewAnswer, or make the server ask anybody else; while none is configured, a
// write pays for one atomic load.
package admission
