package policy

// This file reloads the active policies. All of them are reloaded after a write to any policy or
// binding. Compiled expressions are reused if the policy's spec has not changed.

import (
	"context"
	"errors"
	"time"

	"github.com/tidwall/gjson"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"apilet/internal/cel/matching"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// OnCommit reloads the policies after a write to a policy or a binding.
func (p *Policies) OnCommit(res *scheme.Resource) {
	if res.Group == admissionv1.GroupName && matching.IsExempt(res) {
		p.Reload()
	}
}

// Reload reads policies and bindings. If an object cannot be decoded, it is logged and skipped. If
// the store cannot be read, the previous policies stay active.
func (p *Policies) Reload() {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.programs
	p.programs = map[string]*programs{}
	next := &set{}
	var errs [2]error
	next.validating, errs[0] = p.validatingLocked(before)
	next.mutating, errs[1] = p.mutatingLocked(before)
	if err := errors.Join(errs[:]...); err != nil {
		p.programs = before
		p.Log.Error().Err(err).Msg("cannot read the admission policies")
		return
	}
	if len(next.validating)+len(next.mutating) == 0 {
		next = nil
	}
	p.current.Store(next)
}

func (p *Policies) validatingLocked(before map[string]*programs) (found []*policy, err error) {
	bindings := map[string][]*binding{}
	err = p.each("validatingadmissionpolicybindings", func(obj scheme.Object, _ string) {
		b := obj.(*admissionv1.ValidatingAdmissionPolicyBinding)
		bindings[b.Spec.PolicyName] = append(bindings[b.Spec.PolicyName],
			&binding{name: b.Name, matches: matcherOf(b.Spec.MatchResources), params: b.Spec.ParamRef, actions: b.Spec.ValidationActions})
	})
	if err != nil || len(bindings) == 0 {
		return nil, err
	}
	const plural = "validatingadmissionpolicies"
	err = p.each(plural, func(obj scheme.Object, spec string) {
		o := obj.(*admissionv1.ValidatingAdmissionPolicy)
		if len(bindings[o.Name]) == 0 {
			return
		}
		found = append(found, &policy{name: o.Name, failsOpen: failsOpen(o.Spec.FailurePolicy), paramKind: o.Spec.ParamKind,
			constraints: matcherOf(o.Spec.MatchConstraints), conditions: o.Spec.MatchConditions, variables: o.Spec.Variables,
			programs: p.keepLocked(before, plural+"/"+o.Name, spec), bindings: bindings[o.Name],
			validations: o.Spec.Validations, annotations: o.Spec.AuditAnnotations})
	})
	return found, err
}

func (p *Policies) mutatingLocked(before map[string]*programs) (found []*policy, err error) {
	if !utilfeature.DefaultFeatureGate.Enabled(features.MutatingAdmissionPolicy) {
		return nil, nil
	}
	bindings := map[string][]*binding{}
	err = p.each("mutatingadmissionpolicybindings", func(obj scheme.Object, _ string) {
		b := obj.(*admissionv1.MutatingAdmissionPolicyBinding)
		bindings[b.Spec.PolicyName] = append(bindings[b.Spec.PolicyName],
			&binding{name: b.Name, matches: matcherOf(b.Spec.MatchResources), params: b.Spec.ParamRef})
	})
	if err != nil || len(bindings) == 0 {
		return nil, err
	}
	const plural = "mutatingadmissionpolicies"
	err = p.each(plural, func(obj scheme.Object, spec string) {
		o := obj.(*admissionv1.MutatingAdmissionPolicy)
		if len(bindings[o.Name]) == 0 {
			return
		}
		found = append(found, &policy{name: o.Name, failsOpen: failsOpen(o.Spec.FailurePolicy), paramKind: o.Spec.ParamKind,
			constraints: matcherOf(o.Spec.MatchConstraints), conditions: o.Spec.MatchConditions, variables: o.Spec.Variables,
			programs: p.keepLocked(before, plural+"/"+o.Name, spec), bindings: bindings[o.Name],
			mutations: o.Spec.Mutations, reinvocable: o.Spec.ReinvocationPolicy == admissionv1.IfNeededReinvocationPolicy})
	})
	return found, err
}

func failsOpen(policy *admissionv1.FailurePolicyType) bool {
	return policy != nil && *policy == admissionv1.Ignore
}

// keepLocked returns the programs of a policy. It reuses the programs in before if the spec is
// unchanged.
func (p *Policies) keepLocked(before map[string]*programs, key, spec string) *programs {
	kept := before[key]
	if kept == nil || kept.spec != spec {
		kept = &programs{spec: spec}
	}
	p.programs[key] = kept
	return kept
}

// each calls visit for all stored objects of a resource, sorted by name. spec is the JSON
// representation of the object's spec.
func (p *Policies) each(plural string, visit func(obj scheme.Object, spec string)) error {
	res := scheme.Stable(admissionv1.GroupName, plural)
	for rec, err := range p.Store.All(store.Span{Prefix: res.KeyPrefix(""), SkipDamaged: true}) {
		if err != nil {
			return err
		}
		obj, err := res.DecodeStored(rec.JSON)
		if err != nil {
			p.Corrupt.Add(rec, err)
			continue
		}
		visit(obj, gjson.GetBytes(rec.JSON, "spec").Raw)
	}
	return nil
}

// Run drops programs that have not been used for a while. It returns when ctx is done.
func (p *Policies) Run(ctx context.Context) {
	idle := time.NewTicker(programsIdle / 5)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-idle.C:
			p.forget(now)
		}
	}
}

func (p *Policies) forget(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, programs := range p.programs {
		programs.forget(now)
	}
}
