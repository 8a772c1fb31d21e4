package quota

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestWhatIsReserved: what a status has grown by alone is reserved until as much has come.
func TestWhatIsReserved(t *testing.T) {
	now := time.Now()
	pods := func(n string) usage { return usage(list(map[corev1.ResourceName]string{"pods": n})) }
	version := func(rev int64, used string) *limit {
		return newLimit(&corev1.ResourceQuota{Spec: corev1.ResourceQuotaSpec{Hard: list(map[corev1.ResourceName]string{"pods": "9"})},
			Status: corev1.ResourceQuotaStatus{Used: corev1.ResourceList(pods(used))}}, rev)
	}
	lim := version(1, "2")
	lim.used = pods("2")
	status := func(rev int64, used string, together bool) {
		next := version(rev, used)
		lim.reserve(next, together, now)
		lim.copyFrom(next)
	}
	comes := func(rev int64) {
		lim.used.add(pods("1"))
		lim.addUsage(pods("1"), rev)
	}
	for _, step := range []struct {
		what string
		do   func()
		want string
	}{
		{"kube-apiserver raises the status", func() { status(2, "4", false) }, "pods=2"},
		{"one comes", func() { comes(3) }, "pods=1"},
		{"one of an apilet's comes, with its status", func() { comes(4); status(4, "5", true) }, "pods=1"},
		{"kube-controller-manager lowers the status", func() { status(5, "4", false) }, ""},
		{"kube-apiserver raises it", func() { status(6, "5", false) }, "pods=1"},
		{"it does not come, and is overdue", func() { lim.expire(now.Add(2 * reservedFor)) }, ""},
		{"the status is corrected upwards", func() { comes(7); comes(8); status(9, "6", false) }, ""},
		{"it is raised, and lowered by less", func() { status(10, "9", false); status(11, "8", false) }, "pods=2"},
	} {
		if step.do(); lim.reserved.String() != step.want {
			t.Errorf("%s: %q is reserved, want %q", step.what, lim.reserved, step.want)
		}
	}
}
