package matching

// This file converts both kinds of webhook configurations to the same type, since they only differ
// in one field.

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
)

// A Webhook is a validating webhook, or a mutating webhook with a reinvocation policy.
type Webhook struct {
	admissionv1.ValidatingWebhook
	Reinvocation *admissionv1.ReinvocationPolicyType // nil for a validating webhook
}

// ValidatingHooks returns the webhooks in a configuration.
func ValidatingHooks(config *admissionv1.ValidatingWebhookConfiguration) (hooks []Webhook) {
	for i := range config.Webhooks {
		hooks = append(hooks, Webhook{ValidatingWebhook: config.Webhooks[i]})
	}
	return hooks
}

// MutatingHooks returns the webhooks in a configuration.
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
