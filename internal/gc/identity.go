package gc

// This file defines the identity of the collector. It replaces two controllers of
// kube-controller-manager. Admission (webhooks, policies) and the audit log therefore see the same
// requests from the same service accounts. The expiration of Events is not visible as a request,
// because kube-apiserver uses leases in etcd to implement it.
//
// If a webhook rejects such a write, it is retried with a delay that grows from one second to one
// minute (see postpone and the emptier's refresh). The conditions of a namespace report the error.

import (
	"apilet/internal/request"
)

// Service accounts of the collector's writes.
const (
	garbageCollector    = request.ServiceAccountPrefix + "kube-system:generic-garbage-collector"
	namespaceController = request.ServiceAccountPrefix + "kube-system:namespace-controller"
)
