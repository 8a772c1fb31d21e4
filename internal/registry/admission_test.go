package registry

import (
	"context"
	"encoding/base64"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

func FuzzReviewAnswers(f *testing.F) {
	for _, seed := range []string{`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":true,"patchType":"JSONPatch","patch":"W3sib3AiOiJhZGQiLCJwYXRoIjoiL2RhdGEiLCJ2YWx1ZSI6e319XQ=="}}`,
		`{"response":{"allowed":false,"status":{"code":9999999}}}`, `{"response":null}`, `[]`, `{"response":{"patch":"` + base64.StdEncoding.EncodeToString([]byte(`[{"op":"replace","path":"","value":{}}]`)) + `"}}`} {
		f.Add([]byte(seed))
	}
	res := scheme.NewRegistry().Lookup("", "v1", "configmaps")
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, version := range []string{"v1", "v1beta1"} {
			answer, err := admission.DecodeReview(body, version, "u", admission.MutatingHook)
			if err != nil {
				continue
			}
			_ = admission.Denied("a", answer.Result).Error()
			a := admission.Attributes{Resource: res, Operation: admission.OpCreate, Request: &request.Request{},
				Object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}
			v := admission.NewInvocation(&admission.Webhooks{Defaults: FillDefaults}, &a)
			if _, err := v.Documents(res); err != nil {
				t.Fatal(err)
			}
			if _, err := v.Apply(&admission.Hook{}, res, answer); err == nil && v.Obj == nil {
				t.Error("a patch took the object away")
			}
		}
	})
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
