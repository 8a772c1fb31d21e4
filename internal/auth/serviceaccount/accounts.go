package serviceaccount

// This file implements the credentials of service accounts. It issues and verifies tokens. It also
// publishes the public keys, so that other programs can verify the tokens. A token is a JWT. It has
// three parts, which are encoded in base64url and separated by dots: the header, the claims and the
// signature.
//
//	{"alg":"ES256","kid":"…"} . {"iss":"https://…","sub":"system:serviceaccount:shop:app","aud":[…],"exp":…,"iat":…,"nbf":…,"jti":"…",
//	                             "kubernetes.io":{"namespace":"shop","serviceaccount":{"name":"app","uid":"…"},"pod":{…}}} . …
//
// Tokens are not stored. The signature proves that the token was issued by this server, or by
// another server with the same key. Each request also checks that the service account still has the
// UID in the claims, and the same for the Pod, Secret or Node to which the token is bound. Deleting
// one of these objects revokes the token immediately, whereas kube-apiserver caches results for up
// to ten seconds. This package only caches verified signatures, because they are expensive to
// verify.
//
// A Secret of type kubernetes.io/service-account-token holds a token of the legacy kind, which does
// not expire and has other claims. The token is valid until it is removed from the Secret or the
// Secret is deleted.

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"
	"github.com/tidwall/gjson"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"apilet/internal/apierror"
	"apilet/internal/auth/signature"
	"apilet/internal/auth/ttlcache"
	"apilet/internal/store"
)

const (
	// DefaultIssuer is the issuer if the flag --service-account-issuer is not set.
	DefaultIssuer    = "https://kubernetes.default.svc.cluster.local"
	legacyIssuer     = "kubernetes/serviceaccount"
	defaultTokenLife = 3600    // seconds
	minTokenLife     = 600     // seconds
	maxTokenLife     = 1 << 32 // seconds
	tokenLeeway      = time.Minute
	maxKnownTokens   = 1024 // maximum number of tokens with a cached signature check
	maxKnownToken    = 8 << 10
	rejectedFor      = 10 * time.Second
)

// ErrUnknownIssuer is returned for a token of an unknown issuer, or if the token is not a JWT.
var ErrUnknownIssuer = errors.New("not a service account token")

// errNoKey is returned if no key has the token's key ID.
var errNoKey = errors.New("invalid signature, no keys found")

// errInvalidSignature is returned if no key has signed the token, or if it cannot be parsed.
var errInvalidSignature = errors.New("invalid signature")

// errInvalidated is returned if an object to which the token is bound was deleted. Kubernetes uses
// the same text.
var errInvalidated = errors.New("service account token has been invalidated")

// Config holds the flags for service accounts.
type Config struct {
	// SigningKeyFile is the path of a PEM private key. If empty, the first private key in KeyFiles
	// is used, or else the key in the data file.
	SigningKeyFile string
	KeyFiles       []string // paths of PEM keys that verify tokens
	Issuers        []string // the first one is used for new tokens
	Audiences      []string // the audiences of this server, or Issuers if empty
	RootCA         []byte   // PEM, for the ca.crt of Secrets, may be nil
}

// Tokens issues and verifies tokens. It is safe for concurrent use.
type Tokens struct {
	st        *store.Store
	issuers   []string
	Audiences []string     // the audiences of this server
	signer    accountKey   // signs new tokens
	keys      []accountKey // verify tokens
	rootCA    []byte       // for the ca.crt of Secrets, may be nil

	mu    sync.Mutex                         // guards known
	known map[[sha256.Size]byte]*tokenClaims // cache of verified tokens, by the hash of the token

	gate     signature.Gate
	rejected ttlcache.Cache[struct{}] // hashes of rejected tokens
}

// accountKey is a key with the algorithm for which it is used.
type accountKey struct {
	id      string
	method  jwt.SigningMethod
	public  crypto.PublicKey
	private crypto.Signer // nil if the key only verifies
}

// tokenClaims are the claims of bound and legacy tokens.
type tokenClaims struct {
	jwt.RegisteredClaims
	Bound *boundClaims `json:"kubernetes.io,omitempty"` // nil for a legacy token
	legacyClaims
}

// boundClaims is the private part of the claims of a bound token, see pkg/serviceaccount/claims.go
// of k8s.io/kubernetes.
type boundClaims struct {
	Namespace string    `json:"namespace,omitempty"`
	Account   objectID  `json:"serviceaccount"` // the token's service account
	Pod       *objectID `json:"pod,omitempty"`  // the token is bound to Pod, Secret or Node if they are not nil
	Secret    *objectID `json:"secret,omitempty"`
	Node      *objectID `json:"node,omitempty"`
}

// objectID identifies an object. The UID differs from the UID of an earlier object with the same
// name.
type objectID struct {
	Name string `json:"name,omitempty"`
	UID  string `json:"uid,omitempty"`
}

type legacyClaims struct {
	Namespace   string `json:"kubernetes.io/serviceaccount/namespace,omitempty"`
	SecretName  string `json:"kubernetes.io/serviceaccount/secret.name,omitempty"`
	AccountName string `json:"kubernetes.io/serviceaccount/service-account.name,omitempty"`
	AccountUID  string `json:"kubernetes.io/serviceaccount/service-account.uid,omitempty"`
}

// Identity describes the service account of a token.
type Identity struct {
	Namespace, Name, UID string              // of the service account
	Extra                map[string][]string // the token's ID, Pod and Node, with Kubernetes' keys
	Audiences            []string            // the requested audiences for which the token is valid
}

// New reads the keys that the flags name. If there are none, it uses the key in the data file, and
// creates that key if it does not exist.
func New(st *store.Store, cfg Config) (*Tokens, error) {
	t := &Tokens{st: st, issuers: cfg.Issuers, Audiences: cfg.Audiences, rootCA: cfg.RootCA, known: map[[sha256.Size]byte]*tokenClaims{},
		rejected: ttlcache.Cache[struct{}]{MaxEntries: maxKnownTokens}}
	if len(t.Audiences) == 0 {
		t.Audiences = t.issuers
	}
	for _, file := range cfg.KeyFiles {
		keys, err := readKeys(file)
		if err != nil {
			return nil, fmt.Errorf("--service-account-key-file: %w", err)
		}
		t.keys = append(t.keys, keys...)
	}
	signs := func(key accountKey) bool { return key.private != nil }
	signing := t.keys
	var err error
	switch {
	case cfg.SigningKeyFile != "":
		if signing, err = readKeys(cfg.SigningKeyFile); err != nil {
			return nil, fmt.Errorf("--service-account-signing-key-file: %w", err)
		}
	case !slices.ContainsFunc(t.keys, signs):
		if signing, err = storedKey(st); err != nil {
			return nil, err
		}
	}
	i := slices.IndexFunc(signing, signs)
	if i < 0 {
		return nil, fmt.Errorf("--service-account-signing-key-file: %s contains no private key", cfg.SigningKeyFile)
	}
	t.signer = signing[i]
	if !slices.ContainsFunc(t.keys, func(key accountKey) bool { return key.id == t.signer.id }) {
		t.keys = append([]accountKey{t.signer}, t.keys...)
	}
	return t, nil
}

// ---- Keys

// storedKey returns the key in the data file.
func storedKey(st *store.Store) ([]accountKey, error) {
	der, err := st.Secret("service-account-key", func() []byte {
		key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader) // never fails
		der, _ := x509.MarshalPKCS8PrivateKey(key)
		return der
	})
	if err != nil {
		return nil, err
	}
	key, err := parseKey(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if err != nil {
		return nil, fmt.Errorf("the service accounts' key in the data file: %w", err)
	}
	return []accountKey{key}, nil
}

// readKeys reads the keys of a PEM file, which may contain private keys, public keys and
// certificates.
func readKeys(path string) (keys []accountKey, err error) {
	rest, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if !strings.HasSuffix(block.Type, "KEY") && block.Type != "CERTIFICATE" {
			continue // openssl writes the curve's parameters before the key
		}
		key, err := parseKey(block)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s contains no PEM key", path)
	}
	return keys, nil
}

func parseKey(block *pem.Block) (key accountKey, err error) {
	var parsed any
	switch block.Type {
	case "RSA PRIVATE KEY":
		parsed, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		parsed, err = x509.ParseECPrivateKey(block.Bytes)
	case "PRIVATE KEY":
		parsed, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "RSA PUBLIC KEY":
		parsed, err = x509.ParsePKCS1PublicKey(block.Bytes)
	case "PUBLIC KEY":
		parsed, err = x509.ParsePKIXPublicKey(block.Bytes)
	case "CERTIFICATE":
		var cert *x509.Certificate
		if cert, err = x509.ParseCertificate(block.Bytes); err == nil {
			parsed = cert.PublicKey
		}
	default:
		err = fmt.Errorf("a %q cannot sign tokens", block.Type)
	}
	if err != nil {
		return key, err
	}
	if private, ok := parsed.(crypto.Signer); ok {
		key.private, parsed = private, private.Public()
	}
	key.public = parsed
	if key.method, err = methodFor(key.public); err != nil {
		return key, err
	}
	der, err := x509.MarshalPKIXPublicKey(key.public)
	sum := sha256.Sum256(der)
	key.id = base64.RawURLEncoding.EncodeToString(sum[:])
	return key, err
}

func methodFor(public crypto.PublicKey) (jwt.SigningMethod, error) {
	switch public := public.(type) {
	case *rsa.PublicKey:
		return jwt.SigningMethodRS256, nil
	case *ecdsa.PublicKey:
		switch public.Curve {
		case elliptic.P256():
			return jwt.SigningMethodES256, nil
		case elliptic.P384():
			return jwt.SigningMethodES384, nil
		case elliptic.P521():
			return jwt.SigningMethodES512, nil
		}
	}
	return nil, errors.New("the key is neither RSA nor ECDSA on P-256, P-384 or P-521")
}

// ---- Issuing

// Request responds to a TokenRequest for the account. It sets the defaults and the status of obj.
// credential identifies the token in audit logs.
func (t *Tokens) Request(obj *authenticationv1.TokenRequest, namespace, name string) (credential string, err error) {
	kind := schema.GroupKind{Group: authenticationv1.GroupName, Kind: "TokenRequest"}
	if obj.Name != "" && obj.Name != name {
		return "", apierror.Invalid(kind, name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "name"), obj.Name, "must match the service account name if specified")})
	}
	account, err := t.object("serviceaccounts", namespace, name)
	if err != nil {
		return "", err
	}
	uid := account.Get("metadata.uid").String()
	if obj.UID != "" && string(obj.UID) != uid {
		return "", apierrors.NewConflict(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, name,
			fmt.Errorf("the UID in the token request (%s) does not match the UID of the service account (%s)", obj.UID, uid))
	}
	t.fillRequest(obj, objectID{name, uid}, namespace)
	if errs := validateTokenRequest(obj); len(errs) > 0 {
		return "", apierror.Invalid(kind, "", errs)
	}
	bound := &boundClaims{Namespace: namespace, Account: objectID{name, uid}}
	if err := t.bind(bound, obj.Spec.BoundObjectRef); err != nil {
		return "", err
	}
	life := time.Duration(*obj.Spec.ExpirationSeconds) * time.Second
	claims := &tokenClaims{Bound: bound, RegisteredClaims: jwt.RegisteredClaims{Issuer: t.issuers[0], Subject: serviceAccountName(namespace, name),
		Audience: obj.Spec.Audiences, ID: uuid.NewString()}}
	now := t.st.Now()
	claims.IssuedAt, claims.NotBefore, claims.ExpiresAt = jwt.NewNumericDate(now), jwt.NewNumericDate(now), jwt.NewNumericDate(now.Add(life))
	if obj.Status.Token, err = t.sign(claims); err != nil {
		return "", err
	}
	obj.Status.ExpirationTimestamp = metav1.NewTime(now.Add(life))
	return credentialID(claims.ID), nil
}

func serviceAccountName(namespace, name string) string {
	return "system:serviceaccount:" + namespace + ":" + name
}

func credentialID(jti string) string { return "JTI=" + jti }

// fillRequest sets the defaults of a TokenRequest.
func (t *Tokens) fillRequest(obj *authenticationv1.TokenRequest, account objectID, namespace string) {
	obj.Status = authenticationv1.TokenRequestStatus{}
	obj.CreationTimestamp = metav1.NewTime(t.st.Now())
	obj.Name, obj.Namespace = account.Name, namespace
	if obj.UID == "" {
		obj.UID = types.UID(account.UID)
	}
	if len(obj.Spec.Audiences) == 0 {
		obj.Spec.Audiences = t.Audiences
	}
	if obj.Spec.ExpirationSeconds == nil {
		life := int64(defaultTokenLife)
		obj.Spec.ExpirationSeconds = &life
	}
}

func validateTokenRequest(obj *authenticationv1.TokenRequest) (errs field.ErrorList) {
	at, life := field.NewPath("spec", "expirationSeconds"), *obj.Spec.ExpirationSeconds
	if life < minTokenLife {
		errs = append(errs, field.Invalid(at, life, "may not specify a duration less than 10 minutes"))
	}
	if life > maxTokenLife {
		errs = append(errs, field.Invalid(at, life, "may not specify a duration larger than 2^32 seconds"))
	}
	return errs
}

// bind binds a token to a Pod, Secret or Node. A token that is bound to a Pod also names the Pod's
// node.
func (t *Tokens) bind(claims *boundClaims, ref *authenticationv1.BoundObjectReference) error {
	if ref == nil {
		return nil
	}
	kind := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	into, namespace := map[string]**objectID{"Pod": &claims.Pod, "Secret": &claims.Secret, "Node": &claims.Node}[ref.Kind], claims.Namespace
	if into == nil || kind.Group != "" {
		return apierrors.NewBadRequest("cannot bind token to object of type " + kind.String())
	}
	if ref.Kind == "Node" {
		namespace = ""
	}
	if ref.Name == "" {
		return apierrors.NewBadRequest("Name parameter required.")
	}
	obj, err := t.object(strings.ToLower(ref.Kind)+"s", namespace, ref.Name)
	if err != nil {
		return err
	}
	if ref.Kind == "Pod" {
		if obj.Get("spec.serviceAccountName").String() != claims.Account.Name {
			return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name.", claims.Account.Name))
		}
		if node := obj.Get("spec.nodeName").String(); node != "" {
			claims.Node = &objectID{Name: node}
			if found, err := t.object("nodes", "", node); err == nil {
				claims.Node.UID = found.Get("metadata.uid").String()
			}
		}
	}
	*into = &objectID{ref.Name, obj.Get("metadata.uid").String()}
	if ref.UID != "" && string(ref.UID) != (*into).UID {
		return apierrors.NewConflict(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, ref.Name, fmt.Errorf(
			"the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID))
	}
	return nil
}

// sign returns a token with the claims, signed with the key for new tokens.
func (t *Tokens) sign(claims *tokenClaims) (string, error) {
	token := jwt.NewWithClaims(t.signer.method, claims)
	token.Header = map[string]any{"alg": t.signer.method.Alg(), "kid": t.signer.id}
	return token.SignedString(t.signer.private)
}

// AccountOf returns the service account of a token Secret. ok is false if the Secret has another
// type.
func AccountOf(secret []byte) (name string, ok bool) {
	found := gjson.GetManyBytes(secret, "type", `metadata.annotations.kubernetes\.io/service-account\.name`)
	return found[1].Str, found[0].Str == string(corev1.SecretTypeServiceAccountToken)
}

// FillSecret adds the missing data to a Secret of type kubernetes.io/service-account-token, like
// the token controller. It ignores a Secret if the service account does not exist or has another
// UID. The controller would delete such a Secret.
func (t *Tokens) FillSecret(secret *corev1.Secret) error {
	data, name := secret.Data, secret.Annotations[corev1.ServiceAccountNameKey]
	lacksToken, lacksNamespace := len(data[corev1.ServiceAccountTokenKey]) == 0, len(data[corev1.ServiceAccountNamespaceKey]) == 0
	lacksRoot := t.rootCA != nil && !bytes.Equal(data[corev1.ServiceAccountRootCAKey], t.rootCA)
	if secret.Type != corev1.SecretTypeServiceAccountToken || !lacksToken && !lacksNamespace && !lacksRoot {
		return nil
	}
	found, err := t.object("serviceaccounts", secret.Namespace, name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	account := objectID{name, found.Get("metadata.uid").String()}
	if uid := secret.Annotations[corev1.ServiceAccountUIDKey]; uid != "" && uid != account.UID {
		return nil
	}
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Annotations[corev1.ServiceAccountUIDKey] = account.UID
	if lacksRoot {
		secret.Data[corev1.ServiceAccountRootCAKey] = t.rootCA
	}
	if lacksNamespace {
		secret.Data[corev1.ServiceAccountNamespaceKey] = []byte(secret.Namespace)
	}
	if !lacksToken {
		return nil
	}
	return t.signLegacy(secret, account)
}

// signLegacy adds a legacy token to a Secret.
func (t *Tokens) signLegacy(secret *corev1.Secret, account objectID) error {
	token, err := t.sign(&tokenClaims{RegisteredClaims: jwt.RegisteredClaims{Issuer: legacyIssuer, Subject: serviceAccountName(secret.Namespace, account.Name)},
		legacyClaims: legacyClaims{Namespace: secret.Namespace, SecretName: secret.Name, AccountName: account.Name, AccountUID: account.UID}})
	secret.Data[corev1.ServiceAccountTokenKey] = []byte(token)
	return err
}

// object reads an object of the core group. It returns the 404 error of Kubernetes if the object
// does not exist.
func (t *Tokens) object(resource, namespace, name string) (gjson.Result, error) {
	rec, err := t.st.Get("//" + resource + "/" + namespace + "/" + name)
	if errors.Is(err, store.ErrNotFound) {
		err = apierrors.NewNotFound(schema.GroupResource{Resource: resource}, name)
	}
	return gjson.ParseBytes(rec.JSON), err
}

// ---- Verification

// Check returns the service account of a token if the token is valid for one of the audiences. It
// returns ErrUnknownIssuer for a token of an unknown issuer, and another error if the token is not
// valid. Errors never contain the token. If a replica rejects a token, it reads the latest writes
// and checks again, because another server may have issued the token a moment ago.
func (t *Tokens) Check(ctx context.Context, token string, audiences []string) (*Identity, error) {
	claims, err := t.verified(ctx, token)
	if err != nil {
		return nil, err
	}
	meantFor := []string(claims.Audience)
	if len(meantFor) == 0 {
		meantFor = t.Audiences
	}
	id := &Identity{}
	for _, audience := range audiences {
		if slices.Contains(meantFor, audience) {
			id.Audiences = append(id.Audiences, audience)
		}
	}
	if len(id.Audiences) == 0 {
		return nil, fmt.Errorf("token audiences %q is invalid for the target audiences %q", meantFor, audiences)
	}
	counts := func() error { return t.checkBound(claims, id) }
	if claims.Issuer == legacyIssuer {
		counts = func() error { return t.checkLegacy(claims, token, id) }
	} else if err := checkTimes(claims, t.st.Now()); err != nil {
		return nil, err
	}
	seen := t.st.Revision()
	if err = counts(); err == nil {
		return id, nil
	}
	if now, unreached := t.st.Current(ctx); unreached != nil || now == seen {
		return nil, err
	}
	return id, counts()
}

// claimedIssuer returns the issuer that an unverified token names. It is only used to select the
// authenticator for the token.
func claimedIssuer(token string) (string, bool) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Issuer string `json:"iss"`
	}
	return claims.Issuer, err == nil && json.Unmarshal(payload, &claims) == nil && claims.Issuer != ""
}

// verified returns the claims of a token if its signature is valid. It returns ErrUnknownIssuer for
// a token of an unknown issuer.
func (t *Tokens) verified(ctx context.Context, token string) (*tokenClaims, error) {
	sum := sha256.Sum256([]byte(token))
	t.mu.Lock()
	claims := t.known[sum]
	t.mu.Unlock()
	if claims != nil {
		return claims, nil
	}
	if issuer, ok := claimedIssuer(token); !ok || issuer != legacyIssuer && !slices.Contains(t.issuers, issuer) {
		return nil, ErrUnknownIssuer
	}
	parsed, err := signature.Parse(token)
	if err != nil {
		return nil, errInvalidSignature
	}
	if err := t.checkSignature(ctx, parsed, sum); err != nil {
		return nil, err
	}
	claims = &tokenClaims{} // expiry is checked for each request
	if json.Unmarshal(parsed.Payload, claims) != nil {
		return nil, errInvalidSignature
	}
	if len(token) <= maxKnownToken {
		t.mu.Lock()
		defer t.mu.Unlock()
		if len(t.known) >= maxKnownTokens {
			clear(t.known)
		}
		t.known[sum] = claims
	}
	return claims, nil
}

// checkSignature returns nil if one of the keys has signed the token. Rejected tokens are cached,
// because the keys do not change while the server runs. Errors never contain the token.
func (t *Tokens) checkSignature(ctx context.Context, token *signature.Token, hash [sha256.Size]byte) error {
	keys, err := t.keysFor(token)
	if err != nil {
		return err
	}
	now := time.Now()
	if _, ok := t.rejected.Get(hash, now); ok {
		return errInvalidSignature
	}
	if err = t.gate.Verify(ctx, token, keys); err == signature.ErrInvalid {
		t.rejected.Put(hash, struct{}{}, now, now.Add(rejectedFor))
		return errInvalidSignature
	}
	return err
}

// keysFor returns the keys that may have signed the token. This is the key with the token's key ID,
// or all keys if the token has none. Keys for other algorithms are ignored, so the result may be
// empty.
func (t *Tokens) keysFor(token *signature.Token) (fit []crypto.PublicKey, err error) {
	err = errNoKey
	for _, key := range t.keys {
		if token.KeyID != "" && token.KeyID != key.id {
			continue
		}
		err = nil
		if key.method.Alg() == token.Algorithm {
			fit = append(fit, key.public)
		}
	}
	return fit, err
}

// checkTimes returns an error if the token has expired or is not valid yet.
func checkTimes(claims *tokenClaims, now time.Time) error {
	switch {
	case claims.ExpiresAt != nil && now.Add(-tokenLeeway).After(claims.ExpiresAt.Time):
		return errors.New("service account token has expired")
	case claims.NotBefore != nil && now.Add(tokenLeeway).Before(claims.NotBefore.Time):
		return errors.New("service account token is not valid yet")
	case claims.IssuedAt != nil && now.Add(tokenLeeway).Before(claims.IssuedAt.Time):
		return errors.New("service account token is issued in the future")
	}
	return nil
}

// checkBound checks that a token is still valid, and sets the fields of id.
func (t *Tokens) checkBound(claims *tokenClaims, id *Identity) error {
	invalidBefore := t.st.Now().Add(-tokenLeeway)
	b := claims.Bound
	if b == nil {
		b = &boundClaims{}
	}
	account, err := t.object("serviceaccounts", b.Namespace, b.Account.Name)
	if err != nil {
		return err
	}
	if uid := account.Get("metadata.uid").String(); uid != b.Account.UID {
		return fmt.Errorf("service account UID (%s) does not match claim (%s)", uid, b.Account.UID)
	}
	if deletedBy(account, invalidBefore) {
		return fmt.Errorf("service account %s/%s has been deleted", b.Namespace, b.Account.Name)
	}
	if err := t.checkObjects(b, invalidBefore); err != nil {
		return err
	}
	id.Namespace, id.Name, id.UID, id.Extra = b.Namespace, b.Account.Name, b.Account.UID, b.extra(claims.ID)
	return nil
}

// checkObjects checks that the objects to which a token is bound still exist. If an object is being
// deleted, it counts as existing until one minute after its deletion timestamp.
func (t *Tokens) checkObjects(b *boundClaims, invalidBefore time.Time) error {
	node := b.Node
	if b.Pod != nil {
		node = nil // the token names the node but is not bound to it
	}
	for _, bond := range []struct {
		kind, namespace string
		id              *objectID
	}{{"secret", b.Namespace, b.Secret}, {"pod", b.Namespace, b.Pod}, {"node", "", node}} {
		if bond.id == nil {
			continue
		}
		obj, err := t.object(bond.kind+"s", bond.namespace, bond.id.Name)
		if err != nil {
			return errInvalidated
		}
		if uid := obj.Get("metadata.uid").String(); uid != bond.id.UID {
			return fmt.Errorf("%s UID (%s) does not match service account %[1]s ref claim (%[3]s)", bond.kind, uid, bond.id.UID)
		}
		if deletedBy(obj, invalidBefore) {
			return errInvalidated
		}
	}
	return nil
}

// deletedBy reports whether the object's deletion timestamp is before t. Such an object may still
// be stored because of its finalizers.
func deletedBy(obj gjson.Result, t time.Time) bool {
	at := obj.Get("metadata.deletionTimestamp")
	return at.Exists() && at.Time().Before(t)
}

// extra returns the extra attributes of the token's user.
func (b *boundClaims) extra(jti string) map[string][]string {
	extra := map[string][]string{}
	set := func(key, value string) {
		if value != "" {
			extra["authentication.kubernetes.io/"+key] = []string{value}
		}
	}
	if b.Pod != nil {
		set("pod-name", b.Pod.Name)
		set("pod-uid", b.Pod.UID)
	}
	if b.Node != nil {
		set("node-name", b.Node.Name)
		set("node-uid", b.Node.UID)
	}
	if jti != "" {
		set("credential-id", credentialID(jti))
	}
	return extra
}

// checkLegacy checks that a legacy token is still valid, and sets the fields of id.
func (t *Tokens) checkLegacy(claims *tokenClaims, token string, id *Identity) error {
	l := &claims.legacyClaims
	if l.Namespace == "" || l.SecretName == "" || claims.Subject != serviceAccountName(l.Namespace, l.AccountName) {
		return errors.New("sub claim is invalid")
	}
	secret, err := t.object("secrets", l.Namespace, l.SecretName)
	if err != nil || secret.Get("metadata.deletionTimestamp").Exists() {
		return errors.New("Token has been invalidated")
	}
	kept, _ := base64.StdEncoding.DecodeString(secret.Get("data.token").String())
	if subtle.ConstantTimeCompare(kept, []byte(token)) == 0 {
		return errors.New("Token does not match server's copy")
	}
	account, err := t.object("serviceaccounts", l.Namespace, l.AccountName)
	if err != nil {
		return err
	}
	if account.Get("metadata.deletionTimestamp").Exists() {
		return fmt.Errorf("ServiceAccount %s/%s has been deleted", l.Namespace, l.AccountName)
	}
	if uid := account.Get("metadata.uid").String(); uid != l.AccountUID {
		return fmt.Errorf("ServiceAccount UID (%s) does not match claim (%s)", uid, l.AccountUID)
	}
	id.Namespace, id.Name, id.UID = l.Namespace, l.AccountName, l.AccountUID
	return nil
}

// ---- OpenID Connect discovery

// OpenIDConfiguration returns the discovery document, which contains the URL of KeySet. ok is false
// if the issuer is not a URL that can serve the document.
func (t *Tokens) OpenIDConfiguration(keysURL string) ([]byte, bool) {
	issuer, err := url.Parse(t.issuers[0])
	if err != nil || issuer.Scheme != "https" || issuer.RawQuery != "" || issuer.Fragment != "" {
		return nil, false
	}
	var algorithms []string
	for _, key := range t.keys {
		algorithms = append(algorithms, key.method.Alg())
	}
	slices.Sort(algorithms)
	doc, err := json.Marshal(struct {
		Issuer     string   `json:"issuer"`
		Keys       string   `json:"jwks_uri"`
		Responses  []string `json:"response_types_supported"`
		Subjects   []string `json:"subject_types_supported"`
		Algorithms []string `json:"id_token_signing_alg_values_supported"`
	}{t.issuers[0], keysURL, []string{"id_token"}, []string{"public"}, slices.Compact(algorithms)})
	return doc, err == nil
}

// publicKey is a JSON Web Key (RFC 7517).
type publicKey struct {
	Use       string `json:"use"`
	Type      string `json:"kty"`
	ID        string `json:"kid"`
	Curve     string `json:"crv,omitempty"`
	Algorithm string `json:"alg"`
	X         string `json:"x,omitempty"`
	Y         string `json:"y,omitempty"`
	N         string `json:"n,omitempty"`
	E         string `json:"e,omitempty"`
}

// KeySet returns the JSON Web Key Set with the public keys.
func (t *Tokens) KeySet() []byte {
	encode := base64.RawURLEncoding.EncodeToString
	set := make([]publicKey, len(t.keys))
	for i, key := range t.keys {
		set[i] = publicKey{Use: "sig", ID: key.id, Algorithm: key.method.Alg()}
		switch public := key.public.(type) {
		case *rsa.PublicKey:
			set[i].Type, set[i].N, set[i].E = "RSA", encode(public.N.Bytes()), encode(big.NewInt(int64(public.E)).Bytes())
		case *ecdsa.PublicKey:
			point, _ := public.Bytes() // the bytes are 4, x, y; this cannot fail for keys from parseKey
			half := (len(point) - 1) / 2
			set[i].Type, set[i].Curve = "EC", public.Curve.Params().Name
			set[i].X, set[i].Y = encode(point[1:1+half]), encode(point[1+half:])
		}
	}
	doc, _ := json.Marshal(map[string]any{"keys": set})
	return doc
}
