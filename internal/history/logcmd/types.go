package logcmd

// This file finds the types that a user means by a word, as kubectl does: deployments, deployment, Deployment, deploy, deployments.apps, or a
// category as all.

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// A kind is a type of objects, at the version that is preferred.
type kind struct {
	group, version, plural, singular, kind string
	short, categories                      []string
	namespaced, lists                      bool
}

// name is plural.group.
func (k *kind) name() string {
	if k.group == "" {
		return k.plural
	}
	return k.plural + "." + k.group
}

// findKinds are those that a word means: one, or those of a category. Of types that are no more, plural.group is taken as it is.
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

// kinds asks discovery, for all groups at once.
func (s *server) kinds(ctx context.Context) (list []kind, err error) {
	for _, root := range []string{"/api", "/apis"} {
		of, err := s.discover(ctx, root)
		if err != nil {
			return nil, err
		}
		list = append(list, of...)
	}
	return list, nil
}

// discovered is what is read of an APIGroupDiscoveryList.
type discovered struct {
	Items []struct {
		Metadata struct{ Name string }
		Versions []struct {
			Version   string
			Resources []struct {
				Resource, SingularResource, Scope string
				ResponseKind                      struct{ Kind string }
				ShortNames, Categories, Verbs     []string
			}
		}
	}
}

func (s *server) discover(ctx context.Context, root string) (list []kind, err error) {
	answer, err := s.get(ctx, root, "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	var found discovered
	if err := json.NewDecoder(io.LimitReader(answer.Body, answerMax)).Decode(&found); err != nil {
		return nil, fmt.Errorf("discovery: %w", err)
	}
	seen := map[string]bool{}
	for _, group := range found.Items {
		for _, version := range group.Versions {
			for _, r := range version.Resources {
				k := kind{group: group.Metadata.Name, version: version.Version, plural: r.Resource, singular: r.SingularResource, kind: r.ResponseKind.Kind,
					short: r.ShortNames, categories: r.Categories, namespaced: r.Scope == "Namespaced", lists: slices.Contains(r.Verbs, "list")}
				if !seen[k.name()] && k.lists {
					list = append(list, k)
				}
				seen[k.name()] = true
			}
		}
	}
	return list, nil
}
