package routing

// This file answers GET /: the paths that this server has, as kube-apiserver lists its own. The list is made from the routes, the health
// checks and the registry, so that it cannot forget one. Who may read it is decided like any other path: the default policy lets
// administrators alone.

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"

	"apilet/internal/scheme"
)

// Index serves the list of a router's paths. extra are those that an asterisk among its routes stands for.
func Index(routes chi.Routes, reg *scheme.Registry, extra ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodConnect { // whose path is empty, and to which any 2xx would open a tunnel
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
		_, _ = w.Write(doc) // the client is gone otherwise
	}
}
