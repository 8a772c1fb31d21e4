package certs

import (
	"bytes"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

func TestFrontProxyIsKept(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	open := func() *FrontProxy {
		t.Helper()
		p, err := OpenFrontProxy(Config{Dir: dir, Now: func() time.Time { return now }, Log: zerolog.Nop()})
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(p.Authority())
		leaf := p.Current().Leaf
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil ||
			leaf.Subject.CommonName != FrontProxyName {
			t.Fatal(leaf.Subject, err)
		}
		return p
	}
	first := open()
	if again := open(); !bytes.Equal(first.Authority(), again.Authority()) || !bytes.Equal(first.Current().Leaf.Raw, again.Current().Leaf.Raw) {
		t.Error("another one the second time")
	}
	now = now.Add(certificateLife - RenewBefore/2) // it ends soon: renewed as it is asked for
	if bytes.Equal(first.Current().Leaf.Raw, open().Current().Leaf.Raw) && !now.Before(first.Current().Leaf.NotAfter.Add(-RenewBefore)) {
		t.Error("it was not renewed")
	}
	if err := os.Remove(filepath.Join(dir, "front-proxy-client.crt")); err != nil {
		t.Fatal(err)
	}
	if again := open(); !bytes.Equal(first.Authority(), again.Authority()) {
		t.Error("another authority for want of a certificate")
	}
	if err := os.WriteFile(filepath.Join(dir, "front-proxy-ca.crt"), []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFrontProxy(Config{Dir: dir, Now: time.Now, Log: zerolog.Nop()}); err == nil {
		t.Error("a damaged authority is taken")
	}
	if p, err := OpenFrontProxy(Config{Now: time.Now, Log: zerolog.Nop()}); err != nil || p.Current() == nil {
		t.Error("in memory:", err)
	}
}
