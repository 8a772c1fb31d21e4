// Package crd implements custom resources. A CustomResourceDefinition is an ordinary stored
// object. The server serves the type that it defines in the same way as a built-in type.
//
//	defs := crd.NewDefinitions(st, reg, wr, log)
//	err := defs.Sync(ctx) // adds a row to the registry for each stored and accepted CRD
//	go defs.Run(ctx)      // deletes the objects of deleted CRDs and releases unused schemas
//
// The rules are the same as in k8s.io/apiextensions-apiserver. The names and conditions are
// implemented in pkg/controller/status, the deletion of a CRD in pkg/controller/finalizer, and
// the handling of requests in pkg/registry/customresource. Pruning, defaulting and CEL use its
// packages directly (pkg/apiserver/schema). Package definitions validates a CRD. registry.Writer
// writes custom resources and calls the scheme.CustomStrategy of the row, which custom.go
// implements.
//
// Invariants: the served types depend only on the stored CRDs, so Sync may be called at any time
// and any number of times. The names of a CRD are not accepted if they are used by a built-in
// type or by another CRD. A deleted CRD remains until its objects are deleted.
package crd
