package gc

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"apilet/internal/auth"
	"apilet/internal/auth/serviceaccount"
	"apilet/internal/registry"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// startReaper has a reaper that has read a store with one namespace, and reads on when it is told to.
func startReaper(t *testing.T) *Reaper {
	t.Helper()
	st, err := store.Open(filepath.Join(t.TempDir(), "a.db"), store.Options{Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	reg := scheme.NewRegistry()
	wr := &registry.Writer{Store: st, Types: reg, Auth: &auth.Authenticator{Accounts: &serviceaccount.Tokens{}}}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := wr.Insert(t.Context(), reg.Lookup("", "v1", "namespaces"), namespace, registry.Options{Trusted: true}); err != nil {
		t.Fatal(err)
	}
	rp := &Reaper{Gc: &Collector{Store: st, Types: reg, Writer: wr, Log: zerolog.Nop()}}
	if err := rp.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return rp
}

// configMap stores one in the namespace default that blocks its owner, if it has one, and returns its reference.
func (rp *Reaper) configMap(t *testing.T, name string, finalizers []string, owners ...metav1.OwnerReference) metav1.OwnerReference {
	t.Helper()
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, OwnerReferences: owners, Finalizers: finalizers}}
	rec, err := rp.Gc.Writer.Insert(t.Context(), rp.Gc.Types.Lookup("", "v1", "configmaps"), obj, registry.Options{Trusted: true})
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	return metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: name, UID: types.UID(UidOf(rec.JSON)), BlockOwnerDeletion: &yes}
}

// stored is the JSON of a ConfigMap, "" when there is none.
func (rp *Reaper) stored(name string) string {
	rec, _ := rp.Gc.Store.Get(rp.Gc.Types.Lookup("", "v1", "configmaps").Key("default", name))
	return string(rec.JSON)
}

// rest reads the log and does what follows, until nothing does.
func (rp *Reaper) rest(t *testing.T) {
	t.Helper()
	for {
		if err := rp.catchUp(); err != nil {
			t.Fatal(err)
		}
		if len(rp.Dirty) == 0 {
			return
		}
		rp.work(t.Context())
	}
}

// TestForegroundWaitsForWhatTheGraphDoesNotKnowYet: an owner's deletion in the foreground goes down a chain whose lower end is written
// while the reaper reads of its upper end.
func TestForegroundWaitsForWhatTheGraphDoesNotKnowYet(t *testing.T) {
	t.Parallel()
	rp := startReaper(t)
	owner := rp.configMap(t, "c0", nil)
	owner = rp.configMap(t, "c1", nil, owner)
	upTo := rp.Gc.Store.Revision()
	for i := 2; i < 5; i++ {
		var finalizers []string
		if i == 4 {
			finalizers = []string{"test/hold"}
		}
		owner = rp.configMap(t, fmt.Sprintf("c%d", i), finalizers, owner)
	}
	foreground := metav1.DeletePropagationForeground
	configMaps := rp.Gc.Types.Lookup("", "v1", "configmaps")
	if _, _, err := rp.Gc.Writer.Delete(t.Context(), configMaps, "default", "c0", &metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}

	events, pos, err := rp.Gc.Store.Events(store.Everything, rp.pos, int(upTo-rp.pos), nil)
	if err != nil || pos != upTo {
		t.Fatalf("read up to %d, want %d: %v", pos, upTo, err)
	}
	for i := range events {
		rp.Apply(&events[i])
	}
	rp.pos = pos
	if _, dirty := rp.Dirty[configMaps.Key("default", "c1")]; !dirty {
		t.Fatal("c1 is not looked at while the graph lags: the test proves nothing")
	}
	rp.work(context.Background())
	rp.rest(t)

	for i := range 5 {
		name := fmt.Sprintf("c%d", i)
		if got := rp.stored(name); !gjson.Get(got, "metadata.deletionTimestamp").Exists() {
			t.Errorf("%s is not waiting: %s", name, got)
		}
	}
}
