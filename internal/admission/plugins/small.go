package plugins

// This file implements small plug-ins: NamespaceLifecycle, TaintNodesByCondition,
// DefaultTolerationSeconds, StorageObjectInUseProtection and PersistentVolumeClaimResize.

import (
	"context"
	"errors"
	"slices"

	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"

	"apilet/internal/admission"
	"apilet/internal/store"
)

// namespaces reads the stored namespaces.
type namespaces struct{ store *store.Store }

// admit implements NamespaceLifecycle. Objects cannot be created in a namespace that is missing or
// being deleted. The store checks this again in the transaction of the commit. The check here
// comes before other plug-ins read objects of the namespace and before webhooks are called.
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

// taintNew implements TaintNodesByCondition. It adds a taint to new nodes, so that no pods are
// scheduled before the node is ready.
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

// TolerationSeconds specifies how many seconds a pod stays on a node that is not ready or
// unreachable.
type TolerationSeconds struct{ NotReady, Unreachable int64 }

// admit implements DefaultTolerationSeconds. It adds tolerations for lost nodes unless the pod
// already has them.
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

// protectedResources get a finalizer that kube-controller-manager removes when the object is not
// in use.
var protectedResources = []string{"persistentvolumes", "persistentvolumeclaims", "volumeattributesclasses.storage.k8s.io"}

// protectInUse implements StorageObjectInUseProtection.
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

// validateResize implements PersistentVolumeClaimResize. A claim may only grow if it is bound and
// its storage class allows expansion.
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

// classOf returns the storage class of a claim, from the beta annotation or from the spec.
func classOf(claim *corev1.PersistentVolumeClaim) string {
	if class, old := claim.Annotations[corev1.BetaStorageClassAnnotation]; old {
		return class
	}
	if claim.Spec.StorageClassName != nil {
		return *claim.Spec.StorageClassName
	}
	return ""
}
