package clients

// This file tests background work after a delete: dependents are deleted or orphaned, and
// namespaces are emptied and deleted.

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// owned creates a ConfigMap, a Secret that is owned by it, and a Pod that is owned by the Secret.
// All of them have the same name.
func owned(t *testing.T, cs kubernetes.Interface, name string) {
	t.Helper()
	ctx := t.Context()
	owner, err := cs.CoreV1().ConfigMaps(ns).Create(ctx, configMap(name), metav1.CreateOptions{})
	check(t, "create owner", err)
	child := &corev1.Secret{ObjectMeta: named(name)}
	child.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("ConfigMap"))}
	child, err = cs.CoreV1().Secrets(ns).Create(ctx, child, metav1.CreateOptions{})
	check(t, "create dependent", err)
	grandchild := pod(name)
	grandchild.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(child, corev1.SchemeGroupVersion.WithKind("Secret"))}
	_, err = cs.CoreV1().Pods(ns).Create(ctx, grandchild, metav1.CreateOptions{})
	check(t, "create dependent of the dependent", err)
}

// left returns whether each of the three objects still exists.
func left(ctx context.Context, cs kubernetes.Interface, name string) (there [3]bool) {
	_, owner := cs.CoreV1().ConfigMaps(ns).Get(ctx, name, metav1.GetOptions{})
	_, child := cs.CoreV1().Secrets(ns).Get(ctx, name, metav1.GetOptions{})
	_, grandchild := cs.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
	return [3]bool{!apierrors.IsNotFound(owner), !apierrors.IsNotFound(child), !apierrors.IsNotFound(grandchild)}
}

func deleteOwner(t *testing.T, cs kubernetes.Interface, name string, policy metav1.DeletionPropagation) {
	t.Helper()
	check(t, "delete", cs.CoreV1().ConfigMaps(ns).Delete(t.Context(), name, metav1.DeleteOptions{PropagationPolicy: &policy}))
}

func TestDependentsFollowTheirOwner(t *testing.T) {
	t.Parallel()
	ctx, cs := t.Context(), startEphemeral(t).typed()
	t.Run("background", func(t *testing.T) {
		owned(t, cs, "background")
		deleteOwner(t, cs, "background", metav1.DeletePropagationBackground)
		if left(ctx, cs, "background")[0] {
			t.Error("the owner is still there")
		}
		eventually(t, "the dependents are gone", func() bool { return left(ctx, cs, "background") == [3]bool{} })
	})
	t.Run("foreground", func(t *testing.T) { foreground(t, cs) })
	t.Run("orphan", func(t *testing.T) {
		owned(t, cs, "orphan")
		deleteOwner(t, cs, "orphan", metav1.DeletePropagationOrphan)
		eventually(t, "the owner is gone", func() bool { return !left(ctx, cs, "orphan")[0] })
		child, err := cs.CoreV1().Secrets(ns).Get(ctx, "orphan", metav1.GetOptions{})
		check(t, "get the orphan", err)
		if len(child.OwnerReferences) != 0 || !left(ctx, cs, "orphan")[2] {
			t.Errorf("the orphan has owners %v; its own dependent is there: %v", child.OwnerReferences, left(ctx, cs, "orphan")[2])
		}
	})
	t.Run("an owner that never was", func(t *testing.T) {
		lost := configMap("lost")
		lost.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Secret", Name: "never", UID: "0b5b0a3c-7a2e-4d0c-9d56-aaaaaaaaaaaa"}}
		_, err := cs.CoreV1().ConfigMaps(ns).Create(ctx, lost, metav1.CreateOptions{})
		check(t, "create", err)
		eventually(t, "the dependent is gone", func() bool { return !left(ctx, cs, "lost")[0] })
	})
}

// foreground tests that a blocking dependent with a finalizer delays the deletion of the owner.
func foreground(t *testing.T, cs kubernetes.Interface) {
	ctx := t.Context()
	owned(t, cs, "foreground")
	block := `{"metadata":{"finalizers":["example.com/hold"],"ownerReferences":[{"uid":"` + uidOf(ctx, cs, "foreground") + `","blockOwnerDeletion":true}]}}`
	_, err := cs.CoreV1().Secrets(ns).Patch(ctx, "foreground", types.StrategicMergePatchType, []byte(block), metav1.PatchOptions{})
	check(t, "hold", err)
	deleteOwner(t, cs, "foreground", metav1.DeletePropagationForeground)
	eventually(t, "the dependent is being deleted", func() bool {
		child, err := cs.CoreV1().Secrets(ns).Get(ctx, "foreground", metav1.GetOptions{})
		return err == nil && child.DeletionTimestamp != nil
	})
	owner, err := cs.CoreV1().ConfigMaps(ns).Get(ctx, "foreground", metav1.GetOptions{})
	check(t, "get the owner that waits", err)
	if owner.DeletionTimestamp == nil || len(owner.Finalizers) != 1 || owner.Finalizers[0] != metav1.FinalizerDeleteDependents {
		t.Errorf("the owner that waits: deletion %v, finalizers %v", owner.DeletionTimestamp, owner.Finalizers)
	}
	_, err = cs.CoreV1().Secrets(ns).Patch(ctx, "foreground", types.JSONPatchType,
		[]byte(`[{"op":"test","path":"/metadata/finalizers/0","value":"example.com/hold"},{"op":"remove","path":"/metadata/finalizers/0"}]`), metav1.PatchOptions{})
	check(t, "let go", err)
	eventually(t, "all are gone", func() bool { return left(ctx, cs, "foreground") == [3]bool{} })
}

func uidOf(ctx context.Context, cs kubernetes.Interface, name string) string {
	return string(must(cs.CoreV1().ConfigMaps(ns).Get(ctx, name, metav1.GetOptions{})).UID)
}

func TestNamespaceDeletionEnds(t *testing.T) {
	t.Parallel()
	ctx, cs := t.Context(), startEphemeral(t).typed()
	_, err := cs.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, metav1.CreateOptions{})
	check(t, "create namespace", err)
	held, p, d := configMap("held"), pod("p"), deployment("d")
	held.Namespace, p.Namespace, d.Namespace = "", "", ""
	held.Finalizers = []string{"example.com/hold"}
	_, err = cs.CoreV1().ConfigMaps("team").Create(ctx, held, metav1.CreateOptions{})
	check(t, "create configmap", err)
	_, err = cs.CoreV1().Pods("team").Create(ctx, p, metav1.CreateOptions{})
	check(t, "create pod", err)
	_, err = cs.AppsV1().Deployments("team").Create(ctx, d, metav1.CreateOptions{})
	check(t, "create deployment", err)
	check(t, "delete", cs.CoreV1().Namespaces().Delete(ctx, "team", metav1.DeleteOptions{}))

	eventually(t, "the namespace says what it waits for", func() bool {
		team, err := cs.CoreV1().Namespaces().Get(ctx, "team", metav1.GetOptions{})
		check(t, "get", err)
		for _, c := range team.Status.Conditions {
			if c.Type == corev1.NamespaceFinalizersRemaining && c.Status == corev1.ConditionTrue {
				return team.Status.Phase == corev1.NamespaceTerminating
			}
		}
		return false
	})
	_, err = cs.CoreV1().Secrets("team").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "late"}}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		t.Errorf("create in a namespace that ends: %v, %+v; want Forbidden, NamespaceTerminating", err, cause(err))
	}
	_, err = cs.CoreV1().ConfigMaps("team").Patch(ctx, "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	check(t, "let go", err)
	eventually(t, "the namespace is gone", func() bool {
		_, err := cs.CoreV1().Namespaces().Get(ctx, "team", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if pods, err := cs.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{}); err != nil || len(pods.Items) != 0 {
		t.Errorf("%v pods are left, %v", pods.Items, err)
	}
}
