package rbac

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

// TestHoldingsCoverLikeRules compares the index with what the rules say one by one.
func TestHoldingsCoverLikeRules(t *testing.T) {
	some := func(from ...string) (list []string) {
		for range rand.IntN(3) {
			list = append(list, from[rand.IntN(len(from))])
		}
		return list
	}
	rule := func() rbacv1.PolicyRule {
		if rand.IntN(4) == 0 {
			return rbacv1.PolicyRule{Verbs: some("get", "list", "*"), NonResourceURLs: some("/a", "/a/b", "/a/*", "*")}
		}
		return rbacv1.PolicyRule{Verbs: some("get", "list", "*"), APIGroups: some("", "apps", "*"), Resources: some("pods", "pods/log", "*/log", "*"),
			ResourceNames: some("n", "m")}
	}
	for range 20_000 {
		var own, given []rbacv1.PolicyRule
		for range rand.IntN(4) {
			own = append(own, rule())
		}
		given = append(given, rule(), rule())
		var want []rbacv1.PolicyRule
		for _, r := range given {
			for _, part := range breakDown(r) {
				if !slices.ContainsFunc(own, func(o rbacv1.PolicyRule) bool { return coversPlainly(&o, &part) }) {
					want = append(want, part)
				}
			}
		}
		got, err := NewHoldings(own).Missing(given)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("own %v\ngiven %v\ngot  %v, %v\nwant %v", own, given, got, err, want)
		}
	}
}

func coversPlainly(own, part *rbacv1.PolicyRule) bool {
	if !has(own.Verbs, part.Verbs[0]) {
		return false
	}
	if len(part.NonResourceURLs) > 0 {
		return slices.ContainsFunc(own.NonResourceURLs, func(url string) bool { return urlCovers(url, part.NonResourceURLs[0]) })
	}
	_, subresource, _ := strings.Cut(part.Resources[0], "/")
	return has(own.APIGroups, part.APIGroups[0]) && hasResource(own.Resources, part.Resources[0], subresource) &&
		(len(own.ResourceNames) == 0 || len(part.ResourceNames) > 0 && slices.Contains(own.ResourceNames, part.ResourceNames[0]))
}
