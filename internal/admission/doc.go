// Package admission calls the admission webhooks configured by MutatingWebhookConfiguration and
// ValidatingWebhookConfiguration. It also contains the chain that runs them together with the
// built-in plug-ins.
//
//	chain := admission.NewChain(table, on)    // rows of plug-ins (package plugins), two of which are the webhooks
//	hooks.Reload()                            // and hooks.OnCommit(res) after each write to a configuration
//	obj, err = chain.Admit(ctx, attributes)   // the object as plug-ins have changed it
//	err = chain.Validate(ctx, attributes)     // a Status error: denied, or a webhook failed whose failurePolicy is Fail
//
// A write passes through the webhooks at two points:
//
//	decode ──▶ default ──▶ mutating webhooks, one after the other ──▶ prepare ──▶ validate ──▶ validating ones, all at once ──▶ commit
//
// The rules match k8s.io/apiserver/pkg/admission/plugin/webhook. The order of all plug-ins is
// defined in chain.go. The built-in plug-ins are in package plugins. Package matching selects the
// requests for a webhook by rules, selectors and CEL conditions. review.go contains the documents
// of a call, and package webhook connects to the webhook.
//
// Invariants:
//
//   - No lock is held while a webhook runs, and a waiting write does not slow down other writes.
//   - A webhook cannot delay a request longer than its timeoutSeconds (at most 30 s), return more
//     than maxReviewAnswer bytes, or redirect the server to another host.
//   - If no webhook is configured, a write costs one atomic load.
package admission
