package layout

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"apilet/internal/apitest"
	"apilet/internal/encryption"
	"apilet/internal/encryption/kmstest"
	"apilet/internal/scheme"
)

// TestEncryptedValues: what a kube-apiserver has encrypted is read and written again under the same file, is stale under one with another first key,
// and without a file an object that nobody can read.
func TestEncryptedValues(t *testing.T) {
	var values []struct {
		Key, EtcdKey string
		Value        []byte
	}
	if err := json.Unmarshal(apitest.ReadFile(t, "../../encryption/testdata/kube.json"), &values); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "kms") // the name of a socket has a hundred characters at most
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go kmstest.Serve(listener, "../../encryption/testdata/kms.keys")
	text := strings.Replace(string(apitest.ReadFile(t, "../../encryption/testdata/kube.yaml")), "unix://SOCKET", "unix://"+dir+"/s", 1)
	under := func(text string) *Layout {
		t.Helper()
		path := filepath.Join(dir, "f.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		lay := withCustom()
		lay.reg.ReplaceCustom([]*scheme.Resource{scheme.GroupVersion("example.com", "v1", &scheme.Resource{Kind: "Widget", Plural: "widgets", Namespaced: true,
			Custom: &scheme.CustomStrategy{StorageVersion: "v1", ImplicitVersion: "v1"}})[0]})
		if lay.Encryption, err = encryption.Open(t.Context(), encryption.Config{Path: path, Log: zerolog.Nop()}); err != nil {
			t.Fatal(err)
		}
		return lay
	}
	same, off := under(text), withCustom()
	rotated := under(strings.ReplaceAll(text, "  providers:\n", "  providers:\n  - identity: {}\n"))
	for _, v := range values {
		stored, err := same.Decode(v.Key, v.Value)
		if err != nil || stored.Stale || !bytes.Contains(stored.JSON, []byte(`"name":"`+v.Key[strings.LastIndex(v.Key, "/")+1:])) {
			t.Errorf("%s: %v, stale is %v: %s", v.Key, err, stored.Stale, stored.JSON)
			continue
		}
		again, err := same.Encode(v.Key, stored.JSON)
		back, failed := same.Decode(v.Key, again)
		if err != nil || failed != nil || !bytes.HasPrefix(again, []byte("k8s:enc:")) || !bytes.Equal(back.JSON, stored.JSON) {
			t.Errorf("%s: %v, %v: %q", v.Key, err, failed, again)
		}
		if once, err := same.Encode(v.Key, stored.JSON); err != nil || bytes.Equal(once, again) || !same.Equal(v.Key, once, again) || same.Equal(v.Key, once, v.Value[1:]) {
			t.Errorf("%s: two values of one document are not the same: %v", v.Key, err)
		}
		if old, err := rotated.Decode(v.Key, v.Value); err != nil || !old.Stale || !bytes.Equal(old.JSON, stored.JSON) {
			t.Errorf("%s: %v, stale is %v under another first key", v.Key, err, old.Stale)
		}
		if _, err := off.Decode(v.Key, v.Value); !errors.Is(err, scheme.ErrUnreadable) || !strings.Contains(err.Error(), "kube-apiserver has encrypted it") {
			t.Errorf("%s: %v", v.Key, err)
		}
	}
}
