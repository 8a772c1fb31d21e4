package logcmd

// This file implements the lookup of types by name. Like kubectl, it accepts deployments,
// deployment, Deployment, deploy and deployments.apps as well as the names of categories such as
// all.

import (
	"fmt"
	"slices"
	"strings"
)

// A kind is a type of object in its preferred version.
type kind struct {
	group, version, plural, singular, kind string
	short, categories                      []string
	namespaced, lists                      bool
}

// name returns plural.group.
func (k *kind) name() string {
	if k.group == "" {
		return k.plural
	}
	return k.plural + "." + k.group
}

// findKinds returns the type with the given name, or all types in the category with the given name.
// An unknown plural.group is accepted as it is, because the type may have been deleted.
func findKinds(all []kind, word string) ([]kind, error) {
	name, group, inGroup := strings.Cut(strings.ToLower(word), ".")
	for _, k := range all {
		named := name == k.plural || name == k.singular || name == strings.ToLower(k.kind) || slices.Contains(k.short, name)
		if named && (!inGroup || group == k.group || group == k.version+"."+k.group) {
			return []kind{k}, nil
		}
	}
	var found []kind
	for _, k := range all {
		if slices.Contains(k.categories, word) {
			found = append(found, k)
		}
	}
	switch {
	case len(found) > 0:
		return found, nil
	case name == "" || inGroup && group == "" || !inGroup:
		return nil, fmt.Errorf("there is no type %q", word)
	}
	return []kind{{group: group, plural: name, namespaced: true}}, nil
}

func (k *kind) base() string { return "/" + k.group + "/" + k.plural + "/" }
