package rbac

// This file builds a new index from the previous one and a set of changes. The cost of a write does
// not depend on the size of the policy. A Policy holds the objects, and an index from roles to
// bindings. A table has 256 parts. The new index shares the unchanged parts with the previous one.

import (
	"hash/maphash"
	"slices"
	"strconv"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"apilet/internal/scheme"
)

// A Policy builds indexes. It is not safe for concurrent use, but the indexes are.
type Policy struct {
	objects    map[string]scheme.Object       // by the caller's keys
	cluster    map[string]*rbacv1.ClusterRole // by name
	aggregated map[string][]rbacv1.PolicyRule // rules of aggregated roles by name
	// The keys of bindings by role. The role may not exist.
	bound  map[roleName]map[string]struct{}
	grants map[string]*grant // by the binding's key
	index  *Index
}

// NewPolicy returns a policy without objects.
func NewPolicy() *Policy {
	return &Policy{objects: map[string]scheme.Object{}, cluster: map[string]*rbacv1.ClusterRole{}, aggregated: map[string][]rbacv1.PolicyRule{},
		bound: map[roleName]map[string]struct{}{}, grants: map[string]*grant{}, index: &Index{seed: maphash.MakeSeed()}}
}

// Change stores the objects under the caller's keys and returns the new index. A nil object deletes
// the key.
func (p *Policy) Change(objects map[string]scheme.Object) *Index {
	next := *p.index
	d := &indexBuilder{x: &next, roles: editor[roleName, *roleRules]{to: &next.roles, seed: next.seed}, grants: editor[grantKey, []*grant]{to: &next.grants, seed: next.seed},
		listers: editor[subjectName, int]{to: &next.listers, seed: next.seed}}
	roles, bindings, aggregates := map[roleName]bool{}, map[string]bool{}, false
	for key, obj := range objects {
		for _, one := range [...]scheme.Object{p.objects[key], obj} {
			if one == nil {
				continue
			}
			if rulesOf(one) != nil {
				roles[roleName{one.GetNamespace(), one.GetName()}] = true
			} else if ref, _ := BindingParts(one); ref != nil {
				bindings[key] = true
			}
		}
		aggregates = p.put(d, key, obj) || aggregates
	}
	if aggregates {
		p.aggregate(d, roles)
	}
	for role := range roles {
		for key := range p.bound[role] {
			bindings[key] = true
		}
	}
	p.regrant(d, bindings)
	p.index = &next
	return p.index
}

// put replaces one object and its rules. It reports whether a ClusterRole has changed, because
// other roles may aggregate it.
func (p *Policy) put(d *indexBuilder, key string, obj scheme.Object) (clusterRole bool) {
	if old := p.objects[key]; old != nil {
		if ref, _ := BindingParts(old); ref != nil {
			name := roleOf(ref, old.GetNamespace())
			delete(p.bound[name], key)
			if len(p.bound[name]) == 0 {
				delete(p.bound, name)
			}
		} else if rulesOf(old) != nil {
			d.roles.remove(roleName{old.GetNamespace(), old.GetName()})
		}
		if role, is := old.(*rbacv1.ClusterRole); is {
			clusterRole = true
			delete(p.cluster, role.Name)
			delete(p.aggregated, role.Name)
		}
		delete(p.objects, key)
	}
	if obj == nil {
		return clusterRole
	}
	p.objects[key] = obj
	if rules := rulesOf(obj); rules != nil {
		d.roles.set(roleName{obj.GetNamespace(), obj.GetName()}, newRoleRules(*rules))
	} else if ref, _ := BindingParts(obj); ref != nil {
		name := roleOf(ref, obj.GetNamespace())
		if p.bound[name] == nil {
			p.bound[name] = map[string]struct{}{}
		}
		p.bound[name][key] = struct{}{}
	}
	if role, is := obj.(*rbacv1.ClusterRole); is {
		clusterRole, p.cluster[role.Name] = true, role
	}
	return clusterRole
}

// aggregate computes the rules of all aggregated ClusterRoles and adds the changed ones to roles.
func (p *Policy) aggregate(d *indexBuilder, roles map[roleName]bool) {
	all := make([]scheme.Object, 0, len(p.cluster))
	for _, role := range p.cluster {
		all = append(all, role)
	}
	for _, role := range aggregated(all) {
		name := roleName{"", role.Name}
		before, known := p.aggregated[role.Name]
		if known && !roles[name] && apiequality.Semantic.DeepEqual(before, role.Rules) {
			continue
		}
		p.aggregated[role.Name], roles[name] = role.Rules, true
		d.roles.set(name, newRoleRules(role.Rules))
	}
}

// regrant replaces the grants of the given bindings.
func (p *Policy) regrant(d *indexBuilder, bindings map[string]bool) {
	gone, come := map[grantKey][]*grant{}, map[grantKey][]*grant{}
	note := func(g *grant, to map[grantKey][]*grant, listers int) {
		for _, subject := range g.subjects {
			at := grantKey{subject, g.namespace}
			to[at] = append(to[at], g)
			if !g.role.lists {
				continue
			}
			if n := d.x.listers.get(d.x.seed, subject) + listers; n > 0 {
				d.listers.set(subject, n)
			} else {
				d.listers.remove(subject)
			}
		}
	}
	for key := range bindings {
		if old := p.grants[key]; old != nil {
			note(old, gone, -1)
			delete(p.grants, key)
		}
		if obj := p.objects[key]; obj != nil {
			p.grants[key] = d.x.newGrant(obj)
			note(p.grants[key], come, 1)
		}
	}
	for at, grants := range gone {
		if len(come[at]) == 0 {
			d.replace(at, grants, nil)
		}
	}
	for at, grants := range come {
		d.replace(at, gone[at], grants)
	}
}

// A draft is an index under construction.
type indexBuilder struct {
	x       *Index
	roles   editor[roleName, *roleRules]
	grants  editor[grantKey, []*grant]
	listers editor[subjectName, int]
}

// fewGrants is the largest change that is applied to a list one grant at a time.
const fewGrants = 16

// replace updates the list of grants at a place, which is sorted by name.
func (d *indexBuilder) replace(at grantKey, gone, come []*grant) {
	before := d.x.grants.get(d.x.seed, at)
	list := make([]*grant, len(before), len(before)+len(come))
	copy(list, before)
	byName := func(g *grant, name string) int { return strings.Compare(g.name, name) }
	if few := len(gone)+len(come) <= fewGrants; few {
		for _, g := range gone {
			if i, found := slices.BinarySearchFunc(list, g.name, byName); found {
				list = slices.Delete(list, i, i+1)
			}
		}
		for _, g := range come {
			i, _ := slices.BinarySearchFunc(list, g.name, byName)
			list = slices.Insert(list, i, g)
		}
	} else {
		out := make(map[*grant]bool, len(gone))
		for _, g := range gone {
			out[g] = true
		}
		list = append(slices.DeleteFunc(list, func(g *grant) bool { return out[g] }), come...)
		slices.SortFunc(list, func(a, b *grant) int { return strings.Compare(a.name, b.name) })
	}
	if len(list) == 0 {
		d.grants.remove(at)
		return
	}
	d.grants.set(at, list)
}

// NewIndex returns the index of Roles, ClusterRoles, RoleBindings and ClusterRoleBindings in any
// order. It ignores other objects.
func NewIndex(objects []scheme.Object) *Index {
	changes := make(map[string]scheme.Object, len(objects))
	for i, obj := range objects {
		changes[strconv.Itoa(i)] = obj
	}
	return NewPolicy().Change(changes)
}
