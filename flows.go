package main

import (
	"regexp"
	"slices"
	"strings"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
)

// A digest is what of a request decides its fate. Requests for no resource have their lower-case method as verb.
type digest struct {
	user                        string
	groups                      []string
	resourceRequest             bool
	verb, path                  string
	group, version, namespace   string
	resource, subresource, name string
	received                    time.Time // waiting counts from here
}

// Classification

// A flowRules is the compiled form of one FlowSchema. Immutable.
type flowRules struct {
	name, uid    string
	levelName    string
	precedence   int32
	rules        []flowcontrolv1.PolicyRulesWithSubjects
	method       flowcontrolv1.FlowDistinguisherMethodType
	pattern      *regexp.Regexp // annotationPattern
	tenantPrefix string         // annotationTenant
}

// Extensions of the flow distinguisher, which Kubernetes' designers wanted and never shipped. As annotations they leave the
// object what Kubernetes knows.
const (
	// A regular expression with one group, tried on what the distinguisher method yields: the group's text tells flows apart.
	annotationPattern = "flowcontrol.apilet.dev/distinguisher-pattern"
	// The first of the user's groups that has this prefix tells flows apart: all users of a tenant are one flow.
	annotationTenant = "flowcontrol.apilet.dev/tenant-group-prefix"
)

func newFlowRules(obj *flowcontrolv1.FlowSchema) flowRules {
	s := flowRules{name: obj.Name, uid: string(obj.UID), levelName: obj.Spec.PriorityLevelConfiguration.Name,
		precedence: obj.Spec.MatchingPrecedence, rules: obj.Spec.Rules, tenantPrefix: obj.Annotations[annotationTenant]}
	if obj.Spec.DistinguisherMethod != nil {
		s.method = obj.Spec.DistinguisherMethod.Type
	}
	// A pattern that does not compile, or has not one group, is no pattern: the flows are told apart as without it.
	if re, err := regexp.Compile(obj.Annotations[annotationPattern]); err == nil && re.NumSubexp() == 1 {
		s.pattern = re
	}
	return s
}

func (s *flowRules) matches(dig *digest) bool {
	for i := range s.rules {
		if matchesRule(&s.rules[i], dig) {
			return true
		}
	}
	return false
}

func matchesRule(rule *flowcontrolv1.PolicyRulesWithSubjects, dig *digest) bool {
	if !matchesSubject(rule.Subjects, dig) {
		return false
	}
	if dig.resourceRequest {
		for i := range rule.ResourceRules {
			if matchesResource(&rule.ResourceRules[i], dig) {
				return true
			}
		}
		return false
	}
	for i := range rule.NonResourceRules {
		nonResource := &rule.NonResourceRules[i]
		if hasOrAll(nonResource.Verbs, dig.verb) && matchesPath(nonResource.NonResourceURLs, dig.path) {
			return true
		}
	}
	return false
}

func matchesSubject(subjects []flowcontrolv1.Subject, dig *digest) bool {
	for i := range subjects {
		switch sub := &subjects[i]; {
		case sub.User != nil && sub.Kind == flowcontrolv1.SubjectKindUser:
			if sub.User.Name == "*" || sub.User.Name == dig.user {
				return true
			}
		case sub.Group != nil && sub.Kind == flowcontrolv1.SubjectKindGroup:
			if sub.Group.Name == "*" || slices.Contains(dig.groups, sub.Group.Name) {
				return true
			}
		case sub.ServiceAccount != nil && sub.Kind == flowcontrolv1.SubjectKindServiceAccount:
			if matchesServiceAccount(sub.ServiceAccount, dig.user) {
				return true
			}
		}
	}
	return false
}

func matchesServiceAccount(account *flowcontrolv1.ServiceAccountSubject, user string) bool {
	rest, ok := strings.CutPrefix(user, "system:serviceaccount:")
	if !ok {
		return false
	}
	namespace, name, ok := strings.Cut(rest, ":")
	return ok && namespace == account.Namespace && (account.Name == "*" || account.Name == name)
}

func matchesResource(rule *flowcontrolv1.ResourcePolicyRule, dig *digest) bool {
	if dig.namespace == "" {
		if !rule.ClusterScope {
			return false
		}
	} else if !hasOrAll(rule.Namespaces, dig.namespace) {
		return false
	}
	return hasOrAll(rule.Verbs, dig.verb) && hasOrAll(rule.APIGroups, dig.group) && namesResource(rule.Resources, dig)
}

// namesResource tells whether the list has resource, or resource/subresource where the request has one.
func namesResource(list []string, dig *digest) bool {
	if dig.subresource == "" || isAll(list) {
		return hasOrAll(list, dig.resource)
	}
	for _, entry := range list {
		resource, subresource, _ := strings.Cut(entry, "/")
		if resource == dig.resource && subresource == dig.subresource {
			return true
		}
	}
	return false
}

// matchesPath takes an entry for itself and for what lies below it; the trailing /* that the API's documentation asks for may be
// left out, as in Kubernetes.
func matchesPath(entries []string, path string) bool {
	for _, entry := range entries {
		if entry == "*" || entry == path {
			return true
		}
		entry = strings.TrimSuffix(strings.TrimSuffix(entry, "*"), "/")
		if rest, ok := strings.CutPrefix(path, entry); ok && strings.HasPrefix(rest, "/") {
			return true
		}
	}
	return false
}

func hasOrAll(list []string, value string) bool { return isAll(list) || slices.Contains(list, value) }

// isAll: the asterisk counts only when it stands alone.
func isAll(list []string) bool { return len(list) == 1 && list[0] == "*" }

// distinguisher tells the flows of a schema apart.
func (s *flowRules) distinguisher(dig *digest) string {
	value := ""
	switch s.method {
	case flowcontrolv1.FlowDistinguisherMethodByUserType:
		value = dig.user
	case flowcontrolv1.FlowDistinguisherMethodByNamespaceType:
		value = dig.namespace
	}
	if s.pattern != nil {
		if match := s.pattern.FindStringSubmatch(value); match != nil {
			value = match[1]
		}
	}
	if s.tenantPrefix != "" {
		for _, group := range dig.groups {
			if strings.HasPrefix(group, s.tenantPrefix) {
				return group
			}
		}
	}
	return value
}
