package gc

// This file defines the identity of the collector. It does the work of two controllers of
// kube-controller-manager. Admission (webhooks, policies) and the audit log therefore see the same
// requests from the same service accounts. Events expire without a request, because kube-apiserver
// expires them with a lease in etcd.
//
// A webhook that rejects such a write delays it. The object is examined again after a second, then
// two, up to a minute (see postpone and the emptier's refresh). The conditions of a namespace
// report the error.

import (
	"apilet/internal/request"
)

// Service accounts of the collector's writes.
const (
	garbageCollector    = request.ServiceAccountPrefix + "kube-system:generic-garbage-collector"
	namespaceController = request.ServiceAccountPrefix + "kube-system:namespace-controller"
)
