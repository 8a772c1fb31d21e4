package strategy

// This file prepares Pods. It corresponds to k8s.io/kubernetes/pkg/registry/core/pod/strategy.go.
// The functions take the internal type.

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/helper/qos"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/features"
)

func createPod(ctx context.Context, obj runtime.Object) {
	pod := obj.(*core.Pod)
	pod.Generation = 1
	pod.Status = core.PodStatus{Phase: core.PodPending}
	podutil.DropDisabledPodFields(pod, nil)
	if len(pod.Spec.SchedulingGates) > 0 {
		pod.Status.Conditions = []core.PodCondition{{
			Type: core.PodScheduled, Status: core.ConditionFalse, Reason: corev1.PodReasonSchedulingGated,
			Message: "Scheduling is blocked due to non-empty scheduling gates", LastTransitionTime: Now(),
		}}
	}
	mergeLabelKeys(pod)
	copyAppArmorProfiles(ctx, pod)
	defaultPodResources(pod)
	pod.Status.QOSClass = qos.GetPodQOS(pod)
}

// maxResourceSums limits the steps of defaultPodResources.
const maxResourceSums = 1 << 20

// defaultPodResources sets the pod-level resources based on the resources of the containers.
// Kubernetes' function adds up the resources of all sidecars for each init container. It is not
// called if this would take seconds.
func defaultPodResources(pod *core.Pod) {
	names := 0
	for i := range pod.Spec.InitContainers {
		names += len(pod.Spec.InitContainers[i].Resources.Limits) + len(pod.Spec.InitContainers[i].Resources.Requests)
	}
	if names*len(pod.Spec.InitContainers) <= maxResourceSums {
		podutil.DefaultPodLevelResources(pod)
	}
}

// keepPodResources restores the pod-level resources if they were omitted by a client that does not
// know the field.
func keepPodResources(pod, old *core.Pod) {
	if enabled(features.PodLevelResourcesFixDefaulting) && pod.Spec.Resources == nil {
		pod.Spec.Resources = old.Spec.Resources.DeepCopy()
	}
}

func updatePod(pod, old *core.Pod) {
	pod.Status = old.Status
	keepPodResources(pod, old)
	podutil.DropDisabledPodFields(pod, old)
	countSpec(pod, old)
}

// countSpec increments the generation if the spec differs.
func countSpec(pod, old *core.Pod) {
	if !equality.Semantic.DeepEqual(pod.Spec, old.Spec) {
		pod.Generation++
	}
}

func updatePodStatus(pod, old *core.Pod) {
	pod.Spec = old.Spec
	pod.DeletionTimestamp = nil
	pod.OwnerReferences = old.OwnerReferences // old kubelets corrupt them
	if pod.Status.QOSClass == "" {
		pod.Status.QOSClass = old.Status.QOSClass
	}
	keepClaimStatuses(&pod.Status, &old.Status)
	keepObservedGenerations(&pod.Status, &old.Status)
	podutil.DropDisabledPodFields(pod, old)
}

// keepClaimStatuses restores the statuses of claims if they were omitted by a client that does not
// know the fields. An empty list clears a field.
func keepClaimStatuses(status, old *core.PodStatus) {
	if status.ResourceClaimStatuses == nil {
		status.ResourceClaimStatuses = old.ResourceClaimStatuses
	}
	if status.ExtendedResourceClaimStatus == nil {
		status.ExtendedResourceClaimStatus = old.ExtendedResourceClaimStatus
	}
	if status.NodeAllocatableResourceClaimStatuses == nil {
		status.NodeAllocatableResourceClaimStatuses = old.NodeAllocatableResourceClaimStatuses
	}
}

// keepObservedGenerations restores the observedGenerations that the new status omits. A type may
// have several conditions, which are matched in their order.
func keepObservedGenerations(status, old *core.PodStatus) {
	if status.ObservedGeneration == 0 {
		status.ObservedGeneration = old.ObservedGeneration
	}
	before := map[core.PodConditionType][]int64{}
	for i := range old.Conditions {
		before[old.Conditions[i].Type] = append(before[old.Conditions[i].Type], old.Conditions[i].ObservedGeneration)
	}
	for i := range status.Conditions {
		condition := &status.Conditions[i]
		left := before[condition.Type]
		if len(left) == 0 {
			continue
		}
		before[condition.Type] = left[1:]
		if condition.ObservedGeneration == 0 {
			condition.ObservedGeneration = left[0]
		}
	}
}

// addEphemeralContainers keeps only the ephemeral containers of pod.
func addEphemeralContainers(pod, old *core.Pod) {
	added := pod.Spec.EphemeralContainers
	restorePod(pod, old)
	pod.Spec.EphemeralContainers = added
	podutil.DropDisabledPodFields(pod, old)
	countSpec(pod, old)
}

// restorePod resets all fields that cannot be changed by a write to a subresource.
func restorePod(pod, old *core.Pod) {
	pod.Spec, pod.Status = old.Spec, old.Status
	metav1.ResetObjectMetaForStatus(&pod.ObjectMeta, &old.ObjectMeta)
}

// resizePod keeps only the resources and resize policies of pod, and its volumes if they can be
// resized. If the number of containers differs, it keeps everything, and validation rejects the
// update.
func resizePod(pod, old *core.Pod) {
	if len(pod.Spec.Containers) == len(old.Spec.Containers) && len(pod.Spec.InitContainers) == len(old.Spec.InitContainers) {
		resources, volumes := pod.Spec.Resources, pod.Spec.Volumes
		containers := resizedContainers(pod.Spec.Containers, old.Spec.Containers)
		initContainers := resizedContainers(pod.Spec.InitContainers, old.Spec.InitContainers)
		restorePod(pod, old)
		if enabled(features.InPlacePodLevelResourcesVerticalScaling) {
			pod.Spec.Resources = resources
		}
		if enabled(features.InPlacePodVerticalScalingMemoryBackedVolumes) {
			pod.Spec.Volumes = volumes
		}
		pod.Spec.Containers, pod.Spec.InitContainers = containers, initContainers
	}
	keepPodResources(pod, old)
	if enabled(features.PodLevelResourcesFixDefaulting) && pod.Spec.Resources != nil {
		defaultPodResources(pod)
	}
	podutil.DropDisabledPodFields(pod, old)
	countSpec(pod, old)
}

// resizedContainers returns the old containers with the new resources, or containers itself for
// validation to refuse if a name differs.
func resizedContainers(containers, old []core.Container) []core.Container {
	resized := append([]core.Container(nil), old...)
	for i := range containers {
		if resized[i].Name != containers[i].Name {
			return containers
		}
		resized[i].Resources, resized[i].ResizePolicy = containers[i].Resources, containers[i].ResizePolicy
	}
	return resized
}

// ---- matchLabelKeys ----

// mergeLabelKeys adds the values of the Pod's own labels to the selectors that refer to them by
// matchLabelKeys and mismatchLabelKeys.
func mergeLabelKeys(pod *core.Pod) {
	if affinity := pod.Spec.Affinity; affinity != nil {
		if a := affinity.PodAffinity; a != nil {
			mergeTerms(pod, a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
		}
		if a := affinity.PodAntiAffinity; a != nil {
			mergeTerms(pod, a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
		}
	}
	if !enabled(features.MatchLabelKeysInPodTopologySpread) || !enabled(features.MatchLabelKeysInPodTopologySpreadSelectorMerge) {
		return
	}
	for i := range pod.Spec.TopologySpreadConstraints {
		constraint := &pod.Spec.TopologySpreadConstraints[i]
		selectLabels(pod, constraint.LabelSelector, constraint.MatchLabelKeys, metav1.LabelSelectorOpIn)
	}
}

func mergeTerms(pod *core.Pod, required []core.PodAffinityTerm, preferred []core.WeightedPodAffinityTerm) {
	merge := func(term *core.PodAffinityTerm) {
		selectLabels(pod, term.LabelSelector, term.MatchLabelKeys, metav1.LabelSelectorOpIn)
		selectLabels(pod, term.LabelSelector, term.MismatchLabelKeys, metav1.LabelSelectorOpNotIn)
	}
	for i := range required {
		merge(&required[i])
	}
	for i := range preferred {
		merge(&preferred[i].PodAffinityTerm)
	}
}

func selectLabels(pod *core.Pod, selector *metav1.LabelSelector, keys []string, operator metav1.LabelSelectorOperator) {
	for _, key := range keys {
		if value, ok := pod.Labels[key]; ok && selector != nil {
			selector.MatchExpressions = append(selector.MatchExpressions,
				metav1.LabelSelectorRequirement{Key: key, Operator: operator, Values: []string{value}})
		}
	}
}

// ---- AppArmor ----

// copyAppArmorProfiles copies the profiles in the deprecated annotations of a Pod to the fields of
// its containers. It warns about each annotation that differs from the profile of the Pod.
func copyAppArmorProfiles(ctx context.Context, pod *core.Pod) {
	if len(pod.Annotations) == 0 || pod.Spec.OS != nil && pod.Spec.OS.Name == core.Windows {
		return
	}
	podutil.VisitContainers(&pod.Spec, podutil.AllFeatureEnabledContainers(), func(c *core.Container, _ podutil.ContainerType) bool {
		key := core.DeprecatedAppArmorAnnotationKeyPrefix + c.Name
		annotation, found := pod.Annotations[key]
		if !found || c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
			return true
		}
		profile := podutil.ApparmorFieldForAnnotation(annotation)
		invalid := profile == nil || len(corevalidation.ValidateAppArmorProfileField(profile, &field.Path{})) > 0
		if !invalid && pod.Spec.SecurityContext != nil && equality.Semantic.DeepEqual(profile, pod.Spec.SecurityContext.AppArmorProfile) {
			return true
		}
		if !invalid {
			if c.SecurityContext == nil {
				c.SecurityContext = &core.SecurityContext{}
			}
			c.SecurityContext.AppArmorProfile = profile
		}
		warning.AddWarning(ctx, "", fmt.Sprintf(`metadata.annotations[%s]: deprecated since v1.30; use the "appArmorProfile" field instead`, key))
		return true
	})
}

// podGrace returns the grace period of a Pod that runs on a node. The kubelet stops the Pod and
// then deletes it with a grace period of 0. Other Pods are deleted immediately.
func podGrace(obj runtime.Object, options *metav1.DeleteOptions) int64 {
	pod := obj.(*corev1.Pod)
	if pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return 0
	}
	grace := int64(0)
	switch {
	case options.GracePeriodSeconds != nil:
		grace = *options.GracePeriodSeconds
	case pod.DeletionGracePeriodSeconds != nil:
		grace = *pod.DeletionGracePeriodSeconds
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		grace = *pod.Spec.TerminationGracePeriodSeconds
	}
	if grace < 0 {
		return 1
	}
	return grace
}
