package registry

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"apilet/internal/scheme"
	"apilet/internal/store"
)

// The old object of an update has its defaults, although JSON omits some of them: here data is an empty map.
func TestOldObjectsHaveDefaults(t *testing.T) {
	t.Parallel()
	wr := openWriter(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	res, yes := wr.Types.Lookup("", "v1", "configmaps"), true
	sealed := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "n"}, Immutable: &yes, BinaryData: map[string][]byte{"a": {1}}}
	if _, err := wr.Insert(t.Context(), res, sealed, Options{}); err != nil {
		t.Fatal(err)
	}
	_, _, err := wr.Modify(t.Context(), Target{Resource: res, Namespace: "n", Name: "c"}, Options{}, func(old scheme.Object, _ *store.Record) (scheme.Object, error) {
		obj := old.DeepCopyObject().(*corev1.ConfigMap)
		obj.Data, obj.Labels = nil, map[string]string{"a": "b"}
		return obj, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A write that adds an owner twice changes nothing, also in a later second than the last write.
func TestOwnersThatAreThereTwiceChangeNothing(t *testing.T) {
	t.Parallel()
	wr := openWriter(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	res := wr.Types.Lookup("", "v1", "configmaps")
	wr.ManagedFields = true
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "A", Name: "a", UID: types.UID("u")}
	owned := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "n", OwnerReferences: []metav1.OwnerReference{owner}}}
	owned.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1",
		Time: &metav1.Time{Time: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)}, FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:ownerReferences":{".":{},"k:{\"uid\":\"u\"}":{}}}}`)}}
	first, err := wr.Insert(t.Context(), res, owned, Options{applied: true})
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := wr.Modify(t.Context(), Target{Resource: res, Namespace: "n", Name: "c"}, Options{Manager: "m"}, func(old scheme.Object, _ *store.Record) (scheme.Object, error) {
		obj := old.DeepCopyObject().(*corev1.ConfigMap)
		obj.OwnerReferences = append(obj.OwnerReferences, owner)
		return obj, nil
	})
	if err != nil || again.Rev != first.Rev {
		t.Errorf("revision %d, was %d; %v", again.Rev, first.Rev, err)
	}
}
