package encryption

// This file has plug-ins that lie. A lie must never lead to a value that is stored in the clear or cannot be read later.

import (
	"bytes"
	"encoding/base64"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/apiserver"

	"apilet/internal/encryption/kmstest"
)

// startLiar is a plug-in whose answers to one method are altered while lying is true.
func startLiar(t *testing.T, method string, alter func(answer []byte) []byte) (p *plugin, lying *atomic.Bool) {
	t.Helper()
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte(keyOf(1)), 0o600); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "kms")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close(); os.RemoveAll(dir) })
	lying = &atomic.Bool{}
	go kmstest.ServeAltered(listener, keys, func(called string, answer []byte, err error) ([]byte, error) {
		if called != method || !lying.Load() {
			return answer, err
		}
		if answer = alter(answer); answer == nil {
			return nil, errors.New(strings.Repeat("x", 32<<10))
		}
		return answer, nil
	})
	p, err = newPlugin(&apiserver.KMSConfiguration{Name: "liar", Endpoint: "unix://" + filepath.Join(dir, "s"), Timeout: &metav1.Duration{Duration: 10 * time.Second}},
		newFigures(), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.remote.close)
	return p, lying
}

// aValue is where the test's value is stored.
var aValue = value{key: "/registry/secrets/default/a", resource: "secrets"}

// with replaces a field of an answer, or adds one.
func with(number protowire.Number, text string) func([]byte) []byte {
	return func(answer []byte) []byte {
		return protowire.AppendString(protowire.AppendTag(bytes.Clone(answer), number, protowire.BytesType), text) // the last one counts
	}
}

// annotation is an entry of a map of annotations.
func annotation(name, text string) string {
	return string(appendBytes(appendBytes(nil, 1, []byte(name)), 2, []byte(text)))
}

func TestPluginsThatLieAreNotWrittenUnder(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 200<<10)
	many := func(answer []byte) []byte {
		for i := range 8000 {
			answer = with(3, annotation(string([]byte{'_', byte('!' + i%90), byte('!' + i/90)}), ""))(answer)
		}
		return answer
	}
	cases := []struct {
		title, method string
		alter         func([]byte) []byte
		want          string // in the error
	}{
		{"a failure with a long text", "Status", func([]byte) []byte { return nil }, "rpc error"},
		{"an answer above the limit", "Status", with(2, strings.Repeat("x", 300<<10)), "message larger than max"},
		{"half an answer", "Status", func(a []byte) []byte { return a[:len(a)-3] }, "failed to perform status section"},
		{"no protobuf", "Status", func([]byte) []byte { return []byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff") }, "failed to perform status section"},
		{"not well, at length", "Status", with(2, long), "got unexpected healthz status: xxx"},
		{"a version of 200 KB", "Status", with(1, long), "expected KMSv2 API version v2, got xxx"},
		{"a key's id of 200 KB", "Status", with(3, long), "which exceeds the max size"},
		{"no key's id", "Status", with(3, ""), "keyID is empty"},
		{"another key's id than it encrypts under", "Status", with(3, "other"), "statusKeyIDHash"},
		{"no seed", "Encrypt", with(1, ""), "encrypted DEK source is empty"},
		{"a seed of 200 KB", "Encrypt", with(1, long), "which exceeds the max size"},
		{"a seed that it cannot decrypt", "Encrypt", with(1, "never encrypted"), "failed to decrypt the DEK seed that was just encrypted"},
		{"annotations that it does not understand", "Encrypt", with(3, annotation("salt.kms.example", "other")), "failed to decrypt the DEK seed"},
		{"annotations of 200 KB", "Encrypt", with(3, annotation("a.b", long)), "total size of annotations"},
		{"8,000 bad annotations", "Encrypt", many, "annotations: Invalid value"},
		{"another seed", "Decrypt", with(1, strings.Repeat("x", 32)), "to another one"},
		{"an empty seed", "Decrypt", with(1, ""), "to another one"},
		{"a failure to decrypt", "Decrypt", func([]byte) []byte { return nil }, "failed to decrypt"},
	}
	for _, c := range cases {
		t.Run(c.title, func(t *testing.T) {
			t.Parallel()
			p, lying := startLiar(t, c.method, c.alter)
			lying.Store(true)
			err := p.check(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 12<<10 {
				t.Errorf("an error of %d bytes: %.500v, want %s", len(errorText(err)), err, c.want)
			}
			sealed, err := p.seal(aValue, []byte("plain"))
			if c.method != "Status" && err == nil || bytes.Contains(sealed, []byte("plain")) {
				t.Errorf("sealed: %q %v", sealed, err)
			}
			lying.Store(false)
			p.lastCheck = time.Time{} // check again immediately
			if p.version = ""; p.check(t.Context()) != nil {
				t.Fatal(p.lastError)
			}
			sealed, err = p.seal(aValue, []byte("plain"))
			if err != nil {
				t.Fatal(err)
			}
			clear(p.seedCache) // as after a restart
			if plain, _, err := p.open(aValue, sealed); err != nil || string(plain) != "plain" {
				t.Errorf("%q %v", plain, err)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestSeedsInTheClearAreRefused: a plug-in that encrypts nothing would put the key beside each value.
func TestSeedsInTheClearAreRefused(t *testing.T) {
	t.Parallel()
	p := &plugin{}
	key := bytes.Repeat([]byte{7}, seedBytes)
	for title, o := range map[string]envelope{
		"as it is":         {encryptedSeed: key},
		"behind a title":   {encryptedSeed: append([]byte("v1:"), key...)},
		"in an annotation": {encryptedSeed: []byte("x"), annotations: map[string][]byte{"a.b": key}},
	} {
		if err := p.verifySeed(t.Context(), key, &o); err == nil || strings.Contains(err.Error(), base64.StdEncoding.EncodeToString(key)) {
			t.Errorf("%s: %v", title, err)
		}
	}
}

// TestLiesAboutStoredValuesAreErrors: what was good when it was written is not replaced by something else when it is read.
func TestLiesAboutStoredValuesAreErrors(t *testing.T) {
	t.Parallel()
	for title, alter := range map[string]func([]byte) []byte{
		"another seed":       with(1, strings.Repeat("x", 32)),
		"an empty seed":      with(1, ""),
		"a seed of one byte": with(1, "x"),
		"a seed of 200 KB":   with(1, strings.Repeat("x", 200<<10)),
		"a failure":          func([]byte) []byte { return nil },
	} {
		p, lying := startLiar(t, "Decrypt", alter)
		if err := p.check(t.Context()); err != nil {
			t.Fatal(err)
		}
		sealed, err := p.seal(aValue, []byte("plain"))
		if err != nil {
			t.Fatal(err)
		}
		clear(p.seedCache) // as after a restart
		lying.Store(true)
		if plain, _, err := p.open(aValue, sealed); err == nil || plain != nil || len(err.Error()) > 4<<10 {
			t.Errorf("%s: %q, an error of %d bytes", title, plain, len(errorText(err)))
		}
		lying.Store(false)
		if _, _, err := p.open(aValue, sealed); err != nil {
			t.Errorf("%s, and then the truth: %v", title, err)
		}
	}
}
