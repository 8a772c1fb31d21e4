package validation

// This file lists the resources whose strategies are imported from k8s.io/kubernetes/pkg/registry.
// functions.go has the others. A strategy that calls rest.ValidateDeclarativelyWithMigrationChecks is
// not imported: the call compares each error with each other, only to log differences, and an object of
// 3 MB has room for a hundred thousand errors.

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/coordination"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/flowcontrol"
	"k8s.io/kubernetes/pkg/apis/networking"
	"k8s.io/kubernetes/pkg/apis/policy"
	"k8s.io/kubernetes/pkg/apis/rbac"
	"k8s.io/kubernetes/pkg/apis/scheduling"
	"k8s.io/kubernetes/pkg/apis/storage"
	"k8s.io/kubernetes/pkg/registry/apps/controllerrevision"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"
	"k8s.io/kubernetes/pkg/registry/coordination/lease"
	"k8s.io/kubernetes/pkg/registry/core/limitrange"
	"k8s.io/kubernetes/pkg/registry/core/podtemplate"
	"k8s.io/kubernetes/pkg/registry/core/resourcequota"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/flowschema"
	"k8s.io/kubernetes/pkg/registry/networking/ingress"
	"k8s.io/kubernetes/pkg/registry/networking/servicecidr"
	"k8s.io/kubernetes/pkg/registry/policy/poddisruptionbudget"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"
	"k8s.io/kubernetes/pkg/registry/scheduling/priorityclass"
	"k8s.io/kubernetes/pkg/registry/storage/csidriver"
	"k8s.io/kubernetes/pkg/registry/storage/csinode"
	"k8s.io/kubernetes/pkg/registry/storage/csistoragecapacity"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattributesclass"
)

// A strategy is the part of rest.RESTCreateUpdateStrategy that validates.
type strategy interface {
	statusStrategy
	Validate(ctx context.Context, obj runtime.Object) field.ErrorList
}

// A statusStrategy validates updates of /status.
type statusStrategy interface {
	ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList
}

// strategyRules returns the rules of the imported strategies.
func strategyRules() map[reflect.Type]*rules {
	return map[reflect.Type]*rules{
		reflect.TypeFor[*core.LimitRange]():               fromStrategy(limitrange.Strategy, nil),
		reflect.TypeFor[*core.PodTemplate]():              fromStrategy(podtemplate.Strategy, nil),
		reflect.TypeFor[*core.ResourceQuota]():            fromStrategy(resourcequota.Strategy, resourcequota.StatusStrategy),
		reflect.TypeFor[*apps.ControllerRevision]():       fromStrategy(controllerrevision.Strategy, nil),
		reflect.TypeFor[*apps.DaemonSet]():                fromStrategy(daemonset.Strategy, daemonset.StatusStrategy),
		reflect.TypeFor[*apps.Deployment]():               fromStrategy(deployment.Strategy, deployment.StatusStrategy),
		reflect.TypeFor[*apps.StatefulSet]():              fromStrategy(statefulset.Strategy, statefulset.StatusStrategy),
		reflect.TypeFor[*coordination.Lease]():            fromStrategy(lease.Strategy, nil),
		reflect.TypeFor[*flowcontrol.FlowSchema]():        fromStrategy(flowschema.Strategy, flowschema.StatusStrategy),
		reflect.TypeFor[*networking.Ingress]():            fromStrategy(ingress.Strategy, ingress.StatusStrategy),
		reflect.TypeFor[*networking.ServiceCIDR]():        fromStrategy(servicecidr.Strategy, servicecidr.StatusStrategy),
		reflect.TypeFor[*policy.PodDisruptionBudget]():    fromStrategy(poddisruptionbudget.Strategy, poddisruptionbudget.StatusStrategy),
		reflect.TypeFor[*rbac.ClusterRoleBinding]():       fromStrategy(clusterrolebinding.Strategy, nil),
		reflect.TypeFor[*scheduling.PriorityClass]():      fromStrategy(priorityclass.Strategy, nil),
		reflect.TypeFor[*storage.CSIDriver]():             fromStrategy(csidriver.Strategy, nil),
		reflect.TypeFor[*storage.CSINode]():               fromStrategy(csinode.Strategy, nil),
		reflect.TypeFor[*storage.CSIStorageCapacity]():    fromStrategy(csistoragecapacity.Strategy, nil),
		reflect.TypeFor[*storage.VolumeAttributesClass](): fromStrategy(volumeattributesclass.Strategy, nil),
	}
}

// fromStrategy returns the rules of a strategy. status is nil for types without a status subresource.
func fromStrategy(s strategy, status statusStrategy) *rules {
	r := &rules{create: s.Validate, updates: map[string]updateFunc{"": s.ValidateUpdate}}
	if status != nil {
		r.updates["status"] = status.ValidateUpdate
	}
	return r
}
