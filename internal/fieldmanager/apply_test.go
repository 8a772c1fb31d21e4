package fieldmanager

import (
	"reflect"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sigsyaml "sigs.k8s.io/yaml"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
)

func TestManagerOf(t *testing.T) {
	for _, c := range [][3]string{
		{"m", "kubectl/v1.36.0 (linux/amd64)", "m"},
		{"", "kubectl/v1.36.0 (linux/amd64)", "kubectl"},
		{"", "curl", "curl"}, {"", "", ""}, {"", "a\nb\x00c/1", "abc"},
		{"", strings.Repeat("ä", 100), strings.Repeat("ä", 64)},
	} {
		if got := ManagerName(c[0], c[1]); got != c[2] {
			t.Errorf("%q, %q: got %q, want %q", c[0], c[1], got, c[2])
		}
	}
}

func configMapOwnership() *Manager {
	return &Manager{Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), GoType: reflect.TypeFor[corev1.ConfigMap]()}
}

func TestApplyDuplicateKeysAreStrictErrors(t *testing.T) {
	o := configMapOwnership()
	for _, body := range []string{
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"n"},"data":{"a":"1","a":"2"}}`,
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {a: '1', a: '2'}\n",
	} {
		merged, errs, err := o.Apply(nil, []byte(body), Applier{Manager: "m"})
		if err != nil || merged.(*corev1.ConfigMap).Data["a"] != "2" || len(errs) != 1 || !strings.HasSuffix(errs[0].Error(), `: key "a" already set in map`) {
			t.Fatalf("%s: got %v, %v, %v", body, merged, errs, err)
		}
		want := "error strict decoding patch: error converting YAML to JSON: yaml: unmarshal errors:\n  " + errs[0].Error()
		if got := kubetest.Refused(t, InvalidApply(errs), 400, metav1.StatusReasonBadRequest); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestWriteOfNothingKeepsTimes(t *testing.T) {
	o := configMapOwnership()
	old := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Data: map[string]string{"a": "1"}}
	if err := o.Update(nil, old, "m", ""); err != nil || len(old.ManagedFields) != 1 {
		t.Fatalf("got %v, %v", old.ManagedFields, err)
	}
	next := old.DeepCopy()
	next.ManagedFields[0].Time = &metav1.Time{Time: time.Now().Add(time.Hour)}
	if RestoreTimes(old, next); !equality.Semantic.DeepEqual(old, next) {
		t.Errorf("the time moved: %v", next.ManagedFields)
	}
	next.ManagedFields[0].Time = &metav1.Time{Time: time.Now().Add(time.Hour)}
	next.Data["a"] = "2"
	if RestoreTimes(old, next); old.ManagedFields[0].Time.Equal(next.ManagedFields[0].Time) {
		t.Errorf("the time of a change was undone")
	}
}

func TestApplyBetweenVersions(t *testing.T) {
	o := &Manager{Kind: batchv1.SchemeGroupVersion.WithKind("CronJob"), GoType: reflect.TypeFor[batchv1.CronJob](), Versions: []string{"batch/v1beta1"}}
	entry := func(version string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: "old", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: version,
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:schedule":{}}}`)}
	}
	live := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "1", ManagedFields: []metav1.ManagedFieldsEntry{entry("batch/v1beta1")}}, Spec: batchv1.CronJobSpec{Schedule: "a"}}
	body := []byte(`{"apiVersion":"batch/v1","kind":"CronJob","metadata":{"name":"c"},"spec":{"schedule":"b"}}`)
	_, _, err := o.Apply(live, body, Applier{Manager: "m"})
	if got, want := kubetest.Refused(t, err, 409, metav1.StatusReasonConflict), `Apply failed with 1 conflict: conflict with "old" using batch/v1beta1: .spec.schedule`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	live.ManagedFields = append(live.ManagedFields, entry("batch/v9"))
	merged, _, err := o.Apply(live, body, Applier{Manager: "m", Force: true})
	if err != nil || len(merged.GetManagedFields()) != 1 || merged.(*batchv1.CronJob).Spec.Schedule != "b" {
		t.Errorf("got %v, %v", merged, err)
	}
}

func TestLongListsAreNotTracked(t *testing.T) {
	o := configMapOwnership()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Finalizers: make([]string, maxApplyElements+1)}}
	if err := o.Update(nil, cm, "m", ""); err != nil || cm.ManagedFields != nil {
		t.Errorf("got %v, %v", len(cm.ManagedFields), err)
	}
	body := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"finalizers":[` + strings.Repeat(`"a",`, maxApplyElements) + `"b"]}}`
	_, _, err := o.Apply(nil, []byte(body), Applier{Manager: "m"})
	kubetest.Refused(t, err, 413, metav1.StatusReasonRequestEntityTooLarge)
	wide := `{"apiVersion":"v1","kind":"ConfigMap","data":{` + strings.TrimPrefix(apitest.Numbered(maxApplyElements+1, `,"k%d":""`), ",") + `}}`
	_, _, err = o.Apply(nil, []byte(wide), Applier{Manager: "m"})
	kubetest.Refused(t, err, 413, metav1.StatusReasonRequestEntityTooLarge)
}

func BenchmarkApply(b *testing.B) {
	o := &Manager{Kind: appsv1.SchemeGroupVersion.WithKind("Deployment"), GoType: reflect.TypeFor[appsv1.Deployment](), Status: true}
	body := []byte(strings.NewReplacer(`"uid":"1",`, ``, `"resourceVersion":"7",`, ``, `,"status":{}`, ``).Replace(kubetest.DeploymentJSON(20)))
	live, _, err := o.Apply(nil, body, Applier{Manager: "m"})
	if err != nil {
		b.Fatal(err)
	}
	live.SetUID("1")
	changed := []byte(strings.Replace(string(body), `"replicas":2`, `"replicas":3`, 1))
	yamlBody, err := sigsyaml.JSONToYAML(changed)
	if err != nil {
		b.Fatal(err)
	}
	for name, body := range map[string][]byte{"same": body, "changed": changed, "changed yaml": yamlBody} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			defer apitest.ProcessorTime(b)()
			for b.Loop() {
				if _, _, err := o.Apply(live, body, Applier{Manager: "m"}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("update", func(b *testing.B) {
		b.ReportAllocs()
		live := live.DeepCopyObject().(*appsv1.Deployment)
		next := live.DeepCopyObject().(*appsv1.Deployment)
		replicas := int32(10)
		next.Spec.Replicas = &replicas
		defer apitest.ProcessorTime(b)()
		for b.Loop() {
			replicas++
			next.ManagedFields = nil
			if err := o.Update(live, next, "u", ""); err != nil || len(next.ManagedFields) != 2 {
				b.Fatal(err, len(next.ManagedFields))
			}
		}
	})
	b.Run("create configmap", func(b *testing.B) {
		b.ReportAllocs()
		o := &Manager{Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), GoType: reflect.TypeFor[corev1.ConfigMap]()}
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"a": "b"}}, Data: map[string]string{"a": "1", "b": "2"}}
		defer apitest.ProcessorTime(b)()
		for b.Loop() {
			cm.ManagedFields = nil
			if err := o.Update(nil, cm, "u", ""); err != nil || len(cm.ManagedFields) != 1 {
				b.Fatal(err)
			}
		}
	})
	b.Run("create configmap/general", func(b *testing.B) {
		b.ReportAllocs()
		o := &Manager{Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), GoType: reflect.TypeFor[corev1.ConfigMap]()}
		general, err := o.manager("")
		if err != nil {
			b.Fatal(err)
		}
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"a": "b"}}, Data: map[string]string{"a": "1", "b": "2"}}
		defer apitest.ProcessorTime(b)()
		for b.Loop() {
			cm.ManagedFields = nil
			if _, err := general.Update(o.orNew(nil), o.stamp(cm), "u"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("update/general", func(b *testing.B) {
		b.ReportAllocs()
		general, err := o.manager("")
		if err != nil {
			b.Fatal(err)
		}
		next := live.DeepCopyObject().(*appsv1.Deployment)
		replicas := int32(10)
		next.Spec.Replicas = &replicas
		defer apitest.ProcessorTime(b)()
		for b.Loop() {
			replicas++
			next.ManagedFields = nil
			if _, err := general.Update(live, next, "u"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("types", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			typesOf(o.GoType, nil)
		}
	})
}
