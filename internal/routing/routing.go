// Package routing defines which paths and methods the API has. A request is authorized by its path
// before the server checks that the path exists. An ambiguous path (the Namespace b "in" the
// namespace a), or a method with a wider effect than the path suggests (a DELETE of the Secrets of
// all namespaces), must therefore not be served.
//
//	err := routing.CheckRoute(res, &info, r.Method) // nil, or the 404 or 405
//
// The following paths are defined for each type, as in k8s.io/apiserver/pkg/endpoints/installer.go:
//
//	path                                   namespaced                     cluster-scoped
//	RESOURCE                               GET                            GET POST DELETE
//	RESOURCE/NAME[/SUBRESOURCE]            none                           GET PUT PATCH DELETE, or the subresource's
//	namespaces/NS/RESOURCE                 GET POST DELETE                none
//	namespaces/NS/RESOURCE/NAME[/SUB…]     GET PUT PATCH DELETE, or …     none
//	watch/RESOURCE                         GET                            GET
//	watch/RESOURCE/NAME                    none                           GET
//	watch/namespaces/NS/RESOURCE[/NAME]    GET                            none
//
// A method is served only if the type supports its verb. An unknown path is a 404, an unsupported
// method a 405. namespaces/NS is the path of the Namespace object NS. If a type does not support
// get (a review), only the path of its collection exists. Only the proxy subresource may be
// followed by a longer path. Custom resources support HEAD in addition to GET, except for watches.
// All rules are derived from the type's entry in package scheme and from request.Info.
package routing

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"apilet/internal/apierror"
	"apilet/internal/request"
	"apilet/internal/scheme"
)

// CheckRoute returns nil if the path and the method exist, and the 404 or 405 otherwise.
func CheckRoute(res *scheme.Resource, info *request.Info, method string) error {
	switch {
	case !HasPath(res, info):
		return apierror.NoSuchResource()
	// only for a custom resource
	case info.Subresource != "" && res.Subresource(info.Subresource) == nil:
		return apierrors.NewNotFound(res.GroupResource(), info.Name)
	case hasMethod(res, info, method):
		return nil
	case res.GoType == nil && info.Verb == "": // only for a custom resource
		return apierrors.NewMethodNotSupported(res.GroupResource(), info.Verb)
	}
	return apierror.MethodNotAllowed()
}

// RefuseVerbAlone responds to a path that ends in the deprecated verb watch or proxy, with the
// error of kube-apiserver, which fails to parse it.
func RefuseVerbAlone(w http.ResponseWriter, r *http.Request) {
	text := fmt.Sprintf("Internal Server Error: %q: failed to create RequestInfo: unable to determine kind and namespace from url, %v", r.RequestURI, r.RequestURI)
	http.Error(w, textEscaper.Replace(text), http.StatusInternalServerError)
}

// textEscaper escapes text from the request, for clients that interpret it as HTML.
var textEscaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// HasPath reports whether the path is in the first column of the table.
func HasPath(res *scheme.Resource, info *request.Info) bool {
	form, question := info.Form, !res.Allows("get")
	switch {
	case form.InPath && (info.Verb != "watch" || !res.Allows("watch") || info.Subresource != ""):
		return false
	case info.Subresource != "" && res.Subresource(info.Subresource) == nil && res.GoType != nil:
		return false
	case info.Rest != "" && info.Subresource != "proxy", info.Subresource != "" && !form.Named, question && form.Named && info.Subresource == "":
		return false
	case !res.Namespaced:
		return !form.Nested && (info.Namespace == "" || ownsNamespace(info))
	case info.Namespace != "":
		return true
	// A custom resource may be watched by name in all namespaces.
	case res.GoType == nil:
		return info.Verb == "list" || info.Verb == "watch"
	}
	return !question && !form.Named
}

// hasMethod reports whether the path has the method. CheckVerb checks the methods of a subresource.
func hasMethod(res *scheme.Resource, info *request.Info, method string) bool {
	everywhere := res.Namespaced && info.Namespace == ""
	switch {
	case info.Subresource == "proxy":
		return info.Verb != "" || method == http.MethodOptions
	case method == http.MethodHead: // kube-apiserver does not support it for built-in types
		return res.GoType == nil && info.Verb != "watch" && res.Allows(info.Verb)
	case info.Subresource != "":
		return true
	case info.Form.InPath || everywhere:
		return method == http.MethodGet && res.Allows(info.Verb)
	case method == http.MethodPost:
		return !info.Form.Named && res.Allows("create")
	case method == http.MethodPut || method == http.MethodPatch:
		return info.Form.Named && res.Allows(info.Verb)
	}
	return res.Allows(info.Verb)
}

// CheckVerb returns an error if an existing subresource does not support the verb.
func CheckVerb(res *scheme.Resource, info *request.Info) error {
	switch sub := res.Subresource(info.Subresource); {
	case info.Subresource == "proxy" && info.Verb == "": // OPTIONS
		return nil
	case slices.Contains(sub.Verbs, info.Verb):
		return nil
	case res.GoType == nil:
		return apierrors.NewMethodNotSupported(res.GroupResource(), info.Verb)
	}
	return apierror.MethodNotAllowed()
}

// ownsNamespace reports whether the request is for a Namespace object, where Namespace is equal to
// Name.
func ownsNamespace(info *request.Info) bool { return info.Group == "" && info.Resource == "namespaces" }

// AnyMethod passes requests with methods unknown to the router to its handlers. Each handler
// decides about the method itself, after authorization.
func AnyMethod(routes http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		chi.RouteContext(r.Context()).RouteMethod = http.MethodGet
		routes.ServeHTTP(w, r)
	}
}
