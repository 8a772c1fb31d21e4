package certs

// This file keeps the files that credentials come from, and makes the ones that nobody gave.
//
// A file that somebody else keeps (--tls-cert-file, --client-ca-file, --token-auth-file) is followed: whoever needs what is in it looks
// whether the file has changed, unless somebody has just looked, and reads it again if it has. There is no timer: a token that is taken out
// of its file is refused by whatever request comes LookEvery later, and a handshake shows the certificate that is there now, also when a
// mounted Secret changes by swapping a symlink. What cannot be read or understood is logged once and leaves in force what was there before.
// Connections that are open go on.
//
// Where TLS is wanted and no certificate given, the folder --cert-dir gets four files and keeps them:
//
//	ca.key         ca.crt         an authority, ten years; its certificate is made anew, on the same key, a year before its end (authority.go)
//	apiserver.key  apiserver.crt  what it serves with, signed by that; a year, made anew 30 days before its end or for other names
//
// A certificate is good from clock.Earliest, or from its authority's first day, and not from now: a clock that is ahead or behind (package clock) so
// makes none that others take for one of the future. An authority that has expired meanwhile, or was made in 1970, is as good as one that ends
// soon: who trusts its key learns the new ca.crt, and nobody has to be given another credential.
//
// Each file appears whole or not at all, the key before its certificate. So a power cut leaves no ca.crt, and the authority is made anew,
// which nobody has trusted yet; or an apiserver.crt that its key does not fit, and the pair is made anew. But a ca.crt that is there and
// no good is an error: clients trust it, and a new one in its place would lock all of them out. Keys are for the server alone; see
// exposed.go.

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"apilet/internal/atomicfile"
)

const (
	authorityLife   = 10 * 365 * 24 * time.Hour
	authorityRenew  = 365 * 24 * time.Hour // of an authority's end: a start makes its certificate anew
	certificateLife = 365 * 24 * time.Hour
	RenewBefore     = 30 * 24 * time.Hour // of a certificate's end: it is issued anew at the next look
	soonAtMost      = 14 * 24 * time.Hour // before its end a certificate ends soon
	soonShare       = 10                  // and not before the last part of so many of its life

	LookEvery = 20 * time.Millisecond // at most: between two looks at files that somebody else keeps
)

// ---- Files that somebody else keeps ----

// Followed is a value that is read from files, and read again when one of them looks different. Safe for concurrent use. Whoever asks looks,
// unless somebody has just done so: thousands of requests a second are not to cost as many system calls.
type Followed[T any] struct {
	paths  []string
	parse  func(contents [][]byte) (*T, error)
	log    zerolog.Logger
	began  time.Time
	last   atomic.Pointer[reading[T]]
	looked atomic.Int64 // nanoseconds from began to when the last look began
}

// reading is a value, and how the files looked just before they were read for it, or were read and found to be no good.
type reading[T any] struct {
	looks []os.FileInfo // nil for a file that is not there
	value *T
}

// Follow reads the files for the first time; here an error is the caller's.
func Follow[T any](log zerolog.Logger, parse func(contents [][]byte) (*T, error), paths ...string) (*Followed[T], error) {
	f := &Followed[T]{paths: paths, parse: parse, log: log, began: time.Now()}
	looks := f.look()
	value, err := f.read()
	if err != nil {
		return nil, err
	}
	f.last.Store(&reading[T]{looks, value})
	return f, nil
}

// Now returns the value of the files as they are, or were LookEvery ago: the same pointer as long as they do not change.
func (f *Followed[T]) Now() *T {
	last, looked, now := f.last.Load(), f.looked.Load(), int64(time.Since(f.began))
	if now-looked < int64(LookEvery) || !f.looked.CompareAndSwap(looked, now) { // somebody else looks now
		return last.value
	}
	looks := f.look()
	if slices.EqualFunc(looks, last.looks, sameLook) {
		return last.value
	}
	value, err := f.read()
	if err != nil {
		value = last.value
	}
	if !f.last.CompareAndSwap(last, &reading[T]{looks, value}) {
		return f.last.Load().value // somebody else has read them meanwhile, and tells
	}
	if err != nil {
		f.log.Error().Err(err).Strs("files", f.paths).Msg("changed files are invalid; keeping what was in them before")
	} else {
		f.log.Info().Strs("files", f.paths).Msg("read changed files")
	}
	return value
}

// look is taken before reading, so that what is written meanwhile looks different the next time.
func (f *Followed[T]) look() []os.FileInfo {
	looks := make([]os.FileInfo, len(f.paths))
	for i, path := range f.paths {
		looks[i], _ = os.Stat(path)
	}
	return looks
}

func sameLook(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == b
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

func (f *Followed[T]) read() (*T, error) {
	contents := make([][]byte, len(f.paths))
	for i, path := range f.paths {
		var err error
		if contents[i], err = os.ReadFile(path); err != nil {
			return nil, err
		}
	}
	return f.parse(contents)
}

// FollowPair follows the files of a certificate and its key.
func FollowPair(log zerolog.Logger, certFile, keyFile string) (*Followed[tls.Certificate], error) {
	return Follow(log, func(contents [][]byte) (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(contents[0], contents[1])
		return &pair, err
	}, certFile, keyFile)
}

// FollowAuthorities follows files like --client-ca-file, which may be "", and adds the certificates of own.
func FollowAuthorities(log zerolog.Logger, own []byte, files ...string) (*Followed[x509.CertPool], error) {
	paths := slices.DeleteFunc(slices.Clone(files), func(file string) bool { return file == "" })
	return Follow(log, func(contents [][]byte) (*x509.CertPool, error) {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(own)
		for i, pem := range contents {
			if !pool.AppendCertsFromPEM(pem) {
				return nil, fmt.Errorf("%s holds no PEM certificate", paths[i])
			}
		}
		return pool, nil
	}, paths...)
}

// TLSConfig asks for the certificate, and for the authorities whose client certificates are wanted, at each handshake. It verifies no
// client certificate: a bad one is to get an answer in HTTP. authorities may be nil.
func TLSConfig(certificate func() *tls.Certificate, authorities func() *x509.CertPool) *tls.Config {
	config := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate(), nil },
	}
	if authorities == nil {
		return config
	}
	config.ClientAuth = tls.RequestClientCert
	base := config.Clone()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		current := base.Clone()
		current.ClientCAs = authorities()
		return current, nil
	}
	return config
}

// ---- Files that this server makes ----

// Config says what a folder is to be like.
type Config struct {
	Dir   string          // "" keeps all in memory
	Hosts func() []string // names and addresses that clients may call the server by
	Now   func() time.Time
	Share Share // with which servers the authority is shared; nil: with none
	Log   zerolog.Logger
}

// Folder is --cert-dir: an authority and what it signs.
type Folder struct {
	Config
	Authority *KeyPair                        // signs what the server issues
	Serving   atomic.Pointer[tls.Certificate] // what handshakes show; replaced when it is renewed
}

// KeyPair is a certificate and its private key, also as PEM.
type KeyPair struct {
	Cert            *x509.Certificate // the certificate, parsed
	key             crypto.Signer
	CertPEM, KeyPEM []byte          // both as files hold them
	shown           tls.Certificate // both, as a handshake wants them
}

// OpenCertFolder reads the folder, and makes what is missing in it.
func OpenCertFolder(c Config) (*Folder, error) {
	f := &Folder{Config: c}
	if f.Dir != "" {
		if err := os.MkdirAll(f.Dir, 0o700); err != nil {
			return nil, err
		}
		closeFolder(f.Log, f.Dir)
	}
	if err := f.openAuthority(); err != nil {
		return nil, err
	}
	return f, f.Renew()
}

func (f *Folder) file(name string) string { return filepath.Join(f.Dir, name) }

// Renew makes the serving certificate anew if the one in use, or in the folder, does not fit (any more). It is to be called now and then.
func (f *Folder) Renew() error {
	hosts := f.Hosts()
	pair, err := f.current()
	reason := ""
	if err != nil {
		reason = err.Error()
	} else {
		reason = f.unfit(pair.Cert, hosts)
	}
	if reason != "" {
		if !errors.Is(err, fs.ErrNotExist) {
			f.Log.Warn().Str("reason", reason).Msg("making a new serving certificate")
		}
		if pair, err = f.issue(servingTemplate(hosts)); err != nil {
			return err
		}
		if err := f.save("apiserver", pair); err != nil {
			return err
		}
	}
	f.Serving.Store(&pair.shown)
	return nil
}

// Ends says that a certificate has expired, or will soon: within two weeks, or in the last tenth of a life that is shorter than twenty. nil: neither.
func Ends(cert *x509.Certificate, now time.Time) error {
	left, life := cert.NotAfter.Sub(now), cert.NotAfter.Sub(cert.NotBefore)
	switch {
	case left <= 0:
		return fmt.Errorf("has expired (at %s)", cert.NotAfter.UTC().Format(time.RFC3339))
	case left < min(soonAtMost, life/soonShare):
		return fmt.Errorf("ends soon (at %s)", cert.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

// current is the pair of the folder, or the one in memory where there is no folder.
func (f *Folder) current() (*KeyPair, error) {
	if f.Dir != "" {
		if _, err := os.Stat(f.file("apiserver.crt")); err != nil {
			return nil, err
		}
		if exposed, err := Hide(f.Log, f.file("apiserver.key")); exposed {
			return nil, cmp.Or(err, errors.New("others could read its key"))
		}
		return f.load("apiserver")
	}
	if serving := f.Serving.Load(); serving != nil {
		return &KeyPair{Cert: serving.Leaf, shown: *serving}, nil
	}
	return nil, fs.ErrNotExist
}

// unfit says why cert cannot serve hosts, "" if it can.
func (f *Folder) unfit(cert *x509.Certificate, hosts []string) string {
	if err := cert.CheckSignatureFrom(f.Authority.Cert); err != nil {
		return "another authority has signed it"
	}
	now := f.Now()
	if now.Add(RenewBefore).After(cert.NotAfter) && cert.NotAfter.Before(f.Authority.Cert.NotAfter) {
		return "it ends at " + cert.NotAfter.Format(time.RFC3339)
	}
	if now.Before(cert.NotBefore) && cert.NotBefore.After(f.Authority.Cert.NotBefore) {
		return "it begins at " + cert.NotBefore.Format(time.RFC3339)
	}
	for _, host := range hosts {
		ip := net.ParseIP(host)
		if !slices.Contains(cert.DNSNames, host) && !slices.ContainsFunc(cert.IPAddresses, ip.Equal) {
			return "it does not name " + host
		}
	}
	for _, name := range cert.DNSNames { // addresses come and go with the network
		if !slices.Contains(hosts, name) {
			return "it names " + name
		}
	}
	return ""
}

// servingTemplate is a certificate to be signed for a server that is reached under hosts, names or addresses.
func servingTemplate(hosts []string) *x509.Certificate {
	tmpl := &x509.Certificate{Subject: pkix.Name{CommonName: "kube-apiserver"}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		} else {
			tmpl.DNSNames = append(tmpl.DNSNames, host)
		}
	}
	return tmpl
}

// IssueAdmin makes a credential of a cluster administrator.
func (f *Folder) IssueAdmin() (*KeyPair, error) {
	return f.issue(&x509.Certificate{Subject: pkix.Name{CommonName: "apilet-admin", Organization: []string{"system:masters"}},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
}

// issue signs a certificate for a new key, no longer good than the authority itself.
func (f *Folder) issue(tmpl *x509.Certificate) (*KeyPair, error) {
	tmpl.NotBefore, tmpl.NotAfter = f.Authority.Cert.NotBefore, f.Now().Add(certificateLife)
	if end := f.Authority.Cert.NotAfter; tmpl.NotAfter.After(end) {
		tmpl.NotAfter = end
	}
	return newPair(tmpl, f.Authority)
}

// newPair makes a key and a certificate for it, see sign.
func newPair(tmpl *x509.Certificate, by *KeyPair) (*KeyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return sign(tmpl, key, by)
}

// sign has by sign a certificate for a key; nil is the key itself.
func sign(tmpl *x509.Certificate, key crypto.Signer, by *KeyPair) (*KeyPair, error) {
	parent, signer := tmpl, key
	if by != nil {
		parent, signer = by.Cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, key.Public(), signer)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return parsePair(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
}

func parsePair(certPEM, keyPEM []byte) (*KeyPair, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, errors.New("the key cannot sign")
	}
	return &KeyPair{Cert: pair.Leaf, key: key, CertPEM: certPEM, KeyPEM: keyPEM, shown: pair}, nil
}

func (f *Folder) load(name string) (*KeyPair, error) {
	certPEM, err := os.ReadFile(f.file(name + ".crt"))
	if err != nil {
		return nil, err
	}
	keyPEM, err := os.ReadFile(f.file(name + ".key"))
	if err != nil {
		return nil, err
	}
	return parsePair(certPEM, keyPEM)
}

// save writes the key first: a certificate that is there has its key beside it.
func (f *Folder) save(name string, pair *KeyPair) error {
	if f.Dir == "" {
		return nil
	}
	if err := atomicfile.SaveFile(f.file(name+".key"), pair.KeyPEM); err != nil {
		return err
	}
	return atomicfile.SaveFile(f.file(name+".crt"), pair.CertPEM)
}

// OwnHosts are the names and addresses of a server that listens on host, which may be "" or an address that stands for all. More are those at which
// others reach it.
func OwnHosts(host string, serviceIP net.IP, more ...string) []string {
	hosts := []string{"localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local", serviceIP.String()}
	if name, err := os.Hostname(); err == nil && len(utilvalidation.IsDNS1123Subdomain(strings.ToLower(name))) == 0 {
		hosts = append(hosts, strings.ToLower(name))
	}
	if ip := net.ParseIP(host); host != "" && (ip == nil || !ip.IsUnspecified()) {
		hosts = append(hosts, host)
	} else if addrs, err := net.InterfaceAddrs(); err == nil {
		for _, addr := range addrs {
			if n, ok := addr.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
				hosts = append(hosts, n.IP.String())
			}
		}
	}
	hosts = append(hosts, more...)
	slices.Sort(hosts)
	return slices.Compact(hosts)
}
