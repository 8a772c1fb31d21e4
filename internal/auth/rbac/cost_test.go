package rbac

import (
	"apilet/internal/apierror"
	"apilet/internal/scheme"
	"fmt"
	"math/rand/v2"
	"runtime"
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
		got, err := newHoldings(own).missing(given)
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

// TestPermissionsAreCountedFirst: 2 KB that stand for a million permissions.
func TestPermissionsAreCountedFirst(t *testing.T) {
	cube := func(n int) []rbacv1.PolicyRule {
		list := func(format string) (names []string) {
			for i := range n {
				names = append(names, fmt.Sprintf(format, i))
			}
			return names
		}
		return []rbacv1.PolicyRule{{Verbs: list("v%d"), APIGroups: list("g%d"), Resources: list("r%d")}}
	}
	allocated := func() uint64 {
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.TotalAlloc
	}
	own := []rbacv1.PolicyRule{{Verbs: []string{"v1"}, APIGroups: []string{"g1"}, Resources: []string{"r1"}}}
	x := NewIndex([]scheme.Object{})
	before := allocated()
	if missing, err := newHoldings(own).missing(cube(100)); err == nil {
		t.Errorf("a million permissions were compared: %d are missing", len(missing))
	}
	if n := allocated() - before; n > 16<<20 {
		t.Errorf("they took %d MiB", n>>20)
	}
	if missing, err := newHoldings(FullAuthority).missing(cube(100)); err != nil || len(missing) > 0 {
		t.Errorf("who has all may give all: %v", err)
	}
	if missing, err := newHoldings(own).missing(cube(30)); err != nil || len(missing) != 30*30*30-1 {
		t.Errorf("got %d, %v", len(missing), err)
	}
	err := x.checkCovered(&Access{User: "u"}, cube(36))
	if err == nil || len(err.Error()) > 2<<20 || !strings.HasSuffix(err.Error(), fmt.Sprintf("and %d more", 36*36-apierror.MaxErrors)) {
		t.Errorf("the refusal has %d bytes", len(fmt.Sprint(err)))
	}
}
