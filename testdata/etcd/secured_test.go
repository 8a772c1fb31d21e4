package etcd

// This file tests etcd with TLS. Some of the certificates created by the test are invalid.

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"apilet/apilettest"
)

// An authority signs certificates.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.key, a.cert = a.sign(name, nil, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	a.file = filepath.Join(a.dir, name+".crt")
	return a
}

// sign writes NAME.crt and NAME.key for 127.0.0.1, valid for an hour unless the template has other
// values.
func (a *authority) sign(name string, signer *authority, template *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	a.t.Helper()
	must := func(err error) {
		a.t.Helper()
		if err != nil {
			a.t.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	template.SerialNumber, template.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	if template.NotBefore = time.Now().Add(-2 * time.Hour); template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	parent, by := template, key
	if signer != nil {
		parent, by = signer.cert, signer.key
		template.IPAddresses, template.ExtKeyUsage = []net.IP{{127, 0, 0, 1}}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	must(err)
	cert, err := x509.ParseCertificate(der)
	must(err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(err)
	for file, block := range map[string]*pem.Block{name + ".crt": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "PRIVATE KEY", Bytes: private}} {
		must(os.WriteFile(filepath.Join(a.dir, file), pem.EncodeToMemory(block), 0o600))
	}
	return key, cert
}

// flags returns the flags for the certificate and the key.
func (a *authority) flags(name string, template *x509.Certificate, names ...string) (flags []string) {
	a.sign(name, a, template)
	return []string{names[0], filepath.Join(a.dir, name+".crt"), names[1], filepath.Join(a.dir, name+".key")}
}

func TestEtcdBehindTLS(t *testing.T) {
	t.Parallel()
	ours, others := newAuthority(t, "ours"), newAuthority(t, "others")
	c := startCluster(t, 1, append(ours.flags("server", &x509.Certificate{}, "--cert-file", "--key-file"), "--trusted-ca-file", ours.file, "--client-cert-auth")...)
	pair := func(a *authority, name string, template *x509.Certificate) []string {
		return a.flags(name, template, "--etcd-certfile", "--etcd-keyfile")
	}
	client := pair(ours, "client", &x509.Certificate{})
	expired := pair(ours, "expired", &x509.Certificate{NotAfter: time.Now().Add(-time.Hour)})
	stranger := pair(others, "stranger", &x509.Certificate{})
	s := c.startServer(append([]string{"--etcd-cafile", ours.file}, client...)...)
	s.do(201, "POST", maps, aMap("o", "1", ""))
	s.Kill()
	s.Launch()
	s.ready()
	s.do(200, "GET", maps+"/o", "")

	refusedWith := func(title, want, url string, flags ...string) {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			p := newProcess(t, apilettest.Program(t), append([]string{"--ephemeral", "--listen", "127.0.0.1:0",
				"--etcd-servers", url}, flags...)...)
			p.Launch()
			select {
			case <-p.Process().Done:
			case <-time.After(patience):
				p.Kill()
				t.Fatalf("it waits for what will not come:\n%s", p.Log())
			}
			if log := p.Log(); p.Process().State().ExitCode() != 1 || !strings.Contains(log, want) || strings.Contains(log, "panic") {
				t.Errorf("it ends with %v and says\n%s\nwant %q", p.Process().State(), log, want)
			}
		})
	}
	url := c.urls[0]
	refusedWith("an authority that is not etcd's", "signed by unknown authority", url, append([]string{"--etcd-cafile", others.file}, client...)...)
	refusedWith("no authority", "signed by unknown authority", url, client...)
	refusedWith("no certificate", "--etcd-certfile", url, "--etcd-cafile", ours.file)
	refusedWith("a certificate of another authority", "--etcd-certfile", url, append([]string{"--etcd-cafile", ours.file}, stranger...)...)
	refusedWith("a certificate that has expired", "--etcd-certfile", url, append([]string{"--etcd-cafile", ours.file}, expired...)...)
	refusedWith("a certificate without its key", "KeyFile and CertFile must both be present", url, "--etcd-cafile", ours.file, client[0], client[1])
	refusedWith("a key that is not the certificate's", "does not match", url, "--etcd-cafile", ours.file, client[0], client[1], "--etcd-keyfile", stranger[3])
	refusedWith("a file that is not there", "no such file", url, "--etcd-cafile", filepath.Join(ours.dir, "none"))
	refusedWith("another host name", "wanted to match localhost", strings.Replace(url, "127.0.0.1", "localhost", 1), append([]string{"--etcd-cafile", ours.file}, client...)...)

	// A peer that closes the connection may be starting, so the server retries for a while and logs
	// the reason.
	plain := startCluster(t, 1)
	for url, want := range map[string]string{strings.Replace(plain.urls[0], "http:", "https:", 1): "it may not use TLS (http://)",
		strings.Replace(url, "https:", "http:", 1): "it may require TLS (https://)"} {
		p := newProcess(t, apilettest.Program(t), append([]string{"--ephemeral", "--listen", "127.0.0.1:0",
			"--etcd-servers", url, "--etcd-cafile", ours.file}, client...)...)
		p.Launch()
		apilettest.Until(t, "it says why it waits", func() error {
			if log := p.Log(); !strings.Contains(log, want) {
				return fmt.Errorf("it says %s", log)
			}
			return nil
		})
		p.Kill()
	}
}

// TestCertificateIsReplaced checks that the server logs an error if its certificate is rejected,
// and that it reconnects after the file was replaced.
func TestCertificateIsReplaced(t *testing.T) {
	t.Parallel()
	ours := newAuthority(t, "ours")
	server := append(ours.flags("server", &x509.Certificate{}, "--cert-file", "--key-file"), "--trusted-ca-file", ours.file, "--client-cert-auth")
	c := startCluster(t, 1, server...)
	pair := ours.flags("client", &x509.Certificate{}, "--etcd-certfile", "--etcd-keyfile")
	s := c.startServer(append([]string{"--etcd-cafile", ours.file}, pair...)...)
	s.do(201, "POST", maps, aMap("o", "1", ""))
	ours.sign("client", ours, &x509.Certificate{NotAfter: time.Now().Add(-time.Hour)})
	c.members[0].Kill() // existing connections are not checked again
	c.members[0].Launch()
	apilettest.Until(t, "/readyz says why", func() error {
		code, text, err := s.try("GET", "/readyz?verbose", "", patience)
		if code != 500 || !strings.Contains(text, "certificate") {
			return fmt.Errorf("%d %s %v", code, text, err)
		}
		return nil
	})
	s.do(200, "GET", maps+"/o?resourceVersion=0", "")
	ours.sign("client", ours, &x509.Certificate{})
	s.ready()
	s.do(200, "PATCH", maps+"/o", `{"data":{"v":"2"}}`)
}
