package registry

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"apilet/internal/scheme"
	"apilet/internal/store"
)

// A deletion that comes second may hurry what is on its way, and changes no finalizers of what it leaves as it is.
func TestSecondDeletions(t *testing.T) {
	t.Parallel()
	began, foreground := metav1.Now().Rfc3339Copy(), metav1.DeletePropagationForeground
	background, orphan, no := metav1.DeletePropagationBackground, metav1.DeletePropagationOrphan, false
	pod := func(grace int64) scheme.Object {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &began, DeletionGracePeriodSeconds: &grace, Finalizers: []string{"foregroundDeletion"}},
			Spec: corev1.PodSpec{NodeName: "n"}}
	}
	namespace := func(inside ...corev1.FinalizerName) scheme.Object {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &began}, Spec: corev1.NamespaceSpec{Finalizers: inside}}
	}
	seconds := func(n int64) *int64 { return &n }
	pods, namespaces := &scheme.Resource{Plural: "pods"}, &scheme.Resource{Plural: "namespaces"}
	for _, c := range []struct {
		name    string
		res     *scheme.Resource
		obj     scheme.Object
		options metav1.DeleteOptions
		want    []string
		grace   int64 // -1: none
	}{
		{"another policy", pods, pod(30), metav1.DeleteOptions{PropagationPolicy: &background}, []string{"foregroundDeletion"}, 30},
		{"no shorter", pods, pod(30), metav1.DeleteOptions{PropagationPolicy: &background, GracePeriodSeconds: seconds(30)}, []string{"foregroundDeletion"}, 30},
		{"shorter", pods, pod(30), metav1.DeleteOptions{PropagationPolicy: &background, GracePeriodSeconds: seconds(5)}, nil, 1}, // the five are over
		{"at once", pods, pod(30), metav1.DeleteOptions{PropagationPolicy: &orphan, GracePeriodSeconds: seconds(0)}, []string{"orphan"}, 0},
		{"less than a second is one", pods, pod(1), metav1.DeleteOptions{PropagationPolicy: &orphan, GracePeriodSeconds: seconds(-5)}, []string{"foregroundDeletion"}, 1},
		{"none runs", pods, pod(0), metav1.DeleteOptions{PropagationPolicy: &background}, nil, 0},
		{"a namespace that empties", namespaces, namespace("kubernetes"), metav1.DeleteOptions{PropagationPolicy: &foreground}, nil, -1},
		{"an empty namespace", namespaces, namespace(), metav1.DeleteOptions{OrphanDependents: &no}, []string{"foregroundDeletion"}, -1},
	} {
		markDeleting(c.res, c.obj, &c.options, began.Add(time.Minute))
		grace := int64(-1)
		if g := c.obj.GetDeletionGracePeriodSeconds(); g != nil {
			grace = *g
		}
		if got := c.obj.GetFinalizers(); !slices.Equal(got, c.want) || grace != c.grace {
			t.Errorf("%s: %v, %d seconds; want %v, %d", c.name, got, grace, c.want, c.grace)
		}
	}
}

// The preconditions of a deletion are about the object and about its version.
func TestPreconditionsOfADeletion(t *testing.T) {
	t.Parallel()
	rec := &store.Record{Key: "//configmaps/n/c", Rev: 7, JSON: []byte(`{"metadata":{"uid":"u"}}`)}
	res := &scheme.Resource{Plural: "configmaps", Kind: "ConfigMap"}
	for _, c := range []struct {
		uid, rv string // "": none
		want    bool
	}{{"", "", true}, {"u", "", true}, {"v", "", false}, {"", "7", true}, {"", "6", false}, {"", "8", false}, {"u", "7", true}, {"u", "6", false}, {"v", "7", false}} {
		options := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{}}
		if uid := types.UID(c.uid); uid != "" {
			options.Preconditions.UID = &uid
		}
		if c.rv != "" {
			options.Preconditions.ResourceVersion = &c.rv
		}
		if err := checkPreconditions(res, rec, options); (err == nil) != c.want || err != nil && !apierrors.IsConflict(err) {
			t.Errorf("uid %q, version %q: %v", c.uid, c.rv, err)
		}
	}
}
