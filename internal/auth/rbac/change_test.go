package rbac

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/scheme"
)

// randomPolicyObject is a role or a binding under one of a few names, and its key. It may refer to what is not there.
func randomPolicyObject(r *rand.Rand) (string, scheme.Object) {
	name, namespace := fmt.Sprint("n", r.IntN(6)), []string{"a", "b"}[r.IntN(2)]
	rules := []rbacv1.PolicyRule{{Verbs: []string{[]string{"get", "list"}[r.IntN(2)]}, APIGroups: []string{""}, Resources: []string{fmt.Sprint("r", r.IntN(3))}}}
	ref := rbacv1.RoleRef{Kind: []string{"Role", "ClusterRole"}[r.IntN(2)], Name: fmt.Sprint("n", r.IntN(6))}
	var subjects []rbacv1.Subject
	for range r.IntN(3) {
		subjects = append(subjects, rbacv1.Subject{Kind: []string{"User", "Group"}[r.IntN(2)], Name: fmt.Sprint("s", r.IntN(3))})
	}
	in := metav1.ObjectMeta{Name: name, Namespace: namespace}
	switch r.IntN(4) {
	case 0:
		return "role/" + namespace + name, &rbacv1.Role{ObjectMeta: in, Rules: rules}
	case 1:
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"to": fmt.Sprint("n", r.IntN(6))}}, Rules: rules}
		if r.IntN(3) == 0 {
			role.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"to": name}}}}
		}
		return "clusterrole/" + name, role
	case 2:
		return "binding/" + namespace + name, &rbacv1.RoleBinding{ObjectMeta: in, RoleRef: ref, Subjects: subjects}
	}
	ref.Kind = "ClusterRole"
	return "clusterbinding/" + name, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: ref, Subjects: subjects}
}

// decisions are all that an index says to a few users.
func decisions(x *Index) (all []string) {
	for i := range 3 * 3 * 2 * 3 * 3 {
		q := &Access{User: fmt.Sprint("s", i%3), Groups: []string{fmt.Sprint("s", i/3%3)}, ResourceRequest: true, Verb: []string{"get", "list"}[i/9%2],
			Resource: fmt.Sprint("r", i/18%3), Namespace: []string{"", "a", "b"}[i/54%3]}
		allowed, reason := x.Allows(q)
		rules, problem := x.RulesFor(q)
		all = append(all, fmt.Sprint(allowed, reason, rules, problem, x.MayListAnything(q.User, q.Groups)))
	}
	return all
}

// TestChangedIndexIsThatOfAllObjects, whatever came, changed and went before, alone or together; and the indexes of before stay as they were.
func TestChangedIndexIsThatOfAllObjects(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	policy, objects := NewPolicy(), map[string]scheme.Object{}
	var before *Index
	var said []string
	for step := range 400 {
		changes := map[string]scheme.Object{}
		for range 1 + r.IntN(3) {
			key, obj := randomPolicyObject(r)
			changes[key] = obj
			if r.IntN(3) == 0 {
				changes[key] = nil
			}
		}
		for key, obj := range changes {
			if objects[key] = obj; obj == nil {
				delete(objects, key)
			}
		}
		index := policy.Change(changes)
		now := decisions(index)
		if whole := decisions(NewIndex(slices.Collect(maps.Values(objects)))); !slices.Equal(now, whole) {
			t.Fatalf("seed %d, step %d: the changed index differs from that of all objects", seed, step)
		}
		if before != nil && step%20 == 0 && !slices.Equal(decisions(before), said) {
			t.Fatalf("seed %d, step %d: an index has changed", seed, step)
		}
		before, said = index, now
	}
}

// TestChangeTouchesLittle: of a table of thousands a new index has most parts in common with the one before.
func TestChangeTouchesLittle(t *testing.T) {
	t.Parallel()
	policy := NewPolicy()
	all := map[string]scheme.Object{}
	for i, obj := range thousandBindings() {
		all[fmt.Sprint(i)] = obj
	}
	before := policy.Change(all)
	after := policy.Change(map[string]scheme.Object{"new": &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "new", Namespace: "x"},
		RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "nope"}, Subjects: []rbacv1.Subject{{Kind: "User", Name: "somebody"}}}})
	copied := 0
	for i := range after.grants {
		if fmt.Sprintf("%p", after.grants[i]) != fmt.Sprintf("%p", before.grants[i]) {
			copied++
		}
	}
	if copied != 1 {
		t.Errorf("%d of %d parts were copied for one binding", copied, partCount)
	}
}
