package bootstrap

import (
	"context"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/auth"
	"apilet/internal/auth/serviceaccount"
	"apilet/internal/registry"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
	"apilet/internal/store/storetest"
)

// A bench is a store with a namespace, and a writer. Nobody keeps anything in step by himself.
type bench struct {
	testing.TB
	st  *store.Store
	reg *scheme.Registry
	wr  *registry.Writer
}

func newBench(t testing.TB) *bench {
	t.Helper()
	st, err := store.Open(filepath.Join(t.TempDir(), "a.db"), store.Options{Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	reg := scheme.NewRegistry()
	b := &bench{t, st, reg, &registry.Writer{Store: st, Types: reg, Auth: &auth.Authenticator{Accounts: &serviceaccount.Tokens{}}}}
	b.insert("", "namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	return b
}

func (b *bench) insert(group, plural string, obj scheme.Object) {
	b.Helper()
	if _, err := b.wr.Insert(context.Background(), b.reg.Lookup(group, "v1", plural), obj, registry.Options{Trusted: true}); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) remove(group, plural, namespace, name string) {
	b.Helper()
	if _, _, err := b.wr.Delete(context.Background(), b.reg.Lookup(group, "v1", plural), namespace, name, &metav1.DeleteOptions{}); err != nil {
		b.Fatal(err)
	}
}

// TestPolicyOutlivesCompaction: who has lost a right while the log was compacted has lost it, and who has got one has it.
func TestPolicyOutlivesCompaction(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	policy := NewPolicyReconciler(b.st, b.reg, b.wr, b.wr.Auth, func(err error) { t.Error(err) })
	bind := func(user string) {
		b.insert(rbacv1.GroupName, "rolebindings", &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: user},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reads"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}}})
	}
	expect := func(want ...string) {
		t.Helper()
		policy.OnCommit(b.reg.Lookup(rbacv1.GroupName, "v1", "roles"), b.st.Revision())
		for _, user := range []string{"old", "new"} {
			info := request.Info{ResourceRequest: true, Verb: "get", Resource: "configmaps", Namespace: "a", Name: "x"}
			if may, _ := b.wr.Auth.Decide(request.User{Name: user}, info); may != slices.Contains(want, user) {
				t.Errorf("%s: %v, wanted are %q", user, may, want)
			}
		}
	}
	b.insert(rbacv1.GroupName, "roles", &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "reads"},
		Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"configmaps"}}}})
	bind("old")
	expect("old")
	bind("new")
	expect("old", "new")
	b.remove(rbacv1.GroupName, "rolebindings", "a", "new")
	expect("old")
	b.remove(rbacv1.GroupName, "rolebindings", "a", "old")
	bind("new")
	storetest.Forget(t, b.st)
	expect("new")
	b.remove(rbacv1.GroupName, "rolebindings", "a", "new")
	expect()
}

// TestNamespacesOutliveCompaction: where the log does not tell what has happened all namespaces are looked at.
func TestNamespacesOutliveCompaction(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	s := NewNamespaceReconciler(b.st, b.reg, b.wr, nil, zerolog.Nop())
	log := b.st.Follow(accountRange, configMapRange)
	expect := func(want ...string) {
		t.Helper()
		lacking, err := s.incomplete(t.Context(), log)
		if slices.Sort(lacking); err != nil || !slices.Equal(lacking, want) {
			t.Errorf("looked at are %q, want %q: %v", lacking, want, err)
		}
		if err := s.ReconcileAll(t.Context(), lacking); err != nil {
			t.Fatal(err)
		}
	}
	b.insert("", "namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "b"}})
	expect("a", "b")
	expect()
	b.remove("", "serviceaccounts", "b", defaultAccount)
	expect("b")
	b.remove("", "serviceaccounts", "b", defaultAccount)
	storetest.Forget(t, b.st)
	expect("a", "b")
	if _, err := b.st.Get(s.accounts.Key("b", defaultAccount)); err != nil {
		t.Error(err)
	}
	expect()
}

// TestTokensOutliveCompaction: a filler knows which Secrets are there, and no others.
func TestTokensOutliveCompaction(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	f := &filler{TokenReconciler: NewTokenReconciler(b.st, b.reg, b.wr, zerolog.Nop()), lacking: map[string]struct{}{}, waiting: map[string]map[string]struct{}{}}
	log := b.st.Follow(secretRange, accountRange)
	insert := func(name string) {
		b.insert("", "secrets", &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name,
			Annotations: map[string]string{corev1.ServiceAccountNameKey: "none"}}, Type: corev1.SecretTypeServiceAccountToken})
	}
	expect := func(want ...string) {
		t.Helper()
		if err := log.CatchUp(t.Context(), f.forget, f.applyEvent); err != nil {
			t.Fatal(err)
		}
		if err := f.processAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		waiting := f.waiting[accountRange+"a/none"]
		for _, name := range want {
			if _, ok := waiting[secretRange+"a/"+name]; !ok || len(waiting) != len(want) {
				t.Errorf("%v wait for an account, want %q", waiting, want)
			}
		}
	}
	insert("old")
	expect("old")
	b.remove("", "secrets", "a", "old")
	insert("new")
	storetest.Forget(t, b.st)
	expect("new")
}
