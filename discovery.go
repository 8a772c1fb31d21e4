package main

import "net/http"

// Discovery answers /api, /apis, /apis/{group}, /api/v1 and /apis/{group}/{version}, legacy or aggregated by Accept.
func (reg *registry) serveDiscovery(w http.ResponseWriter, r *http.Request) { panic("skeleton") }

// OpenAPI answers /openapi/v3 and /openapi/v3/{api/v1,apis/group/version}.
func (reg *registry) serveOpenAPI(w http.ResponseWriter, r *http.Request) { panic("skeleton") }
