package main

// This file answers GET /: the paths that this server has, as kube-apiserver lists its own. The list is made from the routes, the health
// checks and the registry, so that it cannot forget one. Who may read it is decided like any other path: the default policy lets
// administrators alone.

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"

	"apilet/internal/request"
	"apilet/internal/scheme"
)

// indexPage serves the list of a router's paths.
func indexPage(routes chi.Routes, ready, alive []healthCheck, reg *scheme.Registry) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodConnect { // whose path is empty, and to which any 2xx would open a tunnel
			http.NotFound(w, r)
			return
		}
		paths := routedPaths(routes)
		for page, checks := range map[string][]healthCheck{"/readyz/": ready, "/livez/": alive, "/healthz/": alive} {
			for _, check := range checks {
				paths = append(paths, page+check.name)
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

// routedPaths are those that have a route of their own. One with an asterisk stands for what others add.
func routedPaths(routes chi.Routes) (paths []string) {
	for _, route := range routes.Routes() {
		if route.Pattern != "/" && !strings.HasSuffix(route.Pattern, "*") {
			paths = append(paths, route.Pattern)
		}
	}
	return append(paths, "/apis/", "/openapi/v3/")
}

// maySee tells whether who asks may get another path, too.
func (s *server) maySee(r *http.Request, path string) bool {
	return s.auth.Check(request.From(r.Context()).User, request.Info{Verb: "get", Path: path}) == nil
}
