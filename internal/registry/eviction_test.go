package registry

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// No request can store a negative count, but an etcd cluster may hold one that another server wrote.
func TestNegativeDisruptionsAllowedRefuseAnEviction(t *testing.T) {
	pdb := &policyv1.PodDisruptionBudget{Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: -1}}
	pdb.Name = "b"
	_, err := disrupted(pdb, &corev1.Pod{})
	const want = `poddisruptionbudget.policy "b" is forbidden: pdb disruptions allowed is negative`
	if !apierrors.IsForbidden(err) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
