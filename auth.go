package main

import (
	"context"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// requestInfo is what a request asks for, as Kubernetes' authorizers, flow control and audit see it.
type requestInfo struct {
	resourceRequest bool
	verb            string // get list watch create update patch delete deletecollection; else the lower-case HTTP method
	apiPrefix       string // api or apis, "" for non-resource requests
	group, version  string
	namespace       string
	resource        string
	subresource     string
	name            string
	path            string
}

// user is who asks.
type user struct {
	name, uid string
	groups    []string
	extra     map[string][]string
}

// request is the one record of a request, made by the outermost middleware and carried in the context. Log line, metrics and
// audit event are written from it at the end.
type request struct {
	id           string // Audit-Id
	received     time.Time
	info         requestInfo
	user         user  // who acts (after impersonation)
	impersonator *user // who really asks, when that is somebody else
	flowSchema   string
	priority     string
	annotations  map[string]string // audit annotations
}

type requestKey struct{}

// requestFrom returns the record of the request that ctx belongs to; never nil behind the outermost middleware.
func requestFrom(ctx context.Context) *request {
	rec, _ := ctx.Value(requestKey{}).(*request)
	return rec
}

// parseRequest reads requestInfo off method and URL; it never fails: what is no resource path is a non-resource request.
func parseRequest(r *http.Request) requestInfo { panic("skeleton") }

// authConfig are the flags of identity.
type authConfig struct {
	tokenFile, clientCAFile string
	anonymous               bool
	insecure                bool // the plain loopback port: everyone is system:unsecured
}

type authenticator struct{}

func newAuthenticator(cfg authConfig) (*authenticator, error) { panic("skeleton") }

// authenticate fills request.user or answers 401; impersonate follows the Impersonate-* headers or answers 403 or 400.
func (a *authenticator) authenticate(next http.Handler) http.Handler { panic("skeleton") }
func (a *authenticator) impersonate(next http.Handler) http.Handler  { panic("skeleton") }

// authorize returns nil or the 403 Status error for what the request record says.
func (a *authenticator) authorize(rec *request) error { panic("skeleton") }

// review fills in the status of a TokenReview, SelfSubjectReview, SubjectAccessReview, SelfSubjectAccessReview,
// SelfSubjectRulesReview or LocalSubjectAccessReview.
func (a *authenticator) review(ctx context.Context, obj runtime.Object) error { panic("skeleton") }
