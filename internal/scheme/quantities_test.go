package scheme

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"apilet/internal/apitest/kubetest"
	"apilet/internal/bounded"
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
		typed := newOf(res.GoType)
		if err := kjson.UnmarshalCaseSensitivePreserveInts(doc, typed); err != nil {
			t.Fatal(err)
		}
		typed.GetObjectKind().SetGroupVersionKind(res.GroupVersionKind())
		if doc, err = json.Marshal(typed); err != nil {
			t.Fatal(err)
		}
		refused := func(how string, body []byte, contentType string) {
			t.Helper()
			if _, _, err := res.Decode(body, contentType, ""); err == nil || !strings.Contains(err.Error(), bounded.ErrQuantityRange.Error()) {
				t.Errorf("%s, %s: %v", res.Plural, how, err)
			}
		}
		for i := range bytes.Count(doc, []byte(fair)) {
			found++
			body := replaceNth(doc, i)
			if _, err := bounded.UnmarshalStrict(body, newOf(res.GoType)); !errors.Is(err, bounded.ErrQuantityRange) {
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
			if err := bounded.Unmarshal(body, newOf(res.GoType)); !errors.Is(err, bounded.ErrQuantityRange) {
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
