// Package validation reports every error of a built-in object, in kube-apiserver's order and words.
//
//	errs := validation.ValidateCreate(gv, obj)
//	errs = validation.ValidateUpdate(gv, "status", obj, old)
//	return apierror.Invalid(kind, name, errs) // the 422 that lists them
//
// A Service with a bad port, for example:
//
//	spec.ports[0].port: Invalid value: 99999: must be between 1 and 65535, inclusive
//
// The rules are Kubernetes' own. They are imported from k8s.io/kubernetes. An object is converted
// to the internal type of its group, which shares its memory, and passed to the strategy for the
// resource (pkg/registry/GROUP/RESOURCE). The packages of some strategies are large, because they
// also contain the storage of the resource. For those resources, functions.go calls the validation
// functions that the strategy would call. Declarative rules are added to both (declarative.go).
// The rules of admissionregistration.k8s.io are the exception (policy.go): Kubernetes' package
// depends on the whole admission machinery.
//
// Objects are defaulted (package defaults) and prepared (package strategy) before they are
// validated. Validation does not modify them, except for SetIPFamilies, which sets the IP families
// of a Service.
package validation
