package bounded

import (
	"encoding/json"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/apitest/kubetest"
)

// TestInspectAgreesWithTheDecoder: a time of any year is odd exactly when it is not read again.
func TestInspectAgreesWithTheDecoder(t *testing.T) {
	t.Parallel()
	for year := int64(-20_000); year < 20_000; year += 7 {
		at := time.Date(int(year), 1, 1, 0, 0, 0, 0, time.UTC)
		for _, value := range []any{metav1.NewTime(at), metav1.NewMicroTime(at)} {
			doc := kubetest.Must(json.Marshal(map[string]any{"a": value}))
			readable := json.Unmarshal(doc, &struct{ A *metav1.MicroTime }{}) == nil || json.Unmarshal(doc, &struct{ A *metav1.Time }{}) == nil
			if odd := Inspect(doc).InvalidTime != 0; odd == readable {
				t.Fatalf("%s: odd %v, readable %v", doc, odd, readable)
			}
		}
	}
	for doc, want := range map[string]Inspection{
		`{"a":"{[\\\"[[[","b":[[]]}`: {Depth: 3, Deepest: 22},
		`"\\"`:                       {},
		`{"a":"\\","b":{}}`:          {Depth: 2, Deepest: 14},
		`"`:                          {},
		`["x`:                        {Depth: 1},
	} {
		if got := Inspect([]byte(doc)); got != want {
			t.Errorf("%s: %+v, want %+v", doc, got, want)
		}
	}
}
