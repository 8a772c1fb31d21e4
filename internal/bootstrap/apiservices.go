package bootstrap

// This file maintains the APIServices of apiregistration.k8s.io, the objects in which Kubernetes
// lists the served group versions:
//
//	NAME                 SERVICE       AVAILABLE
//	v1.                  Local         True                     the core group
//	v1.apps              Local         True
//	v1.example.com       Local         True                     as long as a definition serves it
//	v1beta1.metrics.k8s  infra/proxy   True                     served by another server
//
// In kube-apiserver these objects determine the routes. Here only APIServices with a Service do
// (package aggregation), and the others are informational. They are stored like other objects. The
// label kube-aggregator.kubernetes.io/automanaged is set if the object is maintained by the server.
// It is "onstart" for built-in versions, which are checked at each start, and "true" for versions
// from definitions, which are checked all the time. If the label is not set, the object is not
// changed. If a version has been removed from kube-apiserver but is still served here
// (batch/v1beta1), it has no APIService, because it would be deleted by a kube-apiserver on the
// same etcd at each start.

import (
	"context"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"apilet/internal/registry"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	automanaged      = "kube-aggregator.kubernetes.io/automanaged"
	onstart, managed = "onstart", "true"

	// registrationPause is the minimum time between two rounds, because a chart may create dozens
	// of definitions at the same time.
	registrationPause = 100 * time.Millisecond
)

// groupPriorities contains kube-apiserver's groupPriorityMinimum of the built-in groups.
var groupPriorities = map[string]int32{
	"": 18000, "apps": 17800, "events.k8s.io": 17750, "authentication.k8s.io": 17700, "authorization.k8s.io": 17600, "autoscaling": 17500,
	"batch": 17400, "certificates.k8s.io": 17300, "networking.k8s.io": 17200, "policy": 17100, "rbac.authorization.k8s.io": 17000,
	"storage.k8s.io": 16800, "admissionregistration.k8s.io": 16700, "apiextensions.k8s.io": 16700, "scheduling.k8s.io": 16600,
	"coordination.k8s.io": 16500, "node.k8s.io": 16300, "discovery.k8s.io": 16200, "resource.k8s.io": 16200, "flowcontrol.apiserver.k8s.io": 16100,
	"storagemigration.k8s.io": 15800,
}

// versionPriorities contains the priorities of built-in versions that differ from 15.
var versionPriorities = map[string]int32{
	"/v1": 1, "autoscaling/v2": 30, "resource.k8s.io/v1": 21, "flowcontrol.apiserver.k8s.io/v1": 21,
}

// ---- Reconciliation ----

// An APIServiceReconciler maintains the stored APIServices of the served group versions.
type APIServiceReconciler struct {
	reconciler
	reg *scheme.Registry
}

// NewAPIServiceReconciler returns a reconciler. The caller must call Reconcile once at the start,
// and Run afterwards.
func NewAPIServiceReconciler(st *store.Store, reg *scheme.Registry, wr *registry.Writer) *APIServiceReconciler {
	return &APIServiceReconciler{newReconciler(st, reg, wr, apiregistrationv1.GroupName, "apiservices"), reg}
}

// Run reconciles the APIServices until ctx ends, each time that a version is added or removed, or
// an APIService is written. It calls report with the result of each round.
func (k *APIServiceReconciler) Run(ctx context.Context, report func(error)) {
	for log := k.follow(); ctx.Err() == nil; {
		changed := k.reg.Current.Load().Replaced
		log.From(k.st.Revision())
		if err := k.Reconcile(ctx, false); ctx.Err() == nil {
			report(err)
		}
		log.Wait(ctx, time.Time{}, changed)
		select {
		case <-ctx.Done():
		case <-time.After(registrationPause):
		}
	}
}

// Reconcile runs one round. Only the round at the start creates and deletes the objects of built-in
// versions. If a user deletes one of these later, it is missing until the next start.
func (k *APIServiceReconciler) Reconcile(ctx context.Context, starting bool) error {
	stored, err := k.load()
	if err != nil {
		return err
	}
	wanted := localAPIServices(k.reg.Current.Load())
	var create, update, remove []scheme.Object
	for _, obj := range stored {
		is := obj.(*apiregistrationv1.APIService)
		want := wanted[is.Name]
		delete(wanted, is.Name)
		kept := is.Labels[automanaged] == managed || is.Labels[automanaged] == onstart && starting
		switch {
		case !kept:
		case want == nil:
			remove = append(remove, is)
		case !equality.Semantic.DeepEqual(is.Spec, want.Spec):
			is.Spec = want.Spec
			update = append(update, is)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if starting || wanted[name].Labels[automanaged] == managed {
			create = append(create, wanted[name])
		}
	}
	return k.write(ctx, create, update, remove)
}

// localAPIServices returns the APIServices of all served group versions by name. It does not return
// the group apiregistration.k8s.io, or versions that have been removed from kube-apiserver.
func localAPIServices(c *scheme.Catalog) map[string]*apiregistrationv1.APIService {
	wanted := map[string]*apiregistrationv1.APIService{}
	for _, rows := range c.GroupVersions() {
		group, version := rows[0].Group, rows[0].Version
		gone := !slices.ContainsFunc(rows, func(res *scheme.Resource) bool { return !res.Deprecation.IsRemoved() })
		if group == apiregistrationv1.GroupName || gone {
			continue
		}
		service := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: version + "." + group, Labels: map[string]string{automanaged: managed}},
			Spec: apiregistrationv1.APIServiceSpec{Group: group, Version: version, GroupPriorityMinimum: 1000, VersionPriority: 100}}
		if slices.ContainsFunc(rows, func(res *scheme.Resource) bool { return res.GoType != nil }) {
			service.Labels[automanaged] = onstart
			service.Spec.GroupPriorityMinimum, service.Spec.VersionPriority = groupPriorities[group], 15
			if priority, ok := versionPriorities[group+"/"+version]; ok {
				service.Spec.VersionPriority = priority
			}
		}
		wanted[service.Name] = service
	}
	return wanted
}
