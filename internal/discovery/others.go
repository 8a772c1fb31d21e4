package discovery

// This file merges the group versions of other servers (package aggregation) into the group list,
// the groups, the aggregated document and the index of OpenAPI v3. Requests below a group version
// are proxied to its server.
//
//	apilet   apps: v1                      priorities come from the stored APIServices
//	others   wardle.example.com: v1beta1   v1alpha1 (Stale: its server is unavailable, so its types are unknown)
//
// If both serve a group version, the other server takes precedence, because an administrator has
// registered it. The order is the same as in k8s.io/kube-aggregator. Groups are sorted by
// groupPriorityMinimum and name. Versions are sorted by versionPriority, then by stability and age.

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"apilet/internal/apierror"
	"apilet/internal/response"
	"apilet/internal/scheme"
)

// RemoteVersion is a group version of another server.
type RemoteVersion struct {
	Group, Version string
	Resources      []apidiscoveryv2.APIResourceDiscovery
	Stale          bool   // the server does not respond or is invalid
	OpenAPIHash    string // hash of its OpenAPI v3 document, if any
	Swagger        *Swagger
}

// RemoteVersions is an immutable snapshot of the group versions of all other servers.
type RemoteVersions struct {
	All []RemoteVersion
	// of all group versions, including those of apilet
	Priorities map[metav1.GroupVersion]Priority

	mu   sync.Mutex // guards made
	made map[scheme.BodyFormat]mergedDocument

	mergeLock sync.Mutex     // guards joined
	merged    *mergedSwagger // merged OpenAPI v2 documents, created on demand
}

// Priority determines the position of a group version. It contains the priority of the group and
// the priority of the version within the group.
type Priority struct{ Group, Version int32 }

// mergedDocument is the aggregated document for a catalog.
type mergedDocument struct {
	of        *scheme.Catalog
	doc, etag []byte
}

// first is the group priority of APIServices themselves. It is higher than the maximum that an
// APIService may request.
const first = 20001

// Has reports whether any version of the group is served by another server.
func (o *RemoteVersions) Has(group string) bool {
	for i := range o.All {
		if o.All[i].Group == group {
			return true
		}
	}
	return false
}

// find returns the group version if it is served by another server, and nil otherwise.
func (o *RemoteVersions) find(group, version string) *RemoteVersion {
	for i := range o.All {
		if o.All[i].Group == group && o.All[i].Version == version {
			return &o.All[i]
		}
	}
	return nil
}

// order returns all group versions except for the core group, sorted and by group.
func (o *RemoteVersions) order(c *scheme.Catalog) [][]*apiregistrationv1.APIService {
	var all []*apiregistrationv1.APIService
	add := func(group, version string) {
		p, ok := o.Priorities[metav1.GroupVersion{Group: group, Version: version}]
		switch {
		case group == apiregistrationv1.GroupName:
			p = Priority{first, 1}
		// a CustomResourceDefinition that has just been created
		case !ok:
			p = Priority{1000, 100}
		}
		all = append(all, &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: version + "." + group}, Spec: apiregistrationv1.APIServiceSpec{
			Group: group, Version: version, GroupPriorityMinimum: p.Group, VersionPriority: p.Version}})
	}
	for _, rows := range c.GroupVersions() {
		if rows[0].Group != "" && o.find(rows[0].Group, rows[0].Version) == nil {
			add(rows[0].Group, rows[0].Version)
		}
	}
	for i := range o.All {
		add(o.All[i].Group, o.All[i].Version)
	}
	return helper.SortedByGroupAndVersion(all)
}

// ServeMerged serves /apis and /apis/{group}.
func ServeMerged(reg *scheme.Registry, o *RemoteVersions, w http.ResponseWriter, r *http.Request) {
	c := reg.Current.Load()
	_, group, _ := strings.Cut(strings.Trim(r.URL.Path, "/"), "/")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		response.Refuse(w, r, apierror.MethodNotAllowed())
		return
	}
	if format := wantsAggregated(r.Header.Get("Accept")); group == "" && format != "" {
		doc, etag := o.document(c, format)
		writeAggregated(doc, string(etag), format, w, r)
		return
	}
	if _, err := response.Objects.Negotiate(r.Header.Get("Accept")); err != nil {
		response.Refuse(w, r, err)
		return
	}
	list := &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, versions := range o.order(c) {
		g := metav1.APIGroup{Name: versions[0].Spec.Group}
		for _, of := range versions {
			g.Versions = append(g.Versions, metav1.GroupVersionForDiscovery{GroupVersion: g.Name + "/" + of.Spec.Version, Version: of.Spec.Version})
		}
		g.PreferredVersion = g.Versions[0]
		if g.Name == group {
			g.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
			// it can always be encoded
			_ = response.WriteObject(w, r, http.StatusOK, &g)
			return
		}
		list.Groups = append(list.Groups, g)
	}
	_ = response.WriteObject(w, r, http.StatusOK, list) // it can always be encoded
}

// document returns the aggregated document and its ETag. It is encoded once per catalog.
func (o *RemoteVersions) document(c *scheme.Catalog, format scheme.BodyFormat) (doc, etag []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if made := o.made[format]; made.of == c {
		return made.doc, made.etag
	}
	doc = encodeAggregated(o.merge(c), format)
	if o.made == nil {
		o.made = map[scheme.BodyFormat]mergedDocument{}
	}
	o.made[format] = mergedDocument{c, doc, []byte(etagOf(doc))}
	return doc, o.made[format].etag
}

func (o *RemoteVersions) merge(c *scheme.Catalog) *apidiscoveryv2.APIGroupDiscoveryList {
	list := &apidiscoveryv2.APIGroupDiscoveryList{}
	for _, versions := range o.order(c) {
		group := apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: versions[0].Spec.Group}}
		for _, of := range versions {
			version := apidiscoveryv2.APIVersionDiscovery{Version: of.Spec.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
			if other := o.find(of.Spec.Group, of.Spec.Version); other == nil {
				version.Resources = resourcesOf(c.RowsOf(of.Spec.Group, of.Spec.Version))
			} else if version.Resources = other.Resources; other.Stale {
				version.Freshness = apidiscoveryv2.DiscoveryFreshnessStale
			}
			group.Versions = append(group.Versions, version)
		}
		list.Items = append(list.Items, group)
	}
	return list
}

// ServeMergedIndex serves /openapi/v3.
func ServeMergedIndex(reg *scheme.Registry, o *RemoteVersions, w http.ResponseWriter, r *http.Request) {
	if _, err := response.Negotiate(r.Header.Get("Accept")); err != nil {
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	index := openAPIIndex(reg.Current.Load(), "")
	for i := range o.All {
		path := "apis/" + o.All[i].Group + "/" + o.All[i].Version
		if delete(index["paths"], path); o.All[i].OpenAPIHash != "" {
			index["paths"][path] = openAPIPathItem{openAPIPath(path, o.All[i].OpenAPIHash)}
		}
	}
	doc, _ := json.Marshal(index)
	writeOpenAPI(w, r, etagOf(doc), func() ([]byte, error) { return doc, nil })
}

// ---- OpenAPI v2 ----

// Swagger contains the paths of one group version from the OpenAPI v2 document of another server,
// and the definitions that these paths refer to.
type Swagger struct {
	ETag               string // of the source document
	paths, definitions map[string]json.RawMessage
}

// NewSwagger extracts the part of a document that describes a group version. Shared parameters are
// inlined.
func NewSwagger(doc []byte, etag, group, version string) (*Swagger, error) {
	var whole struct {
		Paths       map[string]json.RawMessage `json:"paths"`
		Definitions map[string]json.RawMessage `json:"definitions"`
		Parameters  map[string]json.RawMessage `json:"parameters"`
	}
	if err := json.Unmarshal(doc, &whole); err != nil {
		return nil, err
	}
	s := &Swagger{ETag: etag, paths: map[string]json.RawMessage{}, definitions: map[string]json.RawMessage{}}
	in := &inliner{shared: whole.Parameters, left: maxInlined}
	below := "/apis/" + group + "/" + version + "/"
	for path, item := range whole.Paths {
		if !strings.HasPrefix(path, below) {
			continue
		}
		var members any
		if err := json.Unmarshal(item, &members); err != nil {
			return nil, err
		}
		if members = in.inline(members); in.left < 0 {
			return nil, errors.New("its shared parameters would make too much of it")
		}
		s.paths[path], _ = json.Marshal(members) // it was decoded from JSON
		if err := json.Unmarshal(s.paths[path], &members); err != nil {
			return nil, err
		}
		s.addReferenced(members, whole.Definitions)
	}
	return s, nil
}

// maxInlined limits the inlined parameters in bytes. A short document could refer to a long
// parameter any number of times.
const maxInlined = 8 << 20

// inliner replaces references to shared parameters by the parameters.
type inliner struct {
	shared map[string]json.RawMessage
	left   int // remaining bytes; negative if the limit is exceeded
}

func (in *inliner) inline(value any) any {
	switch v := value.(type) {
	case []any:
		for i := range v {
			v[i] = in.inline(v[i])
		}
	case map[string]any:
		ref, _ := v["$ref"].(string)
		if name, ok := strings.CutPrefix(ref, "#/parameters/"); ok && in.shared[name] != nil {
			if in.left -= len(in.shared[name]); in.left < 0 {
				return nil
			}
			return in.shared[name]
		}
		for key := range v {
			v[key] = in.inline(v[key])
		}
	}
	return value
}

// addReferenced adds all definitions that are directly or indirectly referenced by value.
func (s *Swagger) addReferenced(value any, all map[string]json.RawMessage) {
	switch v := value.(type) {
	case []any:
		for i := range v {
			s.addReferenced(v[i], all)
		}
	case map[string]any:
		ref, _ := v["$ref"].(string)
		name, ok := strings.CutPrefix(ref, "#/definitions/")
		if ok && all[name] != nil && s.definitions[name] == nil {
			var schema any
			if json.Unmarshal(all[name], &schema) == nil {
				s.definitions[name] = all[name]
				s.addReferenced(schema, all)
			}
		}
		for key := range v {
			s.addReferenced(v[key], all)
		}
	}
}

// has reports whether another server has the group version of rows. o may be nil.
func (o *RemoteVersions) has(rows []*scheme.Resource) bool {
	return o != nil && o.find(rows[0].Group, rows[0].Version) != nil
}

// send writes entries of another server's document.
func (s *swagger) send(entries map[string]json.RawMessage) error {
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		if err := s.sink.entry(name, asTree(entries[name])); err != nil {
			return err
		}
	}
	return nil
}
