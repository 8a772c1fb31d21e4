package certs

// This file makes what this server shows to servers that it passes requests on to: a certificate that proves that the headers which say who asks
// come from it and from nobody else.
//
//	front-proxy-ca.crt      signs the certificate, and nothing else ever: whoever holds one of its certificates may speak for anybody
//	front-proxy-client.crt  CN=front-proxy-client, shown in the handshake
//
// The names are kubeadm's. The authority is another than the one that vouches for clients here (ca.crt): a client's certificate must not
// pass for this server's.

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

// A FrontProxy is the certificate that this server makes for itself. Safe for concurrent use.
type FrontProxy struct {
	folder *Folder // whose authority is the front proxy's

	mu   sync.Mutex // guards pair: it is renewed by who asks for it when its end is near
	pair *KeyPair
}

// OpenFrontProxy reads the folder, and makes what is missing in it, or no good any more. c.Hosts and c.Share are of no use here.
func OpenFrontProxy(c Config) (*FrontProxy, error) {
	p := &FrontProxy{folder: &Folder{Config: c}}
	if c.Dir != "" {
		if err := os.MkdirAll(c.Dir, 0o700); err != nil {
			return nil, err
		}
		closeFolder(c.Log, c.Dir)
	}
	ca, err := p.kept(frontProxyAuthority)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		ca, err = newPair(&x509.Certificate{Subject: pkix.Name{CommonName: frontProxyAuthority}, NotBefore: clock.Earliest, NotAfter: c.Now().Add(authorityLife),
			IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature}, nil)
		if err == nil {
			err = p.folder.save(frontProxyAuthority, ca)
		}
	case err == nil && !c.Now().Add(authorityRenew).Before(ca.Cert.NotAfter):
		if ca, err = p.folder.prolong(ca); err == nil {
			err = p.folder.save(frontProxyAuthority, ca)
		}
	}
	if err != nil {
		return nil, err
	}
	p.folder.Authority = ca
	if p.pair, err = p.kept(FrontProxyName); err == nil && !p.unfit() {
		return p, nil
	}
	return p, p.renewLocked()
}

// kept is a pair of the folder. One whose key others could read is as good as none.
func (p *FrontProxy) kept(name string) (*KeyPair, error) {
	if p.folder.Dir == "" {
		return nil, fs.ErrNotExist
	}
	if _, err := os.Stat(p.folder.file(name + ".crt")); err != nil {
		return nil, err
	}
	if exposed, err := Hide(p.folder.Log, p.folder.file(name+".key")); exposed && err == nil {
		return nil, fs.ErrNotExist
	}
	return p.folder.load(name)
}

// unfit says that the certificate is to be made anew.
func (p *FrontProxy) unfit() bool {
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

// Authority is who vouches for the certificate, in PEM.
func (p *FrontProxy) Authority() []byte { return p.folder.Authority.CertPEM }

// Now is the certificate for a handshake. One that could not be renewed is shown as long as it lasts.
func (p *FrontProxy) Now() *tls.Certificate {
	p.mu.Lock()
	defer p.mu.Unlock()
	if before := p.pair; p.unfit() {
		if err := p.renewLocked(); err != nil {
			p.folder.Log.Error().Err(err).Msg("cannot renew the front proxy's certificate")
			if p.pair == nil {
				p.pair = before
			}
		}
	}
	return &p.pair.shown
}

// An Introduction is what this server shows to other servers: a certificate of its own making, or one that it was given. Nothing until Open.
type Introduction struct {
	shown atomic.Pointer[func() *tls.Certificate]
	own   *FrontProxy // nil with a certificate that was given
}

// Open makes the certificate, or reads the one of these files, unless it is there.
func (i *Introduction) Open(c Config, certFile, keyFile string) error {
	if i.shown.Load() != nil {
		return nil
	}
	var shown func() *tls.Certificate
	if certFile != "" {
		given, err := FollowPair(c.Log, certFile, keyFile)
		if err != nil {
			return fmt.Errorf("--proxy-client-cert-file: %w", err)
		}
		shown = given.Now
	} else {
		own, err := OpenFrontProxy(c)
		if err != nil {
			return fmt.Errorf("--cert-dir: %w", err)
		}
		i.own, shown = own, own.Now
	}
	i.shown.Store(&shown)
	return nil
}

// Certificate is what is shown now; nil: nothing.
func (i *Introduction) Certificate() *tls.Certificate {
	if shown := i.shown.Load(); shown != nil {
		return (*shown)()
	}
	return nil
}

// Own is the certificate of this server's own making; nil: there is none.
func (i *Introduction) Own() *FrontProxy { return i.own }
