package registry

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
