package encryption

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"apilet/internal/apitest"
)

// Values that a kube-apiserver has written say which key they need, without the key.
func TestKeyNames(t *testing.T) {
	var values []struct{ Value []byte }
	if err := json.Unmarshal(apitest.ReadFile(t, "testdata/kube.json"), &values); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, v := range values {
		names[KeyName(v.Value)] = true
	}
	if got := strings.Join(slices.Sorted(maps.Keys(names)), ", "); got != `aescbc key "cbc1", aesgcm key "gcm1", kms plug-in "tpm" with key ID "ad51a34865887331", secretbox key "box1"` {
		t.Errorf("got %s", got)
	}
	for _, text := range []string{"", "{}", "k8s:enc:", "k8s:enc:secretbox:v1:", "k8s:enc:secretbox:v1:key1", "k8s:enc:kms:v1:tpm:x", "k8s:enc:kms:v2:tpm:\xff"} {
		if got := KeyName([]byte(text)); got != "an unknown key" {
			t.Errorf("%q: %s", text, got)
		}
	}
}
