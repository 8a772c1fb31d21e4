package admission

import (
	"encoding/base64"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/kinds/defaults"
	"apilet/internal/request"
	"apilet/internal/scheme"
)

func FuzzReviewAnswers(f *testing.F) {
	for _, seed := range []string{`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":true,"patchType":"JSONPatch","patch":"W3sib3AiOiJhZGQiLCJwYXRoIjoiL2RhdGEiLCJ2YWx1ZSI6e319XQ=="}}`,
		`{"response":{"allowed":false,"status":{"code":9999999}}}`, `{"response":null}`, `[]`, `{"response":{"patch":"` + base64.StdEncoding.EncodeToString([]byte(`[{"op":"replace","path":"","value":{}}]`)) + `"}}`} {
		f.Add([]byte(seed))
	}
	res := scheme.NewRegistry().Lookup("", "v1", "configmaps")
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, version := range []string{"v1", "v1beta1"} {
			answer, err := decodeReview(body, version, "u", mutatingHook)
			if err != nil {
				continue
			}
			if no := newDenial("a", answer.Result); no.ErrStatus.Code < 400 || no.ErrStatus.Code > 599 || no.Error() == "" {
				t.Errorf("a denial with the code %d, which HTTP does not have", no.ErrStatus.Code)
			}
			a := Attributes{Resource: res, Operation: OpCreate, Request: &request.Request{},
				Object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}
			v := newInvocation(&Webhooks{Defaults: func(_ *scheme.Resource, obj scheme.Object) error { defaults.Set(obj); return nil }}, &a)
			if _, err := v.documents(res); err != nil {
				t.Fatal(err)
			}
			if _, err := v.apply(&Hook{}, res, answer); err == nil && v.obj == nil {
				t.Error("a patch took the object away")
			}
		}
	})
}
