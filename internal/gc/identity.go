package gc

// This file says who the collector is. It does the work of two of kube-controller-manager's controllers, so that admission (webhooks,
// policies) and the audit log see its writes as they would see theirs: by the service account of each, as the requests that they send. Old
// Events go as kube-apiserver's own lease in etcd lets them go, which asks nobody.
//
// A webhook that refuses such a write delays it: the object is looked at again after a second, then two, up to a minute (see postpone and
// the emptier's refresh), and a namespace says in its conditions what stands in its way.

import (
	"context"

	"apilet/internal/registry"
	"apilet/internal/request"
)

// The accounts in whose name the collector writes.
const (
	garbageCollector    = request.ServiceAccountPrefix + "kube-system:generic-garbage-collector"
	namespaceController = request.ServiceAccountPrefix + "kube-system:namespace-controller"
)

// begin starts the record of one write by an account. done is to be told how the write ended.
func (gc *Collector) begin(ctx context.Context, account, verb string, t registry.Target) (_ context.Context, done func(error)) {
	if gc.Begin == nil {
		return ctx, func(error) {}
	}
	res := t.Resource
	info := request.Info{ResourceRequest: true, Verb: verb, APIPrefix: "apis", Group: res.Group, Version: res.Version, Namespace: t.Namespace,
		Resource: res.Plural, Subresource: t.Subresource, Name: t.Name}
	if res.Group == "" {
		info.APIPrefix = "api"
	}
	return gc.Begin(ctx, request.User{Name: account}.Completed(""), info)
}
