// Package bootstrap brings into the store what every cluster has before anybody has made it, and keeps four things in step with it: the
// authorizer with roles, flow control with its configuration, namespaces with their first objects, APIServices with what is served.
//
//	err := bootstrap.Initializer{Writer: wr, Types: reg}.Namespaces(ctx) // default, kube-system, ...: before anything else
//	policy := bootstrap.NewPolicyReconciler(st, reg, wr, authenticator, report)
//	err = policy.Reconcile(ctx)    // at the start; policy.Committed(res, rev) after each write to a role
//	go namespaces.Run(ctx)
//
// In a cluster these are parts of kube-apiserver's own start (pkg/controlplane, its systemnamespaces and kubernetesservice controllers, the
// post-start hooks of rbac and flowcontrol, kube-aggregator's autoregister controller) and two controllers of kube-controller-manager
// (serviceaccounts, rootcacertpublisher). Objects are written as a client would, through registry.Writer.
//
// Invariants: everything is level-triggered: a reconciler compares what is stored with what should be, may be called once too often, and
// writes nothing when nothing is missing; what a user has changed stays, but for what an annotation says is the server's.
package bootstrap
