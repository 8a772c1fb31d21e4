package registry

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"apilet/internal/admission"
	"apilet/internal/admission/plugins"
	"apilet/internal/request"
	"apilet/internal/scheme"
)

func TestWritersOfOneObjectDoNotWaitBeyondTheirDeadline(t *testing.T) {
	var queue keyLocks
	leave, err := queue.lock(context.Background(), "k")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := queue.lock(ctx, "k"); !errors.Is(err, context.Canceled) {
		t.Errorf("a turn is waited for beyond the deadline: %v", err)
	}
	leave()
	if len(queue.queues) != 0 {
		t.Errorf("queues are left: %v", queue.queues)
	}
}

// BenchmarkWithoutAdmission is what a write pays that concerns no plug-in.
func BenchmarkWithoutAdmission(b *testing.B) {
	table := plugins.Table(plugins.Config{Webhooks: &admission.Webhooks{}})
	on, err := plugins.Select(table, nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	chain := admission.NewChain(table, on)
	res := scheme.NewRegistry().Lookup("", "v1", "configmaps")
	obj := &corev1.ConfigMap{}
	opts := Options{}
	ctx := context.WithValue(b.Context(), request.Key{}, &request.Request{})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := chain.Admit(ctx, opts.change(res, "", obj, obj)); err != nil {
			b.Fatal(err)
		}
		if err := chain.Validate(ctx, opts.change(res, "", obj, obj)); err != nil {
			b.Fatal(err)
		}
	}
}
