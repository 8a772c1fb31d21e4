// Package bootstrap creates the default objects of a cluster. It also keeps the authorizer in sync
// with roles, flow control in sync with its configuration, and adds default objects to namespaces,
// tokens to Secrets, and APIServices for the served versions.
//
//	err := bootstrap.Initializer{Writer: wr, Types: reg}.Namespaces(ctx) // default, kube-system, ...: before anything else
//	policy := bootstrap.NewPolicyReconciler(st, reg, wr, authenticator, report)
//	err = policy.Reconcile(ctx)    // at the start; policy.OnCommit(res, rev) after each write to a role
//	go namespaces.Run(ctx)
//
// In a cluster this is done by kube-apiserver at its start (pkg/controlplane, its systemnamespaces
// and kubernetesservice controllers, the post-start hooks of rbac and flowcontrol,
// kube-aggregator's autoregister controller) and by three controllers of kube-controller-manager
// (serviceaccounts, rootcacertpublisher, serviceaccount-token). All objects are written by using
// registry.Writer, as for requests.
//
// Invariants: All reconcilers are level-triggered. A reconciler compares the stored objects with
// the desired ones. It may be called more often than necessary. If nothing is missing, it does not
// write anything. Changes made by users are preserved, unless an annotation marks the object as
// maintained by the server.
package bootstrap
