// Package auth authenticates requests, impersonates users and authorizes requests:
//
//	a, err := auth.New(auth.Config{TokenFile: "tokens.csv", Anonymous: true, Log: log})
//	chain := a.Authenticate(a.Impersonate(next)) // fill request.From(ctx).User, or answer 401 or 403
//	err = a.Authorize(request.From(ctx))         // nil, or the 403 Status
//	allowed, reason := a.Decide(user, info)      // the same question about somebody else, for reviews and webhooks' conditions
//
// The subpackages do the work. Package certs reads and keeps certificates, serviceaccount verifies
// service account tokens, bootstraptoken verifies bootstrap tokens, and oidc verifies the tokens of
// other issuers. Package rbac decides by roles, node decides by the objects that a node's pods
// refer to, and callout calls webhooks. request.Info describes the request and request.User its
// sender. The rules are the same as in k8s.io/apiserver/pkg/authentication and pkg/authorization
// (order of authenticators, handling of invalid credentials), pkg/endpoints/filters (impersonation,
// with the constrained modes of KEP-5284), and k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac.
//
// Invariants: All permissions are decided in Decide. If no authorizer allows a request, it is
// forbidden. Credentials and Impersonate-* headers are removed from a request once they have been
// read. The default roles are in effect until SetPolicy passes the stored policy.
package auth
