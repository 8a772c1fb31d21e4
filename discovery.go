package main

import "net/http"

// serveDiscovery answers /api, /apis, /apis/{group}, /api/v1 and /apis/{group}/{version}, legacy or aggregated by Accept.
func serveDiscovery(reg *registry, w http.ResponseWriter, r *http.Request) { panic("skeleton") }

// serveOpenAPI answers /openapi/v3 and /openapi/v3/{api/v1,apis/group/version}.
func serveOpenAPI(reg *registry, w http.ResponseWriter, r *http.Request) { panic("skeleton") }
