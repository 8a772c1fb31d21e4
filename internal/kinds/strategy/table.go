package strategy

// This file is the table. It contains a row for each resource that needs special rules. If there
// is no row, as for custom resources, no preparation is needed. The names of the fields correspond
// to the methods of rest.RESTCreateStrategy, RESTUpdateStrategy and RESTDeleteStrategy, and to
// Store.ReturnDeletedObject.
//
// Rows can be looked up by resource (strategyFor) or by the Go type of an object (of).

import (
	"context"
	"reflect"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kubernetes/pkg/registry/apps/controllerrevision"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"
	"k8s.io/kubernetes/pkg/registry/autoscaling/horizontalpodautoscaler"
	"k8s.io/kubernetes/pkg/registry/batch/cronjob"
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
	migration "k8s.io/kubernetes/pkg/registry/storagemigration/storagemigration"

	"apilet/internal/scheme"
	"apilet/internal/scheme/internalversion"
)

// strategy contains the rules for a resource. A nil function does nothing.
type strategy struct {
	allowCreateOnUpdate bool     // a PUT to a name that does not exist creates the object
	conditionalUpdate   bool     // an update must name a resourceVersion
	returnsDeleted      bool     // a DELETE responds with the deleted object
	orphansByDefault    bool     // a DELETE without a propagation policy orphans the dependents
	protected           []string // names that every cluster must keep
	protectedError      string   // the error of their deletion

	// goType is the pointer type that the functions expect. It is nil if there are no functions.
	goType       reflect.Type
	imported     *ImportedStrategy // nil if the strategy is not imported
	create       createFunc
	updates      updates
	canonicalize func(obj runtime.Object)
	// rename is called if a generated name has replaced another name.
	rename func(obj runtime.Object, before string)
	// grace returns the grace period in seconds. If grace is set, the object is marked before it is
	// deleted.
	grace       func(obj runtime.Object, options *metav1.DeleteOptions) int64
	terminating func(obj runtime.Object)      // marks a deletion without a grace period
	hasContent  func(obj runtime.Object) bool // reports whether its contents must be deleted first
}

type (
	createFunc func(ctx context.Context, obj runtime.Object)
	updateFunc func(ctx context.Context, obj, old runtime.Object)
	updates    map[string]updateFunc // by subresource; "" is the object itself
)

// strategyFor returns the row of a resource.
func strategyFor(res *scheme.Resource) *strategy {
	if row := table[res.Base]; row != nil {
		return row
	}
	return &common
}

// of returns the row for the type of an object.
func of(obj runtime.Object) *strategy {
	if row := byType[reflect.TypeOf(obj)]; row != nil {
		return row
	}
	return &common
}

// common is used for resources without a row.
var common strategy

// table has the rows by Resource.Base.
var table = map[string]*strategy{
	"//endpoints/":      {allowCreateOnUpdate: true},
	"//events/":         {allowCreateOnUpdate: true},
	"//limitranges/":    imported[*corev1.LimitRange](limitrange.Strategy, nil),
	"//podtemplates/":   imported[*corev1.PodTemplate](podtemplate.Strategy, nil).returning(),
	"//resourcequotas/": imported[*corev1.ResourceQuota](resourcequota.Strategy, resourcequota.StatusStrategy).returning(),
	"//replicationcontrollers/": {orphansByDefault: true, goType: reflect.TypeFor[*corev1.ReplicationController](),
		create: internal(one(createReplicationController)),
		updates: updates{"": internalUpdate(two(updateReplicationController)),
			"status": internalUpdate(two(updateReplicationControllerStatus))}},
	"//namespaces/": {returnsDeleted: true, goType: reflect.TypeFor[*corev1.Namespace](),
		protected: []string{"default", "kube-system", "kube-public"}, protectedError: "this namespace may not be deleted",
		create:       one(createNamespace),
		updates:      updates{"": two(updateNamespace), "status": two(updateNamespaceStatus), "finalize": two(finalizeNamespace)},
		rename:       func(obj runtime.Object, _ string) { LabelNamespace(obj.(*corev1.Namespace)) },
		canonicalize: func(obj runtime.Object) { LabelNamespace(obj.(*corev1.Namespace)) },
		terminating:  func(obj runtime.Object) { terminateNamespace(obj.(*corev1.Namespace)) }, hasContent: namespaceHasContent},
	"//nodes/": {goType: reflect.TypeFor[*corev1.Node](), create: one(createNode),
		updates: updates{"": two(updateNode), "status": two(updateNodeStatus)}},
	"//persistentvolumes/": {returnsDeleted: true, goType: reflect.TypeFor[*corev1.PersistentVolume](),
		create:  internal(one(createVolume)),
		updates: updates{"": internalUpdate(two(updateVolume)), "status": two(updateVolumeStatus)}},
	"//persistentvolumeclaims/": {returnsDeleted: true, goType: reflect.TypeFor[*corev1.PersistentVolumeClaim](),
		create:  internal(one(createClaim)),
		updates: updates{"": updateClaim, "status": internalUpdate(two(updateClaimStatus))}},
	"//pods/": {returnsDeleted: true, goType: reflect.TypeFor[*corev1.Pod](), create: internal(createPod),
		updates: updates{"": internalUpdate(two(updatePod)), "status": internalUpdate(two(updatePodStatus)),
			"ephemeralcontainers": internalUpdate(two(addEphemeralContainers)), "resize": internalUpdate(two(resizePod))},
		grace: podGrace},
	"//serviceaccounts/": {returnsDeleted: true, goType: reflect.TypeFor[*corev1.ServiceAccount](), create: one(cleanSecrets),
		updates: updates{"": func(_ context.Context, obj, _ runtime.Object) { cleanSecrets(obj.(*corev1.ServiceAccount)) }}},
	"//services/": {allowCreateOnUpdate: true, returnsDeleted: true, goType: reflect.TypeFor[*corev1.Service](), create: one(createService),
		updates: updates{"": two(updateService), "status": two(updateServiceStatus)}},

	"/apps/controllerrevisions/": imported[*appsv1.ControllerRevision](controllerrevision.Strategy, nil),
	"/apps/daemonsets/":          imported[*appsv1.DaemonSet](daemonset.Strategy, daemonset.StatusStrategy),
	"/apps/deployments/":         imported[*appsv1.Deployment](deployment.Strategy, deployment.StatusStrategy),
	"/apps/statefulsets/":        imported[*appsv1.StatefulSet](statefulset.Strategy, statefulset.StatusStrategy),
	"/apps/replicasets/": {goType: reflect.TypeFor[*appsv1.ReplicaSet](), create: internal(one(createReplicaSet)),
		updates: updates{"": internalUpdate(two(updateReplicaSet)), "status": internalUpdate(two(updateReplicaSetStatus))}},
	"/autoscaling/horizontalpodautoscalers/": imported[*autoscalingv2.HorizontalPodAutoscaler](
		horizontalpodautoscaler.Strategy, horizontalpodautoscaler.StatusStrategy),
	"/batch/cronjobs/": imported[*batchv1.CronJob](cronjob.Strategy, cronjob.StatusStrategy),
	"/batch/jobs/": {orphansByDefault: true, goType: reflect.TypeFor[*batchv1.Job](), create: internal(one(createJob)),
		updates: updates{"": internalUpdate(two(updateJob)), "status": internalUpdate(two(updateJobStatus))},
		rename:  renameJob, canonicalize: func(obj runtime.Object) { labelJob(obj.(*batchv1.Job)) }},
	"/certificates.k8s.io/certificatesigningrequests/": {goType: reflect.TypeFor[*certificatesv1.CertificateSigningRequest](),
		create:  createSigningRequest,
		updates: updates{"": two(updateSigningRequest), "status": two(updateSigningRequestStatus), "approval": two(approve)}},
	"/certificates.k8s.io/clustertrustbundles/": imported[*certificatesv1.ClusterTrustBundle](clustertrustbundle.Strategy, nil),
	"/certificates.k8s.io/podcertificaterequests/": {conditionalUpdate: true, goType: reflect.TypeFor[*certificatesv1.PodCertificateRequest](),
		create:  one(createPodCertificateRequest),
		updates: updates{"": two(updatePodCertificateRequest), "status": two(updatePodCertificateRequestStatus)}},
	"/coordination.k8s.io/leases/": imported[*coordinationv1.Lease](lease.Strategy, nil).unless(usesNoElection),
	"/discovery.k8s.io/endpointslices/": {goType: reflect.TypeFor[*discoveryv1.EndpointSlice](), create: one(createEndpointSlice),
		updates: updates{"": two(updateEndpointSlice)}},

	"/flowcontrol.apiserver.k8s.io/flowschemas/": imported[*flowcontrolv1.FlowSchema](flowschema.Strategy, flowschema.StatusStrategy),
	"/flowcontrol.apiserver.k8s.io/prioritylevelconfigurations/": imported[*flowcontrolv1.PriorityLevelConfiguration](
		prioritylevelconfiguration.Strategy, prioritylevelconfiguration.StatusStrategy),
	"/networking.k8s.io/ingressclasses/":  imported[*networkingv1.IngressClass](ingressclass.Strategy, nil),
	"/networking.k8s.io/ingresses/":       imported[*networkingv1.Ingress](ingress.Strategy, ingress.StatusStrategy),
	"/networking.k8s.io/ipaddresses/":     imported[*networkingv1.IPAddress](ipaddress.Strategy, nil),
	"/networking.k8s.io/networkpolicies/": imported[*networkingv1.NetworkPolicy](networkpolicy.Strategy, nil),
	"/networking.k8s.io/servicecidrs/":    imported[*networkingv1.ServiceCIDR](servicecidr.Strategy, servicecidr.StatusStrategy),
	"/node.k8s.io/runtimeclasses/":        imported[*nodev1.RuntimeClass](runtimeclass.Strategy, nil),
	"/policy/poddisruptionbudgets/":       imported[*policyv1.PodDisruptionBudget](poddisruptionbudget.Strategy, poddisruptionbudget.StatusStrategy),
	PriorityClasses: imported[*schedulingv1.PriorityClass](priorityclass.Strategy, nil).
		keeping("this is a system priority class and cannot be deleted", SystemNodeCritical, SystemClusterCritical),

	"/rbac.authorization.k8s.io/clusterrolebindings/": imported[*rbacv1.ClusterRoleBinding](clusterrolebinding.Strategy, nil),
	"/rbac.authorization.k8s.io/clusterroles/":        imported[*rbacv1.ClusterRole](clusterrole.Strategy, nil),
	"/rbac.authorization.k8s.io/rolebindings/":        imported[*rbacv1.RoleBinding](rolebinding.Strategy, nil),
	"/rbac.authorization.k8s.io/roles/":               imported[*rbacv1.Role](role.Strategy, nil),

	"/resource.k8s.io/deviceclasses/":    imported[*resourcev1.DeviceClass](deviceclass.Strategy, nil).returning(),
	"/resource.k8s.io/devicetaintrules/": imported[*resourcev1.DeviceTaintRule](devicetaintrule.Strategy, devicetaintrule.StatusStrategy),
	"/resource.k8s.io/resourceclaims/": {returnsDeleted: true, goType: reflect.TypeFor[*resourcev1.ResourceClaim](),
		create:  internal(one(createResourceClaim)),
		updates: updates{"": internalUpdate(two(updateResourceClaim)), "status": internalUpdate(two(updateResourceClaimStatus))}},
	"/resource.k8s.io/resourceclaimtemplates/": {returnsDeleted: true, goType: reflect.TypeFor[*resourcev1.ResourceClaimTemplate](),
		create: internal(one(createResourceClaimTemplate)), updates: updates{"": internalUpdate(two(updateResourceClaimTemplate))}},
	"/resource.k8s.io/resourceslices/": {returnsDeleted: true, goType: reflect.TypeFor[*resourcev1.ResourceSlice](),
		create: internal(one(createResourceSlice)), updates: updates{"": internalUpdate(two(updateResourceSlice))}},

	"/storage.k8s.io/csidrivers/":              imported[*storagev1.CSIDriver](csidriver.Strategy, nil).returning(),
	"/storage.k8s.io/csinodes/":                imported[*storagev1.CSINode](csinode.Strategy, csinode.StatusStrategy).returning(),
	"/storage.k8s.io/csistoragecapacities/":    imported[*storagev1.CSIStorageCapacity](csistoragecapacity.Strategy, nil),
	"/storage.k8s.io/storageclasses/":          imported[*storagev1.StorageClass](storageclass.Strategy, nil).returning(),
	"/storage.k8s.io/volumeattachments/":       imported[*storagev1.VolumeAttachment](volumeattachment.Strategy, volumeattachment.StatusStrategy).returning(),
	"/storage.k8s.io/volumeattributesclasses/": imported[*storagev1.VolumeAttributesClass](volumeattributesclass.Strategy, nil).returning(),

	"/storagemigration.k8s.io/storageversionmigrations/": imported[*storagemigrationv1.StorageVersionMigration](migration.Strategy, migration.StatusStrategy),

	"/admissionregistration.k8s.io/mutatingadmissionpolicies/":         counted[*admissionv1.MutatingAdmissionPolicy](),
	"/admissionregistration.k8s.io/mutatingadmissionpolicybindings/":   counted[*admissionv1.MutatingAdmissionPolicyBinding](),
	"/admissionregistration.k8s.io/mutatingwebhookconfigurations/":     counted[*admissionv1.MutatingWebhookConfiguration]().updating(two(countMutatingHooks)),
	"/admissionregistration.k8s.io/validatingadmissionpolicybindings/": counted[*admissionv1.ValidatingAdmissionPolicyBinding](),
	"/admissionregistration.k8s.io/validatingwebhookconfigurations/":   counted[*admissionv1.ValidatingWebhookConfiguration]().updating(two(countValidatingHooks)),
	"/admissionregistration.k8s.io/validatingadmissionpolicies/": {conditionalUpdate: true, goType: reflect.TypeFor[*admissionv1.ValidatingAdmissionPolicy](),
		create: one(createPolicy), updates: updates{"": two(updatePolicy), "status": two(updatePolicyStatus)}},
	"/apiextensions.k8s.io/customresourcedefinitions/": {conditionalUpdate: true},
	"/apiregistration.k8s.io/apiservices/": {conditionalUpdate: true, goType: reflect.TypeFor[*apiregistrationv1.APIService](),
		create: one(createAPIService), updates: updates{"": two(updateAPIService), "status": two(updateAPIServiceStatus)}},
}

// byType contains the rows that have functions, by the Go type used by the functions.
var byType = func() map[reflect.Type]*strategy {
	rows := map[reflect.Type]*strategy{}
	for _, row := range table {
		if row.goType != nil {
			rows[row.goType] = row
		}
	}
	return rows
}()

// counted returns the row of a type of admissionregistration.k8s.io without a status.
func counted[T runtime.Object]() *strategy {
	return &strategy{conditionalUpdate: true, goType: reflect.TypeFor[T](), create: startGeneration, updates: updates{"": incrementGeneration}}
}

// updating replaces the preparation of updates.
func (s *strategy) updating(prepare updateFunc) *strategy {
	s.updates[""] = prepare
	return s
}

// one returns a createFunc that calls prepare.
func one[T runtime.Object](prepare func(T)) createFunc {
	return func(_ context.Context, obj runtime.Object) { prepare(obj.(T)) }
}

// two returns an updateFunc that calls prepare.
func two[T runtime.Object](prepare func(obj, old T)) updateFunc {
	return func(_ context.Context, obj, old runtime.Object) { prepare(obj.(T), old.(T)) }
}

// internal returns a createFunc that calls prepare with the internal form of the object.
func internal(prepare createFunc) createFunc {
	return func(ctx context.Context, obj runtime.Object) {
		form := internalversion.From(obj)
		prepare(ctx, form)
		internalversion.Into(obj, form)
	}
}

// internalUpdate returns an updateFunc that calls prepare with the internal forms of both objects.
func internalUpdate(prepare updateFunc) updateFunc {
	return func(ctx context.Context, obj, old runtime.Object) {
		form := internalversion.From(obj)
		prepare(ctx, form, internalversion.From(old))
		internalversion.Into(obj, form)
	}
}

func enabled(gate featuregate.Feature) bool { return utilfeature.DefaultFeatureGate.Enabled(gate) }

func disabled(gate featuregate.Feature) bool { return !enabled(gate) }

// PriorityClasses is the prefix of the keys of all PriorityClasses.
const PriorityClasses = "/scheduling.k8s.io/priorityclasses/"

// The PriorityClasses that every cluster has.
const (
	SystemNodeCritical    = "system-node-critical"
	SystemClusterCritical = "system-cluster-critical"
)
