// Package audit writes one line of JSON for each request, in the format of Kubernetes' audit log
// (audit.k8s.io/v1). At the default level, Metadata, a line contains the user, the action, the time
// and the result, but no objects. Programs for the log of kube-apiserver can read this log:
//
//	jq 'select(.annotations["k8s.io/deprecated"]=="true") | .userAgent' audit.log
//
//	log, err := audit.Open(audit.Config{Path: "audit.log"}, audit.Hooks{Written: count, Dropped: countAt, Failing: tell})
//	log.ResponseStarted(r, rec, 200) // a watch, when its response begins
//	log.Done(r, rec, 200, nil)  // any request, when it has ended; the last argument is the value of a panic
//
// This package uses the fields and stages defined in k8s.io/apiserver/pkg/apis/audit/v1 and its
// audit middleware (pkg/endpoints/filters/audit.go). The events are built from the records of
// package request.
//
// Invariants: In the default mode, an event is written to the file before its request ends. Lines
// of different requests are never mixed. The log does not contain headers or tokens from URLs. It
// only contains bodies if the policy requires them. If the disk is full, lines are lost, counted
// and reported, but no requests fail, and at most maxPendingAudit bytes of memory are used.
package audit
