package registry

import (
	"context"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/apitest"
	"apilet/internal/auth"
	"apilet/internal/auth/serviceaccount"
	"apilet/internal/scheme"
	"apilet/internal/store"
	"apilet/internal/store/storetest"
)

// TestOthersAreFollowedPastACompaction: what is read of a kind's objects is brought up to date, also when the last of them went while the log was
// compacted.
func TestOthersAreFollowedPastACompaction(t *testing.T) {
	t.Parallel()
	st, err := store.Open("", store.Options{Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	reg := scheme.NewRegistry()
	other := &Writer{Store: st, Types: reg, Auth: &auth.Authenticator{Accounts: &serviceaccount.Tokens{}}}
	roles := reg.Lookup(rbacv1.GroupName, "v1", "clusterroles")
	insert := func(name string) {
		t.Helper()
		if _, err := other.Insert(t.Context(), roles, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}}, Options{Trusted: true}); err != nil {
			t.Fatal(err)
		}
	}
	insert("x")
	counted, busy := make(chan int64), make(chan struct{}) // how many there are; the follower goes on when it is told to
	wr := &Writer{Store: st, Types: reg, OnPolicyCommit: func(res *scheme.Resource, _ int64) {
		objects, _, _ := st.Count(res.Base)
		counted <- objects
		<-busy
	}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { wr.followKind(ctx, roles); close(ended) }()
	expect := func(want int64) {
		t.Helper()
		select {
		case got := <-counted:
			if got != want {
				t.Errorf("in force are %d, want %d", got, want)
			}
		case <-apitest.Timeout(t):
			t.Fatal("nothing is brought into force")
		}
	}
	expect(1) // the reset
	busy <- struct{}{}
	expect(1) // and what there is
	busy <- struct{}{}
	insert("y")
	expect(2)
	for _, name := range []string{"x", "y"} {
		if _, _, err := other.Delete(t.Context(), roles, "", name, &metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	storetest.Forget(t, st)
	busy <- struct{}{}
	expect(0)
	cancel()
	busy <- struct{}{}
	<-ended
}
