package gc

// This file says who the collector is. It does the work of two of kube-controller-manager's controllers, so that admission (webhooks,
// policies) and the audit log see its writes as they would see theirs: by the service account of each, as the requests that they send. Old
// Events go as kube-apiserver's own lease in etcd lets them go, which asks nobody.
//
// A webhook that refuses such a write delays it: the object is looked at again after a second, then two, up to a minute (see postpone and
// the emptier's refresh), and a namespace says in its conditions what stands in its way.

import (
	"apilet/internal/request"
)

// The accounts in whose name the collector writes.
const (
	garbageCollector    = request.ServiceAccountPrefix + "kube-system:generic-garbage-collector"
	namespaceController = request.ServiceAccountPrefix + "kube-system:namespace-controller"
)
