package certs

// This file: the authority, which the servers of one etcd share. A client that trusts one of them trusts each, behind whatever balancer, and the
// certificate that one of them has issued is a credential at each.
//
// What is shared is one value beside the objects, in JSON; the folder of each server holds a copy. A start decides by both:
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
// So the folder always wins: clients trust what lies in it. An authority is one of apilet's making by its name, apilet-ca. Any other name is that of an
// authority which somebody has handed in, and its key never leaves the folder. The value changes under a precondition, so that of servers that start
// at once one makes the authority, and one makes its certificate anew when that is about to end; the others take it.

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

const madeHere = "apilet-ca" // the name of an authority of apilet's making

// Share changes the value that servers share. decide gets the value, nil for none, and returns the one to put in its place, nil to leave it. It is
// called again when another server was faster.
type Share func(decide func(value []byte) (next []byte, err error)) error

// A sharedAuthority is the value.
type sharedAuthority struct {
	Certificate string `json:"certificate"`   // PEM
	Key         string `json:"key,omitempty"` // PEM; "": the authority was handed in
}

// openAuthority reads the authority or makes it, and leaves a copy of what it uses in the folder.
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
				next, err = f.settle(own, theirs)
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
	f.tellChoice(own, theirs)
	switch {
	case own == nil:
		return f.save("ca", f.Authority)
	case f.Dir != "" && !bytes.Equal(own.CertPEM, f.Authority.CertPEM):
		return atomicfile.SaveFile(f.file("ca.crt"), f.Authority.CertPEM)
	}
	return nil
}

// readAuthority reads the folder's; nil: it has none.
func (f *Folder) readAuthority() (*KeyPair, error) {
	if f.Dir == "" {
		return nil, nil
	}
	if _, err := os.Stat(f.file("ca.crt")); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if _, err := Hide(f.Log, f.file("ca.key")); err != nil {
		return nil, err
	}
	ca, err := f.load("ca")
	switch {
	case err != nil:
	case !ca.Cert.IsCA:
		err = errors.New("the certificate is not an authority's")
	}
	if err != nil {
		return nil, fmt.Errorf("the authority in %s and %s is no good: %w; restore both files, or remove both and give the new ca.crt to every client",
			f.file("ca.crt"), f.file("ca.key"), err)
	}
	return ca, nil
}

// readShared reads the value, of which a key may be missing; nil: there is none.
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
		err = errors.New("it holds no PEM certificate")
	case v.Key != "":
		pair, err = parsePair(pair.CertPEM, []byte(v.Key))
	default:
		pair.Cert, err = x509.ParseCertificate(block.Bytes)
	}
	if err == nil && !pair.Cert.IsCA {
		err = errors.New("its certificate is not an authority's")
	}
	if err != nil {
		return nil, fmt.Errorf("the authority that the servers on this etcd share is no good: %w", err)
	}
	return pair, nil
}

// settle chooses the authority, and returns the value that says so; nil leaves that as it is.
func (f *Folder) settle(own, theirs *KeyPair) (next []byte, err error) {
	var tell bool
	if f.Authority, tell, err = f.choose(own, theirs); err != nil || !tell {
		return nil, err
	}
	v := sharedAuthority{Certificate: string(f.Authority.CertPEM)}
	if !f.Authority.handedIn() {
		v.Key = string(f.Authority.KeyPEM)
	}
	return json.Marshal(v)
}

// choose says which authority this server uses, by the table above, and whether the value is to be that. A certificate that ends soon is made anew.
func (f *Folder) choose(own, theirs *KeyPair) (use *KeyPair, tell bool, err error) {
	switch {
	case own == nil && theirs == nil:
		use, err = f.newAuthority()
		return use, true, err
	case own == nil && theirs.key == nil:
		return nil, false, fmt.Errorf("the servers on this etcd have an authority that was handed in (%s), whose key is not in etcd: put its ca.crt and ca.key here before the start",
			theirs.Cert.Subject)
	case own == nil:
		use, tell = theirs, true
	case theirs == nil || !own.hasKeyOf(theirs):
		use, tell = own, theirs == nil || own.handedIn()
	case theirs.Cert.NotAfter.After(own.Cert.NotAfter):
		use, err = parsePair(theirs.CertPEM, own.KeyPEM)
		tell = true
	default:
		use, tell = own, true
	}
	if err == nil && !f.Now().Add(authorityRenew).Before(use.Cert.NotAfter) {
		use, err = f.prolong(use)
	}
	return use, tell, err
}

func (f *Folder) newAuthority() (*KeyPair, error) {
	return newPair(&x509.Certificate{Subject: pkix.Name{CommonName: madeHere}, NotBefore: clock.Earliest, NotAfter: f.Now().Add(authorityLife), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature}, nil)
}

// prolong makes the certificate of an authority anew, on the same key and under the same name: what it has signed stays good, and so is what it
// signs now for those who have the old certificate, until that ends.
func (f *Folder) prolong(ca *KeyPair) (*KeyPair, error) {
	tmpl := *ca.Cert
	tmpl.SerialNumber, tmpl.SignatureAlgorithm, tmpl.NotAfter = nil, x509.UnknownSignatureAlgorithm, f.Now().Add(authorityLife)
	if tmpl.NotBefore.After(clock.Earliest) {
		tmpl.NotBefore = clock.Earliest
	}
	return sign(&tmpl, ca.key, nil)
}

// handedIn tells an authority of somebody else's making.
func (p *KeyPair) handedIn() bool { return p.Cert.Subject.CommonName != madeHere }

// hasKeyOf tells whether two certificates are of one key.
func (p *KeyPair) hasKeyOf(other *KeyPair) bool {
	return bytes.Equal(p.Cert.RawSubjectPublicKeyInfo, other.Cert.RawSubjectPublicKeyInfo)
}

// tellChoice tells the log what has been decided.
func (f *Folder) tellChoice(own, theirs *KeyPair) {
	log := f.Log.With().Str("file", f.file("ca.crt")).Logger()
	switch {
	case own == nil && theirs == nil && f.Dir != "":
		log.Info().Msg("made a certificate authority")
	case own == nil && theirs != nil:
		log.Info().Msg("took the certificate authority that the servers on this etcd share")
	case theirs != nil && !own.hasKeyOf(theirs) && own.handedIn():
		log.Warn().Stringer("authority", own.Cert.Subject).Stringer("before", theirs.Cert.Subject).
			Msg("the authority that was handed in takes the place of the one that the servers on this etcd shared: give it to each of them, and ca.crt to all clients")
	case theirs != nil && !own.hasKeyOf(theirs):
		log.Warn().Msg("this server's authority is not the one that the servers on this etcd share, and stays in use: clients of theirs do not trust it. " +
			"To take theirs, remove ca.crt and ca.key here and start again")
	case theirs == nil && f.Share != nil && own != nil && own.handedIn():
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
