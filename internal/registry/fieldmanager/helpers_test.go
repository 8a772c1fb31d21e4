package fieldmanager

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// reportCPU reports the process's CPU time, which other work on the machine does not stretch.
func reportCPU(b *testing.B) func() {
	var before, after syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	return func() {
		syscall.Getrusage(syscall.RUSAGE_SELF, &after)
		used := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
		b.ReportMetric(float64(used)/float64(b.N), "cpu-ns/op")
	}
}

// numbered is n copies of a format with one number.
func numbered(n int, format string) string {
	var out strings.Builder
	for i := range n {
		fmt.Fprintf(&out, format, i)
	}
	return out.String()
}

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

func deploymentJSON(containers int) string {
	var list []string
	for i := range containers {
		list = append(list, fmt.Sprintf(`{"name":"c%d","image":"registry.example.com/app:%d","ports":[{"containerPort":%d,"protocol":"TCP"}],`+
			`"env":[{"name":"A","value":"1"},{"name":"B","value":"2"}],"resources":{"limits":{"cpu":"100m","memory":"64Mi"}},"imagePullPolicy":"IfNotPresent"}`, i, i, 8000+i))
	}
	return `{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"d","namespace":"default","uid":"1","resourceVersion":"7","labels":{"app":"x"}},` +
		`"spec":{"replicas":2,"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"}},"spec":{"containers":[` +
		strings.Join(list, ",") + `],"restartPolicy":"Always"}},"strategy":{"type":"Recreate"}},"status":{}}`
}
