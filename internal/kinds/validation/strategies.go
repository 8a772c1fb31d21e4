package validation

// This file lists the resources whose strategies are imported from k8s.io/kubernetes/pkg/registry.
// functions.go has the others.

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	"k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/apis/coordination"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/flowcontrol"
	"k8s.io/kubernetes/pkg/apis/networking"
	"k8s.io/kubernetes/pkg/apis/node"
	"k8s.io/kubernetes/pkg/apis/policy"
	"k8s.io/kubernetes/pkg/apis/rbac"
	"k8s.io/kubernetes/pkg/apis/resource"
	"k8s.io/kubernetes/pkg/apis/scheduling"
	"k8s.io/kubernetes/pkg/apis/storage"
	"k8s.io/kubernetes/pkg/apis/storagemigration"
	"k8s.io/kubernetes/pkg/registry/apps/controllerrevision"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"
	"k8s.io/kubernetes/pkg/registry/autoscaling/horizontalpodautoscaler"
	"k8s.io/kubernetes/pkg/registry/certificates/clustertrustbundle"
	"k8s.io/kubernetes/pkg/registry/coordination/lease"
	"k8s.io/kubernetes/pkg/registry/core/limitrange"
	"k8s.io/kubernetes/pkg/registry/core/podtemplate"
	"k8s.io/kubernetes/pkg/registry/core/resourcequota"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/flowschema"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/prioritylevelconfiguration"
	"k8s.io/kubernetes/pkg/registry/networking/ingress"
	"k8s.io/kubernetes/pkg/registry/networking/ingressclass"
	"k8s.io/kubernetes/pkg/registry/networking/ipaddress"
	"k8s.io/kubernetes/pkg/registry/networking/networkpolicy"
	"k8s.io/kubernetes/pkg/registry/networking/servicecidr"
	"k8s.io/kubernetes/pkg/registry/node/runtimeclass"
	"k8s.io/kubernetes/pkg/registry/policy/poddisruptionbudget"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrole"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"
	"k8s.io/kubernetes/pkg/registry/rbac/role"
	"k8s.io/kubernetes/pkg/registry/rbac/rolebinding"
	"k8s.io/kubernetes/pkg/registry/resource/deviceclass"
	"k8s.io/kubernetes/pkg/registry/resource/devicetaintrule"
	"k8s.io/kubernetes/pkg/registry/scheduling/priorityclass"
	"k8s.io/kubernetes/pkg/registry/storage/csidriver"
	"k8s.io/kubernetes/pkg/registry/storage/csinode"
	"k8s.io/kubernetes/pkg/registry/storage/csistoragecapacity"
	"k8s.io/kubernetes/pkg/registry/storage/storageclass"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattachment"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattributesclass"
	migrationstrategy "k8s.io/kubernetes/pkg/registry/storagemigration/storagemigration"
)

// A strategy is the part of rest.RESTCreateUpdateStrategy that validates.
type strategy interface {
	statusStrategy
	rest.DeclarativeValidationStrategy
	Validate(ctx context.Context, obj runtime.Object) field.ErrorList
}

// A statusStrategy validates updates of /status.
type statusStrategy interface {
	ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList
}

// strategyRules returns the rules of the imported strategies.
func strategyRules() map[reflect.Type]*rules {
	return map[reflect.Type]*rules{
		reflect.TypeFor[*core.LimitRange]():                          fromStrategy(limitrange.Strategy, nil),
		reflect.TypeFor[*core.PodTemplate]():                         fromStrategy(podtemplate.Strategy, nil),
		reflect.TypeFor[*core.ResourceQuota]():                       fromStrategy(resourcequota.Strategy, resourcequota.StatusStrategy),
		reflect.TypeFor[*apps.ControllerRevision]():                  fromStrategy(controllerrevision.Strategy, nil),
		reflect.TypeFor[*apps.DaemonSet]():                           fromStrategy(daemonset.Strategy, daemonset.StatusStrategy),
		reflect.TypeFor[*apps.Deployment]():                          fromStrategy(deployment.Strategy, deployment.StatusStrategy),
		reflect.TypeFor[*apps.StatefulSet]():                         fromStrategy(statefulset.Strategy, statefulset.StatusStrategy),
		reflect.TypeFor[*autoscaling.HorizontalPodAutoscaler]():      fromStrategy(horizontalpodautoscaler.Strategy, horizontalpodautoscaler.StatusStrategy),
		reflect.TypeFor[*certificates.ClusterTrustBundle]():          fromStrategy(clustertrustbundle.Strategy, nil),
		reflect.TypeFor[*coordination.Lease]():                       fromStrategy(lease.Strategy, nil),
		reflect.TypeFor[*flowcontrol.FlowSchema]():                   fromStrategy(flowschema.Strategy, flowschema.StatusStrategy),
		reflect.TypeFor[*flowcontrol.PriorityLevelConfiguration]():   fromStrategy(prioritylevelconfiguration.Strategy, prioritylevelconfiguration.StatusStrategy),
		reflect.TypeFor[*networking.Ingress]():                       fromStrategy(ingress.Strategy, ingress.StatusStrategy),
		reflect.TypeFor[*networking.IngressClass]():                  fromStrategy(ingressclass.Strategy, nil),
		reflect.TypeFor[*networking.IPAddress]():                     fromStrategy(ipaddress.Strategy, nil),
		reflect.TypeFor[*networking.NetworkPolicy]():                 fromStrategy(networkpolicy.Strategy, nil),
		reflect.TypeFor[*networking.ServiceCIDR]():                   fromStrategy(servicecidr.Strategy, servicecidr.StatusStrategy),
		reflect.TypeFor[*node.RuntimeClass]():                        fromStrategy(runtimeclass.Strategy, nil),
		reflect.TypeFor[*policy.PodDisruptionBudget]():               fromStrategy(poddisruptionbudget.Strategy, poddisruptionbudget.StatusStrategy),
		reflect.TypeFor[*rbac.ClusterRole]():                         fromStrategy(clusterrole.Strategy, nil),
		reflect.TypeFor[*rbac.ClusterRoleBinding]():                  fromStrategy(clusterrolebinding.Strategy, nil),
		reflect.TypeFor[*rbac.Role]():                                fromStrategy(role.Strategy, nil),
		reflect.TypeFor[*rbac.RoleBinding]():                         fromStrategy(rolebinding.Strategy, nil),
		reflect.TypeFor[*resource.DeviceClass]():                     fromStrategy(deviceclass.Strategy, nil),
		reflect.TypeFor[*resource.DeviceTaintRule]():                 fromStrategy(devicetaintrule.Strategy, devicetaintrule.StatusStrategy),
		reflect.TypeFor[*scheduling.PriorityClass]():                 fromStrategy(priorityclass.Strategy, nil),
		reflect.TypeFor[*storage.CSIDriver]():                        fromStrategy(csidriver.Strategy, nil),
		reflect.TypeFor[*storage.CSINode]():                          fromStrategy(csinode.Strategy, csinode.StatusStrategy),
		reflect.TypeFor[*storage.CSIStorageCapacity]():               fromStrategy(csistoragecapacity.Strategy, nil),
		reflect.TypeFor[*storage.StorageClass]():                     fromStrategy(storageclass.Strategy, nil),
		reflect.TypeFor[*storage.VolumeAttachment]():                 fromStrategy(volumeattachment.Strategy, volumeattachment.StatusStrategy),
		reflect.TypeFor[*storage.VolumeAttributesClass]():            fromStrategy(volumeattributesclass.Strategy, nil),
		reflect.TypeFor[*storagemigration.StorageVersionMigration](): fromStrategy(migrationstrategy.Strategy, migrationstrategy.StatusStrategy),
	}
}

// fromStrategy returns the rules of a strategy. status is nil for types without a status subresource.
func fromStrategy(s strategy, status statusStrategy) *rules {
	r := &rules{create: s.Validate, updates: map[string]updateFunc{"": s.ValidateUpdate}, config: s.DeclarativeValidationConfig}
	if status != nil {
		r.updates["status"] = status.ValidateUpdate
	}
	return r
}
