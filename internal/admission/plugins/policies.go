package plugins

// This file connects the admission policies (package policy) to the chain.

import (
	"context"

	"apilet/internal/admission"
	"apilet/internal/cel/policy"
)

// Policies returns the rows for MutatingAdmissionPolicy and ValidatingAdmissionPolicy.
func Policies(p *policy.Policies) (mutating, validating admission.Plugin) {
	mutating = admission.Plugin{Idle: func() bool { return !p.HasMutating() }, Admit: func(ctx context.Context, a *admission.Attributes) error {
		w := writeOf(a)
		if w == nil {
			return nil
		}
		rounds, _ := a.Policies.(*policy.ReinvocationState)
		if rounds == nil {
			rounds = &policy.ReinvocationState{}
			a.Policies = rounds
		}
		changed, err := p.Mutate(ctx, w, rounds)
		if changed {
			a.Object = w.Object
			a.MarkChanged()
		}
		return err
	}}
	validating = admission.Plugin{Idle: func() bool { return !p.HasValidating() }, Validate: func(ctx context.Context, a *admission.Attributes) error {
		w := writeOf(a)
		if w == nil {
			return nil
		}
		return p.Validate(ctx, w)
	}}
	return mutating, validating
}

// writeOf returns the write in the form that policies use, or nil if no client requested it.
func writeOf(a *admission.Attributes) *policy.Write {
	if !a.FromClient() {
		return nil
	}
	w := &policy.Write{Resource: a.Resource, Subresource: a.Subresource, Operation: a.Operation, Name: a.Name(), Namespace: a.Request.Info.Namespace,
		DryRun: a.DryRun, Options: a.Options(), Object: a.Object, Old: a.Old, Request: a.Request}
	if a.Resource.Group == "" && a.Resource.Plural == "namespaces" {
		w.Namespace = w.Name
	}
	return w
}
