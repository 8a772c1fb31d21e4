package scheme

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"apilet/internal/apitest/kubetest"
)

// Quantities that are as long as each other, so that the one can stand for the other on the wire.
const (
	fair    = "1234567890123"
	hostile = "1e-2147483648" // hours of a processor, if the library sees it
)

// TestNoQuantityTakesHours: every quantity of every built-in type, in each form in which a body may come, and as it may lie in a file.
func TestNoQuantityTakesHours(t *testing.T) {
	found := 0
	for _, res := range NewRegistry().All() {
		if res.GoType == nil {
			continue
		}
		filled, err := json.Marshal(kubetest.Filled(res.GoType))
		if err != nil {
			t.Fatal(err)
		}
		doc := bytes.ReplaceAll(filled, []byte(`"5Mi"`), []byte(`"`+fair+`"`))
		typed := NewOf(res.GoType)
		if err := kjson.UnmarshalCaseSensitivePreserveInts(doc, typed); err != nil {
			t.Fatal(err)
		}
		typed.GetObjectKind().SetGroupVersionKind(res.GroupVersionKind())
		if doc, err = json.Marshal(typed); err != nil {
			t.Fatal(err)
		}
		refused := func(how string, body []byte, contentType string) {
			t.Helper()
			if _, _, err := res.Decode(body, contentType, ""); err == nil || !strings.Contains(err.Error(), ErrQuantityRange.Error()) {
				t.Errorf("%s, %s: %v", res.Plural, how, err)
			}
		}
		for i := range bytes.Count(doc, []byte(fair)) {
			found++
			body := replaceNth(doc, i)
			if err := checkQuantities(body, res.GoType); !errors.Is(err, ErrQuantityRange) {
				t.Errorf("%s: quantity %d of %s: %v", res.Plural, i, body, err)
			}
			if i > 0 { // all decoders look so
				continue
			}
			refused("JSON", body, "application/json")
			refused("JSON, a number", bytes.Replace(body, []byte(`"`+hostile+`"`), []byte(hostile), 1), "application/json")
			asYAML, err := yaml.JSONToYAML(body)
			if err != nil {
				t.Fatal(err)
			}
			refused("YAML", asYAML, "application/yaml")
			if err := Unmarshal(body, NewOf(res.GoType)); !errors.Is(err, ErrQuantityRange) {
				t.Errorf("%s, stored: %v", res.Plural, err)
			}
		}
		typed.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		if body := kubetest.Envelope(t, res.APIVersion(), res.Kind, typed); bytes.Contains(body, []byte(fair)) {
			for i := range bytes.Count(body, []byte(fair)) {
				refused("protobuf", replaceNth(body, i), "application/vnd.kubernetes.protobuf")
			}
		}
	}
	if found < 100 {
		t.Errorf("%d quantities in all types: some are not looked at", found)
	}
}

// replaceNth makes the nth fair quantity hostile.
func replaceNth(doc []byte, n int) []byte {
	out, at := bytes.Clone(doc), 0
	for range n {
		at += bytes.Index(out[at:], []byte(fair)) + len(fair)
	}
	at += bytes.Index(out[at:], []byte(fair))
	copy(out[at:], hostile)
	return out
}

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
