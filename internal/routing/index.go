package routing

// This file serves GET /, the list of the server's paths in the format of kube-apiserver. The list
// is derived from the routes, the health checks and the registry, so that it is always complete.
// Access is authorized like any other path; by default only administrators may read it.

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"

	"apilet/internal/scheme"
)

// Index serves the list of the router's paths. extra are the paths behind wildcard routes.
func Index(routes chi.Routes, reg *scheme.Registry, extra ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		// The path of CONNECT is empty, and any 2xx response would open a tunnel.
		if r.Method == http.MethodConnect {
			http.NotFound(w, r)
			return
		}
		paths := append([]string{"/apis/", "/openapi/v3/"}, extra...)
		for _, route := range routes.Routes() {
			if route.Pattern != "/" && !strings.HasSuffix(route.Pattern, "*") {
				paths = append(paths, route.Pattern)
			}
		}
		for _, res := range reg.All() {
			if res.Group == "" {
				paths = append(paths, "/api/"+res.Version)
				continue
			}
			paths = append(paths, "/apis/"+res.Group, "/apis/"+res.Group+"/"+res.Version)
		}
		slices.Sort(paths)
		doc, _ := json.MarshalIndent(map[string]any{"paths": slices.Compact(paths)}, "", "  ")
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(doc) // fails only if the client is gone
	}
}
