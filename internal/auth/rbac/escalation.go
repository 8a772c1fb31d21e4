package rbac

// This file checks whether a user has all the permissions of a role before the role is written. A
// rule allows each combination of the items in its lists. For example, a rule with 100 groups, 100
// resources and 100 verbs takes 2 KB but contains a million permissions. Kubernetes expands the
// product and compares each permission with each rule of the user. This file reduces the cost in
// three ways:
//
//  1. A rule is not expanded if a single rule of the user covers it. The rule of an administrator
//     covers all.
//  2. The permissions of the other rules are counted before they are expanded. A role with more
//     than maxPermissions is rejected.
//  3. The user's rules are indexed. A permission is only compared with the rules that name its verb,
//     its group or its resource, whichever are fewest.

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"apilet/internal/apierror"
)

const (
	// The maximum number of permissions of a role. It takes a few tenths of a second to check them.
	maxPermissions = 50_000
	// The maximum number of comparisons for a role. It takes about a second to perform them.
	maxComparisons = 10_000_000
)

// holdings are the rules of a user.
type holdings struct {
	rules                       []heldRule
	byVerb, byGroup, byResource map[string][]int32 // indexes into rules by name, including "*"
	ofURLs                      []int32            // rules with URLs
	comparisons                 int                // number of comparisons so far
}

// A heldRule is a rule, with sets instead of lists.
type heldRule struct {
	verbs, groups, resources, names, urls map[string]bool
	patterns                              []string // URLs that end in *
}

// newHoldings indexes the rules of a user.
func newHoldings(own []rbacv1.PolicyRule) *holdings {
	h := &holdings{byVerb: map[string][]int32{}, byGroup: map[string][]int32{}, byResource: map[string][]int32{}}
	for i, rule := range own {
		held := heldRule{verbs: asSet(rule.Verbs), groups: asSet(rule.APIGroups), resources: asSet(rule.Resources), names: asSet(rule.ResourceNames),
			urls: asSet(rule.NonResourceURLs)}
		for url := range held.urls {
			if strings.HasSuffix(url, "*") {
				held.patterns = append(held.patterns, url)
			}
		}
		if len(held.urls) > 0 {
			h.ofURLs = append(h.ofURLs, int32(i))
		}
		note := func(index map[string][]int32, names map[string]bool) {
			for name := range names {
				index[name] = append(index[name], int32(i))
			}
		}
		note(h.byVerb, held.verbs)
		note(h.byGroup, held.groups)
		note(h.byResource, held.resources)
		h.rules = append(h.rules, held)
	}
	return h
}

// missing expands the rules and returns the permissions that no held rule covers. It returns an
// error if the comparison would take too long.
func (h *holdings) missing(rules []rbacv1.PolicyRule) (missing []rbacv1.PolicyRule, err error) {
	permissions := 0
	for i := range rules {
		if h.coversWhole(&rules[i]) {
			continue
		}
		if permissions += permissionsOf(&rules[i]); permissions > maxPermissions {
			return nil, fmt.Errorf("the role has more than %d permissions (combinations of a verb, an API group, a resource and a name) to be "+
				"compared with those that its writer has: give fewer at once", maxPermissions)
		}
		for _, part := range breakDown(rules[i]) {
			if !h.cover(&part) {
				missing = append(missing, part)
			}
		}
		if h.comparisons > maxComparisons {
			return nil, fmt.Errorf("comparing the role's permissions with the %d rules of its author takes too long: split the role", len(h.rules))
		}
	}
	return missing, nil
}

// permissionsOf returns the number of rules that breakDown would return. If there are more than
// maxPermissions, the result may be any larger number.
func permissionsOf(rule *rbacv1.PolicyRule) int {
	product := func(lengths ...int) int {
		n := 1
		for _, length := range lengths {
			if n = min(n, maxPermissions+1) * min(length, maxPermissions+1); n == 0 {
				return 0
			}
		}
		return min(n, maxPermissions+1)
	}
	return product(len(rule.Verbs), len(rule.APIGroups), len(rule.Resources), max(1, len(rule.ResourceNames))) +
		product(len(rule.Verbs), len(rule.NonResourceURLs))
}

// coversWhole reports whether a single held rule covers the whole rule.
func (h *holdings) coversWhole(rule *rbacv1.PolicyRule) bool {
	if len(rule.Verbs) == 0 || len(rule.NonResourceURLs) > 0 { // there are few rules with URLs
		return false
	}
	for _, list := range h.candidates(rule.Verbs[0], first(rule.APIGroups), first(rule.Resources)) {
		for _, i := range list {
			held := &h.rules[i]
			h.comparisons++
			all := func(list []string, holds func(string) bool) bool {
				return !slices.ContainsFunc(list, func(item string) bool { h.comparisons++; return !holds(item) })
			}
			if all(rule.Verbs, held.hasVerb) && all(rule.APIGroups, held.hasGroup) && all(rule.Resources, held.hasResource) &&
				(len(held.names) == 0 || len(rule.ResourceNames) > 0 && all(rule.ResourceNames, held.hasName)) {
				return true
			}
		}
		if h.comparisons > maxComparisons {
			return false
		}
	}
	return false
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

func (r *heldRule) hasVerb(verb string) bool   { return r.verbs[verb] || r.verbs["*"] }
func (r *heldRule) hasGroup(group string) bool { return r.groups[group] || r.groups["*"] }
func (r *heldRule) hasName(name string) bool   { return len(r.names) == 0 || r.names[name] }

func (r *heldRule) hasResource(resource string) bool {
	if r.resources[resource] || r.resources["*"] {
		return true
	}
	_, subresource, _ := strings.Cut(resource, "/")
	return subresource != "" && r.resources["*/"+subresource]
}

func (r *heldRule) hasURL(url string) bool {
	return r.urls[url] || slices.ContainsFunc(r.patterns, func(pattern string) bool { return urlCovers(pattern, url) })
}

// candidates returns lists of held rules. All rules that cover the permission are in one of these
// lists. It selects the shortest lists.
func (h *holdings) candidates(verb, group, resource string) [][]int32 {
	_, subresource, _ := strings.Cut(resource, "/")
	best, least := [][]int32(nil), -1
	for _, lists := range [...][][]int32{
		{h.byResource[resource], h.byResource["*"], h.byResource["*/"+subresource]},
		{h.byVerb[verb], h.byVerb["*"]},
		{h.byGroup[group], h.byGroup["*"]},
	} {
		count := 0
		for _, list := range lists {
			count += len(list)
		}
		if least < 0 || count < least {
			best, least = lists, count
		}
	}
	return best
}

// cover reports whether a held rule covers a rule returned by breakDown.
func (h *holdings) cover(part *rbacv1.PolicyRule) bool {
	if h.comparisons > maxComparisons {
		return false // missing returns an error
	}
	if len(part.NonResourceURLs) > 0 {
		return slices.ContainsFunc(h.ofURLs, func(i int32) bool {
			h.comparisons += 1 + len(h.rules[i].patterns)
			return h.rules[i].hasVerb(part.Verbs[0]) && h.rules[i].hasURL(part.NonResourceURLs[0])
		})
	}
	covers := func(i int32) bool {
		h.comparisons++
		held := &h.rules[i]
		return held.hasResource(part.Resources[0]) && held.hasVerb(part.Verbs[0]) && held.hasGroup(part.APIGroups[0]) &&
			(len(held.names) == 0 || len(part.ResourceNames) > 0 && held.names[part.ResourceNames[0]])
	}
	for _, list := range h.candidates(part.Verbs[0], part.APIGroups[0], part.Resources[0]) {
		if slices.ContainsFunc(list, covers) {
			return true
		}
	}
	return false
}

// missingRules is like missing, but without an error. It is used for the default policy.
func missingRules(own, rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	missing, _ := newHoldings(own).missing(rules)
	return missing
}

// firstLines limits the number of lines in an error. The last line contains the number of omitted
// lines.
func firstLines(lines []string) []string {
	left := apierror.NewBudget()
	for i, line := range lines {
		if left.Exhausted() {
			return append(lines[:i:i], apierror.OmittedText(len(lines)-i))
		}
		left.Take(line)
	}
	return lines
}

// breakDown expands a rule. Each result has exactly one verb and either a URL or a group, a
// resource and at most one name.
func breakDown(rule rbacv1.PolicyRule) (parts []rbacv1.PolicyRule) {
	names := [][]string{nil}
	if len(rule.ResourceNames) > 0 {
		names = slices.Collect(slices.Chunk(rule.ResourceNames, 1))
	}
	for group := range slices.Chunk(rule.APIGroups, 1) {
		for resource := range slices.Chunk(rule.Resources, 1) {
			for verb := range slices.Chunk(rule.Verbs, 1) {
				for _, name := range names {
					parts = append(parts, rbacv1.PolicyRule{Verbs: verb, APIGroups: group, Resources: resource, ResourceNames: name})
				}
			}
		}
	}
	for url := range slices.Chunk(rule.NonResourceURLs, 1) {
		for verb := range slices.Chunk(rule.Verbs, 1) {
			parts = append(parts, rbacv1.PolicyRule{Verbs: verb, NonResourceURLs: url})
		}
	}
	return parts
}

// describe returns the texts of rules returned by breakDown in sorted order. If rules differ only
// in their verb, they are merged.
func describe(parts []rbacv1.PolicyRule) []string {
	verbs, texts := map[string][]string{}, map[string]bool{}
	for _, part := range parts {
		scope := ""
		for _, list := range []struct {
			name  string
			items []string
		}{{"APIGroups", part.APIGroups}, {"Resources", part.Resources}, {"NonResourceURLs", part.NonResourceURLs}, {"ResourceNames", part.ResourceNames}} {
			if len(list.items) > 0 {
				scope += fmt.Sprintf("%s:%q, ", list.name, list.items)
			}
		}
		if len(part.NonResourceURLs) > 0 { // these are not merged
			texts[fmt.Sprintf("{%sVerbs:%q}", scope, part.Verbs)] = true
			continue
		}
		verbs[scope] = append(verbs[scope], part.Verbs...)
	}
	for scope, list := range verbs {
		texts[fmt.Sprintf("{%sVerbs:%q}", scope, list)] = true
	}
	return slices.Sorted(maps.Keys(texts))
}

func asSet(list []string) map[string]bool {
	names := make(map[string]bool, len(list))
	for _, name := range list {
		names[name] = true
	}
	return names
}
