// Package crd makes types out of data: a CustomResourceDefinition is an object like others, stored under its key; what it describes is
// served like a built-in type, by the same walk.
//
//	defs := crd.NewDefinitions(st, reg, wr, log)
//	err := defs.Sync(ctx) // the registry has a row for each definition that is stored and accepted
//	go defs.Run(ctx)      // empties those that are deleted, lets go of schemas that nobody uses
//
// The rules come from k8s.io/apiextensions-apiserver: names and their conditions from pkg/controller/status, the end of a definition from
// pkg/controller/finalizer, an object's walk from pkg/registry/customresource. Pruning, defaulting and CEL are its packages themselves
// (pkg/apiserver/schema). A definition is validated by package definitions; its objects are written by registry.Writer, which asks the row's
// scheme.CustomStrategy, made in custom.go, where a custom resource goes its own way.
//
// Invariants: what is served follows from what is stored, so Sync may be called at any time and once too often; no definition takes names
// of a built-in type or of another definition; a definition that is deleted goes when its objects have gone.
package crd
