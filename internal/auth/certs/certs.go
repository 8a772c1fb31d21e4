package certs

// This file reloads certificate files when they change. It also creates certificates if none are
// configured.
//
// Files maintained by the administrator are followed (--tls-cert-file, --client-ca-file,
// --token-auth-file). Followed.Current checks whether a file has changed, at most once per CheckInterval,
// and reads it again if necessary. There is no timer. A token that was removed from its file is
// rejected by the first request after CheckInterval, and each handshake uses the current
// certificate, also when a mounted Secret changes by swapping a symlink. If a file cannot be read
// or parsed, the error is logged once and the previous contents stay in effect. Open connections
// continue.
//
// If TLS is enabled without a certificate, the server creates and maintains four files in the
// folder --cert-dir:
//
//	ca.key         ca.crt         an authority, valid for ten years; a year before its end its certificate is renewed with the same key (authority.go)
//	apiserver.key  apiserver.crt  the serving certificate, signed by it, valid for a year; replaced 30 days before its end or for other host names
//
// A certificate is valid from clock.Earliest, or from the first day of its authority. Therefore a
// wrong clock (package clock) does not produce certificates that other machines reject because they
// begin in the future. If an authority has expired, or if it was created in 1970, it is renewed.
// Clients that trust its key only need the new ca.crt, and no client needs a new certificate.
//
// Files are replaced atomically. The key is written before its certificate. If there is no ca.crt
// after a power failure, a new authority is created, because no client can trust the old one yet.
// If apiserver.crt does not match its key, both are created again. If ca.crt exists but is invalid,
// the server returns an error. A new one would lock out all clients that trust the old one. Only
// the server's user can read the keys, see exposed.go.

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
	authorityLife = 10 * 365 * 24 * time.Hour
	// At the start, the certificate of an authority is renewed if it expires within this time.
	authorityRenew  = 365 * 24 * time.Hour
	certificateLife = 365 * 24 * time.Hour
	// RenewBefore is the remaining validity at which Renew replaces a certificate.
	RenewBefore    = 30 * 24 * time.Hour
	maxRenewBefore = 14 * 24 * time.Hour // see CheckExpiry
	soonShare      = 10                  // see CheckExpiry

	// CheckInterval is the minimum time between two checks of a followed file.
	CheckInterval = 20 * time.Millisecond
)

// ---- Files maintained by an administrator ----

// Dynamic holds a value that is read from files. If one of the files changes, it is read again. It
// is safe for concurrent use. Callers check the files, but only once per CheckInterval, so that
// thousands of requests a second do not need as many system calls.
type Dynamic[T any] struct {
	paths     []string
	parse     func(contents [][]byte) (*T, error)
	log       zerolog.Logger
	began     time.Time
	last      atomic.Pointer[reading[T]]
	lastCheck atomic.Int64 // start of the last check, in nanoseconds since began
}

// reading is a value and the state of the files before they were read. The value is older if the
// files were invalid.
type reading[T any] struct {
	stats []os.FileInfo // nil if the file does not exist
	value *T
}

// NewDynamic reads the files for the first time and returns errors to the caller.
func NewDynamic[T any](log zerolog.Logger, parse func(contents [][]byte) (*T, error), paths ...string) (*Dynamic[T], error) {
	f := &Dynamic[T]{paths: paths, parse: parse, log: log, began: time.Now()}
	looks := f.stat()
	value, err := f.read()
	if err != nil {
		return nil, err
	}
	f.last.Store(&reading[T]{looks, value})
	return f, nil
}

// Current returns the current value of the files, which may be CheckInterval old. It returns the
// same pointer until a file changes.
func (f *Dynamic[T]) Current() *T {
	last, looked, now := f.last.Load(), f.lastCheck.Load(), int64(time.Since(f.began))
	if now-looked < int64(CheckInterval) || !f.lastCheck.CompareAndSwap(looked, now) { // another goroutine checks now
		return last.value
	}
	looks := f.stat()
	if slices.EqualFunc(looks, last.stats, equalStats) {
		return last.value
	}
	value, err := f.read()
	if err != nil {
		value = last.value
	}
	if !f.last.CompareAndSwap(last, &reading[T]{looks, value}) {
		return f.last.Load().value // another goroutine has read the files
	}
	if err != nil {
		f.log.Error().Err(err).Strs("files", f.paths).Msg("changed files are invalid; keeping their previous content")
	} else {
		f.log.Info().Strs("files", f.paths).Msg("reloaded changed files")
	}
	return value
}

// stat returns the state of the files. It must be called before reading, so that the next check
// detects concurrent changes.
func (f *Dynamic[T]) stat() []os.FileInfo {
	looks := make([]os.FileInfo, len(f.paths))
	for i, path := range f.paths {
		looks[i], _ = os.Stat(path)
	}
	return looks
}

func equalStats(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == b
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

func (f *Dynamic[T]) read() (*T, error) {
	contents := make([][]byte, len(f.paths))
	for i, path := range f.paths {
		var err error
		if contents[i], err = os.ReadFile(path); err != nil {
			return nil, err
		}
	}
	return f.parse(contents)
}

// NewDynamicPair is like NewDynamic for a certificate and its key.
func NewDynamicPair(log zerolog.Logger, certFile, keyFile string) (*Dynamic[tls.Certificate], error) {
	return NewDynamic(log, func(contents [][]byte) (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(contents[0], contents[1])
		return &pair, err
	}, certFile, keyFile)
}

// NewDynamicCAs is like NewDynamic for files that contain certificates of authorities. It adds the
// certificates in own. Empty file names are ignored.
func NewDynamicCAs(log zerolog.Logger, own []byte, files ...string) (*Dynamic[x509.CertPool], error) {
	paths := slices.DeleteFunc(slices.Clone(files), func(file string) bool { return file == "" })
	return NewDynamic(log, func(contents [][]byte) (*x509.CertPool, error) {
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

// TLSConfig returns a configuration that calls certificate and authorities for each handshake. It
// requests client certificates from these authorities but does not verify them, so that clients
// with an invalid certificate receive an HTTP response. authorities may be nil.
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

// ---- Files maintained by this server ----

// Config configures a folder.
type Config struct {
	Dir   string          // if empty, everything is kept in memory
	Hosts func() []string // names and addresses of the server
	Now   func() time.Time
	Share Share // shares the authority with other servers, may be nil
	Log   zerolog.Logger
}

// Folder represents the folder --cert-dir. It contains an authority and its certificates.
type Folder struct {
	Config
	Authority *KeyPair                        // signs what the server issues
	Serving   atomic.Pointer[tls.Certificate] // used in handshakes, replaced on renewal
}

// KeyPair is a certificate and its private key.
type KeyPair struct {
	Cert            *x509.Certificate // the certificate, parsed
	key             crypto.Signer
	CertPEM, KeyPEM []byte          // contents of both files
	tlsCertificate  tls.Certificate // used for handshakes
}

// OpenCertFolder reads the folder and creates missing files in it.
func OpenCertFolder(c Config) (*Folder, error) {
	f := &Folder{Config: c}
	if f.Dir != "" {
		if err := os.MkdirAll(f.Dir, 0o700); err != nil {
			return nil, err
		}
		restrictFolder(f.Log, f.Dir)
	}
	if err := f.openAuthority(); err != nil {
		return nil, err
	}
	return f, f.Renew()
}

func (f *Folder) file(name string) string { return filepath.Join(f.Dir, name) }

// Renew replaces the serving certificate if it expires soon, is invalid or does not match the
// hosts. It must be called regularly.
func (f *Folder) Renew() error {
	hosts := f.Hosts()
	pair, err := f.current()
	reason := ""
	if err != nil {
		reason = err.Error()
	} else {
		reason = f.problemOf(pair.Cert, hosts)
	}
	if reason != "" {
		if !errors.Is(err, fs.ErrNotExist) {
			f.Log.Warn().Str("reason", reason).Msg("creating a new serving certificate")
		}
		if pair, err = f.issue(servingTemplate(hosts)); err != nil {
			return err
		}
		if err := f.save("apiserver", pair); err != nil {
			return err
		}
	}
	f.Serving.Store(&pair.tlsCertificate)
	return nil
}

// CheckExpiry returns an error if the certificate has expired or expires soon: within two weeks, or
// within the last tenth of its life if that is shorter. It returns nil otherwise.
func CheckExpiry(cert *x509.Certificate, now time.Time) error {
	left, life := cert.NotAfter.Sub(now), cert.NotAfter.Sub(cert.NotBefore)
	switch {
	case left <= 0:
		return fmt.Errorf("has expired (at %s)", cert.NotAfter.UTC().Format(time.RFC3339))
	case left < min(maxRenewBefore, life/soonShare):
		return fmt.Errorf("ends soon (at %s)", cert.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

// current returns the key pair of the folder, or the pair in memory if there is no folder.
func (f *Folder) current() (*KeyPair, error) {
	if f.Dir != "" {
		if _, err := os.Stat(f.file("apiserver.crt")); err != nil {
			return nil, err
		}
		if exposed, err := RestrictPermissions(f.Log, f.file("apiserver.key")); exposed {
			return nil, cmp.Or(err, errors.New("other users could read its key"))
		}
		return f.load("apiserver")
	}
	if serving := f.Serving.Load(); serving != nil {
		return &KeyPair{Cert: serving.Leaf, tlsCertificate: *serving}, nil
	}
	return nil, fs.ErrNotExist
}

// problemOf returns the reason why the certificate cannot serve the hosts, or "" if it can.
func (f *Folder) problemOf(cert *x509.Certificate, hosts []string) string {
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
	for _, name := range cert.DNSNames { // names only, since the addresses change with the network
		if !slices.Contains(hosts, name) {
			return "it names " + name
		}
	}
	return ""
}

// servingTemplate returns the template of a serving certificate for the hosts, which are names or
// addresses.
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

// IssueAdmin issues a client certificate for a cluster administrator.
func (f *Folder) IssueAdmin() (*KeyPair, error) {
	return f.issue(&x509.Certificate{Subject: pkix.Name{CommonName: "apilet-admin", Organization: []string{"system:masters"}},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
}

// issue signs a certificate for a new key. The certificate does not outlive the authority.
func (f *Folder) issue(tmpl *x509.Certificate) (*KeyPair, error) {
	tmpl.NotBefore, tmpl.NotAfter = f.Authority.Cert.NotBefore, f.Now().Add(certificateLife)
	if end := f.Authority.Cert.NotAfter; tmpl.NotAfter.After(end) {
		tmpl.NotAfter = end
	}
	return newPair(tmpl, f.Authority)
}

// newPair creates a key and a certificate for it, see sign.
func newPair(tmpl *x509.Certificate, by *KeyPair) (*KeyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return sign(tmpl, key, by)
}

// sign returns a certificate for the key, signed by the authority by. It is self-signed if by is
// nil.
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
	return &KeyPair{Cert: pair.Leaf, key: key, CertPEM: certPEM, KeyPEM: keyPEM, tlsCertificate: pair}, nil
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

// save writes the key first, so that an existing certificate always has a key.
func (f *Folder) save(name string, pair *KeyPair) error {
	if f.Dir == "" {
		return nil
	}
	if err := atomicfile.SaveFile(f.file(name+".key"), pair.KeyPEM); err != nil {
		return err
	}
	return atomicfile.SaveFile(f.file(name+".crt"), pair.CertPEM)
}

// ServerHosts returns the names and addresses of a server that listens on host, in sorted order.
// host may be "" or an unspecified address. more are additional names and addresses of the server.
func ServerHosts(host string, serviceIP net.IP, more ...string) []string {
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
