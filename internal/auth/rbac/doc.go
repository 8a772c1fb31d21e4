// Package rbac decides by roles and bindings, held as an index, of which another is made when one of them changes:
//
//	x := rbac.NewIndex(objects) // Roles, ClusterRoles and their bindings, as they are stored
//	allowed, reason := x.Allows(&rbac.Access{User: "bob", Groups: []string{"dev"}, ResourceRequest: true,
//		Verb: "get", Resource: "pods", Namespace: "shop"})
//	err := x.MayGiveRole(access, role, old) // nobody gives away more than they have
//
// The rules are Kubernetes': plugin/pkg/auth/authorizer/rbac decides, pkg/registry/rbac guards against escalation (MayBind, MayGiveRole),
// component-helpers/auth/rbac reconciles the default roles at the start ([ReconcilePolicy]), and rbac_defaults.txt holds those of
// plugin/pkg/auth/authorizer/rbac/bootstrappolicy. The objects are of package scheme's kind; nothing here reads a store.
//
// Invariants: no rule forbids, so the order of rules and bindings means nothing; an [Index] never changes, and a request that is being
// decided keeps the one it has; a role that cannot be read grants nothing; what a comparison of rules costs is bounded (escalation.go).
package rbac
