package main

// This file decides by roles. It turns Roles, ClusterRoles and their bindings into an index that answers one question quickly:
//
//	may user bob in groups [dev] get pods in "shop"?
//	    grants[User bob][""]   grants[User bob]["shop"]   grants[Group dev][""]   grants[Group dev]["shop"]
//
// Everything a binding gives is found under its subjects, so the bindings of others cost nothing. The first rule that fits allows;
// no rule forbids. A rule is read only when a sieve of two words lets the question through, which few do. An index never changes: when a role or a binding does, a new index takes its place, and a request that is being
// decided keeps the one that it has.
//
// ClusterRoles with an aggregation rule hold the rules of those that their selectors match. In a cluster a controller writes those
// rules into them; here the index works them out, and aggregated says what to store so that people see them too.
//
// Next to deciding stands not letting anybody give away more than they have (escalation), and the default policy in
// rbac_defaults.txt with its reconciliation at start.

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
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
	roles  map[roleName]*roleRules
	grants map[subjectName]map[string][]*grant // by namespace; "" is everywhere
}

// roleName names a ClusterRole (namespace "") or a Role.
type roleName struct{ namespace, name string }

// subjectName names a user or a group; a service account is its user.
type subjectName struct{ kind, name string }

// roleRules are a role's rules, each with its sieve.
type roleRules struct {
	rules  []rbacv1.PolicyRule
	sieves []sieve
}

// grant is one binding.
type grant struct {
	order    int // by namespace, then name: cluster bindings come first
	role     *roleRules
	dangling *danglingRef // the role does not exist: there are no rules, but a text for whoever is refused
	subjects []subjectName
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
	x := &rbacIndex{roles: map[roleName]*roleRules{}, grants: map[subjectName]map[string][]*grant{}}
	var bindings []object
	for _, obj := range objects {
		if rules := rulesOf(obj); rules != nil {
			x.roles[roleName{obj.GetNamespace(), obj.GetName()}] = newRoleRules(*rules)
		} else if ref, _ := bindingParts(obj); ref != nil {
			bindings = append(bindings, obj)
		}
	}
	for _, role := range aggregated(objects) {
		x.roles[roleName{"", role.Name}] = newRoleRules(role.Rules)
	}
	slices.SortFunc(bindings, func(a, b object) int {
		return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
	})
	for i, binding := range bindings {
		x.add(i, binding)
	}
	return x
}

func (x *rbacIndex) add(order int, binding object) {
	ref, subjects := bindingParts(binding)
	g, namespace := &grant{order: order}, binding.GetNamespace()
	g.role, g.dangling = x.resolve(*ref, namespace)
	title := "RBAC: allowed by " + bindingTitle(binding) + " of " + ref.Kind + " " + strconv.Quote(ref.Name) + " to "
	for _, subject := range *subjects {
		key, who := resolveSubject(subject, namespace)
		if key.name == "" || slices.Contains(g.subjects, key) {
			continue
		}
		g.subjects, g.reasons = append(g.subjects, key), append(g.reasons, title+who)
		if x.grants[key] == nil {
			x.grants[key] = map[string][]*grant{}
		}
		x.grants[key][namespace] = append(x.grants[key][namespace], g)
	}
}

// resolve finds the rules of a role that a binding in namespace refers to; without that role they are none.
func (x *rbacIndex) resolve(ref rbacv1.RoleRef, namespace string) (*roleRules, *danglingRef) {
	name := roleName{"", ref.Name}
	if ref.Kind == "Role" {
		name.namespace = namespace
	}
	if role := x.roles[name]; role != nil {
		return role, nil
	}
	return &roleRules{}, &danglingRef{strings.ToLower(ref.Kind), ref.Name}
}

func bindingTitle(binding object) string {
	if namespace := binding.GetNamespace(); namespace != "" {
		return "RoleBinding " + strconv.Quote(binding.GetName()+"/"+namespace)
	}
	return "ClusterRoleBinding " + strconv.Quote(binding.GetName())
}

// resolveSubject returns under which name a subject's grants are found and how reasons call it. A service account without a namespace
// is of the binding's; of a cluster binding's it is nobody.
func resolveSubject(s rbacv1.Subject, namespace string) (key subjectName, who string) {
	switch s.Kind {
	case rbacv1.UserKind, rbacv1.GroupKind:
		return subjectName{s.Kind, s.Name}, s.Kind + " " + strconv.Quote(s.Name)
	case rbacv1.ServiceAccountKind:
		namespace = cmp.Or(s.Namespace, namespace)
		if namespace != "" {
			return subjectName{rbacv1.UserKind, "system:serviceaccount:" + namespace + ":" + s.Name}, s.Kind + " " + strconv.Quote(s.Name+"/"+namespace)
		}
	}
	return subjectName{}, ""
}

// ---- Deciding ----

// sieve holds a bit, of 64, for each verb and each resource of a rule. Whose bits are missing is not in the rule; whose bits are there
// may be.
type sieve struct{ verbs, resources uint64 }

func newRoleRules(rules []rbacv1.PolicyRule) *roleRules {
	role := &roleRules{rules: rules, sieves: make([]sieve, len(rules))}
	for i, rule := range rules {
		role.sieves[i] = sieve{sieveBits(rule.Verbs), sieveBits(rule.Resources)}
	}
	return role
}

func sieveBits(items []string) (bits uint64) {
	for _, item := range items {
		if strings.HasPrefix(item, "*") { // "*" and "*/scale" stand for much
			return ^uint64(0)
		}
		bits |= sieveBit(item)
	}
	return bits
}

func sieveBit(item string) uint64 {
	hash := uint32(len(item))
	for i := range len(item) {
		hash = hash*31 + uint32(item[i])
	}
	return 1 << (hash % 64)
}

// allows answers the question. The reason names the binding that allows; of a refusal it names bindings that lack their role.
func (x *rbacIndex) allows(q *access) (allowed bool, reason string) {
	resource := q.resource
	if q.subresource != "" {
		resource += "/" + q.subresource
	}
	verb, thing := sieveBit(q.verb), sieveBit(resource)
	dangling := false
	x.visit(q, func(g *grant) bool {
		dangling = dangling || g.dangling != nil
		for i, s := range g.role.sieves {
			pass := s.verbs&verb != 0 && (s.resources&thing != 0 || !q.resourceRequest)
			if pass && ruleAllows(&g.role.rules[i], q, resource) {
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
	for i := -1; i < len(q.groups); i++ {
		key := subjectName{rbacv1.UserKind, q.user}
		if i >= 0 {
			key = subjectName{rbacv1.GroupKind, q.groups[i]}
		}
		given := x.grants[key]
		for _, g := range given[""] {
			if !each(g) {
				return
			}
		}
		if q.namespace == "" {
			continue
		}
		for _, g := range given[q.namespace] {
			if !each(g) {
				return
			}
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
		rules = append(rules, g.role.rules...)
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
				if !slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return sameRule(&r, &rule) }) {
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules
}

func sameRule(a, b *rbacv1.PolicyRule) bool {
	return slices.Equal(a.Verbs, b.Verbs) && slices.Equal(a.APIGroups, b.APIGroups) && slices.Equal(a.Resources, b.Resources) &&
		slices.Equal(a.ResourceNames, b.ResourceNames) && slices.Equal(a.NonResourceURLs, b.NonResourceURLs)
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
	role, dangling := x.resolve(ref, q.namespace)
	if dangling != nil {
		return apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: q.resource}, ref.Name)
	}
	return x.mayGive(q, role.rules)
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

// builtinPolicy reads rbac_defaults.txt. Its author and its reader are ours, so what it does not understand is a panic in the tests.
func builtinPolicy() (objects []object) {
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
