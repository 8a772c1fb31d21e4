package quota_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/admission/quota"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// put stores an object past everybody.
func put(st *store.Store, res *scheme.Resource, obj scheme.Object) (*store.Record, error) {
	stored, revAt, err := res.EncodeStored(obj)
	if err != nil {
		return nil, err
	}
	rec, err := st.Commit(context.Background(), store.Change{Op: store.OpCreate, Key: res.Key(obj.GetNamespace(), obj.GetName()), JSON: stored, RevAt: revAt})
	return &rec, err
}

// A namespace may have two ConfigMaps. Each write is charged at the last moment, and what it was charged becomes used by its commit.
func ExampleQuotas_Charge() {
	st, err := store.Open("", store.Options{Ephemeral: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer st.Close()
	types := scheme.NewRegistry()
	two := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "two"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/configmaps": resource.MustParse("2")}}}
	quotas, err := quota.New(st, types)
	if err != nil {
		fmt.Println(err)
		return
	}
	rows := types.Lookup("", "v1", "resourcequotas")
	rec, err := put(st, rows, two)
	if err != nil {
		fmt.Println(err)
	}
	quotas.OnCommit(rows, rec) // from here on it holds
	maps := types.Lookup("", "v1", "configmaps")
	for _, name := range []string{"a", "b", "c"} {
		obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
		held, err := quotas.Charge(context.Background(), quota.Write{Resource: maps, Object: obj})
		if err == nil {
			_, err = put(st, maps, obj)
			held.Release()
		}
		fmt.Println(name, err)
	}
	// Output:
	// a <nil>
	// b <nil>
	// c configmaps "c" is forbidden: exceeded quota: two, requested: count/configmaps=1, used: count/configmaps=2, limited: count/configmaps=2
}
