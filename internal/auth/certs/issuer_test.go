package certs

import (
	"bytes"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"apilet/internal/apitest"
)

// ensureAll opens an issuer at a moment, and returns the certificate of each request and how many are new.
func ensureAll(t *testing.T, authority, dir string, now time.Time, requests ...Request) (pairs []*KeyPair, issued int) {
	t.Helper()
	issuer, err := OpenIssuer(Config{Dir: dir, Now: func() time.Time { return now }, Log: zerolog.Nop()}, authority)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range requests {
		pair, isNew, err := issuer.Ensure(r)
		if err != nil {
			t.Fatal(err)
		}
		if isNew {
			issued++
		}
		pairs = append(pairs, pair)
	}
	return pairs, issued
}

func TestIssuerKeepsCertificatesThatFit(t *testing.T) {
	t.Parallel()
	authority, dir, now := t.TempDir(), filepath.Join(t.TempDir(), "node"), time.Now()
	folder, _, err := openTestCerts(t, authority)
	if err != nil {
		t.Fatal(err)
	}
	client := Request{Name: "client", User: "system:node:a", Groups: []string{"system:nodes"}}
	server := Request{Name: "serving", User: "system:node:a", Groups: []string{"system:nodes"}, Hosts: []string{"a", "192.0.2.1"}}
	pairs, issued := ensureAll(t, authority, dir, now, client, server)
	if issued != 2 {
		t.Fatalf("%d new certificates in an empty folder", issued)
	}
	roots := x509.NewCertPool()
	roots.AddCert(folder.Authority.Cert)
	for i, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
		if _, err := pairs[i].Cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			t.Error(err)
		}
		if other := x509.ExtKeyUsageClientAuth + x509.ExtKeyUsageServerAuth - usage; len(pairs[i].Cert.ExtKeyUsage) != 1 || pairs[i].Cert.ExtKeyUsage[0] == other {
			t.Errorf("certificate %d has the usages %v", i, pairs[i].Cert.ExtKeyUsage)
		}
	}
	if err := pairs[1].Cert.VerifyHostname("192.0.2.1"); err != nil {
		t.Error(err)
	}
	if _, issued := ensureAll(t, authority, dir, now, client, server); issued != 0 {
		t.Errorf("%d new certificates the second time", issued)
	}
	for name, c := range map[string]struct {
		change func(*Request)
		later  time.Duration
	}{
		"another user":                 {change: func(r *Request) { r.User = "system:node:b" }},
		"another group":                {change: func(r *Request) { r.Groups = nil }},
		"another host":                 {change: func(r *Request) { r.Hosts = []string{"a", "192.0.2.2"} }},
		"a client instead of a server": {change: func(r *Request) { r.Hosts = nil }},
		"the certificate ends soon":    {later: certificateLife - RenewBefore + time.Hour},
	} {
		changed := server
		if c.change != nil {
			c.change(&changed)
		}
		if _, issued := ensureAll(t, authority, dir, now.Add(c.later), changed); issued != 1 {
			t.Errorf("%s: no new certificate", name)
		}
		ensureAll(t, authority, dir, now, server)
	}
}

func TestIssuerReplacesExposedKeys(t *testing.T) {
	t.Parallel()
	apitest.NeedsModes(t)
	authority, dir := t.TempDir(), t.TempDir()
	if _, _, err := openTestCerts(t, authority); err != nil {
		t.Fatal(err)
	}
	client := Request{Name: "client", User: "u"}
	before, _ := ensureAll(t, authority, dir, time.Now(), client)
	key := filepath.Join(dir, "client.key")
	if mode := modeOf(key); mode != 0o600 {
		t.Errorf("the key has mode %o", mode)
	}
	apitest.Chmod(t, key, 0o644)
	after, issued := ensureAll(t, authority, dir, time.Now(), client)
	if issued != 1 || bytes.Equal(before[0].KeyPEM, after[0].KeyPEM) || modeOf(key) != 0o600 {
		t.Errorf("issued %d, mode %o", issued, modeOf(key))
	}
}

// TestIssuerCreatesNoAuthority has a folder without an authority, and one with a damaged one.
func TestIssuerCreatesNoAuthority(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"", "rubbish"} {
		authority := t.TempDir()
		if content != "" {
			apitest.WriteFile(t, filepath.Join(authority, "ca.crt"), []byte(content))
		}
		if _, err := OpenIssuer(Config{Dir: t.TempDir(), Now: time.Now, Log: zerolog.Nop()}, authority); err == nil {
			t.Errorf("an authority of %q is accepted", content)
		}
		if _, err := os.Stat(filepath.Join(authority, "ca.key")); err == nil {
			t.Error("an authority was created")
		}
	}
}
