package certs

// This file issues certificates for other programs, such as kubelets and kube-controller-manager.

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
)

// A Request describes a certificate for another program.
type Request struct {
	Name   string   // file name, without the suffixes .crt and .key
	User   string   // common name
	Groups []string // organizations
	Hosts  []string // DNS names and IP addresses of a server; nil requests a client certificate
}

// An Issuer issues certificates and stores them in a folder. It is not safe for concurrent use.
type Issuer struct {
	folder *Folder // contains the issued certificates, but not the CA
}

// OpenIssuer reads the CA from the folder authority and creates the folder c.Dir for the
// certificates. It returns an error if there is no CA. c.Hosts and c.Share are ignored.
func OpenIssuer(c Config, authority string) (*Issuer, error) {
	c.Hosts, c.Share = nil, nil
	source := &Folder{Config: c}
	source.Dir = authority
	ca, err := source.readAuthority()
	switch {
	case err != nil:
		return nil, err
	case ca == nil:
		return nil, fmt.Errorf("there is no CA (ca.crt and ca.key) in %s", authority)
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, err
	}
	restrictFolder(c.Log, c.Dir)
	return &Issuer{&Folder{Config: c, Authority: ca}}, nil
}

// Authority returns the PEM-encoded CA certificate.
func (i *Issuer) Authority() []byte { return i.folder.Authority.CertPEM }

// Ensure returns the certificate for r. It issues a new certificate if the existing one is missing,
// does not match r, expires within RenewBefore, or if other users could read the private key.
// issued reports whether it did.
func (i *Issuer) Ensure(r Request) (pair *KeyPair, issued bool, err error) {
	pair, err = i.existing(r.Name)
	if err == nil && i.fits(pair.Cert, r) {
		return pair, false, nil
	}
	tmpl := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if r.Hosts != nil {
		tmpl = servingTemplate(r.Hosts)
	}
	tmpl.Subject, tmpl.KeyUsage = pkix.Name{CommonName: r.User, Organization: r.Groups}, x509.KeyUsageDigitalSignature
	if pair, err = i.folder.issue(tmpl); err != nil {
		return nil, false, err
	}
	return pair, true, i.folder.save(r.Name, pair)
}

// existing reads a certificate and its key. It returns fs.ErrNotExist if other users could read the
// key.
func (i *Issuer) existing(name string) (*KeyPair, error) {
	if _, err := os.Stat(i.folder.file(name + ".crt")); err != nil {
		return nil, err
	}
	if exposed, err := RestrictPermissions(i.folder.Log, i.folder.file(name+".key")); exposed || err != nil {
		return nil, errors.Join(err, fs.ErrNotExist)
	}
	return i.folder.load(name)
}

// fits reports whether the certificate matches r and does not need to be renewed yet.
func (i *Issuer) fits(cert *x509.Certificate, r Request) bool {
	if i.folder.problemOf(cert, r.Hosts) != "" || cert.Subject.CommonName != r.User {
		return false
	}
	for _, usage := range cert.ExtKeyUsage {
		if (usage == x509.ExtKeyUsageServerAuth) != (r.Hosts != nil) {
			return false
		}
	}
	return slices.Equal(slices.Sorted(slices.Values(cert.Subject.Organization)), slices.Sorted(slices.Values(r.Groups)))
}
