package registry

import (
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// refused asserts a Status error and returns its message.
func refused(t *testing.T, err error, code int32, reason metav1.StatusReason) string {
	t.Helper()
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		t.Fatalf("got %v, want a Status error %d", err, code)
	}
	if got := status.Status(); got.Code != code || got.Reason != reason {
		t.Errorf("got %d %s %q, want %d %s", got.Code, got.Reason, got.Message, code, reason)
	}
	return status.Status().Message
}
