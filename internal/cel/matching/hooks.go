package matching

// This file: the two kinds of configurations, whose entries differ in one field, seen as one.

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
)

// A Webhook is a validating one, or a mutating one with a reinvocation policy.
type Webhook struct {
	admissionv1.ValidatingWebhook
	Reinvocation *admissionv1.ReinvocationPolicyType // nil for a validating one
}

// ValidatingHooks are the webhooks of a configuration, in its order.
func ValidatingHooks(config *admissionv1.ValidatingWebhookConfiguration) (hooks []Webhook) {
	for i := range config.Webhooks {
		hooks = append(hooks, Webhook{ValidatingWebhook: config.Webhooks[i]})
	}
	return hooks
}

// MutatingHooks are the webhooks of a configuration, in its order.
func MutatingHooks(config *admissionv1.MutatingWebhookConfiguration) (hooks []Webhook) {
	for i := range config.Webhooks {
		h := &config.Webhooks[i]
		hooks = append(hooks, Webhook{admissionv1.ValidatingWebhook{
			Name: h.Name, ClientConfig: h.ClientConfig, Rules: h.Rules, FailurePolicy: h.FailurePolicy, MatchPolicy: h.MatchPolicy,
			NamespaceSelector: h.NamespaceSelector, ObjectSelector: h.ObjectSelector, SideEffects: h.SideEffects, TimeoutSeconds: h.TimeoutSeconds,
			AdmissionReviewVersions: h.AdmissionReviewVersions, MatchConditions: h.MatchConditions,
		}, h.ReinvocationPolicy})
	}
	return hooks
}
