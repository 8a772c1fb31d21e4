// Package oidc authenticates users by JSON Web Tokens of OpenID Connect issuers. It is configured
// like kube-apiserver, with --authentication-config (apiserver.config.k8s.io
// AuthenticationConfiguration) or --oidc-*.
//
//	set, err := oidc.Load(data, oidc.Options{Log: log}) // checked, in kube-apiserver's words; keys are on their way
//	user, known, err := set.User(ctx, token)                                    // known: an issuer of ours names itself in the token
//	set.Close()
//
// The file is read and validated by k8s.io/apiserver, which also compiles its expressions. This
// package does not use the verifier of k8s.io/apiserver, because its dependencies would make up a
// quarter of this program. The rules are the same as in k8s.io/apiserver
// (plugin/pkg/authenticator/token/oidc) and, for tokens, github.com/coreos/go-oidc.
//
// Keys are read in the background when the server starts, and every ten minutes. They are also read
// if a token has an unknown key, at most once in ten seconds. A request waits at most one second
// for the keys. A slow or failing issuer affects only its own tokens, and these are still verified
// once its keys have been read. Distributed claims (_claim_names) are not supported.
package oidc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	apiserverv1beta1 "k8s.io/apiserver/pkg/apis/apiserver/v1beta1"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"

	"apilet/internal/auth/signature"
	"apilet/internal/auth/ttlcache"
	"apilet/internal/bounded"
	"apilet/internal/request"
)

// Options holds the settings that are not in the configuration file.
type Options struct {
	Disallowed []string         // issuers of this server
	Algorithms []string         // allowed signing algorithms, AllAlgorithms if empty
	Now        func() time.Time // the clock, time.Now if nil
	Before     *Set             // if not nil, its keys are used until new ones have been read
	Log        zerolog.Logger
}

// AllAlgorithms are the supported signing algorithms.
var AllAlgorithms = []string{"ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512"}

// A Set is a loaded configuration.
type Set struct {
	Anonymous *apiserver.AnonymousAuthConfig // nil if not configured
	issuers   []*issuer
	users     ttlcache.Cache[request.User] // users of recently verified tokens
	stop      context.CancelFunc
}

// Load reads an AuthenticationConfiguration.
func Load(data []byte, options Options) (*Set, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, errors.New("empty config data")
	}
	decoded, _, err := bounded.DecodeConfiguration(data, apiserver.AddToScheme, apiserverv1.AddToScheme, apiserverv1beta1.AddToScheme)
	if err != nil {
		return nil, err
	}
	config, ok := decoded.(*apiserver.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("expected AuthenticationConfiguration, got %T", decoded)
	}
	return New(config, options)
}

// New returns the Set for a configuration and starts to read keys in the background.
func New(config *apiserver.AuthenticationConfiguration, options Options) (*Set, error) {
	compiler := authenticationcel.NewDefaultCompiler()
	if err := validation.ValidateAuthenticationConfiguration(compiler, config, options.Disallowed).ToAggregate(); err != nil {
		return nil, err
	}
	for _, alg := range options.Algorithms {
		if !slices.Contains(AllAlgorithms, alg) {
			return nil, fmt.Errorf("oidc: unsupported signing alg: %q", alg)
		}
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	if len(options.Algorithms) == 0 {
		options.Algorithms = AllAlgorithms
	}
	set := &Set{Anonymous: config.Anonymous, users: ttlcache.Cache[request.User]{MaxEntries: maxCached}}
	for _, one := range config.JWT {
		i, err := newIssuer(compiler, one, options)
		if err != nil {
			return nil, err
		}
		set.issuers = append(set.issuers, i)
	}
	ctx, stop := context.WithCancel(context.Background())
	set.stop = stop
	for _, i := range set.issuers {
		go i.keys.run(ctx) // until Close
	}
	return set, nil
}

// Close stops reading keys. The set can still be used to verify tokens.
func (s *Set) Close() { s.stop() }

// AllowsAnonymous reports whether a request without credentials is accepted for the path. It
// returns otherwise if the configuration does not contain anonymous.
func (s *Set) AllowsAnonymous(path string, otherwise bool) bool {
	switch {
	case s.Anonymous == nil:
		return otherwise
	case !s.Anonymous.Enabled:
		return false
	case len(s.Anonymous.Conditions) == 0:
		return true
	}
	return slices.ContainsFunc(s.Anonymous.Conditions, func(c apiserver.AnonymousAuthCondition) bool { return c.Path == path })
}

// User returns the user of a token. known reports whether the token names one of the issuers. If it
// does, err is the reason for rejecting the token.
func (s *Set) User(ctx context.Context, token string) (u request.User, known bool, err error) {
	named, err := untrustedIssuer(token)
	if err != nil {
		return u, false, nil
	}
	for _, i := range s.issuers {
		if i.config.Issuer.URL == named {
			u, err := s.cachedUser(ctx, i, token)
			return u, true, err
		}
	}
	return u, false, nil
}

const (
	cacheTTL  = 10 * time.Second // as kube-apiserver does
	maxCached = 4096
)

// cachedUser returns the user of a token. It caches the results for a short time.
func (s *Set) cachedUser(ctx context.Context, i *issuer, token string) (request.User, error) {
	hash, now := sha256.Sum256([]byte(token)), i.now()
	if u, ok := s.users.Get(hash, now); ok {
		return u, nil
	}
	u, ends, err := i.user(ctx, token)
	if err != nil {
		return u, err
	}
	until := now.Add(cacheTTL)
	if ends.Before(until) {
		until = ends
	}
	s.users.Put(hash, u, now, until)
	return u, nil
}

// untrustedIssuer returns the issuer that an unverified token names.
func untrustedIssuer(token string) (string, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", errors.New("malformed token")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "", err
	}
	var claims struct {
		Issuer string `json:"iss"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		return "", err
	}
	if claims.Issuer == "accounts.google.com" { // Google has used this name
		return "https://accounts.google.com", nil
	}
	return claims.Issuer, nil
}

// An issuer verifies tokens and maps their claims to users.
type issuer struct {
	config     apiserver.JWTAuthenticator
	mapper     authenticationcel.CELMapper
	algorithms []string
	now        func() time.Time
	keys       *keys
	gate       signature.Gate
}

func newIssuer(compiler authenticationcel.Compiler, config apiserver.JWTAuthenticator, options Options) (*issuer, error) {
	mapper, errs := validation.CompileAndValidateJWTAuthenticator(compiler, config, options.Disallowed)
	if err := errs.ToAggregate(); err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig, transport.MaxResponseHeaderBytes = &tls.Config{MinVersion: tls.VersionTLS12}, 64<<10
	if config.Issuer.CertificateAuthority != "" {
		transport.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !transport.TLSClientConfig.RootCAs.AppendCertsFromPEM([]byte(config.Issuer.CertificateAuthority)) {
			return nil, errors.New("Failed to read the CA contents: data does not contain any valid RSA or ECDSA certificates")
		}
	}
	discovery := config.Issuer.DiscoveryURL
	if discovery == "" {
		discovery = strings.TrimSuffix(config.Issuer.URL, "/") + "/.well-known/openid-configuration"
	}
	i := &issuer{config: config, mapper: mapper, algorithms: options.Algorithms, now: options.Now,
		keys: newKeys(config.Issuer.URL, discovery, transport, options.Log)}
	if options.Before != nil {
		for _, old := range options.Before.issuers {
			if is, was := &config.Issuer, &old.config.Issuer; is.URL == was.URL && is.DiscoveryURL == was.DiscoveryURL && is.CertificateAuthority == was.CertificateAuthority {
				i.keys.current.Store(old.keys.now())
			}
		}
	}
	return i, nil
}

// A claimSet holds the claims of a token as raw JSON.
type claimSet map[string]json.RawMessage

func (c claimSet) read(name string, into any) error {
	value, ok := c[name]
	if !ok {
		return errors.New("claim not present")
	}
	return json.Unmarshal(value, into)
}

// user verifies a token and returns the user for its claims.
func (i *issuer) user(ctx context.Context, token string) (u request.User, ends time.Time, err error) {
	if i.keys.now() == nil {
		return u, ends, errors.New("oidc: authenticator not initialized")
	}
	claims, ends, err := i.verify(ctx, token)
	if err != nil {
		return u, ends, fmt.Errorf("oidc: verify token: %w", err)
	}
	if u, err = i.userOf(ctx, claims); err != nil {
		return request.User{}, ends, err
	}
	return u.WithAuthenticatedGroup(), ends, nil
}

// verify checks if a token is valid, and returns its claims. The signature is checked last because
// it is the most expensive check.
func (i *issuer) verify(ctx context.Context, token string) (claimSet, time.Time, error) {
	var none time.Time
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err != nil {
		return nil, none, err
	}
	var claims claimSet
	var registered struct {
		Audience  stringOrList `json:"aud"`
		Expiry    *json.Number `json:"exp"`
		NotBefore *json.Number `json:"nbf"`
	}
	if err := errors.Join(json.Unmarshal(payload, &claims), json.Unmarshal(payload, &registered)); err != nil {
		return nil, none, fmt.Errorf("oidc: failed to unmarshal claims: %w", err)
	}
	if !slices.ContainsFunc(registered.Audience, func(a string) bool { return slices.Contains(i.config.Issuer.Audiences, a) }) {
		return nil, none, fmt.Errorf("oidc: expected audience in %q got %q", i.config.Issuer.Audiences, []string(registered.Audience))
	}
	now := i.now()
	if expiry := numericDate(registered.Expiry); expiry.Before(now) {
		return nil, none, fmt.Errorf("oidc: token is expired (Token Expiry: %v)", expiry)
	}
	if registered.NotBefore != nil && now.Add(5*time.Minute).Before(numericDate(registered.NotBefore)) {
		return nil, none, fmt.Errorf("oidc: current time %v before the nbf (not before) time: %v", now, numericDate(registered.NotBefore))
	}
	if err := i.checkSignature(ctx, token, now); err != nil {
		return nil, none, err
	}
	return claims, numericDate(registered.Expiry), nil
}

// checkSignature returns nil if one of the issuer's keys has signed the token. Rejected tokens are
// cached until the keys change, so that a client cannot cause more work by repeating a token.
func (i *issuer) checkSignature(ctx context.Context, token string, now time.Time) error {
	if alg := algorithm(token); !slices.Contains(i.algorithms, alg) {
		return fmt.Errorf("oidc: id token signed with unsupported algorithm, expected %q got %q", i.algorithms, alg)
	}
	failed := errors.New("failed to verify signature: failed to verify id token signature") // the same error in all cases, as in kube-apiserver
	parsed, err := signature.Parse(token)
	if err != nil {
		return failed
	}
	set, keys, err := i.keys.named(ctx, parsed.KeyID)
	if err != nil {
		return failed
	}
	hash := sha256.Sum256([]byte(token))
	if _, ok := set.rejected.Get(hash, now); ok {
		return failed
	}
	if err = i.gate.Verify(ctx, parsed, usableKeys(keys, parsed.Algorithm)); err == nil {
		return nil
	}
	if err == signature.ErrInvalid {
		set.rejected.Put(hash, struct{}{}, now, now.Add(cacheTTL))
	}
	return failed
}

// algorithm returns the signing algorithm in the token's header.
func algorithm(token string) string {
	head, _, _ := strings.Cut(token, ".")
	text, _ := base64.RawURLEncoding.DecodeString(head)
	var header struct {
		Algorithm string `json:"alg"`
	}
	_ = json.Unmarshal(text, &header) // returns "" if the header is invalid
	return header.Algorithm
}

// numericDate returns the time for a number of seconds, which may have a fraction. It returns the
// zero time if n is nil or invalid.
func numericDate(n *json.Number) time.Time {
	if n == nil {
		return time.Time{}
	}
	seconds, err := n.Float64()
	if err != nil {
		return time.Time{}
	}
	return time.Unix(int64(seconds), 0)
}

// A stringOrList is a list of strings that may be encoded as a single string.
type stringOrList []string

// UnmarshalJSON implements json.Unmarshaler.
func (s *stringOrList) UnmarshalJSON(data []byte) error {
	var list []string
	if json.Unmarshal(data, &list) == nil {
		*s = list
		return nil
	}
	var one string
	if err := json.Unmarshal(data, &one); err != nil {
		return err
	}
	*s = []string{one}
	return nil
}
