package discovery

// This file serves discovery at /api and /apis in two formats, both derived from the registry.
//
//	legacy       /api → APIVersions, /apis → APIGroupList, /apis/apps → APIGroup, /apis/apps/v1 → APIResourceList
//	aggregated   /api and /apis → APIGroupDiscoveryList with all resources in one document
//
// A client requests the aggregated format by three parameters in Accept. The response must have
// exactly that Content-Type, and must only be sent to clients that accept v2: a client that only
// supports v2beta1 (kubectl 1.27) reads a v2 body as an empty API. These clients also accept the
// legacy format.

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"apilet/internal/apierror"
	"apilet/internal/limits"
	"apilet/internal/response"
	"apilet/internal/scheme"
)

const (
	aggregatedKind   = "APIGroupDiscoveryList"
	aggregatedParams = ";g=apidiscovery.k8s.io;v=v2;as=" + aggregatedKind
)

// ServeDiscovery serves /api, /apis, /apis/{group}, /api/v1 and /apis/{group}/{version}, in the
// format that Accept selects.
func ServeDiscovery(reg *scheme.Registry, w http.ResponseWriter, r *http.Request) {
	c := reg.Current.Load()
	root, rest, _ := strings.Cut(strings.Trim(r.URL.Path, "/"), "/")
	if strings.HasPrefix(rest, "/") { // /apis//v1
		http.NotFound(w, r)
		return
	}
	if r.Method != http.MethodGet && onlyGET(reg, root, rest) {
		response.Refuse(w, r, apierror.MethodNotAllowed())
		return
	}
	if format := wantsAggregated(r.Header.Get("Accept")); rest == "" && format != "" {
		serveAggregated(c, root, format, w, r)
		return
	}
	answer := legacyDocument(c, root, rest, r)
	if answer == nil {
		group := ""
		if root == "apis" {
			group, _, _ = strings.Cut(rest, "/")
		}
		ServeNotFound(reg, w, r, group)
		return
	}
	if _, err := response.Objects.Negotiate(r.Header.Get("Accept")); err != nil {
		response.Refuse(w, r, err)
		return
	}
	_ = response.WriteObject(w, r, http.StatusOK, answer) // these can always be encoded
}

// ServeNotFound responds with a 404: a Status for a built-in group, plain text for any other group.
func ServeNotFound(reg *scheme.Registry, w http.ResponseWriter, r *http.Request, group string) {
	for _, res := range reg.All() {
		if res.Group == group && res.GoType != nil {
			response.Refuse(w, r, apierror.NoSuchResource())
			return
		}
	}
	http.NotFound(w, r)
}

// legacyDocument returns the legacy document for root ("api" or "apis") and the rest of the path,
// or nil if it does not exist.
func legacyDocument(c *scheme.Catalog, root, rest string, r *http.Request) runtime.Object {
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

func apiVersions(r *http.Request) runtime.Object {
	server := r.Host
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		server = local.String()
	}
	return &metav1.APIVersions{
		TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"},
		ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: server}},
	}
}

func groupList(c *scheme.Catalog) runtime.Object {
	list := &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, gv := range c.GroupVersions() {
		if gv[0].Group == "" {
			continue
		}
		last := len(list.Groups) - 1
		if last < 0 || list.Groups[last].Name != gv[0].Group {
			list.Groups = append(list.Groups, metav1.APIGroup{Name: gv[0].Group})
			last++
		}
		g := &list.Groups[last]
		g.Versions = append(g.Versions, metav1.GroupVersionForDiscovery{GroupVersion: gv[0].APIVersion(), Version: gv[0].Version})
		g.PreferredVersion = g.Versions[0]
	}
	return list
}

func groupNamed(c *scheme.Catalog, name string) runtime.Object {
	groups := groupList(c).(*metav1.APIGroupList).Groups
	for i := range groups {
		if groups[i].Name == name {
			groups[i].TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
			return &groups[i]
		}
	}
	return nil
}

func resourceList(c *scheme.Catalog, group, version string) runtime.Object {
	rows := c.RowsOf(group, version)
	if rows == nil {
		return nil
	}
	list := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: rows[0].APIVersion()}
	if group == "" { // as in kube-apiserver
		list.APIVersion = ""
	}
	for _, res := range rows {
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: res.Plural, SingularName: res.Singular, Namespaced: res.Namespaced, Kind: res.Kind, Verbs: res.Verbs,
			ShortNames: res.ShortNames, Categories: res.Categories, StorageVersionHash: storageVersionHash(c, res),
		})
		for _, sub := range res.Subresources {
			kind := responseKind(res, sub.Group, sub.Version, sub.Kind)
			list.APIResources = append(list.APIResources, metav1.APIResource{
				Name: res.Plural + "/" + sub.Name, Namespaced: res.Namespaced, Group: kind.Group, Version: kind.Version, Kind: kind.Kind, Verbs: sub.Verbs,
			})
		}
	}
	return list
}

// storageVersionHash returns the hash of the version in which objects are stored. Storage migration
// tools compare it.
func storageVersionHash(c *scheme.Catalog, res *scheme.Resource) string {
	switch {
	case res.Custom != nil && res.Custom.StorageVersion != "":
		return versionHash(res.Group, res.Custom.StorageVersion, res.Kind)
	case res.Virtual || res.GoType == nil:
		return ""
	}
	stored := res
	for _, other := range c.Sorted {
		if other.Base == res.Base && other.Conversion == nil {
			stored = other
			break
		}
	}
	return versionHash(stored.Group, stored.Version, stored.Kind)
}

func versionHash(group, version, kind string) string {
	sum := sha256.Sum256([]byte(group + "/" + version + "/" + kind))
	return base64.StdEncoding.EncodeToString(sum[:8])
}

// responseKind omits the group and version if they are equal to those of the resource, as in
// kube-apiserver.
func responseKind(res *scheme.Resource, group, version, kind string) *metav1.GroupVersionKind {
	if group == res.Group && version == res.Version {
		return &metav1.GroupVersionKind{Kind: kind}
	}
	return &metav1.GroupVersionKind{Group: group, Version: version, Kind: kind}
}

// wantsAggregated returns the encoding if the first supported alternative in Accept is the
// aggregated format, and "" otherwise.
func wantsAggregated(accept string) scheme.BodyFormat {
	if !strings.Contains(accept, aggregatedKind) {
		return ""
	}
	for _, clause := range response.ParseAccept(accept) {
		format := clause.Format(response.Objects.Formats)
		as, _ := clause.Param("as")
		version, _ := clause.Param("v")
		group, _ := clause.Param("g")
		switch {
		case format == "" || format == scheme.YAMLFormat:
		case clause.Name == string(format) && as == aggregatedKind && version == "v2" && group == apidiscoveryv2.GroupName:
			return format
		case as == "":
			return ""
		}
	}
	return ""
}

// serveAggregated serves a document that is encoded once per state of the registry. Clients cache
// it and revalidate it by its ETag.
func serveAggregated(c *scheme.Catalog, root string, format scheme.BodyFormat, w http.ResponseWriter, r *http.Request) {
	name := root + " " + string(format)
	doc := c.GetOrBuild(name, func(c *scheme.Catalog) []byte { return aggregatedDocument(c, root, format) })
	etag := c.GetOrBuild(name+" etag", func(*scheme.Catalog) []byte { return []byte(etagOf(doc)) })
	writeAggregated(doc, string(etag), format, w, r)
}

func writeAggregated(doc []byte, etag string, format scheme.BodyFormat, w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Vary", "Accept")
	header.Set("Cache-Control", "public")
	header.Set("ETag", etag)
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	encoded, newline := doc, ""
	if format == scheme.JSONFormat {
		if response.WantsPretty(r) {
			limits.ForceReserve(r.Context(), w, 4*len(doc))
		}
		encoded, newline, _ = response.MediaType{}.Encode(doc, response.WantsPretty(r))
	}
	header.Set("Content-Type", string(format)+aggregatedParams)
	header.Set("Content-Length", strconv.Itoa(len(encoded)+len(newline)))
	w.Write(encoded)
	w.Write([]byte(newline))
}

func etagOf(doc []byte) string { return fmt.Sprintf("\"%X\"", sha512.Sum512(doc)) }

// aggregatedDocument describes the core group (root "api") or all other groups ("apis").
func aggregatedDocument(c *scheme.Catalog, root string, format scheme.BodyFormat) []byte {
	list := &apidiscoveryv2.APIGroupDiscoveryList{}
	for _, rows := range c.GroupVersions() {
		group := rows[0].Group
		if (group == "") != (root == "api") {
			continue
		}
		last := len(list.Items) - 1
		if last < 0 || list.Items[last].Name != group {
			list.Items = append(list.Items, apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: group}})
			last++
		}
		list.Items[last].Versions = append(list.Items[last].Versions, apidiscoveryv2.APIVersionDiscovery{Version: rows[0].Version,
			Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent, Resources: resourcesOf(rows)})
	}
	return encodeAggregated(list, format)
}

func resourcesOf(rows []*scheme.Resource) (resources []apidiscoveryv2.APIResourceDiscovery) {
	for _, res := range rows {
		resources = append(resources, aggregatedResource(res))
	}
	return resources
}

func encodeAggregated(list *apidiscoveryv2.APIGroupDiscoveryList, format scheme.BodyFormat) []byte {
	list.SetGroupVersionKind(apidiscoveryv2.SchemeGroupVersion.WithKind(aggregatedKind))
	encode := response.EncodeProtobuf
	if format == scheme.JSONFormat {
		encode = func(obj runtime.Object) ([]byte, error) { return json.Marshal(obj) }
	}
	doc, _ := encode(list)
	return doc
}

func aggregatedResource(res *scheme.Resource) apidiscoveryv2.APIResourceDiscovery {
	d := apidiscoveryv2.APIResourceDiscovery{
		Resource: res.Plural, ResponseKind: responseKind(res, res.Group, res.Version, res.Kind), Scope: apidiscoveryv2.ScopeCluster,
		SingularResource: res.Singular, Verbs: res.Verbs, ShortNames: res.ShortNames, Categories: res.Categories,
	}
	if res.Namespaced {
		d.Scope = apidiscoveryv2.ScopeNamespace
	}
	for _, sub := range res.Subresources {
		d.Subresources = append(d.Subresources, apidiscoveryv2.APISubresourceDiscovery{
			Subresource: sub.Name, ResponseKind: responseKind(res, sub.Group, sub.Version, sub.Kind), Verbs: sub.Verbs,
		})
	}
	return d
}

// onlyGET reports whether the discovery of this path supports only GET. All other discovery paths
// accept any method.
func onlyGET(reg *scheme.Registry, root, rest string) bool {
	group, version, _ := strings.Cut(rest, "/")
	return root == "api" || version != "" && slices.ContainsFunc(reg.All(), func(res *scheme.Resource) bool { return res.Group == group && res.GoType != nil })
}
