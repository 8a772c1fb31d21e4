// Package validation refuses: it returns everything that is wrong with an object at once, in kube-apiserver's order and words.
//
//	errs := validation.ValidateCreate(obj)      // nil: all is well
//	errs = validation.ValidateUpdate(obj, old)
//	return apierror.Invalid(kind, name, errs)   // the 422 that names them
//
// A Service with a bad port, for example:
//
//	spec.ports[0].port: Invalid value: 99999: must be between 1 and 65535, inclusive
//
// The rules are those of k8s.io/kubernetes, pkg/apis/GROUP/validation/validation.go: a validateX here is the ValidateX there, without what
// feature gates leave off, and without metadata, which the caller checks (with [NameRule]). rules.go tells how a rule is written and read:
// a struct's rules are a table, in the order in which they are reported. Kinds have their rules in files by what they are about: pods.go,
// volumes.go, placement.go, workloads.go, network.go, policy.go; statuses.go and partial.go are for what subresources write.
//
// Invariants: objects come defaulted (package defaults) and prepared (package strategy), so that a field which a default fills is never
// empty here; nothing is read but the two objects, and none is changed; the cost is linear in the object, and what one answer quotes of
// it is bounded by package apierror; no object panics, however odd.
package validation
