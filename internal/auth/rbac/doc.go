// Package rbac authorizes requests by roles and bindings. An index is built from them, and built
// again if they change:
//
//	x := rbac.NewIndex(objects) // Roles, ClusterRoles and their bindings, as they are stored
//	allowed, reason := x.Allows(&rbac.Access{User: "bob", Groups: []string{"dev"}, ResourceRequest: true,
//		Verb: "get", Resource: "pods", Namespace: "shop"})
//	err := x.MayGrantRole(access, role, old) // nobody gives away more than they have
//
// The rules are those of Kubernetes: plugin/pkg/auth/authorizer/rbac decides, pkg/registry/rbac
// prevents privilege escalation (MayBind, MayGrantRole), and component-helpers/auth/rbac reconciles
// the default roles at the start ([ReconcilePolicy]). rbac_defaults.txt holds the roles of
// plugin/pkg/auth/authorizer/rbac/bootstrappolicy. This package does not read the store.
//
// Invariants: No rule denies, so the order of rules and bindings does not matter. An [Index] is
// immutable, and a request is decided with a single index. If a role cannot be read, it grants
// nothing. The cost of comparing rules is limited (escalation.go).
package rbac
