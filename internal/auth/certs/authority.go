package certs

// This file manages the certificate authority, which all servers on one etcd share. If a client
// trusts one of these servers, it trusts all of them, also behind a load balancer. Client
// certificates are accepted by all servers.
//
// The shared value is stored in JSON. A copy is kept in the folder of each server. They are
// compared at the start:
//
//	shared        folder                      the server uses                         shared from then on
//	nothing       nothing                     a new authority                         that, with its key
//	nothing       one of apilet's making      the folder's                            that, with its key: an installation of before sharing
//	any           one that was handed in      the folder's                            its certificate alone
//	with a key    nothing                     the shared one, and copies it           as before
//	no key        nothing                     none: the start ends, and says why      as before
//	any           the same key                the certificate that ends later         that
//	another key   one of apilet's making      the folder's, and warns                 as before
//
// The folder always takes precedence, because clients trust the certificate in it. An authority
// with the common name apilet-ca was created by apilet. All other authorities were provided by an
// administrator. The key of such an authority is never written to the store. The shared value is
// written with a precondition. If several servers are started at the same time, one of them creates
// the authority or renews its certificate, and the result is used by the others.

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"apilet/internal/atomicfile"
	"apilet/internal/clock"
)

const ownAuthorityName = "apilet-ca" // the common name of an authority that apilet has created

// Share changes the value that the servers share. decide receives the current value, or nil if
// there is none. It returns the new value, or nil to leave the value unchanged. Share calls decide
// again if another server has changed the value.
type Share func(decide func(value []byte) (next []byte, err error)) error

// A sharedAuthority is the value that the servers share.
type sharedAuthority struct {
	Certificate string `json:"certificate"`   // PEM
	Key         string `json:"key,omitempty"` // PEM, empty if an administrator provided the authority
}

// openAuthority reads or creates the authority, and saves it in the folder.
func (f *Folder) openAuthority() error {
	own, err := f.readAuthority()
	if err != nil {
		return err
	}
	var theirs *KeyPair
	if f.Share == nil {
		f.Authority, _, err = f.choose(own, nil)
	} else {
		err = f.Share(func(value []byte) (next []byte, err error) {
			if theirs, err = readShared(value); err == nil {
				next, err = f.decideAuthority(own, theirs)
			}
			if bytes.Equal(next, value) {
				return nil, err
			}
			return next, err
		})
	}
	if err != nil {
		return err
	}
	f.logChoice(own, theirs)
	switch {
	case own == nil:
		return f.save("ca", f.Authority)
	case f.Dir != "" && !bytes.Equal(own.CertPEM, f.Authority.CertPEM):
		return atomicfile.SaveFile(f.file("ca.crt"), f.Authority.CertPEM)
	}
	return nil
}

// readAuthority reads the authority of the folder. If the folder has no authority, it returns nil.
func (f *Folder) readAuthority() (*KeyPair, error) {
	if f.Dir == "" {
		return nil, nil
	}
	if _, err := os.Stat(f.file("ca.crt")); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if _, err := RestrictPermissions(f.Log, f.file("ca.key")); err != nil {
		return nil, err
	}
	ca, err := f.load("ca")
	switch {
	case err != nil:
	case !ca.Cert.IsCA:
		err = errors.New("the certificate is not a CA certificate")
	}
	if err != nil {
		return nil, fmt.Errorf("the CA in %s and %s is invalid: %w; restore both files, or remove both and give the new ca.crt to every client",
			f.file("ca.crt"), f.file("ca.key"), err)
	}
	return ca, nil
}

// readShared parses the shared value, which may lack a key. It returns nil if there is no value.
func readShared(value []byte) (*KeyPair, error) {
	if value == nil {
		return nil, nil
	}
	var v sharedAuthority
	err := json.Unmarshal(value, &v)
	pair := &KeyPair{CertPEM: []byte(v.Certificate)}
	switch block, _ := pem.Decode(pair.CertPEM); {
	case err != nil:
	case block == nil:
		err = errors.New("it contains no PEM certificate")
	case v.Key != "":
		pair, err = parsePair(pair.CertPEM, []byte(v.Key))
	default:
		pair.Cert, err = x509.ParseCertificate(block.Bytes)
	}
	if err == nil && !pair.Cert.IsCA {
		err = errors.New("its certificate is not a CA certificate")
	}
	if err != nil {
		return nil, fmt.Errorf("the CA that the servers on this etcd share is invalid: %w", err)
	}
	return pair, nil
}

// decideAuthority chooses the authority and returns the new shared value, or nil to leave the value
// unchanged.
func (f *Folder) decideAuthority(own, theirs *KeyPair) (next []byte, err error) {
	var tell bool
	if f.Authority, tell, err = f.choose(own, theirs); err != nil || !tell {
		return nil, err
	}
	v := sharedAuthority{Certificate: string(f.Authority.CertPEM)}
	if !f.Authority.isProvided() {
		v.Key = string(f.Authority.KeyPEM)
	}
	return json.Marshal(v)
}

// choose selects the authority that this server uses, by the table at the top of this file. own is
// the authority in the folder, and theirs is the shared value in etcd; each may be nil. tell
// reports whether the shared value should be set to use. If the certificate of the selected
// authority expires soon, choose renews it with the same key.
func (f *Folder) choose(own, theirs *KeyPair) (use *KeyPair, tell bool, err error) {
	switch {
	case own == nil && theirs == nil:
		use, err = f.newAuthority()
		return use, true, err
	case own == nil && theirs.key == nil:
		return nil, false, fmt.Errorf("the servers on this etcd use a CA that the administrator provided (%s), whose key is not in etcd: put its ca.crt and ca.key here before the start",
			theirs.Cert.Subject)
	case own == nil:
		use, tell = theirs, true
	case theirs == nil || !own.hasKeyOf(theirs):
		use, tell = own, theirs == nil || own.isProvided()
	case theirs.Cert.NotAfter.After(own.Cert.NotAfter):
		use, err = parsePair(theirs.CertPEM, own.KeyPEM)
		tell = true
	default:
		use, tell = own, true
	}
	if err == nil && !f.Now().Add(authorityRenew).Before(use.Cert.NotAfter) {
		use, err = f.renewAuthority(use)
	}
	return use, tell, err
}

func (f *Folder) newAuthority() (*KeyPair, error) {
	return newPair(&x509.Certificate{Subject: pkix.Name{CommonName: ownAuthorityName}, NotBefore: clock.Earliest, NotAfter: f.Now().Add(authorityLife), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature}, nil)
}

// renewAuthority renews the certificate of an authority with the same key and name. Certificates
// that the authority has signed stay valid. Clients with the old certificate accept new signatures
// until the old certificate expires.
func (f *Folder) renewAuthority(ca *KeyPair) (*KeyPair, error) {
	tmpl := *ca.Cert
	tmpl.SerialNumber, tmpl.SignatureAlgorithm, tmpl.NotAfter = nil, x509.UnknownSignatureAlgorithm, f.Now().Add(authorityLife)
	if tmpl.NotBefore.After(clock.Earliest) {
		tmpl.NotBefore = clock.Earliest
	}
	return sign(&tmpl, ca.key, nil)
}

// isProvided reports whether an administrator provided the authority.
func (p *KeyPair) isProvided() bool { return p.Cert.Subject.CommonName != ownAuthorityName }

// hasKeyOf reports whether both certificates have the same public key.
func (p *KeyPair) hasKeyOf(other *KeyPair) bool {
	return bytes.Equal(p.Cert.RawSubjectPublicKeyInfo, other.Cert.RawSubjectPublicKeyInfo)
}

// logChoice logs the choice of the authority.
func (f *Folder) logChoice(own, theirs *KeyPair) {
	log := f.Log.With().Str("file", f.file("ca.crt")).Logger()
	switch {
	case own == nil && theirs == nil && f.Dir != "":
		log.Info().Msg("created a certificate authority")
	case own == nil && theirs != nil:
		log.Info().Msg("copied the certificate authority that the servers on this etcd share")
	case theirs != nil && !own.hasKeyOf(theirs) && own.isProvided():
		log.Warn().Stringer("authority", own.Cert.Subject).Stringer("before", theirs.Cert.Subject).
			Msg("the authority that was handed in takes the place of the one that the servers on this etcd shared: give it to each of them, and ca.crt to all clients")
	case theirs != nil && !own.hasKeyOf(theirs):
		log.Warn().Msg("this server's CA differs from the one that the servers on this etcd share, and stays in use: their clients do not trust it. " +
			"To use the shared one, remove ca.crt and ca.key here and restart")
	case theirs == nil && f.Share != nil && own != nil && own.isProvided():
		log.Info().Stringer("authority", own.Cert.Subject).Msg("using the CA that you provided: copy its ca.crt and ca.key to each server on this etcd, since the key is not shared")
	}
	last := own
	if own == nil {
		last = theirs
	}
	if last != nil && !bytes.Equal(last.CertPEM, f.Authority.CertPEM) {
		log.Warn().Time("ended", last.Cert.NotAfter).Time("ends", f.Authority.Cert.NotAfter).
			Msg("the authority's certificate was made anew, on the same key: give ca.crt to clients that have the old one")
	}
}
