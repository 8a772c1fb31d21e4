package main

import (
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testPolicy reads the notation of rbac_defaults.txt; bindings that it cannot say are added by hand.
func testPolicy(text string) (objects []object) {
	var role object
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case line[0] != '\t':
			role = parseRole(words)
			objects = append(objects, role)
		case words[0] == "to":
			objects = append(objects, parseBinding(role, words[1:]))
		default:
			*rulesOf(role) = append(*rulesOf(role), parseRule(words))
		}
	}
	return objects
}

func roleBinding(namespace, name, kind, role string, subjects ...rbacv1.Subject) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role}}
}

func clusterRoleBinding(name, role string, subjects ...rbacv1.Subject) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}}
}

// ask parses "bob,group,... VERB GROUP RESOURCE[/SUB] NAMESPACE[/NAME]" or "bob VERB /path"; - is empty.
func ask(text string) *access {
	words := strings.Fields(strings.ReplaceAll(text, "-", ""))
	names := strings.Split(words[0], ",")
	q := &access{user: names[0], groups: names[1:], verb: words[1]}
	if strings.HasPrefix(words[2], "/") {
		q.path = words[2]
		return q
	}
	words = strings.Fields(text)
	q.resourceRequest, q.group = true, strings.Trim(words[2], "-")
	q.resource, q.subresource, _ = strings.Cut(words[3], "/")
	q.namespace, q.name, _ = strings.Cut(strings.Trim(words[4], "-"), "/")
	return q
}

func TestRolesAllow(t *testing.T) {
	sa := func(namespace, name string) rbacv1.Subject {
		return rbacv1.Subject{Kind: "ServiceAccount", Namespace: namespace, Name: name}
	}
	index := newRBACIndex(append(testPolicy(`
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
		roleBinding("shop", "write", "ClusterRole", "writer", rbacv1.Subject{Kind: "Group", Name: "dev"}, sa("", "local")),
		clusterRoleBinding("logs", "logs", sa("", "nobody"), sa("shop", "robot")),
		roleBinding("shop", "lost", "Role", "absent", rbacv1.Subject{Kind: "User", Name: "lost"}),
		roleBinding("shop", "lost2", "ClusterRole", "absent", rbacv1.Subject{Kind: "User", Name: "lost"}),
		roleBinding("shop", "lost3", "ClusterRole", "absent", rbacv1.Subject{Kind: "User", Name: "lost"}),
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
		allowed, reason := index.allows(ask(c.question))
		if c.allowed {
			c.reason = "RBAC: allowed by " + c.reason
		}
		if allowed != c.allowed || reason != c.reason {
			t.Errorf("%s: %v %q, want %v %q", c.question, allowed, reason, c.allowed, c.reason)
		}
	}
}

// readEveryBinding decides without an index, in the words of the documentation.
func readEveryBinding(objects []object, q *access) bool {
	applies := func(s rbacv1.Subject, namespace string) bool {
		if s.Namespace == "" {
			s.Namespace = namespace
		}
		return s.Kind == "User" && s.Name == q.user || s.Kind == "Group" && slices.Contains(q.groups, s.Name) ||
			s.Kind == "ServiceAccount" && s.Namespace != "" && q.user == "system:serviceaccount:"+s.Namespace+":"+s.Name
	}
	in := func(list []string, items ...string) bool {
		return slices.Contains(list, "*") || slices.ContainsFunc(items, func(s string) bool { return slices.Contains(list, s) })
	}
	fits := func(r rbacv1.PolicyRule) bool {
		resources := []string{q.resource}
		if q.subresource != "" {
			resources = []string{q.resource + "/" + q.subresource, "*/" + q.subresource}
		}
		return in(r.Verbs, q.verb) && in(r.APIGroups, q.group) && in(r.Resources, resources...) && (len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, q.name))
	}
	for _, binding := range objects {
		ref, subjects := bindingParts(binding)
		if ref == nil || binding.GetNamespace() != "" && binding.GetNamespace() != q.namespace {
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
		var objects []object
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
				objects = append(objects, clusterRoleBinding(fmt.Sprint("b", i), name, subject))
			} else {
				objects = append(objects, roleBinding(namespace, fmt.Sprint("b", i), one("Role", "ClusterRole"), name, subject))
			}
		}
		index := newRBACIndex(objects)
		for range 60 {
			q := &access{resourceRequest: true, user: one("u", "v", "system:serviceaccount:a:u"), groups: some("u", "v", "w"), verb: one("get", "list", "watch"),
				group: one("", "apps"), resource: one("pods", "jobs"), subresource: one("", "log"), namespace: one("", "a", "b"), name: one("", "x", "y")}
			got, reason := index.allows(q)
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

func TestDefaultPolicyIsKubernetes(t *testing.T) {
	policy := builtinPolicy()
	kinds := map[string]int{}
	for _, obj := range policy {
		kinds[fmt.Sprintf("%T", obj)]++
	}
	if want := map[string]int{"*v1.ClusterRole": 69, "*v1.ClusterRoleBinding": 50, "*v1.Role": 7, "*v1.RoleBinding": 7}; !reflect.DeepEqual(kinds, want) {
		t.Errorf("objects %v, want %v", kinds, want)
	}
	index := newRBACIndex(policy)
	for question, want := range map[string]bool{
		"bob,system:authenticated get /apis/apps":                                                              true,
		"bob,system:authenticated get /livez/ping":                                                             false,
		"system:anonymous,system:unauthenticated get /livez":                                                   true,
		"system:anonymous,system:unauthenticated get /api":                                                     false,
		"system:anonymous,system:unauthenticated get /version/":                                                true,
		"bob,system:authenticated create authorization.k8s.io selfsubjectaccessreviews -":                      true,
		"bob,system:authenticated create authorization.k8s.io subjectaccessreviews -":                          false,
		"root,system:masters delete - nodes -/x":                                                               true,
		"root,system:masters get /metrics":                                                                     true,
		"system:kube-controller-manager update coordination.k8s.io leases kube-system/kube-controller-manager": true,
		"system:kube-scheduler create - pods/binding shop/x":                                                   true,
		"system:kube-scheduler delete - secrets shop/x":                                                        false,
		"system:serviceaccount:kube-system:deployment-controller create apps replicasets shop":                 true,
		"system:serviceaccount:default:deployment-controller create apps replicasets shop":                     false,
	} {
		q := ask(question)
		if strings.Contains(question, "kube-controller-manager") || strings.Contains(question, "kube-scheduler") || strings.Contains(question, "deployment-controller") {
			q.user = strings.Fields(question)[0]
		}
		if got, _ := index.allows(q); got != want {
			t.Errorf("%s: %v, want %v", question, got, want)
		}
	}
}

func TestAggregatedRolesHoldWhatTheyGather(t *testing.T) {
	policy := append(builtinPolicy(), testPolicy(`
ClusterRole widgets aggregate-to-view
	get example.com widgets
Role shop/x
	get core nodes
`)...)
	policy = append(policy, roleBinding("shop", "bob", "ClusterRole", "admin", rbacv1.Subject{Kind: "User", Name: "bob"}))
	index := newRBACIndex(policy)
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
		if got, _ := index.allows(ask(question)); got != want {
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
	circle := testPolicy("ClusterRole a y = x\n\tget core a\nClusterRole b x = y\n\tget core b\nClusterRole c x\n\tget core c\n")
	for _, role := range aggregated(circle) {
		if len(role.Rules) != 1 || role.Rules[0].Resources[0] != "c" {
			t.Errorf("in a circle %s holds %v", role.Name, role.Rules)
		}
	}
}

func TestNobodyGivesWhatTheyDoNotHave(t *testing.T) {
	policy := append(testPolicy(`
ClusterRole role-editor
	create,update,patch,get,list rbac.authorization.k8s.io *
	get,list core pods,*/scale
	get /a/*
	to User:bob
ClusterRole cluster-admin
	* * *
	* *
	to User:root
ClusterRole named
	get core configmaps x,y
	to User:ann
ClusterRole binder
	bind rbac.authorization.k8s.io clusterroles cluster-admin
	to User:binder
ClusterRole escalator
	escalate rbac.authorization.k8s.io clusterroles
	to User:escalator
`), clusterRoleBinding("bob-missing", "missing", rbacv1.Subject{Kind: "User", Name: "bob"}))
	a := testAuthenticator(t, nil)
	a.setPolicy(policy)
	role := func(text string) object { return testPolicy(text)[0] }
	const attempt = ` is attempting to grant RBAC permissions not currently held:` + "\n"
	const lost = `; resolution errors: [%s.rbac.authorization.k8s.io "missing" not found]`
	for _, c := range []struct {
		who      string
		obj, old object
		want     string
	}{
		{"bob", role("ClusterRole r\n\tget,delete,list core,apps pods,secrets,deployments/scale\n\tget /a/b,/b/*\n\tget,update core configmaps x,y\n"), nil,
			`clusterroles.rbac.authorization.k8s.io "r" is forbidden: user "bob" (groups=["system:authenticated"])` + attempt + strings.Join([]string{
				`{APIGroups:[""], Resources:["configmaps"], ResourceNames:["x"], Verbs:["get" "update"]}`,
				`{APIGroups:[""], Resources:["configmaps"], ResourceNames:["y"], Verbs:["get" "update"]}`,
				`{APIGroups:[""], Resources:["deployments/scale"], Verbs:["delete"]}`,
				`{APIGroups:[""], Resources:["pods"], Verbs:["delete"]}`,
				`{APIGroups:[""], Resources:["secrets"], Verbs:["get" "delete" "list"]}`,
				`{APIGroups:["apps"], Resources:["deployments/scale"], Verbs:["get" "delete" "list"]}`,
				`{APIGroups:["apps"], Resources:["pods"], Verbs:["get" "delete" "list"]}`,
				`{APIGroups:["apps"], Resources:["secrets"], Verbs:["get" "delete" "list"]}`,
				`{NonResourceURLs:["/b/*"], Verbs:["get"]}`}, "\n") + fmt.Sprintf(lost, "clusterroles")},
		{"bob", role("ClusterRole r\n\tget core pods\n"), nil, ""},
		{"bob", role("ClusterRole r = x\n"), nil, `clusterroles.rbac.authorization.k8s.io "r" is forbidden: must have cluster-admin privileges to use the aggregationRule`},
		{"bob", role("ClusterRole r\n"), role("ClusterRole r = x\n"), `clusterroles.rbac.authorization.k8s.io "r" is forbidden: must have cluster-admin privileges to use the aggregationRule`},
		{"bob", role("ClusterRole r\n\t* * *\n"), role("ClusterRole r\n\t* * *\n"), ""}, // nothing but what collection needs
		{"bob", role("Role default/r\n\t* core secrets\n"), nil, `roles.rbac.authorization.k8s.io "r" is forbidden: user "bob" (groups=["system:authenticated"])` + attempt +
			`{APIGroups:[""], Resources:["secrets"], Verbs:["*"]}` + fmt.Sprintf(lost, "roles")},
		{"bob", clusterRoleBinding("b", "cluster-admin"), nil, `clusterrolebindings.rbac.authorization.k8s.io "b" is forbidden: user "bob" (groups=["system:authenticated"])` + attempt +
			`{APIGroups:["*"], Resources:["*"], Verbs:["*"]}` + "\n" + `{NonResourceURLs:["*"], Verbs:["*"]}` + fmt.Sprintf(lost, "clusterrolebindings")},
		{"bob", clusterRoleBinding("b", "missing"), nil, `clusterrolebindings.rbac.authorization.k8s.io "missing" not found`},
		{"bob", roleBinding("default", "b", "Role", "missing"), nil, `rolebindings.rbac.authorization.k8s.io "missing" not found`},
		{"bob", roleBinding("default", "b", "ClusterRole", "role-editor"), nil, ""},
		{"root", clusterRoleBinding("b", "cluster-admin"), nil, ""},
		{"root", role("ClusterRole r = x\n"), nil, ""},
		{"binder", clusterRoleBinding("b", "cluster-admin"), nil, ""},
		{"escalator", role("ClusterRole r = x\n\t* * *\n"), nil, ""},
		{"ann", role("ClusterRole r\n\tget core configmaps x\n"), nil, ""},
		{"ann", role("ClusterRole r\n\tget core configmaps\n"), nil, `clusterroles.rbac.authorization.k8s.io "r" is forbidden: user "ann" (groups=["system:authenticated"])` + attempt +
			`{APIGroups:[""], Resources:["configmaps"], Verbs:["get"]}`},
	} {
		path := "/apis/rbac.authorization.k8s.io/v1/"
		if c.obj.GetNamespace() != "" {
			path += "namespaces/" + c.obj.GetNamespace() + "/"
		}
		path += strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", c.obj), "*v1.")) + "s"
		rec := &request{user: user{name: c.who}.authenticated(), info: parseRequest(httptest.NewRequest("POST", path, nil))}
		if _, text := status(t, a.mayGrant(rec, c.obj, c.old)); text != c.want {
			t.Errorf("%s writes %T %s\n got %s\nwant %s", c.who, c.obj, c.obj.GetName(), text, c.want)
		}
	}
}

func TestReconcileAddsAndNeverTakes(t *testing.T) {
	want := testPolicy("ClusterRole a\n\tget core pods\n\tto User:u\nClusterRole b\n\tget core pods\nClusterRole c = x\nRole n/d\n\tget core pods\nClusterRole e\n\tto User:u\n")
	if changes := reconcilePolicy(nil, want); len(changes.create) != len(want) || len(changes.update)+len(changes.replace) > 0 {
		t.Errorf("into nothing: %+v", changes)
	}
	if changes := reconcilePolicy(want, want); !reflect.DeepEqual(changes, policyChanges{}) {
		t.Errorf("into itself: %+v", changes)
	}
	have := testPolicy("ClusterRole a\n\tlist core pods\n\tto User:v\nClusterRole b\nClusterRole c y\n\tget core pods\nClusterRole e\n")
	have[0].SetLabels(map[string]string{"mine": "1"})
	have[2].SetAnnotations(map[string]string{autoupdate: "false"})
	have = append(have, clusterRoleBinding("e", "other"))
	changes := reconcilePolicy(have, want)
	var got []string
	for _, list := range [][]object{changes.create, changes.update, changes.replace} {
		for _, obj := range list {
			got = append(got, fmt.Sprintf("%T %s", obj, obj.GetName()))
		}
		got = append(got, "|")
	}
	if exp := "*v1.Role d | *v1.ClusterRole a *v1.ClusterRoleBinding a *v1.ClusterRole c | *v1.ClusterRoleBinding e |"; strings.Join(got, " ") != exp {
		t.Errorf("changes %s\nwant    %s", strings.Join(got, " "), exp)
	}
	a, c := changes.update[0].(*rbacv1.ClusterRole), changes.update[2].(*rbacv1.ClusterRole)
	if len(a.Rules) != 2 || a.Labels["mine"] != "1" || a.Labels["kubernetes.io/bootstrapping"] == "" || len(*rulesOf(have[0])) != 1 {
		t.Errorf("a became %+v; it was %+v", a, have[0])
	}
	if binding := changes.update[1].(*rbacv1.ClusterRoleBinding); len(binding.Subjects) != 2 {
		t.Errorf("a's binding became %+v", binding)
	}
	if !gathers(c) || len(c.Rules) != 1 {
		t.Errorf("c became %+v", c)
	}
}

// thousandBindings has ten for bob: five by name, five through his groups, in two namespaces and for the cluster.
func thousandBindings() []object {
	objects := builtinPolicy()
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
			objects = append(objects, clusterRoleBinding(fmt.Sprint("b-", i), role, subject))
		} else {
			objects = append(objects, roleBinding(namespace, fmt.Sprint("b-", i), "ClusterRole", role, subject))
		}
	}
	return objects
}

func BenchmarkDecision(b *testing.B) {
	index := newRBACIndex(thousandBindings())
	for _, question := range []string{"bob,group-0,group-1,system:authenticated get - pods ns-0/x", "bob,group-0,group-1,system:authenticated delete apps deployments ns-1/x",
		"bob,group-0,group-1,system:authenticated delete - nodes/nothing ns-0/x"} {
		words := strings.Fields(question)
		q := &access{user: "bob", groups: []string{"group-0", "group-1", "system:authenticated"}, resourceRequest: true, verb: words[1], resource: words[3], name: "x"}
		q.group, q.namespace, _ = strings.Cut(strings.Trim(words[2], "-")+" "+strings.TrimSuffix(words[4], "/x"), " ")
		allowed, _ := index.allows(q)
		b.Run(fmt.Sprintf("%s %s allowed=%v", q.verb, q.resource, allowed), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				index.allows(q)
			}
		})
	}
}

func BenchmarkIndexOfThousandBindings(b *testing.B) {
	objects := thousandBindings()
	for b.Loop() {
		newRBACIndex(objects)
	}
}

func BenchmarkDefaultPolicy(b *testing.B) {
	for b.Loop() {
		builtinPolicy()
	}
}
