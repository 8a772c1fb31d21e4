package logcmd

// This file finds the types that a user means by a word, as kubectl does: deployments, deployment,
// Deployment, deploy, deployments.apps, or a category such as all.

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

// findKinds returns the type that the word names, or all types of the category that it names. An
// unknown plural.group is accepted as it is, because the type may have been deleted.
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
