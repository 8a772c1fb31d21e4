package certs

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"apilet/internal/apitest"
)

// An agreement is what servers share, with a precondition as etcd has it.
type agreement struct {
	mu      sync.Mutex // guards value and written
	value   []byte
	written int
}

func (a *agreement) share(decide func(value []byte) (next []byte, err error)) error {
	for {
		a.mu.Lock()
		before, written := a.value, a.written
		a.mu.Unlock()
		next, err := decide(before)
		if err != nil || next == nil {
			return err
		}
		a.mu.Lock()
		if a.written == written {
			a.value, a.written = next, written+1
			a.mu.Unlock()
			return nil
		}
		a.mu.Unlock()
	}
}

// holds tells the certificate that is shared, and whether its key is.
func (a *agreement) holds(t *testing.T) (certificate string, key bool) {
	t.Helper()
	var v sharedAuthority
	if err := json.Unmarshal(a.value, &v); err != nil {
		t.Fatal(err)
	}
	return v.Certificate, v.Key != ""
}

// join opens a server's folder, and returns what it has logged.
func (a *agreement) join(dir string, now func() time.Time) (*Folder, string, error) {
	log := &apitest.Log{}
	f, err := OpenCertFolder(Config{Dir: dir, Hosts: func() []string { return []string{"localhost"} }, Now: now, Share: a.share, Log: zerolog.New(log)})
	return f, log.String(), err
}

// handIn puts an authority of another name into a folder.
func handIn(t *testing.T, dir, name string) *KeyPair {
	t.Helper()
	ca, err := newPair(&x509.Certificate{Subject: pkix.Name{CommonName: name}, NotBefore: time.Now(), NotAfter: time.Now().Add(authorityLife), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil)
	if err != nil {
		t.Fatal(err)
	}
	apitest.WriteFile(t, filepath.Join(dir, "ca.crt"), ca.CertPEM)
	apitest.WriteFile(t, filepath.Join(dir, "ca.key"), ca.KeyPEM)
	return ca
}

// trusts tells whether who has the one's ca.crt trusts the other's server.
func trusts(a, b *Folder) bool {
	roots := x509.NewCertPool()
	roots.AddCert(a.Authority.Cert)
	_, err := b.Serving.Load().Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "localhost"})
	return err == nil
}

// TestServersThatStartAtOnceHaveOneAuthority, on disk or in memory, and keep it.
func TestServersThatStartAtOnceHaveOneAuthority(t *testing.T) {
	t.Parallel()
	var a agreement
	folders, dirs := make([]*Folder, 8), make([]string, 8)
	var starting sync.WaitGroup
	for i := range folders {
		if i%2 == 0 {
			dirs[i] = t.TempDir()
		}
		starting.Go(func() {
			var err error
			if folders[i], _, err = a.join(dirs[i], time.Now); err != nil {
				t.Error(err)
			}
		})
	}
	starting.Wait()
	if _, key := a.holds(t); !key || a.written != 1 {
		t.Errorf("shared after %d writes, the key: %v", a.written, key)
	}
	for i, f := range folders {
		if f == nil || !trusts(f, folders[0]) || !trusts(folders[0], f) {
			t.Fatalf("servers 0 and %d do not trust each other", i)
		}
		again, log, err := a.join(dirs[i], time.Now)
		if err != nil || !bytes.Equal(again.Authority.CertPEM, f.Authority.CertPEM) || dirs[i] != "" && log != "" {
			t.Errorf("started again: %v, logged %s", err, log)
		}
	}
}

// TestWhichAuthorityIsUsed: the table of authority.go.
func TestWhichAuthorityIsUsed(t *testing.T) {
	t.Parallel()
	const warned = `"level":"warn"`
	var a agreement
	alone := func() (string, *Folder) { // a server of before there was sharing
		dir := t.TempDir()
		f, _, err := openTestCerts(t, dir)
		if err != nil {
			t.Fatal(err)
		}
		return dir, f
	}
	want := func(title, dir, word string, authority *KeyPair, shared *KeyPair, sharedKey bool) *Folder {
		t.Helper()
		f, log, err := a.join(dir, time.Now)
		if err != nil {
			t.Fatalf("%s: %v", title, err)
		}
		if authority != nil && !bytes.Equal(f.Authority.CertPEM, authority.CertPEM) {
			t.Errorf("%s: another authority is used", title)
		}
		if dir != "" && !bytes.Equal(apitest.ReadFile(t, filepath.Join(dir, "ca.crt")), f.Authority.CertPEM) {
			t.Errorf("%s: ca.crt is not the authority's", title)
		}
		certificate, key := a.holds(t)
		if shared != nil && certificate != string(shared.CertPEM) || key != sharedKey {
			t.Errorf("%s: shared is another certificate, or the key: %v", title, key)
		}
		if word == "" && log != "" || !strings.Contains(log, word) || strings.Contains(log, "PRIVATE") {
			t.Errorf("%s: logged %s", title, log)
		}
		return f
	}
	first, old := alone()
	want("an installation of before", first, "", old.Authority, old.Authority, true)
	second, other := alone()
	want("another one", second, "differs from the one that the servers on this etcd share, and stays in use", other.Authority, old.Authority, true)
	third := t.TempDir()
	want("an empty folder", third, "copied the certificate authority", old.Authority, old.Authority, true)
	want("with a copy now", third, "", old.Authority, old.Authority, true)

	given := handIn(t, second, "acme")
	want("handed in", second, warned, given, given, false)
	want("again", second, "", given, given, false)
	want("one that took the former", third, "differs from the one that the servers on this etcd share", old.Authority, given, false)
	for _, dir := range []string{"", t.TempDir()} {
		if _, _, err := a.join(dir, time.Now); err == nil || !strings.Contains(err.Error(), "CN=acme") || !strings.Contains(err.Error(), "put its ca.crt and ca.key here") {
			t.Errorf("the key is nowhere: %v", err)
		}
	}
	next := handIn(t, second, "acme-2")
	want("another is handed in", second, `"before":"CN=acme"`, next, next, false)

	var fresh agreement
	dir := t.TempDir()
	given = handIn(t, dir, "acme")
	if f, log, err := fresh.join(dir, time.Now); err != nil || !bytes.Equal(f.Authority.KeyPEM, given.KeyPEM) || !strings.Contains(log, "to each server on this etcd") {
		t.Errorf("handed in first: %v, logged %s", err, log)
	}
	if _, key := fresh.holds(t); key || bytes.Contains(fresh.value, []byte("PRIVATE")) {
		t.Error("the key that was handed in is shared")
	}
}

// TestSharedCertificateIsMadeAnewOnce when it is about to end; the others take it, and all keys stay.
func TestSharedCertificateIsMadeAnewOnce(t *testing.T) {
	t.Parallel()
	for _, name := range []string{ownAuthorityName, "acme"} {
		var a agreement
		now := time.Now()
		clock := func() time.Time { return now }
		dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
		handed := handIn(t, dirs[0], name)
		for _, dir := range dirs[1:] {
			apitest.WriteFile(t, filepath.Join(dir, "ca.crt"), handed.CertPEM)
			apitest.WriteFile(t, filepath.Join(dir, "ca.key"), handed.KeyPEM)
		}
		join := func() (folders []*Folder, words []string) {
			folders, words = make([]*Folder, len(dirs)), make([]string, len(dirs))
			var starting sync.WaitGroup
			for i, dir := range dirs {
				starting.Go(func() {
					var err error
					if folders[i], words[i], err = a.join(dir, clock); err != nil {
						t.Error(err)
					}
				})
			}
			if starting.Wait(); t.Failed() {
				t.FailNow()
			}
			return folders, words
		}
		before, _ := join()
		now = now.Add(authorityLife - authorityRenew/2)
		written := a.written
		after, words := join()
		for i, f := range after {
			if !bytes.Equal(f.Authority.CertPEM, after[0].Authority.CertPEM) || bytes.Equal(f.Authority.CertPEM, before[i].Authority.CertPEM) || !f.Authority.hasKeyOf(before[i].Authority) {
				t.Errorf("%s: server %d has not the one new certificate on the old key", name, i)
			}
			if !strings.Contains(words[i], "made anew, on the same key: give ca.crt to clients") {
				t.Errorf("%s: server %d logged %s", name, i, words[i])
			}
		}
		if a.written != written+1 {
			t.Errorf("%s: the value was written %d times", name, a.written-written)
		}
		if _, key := a.holds(t); key != (name == ownAuthorityName) {
			t.Errorf("%s: the key is shared: %v", name, key)
		}
	}
}

// TestSharedRubbishStartsNobody, and does not become files.
func TestSharedRubbishStartsNobody(t *testing.T) {
	t.Parallel()
	leaf, _, err := openTestCerts(t, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	admin, err := leaf.IssueAdmin()
	if err != nil {
		t.Fatal(err)
	}
	text := func(v sharedAuthority) string {
		value, _ := json.Marshal(v)
		return string(value)
	}
	for title, value := range map[string]string{"nothing": "", "no JSON": "x", "an empty object": "{}", "no PEM": text(sharedAuthority{Certificate: "x"}),
		"another key":  text(sharedAuthority{Certificate: string(leaf.Authority.CertPEM), Key: string(admin.KeyPEM)}),
		"no authority": text(sharedAuthority{Certificate: string(admin.CertPEM), Key: string(admin.KeyPEM)}),
		"a CSR":        text(sharedAuthority{Certificate: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"})} {
		a, dir := agreement{value: []byte(value)}, t.TempDir()
		_, _, err := a.join(dir, time.Now)
		if err == nil || !strings.Contains(err.Error(), "the CA that the servers on this etcd share is invalid") || strings.Contains(err.Error(), "PRIVATE") {
			t.Errorf("%s: %v", title, err)
		}
		if files, _ := filepath.Glob(filepath.Join(dir, "*")); len(files) > 0 || string(a.value) != value {
			t.Errorf("%s: left %v", title, files)
		}
	}
}

// TestServingCertificateNamesWhatItShould: a name that is added or taken away makes it anew, an address that has gone does not.
func TestServingCertificateNamesWhatItShould(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var last []byte
	for _, step := range []struct {
		hosts string
		word  string
	}{
		{"api.example.com 10.1.2.3", ""}, {"api.example.com 10.1.2.3", ""}, {"api.example.com *.example.org 10.1.2.3", "it does not name *.example.org"},
		{"*.example.org 10.1.2.3", "it names api.example.com"}, {"*.example.org", ""}, {"*.example.org 10.1.2.4", "it does not name 10.1.2.4"},
	} {
		f, log, err := openTestCerts(t, dir, strings.Fields(step.hosts)...)
		if err != nil || !strings.Contains(log, step.word) {
			t.Errorf("%s: %v, logged %s", step.hosts, err, log)
			continue
		}
		now := f.Serving.Load().Certificate[0]
		if last != nil && bytes.Equal(now, last) != (step.word == "") {
			t.Errorf("%s: the certificate stayed: %v", step.hosts, bytes.Equal(now, last))
		}
		last = now
		for _, host := range strings.Fields(strings.ReplaceAll(step.hosts, "*", "some")) {
			if err := f.Serving.Load().Leaf.VerifyHostname(host); err != nil {
				t.Error(err)
			}
		}
	}
}
