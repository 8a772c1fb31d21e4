package main

// This file decides by roles. It turns Roles, ClusterRoles and their bindings into an index that answers one question quickly:
//
//	may user bob in groups [dev] get pods in "shop"?
//	    grants[{"", User, bob}]  grants[{"", Group, dev}]  grants[{"shop", User, bob}]  grants[{"shop", Group, dev}]
//
// Everything a binding gives is found under its subjects, so the bindings of others cost nothing. The first rule that fits allows;
// no rule forbids. An index never changes: when a role or a binding does, a new index takes its place, and a request that is being
// decided keeps the one that it has.
//
// ClusterRoles with an aggregation rule hold the rules of those that their selectors match. In a cluster a controller writes those
// rules into them; here the index works them out, and aggregated says what to store so that people see them too.
//
// Next to deciding stands not letting anybody give away more than they have (escalation), and the default policy in
// rbac_defaults.txt with its reconciliation at start.

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// access is the question: who wants to do what. Without a resource it is about a path.
type access struct {
	user                               string
	groups                             []string
	resourceRequest                    bool
	verb, group, resource, subresource string
	namespace, name                    string
	path                               string
}

// rbacIndex is a policy, ready to be asked. Immutable.
type rbacIndex struct {
	rules  map[roleName][]rbacv1.PolicyRule
	grants map[grantKey][]*grant
}

// roleName names a ClusterRole (namespace "") or a Role.
type roleName struct{ namespace, name string }

// grantKey finds what a subject is given in a namespace ("": everywhere). The subject of a service account is its user.
type grantKey struct {
	namespace string
	kind      string // rbacv1.UserKind or rbacv1.GroupKind
	name      string
}

// grant is one binding.
type grant struct {
	order    int // cluster bindings before the others, by name
	rules    []rbacv1.PolicyRule
	dangling *danglingRef // the role does not exist: there are no rules, but a text for whoever is refused
	subjects []grantKey
	reasons  []string // of each subject
}

// danglingRef is a binding's reference to a role that does not exist.
type danglingRef struct{ kind, name string }

// text takes the resource's name, for which Kubernetes uses different words in different places.
func (d *danglingRef) text(resource string) string {
	return fmt.Sprintf("%s.rbac.authorization.k8s.io %q not found", resource, d.name)
}

// newRBACIndex takes Roles, ClusterRoles, RoleBindings and ClusterRoleBindings in any order; other objects are ignored.
func newRBACIndex(objects []object) *rbacIndex {
	x := &rbacIndex{rules: map[roleName][]rbacv1.PolicyRule{}, grants: map[grantKey][]*grant{}}
	var bindings []object
	for _, obj := range objects {
		switch obj := obj.(type) {
		case *rbacv1.Role:
			x.rules[roleName{obj.Namespace, obj.Name}] = obj.Rules
		case *rbacv1.ClusterRole:
			x.rules[roleName{"", obj.Name}] = obj.Rules
		case *rbacv1.RoleBinding, *rbacv1.ClusterRoleBinding:
			bindings = append(bindings, obj)
		}
	}
	for _, role := range aggregated(objects) {
		x.rules[roleName{"", role.Name}] = role.Rules
	}
	slices.SortFunc(bindings, func(a, b object) int {
		return strings.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName())
	})
	for i, binding := range bindings {
		x.add(i, binding)
	}
	return x
}

func (x *rbacIndex) add(order int, binding object) {
	ref, subjects := bindingParts(binding)
	g := &grant{order: order}
	rules, dangling := x.resolve(*ref, binding.GetNamespace())
	g.rules, g.dangling = rules, dangling
	title := fmt.Sprintf("RBAC: allowed by %s of %s %q to ", bindingTitle(binding), ref.Kind, ref.Name)
	for _, subject := range *subjects {
		key, who := subjectKey(subject, binding.GetNamespace())
		if key.name == "" || slices.Contains(g.subjects, key) {
			continue
		}
		g.subjects, g.reasons = append(g.subjects, key), append(g.reasons, title+who)
		x.grants[key] = append(x.grants[key], g)
	}
}

// resolve finds the rules of a role that a binding in namespace refers to.
func (x *rbacIndex) resolve(ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, *danglingRef) {
	name := roleName{"", ref.Name}
	if ref.Kind == "Role" {
		name.namespace = namespace
	}
	rules, ok := x.rules[name]
	if !ok {
		return nil, &danglingRef{strings.ToLower(ref.Kind), ref.Name}
	}
	return rules, nil
}

func bindingTitle(binding object) string {
	if namespace := binding.GetNamespace(); namespace != "" {
		return fmt.Sprintf("RoleBinding %q", binding.GetName()+"/"+namespace)
	}
	return fmt.Sprintf("ClusterRoleBinding %q", binding.GetName())
}

// subjectKey returns where a subject's grants are found and how reasons call it. A service account without a namespace is of the
// binding's; of a cluster binding's it is nobody.
func subjectKey(s rbacv1.Subject, namespace string) (key grantKey, who string) {
	key = grantKey{namespace: namespace, kind: s.Kind, name: s.Name}
	switch s.Kind {
	case rbacv1.UserKind, rbacv1.GroupKind:
		return key, fmt.Sprintf("%s %q", s.Kind, s.Name)
	case rbacv1.ServiceAccountKind:
		if s.Namespace == "" {
			s.Namespace = namespace
		}
		if s.Namespace == "" {
			return grantKey{}, ""
		}
		key.kind, key.name = rbacv1.UserKind, "system:serviceaccount:"+s.Namespace+":"+s.Name
		return key, fmt.Sprintf("%s %q", s.Kind, s.Name+"/"+s.Namespace)
	}
	return grantKey{}, ""
}

// ---- Deciding ----

// allows answers the question. The reason names the binding that allows; of a refusal it names bindings that lack their role.
func (x *rbacIndex) allows(q *access) (allowed bool, reason string) {
	resource := q.resource
	if q.subresource != "" {
		resource += "/" + q.subresource
	}
	dangling := false
	x.visit(q, func(g *grant) bool {
		dangling = dangling || g.dangling != nil
		for i := range g.rules {
			if ruleAllows(&g.rules[i], q, resource) {
				allowed, reason = true, g.reason(q)
				return false
			}
		}
		return true
	})
	if !allowed && dangling {
		return false, "RBAC: " + x.danglingText(q, "")
	}
	return allowed, reason
}

// visit calls each for every grant that the user has where the question is about, until it returns false. A grant comes more than
// once when several of its subjects apply.
func (x *rbacIndex) visit(q *access, each func(*grant) bool) {
	for _, namespace := range [2]string{"", q.namespace} {
		for i := -1; i < len(q.groups); i++ {
			key := grantKey{namespace, rbacv1.UserKind, q.user}
			if i >= 0 {
				key.kind, key.name = rbacv1.GroupKind, q.groups[i]
			}
			for _, g := range x.grants[key] {
				if !each(g) {
					return
				}
			}
		}
		if q.namespace == "" {
			return
		}
	}
}

// reason names the first of the binding's subjects that applies.
func (g *grant) reason(q *access) string {
	for i, key := range g.subjects {
		if key.kind == rbacv1.UserKind && key.name == q.user || key.kind == rbacv1.GroupKind && slices.Contains(q.groups, key.name) {
			return g.reasons[i]
		}
	}
	return ""
}

// ruleAllows: resource is resource/subresource. "*" stands for all, "*/scale" for the scale of all, and no names for all names.
func ruleAllows(rule *rbacv1.PolicyRule, q *access, resource string) bool {
	if !has(rule.Verbs, q.verb) {
		return false
	}
	if !q.resourceRequest {
		return slices.ContainsFunc(rule.NonResourceURLs, func(url string) bool { return urlCovers(url, q.path) })
	}
	return has(rule.APIGroups, q.group) && hasResource(rule.Resources, resource, q.subresource) &&
		(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, q.name))
}

// has is about lists where "*" is everything.
func has(list []string, item string) bool {
	for _, s := range list {
		if s == item || s == "*" {
			return true
		}
	}
	return false
}

func hasResource(list []string, resource, subresource string) bool {
	if has(list, resource) {
		return true
	}
	return subresource != "" && slices.ContainsFunc(list, func(s string) bool {
		return len(s) == len(subresource)+2 && s[:2] == "*/" && s[2:] == subresource
	})
}

// urlCovers: a trailing * stands for anything.
func urlCovers(pattern, path string) bool {
	return pattern == path || strings.HasSuffix(pattern, "*") && strings.HasPrefix(path, strings.TrimRight(pattern, "*"))
}

// applicable lists the grants of a user once each, in order.
func (x *rbacIndex) applicable(q *access) []*grant {
	var grants []*grant
	x.visit(q, func(g *grant) bool {
		grants = append(grants, g)
		return true
	})
	slices.SortFunc(grants, func(a, b *grant) int { return a.order - b.order })
	return slices.Compact(grants)
}

// rulesFor lists what a user may do in q's namespace. problem is about bindings that lack their role, "" mostly.
func (x *rbacIndex) rulesFor(q *access) (rules []rbacv1.PolicyRule, problem string) {
	for _, g := range x.applicable(q) {
		rules = append(rules, g.rules...)
	}
	return rules, x.danglingText(q, "")
}

// danglingText joins what is wrong with the user's bindings. as names the resource, "": what the binding refers to.
func (x *rbacIndex) danglingText(q *access, as string) string {
	var texts []string
	for _, g := range x.applicable(q) {
		if g.dangling == nil {
			continue
		}
		resource := as
		if as == "" {
			resource = g.dangling.kind
		}
		if text := g.dangling.text(resource); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	if len(texts) > 1 {
		return "[" + strings.Join(texts, ", ") + "]"
	}
	return strings.Join(texts, "")
}

// ---- Aggregated cluster roles ----

// aggregated returns, for each ClusterRole with an aggregation rule, a copy with the rules that it gathers. A gathered role may be
// aggregated itself (admin gathers edit, which gathers view), so the sums are taken until they no longer grow.
func aggregated(objects []object) []*rbacv1.ClusterRole {
	var all, sums []*rbacv1.ClusterRole
	for _, obj := range objects {
		role, ok := obj.(*rbacv1.ClusterRole)
		if ok && role.AggregationRule != nil {
			role = role.DeepCopy()
			role.Rules = nil
			sums = append(sums, role)
		}
		if ok {
			all = append(all, role)
		}
	}
	slices.SortFunc(all, func(a, b *rbacv1.ClusterRole) int { return strings.Compare(a.Name, b.Name) })
	for grown := true; grown; {
		grown = false
		for _, role := range sums {
			rules := gather(role, all)
			grown = grown || len(rules) > len(role.Rules)
			role.Rules = rules
		}
	}
	return sums
}

func gather(role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) (rules []rbacv1.PolicyRule) {
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			continue // validation lets none in
		}
		for _, other := range all {
			if other.Name == role.Name || !selector.Matches(labels.Set(other.Labels)) {
				continue
			}
			for _, rule := range other.Rules {
				if !slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return apiequality.Semantic.DeepEqual(r, rule) }) {
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules
}

// ---- Escalation: nobody gives what they do not have ----

// fullAuthority is what one must have to use an aggregation rule, which may gather anything.
var fullAuthority = []rbacv1.PolicyRule{
	{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
	{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}},
}

// mayGive returns nil if the rules of q's user, in q's namespace, cover those that are to be given; else an error that lists what is
// missing. q.resource is that of the request.
func (x *rbacIndex) mayGive(q *access, rules []rbacv1.PolicyRule) error {
	own, _ := x.rulesFor(q)
	missing := uncovered(own, rules)
	if len(missing) == 0 {
		return nil
	}
	text := fmt.Sprintf("user %q (groups=%q) is attempting to grant RBAC permissions not currently held:\n%s",
		q.user, q.groups, strings.Join(describe(missing), "\n"))
	if problem := x.danglingText(q, q.resource); problem != "" {
		text += "; resolution errors: [" + problem + "]"
	}
	return errors.New(text)
}

// mayGiveRole is for a Role or ClusterRole that is written in place of old (nil for a create).
func (x *rbacIndex) mayGiveRole(q *access, role, old object) error {
	if err := x.mayGive(q, *rulesOf(role)); err != nil {
		return err
	}
	if (gathers(role) || gathers(old)) && x.mayGive(q, fullAuthority) != nil {
		return errors.New("must have cluster-admin privileges to use the aggregationRule")
	}
	return nil
}

func gathers(obj object) bool {
	role, ok := obj.(*rbacv1.ClusterRole)
	return ok && role.AggregationRule != nil && len(role.AggregationRule.ClusterRoleSelectors) > 0
}

// mayBind is for a binding that is written: a 404 Status when there is no such role, else as mayGive.
func (x *rbacIndex) mayBind(q *access, ref rbacv1.RoleRef) error {
	rules, dangling := x.resolve(ref, q.namespace)
	if dangling != nil {
		return apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: q.resource}, ref.Name)
	}
	return x.mayGive(q, rules)
}

// uncovered breaks rules into their smallest parts and returns those that no owned rule covers alone.
func uncovered(own, rules []rbacv1.PolicyRule) (missing []rbacv1.PolicyRule) {
	for _, rule := range rules {
		for _, part := range breakDown(rule) {
			if !slices.ContainsFunc(own, func(o rbacv1.PolicyRule) bool { return covers(&o, &part) }) {
				missing = append(missing, part)
			}
		}
	}
	return missing
}

// breakDown returns rules of one verb, and one group, resource and name (or one URL) each.
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

// covers: part is one of breakDown's.
func covers(own, part *rbacv1.PolicyRule) bool {
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

// describe writes broken-down rules, those that differ by verb alone as one, in the order of their text.
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

// ---- The default policy ----

//go:embed rbac_defaults.txt
var defaultPolicyText string

// autoupdate is the annotation that keeps reconciliation away from an object when it says "false".
const autoupdate = "rbac.authorization.kubernetes.io/autoupdate"

// defaultPolicy reads rbac_defaults.txt. Its author and its reader are ours, so what it does not understand is a panic in the tests.
func defaultPolicy() (objects []object) {
	var role object
	for line := range strings.Lines(defaultPolicyText) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || words[0] == "#":
		case line[0] != '\t':
			role = parseRole(words)
			objects = append(objects, role)
		case words[0] == "to":
			objects = append(objects, parseBinding(role, words[1:]))
		default:
			rules := rulesOf(role)
			*rules = append(*rules, parseRule(words))
		}
	}
	return objects
}

func defaultMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name,
		Labels: map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"}, Annotations: map[string]string{autoupdate: "true"}}
}

// cutNamespace splits NAMESPACE/NAME or NAME.
func cutNamespace(s string) (namespace, name string) {
	if namespace, name, ok := strings.Cut(s, "/"); ok {
		return namespace, name
	}
	return "", s
}

func parseRole(words []string) object {
	const prefix = rbacv1.GroupName + "/"
	meta := defaultMeta(cutNamespace(words[1]))
	if words[0] == "Role" {
		return &rbacv1.Role{ObjectMeta: meta}
	}
	role := &rbacv1.ClusterRole{ObjectMeta: meta}
	for i, word := range words[2:] {
		if word == "=" {
			role.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{
				{MatchLabels: map[string]string{prefix + words[2+i+1]: "true"}}}}
			break
		}
		meta.Labels[prefix+word] = "true"
	}
	return role
}

func parseRule(words []string) rbacv1.PolicyRule {
	rule := rbacv1.PolicyRule{Verbs: strings.Split(words[0], ",")}
	if len(words) == 2 {
		rule.NonResourceURLs = strings.Split(words[1], ",")
		return rule
	}
	rule.APIGroups, rule.Resources = strings.Split(words[1], ","), strings.Split(words[2], ",")
	for i, group := range rule.APIGroups {
		if group == "core" {
			rule.APIGroups[i] = ""
		}
	}
	if len(words) > 3 {
		rule.ResourceNames = strings.Split(words[3], ",")
	}
	return rule
}

func parseBinding(role object, words []string) object {
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.GetName()}
	meta := defaultMeta(role.GetNamespace(), role.GetName())
	var subjects []rbacv1.Subject
	for _, word := range words {
		if name, ok := strings.CutPrefix(word, "as="); ok {
			meta.Name = name
			continue
		}
		kind, name, _ := strings.Cut(word, ":")
		subject := rbacv1.Subject{Kind: kind, APIGroup: rbacv1.GroupName, Name: name}
		if kind == rbacv1.ServiceAccountKind {
			subject.APIGroup = ""
			subject.Namespace, subject.Name = cutNamespace(name)
		}
		subjects = append(subjects, subject)
	}
	if meta.Namespace != "" {
		ref.Kind = "Role"
		return &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}
	}
	return &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}
}

func rulesOf(role object) *[]rbacv1.PolicyRule {
	switch role := role.(type) {
	case *rbacv1.Role:
		return &role.Rules
	case *rbacv1.ClusterRole:
		return &role.Rules
	}
	return nil
}

func bindingParts(binding object) (*rbacv1.RoleRef, *[]rbacv1.Subject) {
	switch binding := binding.(type) {
	case *rbacv1.RoleBinding:
		return &binding.RoleRef, &binding.Subjects
	case *rbacv1.ClusterRoleBinding:
		return &binding.RoleRef, &binding.Subjects
	}
	return nil, nil
}

// policyChanges says what to write so that a policy holds at least the desired one.
type policyChanges struct {
	create, update []object
	replace        []object // a binding whose roleRef differs: delete it, then create this one; a roleRef cannot be updated
}

// reconcilePolicy brings desired objects into an existing policy: what is missing is added (rules, subjects, labels, annotations),
// what somebody added stays, and what says autoupdate "false" is left alone. Nothing that is passed in changes.
func reconcilePolicy(existing, desired []object) (changes policyChanges) {
	type id struct{ kind, namespace, name string }
	idOf := func(obj object) id { return id{fmt.Sprintf("%T", obj), obj.GetNamespace(), obj.GetName()} }
	byID := map[id]object{}
	for _, obj := range existing {
		byID[idOf(obj)] = obj
	}
	for _, want := range desired {
		have := byID[idOf(want)]
		if have == nil {
			changes.create = append(changes.create, want)
			continue
		}
		if have.GetAnnotations()[autoupdate] == "false" {
			continue
		}
		if haveRef, _ := bindingParts(have); haveRef != nil {
			if wantRef, _ := bindingParts(want); *haveRef != *wantRef {
				changes.replace = append(changes.replace, want)
				continue
			}
		}
		if merged := merge(have, want); !apiequality.Semantic.DeepEqual(have, merged) {
			changes.update = append(changes.update, merged)
		}
	}
	return changes
}

// merge returns a copy of have with what it lacks of want.
func merge(have, want object) object {
	merged := have.DeepCopyObject().(object)
	merged.SetLabels(mergeMaps(want.GetLabels(), merged.GetLabels()))
	merged.SetAnnotations(mergeMaps(want.GetAnnotations(), merged.GetAnnotations()))
	if rules := rulesOf(merged); rules != nil {
		*rules = append(*rules, uncovered(*rules, *rulesOf(want))...)
	}
	if role, ok := merged.(*rbacv1.ClusterRole); ok {
		mergeAggregation(role, want.(*rbacv1.ClusterRole))
	}
	if _, subjects := bindingParts(merged); subjects != nil {
		_, wanted := bindingParts(want)
		for _, subject := range *wanted {
			if !slices.Contains(*subjects, subject) {
				*subjects = append(*subjects, subject)
			}
		}
	}
	return merged
}

// mergeAggregation: a role that should not gather no longer does.
func mergeAggregation(role, want *rbacv1.ClusterRole) {
	if want.AggregationRule == nil {
		role.AggregationRule = nil
		return
	}
	if role.AggregationRule == nil {
		role.AggregationRule = &rbacv1.AggregationRule{}
	}
	selectors := &role.AggregationRule.ClusterRoleSelectors
	for _, selector := range want.AggregationRule.ClusterRoleSelectors {
		if !slices.ContainsFunc(*selectors, func(s metav1.LabelSelector) bool { return apiequality.Semantic.DeepEqual(s, selector) }) {
			*selectors = append(*selectors, selector)
		}
	}
}

func mergeMaps(base, over map[string]string) map[string]string {
	merged := maps.Clone(base)
	if merged == nil {
		return over
	}
	maps.Copy(merged, over)
	return merged
}
