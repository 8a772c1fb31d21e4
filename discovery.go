package main

// This file tells clients what is served: the answers at /api and /apis, in two dialects, both derived from the registry.
//
//	legacy       /api → APIVersions, /apis → APIGroupList, /apis/apps → APIGroup, /apis/apps/v1 → APIResourceList
//	aggregated   /api and /apis → APIGroupDiscoveryList with every resource in one answer
//
// A client asks for the aggregated dialect in Accept, with three parameters. Its answer has to carry the very same Content-Type and may
// go only to clients that named v2: to one that knows v2beta1 alone (kubectl 1.27), a v2 body is an empty API. Such clients get the
// legacy dialect, which all of them list last.

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const aggregatedType = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// serveDiscovery answers /api, /apis, /apis/{group}, /api/v1 and /apis/{group}/{version}, legacy or aggregated by Accept.
func serveDiscovery(reg *registry, w http.ResponseWriter, r *http.Request) {
	c := reg.current.Load()
	root, rest, _ := strings.Cut(strings.Trim(r.URL.Path, "/"), "/")
	if rest == "" && wantsAggregated(r.Header.Get("Accept")) {
		serveAggregated(c, root, w, r)
		return
	}
	answer := legacyAnswer(c, root, rest, r)
	if answer == nil {
		group := ""
		if root == "apis" {
			group, _, _ = strings.Cut(rest, "/")
		}
		serveUnknown(reg, w, r, group)
		return
	}
	if _, err := negotiate(r.Header.Get("Accept")); err != nil {
		refuse(w, r, err)
		return
	}
	doc, _ := json.Marshal(answer)
	writeJSON(w, r, http.StatusOK, doc)
}

// serveUnknown answers for what is not served: with a Status where the group is built in, with plain text elsewhere.
func serveUnknown(reg *registry, w http.ResponseWriter, r *http.Request, group string) {
	for _, res := range reg.all() {
		if res.group == group && res.goType != nil {
			refuse(w, r, errNoSuchResource())
			return
		}
	}
	http.NotFound(w, r)
}

// legacyAnswer is the answer for root ("api" or "apis") and the path below it; nil when there is nothing.
func legacyAnswer(c *catalog, root, rest string, r *http.Request) any {
	group, version, _ := strings.Cut(rest, "/")
	switch {
	case root == "api" && rest == "":
		return apiVersions(r)
	case root == "api":
		return resourceList(c, "", rest)
	case rest == "":
		return groupList(c)
	case version == "":
		return groupNamed(c, group)
	}
	return resourceList(c, group, version)
}

func apiVersions(r *http.Request) any {
	server := r.Host
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		server = local.String()
	}
	return &metav1.APIVersions{
		TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"},
		ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: server}},
	}
}

func groupList(c *catalog) any {
	list := &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, gv := range c.groupVersions() {
		if gv[0].group == "" {
			continue
		}
		last := len(list.Groups) - 1
		if last < 0 || list.Groups[last].Name != gv[0].group {
			list.Groups = append(list.Groups, metav1.APIGroup{Name: gv[0].group})
			last++
		}
		g := &list.Groups[last]
		g.Versions = append(g.Versions, metav1.GroupVersionForDiscovery{GroupVersion: gv[0].apiVersion(), Version: gv[0].version})
		g.PreferredVersion = g.Versions[0]
	}
	return list
}

func groupNamed(c *catalog, name string) any {
	groups := groupList(c).(*metav1.APIGroupList).Groups
	for i := range groups {
		if groups[i].Name == name {
			groups[i].TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
			return &groups[i]
		}
	}
	return nil
}

func resourceList(c *catalog, group, version string) any {
	rows := c.rowsOf(group, version)
	if rows == nil {
		return nil
	}
	list := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: rows[0].apiVersion()}
	for _, res := range rows {
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: res.plural, SingularName: res.singular, Namespaced: res.namespaced, Kind: res.kind, Verbs: res.verbs,
			ShortNames: res.shortNames, Categories: res.categories, StorageVersionHash: storageVersionHash(c, res),
		})
		for _, sub := range res.subresources {
			kind := responseKind(res, sub.group, sub.version, sub.kind)
			list.APIResources = append(list.APIResources, metav1.APIResource{
				Name: res.plural + "/" + sub.name, Namespaced: res.namespaced, Group: kind.Group, Version: kind.Version, Kind: kind.Kind, Verbs: sub.verbs,
			})
		}
	}
	return list
}

// storageVersionHash names the version that objects are stored in; storage migration tools compare it.
func storageVersionHash(c *catalog, res *resource) string {
	switch {
	case res.custom != nil && res.custom.storageVersion != "":
		return versionHash(res.group, res.custom.storageVersion, res.kind)
	case res.virtual || res.goType == nil:
		return ""
	}
	stored := res
	for _, other := range c.sorted {
		if other.base == res.base && other.conversion == nil {
			stored = other
			break
		}
	}
	return versionHash(stored.group, stored.version, stored.kind)
}

func versionHash(group, version, kind string) string {
	sum := sha256.Sum256([]byte(group + "/" + version + "/" + kind))
	return base64.StdEncoding.EncodeToString(sum[:8])
}

// responseKind leaves group and version out where they are the resource's own, as kube-apiserver does.
func responseKind(res *resource, group, version, kind string) *metav1.GroupVersionKind {
	if group == res.group && version == res.version {
		return &metav1.GroupVersionKind{Kind: kind}
	}
	return &metav1.GroupVersionKind{Group: group, Version: version, Kind: kind}
}

// wantsAggregated tells whether the first alternative in Accept that we can serve is the aggregated dialect.
func wantsAggregated(accept string) bool {
	if !strings.Contains(accept, "APIGroupDiscoveryList") {
		return false
	}
	for _, clause := range parseAccept(accept) {
		p := clause.params
		switch {
		case clause.format() == "":
		case clause.name == "application/json" && p["as"] == "APIGroupDiscoveryList" && p["v"] == "v2" && p["g"] == apidiscoveryv2.GroupName:
			return true
		case p["as"] == "":
			return false
		}
	}
	return false
}

// serveAggregated answers from a document that is made once per state of the registry. Clients keep it and ask with its ETag.
func serveAggregated(c *catalog, root string, w http.ResponseWriter, r *http.Request) {
	doc := c.remember(root, func(c *catalog) []byte { return aggregatedDocument(c, root) })
	etag := string(c.remember(root+" etag", func(*catalog) []byte { return []byte(etagOf(doc)) }))
	header := w.Header()
	header.Set("Vary", "Accept")
	header.Set("Cache-Control", "public")
	header.Set("ETag", etag)
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	dressed, newline, _ := mediaType{}.dress(doc, wantsPretty(r))
	header.Set("Content-Type", aggregatedType)
	header.Set("Content-Length", strconv.Itoa(len(dressed)+len(newline)))
	w.Write(dressed)
	w.Write([]byte(newline))
}

func etagOf(doc []byte) string { return fmt.Sprintf("\"%X\"", sha512.Sum512(doc)) }

// aggregatedDocument describes the core group (root "api") or all others ("apis").
func aggregatedDocument(c *catalog, root string) []byte {
	list := &apidiscoveryv2.APIGroupDiscoveryList{}
	for _, rows := range c.groupVersions() {
		group := rows[0].group
		if (group == "") != (root == "api") {
			continue
		}
		last := len(list.Items) - 1
		if last < 0 || list.Items[last].Name != group {
			list.Items = append(list.Items, apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: group}})
			last++
		}
		version := apidiscoveryv2.APIVersionDiscovery{Version: rows[0].version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
		for _, res := range rows {
			version.Resources = append(version.Resources, aggregatedResource(res))
		}
		list.Items[last].Versions = append(list.Items[last].Versions, version)
	}
	doc, _ := marshalAs(list, "apidiscovery.k8s.io/v2", "APIGroupDiscoveryList")
	return doc
}

func aggregatedResource(res *resource) apidiscoveryv2.APIResourceDiscovery {
	d := apidiscoveryv2.APIResourceDiscovery{
		Resource: res.plural, ResponseKind: responseKind(res, res.group, res.version, res.kind), Scope: apidiscoveryv2.ScopeCluster,
		SingularResource: res.singular, Verbs: res.verbs, ShortNames: res.shortNames, Categories: res.categories,
	}
	if res.namespaced {
		d.Scope = apidiscoveryv2.ScopeNamespace
	}
	for _, sub := range res.subresources {
		d.Subresources = append(d.Subresources, apidiscoveryv2.APISubresourceDiscovery{
			Subresource: sub.name, ResponseKind: responseKind(res, sub.group, sub.version, sub.kind), Verbs: sub.verbs,
		})
	}
	return d
}
