package auth

// This file checks the target of a request (request.Info), its sender (request.User), and whether
// the sender has permission. The results are stored in the request's record for later handlers.
//
//	GET /api/v1/namespaces/shop/pods?watch=1      Authorization: Bearer s3cret      Impersonate-User: alice
//	      │                                              │                                 │
//	request.Parse                                      identify                        impersonated
//	      ▼                                              ▼                                 ▼
//	watch pods in "shop"                        bob, [dev system:authenticated]   alice, [system:authenticated]
//	      └──────────────────────────────┬───────────────────────────────────────────────┘
//	                                  authorize      nil, or 403: pods is forbidden: User "alice" cannot watch resource ...
//
// The functions that decide take values and return errors. The http.Handlers around them only pass
// the results on. Credentials and Impersonate-* headers are removed after they have been read, so
// that they cannot be used again.
//
// There are two modes. Without an authenticator, the server only listens on loopback, and all
// clients are system:unsecured, a cluster administrator. Every web page in the user's browser can
// reach that port, so requests with a foreign Host or Origin are rejected. With an authenticator
// (token file, client certificates), credentials must be valid if they are sent, and a client
// without credentials is system:anonymous.

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/csv"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/warning"

	"apilet/internal/auth/bootstraptoken"
	"apilet/internal/auth/callout"
	"apilet/internal/auth/certs"
	"apilet/internal/auth/node"
	"apilet/internal/auth/oidc"
	"apilet/internal/auth/rbac"
	"apilet/internal/auth/serviceaccount"
	"apilet/internal/auth/ttlcache"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
)

// ---- Authentication ----

// Config holds the flags for authentication and authorization.
type Config struct {
	TokenFile, ClientCAFile string // paths of --token-auth-file and --client-ca-file
	// OwnCA is the PEM certificate of this server's own authority, or nil. The server also accepts
	// client certificates that this authority has signed.
	OwnCA         []byte
	RequestHeader RequestHeader // --requestheader-...: trusted authenticating proxies
	Anonymous     bool          // --anonymous-auth: allow requests without credentials
	Insecure      bool          // the plain loopback port: every client is system:unsecured
	AlwaysAllow   bool          // --authorization-mode=AlwaysAllow
	// Modes is set if --authorization-mode contains Node. It is a list of ModeNode and ModeRBAC in
	// the order of evaluation.
	Modes       []string
	CORSOrigins []string         // --cors-allowed-origins: regular expressions, see CheckOrigin
	Log         zerolog.Logger   // receives errors from reloading files
	Now         func() time.Time // the clock for client certificates, time.Now if nil

	BootstrapTokens bool // --enable-bootstrap-token-auth

	AnonymousFlagSet bool                                   // --anonymous-auth was given
	IssuersFile      string                                 // --authentication-config
	Issuers          *apiserver.AuthenticationConfiguration // from --oidc-..., may be nil
	Algorithms       []string                               // from --oidc-signing-algs
	OwnIssuers       []string                               // issuers of service account tokens
	TokenHook        callout.TokensConfig                   // --authentication-token-webhook-...
	PlanFile         string                                 // --authorization-config
	Plan             *callout.Plan                          // set if --authorization-mode contains a webhook
}

// The authorization modes that are evaluated in turn.
const (
	ModeNode = "Node"
	ModeRBAC = "RBAC"
)

// Authorities returns the PEM certificates of the current authorities for client certificates.
func (cfg *Config) Authorities() ([]byte, error) {
	own := slices.Clone(cfg.OwnCA)
	if cfg.ClientCAFile == "" {
		return own, nil
	}
	given, err := os.ReadFile(cfg.ClientCAFile)
	return append(own, given...), err
}

// CheckListen returns an error if other machines could reach the address without authentication.
func (cfg Config) CheckListen(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("--listen %s: %w", addr, err)
	}
	if cfg.Insecure && !request.IsLoopback(host) {
		return fmt.Errorf("--listen %s: without an authenticator (--token-auth-file, --client-ca-file or --authentication-config) only a loopback address is allowed, everyone would be a cluster administrator", addr)
	}
	return nil
}

// IsLocalOnly reports whether only this machine can reach addr. It returns true for an invalid
// address, because CheckListen reports that error.
func IsLocalOnly(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err != nil || request.IsLoopback(host)
}

// Authenticator holds the credentials and the authorization policy. It is safe for concurrent use.
type Authenticator struct {
	cfg    Config
	tokens *certs.Dynamic[tokenTable] // nil without --token-auth-file
	// ClientCAs is nil if no certificate is accepted. The TLS listener requests certificates from
	// these authorities but does not verify them.
	ClientCAs *certs.Dynamic[x509.CertPool]
	// Accounts verifies service account tokens. It must be set once, when the store has been
	// opened. Until then no such token is accepted.
	Accounts    *serviceaccount.Tokens
	Bootstrap   *bootstraptoken.Tokens       // nil without --enable-bootstrap-token-auth; set like Accounts
	Nodes       *node.Authorizer             // nil without ModeNode; set like Accounts
	issuers     *certs.Dynamic[oidc.Set]     // nil without --authentication-config
	flagIssuers *oidc.Set                    // from --oidc-..., may be nil
	tokenHook   *callout.Tokens              // may be nil
	plans       *certs.Dynamic[callout.Plan] // nil without --authorization-config
	proxies     *proxies                     // nil without --requestheader-client-ca-file
	origins     []*regexp.Regexp             // patterns for --cors-allowed-origins
	policy      atomic.Pointer[rbac.Index]   // nil with AlwaysAllow

	verified ttlcache.Cache[certUser]
	chains   chainVerifier
	failures failureLimiter
}

// New reads the files that the flags name. It returns an error if a line of the token file is
// invalid.
func New(cfg Config) (*Authenticator, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	a := &Authenticator{cfg: cfg, verified: ttlcache.Cache[certUser]{MaxEntries: maxVerified}, chains: chainVerifier{rejected: ttlcache.Cache[*x509.CertPool]{MaxEntries: maxRejected}}, Accounts: &serviceaccount.Tokens{Audiences: []string{serviceaccount.DefaultIssuer}}}
	if !cfg.AlwaysAllow {
		a.SetPolicy(rbac.BuiltinPolicy())
	}
	var err error
	if a.origins, err = compileOrigins(cfg.CORSOrigins); err != nil {
		return nil, err
	}
	if cfg.TokenFile != "" {
		if a.tokens, err = certs.NewDynamic(cfg.Log, parseTokenFile, cfg.TokenFile); err != nil {
			return nil, fmt.Errorf("--token-auth-file %s: %w", cfg.TokenFile, err)
		}
	}
	if cfg.ClientCAFile != "" || cfg.OwnCA != nil {
		if a.ClientCAs, err = certs.NewDynamicCAs(cfg.Log, cfg.OwnCA, cfg.ClientCAFile); err != nil {
			return nil, fmt.Errorf("--client-ca-file: %w", err)
		}
	}
	if cfg.RequestHeader.ClientCAFile != "" {
		if a.proxies, err = newProxies(cfg); err != nil {
			return nil, fmt.Errorf("--requestheader-client-ca-file: %w", err)
		}
	}
	return a, a.openExternal()
}

// Authenticate sets request.Request.User or responds with 401. On the plain port it responds with
// 403 if the page of another site has sent the request.
func (a *Authenticator) Authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header["X-Content-Type-Options"], header["Cross-Origin-Resource-Policy"] = noSniff, sameOrigin
		if a.allowOrigin(w.Header(), r.Header.Get("Origin")) && r.Method == http.MethodOptions {
			w.WriteHeader(http.StatusNoContent) // a preflight
			return
		}
		if _, padded := bearerToken(r.Header); padded {
			warning.AddWarning(r.Context(), "", "the provided Authorization header contains extra space before the bearer token, and is ignored")
		}
		u, err := a.identify(r)
		if r.ProtoMajor == 2 && (err != nil || u.Name == request.UserAnonymous) {
			// Clients without credentials may not keep HTTP/2 connections (CVE-2023-44487).
			w.Header().Set("Connection", "close")
		}
		if err != nil {
			response.Refuse(w, r, err)
			return
		}
		dropCredentials(r.Header)
		a.proxies.dropHeaders(r.Header)
		request.From(r.Context()).User = u
		next.ServeHTTP(w, r)
	})
}

// These response headers stop browsers from guessing the content type, and pages of other sites
// from embedding the response. All responses share the slices. The capacity is limited to 1, so
// that append makes a copy.
var noSniff, sameOrigin = []string{"nosniff"}[:1:1], []string{"same-origin"}[:1:1]

// errBadToken is returned if the token is not recognized.
var errBadToken = errors.New("invalid bearer token")

// identify returns the user who sent the request. If the credential is invalid, it returns 401. If
// the request was sent by a page of another site, it returns 403, unless the request has a token. A
// certificate takes precedence over a token, and a valid token is accepted despite an invalid
// certificate.
//
// On the plain port a client without a token is an administrator. If the request has the token of a
// service account, the user is that service account. If the token is invalid, the request is
// rejected, because a controller must not become an administrator when its account is deleted. Any
// other unknown token is ignored there.
func (a *Authenticator) identify(r *http.Request) (request.User, error) {
	token, malformed := requestToken(r)
	if a.cfg.Insecure {
		if err := cmp.Or(a.checkHostAndOrigin(r), unauthorizedIf(malformed)); err != nil {
			return request.User{}, err
		}
		u, _, err := a.tokenUser(r.Context(), token, a.Accounts.Audiences)
		if token == "" || err == errBadToken {
			return request.User{Name: request.UserUnsecured, Groups: []string{request.GroupMasters, request.GroupAuthenticated}}, nil
		}
		return u, unauthorizedIf(err)
	}
	u, ok, noProxy := a.proxies.user(r)
	if ok {
		return u, nil
	}
	u, ok, badCert := a.certificateUser(r)
	badCert = badCert || noProxy && a.ClientCAs == nil
	if malformed != nil && !ok {
		return request.User{}, unauthorizedIf(malformed)
	}
	if token != "" && !ok {
		u, _, err := a.tokenUser(r.Context(), token, a.Accounts.Audiences)
		return u, unauthorizedIf(err)
	}
	// Browsers present the client certificate with requests of any page.
	if err := a.checkSite(r); err != nil {
		return request.User{}, err
	}
	if ok {
		return u, nil
	}
	if badCert || !a.allowsAnonymous(r.URL.Path) {
		return request.User{}, unauthorizedIf(errBadToken)
	}
	return anonymousUser(), nil
}

// unauthorizedIf replaces the error of a credential with a 401 without a reason. The reason is only
// returned in the status of a TokenReview.
func unauthorizedIf(err error) error {
	if err == nil {
		return nil
	}
	return apierrors.NewUnauthorized("Unauthorized")
}

// tokenUser checks a token and returns its user. The token must be valid for at least one of the
// audiences, and meantFor contains these audiences. A token of --token-auth-file is valid for this
// server's audiences. The error wraps errBadToken.
func (a *Authenticator) tokenUser(ctx context.Context, token string, audiences []string) (u request.User, meantFor []string, err error) {
	if u, ok := a.fileUser(token); ok {
		if meantFor = a.ownAudiences(audiences); len(meantFor) == 0 {
			return request.User{}, nil, errBadToken
		}
		return u, meantFor, nil
	}
	id, err := a.Accounts.Check(ctx, token, audiences)
	switch {
	case err == serviceaccount.ErrUnknownIssuer:
		return a.externalUser(ctx, token, audiences)
	case err != nil:
		return request.User{}, nil, fmt.Errorf("[%w, %w]", errBadToken, err)
	}
	return request.User{Name: request.ServiceAccountPrefix + id.Namespace + ":" + id.Name, UID: id.UID, Extra: id.Extra,
		Groups: []string{request.GroupServiceAccounts, request.GroupServiceAccounts + ":" + id.Namespace, request.GroupAuthenticated}}, id.Audiences, nil
}

// ownAudiences returns the audiences that belong to this server.
func (a *Authenticator) ownAudiences(audiences []string) (own []string) {
	for _, audience := range audiences {
		if slices.Contains(a.Accounts.Audiences, audience) {
			own = append(own, audience)
		}
	}
	return own
}

// anonymousUser returns the user for requests without credentials.
func anonymousUser() request.User {
	return request.User{Name: request.UserAnonymous, Groups: []string{request.GroupUnauthenticated}}
}

// bearerToken returns the token of the Authorization header. Like kube-apiserver, it ignores the
// header "Bearer  x" with two spaces, but sets padded so that the client receives a warning.
func bearerToken(h http.Header) (token string, padded bool) {
	scheme, rest, _ := strings.Cut(strings.TrimSpace(h.Get("Authorization")), " ")
	if !strings.EqualFold(scheme, "bearer") {
		return "", false
	}
	token, _, more := strings.Cut(rest, " ")
	return token, token == "" && more
}

// dropCredentials removes the request's credentials. It also removes the headers of an
// authenticating proxy, because a handler that trusted them would trust any client.
func dropCredentials(h http.Header) {
	dropProtocolTokens(h)
	for key := range h {
		if request.IsHeader(key, "Authorization") || request.IsHeader(key, "X-Remote-User") || request.IsHeader(key, "X-Remote-Uid") ||
			request.IsHeader(key, "X-Remote-Group") || request.HasHeaderPrefix(key, "X-Remote-Extra-") {
			delete(h, key)
		}
	}
}

func dropImpersonation(h http.Header) {
	for key := range h {
		if request.HasHeaderPrefix(key, "Impersonate-") {
			delete(h, key)
		}
	}
}

func hasPrefixed(h http.Header, prefix string) bool {
	for key := range h {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

// checkHostAndOrigin rejects requests to the plain port that pages of other sites have sent. A
// request from a page has the page's Origin header. If the page's name was made to resolve to
// 127.0.0.1 (DNS rebinding), they carry that name as Host.
func (a *Authenticator) checkHostAndOrigin(r *http.Request) error {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if !request.IsLoopback(strings.Trim(host, "[]")) {
		return apierrors.NewForbidden(schema.GroupResource{}, "", fmt.Errorf("the Host %q is not a loopback name or address, and this port serves only this machine", r.Host))
	}
	return a.checkSite(r)
}

// ---- Tokens ----

// tokenTable holds the users of --token-auth-file. The map is indexed by the hash of the token, so
// that the time of a lookup does not depend on the stored tokens.
type tokenTable map[[sha256.Size]byte]request.User

func parseTokenFile(contents [][]byte) (*tokenTable, error) {
	table, err := readTokens(bytes.NewReader(contents[0]))
	return &table, err
}

// fileUser returns the user of a token in the current --token-auth-file.
func (a *Authenticator) fileUser(token string) (request.User, bool) {
	if a.tokens == nil {
		return request.User{}, false
	}
	u, ok := (*a.tokens.Current())[sha256.Sum256([]byte(token))]
	return u, ok
}

// readTokens reads lines of token,user,uid[,"group1,group2"]. It returns an error for an empty or
// repeated token. kube-apiserver only logs a warning, and one of the two users cannot authenticate.
func readTokens(r io.Reader) (tokenTable, error) {
	lines := csv.NewReader(r)
	lines.FieldsPerRecord = -1
	users := tokenTable{}
	for {
		fields, err := lines.Read()
		if err == io.EOF {
			return users, nil
		} else if err != nil {
			return nil, err
		}
		line, _ := lines.FieldPos(0)
		if len(fields) < 3 {
			return nil, fmt.Errorf("line %d: expected token,user,uid and optionally \"group1,group2\", found %d columns", line, len(fields))
		}
		key := sha256.Sum256([]byte(fields[0]))
		if _, known := users[key]; known || fields[0] == "" {
			return nil, fmt.Errorf("line %d: the token is empty or a duplicate", line)
		}
		u := request.User{Name: fields[1], UID: fields[2]}
		if len(fields) > 3 && fields[3] != "" {
			u.Groups = strings.Split(fields[3], ",")
		}
		users[key] = u.WithAuthenticatedGroup()
	}
}

// ---- Client certificates ----

// certUser is the result of verifying a certificate.
type certUser struct {
	user  request.User
	roots *x509.CertPool
}

// maxVerified limits the memory of verified certificates (about 500 bytes each).
const maxVerified = 1024

// certificateUser returns the user of the connection's client certificate. Like kube-apiserver, it
// verifies the certificate for each request and not during the handshake. The client gets a 401 for
// an invalid certificate, and a certificate that expires while the connection is open is no longer
// accepted. It takes 0.1 milliseconds to verify a signature, so the result is cached until the
// chain expires.
func (a *Authenticator) certificateUser(r *http.Request) (u request.User, ok, bad bool) {
	if a.ClientCAs == nil || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return request.User{}, false, false
	}
	leaf, now := r.TLS.PeerCertificates[0], a.cfg.Now()
	fingerprint, roots := sha256.Sum256(leaf.Raw), a.ClientCAs.Current()
	if known, hit := a.verified.Get(fingerprint, now); hit && known.roots == roots && !now.Before(leaf.NotBefore) {
		return known.user, true, false
	}
	until, err := a.chains.verify(r.Context(), r.TLS.PeerCertificates, roots, now)
	if err != nil {
		return request.User{}, false, true
	}
	if leaf.Subject.CommonName == "" {
		return request.User{}, false, false // valid, but without a user name
	}
	u, err = subjectUser(leaf, fingerprint)
	if err != nil {
		return request.User{}, false, true
	}
	a.verified.Put(fingerprint, certUser{u, roots}, now, until)
	return u, true, false
}

// uidOID is the object identifier of the user's UID in a certificate.
var uidOID = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}

// subjectUser returns the user that the subject describes: the common name is the user name, and
// the organizations are the groups.
func subjectUser(cert *x509.Certificate, fingerprint [sha256.Size]byte) (request.User, error) {
	u := request.User{Name: cert.Subject.CommonName, Groups: slices.Clone(cert.Subject.Organization),
		Extra: map[string][]string{"authentication.kubernetes.io/credential-id": {"X509SHA256=" + hex.EncodeToString(fingerprint[:])}}}
	for _, part := range cert.Subject.Names {
		if !part.Type.Equal(uidOID) {
			continue
		}
		uid, _ := part.Value.(string)
		if uid == "" || u.UID != "" {
			return request.User{}, errors.New("the subject's UID must be a single string that is not empty")
		}
		u.UID = uid
	}
	return u.WithAuthenticatedGroup(), nil
}

// ---- Impersonation ----

// An impersonationMode is a narrower permission than plain "impersonate", which is checked last and
// keeps its old meaning. If a user has the permission impersonate:MODE, the request must also be
// allowed by impersonate-on:MODE:VERB. The mode associated-node of kube-apiserver, which allows a
// service account to act as the node of its token, is not implemented.
type impersonationMode struct {
	name    string
	applies func(want request.User) bool
}

var impersonationModes = []impersonationMode{
	{"arbitrary-node", func(want request.User) bool { return want.HasOnlyName() && request.IsNode(want.Name) }},
	{"serviceaccount", func(want request.User) bool { return want.HasOnlyName() && request.IsServiceAccount(want.Name) }},
	{"user-info", func(want request.User) bool {
		return !request.IsNode(want.Name) && !request.IsServiceAccount(want.Name)
	}},
}

// Impersonate applies the Impersonate-* headers or responds with 403 or 400.
func (a *Authenticator) Impersonate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want, err := wantedUser(r.Header)
		if err == nil && want != nil {
			err = a.impersonateAs(request.From(r.Context()), *want)
		}
		if err != nil {
			response.Refuse(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// wantedUser returns the user that the Impersonate-* headers describe, or nil if there are no such
// headers. It deletes the headers.
func wantedUser(h http.Header) (*request.User, error) {
	const extraPrefix = "Impersonate-Extra-"
	defer dropImpersonation(h)
	if !hasPrefixed(h, "Impersonate-") {
		return nil, nil
	}
	want := request.User{Name: h.Get("Impersonate-User"), UID: h.Get("Impersonate-Uid"), Groups: slices.Clone(h["Impersonate-Group"])}
	for key, values := range h {
		if name, ok := strings.CutPrefix(key, extraPrefix); ok && len(values) > 0 {
			if want.Extra == nil {
				want.Extra = map[string][]string{}
			}
			name = unescapeExtra(strings.ToLower(name))
			want.Extra[name] = append(want.Extra[name], values...)
		}
	}
	if want.Name == "" && want.HasOnlyName() {
		return nil, nil
	}
	if want.Name == "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("requested &user.DefaultInfo{Name:%q, UID:%q, Groups:%#v, Extra:%#v} without impersonating a user name",
			want.Name, want.UID, want.Groups, want.Extra))
	}
	return &want, nil
}

// unescapeExtra returns the key unchanged if it cannot be unescaped.
func unescapeExtra(key string) string {
	if plain, err := url.PathUnescape(key); err == nil {
		return plain
	}
	return key
}

// impersonateAs makes want the user of the request if the current user may impersonate it. If no
// mode allows it, the error is from the first mode that applies.
func (a *Authenticator) impersonateAs(rec *request.Request, want request.User) error {
	var refusal error
	for _, mode := range impersonationModes {
		if !mode.applies(want) {
			continue
		}
		err := a.mayActOn(rec, mode.name)
		if err == nil {
			err = a.mayImpersonate(rec.User, want, mode.name)
		}
		if err == nil {
			rec.Impersonate(want.WithImplicitGroups(mode.name), "impersonate:"+mode.name)
			return nil
		}
		if refusal == nil {
			refusal = err
		}
	}
	if err := a.mayImpersonate(rec.User, want, ""); err != nil {
		if refusal != nil {
			return refusal
		}
		return err
	}
	rec.Impersonate(want.WithImplicitGroups(""), "")
	return nil
}

func (a *Authenticator) mayActOn(rec *request.Request, mode string) error {
	info := rec.Info
	info.Verb = "impersonate-on:" + mode + ":" + info.Verb
	return a.Check(rec.User, info)
}

// mayImpersonate checks one permission for each part of the identity.
func (a *Authenticator) mayImpersonate(by, want request.User, mode string) error {
	for _, part := range identityParts(want, mode) {
		if mode != "" {
			if reason := unfitForMode(part); reason != "" {
				return forbidden(by, part, reason)
			}
		}
		if err := a.Check(by, part); err != nil {
			return err
		}
	}
	return nil
}

// identityParts returns the permissions that are needed to impersonate want, in the order in which
// they are checked.
func identityParts(want request.User, mode string) []request.Info {
	base := request.Info{ResourceRequest: true, Verb: "impersonate", Version: "v1"}
	named := base // plain "impersonate" has users and groups in the core group
	if mode != "" {
		base.Verb = "impersonate:" + mode
		named.Verb, named.Group = base.Verb, authenticationv1.GroupName
	}
	base.Group = authenticationv1.GroupName
	part := func(info request.Info, resource, subresource, name string) request.Info {
		info.Resource, info.Subresource, info.Name = resource, subresource, name
		return info
	}
	parts := []request.Info{part(named, "users", "", want.Name)}
	if namespace, name, ok := request.SplitServiceAccount(want.Name); ok {
		parts[0] = part(named, "serviceaccounts", "", name)
		parts[0].Namespace = namespace
	} else if mode != "" && request.IsNode(want.Name) {
		parts[0] = part(named, "nodes", "", strings.TrimPrefix(want.Name, request.NodePrefix))
	}
	if want.UID != "" {
		parts = append(parts, part(base, "uids", "", want.UID))
	}
	for _, group := range want.Groups {
		parts = append(parts, part(named, "groups", "", group))
	}
	for _, key := range slices.Sorted(maps.Keys(want.Extra)) {
		for _, value := range want.Extra[key] {
			parts = append(parts, part(base, "userextras", key, value))
		}
	}
	return parts
}

// unfitForMode returns the reason why constrained impersonation rejects a part of the identity, or
// "". Roles cannot override it.
func unfitForMode(part request.Info) string {
	switch {
	case part.Resource == "groups" && part.Name == "":
		return "impersonating the empty string group is not allowed"
	case part.Resource == "groups" && part.Name == request.GroupMasters:
		return "impersonating the system:masters group is not allowed"
	case part.Resource != "userextras":
		return ""
	case part.Subresource == "":
		return "impersonating the empty string key in extra is not allowed"
	case part.Name == "":
		return "impersonating the empty string value in extra is not allowed"
	}
	if err := utilvalidation.IsDomainPrefixedPath(field.NewPath("extra", "key"), part.Subresource).ToAggregate(); err != nil {
		return "impersonating an invalid key in extra is not allowed: " + err.Error()
	}
	return ""
}

// ---- Authorization ----

// Authorize returns nil if the user may send the request, or else the 403 Status error. It records
// the decision in rec. If an authorizer fails and none allows the request, the error is a 500.
func (a *Authenticator) Authorize(rec *request.Request) error {
	verdict, reason, err := a.decide(rec.User, rec.Info)
	if rec.Moment != "" && a.isUnauthenticated(rec.User) {
		verdict, reason, err = callout.Deny, "what was is not for strangers", nil
	}
	rec.Decision, rec.Reason = request.Allowed, reason
	if verdict == callout.Allow {
		return nil
	}
	rec.Decision = request.Forbidden
	if err != nil { // an authorizer did not respond
		a.logFailure("an authorizer failed", err)
		rec.Reason = "internal error"
		return apierrors.NewInternalError(err)
	}
	return forbidden(rec.User, rec.Info, reason)
}

// Check is like Authorize, but does not record the decision for the audit log.
func (a *Authenticator) Check(u request.User, info request.Info) error {
	if allowed, reason := a.Decide(u, info); !allowed {
		return forbidden(u, info, reason)
	}
	return nil
}

// MayCreate must be called if an update or a patch would create its object. It returns an error if
// the user may not create it. If rec is nil, the write is allowed, because it was made by the
// server.
func (a *Authenticator) MayCreate(rec *request.Request) error {
	if rec == nil {
		return nil
	}
	info := rec.Info
	info.Verb = "create"
	return a.Check(rec.User, info)
}

// Decide reports whether the user may send the request. All permissions are decided here. reason is
// Kubernetes' text for the audit log and access reviews.
func (a *Authenticator) Decide(u request.User, info request.Info) (allowed bool, reason string) {
	verdict, reason, err := a.decide(u, info)
	if err != nil {
		a.logFailure("an authorizer failed", err)
	}
	return verdict == callout.Allow, reason
}

// decide is like Decide, but also reports whether an authorizer denied the request and which
// authorizers failed.
func (a *Authenticator) decide(u request.User, info request.Info) (verdict callout.Verdict, reason string, err error) {
	if a.cfg.AlwaysAllow || slices.Contains(u.Groups, request.GroupMasters) {
		return callout.Allow, "", nil
	}
	if plan := a.plan(); plan != nil {
		return a.decideByPlan(plan, u, info)
	}
	var allowed bool
	if a.Nodes != nil {
		allowed, reason = a.decideByModes(u, info)
	} else {
		q := accessFor(info, u)
		if allowed, reason = a.policy.Load().Allows(&q); !allowed {
			reason = prefixReason(ModeRBAC, reason)
		}
	}
	if allowed {
		verdict = callout.Allow
	}
	return verdict, reason, nil
}

// decideByModes evaluates the authorizers in order until one allows the request. A refusal combines
// the reasons of all authorizers.
func (a *Authenticator) decideByModes(u request.User, info request.Info) (allowed bool, reason string) {
	var reasons []string
	for _, mode := range a.cfg.Modes {
		if mode == ModeNode {
			allowed, reason = a.Nodes.Decide(u, info)
		} else {
			q := accessFor(info, u)
			allowed, reason = a.policy.Load().Allows(&q)
		}
		if allowed {
			return true, reason
		}
		if reason != "" {
			reasons = append(reasons, prefixReason(mode, reason))
		}
	}
	return false, strings.Join(reasons, "\n")
}

// prefixReason prefixes the reason of a refusal with the name of the authorizer.
func prefixReason(mode, reason string) string {
	if reason == "" {
		return ""
	}
	return strings.ToLower(mode) + ": " + reason
}

// isNode reports whether the node authorizer decides about the user.
func (a *Authenticator) isNode(u request.User) bool {
	_, ok := node.Identify(u)
	return ok && a.Nodes != nil
}

// isUnauthenticated reports whether the user is unauthenticated and authorization is enabled. Such
// users may read only the current state, never past revisions.
func (a *Authenticator) isUnauthenticated(u request.User) bool {
	return !a.cfg.AlwaysAllow && slices.Contains(u.Groups, request.GroupUnauthenticated)
}

// MayListAnything reports whether the user may list at least one resource in some namespace, also
// at past revisions.
func (a *Authenticator) MayListAnything(u request.User) bool {
	if a.isUnauthenticated(u) {
		return false
	}
	return a.cfg.AlwaysAllow || a.isNode(u) || a.usesWebhooks() || slices.Contains(u.Groups, request.GroupMasters) || a.policy.Load().MayListAnything(u.Name, u.Groups)
}

// SetPolicy replaces the policy with the given Roles, ClusterRoles and bindings. The caller must
// pass all stored ones, after each change. The default policy is in effect until the first call.
func (a *Authenticator) SetPolicy(objects []scheme.Object) { a.SetIndex(rbac.NewIndex(objects)) }

// SetIndex is like SetPolicy for a caller that has already built the index.
func (a *Authenticator) SetIndex(policy *rbac.Index) { a.policy.Store(policy) }

// EnforcesRBAC reports whether the stored policy is used, which is not the case with AlwaysAllow.
func (a *Authenticator) EnforcesRBAC() bool { return !a.cfg.AlwaysAllow }

// MayGrant returns a Status error if the request's user may not write this Role, ClusterRole,
// RoleBinding or ClusterRoleBinding. Users cannot grant permissions that they do not have, unless
// they have the verb escalate (for roles) or bind (for bindings). old is nil for a create.
func (a *Authenticator) MayGrant(rec *request.Request, obj, old scheme.Object) error {
	info := request.Info{ResourceRequest: true, Group: rec.Info.Group, Resource: rec.Info.Resource, Namespace: rec.Info.Namespace, Name: rec.Info.Name}
	q, index := accessFor(info, rec.User), a.policy.Load()
	if old != nil && isCollectorUpdate(obj, old) {
		return nil
	}
	var err error
	if ref, _ := rbac.BindingParts(obj); ref != nil {
		info.Verb, info.Group, info.Name = "bind", ref.APIGroup, ref.Name
		info.Resource = strings.ToLower(ref.Kind) + "s"
		if allowed, _ := a.Decide(rec.User, info); allowed {
			return nil
		}
		err = index.MayBind(&q, *ref)
	} else {
		info.Verb = "escalate"
		if allowed, _ := a.Decide(rec.User, info); allowed {
			return nil
		}
		err = index.MayGrantRole(&q, obj, old)
	}
	if err == nil || apierrors.IsNotFound(err) {
		return err
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: rec.Info.Group, Resource: rec.Info.Resource}, obj.GetName(), err)
}

// isCollectorUpdate reports whether the update changes only the fields that garbage collection
// needs. Garbage collection must also work for objects that its user could not create.
func isCollectorUpdate(obj, old scheme.Object) bool {
	same := obj.DeepCopyObject().(scheme.Object)
	same.SetOwnerReferences(old.GetOwnerReferences())
	same.SetFinalizers(old.GetFinalizers())
	same.SetManagedFields(old.GetManagedFields())
	return apiequality.Semantic.DeepEqual(same, old)
}

// markup escapes the text of a 403. The text quotes the request, and an old browser might interpret
// the response as HTML.
var markup = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// forbidden returns the 403 error of kube-apiserver.
func forbidden(u request.User, info request.Info, reason string) error {
	text := markup.Replace(refusal(u, info))
	if reason != "" {
		text += ": " + reason
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: info.Group, Resource: info.Resource}, info.Name, errors.New(text))
}

func refusal(u request.User, info request.Info) string {
	if !info.ResourceRequest {
		return fmt.Sprintf("User %q cannot %s path %q", u.Name, info.Verb, info.Path)
	}
	resource := info.Resource
	if info.Subresource != "" {
		resource += "/" + info.Subresource
	}
	where := "at the cluster scope"
	if info.Namespace != "" {
		where = fmt.Sprintf("in the namespace %q", info.Namespace)
	}
	return fmt.Sprintf("User %q cannot %s resource %q in API group %q %s", u.Name, info.Verb, resource, info.Group, where)
}

// ---- Access reviews ----

// Review sets the status of a TokenReview, SelfSubjectReview, SubjectAccessReview,
// SelfSubjectAccessReview, SelfSubjectRulesReview or LocalSubjectAccessReview. It returns 400 or
// 422 if the review is invalid.
func (a *Authenticator) Review(ctx context.Context, obj runtime.Object) error {
	rec := request.From(ctx)
	switch obj := obj.(type) {
	case *authenticationv1.TokenReview:
		return a.reviewToken(ctx, obj)
	case *authenticationv1.SelfSubjectReview:
		obj.ObjectMeta = metav1.ObjectMeta{CreationTimestamp: metav1.Now()}
		obj.Status.UserInfo = rec.User.UserInfo()
		return nil
	case *authorizationv1.SelfSubjectAccessReview:
		spec := authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: obj.Spec.ResourceAttributes, NonResourceAttributes: obj.Spec.NonResourceAttributes}
		if err := invalidReview(append(validateAccess(spec), validateReviewMeta(obj.ObjectMeta, "", "must be empty")...)); err != nil {
			return err
		}
		obj.Status = a.access(rec.User, spec)
		return nil
	case *authorizationv1.SubjectAccessReview:
		if err := invalidReview(append(validateSubject(obj.Spec), validateReviewMeta(obj.ObjectMeta, "", "must be empty")...)); err != nil {
			return err
		}
		obj.Status = a.access(specUser(obj.Spec), obj.Spec)
		return nil
	case *authorizationv1.LocalSubjectAccessReview:
		if err := validateLocal(obj, rec.Info.Namespace); err != nil {
			return err
		}
		obj.Status = a.access(specUser(obj.Spec), obj.Spec)
		return nil
	case *authorizationv1.SelfSubjectRulesReview:
		if obj.Spec.Namespace == "" {
			return apierrors.NewBadRequest("no namespace on request")
		}
		obj.Status = a.rules(rec.User, obj.Spec.Namespace)
		obj.ObjectMeta, obj.Spec = metav1.ObjectMeta{}, authorizationv1.SelfSubjectRulesReviewSpec{}
		return nil
	}
	return apierrors.NewBadRequest(fmt.Sprintf("%T is no review", obj))
}

// reviewToken treats the token as if it had been sent in a header. The token " x" is therefore
// ignored, and the result is system:anonymous.
func (a *Authenticator) reviewToken(ctx context.Context, obj *authenticationv1.TokenReview) error {
	if obj.Spec.Token == "" {
		return apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	audiences := obj.Spec.Audiences
	if len(audiences) == 0 {
		audiences = a.Accounts.Audiences
	}
	token, _ := bearerToken(http.Header{"Authorization": {"Bearer " + obj.Spec.Token}})
	u, meantFor, err := a.tokenUser(ctx, token, audiences)
	if token == "" && a.allowsAnonymous("") && !a.cfg.Insecure {
		u, meantFor, err = anonymousUser(), a.ownAudiences(audiences), nil
	}
	if err != nil || len(meantFor) == 0 {
		obj.Status = authenticationv1.TokenReviewStatus{Error: cmp.Or(err, errBadToken).Error()}
		return nil
	}
	obj.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: u.UserInfo(), Audiences: meantFor}
	return nil
}

// access returns the status of an access review for the user.
func (a *Authenticator) access(u request.User, spec authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
	var info request.Info
	var unread []string
	if at := spec.ResourceAttributes; at != nil {
		info = request.Info{ResourceRequest: true, Verb: at.Verb, Group: at.Group, Version: at.Version, Namespace: at.Namespace,
			Resource: at.Resource, Subresource: at.Subresource, Name: at.Name}
		info = info.WithFieldSelector(fieldSelector(at))
		unread = selectorProblem(at)
	} else {
		info = request.Info{Verb: spec.NonResourceAttributes.Verb, Path: spec.NonResourceAttributes.Path}
	}
	verdict, reason, err := a.decide(u, info)
	if err != nil {
		unread = append(unread, err.Error())
	}
	return authorizationv1.SubjectAccessReviewStatus{Allowed: verdict == callout.Allow, Denied: verdict == callout.Deny, Reason: reason,
		EvaluationError: strings.Join(unread, "; ")}
}

func specUser(spec authorizationv1.SubjectAccessReviewSpec) request.User {
	u := request.User{Name: spec.User, UID: spec.UID, Groups: spec.Groups, Extra: make(map[string][]string, len(spec.Extra))}
	for key, values := range spec.Extra {
		u.Extra[key] = values
	}
	return u
}

// rules returns the permissions of the user in a namespace.
func (a *Authenticator) rules(u request.User, namespace string) authorizationv1.SubjectRulesReviewStatus {
	rules, problem := rbac.FullAuthority, ""
	if !a.cfg.AlwaysAllow {
		rules, problem = a.rolesIn(u, namespace)
	}
	if a.usesWebhooks() && !a.cfg.AlwaysAllow {
		problem = strings.TrimPrefix(problem+", webhook authorizer does not support user rule resolution", ", ")
	}
	status := authorizationv1.SubjectRulesReviewStatus{EvaluationError: problem, Incomplete: a.isNode(u) || a.usesWebhooks(),
		ResourceRules: []authorizationv1.ResourceRule{}, NonResourceRules: []authorizationv1.NonResourceRule{}}
	for _, rule := range rules {
		if len(rule.Resources) > 0 {
			status.ResourceRules = append(status.ResourceRules, authorizationv1.ResourceRule{
				Verbs: rule.Verbs, APIGroups: rule.APIGroups, Resources: rule.Resources, ResourceNames: rule.ResourceNames})
		}
		if len(rule.NonResourceURLs) > 0 {
			status.NonResourceRules = append(status.NonResourceRules, authorizationv1.NonResourceRule{Verbs: rule.Verbs, NonResourceURLs: rule.NonResourceURLs})
		}
	}
	return status
}

// rolesIn returns the rules that roles grant the user in a namespace. problem explains why the list
// may be incomplete.
func (a *Authenticator) rolesIn(u request.User, namespace string) (rules []rbacv1.PolicyRule, problem string) {
	if plan := a.plan(); plan != nil && !plan.Has(callout.TypeRBAC) {
		return nil, ""
	}
	if a.Nodes == nil || a.plan() != nil || slices.Contains(a.cfg.Modes, ModeRBAC) {
		rules, problem = a.policy.Load().RulesFor(&rbac.Access{User: u.Name, Groups: u.Groups, Namespace: namespace})
	}
	switch {
	case !a.isNode(u):
	case problem == "":
		problem = node.NoRules
	case len(a.cfg.Modes) > 0 && a.cfg.Modes[0] == ModeNode:
		problem = "[" + node.NoRules + ", " + problem + "]"
	default:
		problem = "[" + problem + ", " + node.NoRules + "]"
	}
	return rules, problem
}

// accessFor converts a request to the form that package rbac uses.
func accessFor(info request.Info, u request.User) rbac.Access {
	return rbac.Access{User: u.Name, Groups: u.Groups, ResourceRequest: info.ResourceRequest, Verb: info.Verb, Group: info.Group, Resource: info.Resource,
		Subresource: info.Subresource, Namespace: info.Namespace, Name: info.Name, Path: info.Path}
}
