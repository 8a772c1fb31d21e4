// Package auth answers who asks, as whom, and whether they may:
//
//	a, err := auth.New(auth.Config{TokenFile: "tokens.csv", Anonymous: true, Log: log})
//	chain := a.Authenticate(a.Impersonate(next)) // fill request.From(ctx).User, or answer 401 or 403
//	err = a.Authorize(request.From(ctx))         // nil, or the 403 Status
//	allowed, reason := a.Decide(user, info)      // the same question about somebody else, for reviews and webhooks' conditions
//
// Four packages do the work: auth/certs reads and keeps certificates, auth/serviceaccount checks tokens, auth/rbac decides by roles, auth/node
// by what the pods of a node refer to. What is asked is request.Info, who asks is request.User. The rules come from k8s.io/apiserver/pkg/authentication and pkg/authorization (order
// of authenticators, a good token is needed once one is shown), pkg/endpoints/filters (impersonation, with KEP-5284's constrained kind),
// and k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac.
//
// Invariants: Decide is the one place where a permission is given; what nobody allows is forbidden; credentials and Impersonate-* headers
// are gone from a request once they are read; until the stored policy is read (SetPolicy), the default
// roles are in force.
package auth
