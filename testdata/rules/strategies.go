// Package rules validates objects as kube-apiserver's registry does: by the strategies of Kubernetes, with
// their declarative rules. Its test compares apilet's validation (internal/kinds/validation) with it. It
// has the types whose strategies are small packages.
package rules

import (
	"context"
	"reflect"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
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

	"apilet/internal/kinds/internalversion"
)

// A strategy validates new objects, updates, and updates of the status. status may be nil.
type strategy struct {
	object rest.RESTCreateUpdateStrategy
	status rest.RESTUpdateStrategy
}

// strategies has the strategies by internal type.
var strategies = map[reflect.Type]strategy{
	reflect.TypeFor[*core.LimitRange]():                          {limitrange.Strategy, nil},
	reflect.TypeFor[*core.PodTemplate]():                         {podtemplate.Strategy, nil},
	reflect.TypeFor[*core.ResourceQuota]():                       {resourcequota.Strategy, resourcequota.StatusStrategy},
	reflect.TypeFor[*apps.ControllerRevision]():                  {controllerrevision.Strategy, nil},
	reflect.TypeFor[*apps.DaemonSet]():                           {daemonset.Strategy, daemonset.StatusStrategy},
	reflect.TypeFor[*apps.Deployment]():                          {deployment.Strategy, deployment.StatusStrategy},
	reflect.TypeFor[*apps.StatefulSet]():                         {statefulset.Strategy, statefulset.StatusStrategy},
	reflect.TypeFor[*autoscaling.HorizontalPodAutoscaler]():      {horizontalpodautoscaler.Strategy, horizontalpodautoscaler.StatusStrategy},
	reflect.TypeFor[*certificates.ClusterTrustBundle]():          {clustertrustbundle.Strategy, nil},
	reflect.TypeFor[*coordination.Lease]():                       {lease.Strategy, nil},
	reflect.TypeFor[*flowcontrol.FlowSchema]():                   {flowschema.Strategy, flowschema.StatusStrategy},
	reflect.TypeFor[*flowcontrol.PriorityLevelConfiguration]():   {prioritylevelconfiguration.Strategy, prioritylevelconfiguration.StatusStrategy},
	reflect.TypeFor[*networking.Ingress]():                       {ingress.Strategy, ingress.StatusStrategy},
	reflect.TypeFor[*networking.IngressClass]():                  {ingressclass.Strategy, nil},
	reflect.TypeFor[*networking.IPAddress]():                     {ipaddress.Strategy, nil},
	reflect.TypeFor[*networking.NetworkPolicy]():                 {networkpolicy.Strategy, nil},
	reflect.TypeFor[*networking.ServiceCIDR]():                   {servicecidr.Strategy, servicecidr.StatusStrategy},
	reflect.TypeFor[*node.RuntimeClass]():                        {runtimeclass.Strategy, nil},
	reflect.TypeFor[*policy.PodDisruptionBudget]():               {poddisruptionbudget.Strategy, poddisruptionbudget.StatusStrategy},
	reflect.TypeFor[*rbac.ClusterRole]():                         {clusterrole.Strategy, nil},
	reflect.TypeFor[*rbac.ClusterRoleBinding]():                  {clusterrolebinding.Strategy, nil},
	reflect.TypeFor[*rbac.Role]():                                {role.Strategy, nil},
	reflect.TypeFor[*rbac.RoleBinding]():                         {rolebinding.Strategy, nil},
	reflect.TypeFor[*resource.DeviceClass]():                     {deviceclass.Strategy, nil},
	reflect.TypeFor[*resource.DeviceTaintRule]():                 {devicetaintrule.Strategy, devicetaintrule.StatusStrategy},
	reflect.TypeFor[*scheduling.PriorityClass]():                 {priorityclass.Strategy, nil},
	reflect.TypeFor[*storage.CSIDriver]():                        {csidriver.Strategy, nil},
	reflect.TypeFor[*storage.CSINode]():                          {csinode.Strategy, csinode.StatusStrategy},
	reflect.TypeFor[*storage.CSIStorageCapacity]():               {csistoragecapacity.Strategy, nil},
	reflect.TypeFor[*storage.StorageClass]():                     {storageclass.Strategy, nil},
	reflect.TypeFor[*storage.VolumeAttachment]():                 {volumeattachment.Strategy, volumeattachment.StatusStrategy},
	reflect.TypeFor[*storage.VolumeAttributesClass]():            {volumeattributesclass.Strategy, nil},
	reflect.TypeFor[*storagemigration.StorageVersionMigration](): {migrationstrategy.Strategy, migrationstrategy.StatusStrategy},
}

// strategyOf returns the strategy of an object's type, and the object in its internal version.
func strategyOf(obj runtime.Object) (strategy, runtime.Object) {
	internal := internalversion.From(obj)
	return strategies[reflect.TypeOf(internal)], internal
}

// ValidateCreate returns the errors of a new object in a request of version gv.
func ValidateCreate(ctx context.Context, gv schema.GroupVersion, obj runtime.Object) field.ErrorList {
	s, internal := strategyOf(obj)
	return rest.ValidateCreate(withRequest(ctx, gv, ""), internal, s.object)
}

// ValidateUpdate returns the errors of an object that replaces old. sub is "" or "status".
func ValidateUpdate(ctx context.Context, gv schema.GroupVersion, sub string, obj, old runtime.Object) field.ErrorList {
	s, internal := strategyOf(obj)
	var by rest.RESTUpdateStrategy = s.object
	if sub == "status" {
		by = s.status
	}
	return rest.ValidateUpdate(withRequest(ctx, gv, sub), internal, internalversion.From(old), by)
}

// withRequest returns a context with the request information that strategies read. Its logger drops
// the differences between declarative and handwritten validation.
func withRequest(ctx context.Context, gv schema.GroupVersion, sub string) context.Context {
	info := &request.RequestInfo{IsResourceRequest: true, APIGroup: gv.Group, APIVersion: gv.Version, Subresource: sub}
	return logr.NewContext(request.WithRequestInfo(ctx, info), logr.Discard())
}
