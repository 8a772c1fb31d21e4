// Package fieldmanager is server-side apply (KEP-555), and the record that it needs: metadata.managedFields, which says for each field who
// set it last. Every write keeps that record; an apply also reads it.
//
//	m := &fieldmanager.Manager{Kind: kind, GoType: reflect.TypeFor[appsv1.Deployment](), Status: true}
//	merged, strictErrs, err := m.Apply(live, body, fieldmanager.Applier{Manager: "deploy"}) // 409 for a conflict
//	err = m.Update(old, next, "kubectl-edit", "")                                           // any other write
//
//	write                        what happens to the fields
//	create, update, other patch  what changed now belongs to the writer, operation Update, and to nobody else
//	apply                        what the body names belongs to the writer, operation Apply; what the writer named before and does not
//	                             name now is removed, unless another manager has it too; a field that would change while another
//	                             manager has it is a conflict (409), or with force is taken from that manager
//
// One example. "deploy" applies {replicas: 2, image: x}. A controller patches replicas to 5: replicas leaves deploy's entry. deploy applies
// {replicas: 2, image: y}: 409, "conflict with "controller" using apps/v1: .spec.replicas"; applies {image: y}: image changes, replicas
// stays 5.
//
// What merging and comparing mean is Kubernetes' (k8s.io/apimachinery/pkg/util/managedfields on sigs.k8s.io/structured-merge-diff), and
// managers compare the results byte by byte. That general algorithm turns objects into maps and walks them a dozen times, for most of a write's
// time; so it is asked only where a fast path cannot prove that its answer is the same:
//
//	any write but an apply    track.go: two objects compared once along the schema (compare.go, compareany.go), sets of fields (fieldset.go)
//	an apply of the fields that the manager has, or one that makes the object    fastpath.go
//
// [Ways] counts how often it is asked.
//
// Invariants: a fast path answers as the library does or not at all. No entry names a field that the object lacks, except that an apply
// of an empty or null list or map to a Go type, which then omits the field, is recorded as kube-apiserver records it. emptied.go has the
// one correction of the library's results.
package fieldmanager
