package audit

// This file evaluates audit policies (audit.k8s.io/v1 Policy, --audit-policy-file). It uses the
// code of k8s.io/apiserver to parse, validate and match them, so the same files are valid and the
// error messages are the same.

import (
	"fmt"

	"k8s.io/apiserver/pkg/apis/audit"
	k8saudit "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	k8suser "k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"apilet/internal/request"
)

// A Policy determines the level of each request. The first matching rule decides. Requests that
// match no rule are not logged.
type Policy struct{ rules k8saudit.PolicyRuleEvaluator }

// LoadPolicy reads a policy from a file.
func LoadPolicy(path string) (*Policy, error) {
	rules, err := policy.LoadPolicyFromFile(path)
	if err != nil {
		return nil, fmt.Errorf("loading audit policy file: %w", err)
	}
	return &Policy{policy.NewPolicyRuleEvaluator(rules)}, nil
}

// choose evaluates the policy for a request. If the user is impersonated, it uses the authenticated
// user.
func (p *Policy) choose(rec *request.Request) *request.AuditData {
	info := &rec.Info
	about := authorizer.AttributesRecord{Verb: info.Verb, Namespace: info.Namespace, APIGroup: info.Group, APIVersion: info.Version, Resource: info.Resource,
		Subresource: info.Subresource, Name: info.Name, ResourceRequest: info.ResourceRequest, Path: info.Path}
	who := &rec.User
	if rec.Impersonator != nil {
		who = rec.Impersonator
	}
	if who.Name != "" {
		about.User = &k8suser.DefaultInfo{Name: who.Name, UID: who.UID, Groups: who.Groups, Extra: who.Extra}
	}
	chosen := p.rules.EvaluatePolicyRule(about)
	omitted := make([]string, len(chosen.OmitStages))
	for i, omit := range chosen.OmitStages {
		omitted[i] = string(omit)
	}
	if chosen.Level == "" {
		chosen.Level = audit.LevelNone
	}
	return &request.AuditData{Level: string(chosen.Level), OmitStages: omitted, OmitManagedFields: chosen.OmitManagedFields, SkipResponse: rec.Streaming}
}
