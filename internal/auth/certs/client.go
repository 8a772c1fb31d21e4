package certs

// This file issues the client certificate for connections to kubelets.

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"sync"
)

// KubeletClientName is the user name of the server at kubelets. kubeadm gives the certificate's
// files this name.
const KubeletClientName = "apiserver-kubelet-client"

// A ClientPair is a client certificate that the authority of a folder signs. It is kept in memory
// only. It is safe for concurrent use.
type ClientPair struct {
	folder *Folder
	name   string

	mu   sync.Mutex // guards pair
	pair *KeyPair   // nil until the first use
}

// ClientPair returns a certificate for the user. It is issued at its first use.
func (f *Folder) ClientPair(name string) *ClientPair { return &ClientPair{folder: f, name: name} }

// Current returns the certificate for a handshake. It renews the certificate 30 days before it
// expires. It logs an error and returns nil if there is no certificate.
func (p *ClientPair) Current() *tls.Certificate {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pair == nil || p.folder.Now().Add(RenewBefore).After(p.pair.Cert.NotAfter) {
		pair, err := p.folder.issue(&x509.Certificate{Subject: pkix.Name{CommonName: p.name}, KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		if err != nil {
			p.folder.Log.Error().Err(err).Str("user", p.name).Msg("cannot create a client certificate")
		} else {
			p.pair = pair
		}
	}
	if p.pair == nil {
		return nil
	}
	return &p.pair.tlsCertificate
}
