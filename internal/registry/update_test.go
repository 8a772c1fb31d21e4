package registry

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"apilet/internal/auth"
	"apilet/internal/request"
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

// A PUT replaces the object that it names and the version that it has read, and no other.
func TestUpdatesNameTheirObject(t *testing.T) {
	t.Parallel()
	configMap := func(uid, rv string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: types.UID(uid), ResourceVersion: rv}}
	}
	res := scheme.NewRegistry().Lookup("", "v1", "configmaps")
	for rv, want := range map[string]bool{"7": true, "": true, "6": false, "8": false} {
		if err := checkRevision(res, configMap("", rv), 7); (err == nil) != want || err != nil && !apierrors.IsConflict(err) {
			t.Errorf("revision %q of 7: %v", rv, err)
		}
	}
	for uid, want := range map[string]bool{"u": true, "": true, "v": false} {
		if _, err := replaced(&Target{Resource: res, Name: "c"}, configMap(uid, ""), configMap("u", "7"), nil); (err == nil) != want || err != nil && !apierrors.IsConflict(err) {
			t.Errorf("uid %q of u: %v", uid, err)
		}
	}
}

// An update keeps the marks of a deletion, and the last finalizer is the one that matters.
func TestUpdatesOfWhatIsBeingDeleted(t *testing.T) {
	t.Parallel()
	began, zero, ten := metav1.Now().Rfc3339Copy(), int64(0), int64(10)
	object := func(grace *int64, finalizers ...string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c", DeletionTimestamp: &began, DeletionGracePeriodSeconds: grace, Finalizers: finalizers}}
	}
	target := &Target{Resource: scheme.NewRegistry().Lookup("", "v1", "configmaps"), Name: "c"}
	obj := prepare(t.Context(), target, &corev1.ConfigMap{}, object(&ten, "a/b"))
	if at := obj.GetDeletionTimestamp(); at == nil || !at.Equal(&began) || obj.GetDeletionGracePeriodSeconds() == nil {
		t.Errorf("an update leaves %v", obj)
	}
	for _, c := range []struct {
		obj  *corev1.ConfigMap
		want bool
	}{{object(nil), true}, {object(&zero), true}, {object(&ten), false}, {object(&zero, "a/b"), false}, {&corev1.ConfigMap{}, false}} {
		if canRemove(c.obj) != c.want {
			t.Errorf("%+v: want %v", c.obj.ObjectMeta, c.want)
		}
	}
}

// A dry run stores nothing, neither a new object nor a changed one.
func TestDryRunsStoreNothing(t *testing.T) {
	t.Parallel()
	wr := openWriter(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	res := wr.Types.Lookup("", "v1", "configmaps")
	insert := func(name string, opts Options) {
		t.Helper()
		if _, err := wr.Insert(t.Context(), res, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "n"}}, opts); err != nil {
			t.Fatal(err)
		}
	}
	insert("c", Options{})
	before := wr.Store.Revision()
	insert("d", Options{dryRun: true})
	_, _, err := wr.Modify(t.Context(), Target{Resource: res, Namespace: "n", Name: "c"}, Options{dryRun: true}, func(old scheme.Object, _ *store.Record) (scheme.Object, error) {
		obj := old.DeepCopyObject().(*corev1.ConfigMap)
		obj.Data = map[string]string{"a": "b"}
		return obj, nil
	})
	if err != nil || wr.Store.Revision() != before {
		t.Errorf("%v, revision %d, was %d", err, wr.Store.Revision(), before)
	}
}

// The commit of a create looks at its namespace again, which may be deleted after the first look.
func TestCreatesDependOnTheirNamespace(t *testing.T) {
	t.Parallel()
	wr := &Writer{Types: scheme.NewRegistry()}
	for plural, want := range map[string]string{"configmaps": NamespaceKey("n"), "nodes": ""} {
		c := wr.changeOf(&plan{Target: Target{Resource: wr.Types.Lookup("", "v1", plural), Namespace: "n", Name: "x"}}, nil, 0)
		if c.Op != store.OpCreate || c.Parent != want {
			t.Errorf("%s: %+v, want the parent %q", plural, c, want)
		}
	}
}

// Who has lost a race computes again in the queue of the key.
func TestLosersOfARaceQueue(t *testing.T) {
	t.Parallel()
	wr := openWriter(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	res := wr.Types.Lookup("", "v1", "configmaps")
	if _, err := wr.Insert(t.Context(), res, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "n"}}, Options{}); err != nil {
		t.Fatal(err)
	}
	target := Target{Resource: res, Namespace: "n", Name: "c"}
	label := func(old scheme.Object, name string) scheme.Object {
		obj := old.DeepCopyObject().(*corev1.ConfigMap)
		obj.Labels = map[string]string{name: "x"}
		return obj
	}
	var queued []int // how many keys are locked in each round
	_, _, err := wr.Modify(t.Context(), target, Options{}, func(old scheme.Object, _ *store.Record) (scheme.Object, error) {
		if queued = append(queued, len(wr.locks.queues)); len(queued) == 1 {
			if _, _, err := wr.Modify(t.Context(), target, Options{}, func(old scheme.Object, _ *store.Record) (scheme.Object, error) { return label(old, "faster"), nil }); err != nil {
				return nil, err
			}
		}
		return label(old, "slower"), nil
	})
	if err != nil || !slices.Equal(queued, []int{0, 1}) || len(wr.locks.queues) != 0 {
		t.Errorf("%v, locked were %v, and are %d", err, queued, len(wr.locks.queues))
	}
}

// A write takes all the permissions that it needs, also those that the URL does not show.
func TestWritesNeedTheirPermissions(t *testing.T) {
	t.Parallel()
	wr := openWriter(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	var err error
	if wr.Auth, err = auth.New(auth.Config{Insecure: true}); err != nil {
		t.Fatal(err)
	}
	for user, want := range map[string]bool{"bob": false, "root": true} {
		rec := &request.Request{User: request.User{Name: user}.WithAuthenticatedGroup()}
		if want {
			rec.User.Groups = append(rec.User.Groups, request.GroupMasters)
		}
		rec.Info = request.Info{ResourceRequest: true, Verb: "create", Group: rbacv1.GroupName, Version: "v1", Resource: "clusterroles"}
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}}}
		if _, err := wr.Insert(t.Context(), wr.Types.Lookup(rbacv1.GroupName, "v1", "clusterroles"), role, Options{rec: rec}); (err == nil) != want || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("%s writes a role: %v", user, err)
		}
		rec.Info = request.Info{ResourceRequest: true, Verb: "patch", Version: "v1", Resource: "configmaps", Namespace: "n", Name: user}
		target := Target{Resource: wr.Types.Lookup("", "v1", "configmaps"), Namespace: "n", Name: user, Upsert: true}
		if _, _, err := wr.Modify(t.Context(), target, Options{rec: rec}, func(scheme.Object, *store.Record) (scheme.Object, error) {
			return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: user, Namespace: "n"}}, nil
		}); (err == nil) != want || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("%s applies a new object: %v", user, err)
		}
	}
}

// A pod gets its node once.
func TestPodsAreBoundOnce(t *testing.T) {
	t.Parallel()
	now := metav1.Now()
	for title, c := range map[string]struct {
		pod  corev1.Pod
		want bool
	}{
		"a new pod":                {corev1.Pod{}, true},
		"a pod on a node":          {corev1.Pod{Spec: corev1.PodSpec{NodeName: "other"}}, false},
		"a pod on the same node":   {corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}}, false},
		"a pod that waits at gate": {corev1.Pod{Spec: corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: "g"}}}}, false},
		"a pod that is deleted":    {corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}}, false},
	} {
		_, err := assignNode(&c.pod, &corev1.Binding{Target: corev1.ObjectReference{Name: "n"}})
		if (err == nil) != c.want || err != nil && !apierrors.IsConflict(err) {
			t.Errorf("%s: %v", title, err)
		}
	}
}
