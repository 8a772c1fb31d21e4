// Package audit writes who did what: one line of JSON for each request, as Kubernetes' audit log has it (audit.k8s.io/v1, level Metadata:
// who, what, when and how it ended, but no object). What reads kube-apiserver's audit log reads this one:
//
//	jq 'select(.annotations["k8s.io/deprecated"]=="true") | .userAgent' audit.log
//
//	log, err := audit.Open(audit.Config{Path: "audit.log"}, audit.Hooks{Written: count, Dropped: countAt, Failing: tell})
//	log.Begun(r, rec, 200)      // a watch, when its response begins
//	log.Done(r, rec, 200, nil)  // any request, when it is over; the last argument is what it panicked with
//
// Fields, their order and the stages are those of k8s.io/apiserver/pkg/apis/audit/v1 and its audit middleware
// (pkg/endpoints/filters/audit.go). From a request it takes the record that package request keeps.
//
// Invariants: a request that was answered is in the file; lines of two requests never mix; nothing secret is written (no headers, no
// bodies, no tokens that came in the address); a full disk costs lines, counted and told, but neither requests nor more than
// maxPendingAudit of memory.
package audit
