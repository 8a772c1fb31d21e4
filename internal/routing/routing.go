// Package routing says which paths and methods the API has. A request is authorized for what its path says before anybody looks whether there
// is such a path, so a path that says two things (the Namespace b "in" the namespace a), and a method that does more than its path says (a
// DELETE of all Secrets of all namespaces), must lead nowhere.
//
//	err := routing.Routed(res, &info, r.Method) // nil, or the 404 or 405
//
// The paths of one type, as kube-apiserver has them (k8s.io/apiserver/pkg/endpoints/installer.go):
//
//	path                                   namespaced                     of the cluster
//	RESOURCE                               GET                            GET POST DELETE
//	RESOURCE/NAME[/SUBRESOURCE]            none                           GET PUT PATCH DELETE, or the subresource's
//	namespaces/NS/RESOURCE                 GET POST DELETE                none
//	namespaces/NS/RESOURCE/NAME[/SUB…]     GET PUT PATCH DELETE, or …     none
//	watch/RESOURCE                         GET                            GET
//	watch/RESOURCE/NAME                    none                           GET
//	watch/namespaces/NS/RESOURCE[/NAME]    GET                            none
//
// where the type has the verb. What has no path is a 404, what has no method there a 405. namespaces/NS is a name: that of a Namespace.
// A type that is a question (a review) has the path of its collection alone. A path goes on behind a subresource only for a proxy.
// A custom resource answers HEAD where it answers GET, without a watch. Everything follows from package scheme's row and request.Info.
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

// Routed returns nil if there is such a path and method; else the 404 or 405.
func Routed(res *scheme.Resource, info *request.Info, method string) error {
	switch {
	case !HasPath(res, info):
		return apierror.NoSuchResource()
	case info.Subresource != "" && res.Subresource(info.Subresource) == nil: // of a custom resource
		return apierrors.NewNotFound(res.GroupResource(), info.Name)
	case hasMethod(res, info, method):
		return nil
	case res.GoType == nil && info.Verb == "": // of a custom resource
		return apierrors.NewMethodNotSupported(res.GroupResource(), info.Verb)
	}
	return apierror.MethodNotAllowed()
}

// RefuseVerbAlone answers a path that ends with the deprecated verb watch or proxy, in the words of kube-apiserver, which cannot parse it.
func RefuseVerbAlone(w http.ResponseWriter, r *http.Request) {
	text := fmt.Sprintf("Internal Server Error: %q: failed to create RequestInfo: unable to determine kind and namespace from url, %v", r.RequestURI, r.RequestURI)
	http.Error(w, unmarked.Replace(text), http.StatusInternalServerError)
}

// unmarked makes text of the request harmless for clients that take it for HTML.
var unmarked = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// HasPath looks the path up in the first column of the table.
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
	case res.GoType == nil: // of one custom resource in all namespaces there is a watch
		return info.Verb == "list" || info.Verb == "watch"
	}
	return !question && !form.Named
}

// hasMethod looks the method up. Those of a subresource are with it.
func hasMethod(res *scheme.Resource, info *request.Info, method string) bool {
	everywhere := res.Namespaced && info.Namespace == ""
	switch {
	case info.Subresource == "proxy":
		return info.Verb != "" || method == http.MethodOptions
	case method == http.MethodHead: // of built-in types kube-apiserver has none
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

// HasVerb refuses what a subresource that there is does not do.
func HasVerb(res *scheme.Resource, info *request.Info) error {
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

// ownsNamespace says that the request is for a Namespace object, which lies in the namespace that it is.
func ownsNamespace(info *request.Info) bool { return info.Group == "" && info.Resource == "namespaces" }

// WhateverMethod hands requests of methods that the router does not know to its handlers: each says itself what it makes of a method,
// after it has been authorized.
func WhateverMethod(routes http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		chi.RouteContext(r.Context()).RouteMethod = http.MethodGet
		routes.ServeHTTP(w, r)
	}
}
