package torture

// This file implements plans that reject requests. Either a single request is rejected, as if the
// server had a temporary problem, or all requests of a kind are rejected until the cause has been
// fixed.
//
//	409 429 500 503     once, instead of the write
//	504, carried out    once, although the write succeeds
//	a webhook is down   every write of the kind, until the webhook is up again
//	a policy forbids    every write of the kind, until the policy is fixed
//	a quota is full     every creation of the kind, until there is room
//
// A controller may depend on the messages, so they are the same as in kube-apiserver. For example,
// some controllers check whether a namespace is being deleted.

import (
	"fmt"
	"maps"
	"sync"
)

// Details of plans that reject requests for some time.
const (
	webhookDown = "500, a webhook is down"
	policySays  = "422, by a policy"
	quotaFull   = "403, a quota is full"
)

var onceRefused = map[string]refusal{
	"409": {code: 409, reason: "Conflict", message: "the object has been modified; please apply your changes to the latest version and try again"},
	"429": {code: 429, reason: "TooManyRequests", message: "Too many requests, please try again later.", retry: 1},
	"500": {code: 500, reason: "InternalError", message: "Internal error occurred: etcdserver: leader changed"},
	"503": {code: 503, reason: "ServiceUnavailable", message: "the server is currently unable to handle the request"},
}

func (r *run) isRefused() *tricks {
	switch r.plan.Detail {
	case carriedOut:
		return &tricks{after: func(p *passed) *refusal {
			if !r.at(p) {
				return nil
			}
			return &refusal{code: 504, reason: "Timeout", message: "request did not complete within the allotted timeout"}
		}}
	case webhookDown:
		return r.isRefusedForAWhile(failedWebhook)
	case policySays:
		return r.isRefusedForAWhile(deniedByPolicy)
	case quotaFull:
		return r.isRefusedForAWhile(exceededQuota)
	}
	return &tricks{before: func(p *passed) *refusal {
		if !r.at(p) {
			return nil
		}
		no := onceRefused[r.plan.Detail]
		return &no
	}}
}

// isRefusedForAWhile rejects the write specified by the plan and all following writes of the same
// kind until the cause has been fixed.
func (r *run) isRefusedForAWhile(how func(*passed) *refusal) *tricks {
	var mu sync.Mutex          // guards the variables below
	var first *passed          // the first rejected request, or nil if no request was rejected
	var mended <-chan struct{} // closed when no more requests are rejected
	return &tricks{before: func(p *passed) *refusal {
		mu.Lock()
		defer mu.Unlock()
		if r.at(p) {
			first, mended = p, r.later(lasting)
		}
		if first == nil || !p.writes || p.info.Verb != first.info.Verb || resourceOf(p) != resourceOf(first) || p.info.Subresource != first.info.Subresource {
			return nil
		}
		select {
		case <-mended:
			return nil
		default:
			return how(p)
		}
	}}
}

func causedBy(text string) map[string]any {
	return map[string]any{"causes": []any{map[string]any{"message": text}}}
}

func failedWebhook(*passed) *refusal {
	const text = `failed calling webhook "gate.apilet.dev": failed to call webhook: Post "https://gate.apilet.svc:443/gate?timeout=10s": ` +
		`dial tcp 10.96.0.99:443: connect: connection refused`
	return &refusal{code: 500, reason: "InternalError", message: "Internal error occurred: " + text, details: causedBy(text)}
}

func deniedByPolicy(p *passed) *refusal {
	text := "ValidatingAdmissionPolicy 'gate.apilet.dev' with binding 'gate' denied request: failed expression: false"
	no := forbidden(p, text)
	no.code, no.reason = 422, "Invalid"
	maps.Copy(no.details, causedBy(text))
	return no
}

func exceededQuota(p *passed) *refusal {
	count := "count/" + resourceOf(p)
	return forbidden(p, fmt.Sprintf("exceeded quota: gate, requested: %[1]s=1, used: %[1]s=7, limited: %[1]s=7", count))
}

// forbidden returns the response of an admission plug-in that denies a request.
func forbidden(p *passed, why string) *refusal {
	details := map[string]any{"name": p.name, "kind": p.info.Resource}
	if p.info.Group != "" {
		details["group"] = p.info.Group
	}
	return &refusal{code: 403, reason: "Forbidden", message: fmt.Sprintf("%s %q is forbidden: %s", resourceOf(p), p.name, why), details: details}
}
