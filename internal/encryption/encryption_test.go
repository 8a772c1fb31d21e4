package encryption

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"

	"apilet/internal/apitest"
	"apilet/internal/encryption/kmstest"
)

// keyOf is a key of 32 equal bytes, in base64.
func keyOf(b byte) string { return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, 32)) }

// write makes a file about encryption of resources and their providers, each a line of YAML.
func write(t *testing.T, path string, resources map[string][]string) string {
	t.Helper()
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n"
	for resource, providers := range resources {
		text += "- resources: [\"" + resource + "\"]\n  providers:\n  - " + strings.Join(providers, "\n  - ") + "\n"
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t *testing.T, path string) *Providers {
	t.Helper()
	p, err := Open(t.Context(), Config{Path: path, Reload: true, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func box(name string, b byte) string {
	return "secretbox: {keys: [{name: " + name + ", secret: " + keyOf(b) + "}]}"
}

// startPlugin runs a KMS plug-in with the keys of a file, and returns its endpoint.
func startPlugin(t *testing.T, keys string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kms") // the name of a socket has a hundred characters at most
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close(); os.RemoveAll(dir) })
	go kmstest.Serve(listener, keys)
	return "unix://" + filepath.Join(dir, "s")
}

// TestFilesThatKubeAPIServerRefuses: for the same reasons, in the same words, but for a key that it shows.
func TestFilesThatKubeAPIServerRefuses(t *testing.T) {
	var cases []struct{ Name, File, Error string }
	if err := json.Unmarshal(apitest.ReadFile(t, "testdata/refused.json"), &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		path := filepath.Join(t.TempDir(), "f.yaml")
		if err := os.WriteFile(path, []byte(c.File), 0o600); err != nil {
			t.Fatal(err)
		}
		want := "--encryption-provider-config: " + c.Error
		switch c.Name {
		case "two-providers":
			want = `--encryption-provider-config: error while parsing file: resources[0].providers[0]: Invalid value: "REDACTED": more than one provider specified in a single element, should split into different list elements`
		case "no-provider":
			want = strings.ReplaceAll(want, `{"AESGCM":null,"AESCBC":null,"Secretbox":null,"Identity":null,"KMS":null}`, `"REDACTED"`)
		}
		_, err := Open(t.Context(), Config{Path: path, Log: zerolog.Nop()})
		if err == nil || strings.ReplaceAll(err.Error(), path, "FILE") != want {
			t.Errorf("%s:\n%s\n%v, want\n%s", c.Name, c.File, err, want)
		}
	}
}

// TestReadsWhatKubeAPIServerHasWritten: values of a real one's etcd, of each provider.
func TestReadsWhatKubeAPIServerHasWritten(t *testing.T) {
	var values []struct {
		Key, EtcdKey string
		Value        []byte
	}
	if err := json.Unmarshal(apitest.ReadFile(t, "testdata/kube.json"), &values); err != nil || len(values) != 6 {
		t.Fatal(err, len(values))
	}
	path := filepath.Join(t.TempDir(), "f.yaml")
	text := strings.Replace(string(apitest.ReadFile(t, "testdata/kube.yaml")), "unix://SOCKET", startPlugin(t, "testdata/kms.keys"), 1)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, used := open(t, path), map[string]bool{}
	for _, v := range values {
		if at := p.etcdKey(v.Key); at != v.EtcdKey {
			t.Errorf("the key of %s is %s, want %s", v.Key, at, v.EtcdKey)
		}
		used[strings.Split(string(v.Value), ":")[2]] = true
		plain, stale, err := p.OpenFromEtcd(v.Key, v.EtcdKey, v.Value)
		if err != nil || stale || !bytes.Contains(plain, []byte("default")) {
			t.Errorf("%s: %v, stale %v: %q", v.Key, err, stale, plain)
		}
		again, err := p.SealForEtcd(v.Key, v.EtcdKey, plain)
		if back, _, failed := p.OpenFromEtcd(v.Key, v.EtcdKey, again); err != nil || failed != nil || !bytes.Equal(back, plain) || bytes.Equal(again, v.Value) {
			t.Errorf("%s: %v, %v: %q", v.Key, err, failed, back)
		}
		at := bytes.LastIndex(v.Value[:40], []byte(":")) + 1
		if len(again) != len(v.Value) || !bytes.Equal(again[:at], v.Value[:at]) {
			t.Errorf("%s is written as %q, and kube-apiserver's is %q", v.Key, again, v.Value)
		}
		if used["aescbc"] && strings.Contains(v.Key, "roles") || strings.Contains(v.Key, "configmaps") { // whose ciphers do not authenticate a value's key
			continue
		}
		if plain, _, err := p.OpenFromEtcd(v.Key, v.EtcdKey+"x", v.Value); err == nil {
			t.Errorf("%s is read in another object's place: %q", v.Key, plain)
		}
	}
	if len(used) != 4 {
		t.Errorf("the values are of %v", used)
	}
}

// TestRotation: what another than the first key has written is read, and stale.
func TestRotation(t *testing.T) {
	const key = "//secrets/ns/s"
	doc, path := []byte(`{"metadata":{"name":"s"}}`), filepath.Join(t.TempDir(), "f.yaml")
	old := open(t, write(t, path, map[string][]string{"secrets": {box("one", 1), "identity: {}"}}))
	sealed, err := old.Seal(key, doc)
	if err != nil || !bytes.HasPrefix(sealed, []byte("k8s:enc:secretbox:v1:one:")) || bytes.Contains(sealed, doc) {
		t.Fatalf("%v: %q", err, sealed)
	}
	for _, c := range []struct {
		providers []string
		stale     bool
		err       string
	}{
		{[]string{box("one", 1)}, false, ""},
		{[]string{box("two", 2), box("one", 1)}, true, ""},
		{[]string{"secretbox: {keys: [{name: two, secret: " + keyOf(2) + "}, {name: one, secret: " + keyOf(1) + "}]}"}, true, ""},
		{[]string{"identity: {}", box("one", 1)}, true, ""},
		{[]string{box("one", 2), box("one", 1)}, true, ""}, // the same name, another key
		{[]string{box("two", 2)}, false, `unable to transform key "/registry/secrets/ns/s": no matching key was found for the provided Secretbox transformer`},
		{[]string{"aesgcm: {keys: [{name: one, secret: " + keyOf(1) + "}]}"}, false, `unable to transform key "/registry/secrets/ns/s": no matching prefix found`},
		{[]string{"identity: {}"}, false, `unable to transform key "/registry/secrets/ns/s": no matching prefix found`},
	} {
		p := open(t, write(t, path, map[string][]string{"secrets": c.providers}))
		plain, stale, err := p.Open(key, sealed)
		if (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("%v: %v, want %q", c.providers, err, c.err)
		} else if err == nil && (!bytes.Equal(plain, doc) || stale != c.stale) {
			t.Errorf("%v: stale is %v: %s", c.providers, stale, plain)
		}
	}
	off := open(t, "")
	if _, _, err := off.Open(key, sealed); err == nil || !strings.HasSuffix(err.Error(), "identity transformer tried to read encrypted data") {
		t.Error(err)
	}
}

// TestWildcards: the name itself, then *.group, then *.*; what is not named is left alone, and so is what no client sees.
func TestWildcards(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "f.yaml"), map[string][]string{"secrets": {box("exact", 1)}, "*.apps": {box("group", 2)}, "widgets.example.com": {box("custom", 3)}})
	p := open(t, path)
	for key, name := range map[string]string{"//secrets/ns/s": "exact", "/apps/deployments/ns/d": "group", "/example.com/widgets/ns/w": "custom",
		"//configmaps/ns/c": "", "/example.com/others/ns/w": "", "//rangeallocations//servicenodeports": ""} {
		sealed, err := p.Seal(key, []byte("{}"))
		if err != nil || name == "" && sealed != nil || !bytes.HasPrefix(sealed, []byte(map[bool]string{true: "k8s:enc:secretbox:v1:" + name + ":"}[name != ""])) {
			t.Errorf("%s: %v, %q", key, err, sealed)
		}
		if p.Encrypts(key) != (name != "") {
			t.Errorf("%s: Does is %v", key, p.Encrypts(key))
		}
	}
	all := open(t, write(t, path, map[string][]string{"*.*": {box("all", 1)}}))
	if !all.Encrypts("//pods/ns/p") || all.Encrypts("//rangeallocations//servicenodeports") {
		t.Error("*.* is not what it says")
	}
}

// TestReload: a changed file comes into force as a whole, one with a mistake does not.
func TestReload(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "f.yaml"), map[string][]string{"secrets": {box("one", 1)}})
	changed := make(chan struct{}, 1)
	p, err := Open(t.Context(), Config{Path: path, Reload: true, Log: zerolog.Nop(), OnReload: func() { changed <- struct{}{} }})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(t.Context())
	defer stop()
	go p.run(running, time.Millisecond, time.Millisecond)
	if err := os.WriteFile(path, []byte("apiVersion: nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	failures := p.figures.reloads.WithLabelValues("failure", p.figures.server)
	apitest.WaitFor(t, "a failure is counted", func() bool { return testutil.ToFloat64(failures) > 0 })
	if sealed, err := p.Seal("//secrets/ns/s", []byte("{}")); err != nil || !bytes.Contains(sealed, []byte(":one:")) {
		t.Errorf("%v: %q", err, sealed)
	}
	write(t, path+".new", map[string][]string{"secrets": {box("two", 2), box("one", 1)}})
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	<-changed
	if sealed, err := p.Seal("//secrets/ns/s", []byte("{}")); err != nil || !bytes.Contains(sealed, []byte(":two:")) {
		t.Errorf("%v: %q", err, sealed)
	}
}

// TestPluginRotatesAndGoes: a new key of the plug-in's is written under at the next look; without the plug-in what is known is read, and writing ends
// when it has not been well for too long.
func TestPluginRotatesAndGoes(t *testing.T) {
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys")
	setKeys := func(lines ...string) {
		if err := os.WriteFile(keys, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	setKeys(keyOf(1))
	provider := "kms: {apiVersion: v2, name: tpm, endpoint: '" + startPlugin(t, keys) + "'}"
	path := write(t, filepath.Join(dir, "f.yaml"), map[string][]string{"secrets": {provider}})
	p := open(t, path)
	plugin := p.current.Load().plugins[0]
	seal := func() []byte {
		t.Helper()
		sealed, err := p.Seal("//secrets/ns/s", []byte("planted"))
		if err != nil {
			t.Fatal(err)
		}
		return sealed
	}
	look := func() error {
		plugin.mu.Lock()
		plugin.lastCheck = time.Time{}
		plugin.mu.Unlock()
		return p.Health()
	}
	first := seal()
	setKeys(keyOf(2), keyOf(1))
	if err := look(); err != nil {
		t.Fatal(err)
	}
	second := seal()
	fresh := open(t, path) // knows no seed
	for i, sealed := range [][]byte{first, second} {
		for _, p := range []*Providers{p, fresh} {
			if plain, stale, err := p.Open("//secrets/ns/s", sealed); err != nil || string(plain) != "planted" || stale != (i == 0) {
				t.Errorf("%d: %v, stale %v: %q", i, err, stale, plain)
			}
		}
	}
	if n := testutil.ToFloat64(fresh.figures.misses); n != 2 {
		t.Errorf("the plug-in was asked %v times, want 2", n)
	}
	os.Remove(keys)
	if err := look(); err == nil || !strings.Contains(err.Error(), "kms-provider-0: kmsv2 Provider tpm is not healthy, error: ") {
		t.Error(err)
	}
	seal() // for three minutes
	now := *plugin.seed.Load()
	now.expires = time.Now().Add(-time.Second)
	plugin.seed.Store(&now)
	if _, err := p.Seal("//secrets/ns/s", []byte("planted")); err == nil || !strings.Contains(err.Error(), "encryptedDEKSource with keyID hash \"sha256:") {
		t.Error(err)
	}
	if sealed, err := p.ReplicaSealing().Seal("//secrets/ns/s", []byte("planted")); err != nil || sealed == nil {
		t.Error("a replica has to take over what is in etcd:", err)
	}
	if plain, _, err := p.Open("//secrets/ns/s", second); err != nil || string(plain) != "planted" {
		t.Errorf("what is known is not read: %v", err)
	}
	lost := open(t, path)
	if _, _, err := lost.Open("//secrets/ns/s", second); err == nil || !IsUnavailable(err) {
		t.Errorf("%v is not taken for what may pass", err)
	}
}

// TestRubbish: what lies in a store, or what a plug-in says, may be anything.
func TestRubbish(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.yaml")
	p := open(t, write(t, path, map[string][]string{"secrets": {"kms: {apiVersion: v2, name: k, endpoint: 'unix:///nowhere'}", box("a", 1),
		"aescbc: {keys: [{name: a, secret: " + keyOf(1) + "}]}", "aesgcm: {keys: [{name: a, secret: " + keyOf(1) + "}]}"}}))
	for _, prefix := range []string{"", "k8s:enc:", "k8s:enc:kms:v2:k:", secretboxPrefix + "a:", aescbcPrefix + "a:", aesgcmPrefix + "a:"} {
		for _, rest := range []string{"", "\x0a", "\x0a\xff\xff\xff\xff\x7f", "0123456789abcdef", strings.Repeat("x", 1000), "\x22\x02\x0a\x05"} {
			if plain, _, err := p.Open("//secrets/ns/s", []byte(prefix+rest)); err == nil {
				t.Errorf("%q is %q", prefix+rest, plain)
			}
		}
	}
	if err := p.Health(); err == nil || !strings.Contains(err.Error(), "failed to perform status section of the healthz check for KMS Provider k, error: rpc error: code = Unavailable") {
		t.Error(err)
	}
	if _, err := p.Seal("//secrets/ns/s", []byte("{}")); err == nil {
		t.Error("a value is sealed without a seed")
	}
}

// FuzzEnvelope: no bytes panic, and what is read is read again from what it is written as.
func FuzzEnvelope(f *testing.F) {
	o := envelope{data: []byte("d"), keyID: "k", encryptedSeed: []byte("s"), annotations: map[string][]byte{"a.b": []byte("c")}, source: sourceSeed}
	f.Add(o.marshal())
	f.Fuzz(func(t *testing.T, b []byte) {
		var one, other envelope
		if one.unmarshal(b) != nil || one.validate() != nil {
			return
		}
		if err := errors.Join(other.unmarshal(one.marshal()), other.validate()); err != nil || one.seedName() != other.seedName() || !bytes.Equal(one.data, other.data) {
			t.Errorf("%v: %+v became %+v", err, one, other)
		}
	})
}

func BenchmarkSeal(b *testing.B) {
	for name, provider := range map[string]string{"secretbox": box("a", 1), "aesgcm": "aesgcm: {keys: [{name: a, secret: " + keyOf(1) + "}]}",
		"aescbc": "aescbc: {keys: [{name: a, secret: " + keyOf(1) + "}]}"} {
		path := filepath.Join(b.TempDir(), "f.yaml")
		text := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n  - " + provider + "\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
		p, err := Open(b.Context(), Config{Path: path, Log: zerolog.Nop()})
		if err != nil {
			b.Fatal(err)
		}
		doc := bytes.Repeat([]byte("x"), 1024)
		sealed, _ := p.Seal("//secrets/ns/s", doc)
		b.Run(name+"/seal", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = p.Seal("//secrets/ns/s", doc)
			}
		})
		b.Run(name+"/open", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _, _ = p.Open("//secrets/ns/s", sealed)
			}
		})
	}
}
