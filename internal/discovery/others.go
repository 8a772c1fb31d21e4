package discovery

// This file puts what other servers serve (package aggregation) among what this one does: in the list of groups, in a group, in the aggregated
// document, and in the index of OpenAPI v3. What stands below a group version is asked of the server that has it.
//
//	ours     apps: v1                      priorities by the APIServices that are stored
//	others   wardle.example.com: v1beta1   v1alpha1 (Stale: its server is away, so that nothing is known of its types)
//
// Where both have a group version, it is the other's: an administrator has said so. Order is that of k8s.io/kube-aggregator: groups by
// groupPriorityMinimum, then by name; versions by versionPriority, then the most stable and newest first.

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

// An Other is a group version that another server serves.
type Other struct {
	Group, Version string
	Resources      []apidiscoveryv2.APIResourceDiscovery
	Stale          bool   // its server does not answer, or not with what it should
	OpenAPIHash    string // of its document of version 3; "": there is none
	Swagger        *Swagger
}

// Others are all of them at one moment. Nothing of it changes.
type Others struct {
	All        []Other
	Priorities map[metav1.GroupVersion]Priority // of all group versions, ours too

	mu   sync.Mutex // guards made
	made map[scheme.BodyFormat]mergedDocument

	joining sync.Mutex // guards joined
	joined  *joint     // documents of OpenAPI v2; nil: nobody has asked
}

// A Priority is where a group version stands among others: its group's, and its own in that.
type Priority struct{ Group, Version int32 }

// A mergedDocument is the aggregated one, as of a catalog.
type mergedDocument struct {
	of        *scheme.Catalog
	doc, etag []byte
}

// first is APIServices' own group: it is above all that an APIService may say.
const first = 20001

// Has says that another server has some version of a group.
func (o *Others) Has(group string) bool {
	for i := range o.All {
		if o.All[i].Group == group {
			return true
		}
	}
	return false
}

// find is another's group version; nil: it is none.
func (o *Others) find(group, version string) *Other {
	for i := range o.All {
		if o.All[i].Group == group && o.All[i].Version == version {
			return &o.All[i]
		}
	}
	return nil
}

// order is all group versions but those of the core group, by group.
func (o *Others) order(c *scheme.Catalog) [][]*apiregistrationv1.APIService {
	var all []*apiregistrationv1.APIService
	add := func(group, version string) {
		p, ok := o.Priorities[metav1.GroupVersion{Group: group, Version: version}]
		switch {
		case group == apiregistrationv1.GroupName:
			p = Priority{first, 1}
		case !ok: // of a definition of this moment
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

// ServeMerged answers /apis and /apis/{group}.
func ServeMerged(reg *scheme.Registry, o *Others, w http.ResponseWriter, r *http.Request) {
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
			_ = response.WriteObject(w, r, http.StatusOK, &g) // it can be encoded
			return
		}
		list.Groups = append(list.Groups, g)
	}
	_ = response.WriteObject(w, r, http.StatusOK, list) // it can be encoded
}

// document is the aggregated one, which is made once for each state of what both sides have.
func (o *Others) document(c *scheme.Catalog, format scheme.BodyFormat) (doc, etag []byte) {
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

func (o *Others) merge(c *scheme.Catalog) *apidiscoveryv2.APIGroupDiscoveryList {
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

// ServeMergedIndex answers /openapi/v3.
func ServeMergedIndex(reg *scheme.Registry, o *Others, w http.ResponseWriter, r *http.Request) {
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

// A Swagger is what another server's document of version 2 says about a group version: its paths, and the definitions that they refer to.
type Swagger struct {
	ETag               string // of the document that it is from
	paths, definitions map[string]json.RawMessage
}

// NewSwagger takes what is about a group version out of a document. What a path shares with others of its document is put into it.
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
		s.paths[path], _ = json.Marshal(members) // it was JSON
		if err := json.Unmarshal(s.paths[path], &members); err != nil {
			return nil, err
		}
		s.take(members, whole.Definitions)
	}
	return s, nil
}

// maxInlined bounds in bytes what is put in place of references: a short document could refer to a long parameter any number of times.
const maxInlined = 8 << 20

// An inliner puts parameters in place of references to them.
type inliner struct {
	shared map[string]json.RawMessage
	left   int // bytes; below 0: it was too much
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

// take keeps the definitions that a value refers to, and those that these do.
func (s *Swagger) take(value any, all map[string]json.RawMessage) {
	switch v := value.(type) {
	case []any:
		for i := range v {
			s.take(v[i], all)
		}
	case map[string]any:
		ref, _ := v["$ref"].(string)
		name, ok := strings.CutPrefix(ref, "#/definitions/")
		if ok && all[name] != nil && s.definitions[name] == nil {
			var schema any
			if json.Unmarshal(all[name], &schema) == nil {
				s.definitions[name] = all[name]
				s.take(schema, all)
			}
		}
		for key := range v {
			s.take(v[key], all)
		}
	}
}

// has is find for a list of others that may be nil.
func (o *Others) has(rows []*scheme.Resource) bool {
	return o != nil && o.find(rows[0].Group, rows[0].Version) != nil
}

// send writes entries of another's document.
func (s *swagger) send(entries map[string]json.RawMessage) error {
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		if err := s.sink.entry(name, asTree(entries[name])); err != nil {
			return err
		}
	}
	return nil
}
