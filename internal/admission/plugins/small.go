package plugins

// This file has the plug-ins that are a few lines each: NamespaceLifecycle, TaintNodesByCondition, DefaultTolerationSeconds,
// StorageObjectInUseProtection, PersistentVolumeClaimResize.

import (
	"context"
	"errors"
	"slices"

	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"

	"apilet/internal/admission"
	"apilet/internal/store"
)

// namespaces knows which there are.
type namespaces struct{ store *store.Store }

// admit is NamespaceLifecycle: nothing is created in a namespace that is missing, or about to. The store asks again when it commits, in
// the same transaction; here it is asked before other plug-ins look for something in the namespace, and webhooks hear of it.
func (n namespaces) admit(ctx context.Context, a *admission.Attributes) error {
	if !a.Resource.Namespaced || a.Subresource != "" || a.Resource.Virtual {
		return nil
	}
	rec, err := n.store.GetNewest(ctx, "//namespaces//"+a.Object.GetNamespace())
	switch {
	case errors.Is(err, store.ErrNotFound):
		return store.ErrParentMissing
	case err == nil && rec.Deleting:
		return store.ErrParentDeleting
	}
	return err
}

// taintNew is TaintNodesByCondition: nothing runs on a new node before it has said that it is ready.
func taintNew(_ context.Context, a *admission.Attributes) error {
	node := a.Object.(*corev1.Node)
	there := slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeNotReady && t.Effect == corev1.TaintEffectNoSchedule
	})
	if !there {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule})
	}
	return nil
}

// TolerationSeconds is how long a pod stays on a node that is not ready, and on one that is unreachable.
type TolerationSeconds struct{ NotReady, Unreachable int64 }

// admit is DefaultTolerationSeconds: a pod stays on a lost node for that long unless it says what it tolerates.
func (t TolerationSeconds) admit(_ context.Context, a *admission.Attributes) error {
	pod := a.Object.(*corev1.Pod)
	for i, key := range [...]string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		covered := slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
			return (t.Key == key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "")
		})
		if !covered {
			seconds := [...]int64{t.NotReady, t.Unreachable}[i]
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
				Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds,
			})
		}
	}
	return nil
}

// protectedResources have a finalizer while somebody uses them, which kube-controller-manager takes away.
var protectedResources = []string{"persistentvolumes", "persistentvolumeclaims", "volumeattributesclasses.storage.k8s.io"}

// protectInUse is StorageObjectInUseProtection.
func protectInUse(_ context.Context, a *admission.Attributes) error {
	finalizer := "kubernetes.io/pv-protection"
	switch a.Resource.Plural {
	case "persistentvolumeclaims":
		finalizer = "kubernetes.io/pvc-protection"
	case "volumeattributesclasses":
		finalizer = "kubernetes.io/vac-protection"
	}
	if have := a.Object.GetFinalizers(); !slices.Contains(have, finalizer) {
		a.Object.SetFinalizers(append(have, finalizer))
	}
	return nil
}

// validateResize is PersistentVolumeClaimResize: a claim grows when it is bound, and its class lets it.
func (c classes) validateResize(ctx context.Context, a *admission.Attributes) error {
	claim, old := a.Object.(*corev1.PersistentVolumeClaim), a.Old.(*corev1.PersistentVolumeClaim)
	wanted := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if wanted.Cmp(old.Spec.Resources.Requests[corev1.ResourceStorage]) <= 0 {
		return nil
	}
	if old.Status.Phase != corev1.ClaimBound {
		return a.Forbidden(refusal("Only bound persistent volume claims can be expanded"))
	}
	class := classOf(claim)
	if class != "" && class == classOf(old) {
		switch rec, err := c.store.GetNewest(ctx, storageClasses+"/"+class); {
		case err == nil && gjson.GetBytes(rec.JSON, "allowVolumeExpansion").Bool():
			return nil
		case err != nil && !errors.Is(err, store.ErrNotFound):
			return err
		}
	}
	return a.Forbidden(refusal("only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"))
}

// classOf is the storage class that a claim names, in one of two places.
func classOf(claim *corev1.PersistentVolumeClaim) string {
	if class, old := claim.Annotations[corev1.BetaStorageClassAnnotation]; old {
		return class
	}
	if claim.Spec.StorageClassName != nil {
		return *claim.Spec.StorageClassName
	}
	return ""
}
