package rbac

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/apitest/kubetest"
	"apilet/internal/scheme"
)

func TestRolesAllow(t *testing.T) {
	t.Parallel()
	sa := func(namespace, name string) rbacv1.Subject {
		return rbacv1.Subject{Kind: "ServiceAccount", Namespace: namespace, Name: name}
	}
	index := NewIndex(append(ParsePolicy(`
ClusterRole reader
	get,list core pods,*/scale
	get core configmaps one,two
	get /metrics,/logs/*
	to User:bob Group:readers
ClusterRole writer
	* apps,batch *
ClusterRole logs
	get core pods/log
Role shop/keeper
	* core secrets
	to User:bob ServiceAccount:other/robot
`),
		kubetest.RoleBinding("shop", "write", "ClusterRole", "writer", rbacv1.Subject{Kind: "Group", Name: "dev"}, sa("", "local")),
		kubetest.ClusterRoleBinding("logs", "logs", sa("", "nobody"), sa("shop", "robot")),
		kubetest.RoleBinding("shop", "lost", "Role", "absent", rbacv1.Subject{Kind: "User", Name: "lost"}),
		kubetest.RoleBinding("shop", "lost2", "ClusterRole", "absent", rbacv1.Subject{Kind: "User", Name: "lost"}),
		kubetest.RoleBinding("shop", "lost3", "ClusterRole", "absent", rbacv1.Subject{Kind: "User", Name: "lost"}),
	))
	for _, c := range []struct {
		question string
		allowed  bool
		reason   string
	}{
		{"bob get core pods shop/x", false, ""}, // the core group is called ""
		{"bob get - pods shop/x", true, `ClusterRoleBinding "reader" of ClusterRole "reader" to User "bob"`},
		{"bob list - pods -", true, `ClusterRoleBinding "reader" of ClusterRole "reader" to User "bob"`},
		{"eve,x,readers list - pods -", true, `ClusterRoleBinding "reader" of ClusterRole "reader" to Group "readers"`},
		{"bob,readers list - pods -", true, `ClusterRoleBinding "reader" of ClusterRole "reader" to User "bob"`},
		{"eve list - pods -", false, ""},
		{"bob watch - pods -", false, ""},
		{"bob get - pods/log shop/x", false, ""},
		{"bob get - deployments/scale shop/x", true, `ClusterRoleBinding "reader" of ClusterRole "reader" to User "bob"`},
		{"bob get apps deployments/scale shop/x", false, ""},
		{"bob get - deployments/upscale shop/x", false, ""},
		{"bob get - configmaps shop/two", true, `ClusterRoleBinding "reader" of ClusterRole "reader" to User "bob"`},
		{"bob get - configmaps shop/three", false, ""},
		{"bob get - configmaps shop", false, ""},
		{"bob delete - secrets shop/x", true, `RoleBinding "keeper/shop" of Role "keeper" to User "bob"`},
		{"bob delete - secrets other/x", false, ""},
		{"bob delete - secrets -", false, ""},
		{"system:serviceaccount:other:robot get - secrets shop/x", true, `RoleBinding "keeper/shop" of Role "keeper" to ServiceAccount "robot/other"`},
		{"system:serviceaccount:shop:local patch batch jobs shop/x", true, `RoleBinding "write/shop" of ClusterRole "writer" to ServiceAccount "local/shop"`},
		{"eve,dev patch batch jobs/status shop/x", true, `RoleBinding "write/shop" of ClusterRole "writer" to Group "dev"`},
		{"eve,dev patch batch jobs other/x", false, ""},
		{"system:serviceaccount:shop:robot get - pods/log other/x", true, `ClusterRoleBinding "logs" of ClusterRole "logs" to ServiceAccount "robot/shop"`},
		{"system:serviceaccount::nobody get - pods/log other/x", false, ""},
		{"bob get /metrics", true, `ClusterRoleBinding "reader" of ClusterRole "reader" to User "bob"`},
		{"bob get /metrics/x", false, ""},
		{"bob get /logs/", true, `ClusterRoleBinding "reader" of ClusterRole "reader" to User "bob"`},
		{"bob get /logs", false, ""},
		{"bob post /logs/x", false, ""},
		{"eve,dev get /metrics", false, ""},
		{"lost get - pods shop/x", false, `RBAC: [role.rbac.authorization.k8s.io "absent" not found, clusterrole.rbac.authorization.k8s.io "absent" not found]`},
		{"lost get - pods other/x", false, ""},
	} {
		allowed, reason := index.Allows(ask(c.question))
		if c.allowed {
			c.reason = "RBAC: allowed by " + c.reason
		}
		if allowed != c.allowed || reason != c.reason {
			t.Errorf("%s: %v %q, want %v %q", c.question, allowed, reason, c.allowed, c.reason)
		}
	}
}

// readEveryBinding decides without an index, in the words of the documentation.
func readEveryBinding(objects []scheme.Object, q *Access) bool {
	applies := func(s rbacv1.Subject, namespace string) bool {
		if s.Namespace == "" {
			s.Namespace = namespace
		}
		return s.Kind == "User" && s.Name == q.User || s.Kind == "Group" && slices.Contains(q.Groups, s.Name) ||
			s.Kind == "ServiceAccount" && s.Namespace != "" && q.User == "system:serviceaccount:"+s.Namespace+":"+s.Name
	}
	in := func(list []string, items ...string) bool {
		return slices.Contains(list, "*") || slices.ContainsFunc(items, func(s string) bool { return slices.Contains(list, s) })
	}
	fits := func(r rbacv1.PolicyRule) bool {
		resources := []string{q.Resource}
		if q.Subresource != "" {
			resources = []string{q.Resource + "/" + q.Subresource, "*/" + q.Subresource}
		}
		return in(r.Verbs, q.Verb) && in(r.APIGroups, q.Group) && in(r.Resources, resources...) && (len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, q.Name))
	}
	for _, binding := range objects {
		ref, subjects := BindingParts(binding)
		if ref == nil || binding.GetNamespace() != "" && binding.GetNamespace() != q.Namespace {
			continue
		}
		if !slices.ContainsFunc(*subjects, func(s rbacv1.Subject) bool { return applies(s, binding.GetNamespace()) }) {
			continue
		}
		for _, role := range objects {
			namespace := ""
			if ref.Kind == "Role" {
				namespace = binding.GetNamespace()
			}
			if rules := rulesOf(role); rules != nil && role.GetName() == ref.Name && role.GetNamespace() == namespace && slices.ContainsFunc(*rules, fits) {
				return true
			}
		}
	}
	return false
}

func TestIndexAgreesWithReadingEveryBinding(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 1))
	some := func(from ...string) []string {
		var list []string
		for range 1 + rnd.IntN(2) {
			list = append(list, from[rnd.IntN(len(from))])
		}
		return list
	}
	one := func(from ...string) string { return from[rnd.IntN(len(from))] }
	allowed := 0
	for range 60 {
		var objects []scheme.Object
		for i := range 8 {
			rules := []rbacv1.PolicyRule{{Verbs: some("get", "list", "*"), APIGroups: some("", "apps", "*"), Resources: some("pods", "pods/log", "*/log", "*", "jobs")}}
			if rnd.IntN(3) == 0 {
				rules[0].ResourceNames = some("x", "y")
			}
			namespace := one("", "a", "b")
			meta := metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("r", i)}
			if namespace == "" {
				objects = append(objects, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules})
			} else {
				objects = append(objects, &rbacv1.Role{ObjectMeta: meta, Rules: rules})
			}
			subject := rbacv1.Subject{Kind: one("User", "Group", "ServiceAccount"), Name: one("u", "v"), Namespace: ""}
			if subject.Kind == "ServiceAccount" {
				subject.Namespace = one("", "a")
			}
			name := fmt.Sprint("r", rnd.IntN(8))
			if namespace == "" {
				objects = append(objects, kubetest.ClusterRoleBinding(fmt.Sprint("b", i), name, subject))
			} else {
				objects = append(objects, kubetest.RoleBinding(namespace, fmt.Sprint("b", i), one("Role", "ClusterRole"), name, subject))
			}
		}
		index := NewIndex(objects)
		for range 60 {
			q := &Access{ResourceRequest: true, User: one("u", "v", "system:serviceaccount:a:u"), Groups: some("u", "v", "w"), Verb: one("get", "list", "watch"),
				Group: one("", "apps"), Resource: one("pods", "jobs"), Subresource: one("", "log"), Namespace: one("", "a", "b"), Name: one("", "x", "y")}
			got, reason := index.Allows(q)
			if want := readEveryBinding(objects, q); got != want {
				t.Fatalf("seed %d: %+v: %v %q, want %v", seed, *q, got, reason, want)
			}
			if got {
				allowed++
			}
		}
	}
	if allowed < 100 {
		t.Errorf("only %d questions were allowed: the test tests little", allowed)
	}
}

func TestAggregatedRolesHoldWhatTheyGather(t *testing.T) {
	t.Parallel()
	policy := append(BuiltinPolicy(), ParsePolicy(`
ClusterRole widgets aggregate-to-view
	get example.com widgets
Role shop/x
	get core nodes
`)...)
	policy = append(policy, kubetest.RoleBinding("shop", "bob", "ClusterRole", "admin", rbacv1.Subject{Kind: "User", Name: "bob"}))
	index := NewIndex(policy)
	for question, want := range map[string]bool{
		"bob get - pods shop/x":                                          true, // admin gathers edit gathers view
		"bob delete apps deployments shop/x":                             true,
		"bob create rbac.authorization.k8s.io roles shop":                true,
		"bob get example.com widgets shop/x":                             true,
		"bob delete example.com widgets shop/x":                          false,
		"bob get - nodes shop/x":                                         false,
		"bob update - resourcequotas shop/x":                             false,
		"bob create authorization.k8s.io localsubjectaccessreviews shop": true,
	} {
		if got, _ := index.Allows(ask(question)); got != want {
			t.Errorf("%s: %v, want %v", question, got, want)
		}
	}
	sums := map[string]int{}
	for _, role := range aggregated(policy) {
		sums[role.Name] = len(role.Rules)
	}
	if want := map[string]int{"view": 13, "edit": 28, "admin": 30}; !reflect.DeepEqual(sums, want) {
		t.Errorf("rules %v, want %v", sums, want)
	}
	circle := ParsePolicy("ClusterRole a y = x\n\tget core a\nClusterRole b x = y\n\tget core b\nClusterRole c x\n\tget core c\n")
	for _, role := range aggregated(circle) {
		if len(role.Rules) != 1 || role.Rules[0].Resources[0] != "c" {
			t.Errorf("in a circle %s holds %v", role.Name, role.Rules)
		}
	}
}

// TestNoWildcardIncludesTheBackup: it has to be named, to have it and to give it.
func TestNoWildcardIncludesTheBackup(t *testing.T) {
	t.Parallel()
	index := NewIndex(ParsePolicy(`
ClusterRole all
	* * *
	* *
	to User:all
ClusterRole root
	* /*
	to User:root
ClusterRole debug
	get /debug/*,/debug/backup*,/debug/back*,/debug/backup/*
	to User:debug
ClusterRole named
	get /debug/backup
	to User:named
ClusterRole reader
	get /metrics
	to User:reader
`))
	named := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "named"}
	rules := []rbacv1.PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"/debug/backup"}}}
	for who, may := range map[string]bool{"all": false, "root": false, "debug": false, "named": true, "reader": false} {
		q := ask(who + " get /debug/backup")
		if got, _ := index.Allows(q); got != may {
			t.Errorf("%s: allowed is %v", who, got)
		}
		if got := index.checkCovered(q, rules) == nil; got != may {
			t.Errorf("%s: may give is %v", who, got)
		}
		if got := index.MayBind(q, named) == nil; got != may {
			t.Errorf("%s: may bind is %v", who, got)
		}
	}
	for _, question := range []string{"all get /debug/deprecations", "root get /metrics", "debug get /debug/api_priority_and_fairness/dump_requests", "debug get /debug/backup/x"} {
		if allowed, _ := index.Allows(ask(question)); !allowed {
			t.Errorf("%s: not allowed", question)
		}
	}
}

// TestNoWildcardOfBeforeIncludesThePage: it takes a pattern of its own, or a role that holds everything.
func TestNoWildcardOfBeforeIncludesThePage(t *testing.T) {
	t.Parallel()
	index := NewIndex(ParsePolicy(`
ClusterRole admin
	* * *
	* *
	to User:admin
ClusterRole urls
	* *
	* apps *
	* * * one
	to User:urls
ClusterRole some
	get /*,/debug/*,/debug/u*,/debug/ui*
	* * *
	to User:some
ClusterRole own
	get /debug/ui/*
	to User:own
ClusterRole named
	get /debug/ui/data
	to User:named
ClusterRole half1
	* * *
	to User:halves
ClusterRole half2
	* *
	to User:halves
`))
	rules := []rbacv1.PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"/debug/ui/data"}}}
	for who, may := range map[string][2]bool{"admin": {true, false}, "urls": {}, "some": {}, "own": {true, true}, "named": {true, true}, "halves": {}, "nobody": {}} {
		q := ask(who + " get /debug/ui/data")
		if got, _ := index.Allows(q); got != may[0] {
			t.Errorf("%s: allowed is %v", who, got)
		}
		if got := index.checkCovered(q, rules) == nil; got != may[1] { // an administrator has the verb escalate for it
			t.Errorf("%s: may give is %v", who, got)
		}
	}
	for _, question := range []string{"urls get /debug/deprecations", "some get /debug/uix", "own get /debug/ui/more"} {
		if allowed, _ := index.Allows(ask(question)); !allowed {
			t.Errorf("%s: not allowed", question)
		}
	}
	if allowed, _ := index.Allows(ask("own post /debug/ui/data")); allowed {
		t.Error("own: a post is allowed")
	}
}

func TestReconcileAddsAndNeverTakes(t *testing.T) {
	t.Parallel()
	want := ParsePolicy("ClusterRole a\n\tget core pods\n\tto User:u\nClusterRole b\n\tget core pods\nClusterRole c = x\nRole n/d\n\tget core pods\nClusterRole e\n\tto User:u\n")
	if changes := ReconcilePolicy(nil, want); len(changes.Create) != len(want) || len(changes.Update)+len(changes.Replace) > 0 {
		t.Errorf("into nothing: %+v", changes)
	}
	if changes := ReconcilePolicy(want, want); !reflect.DeepEqual(changes, PolicyChanges{}) {
		t.Errorf("into itself: %+v", changes)
	}
	have := ParsePolicy("ClusterRole a\n\tlist core pods\n\tto User:v\nClusterRole b\nClusterRole c y\n\tget core pods\nClusterRole e\n")
	have[0].SetLabels(map[string]string{"mine": "1"})
	have[2].SetAnnotations(map[string]string{autoupdate: "false"})
	have = append(have, kubetest.ClusterRoleBinding("e", "other"))
	changes := ReconcilePolicy(have, want)
	var got []string
	for _, list := range [][]scheme.Object{changes.Create, changes.Update, changes.Replace} {
		for _, obj := range list {
			got = append(got, fmt.Sprintf("%T %s", obj, obj.GetName()))
		}
		got = append(got, "|")
	}
	if exp := "*v1.Role d | *v1.ClusterRole a *v1.ClusterRoleBinding a *v1.ClusterRole c | *v1.ClusterRoleBinding e |"; strings.Join(got, " ") != exp {
		t.Errorf("changes %s\nwant    %s", strings.Join(got, " "), exp)
	}
	a, c := changes.Update[0].(*rbacv1.ClusterRole), changes.Update[2].(*rbacv1.ClusterRole)
	if len(a.Rules) != 2 || a.Labels["mine"] != "1" || a.Labels["kubernetes.io/bootstrapping"] == "" || len(*rulesOf(have[0])) != 1 {
		t.Errorf("a became %+v; it was %+v", a, have[0])
	}
	if binding := changes.Update[1].(*rbacv1.ClusterRoleBinding); len(binding.Subjects) != 2 {
		t.Errorf("a's binding became %+v", binding)
	}
	if !aggregates(c) || len(c.Rules) != 1 {
		t.Errorf("c became %+v", c)
	}
}

// thousandBindings has ten for bob: five by name, five through his groups, in two namespaces and for the cluster.
func thousandBindings() []scheme.Object {
	objects := BuiltinPolicy()
	for i := range 1000 {
		subject, namespace := rbacv1.Subject{Kind: "User", Name: fmt.Sprint("user-", i)}, fmt.Sprint("ns-", i%50)
		if i < 10 {
			subject.Name, namespace = "bob", fmt.Sprint("ns-", i%2)
		}
		if i < 5 {
			subject = rbacv1.Subject{Kind: "Group", Name: fmt.Sprint("group-", i%2)}
		}
		role := []string{"view", "edit", "system:kube-scheduler", "system:node", "system:discovery"}[i%5]
		if i%10 == 9 {
			objects = append(objects, kubetest.ClusterRoleBinding(fmt.Sprint("b-", i), role, subject))
		} else {
			objects = append(objects, kubetest.RoleBinding(namespace, fmt.Sprint("b-", i), "ClusterRole", role, subject))
		}
	}
	return objects
}

func BenchmarkDecision(b *testing.B) {
	index := NewIndex(thousandBindings())
	for _, question := range []string{"bob,group-0,group-1,system:authenticated get - pods ns-0/x", "bob,group-0,group-1,system:authenticated delete apps deployments ns-1/x",
		"bob,group-0,group-1,system:authenticated delete - nodes/nothing ns-0/x"} {
		words := strings.Fields(question)
		q := &Access{User: "bob", Groups: []string{"group-0", "group-1", "system:authenticated"}, ResourceRequest: true, Verb: words[1], Resource: words[3], Name: "x"}
		q.Group, q.Namespace, _ = strings.Cut(strings.Trim(words[2], "-")+" "+strings.TrimSuffix(words[4], "/x"), " ")
		allowed, _ := index.Allows(q)
		b.Run(fmt.Sprintf("%s %s allowed=%v", q.Verb, q.Resource, allowed), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				index.Allows(q)
			}
		})
	}
}

func BenchmarkIndexOfThousandBindings(b *testing.B) {
	objects := thousandBindings()
	for b.Loop() {
		NewIndex(objects)
	}
}
