package auth

import (
	"context"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"apilet/internal/apitest"
)

// TestBadChainsCostOneSearch: a stranger's certificate costs one search, however many requests show it. A chain that nobody would send costs none.
func TestBadChainsCostOneSearch(t *testing.T) {
	_, file := apitest.NewCA(t)
	stranger, _ := apitest.NewCA(t)
	a, err := New(Config{ClientCAFile: file, RequestHeader: RequestHeader{ClientCAFile: file, Users: []string{"X-Remote-User"}}, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	leaf := stranger.Issue(t, pkix.Name{CommonName: "mallory"}, time.Hour, x509.ExtKeyUsageClientAuth)
	costly := *leaf
	costly.PublicKey = &rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), 2047), E: 1<<31 - 1}
	huge := *leaf
	huge.PublicKey = &rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), 16383), E: 65537}
	for _, c := range []struct {
		title string
		shown []*x509.Certificate
		want  int64 // searches so far
	}{
		{"a stranger's certificate", []*x509.Certificate{leaf}, 1},
		{"the same with another beside it", []*x509.Certificate{leaf, leaf}, 2},
		{"eleven", slices.Repeat([]*x509.Certificate{leaf}, 11), 2},
		{"an exponent of 31 bits", []*x509.Certificate{leaf, &costly}, 2},
		{"a modulus of 16,384 bits", []*x509.Certificate{leaf, &huge}, 2},
	} {
		for range 20 {
			r := httptest.NewRequest("GET", "/api", nil)
			r.Header.Set("X-Remote-User", "root")
			r.TLS = &tls.ConnectionState{PeerCertificates: c.shown}
			if u, err := a.identify(r); err == nil {
				t.Fatalf("%s: it is %v", c.title, u)
			}
		}
		if clients, proxies := a.chains.searches.Load(), a.proxies.chains.searches.Load(); clients != c.want || proxies != c.want {
			t.Errorf("%s: %d searches for clients' authorities and %d for proxies', want %d", c.title, clients, proxies, c.want)
		}
	}
}

// TestRejectedCertificatesBecomeGood: with an authority that vouches for it, or when its time comes.
func TestRejectedCertificatesBecomeGood(t *testing.T) {
	ca, file := apitest.NewCA(t)
	_, other := apitest.NewCA(t)
	now := time.Now()
	a, err := New(Config{ClientCAFile: other, Now: func() time.Time { return now }, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	leaf := ca.Issue(t, pkix.Name{CommonName: "carol"}, time.Hour, x509.ExtKeyUsageClientAuth)
	shown := []*x509.Certificate{leaf}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(apitest.ReadFile(t, file))
	early := leaf.NotBefore.Add(-time.Minute)
	for _, c := range []struct {
		title string
		roots *x509.CertPool
		now   time.Time
		good  bool
	}{{"another authority", a.ClientCAs.Current(), now, false}, {"too early", roots, early, false}, {"its authority, in its time", roots, now, true}} {
		if _, err := a.chains.verify(t.Context(), shown, c.roots, c.now); c.good != (err == nil) {
			t.Errorf("%s: %v", c.title, err)
		}
	}
}

// TestChainEndsWithItsFirstCertificate to expire, which may be the authority's, and is not rejected because a client went away.
func TestChainEndsWithItsFirstCertificate(t *testing.T) {
	ca, file := apitest.NewCA(t)
	a, err := New(Config{ClientCAFile: file, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	for _, valid := range []time.Duration{time.Minute, 24 * time.Hour} {
		shown := []*x509.Certificate{ca.Issue(t, pkix.Name{CommonName: "carol"}, valid, x509.ExtKeyUsageClientAuth)}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := a.chains.verify(ended, shown, a.ClientCAs.Current(), time.Now()); err == nil {
			t.Error("a chain was searched for nobody")
		}
		until, err := a.chains.verify(t.Context(), shown, a.ClientCAs.Current(), time.Now())
		first := shown[0].NotAfter
		if ca.Cert.NotAfter.Before(first) {
			first = ca.Cert.NotAfter
		}
		if err != nil || !until.Equal(first) {
			t.Errorf("a certificate of %v: it ends at %v, %v; want %v", valid, until, err, first)
		}
	}
}
