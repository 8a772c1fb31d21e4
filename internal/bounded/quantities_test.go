package bounded

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	kjson "sigs.k8s.io/json"

	"apilet/internal/apitest/kubetest"
)

func TestQuantitiesThatPeopleWriteAreTaken(t *testing.T) {
	for _, text := range []string{"0", "1", "-1", "100m", "1.5Gi", "12E", "12e6", "1E-9", "1e+03", "9223372036854775807", "0.000000000000000000001", "1e99", "1e-00012"} {
		doc := []byte(`{"metadata":{"name":"p","uid":"3e123456-0000-0000-0000-000000000000","annotations":{"a":"1e-2147483648"}},"spec":{"containers":[{"name":"1e-99999","resources":{"limits":{"cpu":"` + text + `"}}}]}}`)
		var pod corev1.Pod
		if err := Unmarshal(doc, &pod); err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if want := apiresource.MustParse(text); pod.Spec.Containers[0].Resources.Limits.Cpu().Cmp(want) != 0 {
			t.Errorf("%s was read as %s", text, pod.Spec.Containers[0].Resources.Limits.Cpu())
		}
	}
	for _, text := range []string{"1e100", "1E-100", "0e-2147483648", "-1e-16000000", "1e2147483647", strings.Repeat("9", 65), "0." + strings.Repeat("0", 80), " 1e-999 ", "1e-0000000100"} {
		if err := Unmarshal([]byte(`{"spec":{"containers":[{"resources":{"limits":{"cpu":"`+text+`"}}}]}}`), new(corev1.Pod)); !errors.Is(err, ErrQuantityRange) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// FuzzQuantity: what the guard lets through, the library reads and writes at once.
func FuzzQuantity(f *testing.F) {
	for _, text := range []string{"1", "1e-99", "1e99", "1.5Gi", "-0.1E9", "1e-2147483648", "0e100", "++1", "1Ee5"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if CheckQuantity(text) != nil {
			return
		}
		q, err := apiresource.ParseQuantity(text)
		if err != nil {
			return
		}
		q.Add(apiresource.MustParse("1n"))
		_ = q.String()
		if q.Cmp(apiresource.MustParse("1")) == 0 && q.Sign() < 0 {
			t.Error("a negative 1")
		}
		doc, _ := json.Marshal(map[string]string{"v": text})
		var into struct {
			V apiresource.Quantity `json:"v"`
		}
		if err := Unmarshal(doc, &into); errors.Is(err, ErrQuantityRange) {
			t.Errorf("%q is refused in a document", text)
		}
	})
}

// BenchmarkCheckQuantities compares the look for quantities with the decoding that follows it.
func BenchmarkCheckQuantities(b *testing.B) {
	doc, err := json.Marshal(kubetest.Filled(reflect.TypeFor[corev1.Pod]()))
	if err != nil {
		b.Fatal(err)
	}
	b.Run("check", func(b *testing.B) {
		for b.Loop() {
			if err := checkQuantities(doc, reflect.TypeFor[corev1.Pod]()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		for b.Loop() {
			if err := kjson.UnmarshalCaseSensitivePreserveInts(doc, new(corev1.Pod)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
