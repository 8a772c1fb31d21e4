package flowcontrol

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"

	"apilet/internal/apitest/kubetest"
)

func schemasIn(objs Objects) []*FlowSchema {
	d := NewDispatcher(600, time.Minute)
	d.Configure(objs.Schemas, objs.Levels)
	return *d.schemas.Load()
}

// digestOfText parses a digest from "user[group,...] verb group/resource[/subresource]
// [namespace[/name]]" or "user[...] verb /path".
func digestOfText(t *testing.T, text string) *Digest {
	t.Helper()
	who, what, ok := strings.Cut(text, " ")
	fields := strings.Fields(what)
	if !ok || len(fields) < 2 {
		t.Fatal("cannot read", text)
	}
	dig := &Digest{Verb: fields[0]}
	dig.User, who, _ = strings.Cut(strings.TrimSuffix(who, "]"), "[")
	if who != "" {
		dig.Groups = strings.Split(who, ",")
	}
	if strings.HasPrefix(fields[1], "/") {
		dig.Path = fields[1]
		return dig
	}
	dig.ResourceRequest = true
	dig.Group, dig.Resource, _ = strings.Cut(fields[1], "/")
	dig.Resource, dig.Subresource, _ = strings.Cut(dig.Resource, "/")
	if dig.Group == "core" {
		dig.Group = ""
	}
	if len(fields) > 2 {
		dig.Namespace, dig.Name, _ = strings.Cut(fields[2], "/")
	}
	return dig
}

// TestAFreshServerClassifies checks the schema of each request with the objects of a new server.
func TestAFreshServerClassifies(t *testing.T) {
	schemas := schemasIn(freshServer())
	for request, want := range map[string]string{
		"admin[system:masters,system:authenticated] list core/pods":                                           "exempt",
		"admin[system:masters] get /anything":                                                                 "exempt",
		"alice[system:authenticated] list core/pods":                                                          "global-default",
		"system:serviceaccount:ns:sa[system:serviceaccounts,system:authenticated] get core/pods ns":           "service-accounts",
		"system:serviceaccount:kube-system:sa[system:serviceaccounts,system:authenticated] get core/pods ns":  "kube-system-service-accounts",
		"system:serviceaccount:kube:sa[system:serviceaccounts,system:authenticated] get core/pods ns":         "service-accounts",
		"system:serviceaccount:kube-system:sa[system:serviceaccounts] update coordination.k8s.io/leases ns":   "system-leader-election",
		"system:node:n1[system:nodes,system:authenticated] get core/nodes":                                    "system-node-high",
		"system:node:n1[system:nodes,system:authenticated] patch core/nodes/status":                           "system-node-high",
		"system:node:n1[system:nodes,system:authenticated] update coordination.k8s.io/leases kube-node-lease": "system-node-high",
		"system:node:n1[system:nodes,system:authenticated] patch core/pods/status ns":                         "system-nodes",
		"system:kube-controller-manager[system:authenticated] get coordination.k8s.io/leases kube-system":     "system-leader-election",
		"system:kube-controller-manager[system:authenticated] delete coordination.k8s.io/leases kube-system":  "kube-controller-manager",
		"system:kube-scheduler[system:authenticated] create core/pods/binding ns":                             "kube-scheduler",
		"system:anonymous[system:unauthenticated] get /healthz":                                               "probes",
		"system:anonymous[system:unauthenticated] get /readyz":                                                "probes",
		"system:anonymous[system:unauthenticated] get /livez/ping":                                            "probes",
		"system:anonymous[system:unauthenticated] post /healthz":                                              "global-default",
		"system:anonymous[system:unauthenticated] get /healthzz":                                              "global-default",
		"nobody get core/pods": "catch-all",
		"system:serviceaccount:kube-system:sa[system:serviceaccounts,system:authenticated] watch coordination.k8s.io/leases ns/lk": "kube-system-service-accounts",
	} {
		if got := classify(schemas, digestOfText(t, request)); got.Name != want {
			t.Errorf("%s: %s, want %s", request, got.Name, want)
		}
	}
}

// TestRulesMatch tests all fields of a rule, including the wildcards.
func TestRulesMatch(t *testing.T) {
	type rule = flowcontrolv1.ResourcePolicyRule
	all := []string{"*"}
	resource := func(change func(*rule)) flowcontrolv1.PolicyRulesWithSubjects {
		r := rule{Verbs: all, APIGroups: all, Resources: all, Namespaces: all, ClusterScope: true}
		change(&r)
		return flowcontrolv1.PolicyRulesWithSubjects{Subjects: groupSubjects("*"), ResourceRules: []rule{r}}
	}
	subjects := func(list ...flowcontrolv1.Subject) flowcontrolv1.PolicyRulesWithSubjects {
		r := resource(func(*rule) {})
		r.Subjects = list
		return r
	}
	paths := func(list ...string) flowcontrolv1.PolicyRulesWithSubjects {
		return flowcontrolv1.PolicyRulesWithSubjects{Subjects: userSubjects("*"),
			NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: all, NonResourceURLs: list}}}
	}
	account := func(namespace, name string) flowcontrolv1.Subject {
		return flowcontrolv1.Subject{Kind: "ServiceAccount", ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: namespace, Name: name}}
	}
	for _, c := range []struct {
		name    string
		rule    flowcontrolv1.PolicyRulesWithSubjects
		matches []string
		not     []string
	}{
		{"cluster scope only", resource(func(r *rule) { r.Namespaces = nil }),
			[]string{"u list core/pods", "u get core/nodes"}, []string{"u list core/pods ns", "u get core/namespaces foo/foo"}},
		{"namespaces only", resource(func(r *rule) { r.ClusterScope = false }),
			[]string{"u list core/pods ns", "u get core/namespaces foo/foo"}, []string{"u list core/pods"}},
		{"one namespace", resource(func(r *rule) { r.Namespaces = []string{"a", "b"} }),
			[]string{"u list core/pods b", "u list core/pods"}, []string{"u list core/pods c"}},
		{"pods", resource(func(r *rule) { r.Resources = []string{"pods"} }), []string{"u get core/pods"}, []string{"u get core/pods/status", "u get core/nodes"}},
		{"pods/status", resource(func(r *rule) { r.Resources = []string{"pods/status"} }), []string{"u get core/pods/status"}, []string{"u get core/pods", "u get core/pods/log"}},
		{"no wildcard for a subresource", resource(func(r *rule) { r.Resources = []string{"*/status"} }), nil, []string{"u get core/pods/status"}},
		{"all resources", resource(func(*rule) {}), []string{"u get core/pods/status"}, nil},
		{"an asterisk in company is a name", resource(func(r *rule) { r.Resources = []string{"*", "pods"} }), []string{"u get core/pods"}, []string{"u get core/nodes"}},
		{"the core group", resource(func(r *rule) { r.APIGroups = []string{""} }), []string{"u get core/pods"}, []string{"u get apps/deployments"}},
		{"verbs", resource(func(r *rule) { r.Verbs = []string{"list"} }), []string{"u list core/pods"}, []string{"u watch core/pods"}},
		{"resource rules are for resources", resource(func(*rule) {}), nil, []string{"u get /healthz"}},
		{"all groups", subjects(groupSubjects("*")...), []string{"u get core/pods"}, nil},
		{"all users", subjects(userSubjects("*")...), []string{"u get core/pods"}, nil},
		{"any of the subjects", subjects(append(userSubjects("a"), groupSubjects("g", "h")...)...),
			[]string{"a get core/pods", "b[x,h] get core/pods"}, []string{"b[x] get core/pods"}},
		{"one service account", subjects(account("ns", "sa")), []string{"system:serviceaccount:ns:sa get core/pods"},
			[]string{"system:serviceaccount:ns:sab get core/pods", "system:serviceaccount:n:ssa get core/pods", "sa get core/pods"}},
		{"all service accounts of a namespace", subjects(account("ns", "*")), []string{"system:serviceaccount:ns:any get core/pods"},
			[]string{"system:serviceaccount:ns2:any get core/pods"}},
		{"paths below", paths("/apis/*", "/version"), []string{"u get /apis/apps", "u get /version", "u get /version/x"}, []string{"u get /apis", "u get /versions", "u get core/pods"}},
		{"all paths", paths("*"), []string{"u get /any"}, nil},
		{"the root", paths("/"), []string{"u get /"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, text := range c.matches {
				if !matchesRule(&c.rule, digestOfText(t, text)) {
					t.Errorf("%q does not match", text)
				}
			}
			for _, text := range c.not {
				if matchesRule(&c.rule, digestOfText(t, text)) {
					t.Errorf("%q matches", text)
				}
			}
		})
	}
}

// TestSchemasAreTriedByPrecedenceThenName tests the order of the schemas and the handling of
// missing levels.
func TestSchemasAreTriedByPrecedenceThenName(t *testing.T) {
	objs := freshServer()
	add := func(name, level string, precedence int32) {
		schema := kubetest.SchemaFor(level, "*")
		schema.Name, schema.Spec.MatchingPrecedence = name, precedence
		objs.Schemas = append(objs.Schemas, schema)
	}
	winner := func() string { return classify(schemasIn(objs), digestOfText(t, "alice get core/pods")).Name }
	add("b", "system", 700)
	add("a", "system", 700)
	if got := winner(); got != "a" {
		t.Errorf("of equals %s wins, want a", got)
	}
	add("z", "system", 600)
	if got := winner(); got != "z" {
		t.Errorf("%s wins, want z", got)
	}
	add("dangling", "missing", 500)
	if got := winner(); got != "z" {
		t.Errorf("%s wins, want z: the other's level is missing", got)
	}
	objs.Levels = append(objs.Levels, kubetest.LimitedLevel("missing", 1, 1, 1, 1))
	if got := winner(); got != "dangling" {
		t.Errorf("%s wins, want dangling: its level is there now", got)
	}
}

// TestDistinguishers checks that requests are assigned to flows by user, by namespace, or by an
// annotation that contains a pattern.
func TestDistinguishers(t *testing.T) {
	dig := digestOfText(t, "team-7:bob[staff,tenant:acme,tenant:other] list core/pods team-9-prod")
	for _, c := range []struct {
		method      flowcontrolv1.FlowDistinguisherMethodType
		annotations map[string]string
		want        string
	}{
		{"", nil, ""},
		{byUser, nil, "team-7:bob"},
		{byNamespace, nil, "team-9-prod"},
		{byUser, map[string]string{annotationPattern: `^(team-\d+):`}, "team-7"},
		{byNamespace, map[string]string{annotationPattern: `^(team-\d+)-`}, "team-9"},
		{byUser, map[string]string{annotationPattern: `^(alpha)`}, "team-7:bob"},
		{byUser, map[string]string{annotationPattern: `^(unclosed`}, "team-7:bob"},
		{byUser, map[string]string{annotationPattern: `^(two)(groups)`}, "team-7:bob"},
		{byUser, map[string]string{annotationTenant: "tenant:"}, "tenant:acme"},
		{byUser, map[string]string{annotationTenant: "guild:"}, "team-7:bob"},
	} {
		obj := kubetest.SchemaFor("level", "*")
		obj.Annotations, obj.Spec.DistinguisherMethod = c.annotations, nil
		if c.method != "" {
			obj.Spec.DistinguisherMethod = &flowcontrolv1.FlowDistinguisherMethod{Type: c.method}
		}
		rules := newFlowRules(obj)
		if got := rules.distinguisher(dig); got != c.want {
			t.Errorf("%s %v: %q, want %q", c.method, c.annotations, got, c.want)
		}
	}
}

// TestBuiltInObjectsAreMaintained checks that built-in objects are created and updated unless this
// is disabled by an annotation. Obsolete objects must be deleted.
func TestBuiltInObjectsAreMaintained(t *testing.T) {
	empty := MaintainSchemas(nil)
	if len(empty.Create) != 11 || len(MaintainLevels(nil).Create) != 8 {
		t.Fatalf("an empty server gets %d schemas and %d levels", len(empty.Create), len(MaintainLevels(nil).Create))
	}
	fresh := freshServer()
	if todo := MaintainSchemas(fresh.Schemas); len(todo.Create)+len(todo.Update)+len(todo.Remove) != 0 {
		t.Errorf("a fresh server's schemas need %+v", todo)
	}
	const key = flowcontrolv1.AutoUpdateAnnotationKey
	for _, c := range []struct {
		name, level, annotation string
		generation              int64
		shares                  int32 // 0: unchanged
		wantAnnotation          string
		wantShares              int32 // 0: no update
	}{
		{"suggested, annotated, unchanged", "system", "true", 1, 0, "", 0},
		{"suggested, annotated, changed", "system", "true", 2, 77, "true", 30},
		{"suggested, left alone", "system", "false", 2, 77, "", 0},
		{"suggested, annotation lost, changed", "system", "", 2, 77, "false", 77},
		{"suggested, annotation lost, new", "system", "", 1, 77, "true", 30},
		{"suggested, annotation nonsense, new", "system", "maybe", 1, 0, "true", 30},
		{"mandatory, changed", "catch-all", "false", 2, 77, "true", 5},
		{"mandatory, annotation only", "catch-all", "false", 2, 0, "true", 5},
	} {
		objs := freshServer()
		i := slices.IndexFunc(objs.Levels, func(obj *flowcontrolv1.PriorityLevelConfiguration) bool { return obj.Name == c.level })
		obj := objs.Levels[i]
		obj.Generation = c.generation
		obj.Annotations = map[string]string{"other": "kept"}
		if c.annotation != "" {
			obj.Annotations[key] = c.annotation
		}
		if c.shares > 0 {
			obj.Spec.Limited.NominalConcurrencyShares = new(c.shares)
		}
		todo := MaintainLevels(objs.Levels)
		switch {
		case c.wantShares == 0 && len(todo.Update) > 0:
			t.Errorf("%s: updated", c.name)
		case c.wantShares > 0 && len(todo.Update) != 1:
			t.Errorf("%s: %d updates", c.name, len(todo.Update))
		case c.wantShares > 0:
			got := todo.Update[0]
			if *got.Spec.Limited.NominalConcurrencyShares != c.wantShares || got.Annotations[key] != c.wantAnnotation || got.Annotations["other"] != "kept" {
				t.Errorf("%s: shares %d, annotations %v", c.name, *got.Spec.Limited.NominalConcurrencyShares, got.Annotations)
			}
		}
	}
	old, own := kubetest.LimitedLevel("old", 1, 0, 0, 0), kubetest.LimitedLevel("own", 1, 0, 0, 0)
	old.Annotations = map[string]string{key: "true"}
	if todo := MaintainLevels(append(fresh.Levels, old, own)); !slices.Equal(todo.Remove, []string{"old"}) {
		t.Errorf("removed %v, want what an older version left", todo.Remove)
	}
	// Users may set the exempt level's shares.
	fresh.Levels[0].Spec.Exempt.NominalConcurrencyShares = new(int32(10))
	if todo := MaintainLevels(fresh.Levels); len(todo.Update) != 0 {
		t.Error("the exempt level's shares were taken away")
	}
}

// TestDanglingConditions checks that the Dangling condition of a schema is true if its level does
// not exist.
func TestDanglingConditions(t *testing.T) {
	now := time.Unix(1e9, 0)
	objs := Objects{Schemas: schemasOf(kubetest.SchemaFor("here", "*"), kubetest.SchemaFor("gone", "*"), kubetest.SchemaFor("exempt", "*")), Levels: levelsOf(kubetest.LimitedLevel("here", 1, 1, 1, 1))}
	got := DanglingConditions(objs, now)
	for name, want := range map[string]string{
		"here":   `False Found This FlowSchema references the PriorityLevelConfiguration object named "here" and it exists`,
		"gone":   `True NotFound This FlowSchema references the PriorityLevelConfiguration object named "gone" but there is no such object`,
		"exempt": `False Found This FlowSchema references the PriorityLevelConfiguration object named "exempt" and it exists`,
	} {
		c := got[name]
		if text := fmt.Sprint(c.Status, " ", c.Reason, " ", c.Message); text != want || !c.LastTransitionTime.Time.Equal(now) {
			t.Errorf("%s: %s, want %s", name, text, want)
		}
		schema := objs.Schemas[slices.IndexFunc(objs.Schemas, func(obj *flowcontrolv1.FlowSchema) bool { return obj.Name == name })]
		schema.Status.Conditions = append(schema.Status.Conditions, c)
	}
	if again := DanglingConditions(objs, now.Add(time.Hour)); len(again) != 0 {
		t.Errorf("nothing has changed, but: %v", again)
	}
	objs.Levels = append(objs.Levels, kubetest.LimitedLevel("gone", 1, 1, 1, 1))
	if again := DanglingConditions(objs, now); len(again) != 1 || again["gone"].Status != flowcontrolv1.ConditionFalse {
		t.Errorf("the level came, but: %v", again)
	}
}

func TestConditionsAreWrittenSixTimesAMinute(t *testing.T) {
	var p Pacer
	now := time.Unix(1e9, 0)
	for i := range 7 {
		if got := p.Allow("a", now.Add(time.Duration(i)*time.Second)); got != (i < 6) {
			t.Errorf("write %d: %v", i, got)
		}
	}
	if !p.Allow("b", now) || !p.Allow("a", now.Add(time.Minute)) {
		t.Error("another name, or the next minute, was refused")
	}
}

func BenchmarkClassify(b *testing.B) {
	schemas := schemasIn(freshServer())
	for name, dig := range map[string]*Digest{
		"exempt":         {User: "admin", Groups: []string{"system:masters"}, ResourceRequest: true, Verb: "get", Resource: "pods"},
		"global-default": {User: "alice", Groups: []string{"system:authenticated"}, ResourceRequest: true, Verb: "get", Resource: "pods"},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				classify(schemas, dig)
			}
		})
	}
}
