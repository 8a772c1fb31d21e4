// Package fieldmanager implements server-side apply (KEP-555). It maintains
// metadata.managedFields, which records the manager that last set each field. The record is
// updated by every write, and it is also used by apply.
//
//	m := &fieldmanager.Manager{Kind: kind, GoType: reflect.TypeFor[appsv1.Deployment](), Status: true}
//	merged, strictErrs, err := m.Apply(live, body, fieldmanager.Applier{Manager: "deploy"}) // 409 for a conflict
//	err = m.Update(old, next, "kubectl-edit", "")                                           // any other write
//
//	write                        effect on the fields
//	create, update, other patch  the writer becomes the only owner of the changed fields, operation Update
//	apply                        the writer owns the fields of the body, operation Apply; a field that it owned before and
//	                             now omits is removed, unless another manager also owns it; a changed field of another
//	                             manager is a conflict (409), or with force is taken from that manager
//
// For example, "deploy" applies {replicas: 2, image: x}. A controller patches replicas to 5,
// which removes replicas from the entry of deploy. If deploy then applies {replicas: 2, image:
// y}, it receives a 409: conflict with "controller" using apps/v1: .spec.replicas. If it applies
// {image: y} instead, image changes and replicas remains 5.
//
// The rules for merging and comparing are the same as in Kubernetes
// (k8s.io/apimachinery/pkg/util/managedfields, which uses sigs.k8s.io/structured-merge-diff).
// Managers compare the results byte by byte. The library converts objects to maps, and most of
// the time of a write is spent there. It is therefore called only if a fast path cannot prove
// that it computes the same result:
//
//	writes except for applies    track.go: two objects compared once along the schema (compare.go, compareany.go), sets of fields (fieldset.go)
//	an apply that creates the object, or keeps or extends the manager's fields    fastpath.go
//
// [Counters] counts how often the library is called.
//
// Invariants: If a fast path returns a result, it is the same as the result of the library. No
// entry contains a field that the object lacks. The only exception is an apply of an empty or
// null list or map to a Go type that then omits the field, which is recorded as kube-apiserver
// records it. emptied.go has the only correction of the library's results.
package fieldmanager
