package strategy

// This file prepares all other types whose strategies are not imported from k8s.io/kubernetes:
// cluster objects, volumes, EndpointSlices, APIServices and the types in
// admissionregistration.k8s.io.

import (
	"context"
	"reflect"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	pvutil "k8s.io/kubernetes/pkg/api/persistentvolume"
	pvcutil "k8s.io/kubernetes/pkg/api/persistentvolumeclaim"
	"k8s.io/kubernetes/pkg/apis/core"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/features"

	"apilet/internal/scheme/internalversion"
)

// Now returns the current time in the precision of the wire format.
func Now() metav1.Time { return metav1.NewTime(time.Now().Truncate(time.Second)) }

// ---- Namespaces, Nodes, ServiceAccounts ----

func createNamespace(ns *corev1.Namespace) {
	ns.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
	if !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
		ns.Spec.Finalizers = append(ns.Spec.Finalizers, corev1.FinalizerKubernetes)
	}
	LabelNamespace(ns)
}

func updateNamespace(ns, old *corev1.Namespace) {
	ns.Spec.Finalizers, ns.Status = old.Spec.Finalizers, old.Status
	LabelNamespace(ns)
}

func updateNamespaceStatus(ns, old *corev1.Namespace) { ns.Spec = old.Spec }

func finalizeNamespace(ns, old *corev1.Namespace) { ns.Status = old.Status }

// LabelNamespace sets the label kubernetes.io/metadata.name.
func LabelNamespace(ns *corev1.Namespace) {
	if ns.Labels == nil {
		ns.Labels = map[string]string{}
	}
	ns.Labels[corev1.LabelMetadataName] = ns.Name
}

func terminateNamespace(ns *corev1.Namespace) { ns.Status.Phase = corev1.NamespaceTerminating }

// namespaceHasContent reports whether a namespace has finalizers. The finalizers are removed once
// the namespace is empty.
func namespaceHasContent(obj runtime.Object) bool {
	return len(obj.(*corev1.Namespace).Spec.Finalizers) > 0
}

// createNode does not reset the status, because kubelets set it when they register.
func createNode(node *corev1.Node) {
	node.Spec.ConfigSource, node.Status.Config = nil, nil
	if !enabled(features.NodeDeclaredFeatures) {
		node.Status.DeclaredFeatures = nil
	}
	if !enabled(features.InPlacePodVerticalScalingSchedulerPreemption) {
		node.Spec.PodPreemptionPolicy = nil
	}
}

func updateNode(node, old *corev1.Node) {
	node.Status = old.Status
	if old.Spec.ConfigSource == nil {
		node.Spec.ConfigSource = nil
	}
	if !enabled(features.InPlacePodVerticalScalingSchedulerPreemption) && old.Spec.PodPreemptionPolicy == nil {
		node.Spec.PodPreemptionPolicy = nil
	}
}

func updateNodeStatus(node, old *corev1.Node) {
	node.Spec = old.Spec
	if old.Status.Config == nil {
		node.Status.Config = nil
	}
	if !enabled(features.KubeletInUserNamespace) && old.Status.NodeInfo.RunningInUserNamespace == nil {
		node.Status.NodeInfo.RunningInUserNamespace = nil
	}
}

// cleanSecrets keeps only the names of a ServiceAccount's Secrets.
func cleanSecrets(account *corev1.ServiceAccount) {
	for i := range account.Secrets {
		account.Secrets[i] = corev1.ObjectReference{Name: account.Secrets[i].Name}
	}
}

// ---- Volumes ----

func createVolume(pv *core.PersistentVolume) {
	now := Now()
	pv.Status = core.PersistentVolumeStatus{Phase: core.VolumePending, LastPhaseTransitionTime: &now}
	pvutil.DropDisabledSpecFields(&pv.Spec, nil)
}

func updateVolume(pv, old *core.PersistentVolume) {
	pv.Status = old.Status
	pvutil.DropDisabledSpecFields(&pv.Spec, &old.Spec)
}

// updateVolumeStatus sets the time of a phase transition unless it is set by the request.
func updateVolumeStatus(pv, old *corev1.PersistentVolume) {
	pv.Spec = old.Spec
	status, before := &pv.Status, &old.Status
	switch stamp := status.LastPhaseTransitionTime; {
	case status.Phase == before.Phase && stamp == nil:
		status.LastPhaseTransitionTime = before.LastPhaseTransitionTime
	case status.Phase != before.Phase && (stamp == nil || stamp.Equal(before.LastPhaseTransitionTime)):
		now := Now()
		status.LastPhaseTransitionTime = &now
	}
}

func createClaim(claim *core.PersistentVolumeClaim) {
	claim.Status = core.PersistentVolumeClaimStatus{Phase: core.ClaimPending}
	pvcutil.DropDisabledFields(&claim.Spec, nil)
	pvcutil.EnforceDataSourceBackwardsCompatibility(&claim.Spec, nil)
	pvcutil.NormalizeDataSources(&claim.Spec)
}

// updateClaim modifies both objects, so that validation succeeds for an old claim without a
// dataSourceRef.
func updateClaim(_ context.Context, obj, old runtime.Object) {
	claim, before := internalversion.From(obj).(*core.PersistentVolumeClaim), internalversion.From(old).(*core.PersistentVolumeClaim)
	claim.Status = before.Status
	pvcutil.DropDisabledFields(&claim.Spec, &before.Spec)
	pvcutil.EnforceDataSourceBackwardsCompatibility(&claim.Spec, &before.Spec)
	pvcutil.NormalizeDataSources(&claim.Spec)
	pvcutil.NormalizeDataSources(&before.Spec)
	internalversion.Into(obj, claim)
	internalversion.Into(old, before)
}

func updateClaimStatus(claim, old *core.PersistentVolumeClaim) {
	claim.Spec = old.Spec
	pvcutil.DropDisabledFieldsFromStatus(claim, old)
}

// ---- EndpointSlices ----

func createEndpointSlice(slice *discoveryv1.EndpointSlice) {
	slice.Generation = 1
	dropTopology(slice, nil)
}

func updateEndpointSlice(slice, old *discoveryv1.EndpointSlice) {
	sameEndpoints := equality.Semantic.DeepEqual(slice.Endpoints, old.Endpoints)
	if !sameEndpoints || slice.AddressType != old.AddressType || !equality.Semantic.DeepEqual(slice.Ports, old.Ports) ||
		!equality.Semantic.DeepEqual(slice.Labels, old.Labels) {
		slice.Generation = old.Generation + 1
	}
	if !sameEndpoints {
		dropTopology(slice, old)
	}
}

// dropTopology drops the deprecated topology, which v1 cannot write. If old has the topology of
// the same node, its name is kept in nodeName. old is nil for a create.
func dropTopology(slice, old *discoveryv1.EndpointSlice) {
	for i := range slice.Endpoints {
		endpoint := &slice.Endpoints[i]
		if endpoint.DeprecatedTopology == nil {
			continue
		}
		node := endpoint.DeprecatedTopology[corev1.LabelHostname]
		onNode := func(e discoveryv1.Endpoint) bool { return e.DeprecatedTopology[corev1.LabelHostname] == node }
		if endpoint.NodeName == nil && node != "" && old != nil && slices.ContainsFunc(old.Endpoints, onNode) &&
			len(corevalidation.ValidateNodeName(node, false)) == 0 {
			endpoint.NodeName = &node
		}
		endpoint.DeprecatedTopology = nil
	}
}

// ---- APIServices ----

func createAPIService(o *apiregistrationv1.APIService) {
	o.Status = apiregistrationv1.APIServiceStatus{}
	setLocalAvailability(o)
}

func updateAPIService(o, old *apiregistrationv1.APIService) {
	o.Status = old.Status
	if !equality.Semantic.DeepEqual(o.Spec.Service, old.Spec.Service) {
		setLocalAvailability(o)
	}
}

func updateAPIServiceStatus(o, old *apiregistrationv1.APIService) {
	o.Spec = old.Spec
	o.Labels, o.Annotations, o.Finalizers, o.OwnerReferences = old.Labels, old.Annotations, old.Finalizers, old.OwnerReferences
}

// setLocalAvailability sets the condition of an APIService that this server serves. The
// availability of other servers is checked later.
func setLocalAvailability(o *apiregistrationv1.APIService) {
	if o.Spec.Service != nil {
		return
	}
	condition := helper.NewLocalAvailableAPIServiceCondition()
	condition.LastTransitionTime = Now()
	helper.SetAPIServiceCondition(o, condition)
}

// ---- admissionregistration.k8s.io ----

// countMutatingHooks increments the generation if the webhooks differ. An empty list differs from
// nil.
func countMutatingHooks(o, old *admissionv1.MutatingWebhookConfiguration) {
	if !reflect.DeepEqual(o.Webhooks, old.Webhooks) {
		o.Generation = old.Generation + 1
	}
}

// countValidatingHooks is countMutatingHooks for validating webhooks.
func countValidatingHooks(o, old *admissionv1.ValidatingWebhookConfiguration) {
	if !reflect.DeepEqual(o.Webhooks, old.Webhooks) {
		o.Generation = old.Generation + 1
	}
}

func createPolicy(policy *admissionv1.ValidatingAdmissionPolicy) {
	policy.Status = admissionv1.ValidatingAdmissionPolicyStatus{}
	policy.Generation = 1
}

func updatePolicy(policy, old *admissionv1.ValidatingAdmissionPolicy) {
	policy.Status = old.Status
	if !equality.Semantic.DeepEqual(policy.Spec, old.Spec) {
		policy.Generation = old.Generation + 1
	}
}

func updatePolicyStatus(policy, old *admissionv1.ValidatingAdmissionPolicy) {
	policy.Spec = old.Spec
	metav1.ResetObjectMetaForStatus(&policy.ObjectMeta, &old.ObjectMeta)
}

func startGeneration(_ context.Context, obj runtime.Object) { obj.(metav1.Object).SetGeneration(1) }

// incrementGeneration increments the generation if the objects differ outside their metadata.
func incrementGeneration(_ context.Context, obj, old runtime.Object) {
	if !SameSpec(obj, old) {
		obj.(metav1.Object).SetGeneration(old.(metav1.Object).GetGeneration() + 1)
	}
}
