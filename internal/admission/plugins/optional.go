package plugins

// This file implements small plug-ins that are disabled by default: AlwaysPullImages,
// LimitPodHardAntiAffinityTopology, ExtendedResourceToleration, DenyServiceExternalIPs and
// NamespaceAutoProvision.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"apilet/internal/admission"
	"apilet/internal/store"
)

// containerAt is a container in a pod, which may also be an init or ephemeral container.
type containerAt struct {
	at     *field.Path
	image  string
	policy *corev1.PullPolicy
}

func containersOf(spec *corev1.PodSpec) (all []containerAt) {
	at := field.NewPath("spec")
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		all = append(all, containerAt{at.Child("initContainers").Index(i), c.Image, &c.ImagePullPolicy})
	}
	for i := range spec.Containers {
		c := &spec.Containers[i]
		all = append(all, containerAt{at.Child("containers").Index(i), c.Image, &c.ImagePullPolicy})
	}
	for i := range spec.EphemeralContainers {
		c := &spec.EphemeralContainers[i]
		all = append(all, containerAt{at.Child("ephemeralContainers").Index(i), c.Image, &c.ImagePullPolicy})
	}
	return all
}

// hasNewImages reports whether a write adds an image to the pod.
func hasNewImages(a *admission.Attributes) bool {
	if a.Old == nil {
		return true
	}
	var old []string
	for _, c := range containersOf(&a.Old.(*corev1.Pod).Spec) {
		old = append(old, c.image)
	}
	return slices.ContainsFunc(containersOf(&a.Object.(*corev1.Pod).Spec), func(c containerAt) bool { return !slices.Contains(old, c.image) })
}

// pullAlways implements AlwaysPullImages. This makes the kubelet contact the registry for each
// container. Otherwise a pod could use a private image that was pulled for another pod.
func pullAlways(_ context.Context, a *admission.Attributes) error {
	if !hasNewImages(a) {
		return nil
	}
	spec := &a.Object.(*corev1.Pod).Spec
	for _, c := range containersOf(spec) {
		*c.policy = corev1.PullAlways
	}
	for i := range spec.Volumes {
		if image := spec.Volumes[i].Image; image != nil {
			image.PullPolicy = corev1.PullAlways
		}
	}
	return nil
}

// validatePull rejects a pod if a webhook has changed its pull policy back.
func validatePull(_ context.Context, a *admission.Attributes) error {
	if !hasNewImages(a) {
		return nil
	}
	spec, always := &a.Object.(*corev1.Pod).Spec, []corev1.PullPolicy{corev1.PullAlways}
	for _, c := range containersOf(spec) {
		if *c.policy != corev1.PullAlways {
			return a.Forbidden(field.NotSupported(c.at.Child("imagePullPolicy"), *c.policy, always))
		}
	}
	for i := range spec.Volumes {
		if image := spec.Volumes[i].Image; image != nil && image.PullPolicy != corev1.PullAlways {
			at := field.NewPath("spec", "volumes").Index(i).Child("image", "pullPolicy")
			return a.Forbidden(field.NotSupported(at, image.PullPolicy, always))
		}
	}
	return nil
}

// limitTopology implements LimitPodHardAntiAffinityTopology. Required anti-affinity is allowed
// only for the topology of single nodes.
func limitTopology(_ context.Context, a *admission.Attributes) error {
	pod := a.Object.(*corev1.Pod)
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	for _, term := range pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		if term.TopologyKey != corev1.LabelHostname {
			return apierrors.NewForbidden(a.Resource.GroupResource(), pod.Name, fmt.Errorf(
				"affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey %v but only key %v is allowed", term.TopologyKey, corev1.LabelHostname))
		}
	}
	return nil
}

// tolerateExtended implements ExtendedResourceToleration. If a pod requests a device, a toleration
// is added for the taint of nodes that are dedicated to such pods.
func tolerateExtended(_ context.Context, a *admission.Attributes) error {
	pod := a.Object.(*corev1.Pod)
	var names []string
	for _, list := range [...][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			for name := range list[i].Resources.Requests {
				if isExtended(string(name)) {
					names = append(names, string(name))
				}
			}
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		tolerate(pod, corev1.Toleration{Key: name, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	}
	return nil
}

// isExtended reports whether name is an extended resource that a quota can limit.
func isExtended(name string) bool {
	return strings.Contains(name, "/") && !strings.Contains(name, corev1.ResourceDefaultNamespacePrefix) &&
		!strings.HasPrefix(name, corev1.DefaultResourceRequestsPrefix) && len(utilvalidation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+name)) == 0
}

// tolerate adds a toleration, or replaces the tolerations for the same taint.
func tolerate(pod *corev1.Pod, wanted corev1.Toleration) {
	found := false
	for i := range pod.Spec.Tolerations {
		if t := &pod.Spec.Tolerations[i]; t.MatchToleration(&wanted) {
			*t, found = wanted, true
		}
	}
	if !found {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, wanted)
	}
}

// denyExternalIPs implements DenyServiceExternalIPs. The external addresses of an existing Service
// can be kept, but no new ones can be added.
func denyExternalIPs(_ context.Context, a *admission.Attributes) error {
	var old []string
	if a.Old != nil {
		old = a.Old.(*corev1.Service).Spec.ExternalIPs
	}
	for _, ip := range a.Object.(*corev1.Service).Spec.ExternalIPs {
		if !slices.Contains(old, ip) {
			return a.Forbidden(errors.New("Use of external IPs is denied by admission control")) //nolint:staticcheck // Kubernetes' words
		}
	}
	return nil
}

// namespaceProvisioner implements the plug-in NamespaceAutoProvision.
type namespaceProvisioner struct {
	store  *store.Store
	create func(ctx context.Context, name string) error
}

// admit creates the namespace of a new object if it is missing.
func (p namespaceProvisioner) admit(ctx context.Context, a *admission.Attributes) error {
	namespace := a.Namespace()
	if namespace == "" || a.DryRun || !a.Resource.Namespaced {
		return nil
	}
	if _, err := p.store.Get("//namespaces//" + namespace); !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if err := p.create(ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		return a.Forbidden(err)
	}
	return nil
}
