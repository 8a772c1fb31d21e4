package metrics

// This file defines the labels of a request. Each label needs a bounded set of values, because
// clients must not be able to create series.

import (
	"net/http"
	"strings"

	"apilet/internal/request"
)

// Labels selects the series of a request. Resources are named only if they are served. For a
// non-resource request, Subresource is the route, such as "/livez", and Component is empty.
type Labels struct {
	Verb                                  string // from VerbLabel
	Group, Version, Resource, Subresource string
	Scope                                 string // from ScopeLabel
	Component                             string // "apiserver"
	DryRun                                string // "", "All" or "invalid"
}

// VerbLabel returns the verb for the metrics. Usually that is the HTTP method in upper case. It is
// LIST or WATCH for these reads, APPLY for a server-side apply, and CONNECT for a stream to a pod.
// resourceVerb is "" for a non-resource request.
func VerbLabel(method, resourceVerb, subresource, contentType string) string {
	switch {
	case resourceVerb != "" && request.IsConnect(subresource):
		return "CONNECT"
	case resourceVerb == "watch":
		return "WATCH"
	case resourceVerb == "list":
		return "LIST"
	case method == http.MethodHead:
		return http.MethodGet
	case method == http.MethodPatch && contentType == "application/apply-patch+yaml":
		return "APPLY"
	}
	switch method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodConnect:
		return method
	}
	return otherLabel // lower case, as in kube-apiserver
}

// ScopeLabel returns "resource", "namespace" or "cluster", or "" for a non-resource request.
func ScopeLabel(resourceVerb, namespace, name string) string {
	switch {
	case resourceVerb == "":
		return ""
	case name != "" || resourceVerb == "create":
		return "resource"
	case namespace != "":
		return "namespace"
	}
	return "cluster"
}

// DryRunLabel returns the label for the values of the dryRun parameter.
func DryRunLabel(values []string) string {
	for _, v := range values {
		if v != "All" {
			return "invalid"
		}
	}
	if len(values) == 0 {
		return ""
	}
	return "All"
}

// RouteLabel returns the route of a non-resource request, or "" if the path is unknown.
func RouteLabel(path string) string {
	switch first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/"); first {
	case "api", "apis", "healthz", "livez", "readyz", "metrics", "openapi", "version", "debug":
		return "/" + first
	}
	return ""
}
