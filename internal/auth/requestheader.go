package auth

// This file trusts authenticating proxies in front of this server. They send the user in headers:
//
//	X-Remote-User: alice      X-Remote-Group: dev      X-Remote-Extra-Team: red      and the proxy's certificate in the handshake
//
// The proxy's certificate must be signed by an authority of --requestheader-client-ca-file, and its
// common name must be one of --requestheader-allowed-names if that flag is set. The headers are
// ignored and removed if any other client sends them. If a trusted proxy does not set a user, its
// own credentials are used.

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"apilet/internal/auth/certs"
	"apilet/internal/auth/ttlcache"
	"apilet/internal/request"
)

// RequestHeader holds the flags that begin with --requestheader-.
type RequestHeader struct {
	ClientCAFile                string   // if empty, no proxy is trusted
	AllowedNames                []string // if empty, any common name is allowed
	Users, UIDs, Groups, Extras []string // names of headers; Extras contains prefixes
}

// RequestHeaderConfig is the configuration that other servers need to trust the same proxies.
type RequestHeaderConfig struct {
	Authorities                        []byte // PEM
	Names, Users, UIDs, Groups, Extras []string
}

// Config returns the flags' values for the ConfigMap that other servers read. It returns nothing
// if no authority is configured.
func (rh *RequestHeader) Config() (p RequestHeaderConfig, err error) {
	if rh.ClientCAFile == "" {
		return p, nil
	}
	p = RequestHeaderConfig{nil, rh.AllowedNames, rh.Users, rh.UIDs, rh.Groups, rh.Extras}
	p.Authorities, err = os.ReadFile(rh.ClientCAFile)
	return p, err
}

// With returns a copy of p. It adds the authority, the common name and the headers of this server.
// An empty list of names stays empty, because it allows any name.
func (p RequestHeaderConfig) With(authority []byte, name string) RequestHeaderConfig {
	any := len(p.Authorities) > 0 && len(p.Names) == 0
	p.Authorities = slices.Concat(p.Authorities, authority)
	add := func(list []string, value string) []string {
		if slices.ContainsFunc(list, func(other string) bool { return strings.EqualFold(other, value) }) {
			return list
		}
		return append(slices.Clip(list), value)
	}
	if !any {
		p.Names = add(p.Names, name)
	}
	p.Users, p.UIDs, p.Groups, p.Extras = add(p.Users, "X-Remote-User"), add(p.UIDs, "X-Remote-Uid"), add(p.Groups, "X-Remote-Group"), add(p.Extras, "X-Remote-Extra-")
	return p
}

// proxies are the trusted proxies. If nil, no proxy is trusted.
type proxies struct {
	RequestHeader
	authorities  *certs.Dynamic[x509.CertPool]
	handshakeCAs *certs.Dynamic[x509.CertPool] // authorities of proxies and clients, for the TLS handshake
	now          func() time.Time

	verified ttlcache.Cache[*x509.CertPool] // cache of verified certificates, with the authorities used
	chains   chainVerifier
}

func newProxies(cfg Config) (*proxies, error) {
	p := &proxies{RequestHeader: cfg.RequestHeader, now: cfg.Now, verified: ttlcache.Cache[*x509.CertPool]{MaxEntries: maxVerified},
		chains: chainVerifier{rejected: ttlcache.Cache[*x509.CertPool]{MaxEntries: maxRejected}}}
	var err error
	if p.authorities, err = certs.NewDynamicCAs(cfg.Log, nil, cfg.RequestHeader.ClientCAFile); err != nil {
		return nil, err
	}
	p.handshakeCAs, err = certs.NewDynamicCAs(cfg.Log, cfg.OwnCA, cfg.ClientCAFile, cfg.RequestHeader.ClientCAFile)
	return p, err
}

// HandshakeCAs returns a function that returns the authorities whose certificates the TLS
// handshake requests. It is nil if no certificates are requested.
func (a *Authenticator) HandshakeCAs() func() *x509.CertPool {
	switch {
	case a.proxies != nil:
		return a.proxies.handshakeCAs.Current
	case a.ClientCAs != nil:
		return a.ClientCAs.Current
	}
	return nil
}

// user returns the user that a trusted proxy names. bad reports whether the client's certificate
// does not belong to a trusted proxy.
func (p *proxies) user(r *http.Request) (u request.User, ok, bad bool) {
	if p == nil || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return u, false, false
	}
	if !p.isTrusted(r.Context(), r.TLS.PeerCertificates) {
		return u, false, true
	}
	if u.Name = firstOf(r.Header, p.Users); u.Name == "" {
		return u, false, false
	}
	u.UID = firstOf(r.Header, p.UIDs)
	for _, name := range p.Groups {
		for _, group := range r.Header.Values(name) {
			if group != "" {
				u.Groups = append(u.Groups, group)
			}
		}
	}
	for _, prefix := range p.Extras {
		for key, values := range r.Header {
			if !hasPrefixFold(key, prefix) {
				continue
			}
			if u.Extra == nil {
				u.Extra = map[string][]string{}
			}
			key = unescapeExtra(strings.ToLower(key[len(prefix):]))
			u.Extra[key] = append(u.Extra[key], values...)
		}
	}
	return u.WithAuthenticatedGroup(), true, false
}

// isTrusted reports whether the certificate belongs to a trusted proxy.
func (p *proxies) isTrusted(ctx context.Context, shown []*x509.Certificate) bool {
	if len(p.AllowedNames) > 0 && !slices.Contains(p.AllowedNames, shown[0].Subject.CommonName) {
		return false
	}
	fingerprint, roots, now := sha256.Sum256(shown[0].Raw), p.authorities.Current(), p.now()
	if known, hit := p.verified.Get(fingerprint, now); hit && known == roots && !now.Before(shown[0].NotBefore) {
		return true
	}
	until, err := p.chains.verify(ctx, shown, roots, now)
	if err != nil {
		return false
	}
	p.verified.Put(fingerprint, roots, now, until)
	return true
}

// dropHeaders removes the headers of proxies to make sure that they cannot be used again.
func (p *proxies) dropHeaders(h http.Header) {
	if p == nil {
		return
	}
	for key := range h {
		is := func(name string) bool { return request.IsHeader(key, name) }
		if slices.ContainsFunc(p.Users, is) || slices.ContainsFunc(p.UIDs, is) || slices.ContainsFunc(p.Groups, is) ||
			slices.ContainsFunc(p.Extras, func(prefix string) bool { return request.HasHeaderPrefix(key, prefix) }) {
			delete(h, key)
		}
	}
}

// firstOf returns the first value that is not empty.
func firstOf(h http.Header, names []string) string {
	for _, name := range names {
		if value := h.Get(name); value != "" {
			return value
		}
	}
	return ""
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}
