package discovery

// This file describes the roots above the group versions, which list the available groups and
// versions.
//
//	version        /version/
//	api, apis      /api/, /apis/
//	apis/GROUP     /apis/GROUP/ for built-in groups
//
// There is one document for each root. The path of a group version itself is in the document of the
// group version.

import (
	"encoding/json"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"

	"apilet/internal/scheme"
)

// root is a path that supports only GET and returns the same data to all users.
type root struct {
	path          string // with leading and trailing slash
	tag, id, text string
	answer        reflect.Type
	formats       []string
	document      string // the name in the index
}

var everyFormat = []string{"application/json", "application/vnd.kubernetes.protobuf", "application/yaml"}

// roots returns the roots of a catalog.
func roots(c *scheme.Catalog) []root {
	list := []root{
		{path: "/version/", tag: "version", id: "getCodeVersion", text: "get the version information for this server",
			answer: reflect.TypeFor[version.Info](), formats: everyFormat[:1]},
		{path: "/api/", tag: "core", id: "getCoreAPIVersions", text: "get available API versions", answer: reflect.TypeFor[metav1.APIVersions](), formats: everyFormat},
		{path: "/apis/", tag: "apis", id: "getAPIVersions", text: "get available API versions", answer: reflect.TypeFor[metav1.APIGroupList](), formats: everyFormat},
	}
	known := map[string]bool{"": true}
	for _, rows := range c.GroupVersions() {
		group := rows[0].Group
		if known[group] || rows[0].GoType == nil {
			continue
		}
		known[group] = true
		list = append(list, root{path: "/apis/" + group + "/", tag: lowerTitle(group), id: "get" + groupTitle(group) + "APIGroup", text: "get information of a group",
			answer: reflect.TypeFor[metav1.APIGroup](), formats: everyFormat})
	}
	for i := range list {
		list[i].document = strings.Trim(list[i].path, "/")
	}
	return list
}

// lowerTitle returns the name of a group in tags: rbacAuthorization.
func lowerTitle(group string) string {
	title := groupTitle(group)
	return strings.ToLower(title[:1]) + title[1:]
}

// listing returns the root of a group version, which lists its resources.
func listing(res *scheme.Resource) root {
	return root{path: groupVersionPath(res) + "/", tag: lowerTitle(res.Group) + "_" + res.Version, id: "get" + groupTitle(res.Group) + titleCase(res.Version) + "APIResources",
		text: "get available resources", answer: reflect.TypeFor[metav1.APIResourceList](), formats: everyFormat}
}

// addRoot adds the GET operation of a root.
func (d *oaDocument) addRoot(r root) {
	content := map[string]oaMedia{}
	for _, format := range r.formats {
		content[format] = oaMedia{d.reference(r.answer)}
	}
	d.paths[r.path] = map[string]any{"get": map[string]any{"tags": []string{r.tag}, "description": r.text, "operationId": r.id,
		"responses": map[string]oaBody{"200": {Description: "OK", Content: content}, "401": {Description: "Unauthorized"}}}}
}

// rootDocument generates the document of a root.
func rootDocument(r root) ([]byte, error) {
	d := newOADocument()
	d.addRoot(r)
	return json.Marshal(d.whole())
}

func rootAt(c *scheme.Catalog, path string) (root, bool) {
	for _, r := range roots(c) {
		if r.document == path {
			return r, true
		}
	}
	return root{}, false
}
