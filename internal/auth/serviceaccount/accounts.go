package serviceaccount

// This file is about service accounts' credentials: it issues their tokens, says whose a token is, and publishes the keys by which others
// can tell. A token is a JWT, three parts in base64url with dots between: a header, claims, and a signature of both.
//
//	{"alg":"ES256","kid":"…"} . {"iss":"https://…","sub":"system:serviceaccount:shop:app","aud":[…],"exp":…,"iat":…,"nbf":…,"jti":"…",
//	                             "kubernetes.io":{"namespace":"shop","serviceaccount":{"name":"app","uid":"…"},"pod":{…}}} . …
//
// Nothing of a token is stored. The signature says that this server (or one with its key) has issued it; whether it still counts is
// looked up at each request: the account must have the uid of the claims, and so must the Pod, Secret or Node that the token is bound to.
// Deleting any of them is how a token is revoked, at once (kube-apiserver, which remembers answers, takes up to ten seconds). What is
// remembered here is that the signature was good, since that is what costs time.
//
// A Secret of type kubernetes.io/service-account-token holds a token of the older kind, without an end and with claims of its own; it
// counts as long as the Secret with this very token is there.

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
	"apilet/internal/auth/memory"
	"apilet/internal/auth/signature"
	"apilet/internal/store"
)

const (
	DefaultIssuer    = "https://kubernetes.default.svc.cluster.local" // --service-account-issuer where no flag names one
	legacyIssuer     = "kubernetes/serviceaccount"
	defaultTokenLife = 3600    // seconds
	minTokenLife     = 600     // seconds
	maxTokenLife     = 1 << 32 // seconds
	tokenLeeway      = time.Minute
	maxKnownTokens   = 1024 // whose signature is remembered as good
	maxKnownToken    = 8 << 10
	rejectedFor      = 10 * time.Second
)

// ErrNotOurs is about a token that no service account's issuer here has issued, whatever it is.
var ErrNotOurs = errors.New("not a service account token")

// errNoKey is about a token whose key id is none of the keys'.
var errNoKey = errors.New("invalid signature, no keys found")

// errInvalidSignature is about a token that none of the keys has signed, or that cannot be read.
var errInvalidSignature = errors.New("invalid signature")

// errInvalidated is Kubernetes' word for a token whose object has gone.
var errInvalidated = errors.New("service account token has been invalidated")

// Config are the flags of service accounts.
type Config struct {
	SigningKeyFile string   // path of a PEM private key; "": the first private one of KeyFiles, else the data file's
	KeyFiles       []string // paths of PEM keys that verify
	Issuers        []string // the first issues tokens, all are accepted
	Audiences      []string // what a token for this server is meant for; by default the issuers
	RootCA         []byte   // PEM, for the ca.crt of Secrets; nil: they have none
}

// Tokens issues and checks tokens. Safe for concurrent use.
type Tokens struct {
	st        *store.Store
	issuers   []string
	Audiences []string     // what a token for this server is meant for
	signer    accountKey   // the key of new tokens
	keys      []accountKey // that are accepted
	rootCA    []byte       // for the ca.crt of Secrets; nil without an authority of this server's own

	mu    sync.Mutex                         // guards known
	known map[[sha256.Size]byte]*tokenClaims // by the hash of a token: its claims, once its signature was verified

	gate     signature.Gate
	rejected memory.Of[struct{}] // hashes of tokens that none of the keys has signed
}

// accountKey is a key and the one algorithm that it is used with.
type accountKey struct {
	id      string
	method  jwt.SigningMethod
	public  crypto.PublicKey
	private crypto.Signer // nil for a key that only verifies
}

// tokenClaims are the claims of both kinds of tokens.
type tokenClaims struct {
	jwt.RegisteredClaims
	Bound *boundClaims `json:"kubernetes.io,omitempty"` // nil for a token of a Secret, which has the legacy claims
	legacyClaims
}

// boundClaims are the private claims of today's tokens, as in pkg/serviceaccount/claims.go of k8s.io/kubernetes.
type boundClaims struct {
	Namespace string    `json:"namespace,omitempty"`
	Account   objectID  `json:"serviceaccount"` // whose the token is
	Pod       *objectID `json:"pod,omitempty"`  // what the token dies with, like the next two; nil: with its account alone
	Secret    *objectID `json:"secret,omitempty"`
	Node      *objectID `json:"node,omitempty"`
}

// objectID names an object that a token depends on; another of the same name has another uid.
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

// Identity is whose a token is.
type Identity struct {
	Namespace, Name, UID string              // of the service account
	Extra                map[string][]string // the token's id, pod and node, under Kubernetes' keys
	Audiences            []string            // of those asked for, the ones that the token is meant for
}

// New reads the keys that the flags name. Without any, the data file keeps one, made now if there is none.
func New(st *store.Store, cfg Config) (*Tokens, error) {
	t := &Tokens{st: st, issuers: cfg.Issuers, Audiences: cfg.Audiences, rootCA: cfg.RootCA, known: map[[sha256.Size]byte]*tokenClaims{},
		rejected: memory.Of[struct{}]{Most: maxKnownTokens}}
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
		if signing, err = keptKey(st); err != nil {
			return nil, err
		}
	}
	i := slices.IndexFunc(signing, signs)
	if i < 0 {
		return nil, fmt.Errorf("--service-account-signing-key-file: %s holds no private key", cfg.SigningKeyFile)
	}
	t.signer = signing[i]
	if !slices.ContainsFunc(t.keys, func(key accountKey) bool { return key.id == t.signer.id }) {
		t.keys = append([]accountKey{t.signer}, t.keys...)
	}
	return t, nil
}

// ---- Keys

// keptKey returns the key that the data file keeps.
func keptKey(st *store.Store) ([]accountKey, error) {
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

// readKeys reads all keys of a PEM file: private ones, public ones, and those of certificates.
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
			continue // the parameters that openssl puts before an elliptic curve's key
		}
		key, err := parseKey(block)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s holds no PEM key", path)
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
		err = fmt.Errorf("a %q is no key that signs tokens", block.Type)
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

// Request answers a TokenRequest for the account: obj gets its defaults and its status. credential names the token in audit logs.
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

// fillRequest fills in what a TokenRequest leaves open.
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

// bind ties a token to the life of a Pod, Secret or Node. A pod's token names the pod's node, too.
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

// sign makes a token of the claims, signed with the first key.
func (t *Tokens) sign(claims *tokenClaims) (string, error) {
	token := jwt.NewWithClaims(t.signer.method, claims)
	token.Header = map[string]any{"alg": t.signer.method.Alg(), "kid": t.signer.id}
	return token.SignedString(t.signer.private)
}

// AccountOf names the service account whose token a Secret is to hold; ok is false for a Secret of another type.
func AccountOf(secret []byte) (name string, ok bool) {
	found := gjson.GetManyBytes(secret, "type", `metadata.annotations.kubernetes\.io/service-account\.name`)
	return found[1].Str, found[0].Str == string(corev1.SecretTypeServiceAccountToken)
}

// FillSecret gives a Secret of type kubernetes.io/service-account-token what it lacks of what it is made for, as the token controller does.
// One whose account is not there, or has another uid, stays as it is (the controller would delete it).
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

// signLegacy puts a token of the older kind into a Secret.
func (t *Tokens) signLegacy(secret *corev1.Secret, account objectID) error {
	token, err := t.sign(&tokenClaims{RegisteredClaims: jwt.RegisteredClaims{Issuer: legacyIssuer, Subject: serviceAccountName(secret.Namespace, account.Name)},
		legacyClaims: legacyClaims{Namespace: secret.Namespace, SecretName: secret.Name, AccountName: account.Name, AccountUID: account.UID}})
	secret.Data[corev1.ServiceAccountTokenKey] = []byte(token)
	return err
}

// object reads one object of the core group; 404 as Kubernetes words it.
func (t *Tokens) object(resource, namespace, name string) (gjson.Result, error) {
	rec, err := t.st.Get("//" + resource + "/" + namespace + "/" + name)
	if errors.Is(err, store.ErrNotFound) {
		err = apierrors.NewNotFound(schema.GroupResource{Resource: resource}, name)
	}
	return gjson.ParseBytes(rec.JSON), err
}

// ---- Checking

// Check says whose a token is, if it is meant for one of the audiences: ErrNotOurs when it is none of these issuers' tokens at all, else
// why it does not count. No error quotes a token. A replica that finds nothing good about a token catches up with its log and looks again:
// another server may have issued it a moment ago.
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

// claimedIssuer reads the issuer of what may be a token, and believes nothing of it: it only decides whose business the token is.
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

// verified returns the claims of a token of these issuers whose signature is good; ErrNotOurs for another's.
func (t *Tokens) verified(ctx context.Context, token string) (*tokenClaims, error) {
	sum := sha256.Sum256([]byte(token))
	t.mu.Lock()
	claims := t.known[sum]
	t.mu.Unlock()
	if claims != nil {
		return claims, nil
	}
	if issuer, ok := claimedIssuer(token); !ok || issuer != legacyIssuer && !slices.Contains(t.issuers, issuer) {
		return nil, ErrNotOurs
	}
	parsed, err := signature.Parse(token)
	if err != nil {
		return nil, errInvalidSignature
	}
	if err := t.checkSignature(ctx, parsed, sum); err != nil {
		return nil, err
	}
	claims = &tokenClaims{} // times are checked at each request, not with the signature
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

// checkSignature returns nil if one of the keys has signed the token. The keys do not change while the server runs, so a rejected token stays
// rejected and is remembered. No error quotes the token.
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

// keysFor returns the keys that may have signed a token: the key with the token's key id, or all keys if it names none, except for keys of
// another algorithm. An empty list verifies nothing.
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

// checkTimes says whether now is the time of a token.
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

// checkBound looks whether a token still counts, and fills id.
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

// checkObjects looks for what a token is bound to. An object that is being deleted counts as there for a minute after its time.
func (t *Tokens) checkObjects(b *boundClaims, invalidBefore time.Time) error {
	node := b.Node
	if b.Pod != nil {
		node = nil // only told, not a bond
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

// deletedBy says that an object's time was up at t. What waits for nothing but its finalizers is here, and yet gone.
func deletedBy(obj gjson.Result, t time.Time) bool {
	at := obj.Get("metadata.deletionTimestamp")
	return at.Exists() && at.Time().Before(t)
}

// extra is what else requests with the token tell of it.
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

// checkLegacy looks whether the token of a Secret still counts, and fills id.
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

// ---- Telling others: OpenID Connect discovery

// OpenIDConfiguration is the document that leads to KeySet, "" when the issuer is no URL at which it could lie.
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

// publicKey is a key as RFC 7517 writes it.
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

// KeySet is the document with the public keys.
func (t *Tokens) KeySet() []byte {
	encode := base64.RawURLEncoding.EncodeToString
	set := make([]publicKey, len(t.keys))
	for i, key := range t.keys {
		set[i] = publicKey{Use: "sig", ID: key.id, Algorithm: key.method.Alg()}
		switch public := key.public.(type) {
		case *rsa.PublicKey:
			set[i].Type, set[i].N, set[i].E = "RSA", encode(public.N.Bytes()), encode(big.NewInt(int64(public.E)).Bytes())
		case *ecdsa.PublicKey:
			point, _ := public.Bytes() // 4, x, y; all that parseKey takes can be written so
			half := (len(point) - 1) / 2
			set[i].Type, set[i].Curve = "EC", public.Curve.Params().Name
			set[i].X, set[i].Y = encode(point[1:1+half]), encode(point[1+half:])
		}
	}
	doc, _ := json.Marshal(map[string]any{"keys": set})
	return doc
}
