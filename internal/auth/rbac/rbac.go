package rbac

// This file authorizes requests by roles. It builds an index of Roles, ClusterRoles and their
// bindings that answers a question quickly:
//
//	may user bob in groups [dev] get pods in "shop"?
//	    grants[User bob][""]   grants[User bob]["shop"]   grants[Group dev][""]   grants[Group dev]["shop"]
//
// The index is keyed by subject, so the bindings of other subjects are not evaluated. The first
// matching rule allows the request. No rule denies. A bit filter skips most rules that do not match
// (type sieve). An index is immutable. A changed role or binding leads to a new index, and a
// request keeps using the index with which it started.
//
// If a ClusterRole has an aggregation rule, its rules are copied from the roles that match its
// selectors. In Kubernetes, this is done by a controller. In this package, the index computes them.
// The function aggregated returns the result.
//
// The file also prevents privilege escalation. It contains the default policy, rbac_defaults.txt,
// and reconciles the stored policy with it at the start.

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"hash/maphash"
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

	"apilet/internal/apierror"
	"apilet/internal/request"
	"apilet/internal/scheme"
)

// Access describes the request to be authorized.
type Access struct {
	User                               string   // name of the user
	Groups                             []string // all groups of the user, including system:authenticated
	ResourceRequest                    bool     // if false, Verb is a lower-case HTTP method and the request is for Path
	Verb, Group, Resource, Subresource string   // Group is "" for the core group, Subresource may be ""
	Namespace, Name                    string   // "" means all namespaces and any name
	Path                               string   // path of a request without a resource
}

// Index is a policy in a form that can be evaluated quickly. It is immutable.
type Index struct {
	seed    maphash.Seed
	roles   parts[roleName, *roleRules]
	grants  parts[grantKey, []*grant] // each list is sorted by name
	listers parts[subjectName, int]   // number of a subject's grants that include a list permission
}

// roleName identifies a ClusterRole (namespace "") or a Role.
type roleName struct{ namespace, name string }

// subjectName identifies a user or a group. A service account is identified by its user name.
type subjectName struct{ kind, name string }

// grantKey is the key for looking up grants. The namespace is "" if the grant applies to all
// namespaces.
type grantKey struct {
	subject   subjectName
	namespace string
}

// roleRules is a list of rules with a filter for each rule.
type roleRules struct {
	rules   []rbacv1.PolicyRule
	filters []ruleFilter
	lists   bool // a rule allows listing the objects of some resource
	all     bool // the rules allow every verb on every resource and URL, like cluster-admin
}

// grant is one binding.
type grant struct {
	namespace, name string // of the binding, the namespace is "" for ClusterRoleBindings
	role            *roleRules
	dangling        *danglingRef // nil if the role exists; otherwise there are no rules, but a text for refusals
	subjects        []subjectName
	reasons         []string // the reason for each subject
}

// danglingRef is a binding's reference to a role that does not exist.
type danglingRef struct{ kind, name string }

// text returns the error text. resource is the name of the resource, for which Kubernetes uses
// different words in different places.
func (d *danglingRef) text(resource string) string {
	return fmt.Sprintf("%s.rbac.authorization.k8s.io %q not found", resource, d.name)
}

// newGrant returns the grant of a binding.
func (x *Index) newGrant(binding scheme.Object) *grant {
	ref, subjects := BindingParts(binding)
	namespace := binding.GetNamespace()
	g := &grant{namespace: namespace, name: binding.GetName()}
	g.role, g.dangling = x.resolve(ref, namespace)
	seen := make(map[subjectName]bool, len(*subjects))
	title := "RBAC: allowed by " + bindingTitle(binding) + " of " + ref.Kind + " " + strconv.Quote(ref.Name) + " to "
	for _, subject := range *subjects {
		key, who := resolveSubject(subject, namespace)
		if key.name == "" || seen[key] {
			continue
		}
		seen[key] = true
		g.subjects, g.reasons = append(g.subjects, key), append(g.reasons, title+who)
	}
	return g
}

// roleOf returns the name of the role that a binding in the namespace refers to.
func roleOf(ref *rbacv1.RoleRef, namespace string) roleName {
	if ref.Kind == "Role" {
		return roleName{namespace, ref.Name}
	}
	return roleName{"", ref.Name}
}

// resolve returns the rules of the role that a binding in the namespace refers to. If the role does
// not exist, there are no rules.
func (x *Index) resolve(ref *rbacv1.RoleRef, namespace string) (*roleRules, *danglingRef) {
	if role := x.roles.get(x.seed, roleOf(ref, namespace)); role != nil {
		return role, nil
	}
	return &roleRules{}, &danglingRef{strings.ToLower(ref.Kind), ref.Name}
}

func bindingTitle(binding scheme.Object) string {
	if namespace := binding.GetNamespace(); namespace != "" {
		return "RoleBinding " + strconv.Quote(binding.GetName()+"/"+namespace)
	}
	return "ClusterRoleBinding " + strconv.Quote(binding.GetName())
}

// resolveSubject returns the key of the subject's grants, and the text for the subject in reasons.
// A service account without a namespace belongs to the namespace of the binding. In a
// ClusterRoleBinding such a subject is ignored.
func resolveSubject(s rbacv1.Subject, namespace string) (key subjectName, who string) {
	switch s.Kind {
	case rbacv1.UserKind, rbacv1.GroupKind:
		return subjectName{s.Kind, s.Name}, s.Kind + " " + strconv.Quote(s.Name)
	case rbacv1.ServiceAccountKind:
		namespace = cmp.Or(s.Namespace, namespace)
		if namespace != "" {
			return subjectName{rbacv1.UserKind, request.ServiceAccountPrefix + namespace + ":" + s.Name}, s.Kind + " " + strconv.Quote(s.Name+"/"+namespace)
		}
	}
	return subjectName{}, ""
}

// ---- Evaluation ----

// A sieve is a bit filter for the verbs and the resources of a rule. Each item sets one of 64 bits.
// If the bit of an item is not set, the rule does not contain the item. If it is set, the rule may
// contain it.
type ruleFilter struct{ verbs, resources uint64 }

func newRoleRules(rules []rbacv1.PolicyRule) *roleRules {
	role := &roleRules{rules: rules, filters: make([]ruleFilter, len(rules))}
	resources, urls := false, false
	for i, rule := range rules {
		role.filters[i] = ruleFilter{filterBits(rule.Verbs), filterBits(rule.Resources)}
		every := slices.Contains(rule.Verbs, "*")
		role.lists = role.lists || has(rule.Verbs, "list") && len(rule.Resources) > 0 && len(rule.ResourceNames) == 0
		resources = resources || every && len(rule.ResourceNames) == 0 && slices.Contains(rule.APIGroups, "*") && slices.Contains(rule.Resources, "*")
		urls = urls || every && slices.Contains(rule.NonResourceURLs, "*")
	}
	role.all = resources && urls
	return role
}

func filterBits(items []string) (bits uint64) {
	for _, item := range items {
		if strings.HasPrefix(item, "*") { // "*" and "*/scale" match many items
			return ^uint64(0)
		}
		bits |= filterBit(item)
	}
	return bits
}

func filterBit(item string) uint64 {
	hash := uint32(len(item))
	for i := range len(item) {
		hash = hash*31 + uint32(item[i])
	}
	return 1 << (hash % 64)
}

// Allows reports whether a rule allows the request. The reason names the binding that allows it. If
// the request is refused, the reason names missing roles of the user's bindings.
func (x *Index) Allows(q *Access) (allowed bool, reason string) {
	resource := q.Resource
	if q.Subresource != "" {
		resource += "/" + q.Subresource
	}
	verb, thing := filterBit(q.Verb), filterBit(resource)
	dangling := false
	x.visit(q, func(g *grant) bool {
		dangling = dangling || g.dangling != nil
		if g.role.all && !q.ResourceRequest && strings.HasPrefix(q.Path, request.PathUI) {
			allowed, reason = true, g.reason(q)
			return false
		}
		for i, s := range g.role.filters {
			pass := s.verbs&verb != 0 && (s.resources&thing != 0 || !q.ResourceRequest)
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

// MayListAnything reports whether the user may list at least one resource in some namespace.
func (x *Index) MayListAnything(user string, groups []string) bool {
	if x.listers.get(x.seed, subjectName{rbacv1.UserKind, user}) > 0 {
		return true
	}
	return slices.ContainsFunc(groups, func(group string) bool { return x.listers.get(x.seed, subjectName{rbacv1.GroupKind, group}) > 0 })
}

// visit calls each for the user's grants in the namespace of the question until each returns false.
// It may visit a grant more than once, if several of its subjects apply to the user.
func (x *Index) visit(q *Access, each func(*grant) bool) {
	for i := -1; i < len(q.Groups); i++ {
		key := subjectName{rbacv1.UserKind, q.User}
		if i >= 0 {
			key = subjectName{rbacv1.GroupKind, q.Groups[i]}
		}
		for _, g := range x.grants.get(x.seed, grantKey{key, ""}) {
			if !each(g) {
				return
			}
		}
		if q.Namespace == "" {
			continue
		}
		for _, g := range x.grants.get(x.seed, grantKey{key, q.Namespace}) {
			if !each(g) {
				return
			}
		}
	}
}

// reason returns the reason for the first subject of the binding that applies to the user.
func (g *grant) reason(q *Access) string {
	groups := make(map[string]bool, len(q.Groups))
	for _, name := range q.Groups {
		groups[name] = true
	}
	for i, key := range g.subjects {
		if key.kind == rbacv1.UserKind && key.name == q.User || key.kind == rbacv1.GroupKind && groups[key.name] {
			return g.reasons[i]
		}
	}
	return ""
}

// ruleAllows reports whether the rule allows the request. resource includes the subresource. "*"
// matches everything, "*/scale" matches the scale subresource of all resources, and an empty list
// of names matches all names.
func ruleAllows(rule *rbacv1.PolicyRule, q *Access, resource string) bool {
	if !has(rule.Verbs, q.Verb) {
		return false
	}
	if !q.ResourceRequest {
		return slices.ContainsFunc(rule.NonResourceURLs, func(url string) bool { return urlCovers(url, q.Path) })
	}
	return has(rule.APIGroups, q.Group) && hasResource(rule.Resources, resource, q.Subresource) &&
		(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, q.Name))
}

// has reports whether the list contains the item or "*".
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

// applicable returns a sorted list of the grants of a user.
func (x *Index) applicable(q *Access) []*grant {
	var grants []*grant
	x.visit(q, func(g *grant) bool {
		grants = append(grants, g)
		return true
	})
	slices.SortFunc(grants, func(a, b *grant) int {
		return cmp.Or(strings.Compare(a.namespace, b.namespace), strings.Compare(a.name, b.name))
	})
	return slices.Compact(grants)
}

// RulesFor returns the rules that apply to the user in q's namespace. problem describes bindings
// with missing roles and is usually "".
func (x *Index) RulesFor(q *Access) (rules []rbacv1.PolicyRule, problem string) {
	for _, g := range x.applicable(q) {
		rules = append(rules, g.role.rules...)
	}
	return rules, x.danglingText(q, "")
}

// danglingText describes the user's bindings with missing roles. as is the resource that the text
// names, or "" for the kind in the binding.
func (x *Index) danglingText(q *Access, as string) string {
	texts, left := apierror.NewText(), apierror.NewBudget()
	grants := x.applicable(q)
	for i, g := range grants {
		if g.dangling == nil {
			continue
		}
		if left.Exhausted() {
			texts.AddOmitted(len(grants) - i)
			break
		}
		text := g.dangling.text(cmp.Or(as, g.dangling.kind))
		texts.Add(text)
		left.Take(text)
	}
	return texts.String()
}

// ---- Aggregated cluster roles ----

// aggregated returns a copy of each ClusterRole that has an aggregation rule, with the aggregated
// rules. An aggregated role may aggregate another one (admin aggregates edit, which aggregates
// view), so the function repeats the aggregation until no role grows.
func aggregated(objects []scheme.Object) []*rbacv1.ClusterRole {
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
	// The order of rules depends on both lists if roles aggregate each other.
	for _, list := range [...][]*rbacv1.ClusterRole{all, sums} {
		slices.SortFunc(list, func(a, b *rbacv1.ClusterRole) int { return strings.Compare(a.Name, b.Name) })
	}
	for grown := true; grown; {
		grown = false
		for _, role := range sums {
			rules := aggregateRules(role, all)
			grown = grown || len(rules) > len(role.Rules)
			role.Rules = rules
		}
	}
	return sums
}

func aggregateRules(role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) (rules []rbacv1.PolicyRule) {
	seen := map[string]bool{}
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			continue // validation rejects such selectors
		}
		for _, other := range all {
			if other.Name == role.Name || !selector.Matches(labels.Set(other.Labels)) {
				continue
			}
			for _, rule := range other.Rules {
				if text := ruleText(&rule); !seen[text] {
					seen[text] = true
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules
}

// ruleText returns a text that is unique for a rule.
func ruleText(rule *rbacv1.PolicyRule) string {
	var text []byte
	for _, list := range [...][]string{rule.Verbs, rule.APIGroups, rule.Resources, rule.ResourceNames, rule.NonResourceURLs} {
		for _, item := range list {
			text = strconv.AppendQuote(text, item)
		}
		text = append(text, ';')
	}
	return string(text)
}

// ---- Privilege escalation ----

// FullAuthority is the permission that is required to use an aggregation rule, which may match any
// role.
var FullAuthority = []rbacv1.PolicyRule{
	{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
	{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}},
}

// checkCovered returns nil if the user's rules in q's namespace cover the given rules. Otherwise
// the error lists the missing permissions. q.Resource is the resource of the request.
func (x *Index) checkCovered(q *Access, rules []rbacv1.PolicyRule) error {
	own, _ := x.RulesFor(q)
	missing, err := newHoldings(own).missing(rules)
	if err != nil || len(missing) == 0 {
		return err
	}
	text := fmt.Sprintf("user %q (groups=%q) is attempting to grant RBAC permissions not currently held:\n%s",
		q.User, q.Groups, strings.Join(firstLines(describe(missing)), "\n"))
	if problem := x.danglingText(q, q.Resource); problem != "" {
		text += "; resolution errors: [" + problem + "]"
	}
	return errors.New(text)
}

// MayGrantRole returns an error if the user may not write the Role or ClusterRole. old is the
// previous version, or nil for a create.
func (x *Index) MayGrantRole(q *Access, role, old scheme.Object) error {
	if err := x.checkCovered(q, *rulesOf(role)); err != nil {
		return err
	}
	if (aggregates(role) || aggregates(old)) && x.checkCovered(q, FullAuthority) != nil {
		return errors.New("must have cluster-admin privileges to use the aggregationRule")
	}
	return nil
}

// aggregates reports whether obj is a ClusterRole with an aggregation rule that has selectors.
func aggregates(obj scheme.Object) bool {
	role, ok := obj.(*rbacv1.ClusterRole)
	return ok && role.AggregationRule != nil && len(role.AggregationRule.ClusterRoleSelectors) > 0
}

// MayBind returns an error if the user may not write a binding to the role. The error is a 404
// Status if the role does not exist, or else from checkCovered.
func (x *Index) MayBind(q *Access, ref rbacv1.RoleRef) error {
	role, dangling := x.resolve(&ref, q.Namespace)
	if dangling != nil {
		return apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: q.Resource}, ref.Name)
	}
	return x.checkCovered(q, role.rules)
}

// ---- The default policy ----

//go:embed rbac_defaults.txt
var defaultPolicyText string

// autoupdate is an annotation. Reconciliation ignores objects with the value "false".
const autoupdate = "rbac.authorization.kubernetes.io/autoupdate"

// BuiltinPolicy returns a new copy of the default roles and bindings.
func BuiltinPolicy() []scheme.Object { return ParsePolicy(defaultPolicyText) }

// ParsePolicy parses roles and bindings. rbac_defaults.txt describes the format in its first lines.
// ParsePolicy panics if the text is invalid, because it is part of this program.
func ParsePolicy(text string) (objects []scheme.Object) {
	var role scheme.Object
	for line := range strings.Lines(text) {
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

// parseRole parses the words of a role's line in rbac_defaults.txt.
func parseRole(words []string) scheme.Object {
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

// parseRule parses the words of a rule's line in rbac_defaults.txt.
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

// parseBinding parses the words of a line in rbac_defaults.txt that binds a role.
func parseBinding(role scheme.Object, words []string) scheme.Object {
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

// rulesOf returns a pointer to the rules of a Role or ClusterRole, or nil for any other object.
func rulesOf(role scheme.Object) *[]rbacv1.PolicyRule {
	switch role := role.(type) {
	case *rbacv1.Role:
		return &role.Rules
	case *rbacv1.ClusterRole:
		return &role.Rules
	}
	return nil
}

// BindingParts returns pointers to the role and the subjects of a RoleBinding or
// ClusterRoleBinding, or nil for any other object.
func BindingParts(binding scheme.Object) (*rbacv1.RoleRef, *[]rbacv1.Subject) {
	switch binding := binding.(type) {
	case *rbacv1.RoleBinding:
		return &binding.RoleRef, &binding.Subjects
	case *rbacv1.ClusterRoleBinding:
		return &binding.RoleRef, &binding.Subjects
	}
	return nil, nil
}

// PolicyChanges is the set of writes needed to update a policy.
type PolicyChanges struct {
	// Create and Update are lists of roles and bindings to write.
	Create, Update []scheme.Object
	// Replace holds bindings with a different roleRef. The caller must delete and create them,
	// because a roleRef cannot be updated.
	Replace []scheme.Object
}

// ReconcilePolicy compares an existing policy with the desired objects. It adds missing rules,
// subjects, labels and annotations. It does not remove additional ones. If the autoupdate
// annotation of an object is "false", it is not changed. It does not modify its arguments.
func ReconcilePolicy(existing, desired []scheme.Object) (changes PolicyChanges) {
	type id struct{ kind, namespace, name string }
	idOf := func(obj scheme.Object) id { return id{fmt.Sprintf("%T", obj), obj.GetNamespace(), obj.GetName()} }
	byID := map[id]scheme.Object{}
	for _, obj := range existing {
		byID[idOf(obj)] = obj
	}
	for _, want := range desired {
		have := byID[idOf(want)]
		if have == nil {
			changes.Create = append(changes.Create, want)
			continue
		}
		if have.GetAnnotations()[autoupdate] == "false" {
			continue
		}
		if haveRef, _ := BindingParts(have); haveRef != nil {
			if wantRef, _ := BindingParts(want); *haveRef != *wantRef {
				changes.Replace = append(changes.Replace, want)
				continue
			}
		}
		if merged := merge(have, want); !apiequality.Semantic.DeepEqual(have, merged) {
			changes.Update = append(changes.Update, merged)
		}
	}
	return changes
}

// merge returns a copy of have, with missing parts added from want.
func merge(have, want scheme.Object) scheme.Object {
	merged := have.DeepCopyObject().(scheme.Object)
	merged.SetLabels(mergeMaps(want.GetLabels(), merged.GetLabels()))
	merged.SetAnnotations(mergeMaps(want.GetAnnotations(), merged.GetAnnotations()))
	if rules := rulesOf(merged); rules != nil {
		*rules = append(*rules, missingRules(*rules, *rulesOf(want))...)
	}
	if role, ok := merged.(*rbacv1.ClusterRole); ok {
		mergeAggregation(role, want.(*rbacv1.ClusterRole))
	}
	if _, subjects := BindingParts(merged); subjects != nil {
		_, wanted := BindingParts(want)
		for _, subject := range *wanted {
			if !slices.Contains(*subjects, subject) {
				*subjects = append(*subjects, subject)
			}
		}
	}
	return merged
}

// mergeAggregation adds missing selectors to the role's aggregation rule. It removes the
// aggregation rule if want has none.
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
