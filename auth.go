package main

// This file answers the first three questions about a request: what it is for (requestInfo), who sends it (user), and whether
// they may. Everything behind it sees only the answers, in the request's record.
//
//	GET /api/v1/namespaces/shop/pods?watch=1      Authorization: Bearer s3cret      Impersonate-User: alice
//	      │                                              │                                 │
//	parseRequest                                      identify                        impersonated
//	      ▼                                              ▼                                 ▼
//	watch pods in "shop"                        bob, [dev system:authenticated]   alice, [system:authenticated]
//	      └──────────────────────────────┬───────────────────────────────────────────────┘
//	                                  authorize      nil, or 403: pods is forbidden: User "alice" cannot watch resource ...
//
// The functions that decide take values and return errors; the http.Handlers around them only carry the answers. Credentials and
// Impersonate-* headers are gone once they are read: nothing behind this file can act on them a second time.
//
// Two ways to run. Without an authenticator the server listens on loopback alone and everyone is system:unsecured, a cluster
// administrator; since every web page in the user's browser can reach that port, foreign Hosts and Origins are refused. With an
// authenticator (token file, client certificates) whoever shows a credential must show a good one, and whoever shows none is
// system:anonymous.

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
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Names that Kubernetes gives to users and groups of its own.
const (
	userAnonymous        = "system:anonymous"
	userUnsecured        = "system:unsecured"
	groupMasters         = "system:masters" // may do anything, whatever the roles say
	groupAuthenticated   = "system:authenticated"
	groupUnauthenticated = "system:unauthenticated"
	groupNodes           = "system:nodes"
	groupServiceAccounts = "system:serviceaccounts"
	serviceAccountPrefix = "system:serviceaccount:" // then namespace:name
	nodePrefix           = "system:node:"           // then the node's name
)

// ---- The record of a request ----

// requestInfo is what a request asks for, as Kubernetes' authorizers, flow control and audit see it.
type requestInfo struct {
	resourceRequest bool
	verb            string // get list watch create update patch delete deletecollection; else the lower-case HTTP method
	apiPrefix       string // api or apis, "" for non-resource requests
	group, version  string
	namespace       string
	resource        string
	subresource     string
	name            string
	path            string
	rest            string // what the path holds behind the subresource, for proxies; still percent-encoded
}

// user is who asks. Shared between requests: never changed in place.
type user struct {
	name, uid string
	groups    []string
	extra     map[string][]string
}

// request is the one record of a request, made by the outermost middleware and carried in the context. Log line, metrics and
// audit event are written from it at the end.
type request struct {
	id           string // Audit-Id
	received     time.Time
	info         requestInfo
	user         user   // who acts (after impersonation)
	impersonator *user  // who really asks, when that is somebody else
	constraint   string // the verb that allowed the impersonation, "" for plain "impersonate"; audit writes it
	flowSchema   string
	priority     string
	waited       time.Duration  // in flow control's queue
	sent         bodyID         // what the body calls its object
	answered     *metav1.Status // the Status that was answered; nil when it was another object

	mu          sync.Mutex        // guards annotations: a collection's objects are deleted side by side
	annotations map[string]string // audit annotations
}

// bodyID is what a body calls its object.
type bodyID struct{ namespace, name, uid, resourceVersion string }

type requestKey struct{}

// requestFrom returns the record of the request that ctx belongs to; never nil behind the outermost middleware.
func requestFrom(ctx context.Context) *request {
	rec, _ := ctx.Value(requestKey{}).(*request)
	return rec
}

// annotate adds an audit annotation.
func (rec *request) annotate(key, value string) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.annotations == nil {
		rec.annotations = map[string]string{}
	}
	rec.annotations[key] = value
}

// annotateOnce adds an audit annotation, unless there is one of that key.
func (rec *request) annotateOnce(key, value string) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.annotations == nil {
		rec.annotations = map[string]string{}
	}
	if _, told := rec.annotations[key]; !told {
		rec.annotations[key] = value
	}
}

// noteBody keeps what the body of a create or an update calls its object: the path of a create does not say.
func (rec *request) noteBody(obj metav1.Object) {
	rec.sent = bodyID{obj.GetNamespace(), obj.GetName(), string(obj.GetUID()), obj.GetResourceVersion()}
}

// refuse answers with an error, which the audit log is to tell. It returns err when that was no Status, as writeError does.
func refuse(w http.ResponseWriter, r *http.Request, err error) (unexpected error) {
	if rec := requestFrom(r.Context()); rec != nil {
		status, _ := errorStatus(err)
		rec.answered = &status
	}
	return writeError(w, r, err)
}

// ---- What for: requestInfo ----

// parseRequest reads requestInfo off method and URL; it never fails: what is no resource path is a non-resource request.
//
//	/api/VERSION/…   /apis/GROUP/VERSION/…   and then, [] being optional,
//	[watch|proxy] [namespaces/NAMESPACE] RESOURCE [NAME [SUBRESOURCE [rest]]]
//
// namespaces/x, namespaces/x/status and namespaces/x/finalize are the namespace itself (as a resource in the namespace x: roles in
// x may grant it). Unlike kube-apiserver's, segments are split before they are unescaped: pods/a%2Fb is the (impossible) pod "a/b",
// not the subresource b of a.
func parseRequest(r *http.Request) requestInfo {
	info := requestInfo{verb: lowerMethod(r.Method), path: r.URL.Path}
	p := pathSegments(r.URL)
	prefix := p.next()
	if prefix != "api" && prefix != "apis" {
		return info
	}
	res := requestInfo{path: info.path, apiPrefix: prefix, resourceRequest: true}
	if prefix == "apis" {
		res.group = p.next()
	}
	res.version, res.verb = p.next(), resourceVerb(r.Method)
	if p.done {
		return info // a discovery document
	}
	res.resource = p.next()
	if res.resource == "watch" || res.resource == "proxy" { // deprecated since 1.16, but still a verb in a path
		if p.done {
			return info
		}
		res.verb, res.resource = res.resource, p.next()
	}
	if res.resource == "namespaces" && !p.done {
		res.namespace = p.next()
		res.name = res.namespace
		if !p.done && !isNamespaceSubresource(p.peek()) {
			res.resource, res.name = p.next(), p.next()
		}
	} else {
		res.name = p.next()
	}
	if res.verb != "proxy" {
		res.subresource = p.next()
	}
	res.rest = p.rest
	res.narrow(r.URL.RawQuery)
	return res
}

// narrow finds the verb of a request that names no object: a GET is a list or a watch, a DELETE one of a collection. A list of a
// single name through the field selector is authorized, and counted by flow control, as one for that name.
func (info *requestInfo) narrow(query string) {
	if info.name != "" {
		return
	}
	switch info.verb {
	case "delete":
		info.verb = "deletecollection"
	case "get":
		info.verb = "list"
		if watch, ok := firstValue(query, "watch"); ok && watch != "0" && !strings.EqualFold(watch, "false") {
			info.verb = "watch"
		}
		if selector, ok := firstValue(query, "fieldSelector"); ok {
			info.name = selectedName(selector)
		}
	}
}

// selectedName returns x of a field selector that demands metadata.name=x, "" when there is none or x cannot be a name.
func selectedName(selector string) string {
	if !strings.Contains(selector, "metadata.name") {
		return ""
	}
	parsed, err := fields.ParseSelector(selector)
	if err != nil {
		return ""
	}
	name, ok := parsed.RequiresExactMatch("metadata.name")
	if !ok || len(content.IsPathSegmentName(name)) > 0 {
		return ""
	}
	return name
}

// firstValue is url.Values.Get for one key without parsing the rest of the query, and with its rules: a pair that has a semicolon
// or does not unescape is no pair.
func firstValue(query, key string) (string, bool) {
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		k, v, _ := strings.Cut(pair, "=")
		if strings.Contains(pair, ";") || !strings.ContainsAny(k, "%+") && k != key {
			continue
		}
		if k, err := url.QueryUnescape(k); err != nil || k != key {
			continue
		}
		if v, err := url.QueryUnescape(v); err == nil {
			return v, true
		}
	}
	return "", false
}

// segments yields the parts of a path between slashes; behind the last one they are "".
type segments struct {
	rest    string
	escaped bool // rest is percent-encoded
	done    bool // nothing is left
}

func pathSegments(u *url.URL) segments {
	p := segments{rest: u.Path, escaped: u.RawPath != ""}
	if p.escaped {
		p.rest = u.EscapedPath()
	}
	p.rest = strings.Trim(p.rest, "/")
	p.done = p.rest == ""
	return p
}

func (p *segments) peek() string {
	q := *p
	return q.next()
}

func (p *segments) next() string {
	segment, rest, more := strings.Cut(p.rest, "/")
	p.rest, p.done = rest, !more
	if p.escaped {
		if plain, err := url.PathUnescape(segment); err == nil {
			return plain
		}
	}
	return segment
}

func isNamespaceSubresource(s string) bool { return s == "status" || s == "finalize" }

func resourceVerb(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead:
		return "get"
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch, http.MethodDelete:
		return lowerMethod(method)
	}
	return ""
}

// lowerMethod spares the common methods an allocation.
func lowerMethod(method string) string {
	switch method {
	case http.MethodGet:
		return "get"
	case http.MethodPost:
		return "post"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return strings.ToLower(method)
}

// ---- Who: the authenticator ----

// authConfig are the flags of identity.
type authConfig struct {
	tokenFile, clientCAFile string
	ownCA                   []byte // the certificate of this server's own authority, if it has one: what that signs is accepted, too
	anonymous               bool
	insecure                bool     // the plain loopback port: everyone is system:unsecured
	alwaysAllow             bool     // --authorization-mode=AlwaysAllow
	corsOrigins             []string // --cors-allowed-origins: regular expressions
	log                     zerolog.Logger
}

// checkListen refuses an address that others could reach unless they would have to say who they are.
func (cfg authConfig) checkListen(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("--listen %s: %w", addr, err)
	}
	if cfg.insecure && !isLoopback(host) {
		return fmt.Errorf("--listen %s: without an authenticator (--token-auth-file or --client-ca-file) only a loopback address is allowed, everyone would be a cluster administrator", addr)
	}
	return nil
}

// staysHere says that only this machine can reach addr. An address that is none is for checkListen.
func staysHere(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err != nil || isLoopback(host)
}

// isLoopback is about the text: a name that happens to resolve to loopback may resolve to something else tomorrow.
func isLoopback(host string) bool {
	if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// authenticator knows the credentials and the policy. Safe for concurrent use.
type authenticator struct {
	cfg       authConfig
	tokens    *followed[tokenTable]     // nil without --token-auth-file
	clientCAs *followed[x509.CertPool]  // nil when no certificate is accepted; the TLS listener requests certificates of these, and verifies none
	accounts  *accountTokens            // service accounts' tokens: none are known before the store is open and this is set, once
	origins   []*regexp.Regexp          // of other sites' pages that may use this server
	policy    atomic.Pointer[rbacIndex] // nil with alwaysAllow

	mu       sync.Mutex // guards verified
	verified map[[sha256.Size]byte]certUser
}

// newAuthenticator reads the files that the flags name; a line of the token file that is not understood is an error.
func newAuthenticator(cfg authConfig) (*authenticator, error) {
	a := &authenticator{cfg: cfg, verified: map[[sha256.Size]byte]certUser{}, accounts: &accountTokens{audiences: []string{defaultIssuer}}}
	if !cfg.alwaysAllow {
		a.setPolicy(builtinPolicy())
	}
	for _, origin := range cfg.corsOrigins {
		re, err := regexp.Compile(origin)
		if err != nil {
			return nil, fmt.Errorf("--cors-allowed-origins: %w", err)
		}
		a.origins = append(a.origins, re)
	}
	var err error
	if cfg.tokenFile != "" {
		if a.tokens, err = follow(cfg.log, parseTokenFile, cfg.tokenFile); err != nil {
			return nil, fmt.Errorf("--token-auth-file %s: %w", cfg.tokenFile, err)
		}
	}
	if cfg.clientCAFile != "" || cfg.ownCA != nil {
		if a.clientCAs, err = followAuthorities(cfg.log, cfg.clientCAFile, cfg.ownCA); err != nil {
			return nil, fmt.Errorf("--client-ca-file: %w", err)
		}
	}
	return a, nil
}

// authenticate fills request.user or answers 401 (on the plain port 403: the request comes from another site's page).
func (a *authenticator) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.allowOrigin(w.Header(), r.Header.Get("Origin")) && r.Method == http.MethodOptions {
			w.WriteHeader(http.StatusNoContent) // a preflight
			return
		}
		if _, padded := bearerToken(r.Header); padded {
			addWarning(r.Context(), "the provided Authorization header contains extra space before the bearer token, and is ignored")
		}
		u, err := a.identify(r)
		if r.ProtoMajor == 2 && (err != nil || u.name == userAnonymous) {
			w.Header().Set("Connection", "close") // strangers may not keep HTTP/2 connections (CVE-2023-44487)
		}
		if err != nil {
			refuse(w, r, err)
			return
		}
		dropCredentials(r.Header)
		requestFrom(r.Context()).user = u
		next.ServeHTTP(w, r)
	})
}

// errBadToken is about a token that nobody here knows.
var errBadToken = errors.New("invalid bearer token")

// identify says who sends the request: 401 for a credential that is no good, 403 for a page of another site on the plain port.
// A certificate goes before a token; a bad one does no harm beside a good token.
//
// On the plain port everybody is trusted who shows nothing else. A service account's token is somebody else there, too, and a bad one is
// refused: a controller whose account has gone must not become an administrator. Any other token there is nobody's, and ignored.
func (a *authenticator) identify(r *http.Request) (user, error) {
	token, _ := bearerToken(r.Header)
	if a.cfg.insecure {
		if err := a.screenPage(r); err != nil {
			return user{}, err
		}
		u, _, err := a.tokenUser(token, a.accounts.audiences)
		if token == "" || err == errBadToken {
			return user{name: userUnsecured, groups: []string{groupMasters, groupAuthenticated}}, nil
		}
		return u, unauthorizedIf(err)
	}
	u, ok, badCert := a.certificateUser(r)
	if ok {
		return u, nil
	}
	if token != "" {
		u, _, err := a.tokenUser(token, a.accounts.audiences)
		return u, unauthorizedIf(err)
	}
	if badCert || !a.cfg.anonymous {
		return user{}, unauthorizedIf(errBadToken)
	}
	return anonymousUser(), nil
}

// unauthorizedIf keeps to itself what is wrong with a credential. A TokenReview tells it, to those who may ask.
func unauthorizedIf(err error) error {
	if err == nil {
		return nil
	}
	return apierrors.NewUnauthorized("Unauthorized")
}

// tokenUser returns whose a token is that is meant for one of the audiences, and those of them for which it is. A token of
// --token-auth-file is meant for this server. The error is errBadToken unless a service account's issuer has issued the token.
func (a *authenticator) tokenUser(token string, audiences []string) (u user, meantFor []string, err error) {
	if u, ok := a.fileUser(token); ok {
		if meantFor = a.ownAudiences(audiences); len(meantFor) == 0 {
			return user{}, nil, errBadToken
		}
		return u, meantFor, nil
	}
	id, err := a.accounts.check(token, audiences)
	switch {
	case err == errNotOurs:
		return user{}, nil, errBadToken
	case err != nil:
		return user{}, nil, fmt.Errorf("[%w, %w]", errBadToken, err)
	}
	return user{name: serviceAccountPrefix + id.namespace + ":" + id.name, uid: id.uid, extra: id.extra,
		groups: []string{groupServiceAccounts, groupServiceAccounts + ":" + id.namespace, groupAuthenticated}}, id.audiences, nil
}

// ownAudiences returns those of the audiences that are this server.
func (a *authenticator) ownAudiences(audiences []string) (own []string) {
	for _, audience := range audiences {
		if slices.Contains(a.accounts.audiences, audience) {
			own = append(own, audience)
		}
	}
	return own
}

func anonymousUser() user { return user{name: userAnonymous, groups: []string{groupUnauthenticated}} }

// bearerToken returns the token of the Authorization header. "Bearer  x", with two spaces, is no credential at all for
// kube-apiserver, but worth a warning (padded).
func bearerToken(h http.Header) (token string, padded bool) {
	scheme, rest, _ := strings.Cut(strings.TrimSpace(h.Get("Authorization")), " ")
	if !strings.EqualFold(scheme, "bearer") {
		return "", false
	}
	token, _, more := strings.Cut(rest, " ")
	return token, token == "" && more
}

// dropCredentials also drops what an authenticating proxy would add: a handler that trusted it would trust anybody.
func dropCredentials(h http.Header) {
	for _, key := range []string{"Authorization", "X-Remote-User", "X-Remote-Uid", "X-Remote-Group"} {
		h.Del(key)
	}
	deletePrefixed(h, "X-Remote-Extra-")
}

func deletePrefixed(h http.Header, prefix string) {
	for key := range h {
		if strings.HasPrefix(key, prefix) {
			delete(h, key)
		}
	}
}

// screenPage keeps other sites' pages off the plain port. A page's own requests carry its Origin; a page whose name was made to
// resolve to 127.0.0.1 (DNS rebinding) carries that name as Host.
func (a *authenticator) screenPage(r *http.Request) error {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if !isLoopback(strings.Trim(host, "[]")) {
		return apierrors.NewForbidden(schema.GroupResource{}, "", fmt.Errorf("the Host %q is no loopback name or address, and this port serves this machine alone", r.Host))
	}
	if origin := r.Header.Get("Origin"); origin != "" && !a.knowsOrigin(origin) {
		return apierrors.NewForbidden(schema.GroupResource{}, "", fmt.Errorf("the Origin %q is not named by --cors-allowed-origins", origin))
	}
	return nil
}

func (a *authenticator) knowsOrigin(origin string) bool {
	return slices.ContainsFunc(a.origins, func(re *regexp.Regexp) bool { return re.MatchString(origin) })
}

// allowOrigin tells the browser that a page of this origin may read the answer, and says whether it may.
func (a *authenticator) allowOrigin(h http.Header, origin string) bool {
	if origin == "" || !a.knowsOrigin(origin) {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Allow-Methods", "POST, GET, OPTIONS, PUT, DELETE, PATCH")
	h.Set("Access-Control-Allow-Headers", "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, If-Modified-Since")
	h.Set("Access-Control-Expose-Headers", "Date")
	h.Set("Access-Control-Allow-Credentials", "true")
	return true
}

// ---- Tokens ----

// tokenTable is what --token-auth-file says. It finds users by the hash of their token: how long a lookup takes says nothing about the
// tokens in it.
type tokenTable map[[sha256.Size]byte]user

func parseTokenFile(contents [][]byte) (*tokenTable, error) {
	table, err := readTokens(bytes.NewReader(contents[0]))
	return &table, err
}

// fileUser finds the user of a token of --token-auth-file as it is now.
func (a *authenticator) fileUser(token string) (user, bool) {
	if a.tokens == nil {
		return user{}, false
	}
	u, ok := (*a.tokens.now())[sha256.Sum256([]byte(token))]
	return u, ok
}

// readTokens reads lines of token,user,uid[,"group1,group2"]. An empty or repeated token is refused, where kube-apiserver only
// logs a warning: one of two users would silently not get in.
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
			return nil, fmt.Errorf("line %d: want token,user,uid and maybe \"group1,group2\", found %d columns", line, len(fields))
		}
		key := sha256.Sum256([]byte(fields[0]))
		if _, known := users[key]; known || fields[0] == "" {
			return nil, fmt.Errorf("line %d: the token is empty or has been there before", line)
		}
		u := user{name: fields[1], uid: fields[2]}
		if len(fields) > 3 && fields[3] != "" {
			u.groups = strings.Split(fields[3], ",")
		}
		users[key] = u.authenticated()
	}
}

// authenticated returns u with the group of everybody who showed a credential.
func (u user) authenticated() user {
	if u.name != userAnonymous && !slices.Contains(u.groups, groupAuthenticated) && !slices.Contains(u.groups, groupUnauthenticated) {
		u.groups = append(slices.Clip(u.groups), groupAuthenticated)
	}
	return u
}

// ---- Client certificates ----

// certUser is a verified certificate's user, who trusts it, and when its chain ends.
type certUser struct {
	user  user
	roots *x509.CertPool
	until time.Time
}

// maxVerified bounds the memory of verified certificates (about 500 bytes each).
const maxVerified = 1024

// certificateUser returns the user whose certificate the connection showed. Not the handshake but this function verifies it, as in
// kube-apiserver: a bad certificate gets a 401 that says so in HTTP, and one that has expired meanwhile ends with the connection
// open. A signature costs a tenth of a millisecond, so a good one is remembered until its chain expires.
func (a *authenticator) certificateUser(r *http.Request) (u user, ok, bad bool) {
	if a.clientCAs == nil || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return user{}, false, false
	}
	leaf, now := r.TLS.PeerCertificates[0], time.Now()
	fingerprint, roots := sha256.Sum256(leaf.Raw), a.clientCAs.now()
	a.mu.Lock()
	known, hit := a.verified[fingerprint]
	a.mu.Unlock()
	if hit && known.roots == roots && now.Before(known.until) && !now.Before(leaf.NotBefore) {
		return known.user, true, false
	}
	until, err := verifyChain(r.TLS.PeerCertificates, roots)
	if err != nil {
		return user{}, false, true
	}
	if leaf.Subject.CommonName == "" {
		return user{}, false, false // good, but nobody's
	}
	u, err = subjectUser(leaf, fingerprint)
	if err != nil {
		return user{}, false, true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.verified) >= maxVerified {
		clear(a.verified)
	}
	a.verified[fingerprint] = certUser{u, roots, until}
	return u, true, false
}

// verifyChain returns when the first certificate of the chain expires.
func verifyChain(shown []*x509.Certificate, roots *x509.CertPool) (until time.Time, err error) {
	between := x509.NewCertPool()
	for _, cert := range shown[1:] {
		between.AddCert(cert)
	}
	chains, err := shown[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return time.Time{}, err
	}
	until = shown[0].NotAfter
	for _, cert := range chains[0] {
		if cert.NotAfter.Before(until) {
			until = cert.NotAfter
		}
	}
	return until, nil
}

// uidOID marks the part of a certificate's subject that is the user's uid.
var uidOID = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}

// subjectUser reads the common name as user, the organizations as groups.
func subjectUser(cert *x509.Certificate, fingerprint [sha256.Size]byte) (user, error) {
	u := user{name: cert.Subject.CommonName, groups: slices.Clone(cert.Subject.Organization),
		extra: map[string][]string{"authentication.kubernetes.io/credential-id": {"X509SHA256=" + hex.EncodeToString(fingerprint[:])}}}
	for _, part := range cert.Subject.Names {
		if !part.Type.Equal(uidOID) {
			continue
		}
		uid, _ := part.Value.(string)
		if uid == "" || u.uid != "" {
			return user{}, errors.New("the subject's UID must be one string that is not empty")
		}
		u.uid = uid
	}
	return u.authenticated(), nil
}

// ---- Impersonation ----

// An impersonationMode is a narrower permission than plain "impersonate" (which comes last and allows everything it ever did): who
// has impersonate:MODE on an identity may only do with it what impersonate-on:MODE:VERB grants them. The real server has a fifth,
// associated-node, by which a service account may act as the node that its token is bound to; it is not here.
type impersonationMode struct {
	name    string
	applies func(want user) bool
}

var impersonationModes = []impersonationMode{
	{"arbitrary-node", func(want user) bool { return want.isBare() && isNode(want.name) }},
	{"serviceaccount", func(want user) bool { return want.isBare() && isServiceAccount(want.name) }},
	{"user-info", func(want user) bool { return !isNode(want.name) && !isServiceAccount(want.name) }},
}

func (u user) isBare() bool { return u.uid == "" && len(u.groups) == 0 && len(u.extra) == 0 }

func isNode(name string) bool {
	node, ok := strings.CutPrefix(name, nodePrefix)
	return ok && len(validation.NameIsDNSSubdomain(node, false)) == 0
}

func isServiceAccount(name string) bool {
	_, _, ok := splitServiceAccount(name)
	return ok
}

func splitServiceAccount(username string) (namespace, name string, ok bool) {
	account, ok := strings.CutPrefix(username, serviceAccountPrefix)
	namespace, name, _ = strings.Cut(account, ":")
	ok = ok && len(validation.ValidateNamespaceName(namespace, false)) == 0 && len(validation.ValidateServiceAccountName(name, false)) == 0
	return namespace, name, ok
}

// impersonate follows the Impersonate-* headers or answers 403 or 400.
func (a *authenticator) impersonate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want, err := wantedUser(r.Header)
		if err == nil && want != nil {
			err = a.become(requestFrom(r.Context()), *want)
		}
		if err != nil {
			w.Header().Set("X-Content-Type-Options", "nosniff")
			refuse(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// wantedUser takes the Impersonate-* headers out and returns what they say, nil when they say nothing.
func wantedUser(h http.Header) (*user, error) {
	const extraPrefix = "Impersonate-Extra-"
	want := user{name: h.Get("Impersonate-User"), uid: h.Get("Impersonate-Uid"), groups: slices.Clone(h["Impersonate-Group"])}
	for key, values := range h {
		if name, ok := strings.CutPrefix(key, extraPrefix); ok && len(values) > 0 {
			if want.extra == nil {
				want.extra = map[string][]string{}
			}
			name = unescapeExtra(strings.ToLower(name))
			want.extra[name] = append(want.extra[name], values...)
		}
	}
	if want.name == "" && want.isBare() {
		return nil, nil
	}
	if want.name == "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("requested &user.DefaultInfo{Name:%q, UID:%q, Groups:%#v, Extra:%#v} without impersonating a user name",
			want.name, want.uid, want.groups, want.extra))
	}
	h.Del("Impersonate-User")
	h.Del("Impersonate-Uid")
	h.Del("Impersonate-Group")
	deletePrefixed(h, extraPrefix)
	return &want, nil
}

// unescapeExtra: a key that does not unescape is meant literally.
func unescapeExtra(key string) string {
	if plain, err := url.PathUnescape(key); err == nil {
		return plain
	}
	return key
}

// become makes want the user of the request if its user may impersonate it. The refusal of the first mode that applies is the one
// that is reported.
func (a *authenticator) become(rec *request, want user) error {
	var refusal error
	for _, mode := range impersonationModes {
		if !mode.applies(want) {
			continue
		}
		err := a.mayActOn(rec, mode.name)
		if err == nil {
			err = a.mayBe(rec.user, want, mode.name)
		}
		if err == nil {
			rec.actAs(want.completed(mode.name), "impersonate:"+mode.name)
			return nil
		}
		if refusal == nil {
			refusal = err
		}
	}
	if err := a.mayBe(rec.user, want, ""); err != nil {
		if refusal != nil {
			return refusal
		}
		return err
	}
	rec.actAs(want.completed(""), "")
	return nil
}

func (rec *request) actAs(u user, constraint string) {
	impersonator := rec.user
	rec.user, rec.impersonator, rec.constraint = u, &impersonator, constraint
}

func (a *authenticator) mayActOn(rec *request, mode string) error {
	info := rec.info
	info.verb = "impersonate-on:" + mode + ":" + info.verb
	return a.check(rec.user, info)
}

// mayBe checks every part of the identity: one permission each.
func (a *authenticator) mayBe(by, want user, mode string) error {
	for _, part := range identityParts(want, mode) {
		if mode != "" {
			if reason := unfitForMode(part); reason != "" {
				return forbidden(by, part, reason)
			}
		}
		if err := a.check(by, part); err != nil {
			return err
		}
	}
	return nil
}

// identityParts lists what must be allowed to become want, in the order in which it is checked.
func identityParts(want user, mode string) []requestInfo {
	base := requestInfo{resourceRequest: true, verb: "impersonate", version: "v1"}
	named := base // user and groups are of the core group for plain "impersonate"
	if mode != "" {
		base.verb = "impersonate:" + mode
		named.verb, named.group = base.verb, authenticationv1.GroupName
	}
	base.group = authenticationv1.GroupName
	part := func(info requestInfo, resource, subresource, name string) requestInfo {
		info.resource, info.subresource, info.name = resource, subresource, name
		return info
	}
	parts := []requestInfo{part(named, "users", "", want.name)}
	if namespace, name, ok := splitServiceAccount(want.name); ok {
		parts[0] = part(named, "serviceaccounts", "", name)
		parts[0].namespace = namespace
	} else if mode != "" && isNode(want.name) {
		parts[0] = part(named, "nodes", "", strings.TrimPrefix(want.name, nodePrefix))
	}
	if want.uid != "" {
		parts = append(parts, part(base, "uids", "", want.uid))
	}
	for _, group := range want.groups {
		parts = append(parts, part(named, "groups", "", group))
	}
	for _, key := range slices.Sorted(maps.Keys(want.extra)) {
		for _, value := range want.extra[key] {
			parts = append(parts, part(base, "userextras", key, value))
		}
	}
	return parts
}

// unfitForMode says what no narrow mode allows, whatever the roles say.
func unfitForMode(part requestInfo) string {
	switch {
	case part.resource == "groups" && part.name == "":
		return "impersonating the empty string group is not allowed"
	case part.resource == "groups" && part.name == groupMasters:
		return "impersonating the system:masters group is not allowed"
	case part.resource != "userextras":
		return ""
	case part.subresource == "":
		return "impersonating the empty string key in extra is not allowed"
	case part.name == "":
		return "impersonating the empty string value in extra is not allowed"
	}
	if err := utilvalidation.IsDomainPrefixedPath(field.NewPath("extra", "key"), part.subresource).ToAggregate(); err != nil {
		return "impersonating an invalid key in extra is not allowed: " + err.Error()
	}
	return ""
}

// completed adds the groups that follow from the name.
func (u user) completed(mode string) user {
	if namespace, _, ok := splitServiceAccount(u.name); ok && len(u.groups) == 0 {
		u.groups = []string{groupServiceAccounts, groupServiceAccounts + ":" + namespace}
	} else if mode == "arbitrary-node" {
		u.groups = []string{groupNodes}
	}
	if u.name == userAnonymous && !slices.Contains(u.groups, groupUnauthenticated) {
		u.groups = append(slices.Clip(u.groups), groupUnauthenticated)
	}
	return u.authenticated()
}

// ---- Whether they may ----

// authorize returns nil or the 403 Status error for what the request record says.
func (a *authenticator) authorize(rec *request) error {
	allowed, reason := a.decide(rec.user, rec.info)
	rec.annotate("authorization.k8s.io/reason", reason)
	if allowed {
		rec.annotate("authorization.k8s.io/decision", "allow")
		return nil
	}
	rec.annotate("authorization.k8s.io/decision", "forbid")
	return forbidden(rec.user, rec.info, reason)
}

// check is authorize without a trace in the audit log.
func (a *authenticator) check(u user, info requestInfo) error {
	if allowed, reason := a.decide(u, info); !allowed {
		return forbidden(u, info, reason)
	}
	return nil
}

// decide is the one place where a permission is given. reason is Kubernetes' text for the audit log and reviews.
func (a *authenticator) decide(u user, info requestInfo) (allowed bool, reason string) {
	if a.cfg.alwaysAllow || slices.Contains(u.groups, groupMasters) {
		return true, ""
	}
	q := info.question(u)
	return a.policy.Load().allows(&q)
}

// question puts a request the way the roles are asked.
func (info requestInfo) question(u user) access {
	return access{user: u.name, groups: u.groups, resourceRequest: info.resourceRequest, verb: info.verb, group: info.group, resource: info.resource,
		subresource: info.subresource, namespace: info.namespace, name: info.name, path: info.path}
}

// setPolicy puts the stored Roles, ClusterRoles and bindings in force, all of them; to be called when one has changed. Until the first
// call the default policy is in force.
func (a *authenticator) setPolicy(objects []object) { a.policy.Store(newRBACIndex(objects)) }

// enforcing says that requests are decided by the stored policy.
func (a *authenticator) enforcing() bool { return !a.cfg.alwaysAllow }

// mayGrant returns a Status error when the request's user may not write this Role, ClusterRole, RoleBinding or ClusterRoleBinding:
// nobody may give what they do not have, unless the verbs escalate (roles) and bind (bindings) let them. old is nil for a create.
func (a *authenticator) mayGrant(rec *request, obj, old object) error {
	info := requestInfo{resourceRequest: true, group: rec.info.group, resource: rec.info.resource, namespace: rec.info.namespace, name: rec.info.name}
	q, index := info.question(rec.user), a.policy.Load()
	if old != nil && onlyCollected(obj, old) {
		return nil
	}
	var err error
	if ref, _ := bindingParts(obj); ref != nil {
		info.verb, info.group, info.name = "bind", ref.APIGroup, ref.Name
		info.resource = strings.ToLower(ref.Kind) + "s"
		if allowed, _ := a.decide(rec.user, info); allowed {
			return nil
		}
		err = index.mayBind(&q, *ref)
	} else {
		info.verb = "escalate"
		if allowed, _ := a.decide(rec.user, info); allowed {
			return nil
		}
		err = index.mayGiveRole(&q, obj, old)
	}
	if err == nil || apierrors.IsNotFound(err) {
		return err
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: rec.info.group, Resource: rec.info.resource}, obj.GetName(), err)
}

// onlyCollected: the update touches nothing but what garbage collection needs, which must work for objects nobody could create.
func onlyCollected(obj, old object) bool {
	same := obj.DeepCopyObject().(object)
	same.SetOwnerReferences(old.GetOwnerReferences())
	same.SetFinalizers(old.GetFinalizers())
	same.SetManagedFields(old.GetManagedFields())
	return apiequality.Semantic.DeepEqual(same, old)
}

// markup is replaced in the text of a 403, which quotes the request: an old browser might take the answer for HTML.
var markup = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// forbidden is kube-apiserver's 403.
func forbidden(u user, info requestInfo, reason string) error {
	text := markup.Replace(refusal(u, info))
	if reason != "" {
		text += ": " + reason
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: info.group, Resource: info.resource}, info.name, errors.New(text))
}

func refusal(u user, info requestInfo) string {
	if !info.resourceRequest {
		return fmt.Sprintf("User %q cannot %s path %q", u.name, info.verb, info.path)
	}
	resource := info.resource
	if info.subresource != "" {
		resource += "/" + info.subresource
	}
	where := "at the cluster scope"
	if info.namespace != "" {
		where = fmt.Sprintf("in the namespace %q", info.namespace)
	}
	return fmt.Sprintf("User %q cannot %s resource %q in API group %q %s", u.name, info.verb, resource, info.group, where)
}

// ---- Reviews: asking instead of trying ----

// review fills in the status of a TokenReview, SelfSubjectReview, SubjectAccessReview, SelfSubjectAccessReview,
// SelfSubjectRulesReview or LocalSubjectAccessReview. 400 or 422 when the question makes no sense.
func (a *authenticator) review(ctx context.Context, obj runtime.Object) error {
	rec := requestFrom(ctx)
	switch obj := obj.(type) {
	case *authenticationv1.TokenReview:
		return a.reviewToken(obj)
	case *authenticationv1.SelfSubjectReview:
		obj.ObjectMeta = metav1.ObjectMeta{CreationTimestamp: metav1.Now()}
		obj.Status.UserInfo = rec.user.wire()
		return nil
	case *authorizationv1.SelfSubjectAccessReview:
		spec := authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: obj.Spec.ResourceAttributes, NonResourceAttributes: obj.Spec.NonResourceAttributes}
		if err := invalidReview(append(validateAccess(spec), validateReviewMeta(obj.ObjectMeta, "must be empty")...)); err != nil {
			return err
		}
		obj.Status = a.access(rec.user, spec)
		return nil
	case *authorizationv1.SubjectAccessReview:
		if err := invalidReview(append(validateSubject(obj.Spec), validateReviewMeta(obj.ObjectMeta, "must be empty")...)); err != nil {
			return err
		}
		obj.Status = a.access(specUser(obj.Spec), obj.Spec)
		return nil
	case *authorizationv1.LocalSubjectAccessReview:
		if err := validateLocal(obj, rec.info.namespace); err != nil {
			return err
		}
		obj.Status = a.access(specUser(obj.Spec), obj.Spec)
		return nil
	case *authorizationv1.SelfSubjectRulesReview:
		if obj.Spec.Namespace == "" {
			return apierrors.NewBadRequest("no namespace on request")
		}
		obj.Status = a.rules(rec.user, obj.Spec.Namespace)
		obj.ObjectMeta, obj.Spec = metav1.ObjectMeta{}, authorizationv1.SelfSubjectRulesReviewSpec{}
		return nil
	}
	return apierrors.NewBadRequest(fmt.Sprintf("%T is no review", obj))
}

// wire is the user as reviews and audit events write it.
func (u user) wire() authenticationv1.UserInfo {
	info := authenticationv1.UserInfo{Username: u.name, UID: u.uid, Groups: u.groups}
	for key, values := range u.extra {
		if info.Extra == nil {
			info.Extra = map[string]authenticationv1.ExtraValue{}
		}
		info.Extra[key] = values
	}
	return info
}

// reviewToken treats the token as if it had come in a header, so that " x" is nobody's and answers for system:anonymous.
func (a *authenticator) reviewToken(obj *authenticationv1.TokenReview) error {
	if obj.Spec.Token == "" {
		return apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	audiences := obj.Spec.Audiences
	if len(audiences) == 0 {
		audiences = a.accounts.audiences
	}
	token, _ := bearerToken(http.Header{"Authorization": {"Bearer " + obj.Spec.Token}})
	u, meantFor, err := a.tokenUser(token, audiences)
	if token == "" && a.cfg.anonymous && !a.cfg.insecure {
		u, meantFor, err = anonymousUser(), a.ownAudiences(audiences), nil
	}
	if err != nil || len(meantFor) == 0 {
		obj.Status = authenticationv1.TokenReviewStatus{Error: cmp.Or(err, errBadToken).Error()}
		return nil
	}
	obj.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: u.wire(), Audiences: meantFor}
	return nil
}

// access asks decide.
func (a *authenticator) access(u user, spec authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
	var info requestInfo
	var unread []string
	if at := spec.ResourceAttributes; at != nil {
		info = requestInfo{resourceRequest: true, verb: at.Verb, group: at.Group, version: at.Version, namespace: at.Namespace,
			resource: at.Resource, subresource: at.Subresource, name: at.Name}
		unread = unreadSelectors(at)
	} else {
		info = requestInfo{verb: spec.NonResourceAttributes.Verb, path: spec.NonResourceAttributes.Path}
	}
	allowed, reason := a.decide(u, info)
	return authorizationv1.SubjectAccessReviewStatus{Allowed: allowed, Reason: reason, EvaluationError: strings.Join(unread, "; ")}
}

func specUser(spec authorizationv1.SubjectAccessReviewSpec) user {
	u := user{name: spec.User, uid: spec.UID, groups: spec.Groups, extra: make(map[string][]string, len(spec.Extra))}
	for key, values := range spec.Extra {
		u.extra[key] = values
	}
	return u
}

// rules lists what u may do in a namespace.
func (a *authenticator) rules(u user, namespace string) authorizationv1.SubjectRulesReviewStatus {
	rules, problem := fullAuthority, ""
	if !a.cfg.alwaysAllow {
		rules, problem = a.policy.Load().rulesFor(&access{user: u.name, groups: u.groups, namespace: namespace})
	}
	status := authorizationv1.SubjectRulesReviewStatus{EvaluationError: problem,
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
