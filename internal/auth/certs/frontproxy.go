package certs

// This file creates the client certificate for servers to which this server forwards requests. The
// certificate proves that this server has set the headers with the user:
//
//	front-proxy-ca.crt      signs only this certificate, because every certificate that it signs can impersonate any user
//	front-proxy-client.crt  CN=front-proxy-client, the client certificate
//
// kubeadm uses the same names. The authority differs from the authority for client certificates
// (ca.crt). Otherwise a client could use its certificate to impersonate this server.

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"

	"apilet/internal/clock"
)

// FrontProxyName is the common name of the certificate.
const FrontProxyName = "front-proxy-client"

const frontProxyAuthority = "front-proxy-ca"

// A FrontProxy holds the certificate that this server has created for forwarded requests. It is
// safe for concurrent use.
type FrontProxy struct {
	folder *Folder // with the authority of the front proxy

	mu   sync.Mutex // guards pair, which Current renews
	pair *KeyPair
}

// OpenFrontProxy reads the folder, and creates files that are missing or no longer valid. It
// ignores c.Hosts and c.Share.
func OpenFrontProxy(c Config) (*FrontProxy, error) {
	p := &FrontProxy{folder: &Folder{Config: c}}
	if c.Dir != "" {
		if err := os.MkdirAll(c.Dir, 0o700); err != nil {
			return nil, err
		}
		restrictFolder(c.Log, c.Dir)
	}
	ca, err := p.readPair(frontProxyAuthority)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		ca, err = newPair(&x509.Certificate{Subject: pkix.Name{CommonName: frontProxyAuthority}, NotBefore: clock.Earliest, NotAfter: c.Now().Add(authorityLife),
			IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature}, nil)
		if err == nil {
			err = p.folder.save(frontProxyAuthority, ca)
		}
	case err == nil && !c.Now().Add(authorityRenew).Before(ca.Cert.NotAfter):
		if ca, err = p.folder.renewAuthority(ca); err == nil {
			err = p.folder.save(frontProxyAuthority, ca)
		}
	}
	if err != nil {
		return nil, err
	}
	p.folder.Authority = ca
	if p.pair, err = p.readPair(FrontProxyName); err == nil && !p.mustReplace() {
		return p, nil
	}
	return p, p.renewLocked()
}

// readPair returns a key pair of the folder. It returns fs.ErrNotExist if other users could read
// the key.
func (p *FrontProxy) readPair(name string) (*KeyPair, error) {
	if p.folder.Dir == "" {
		return nil, fs.ErrNotExist
	}
	if _, err := os.Stat(p.folder.file(name + ".crt")); err != nil {
		return nil, err
	}
	if exposed, err := RestrictPermissions(p.folder.Log, p.folder.file(name+".key")); exposed && err == nil {
		return nil, fs.ErrNotExist
	}
	return p.folder.load(name)
}

// mustReplace reports whether the certificate must be replaced.
func (p *FrontProxy) mustReplace() bool {
	cert := p.pair.Cert
	return cert.CheckSignatureFrom(p.folder.Authority.Cert) != nil || cert.Subject.CommonName != FrontProxyName ||
		p.folder.Now().Add(RenewBefore).After(cert.NotAfter) && cert.NotAfter.Before(p.folder.Authority.Cert.NotAfter)
}

func (p *FrontProxy) renewLocked() (err error) {
	p.pair, err = p.folder.issue(&x509.Certificate{Subject: pkix.Name{CommonName: FrontProxyName}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return err
	}
	return p.folder.save(FrontProxyName, p.pair)
}

// Authority returns the PEM certificate of the authority.
func (p *FrontProxy) Authority() []byte { return p.folder.Authority.CertPEM }

// Current returns the certificate for a handshake. It returns the old certificate if the renewal
// fails.
func (p *FrontProxy) Current() *tls.Certificate {
	p.mu.Lock()
	defer p.mu.Unlock()
	if before := p.pair; p.mustReplace() {
		if err := p.renewLocked(); err != nil {
			p.folder.Log.Error().Err(err).Msg("cannot renew the front proxy's certificate")
			if p.pair == nil {
				p.pair = before
			}
		}
	}
	return &p.pair.tlsCertificate
}

// A ProxyClientCertificate is the client certificate that this server presents to other servers. It
// is created by the server or read from files. There is no certificate before Open.
type ProxyClientCertificate struct {
	shown atomic.Pointer[func() *tls.Certificate]
	own   *FrontProxy // nil if the certificate is read from files
}

// Open reads the certificate from the files or creates it. Later calls do nothing.
func (i *ProxyClientCertificate) Open(c Config, certFile, keyFile string) error {
	if i.shown.Load() != nil {
		return nil
	}
	var shown func() *tls.Certificate
	if certFile != "" {
		given, err := NewDynamicPair(c.Log, certFile, keyFile)
		if err != nil {
			return fmt.Errorf("--proxy-client-cert-file: %w", err)
		}
		shown = given.Current
	} else {
		own, err := OpenFrontProxy(c)
		if err != nil {
			return fmt.Errorf("--cert-dir: %w", err)
		}
		i.own, shown = own, own.Current
	}
	i.shown.Store(&shown)
	return nil
}

// Certificate returns the current certificate. It returns nil if there is no certificate.
func (i *ProxyClientCertificate) Certificate() *tls.Certificate {
	if shown := i.shown.Load(); shown != nil {
		return (*shown)()
	}
	return nil
}

// FrontProxy returns the certificate that this server has created, or nil if it is read from files.
func (i *ProxyClientCertificate) FrontProxy() *FrontProxy { return i.own }
