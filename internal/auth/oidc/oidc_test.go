package oidc

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/rs/zerolog"
	"k8s.io/apiserver/pkg/apis/apiserver"

	"apilet/internal/apitest"
	"apilet/internal/auth/ttlcache"
	"apilet/internal/request"
)

// A testIssuer signs tokens.
type testIssuer struct {
	*httptest.Server
	key *ecdsa.PrivateKey

	mu   sync.Mutex // guards keys
	keys map[string]crypto.PublicKey
}

func startIssuer(t testing.TB) *testIssuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := &testIssuer{key: key, keys: map[string]crypto.PublicKey{"k1": &key.PublicKey}}
	i.Server = httptest.NewTLSServer(i)
	t.Cleanup(i.Close)
	return i
}

func (i *testIssuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/.well-known/openid-configuration" {
		fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, i.URL, i.URL+"/keys")
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	keys := []map[string]string{{"kty": "OKP", "kid": "other"}}
	encode := func(n *big.Int) string { return base64.RawURLEncoding.EncodeToString(n.Bytes()) }
	for id, key := range i.keys {
		switch key := key.(type) {
		case *ecdsa.PublicKey:
			keys = append(keys, map[string]string{"kty": "EC", "kid": id, "crv": "P-256", "x": encode(key.X), "y": encode(key.Y)})
		case *rsa.PublicKey:
			keys = append(keys, map[string]string{"kty": "RSA", "kid": id, "use": "sig", "n": encode(key.N), "e": encode(big.NewInt(int64(key.E)))})
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"keys": keys})
}

func (i *testIssuer) authority() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw}))
}

// token signs claims, which have the usual ones unless they say otherwise.
func (i *testIssuer) token(t testing.TB, claims jwt.MapClaims) string {
	t.Helper()
	all := jwt.MapClaims{"iss": i.URL, "aud": "apilet", "exp": time.Now().Add(time.Hour).Unix(), "sub": "jane"}
	for name, value := range claims {
		if all[name] = value; value == nil {
			delete(all, name)
		}
	}
	token := jwt.NewWithClaims(jwt.SigningMethodES256, all)
	token.Header["kid"] = "k1"
	signed, err := token.SignedString(i.key)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// load has the issuer in a configuration whose rest the caller writes, in JSON, and waits for its keys.
func (i *testIssuer) load(t testing.TB, rest string) *Set {
	t.Helper()
	config := fmt.Sprintf(`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration","jwt":[{"issuer":{"url":%q,"certificateAuthority":%q,
		"audiences":["apilet","other"],"audienceMatchPolicy":"MatchAny"},%s}]}`, i.URL, i.authority(), rest)
	set, err := Load([]byte(config), Options{Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(set.Close)
	apitest.WaitFor(t, "the issuer's keys", func() bool { return set.issuers[0].keys.now() != nil })
	return set
}

const byExpressions = `"claimMappings":{"username":{"expression":"'sso:' + claims.sub"},"groups":{"expression":"dyn(claims.roles).map(r, 'g:' + r.name)"},
	"uid":{"expression":"claims['sub-id']"},"extra":[{"key":"example.com/team","valueExpression":"dyn(claims.team).sub__dash__team"}]},
	"claimValidationRules":[{"expression":"dyn(claims.team).level > 1","message":"too low"},{"claim":"hd","requiredValue":"example.com"}],
	"userValidationRules":[{"expression":"!user.username.startsWith('sso:system')","message":"reserved"}]`

func TestTokensBecomeUsers(t *testing.T) {
	t.Parallel()
	i := startIssuer(t)
	simple := i.load(t, `"claimMappings":{"username":{"claim":"sub","prefix":"sso:"},"groups":{"claim":"groups","prefix":"g:"},"uid":{"claim":"sub"}}`)
	rich := i.load(t, byExpressions)
	email := i.load(t, `"claimMappings":{"username":{"claim":"email","prefix":""}}`)
	good := jwt.MapClaims{"roles": []any{map[string]any{"name": "dev"}, map[string]any{"name": "ops"}}, "sub-id": "7", "hd": "example.com",
		"team": map[string]any{"sub-team": "x", "level": 2}, "jti": "j"}
	with := func(name string, value any) jwt.MapClaims {
		claims := jwt.MapClaims{name: value}
		for other, v := range good {
			if _, there := claims[other]; !there {
				claims[other] = v
			}
		}
		return claims
	}
	for name, c := range map[string]struct {
		set    *Set
		claims jwt.MapClaims
		want   string // user, uid, groups, extra; or the end of the error
	}{
		"by names":          {simple, jwt.MapClaims{"groups": []string{"dev"}}, "sso:jane jane [g:dev system:authenticated] map[]"},
		"one group":         {simple, jwt.MapClaims{"groups": "dev"}, "sso:jane jane [g:dev system:authenticated] map[]"},
		"no groups":         {simple, jwt.MapClaims{"aud": []string{"x", "other"}}, "sso:jane jane [system:authenticated] map[]"},
		"groups of numbers": {simple, jwt.MapClaims{"groups": []int{1}}, `oidc: parse groups claim "groups": json: cannot unmarshal array into Go value of type string`},
		"no name":           {simple, jwt.MapClaims{"sub": nil}, `oidc: parse username claims "sub": claim not present`},
		"another audience":  {simple, jwt.MapClaims{"aud": "x"}, `oidc: verify token: oidc: expected audience in ["apilet" "other"] got ["x"]`},
		"no end":            {simple, jwt.MapClaims{"exp": nil}, "(Token Expiry: 0001-01-01 00:00:00 +0000 UTC)"},
		"not yet":           {simple, jwt.MapClaims{"nbf": time.Now().Add(time.Hour).Unix()}, "UTC"},
		"expressions":       {rich, good, "sso:jane 7 [g:dev g:ops system:authenticated] map[authentication.kubernetes.io/credential-id:[JTI=j] example.com/team:[x]]"},
		"a rule":            {rich, with("team", map[string]any{"level": 1, "sub-team": "x"}), "oidc: error evaluating claim validation expression: validation expression 'dyn(claims.team).level > 1' failed: too low"},
		"a value":           {rich, with("hd", "x"), "oidc: required claim hd value does not match. Got = x, want = example.com"},
		"no value":          {rich, with("hd", nil), "oidc: required claim hd not present in ID token"},
		"a reserved name":   {rich, with("sub", "system"), "oidc: error evaluating user info validation rule: validation expression '!user.username.startsWith('sso:system')' failed: reserved"},
		"an empty claim":    {rich, with("roles", nil), "no such key: roles"},
		"not verified":      {email, jwt.MapClaims{"email": "a@b", "email_verified": false}, "oidc: email not verified"},
		"verified":          {email, jwt.MapClaims{"email": "a@b", "email_verified": true}, "a@b  [system:authenticated] map[]"},
	} {
		u, known, err := c.set.User(context.Background(), i.token(t, c.claims))
		got := fmt.Sprintf("%s %s %v %v", u.Name, u.UID, u.Groups, u.Extra)
		if err != nil {
			if got = err.Error(); u.Name != "" {
				t.Errorf("%s: refused, and yet it is %q", name, u.Name)
			}
		}
		if name == "not yet" {
			if err == nil || !strings.Contains(got, "before the nbf (not before) time") {
				t.Errorf("%s: %s", name, got)
			}
			continue
		}
		if !known || !strings.HasSuffix(got, c.want) {
			t.Errorf("%s: got %v %s, want %s", name, known, got, c.want)
		}
	}
}

func TestForgedTokensAreRefused(t *testing.T) {
	t.Parallel()
	i, other := startIssuer(t), startIssuer(t)
	set := i.load(t, `"claimMappings":{"username":{"claim":"sub","prefix":""}}`)
	good := i.token(t, nil)
	parts := strings.Split(good, ".")
	encode := base64.RawURLEncoding.EncodeToString
	claims := jwt.MapClaims{"iss": i.URL, "aud": "apilet", "exp": time.Now().Add(time.Hour).Unix(), "sub": "root"}
	none, _ := jwt.NewWithClaims(jwt.SigningMethodNone, claims).SignedString(jwt.UnsafeAllowNoneSignatureType)
	public, _ := json.Marshal(i.key.X)
	symmetric, _ := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString(public)
	for name, token := range map[string]string{
		"unsigned":            none,
		"signed with HMAC":    symmetric,
		"another's key":       other.token(t, jwt.MapClaims{"iss": i.URL}),
		"other claims":        parts[0] + "." + encode([]byte(fmt.Sprintf(`{"iss":%q,"aud":"apilet","exp":9999999999,"sub":"root"}`, i.URL))) + "." + parts[2],
		"no signature":        parts[0] + "." + parts[1] + ".",
		"a header of nothing": encode([]byte("{}")) + "." + parts[1] + "." + parts[2],
		"claims of a list":    parts[0] + "." + encode([]byte(fmt.Sprintf(`{"iss":%q,"aud":[[]],"exp":[]}`, i.URL))) + "." + parts[2],
		"an end of text":      parts[0] + "." + encode([]byte(fmt.Sprintf(`{"iss":%q,"aud":"apilet","exp":"x"}`, i.URL))) + "." + parts[2],
	} {
		u, known, err := set.User(context.Background(), token)
		if !known || err == nil {
			t.Errorf("%s: %v %v %v", name, u, known, err)
			continue
		}
		want := map[string]string{"unsigned": `got "none"`, "signed with HMAC": `got "HS256"`, "a header of nothing": `got ""`, "claims of a list": "unmarshal claims",
			"an end of text": "unmarshal claims"}[name]
		if want == "" {
			want = "oidc: verify token: failed to verify signature: failed to verify id token signature"
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	for name, token := range map[string]string{"another issuer's": other.token(t, nil), "no token": "abc", "too few parts": "a.b", "": "", "no base64": "a.!.c", "no JSON": "a.YQ.c"} {
		if _, known, err := set.User(context.Background(), token); known || err != nil {
			t.Errorf("%s: %v %v", name, known, err)
		}
	}
	if u, _, err := set.User(context.Background(), good); err != nil || u.Name != "jane" {
		t.Error(u, err)
	}
}

// An issuer that does not answer is a matter of its own tokens.
func TestIssuerThatIsDownStopsNoOther(t *testing.T) {
	t.Parallel()
	i := startIssuer(t)
	hangs := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(hangs.CloseClientConnections)
	config := fmt.Sprintf(`
apiVersion: apiserver.config.k8s.io/v1beta1
kind: AuthenticationConfiguration
jwt:
- issuer: {url: %q, audiences: [apilet]}
  claimMappings: {username: {claim: sub, prefix: ""}}
- issuer: {url: %q, audiences: [apilet], certificateAuthority: %q}
  claimMappings: {username: {claim: sub, prefix: ""}}
`, hangs.URL, i.URL, i.authority())
	set, err := Load([]byte(config), Options{Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	apitest.WaitFor(t, "the second issuer's keys", func() bool {
		u, _, err := set.User(context.Background(), i.token(t, nil))
		return err == nil && u.Name == "jane"
	})
	if _, known, err := set.User(context.Background(), i.token(t, jwt.MapClaims{"iss": hangs.URL})); !known || err == nil || err.Error() != "oidc: authenticator not initialized" {
		t.Error(known, err)
	}
}

func TestKeysOfAllKindsAreRead(t *testing.T) {
	t.Parallel()
	i := startIssuer(t)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	i.keys["r1"] = &key.PublicKey
	set := i.load(t, `"claimMappings":{"username":{"claim":"sub","prefix":""}}`)
	for _, method := range []jwt.SigningMethod{jwt.SigningMethodRS256, jwt.SigningMethodPS512} {
		for _, id := range []string{"r1", "", "k1", "unknown"} {
			token := jwt.NewWithClaims(method, jwt.MapClaims{"iss": i.URL, "aud": "apilet", "exp": time.Now().Add(time.Hour).Unix(), "sub": "jane"})
			if id != "" {
				token.Header["kid"] = id
			}
			signed, err := token.SignedString(key)
			if err != nil {
				t.Fatal(err)
			}
			_, _, err = set.User(context.Background(), signed)
			if good := id == "r1" || id == ""; good != (err == nil) {
				t.Errorf("%s, key %q: %v", method.Alg(), id, err)
			}
		}
	}
}

func TestConfigurationsAreCheckedAsKubernetesDoes(t *testing.T) {
	t.Parallel()
	const head = `{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration"`
	for config, want := range map[string]string{
		"":                   "empty config data",
		"x: y":               "Object 'Kind' is missing",
		head + `,"jwts":[]}`: `strict decoding error: unknown field "jwts"`,
		head + `,"jwt":[{"issuer":{"url":"http://a"},"claimMappings":{}}]}`:                                                       `[jwt[0].issuer.url: Invalid value: "http://a": URL scheme must be https, jwt[0].issuer.audiences: Required value: at least one jwt[0].issuer.audiences is required, jwt[0].claimMappings.username: Required value: claim or expression is required]`,
		head + `,"jwt":[{"issuer":{"url":"https://a","audiences":["x"]},"claimMappings":{"username":{"expression":"claims."}}}]}`: "Syntax error",
		head + `,"anonymous":{"enabled":false,"conditions":[{"path":"/x"}]}}`:                                                     "enabled should be set to true when conditions are defined",
		`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthorizationConfiguration"}`:                                         "expected AuthenticationConfiguration, got *apiserver.AuthorizationConfiguration",
	} {
		if _, err := Load([]byte(config), Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", config, err, want)
		}
	}
}

func TestAnonymousIsAdmittedByPath(t *testing.T) {
	t.Parallel()
	const head = `{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration","anonymous":`
	got := map[string][]bool{}
	for _, config := range []string{`null}`, `{"enabled":false}}`, `{"enabled":true}}`, `{"enabled":true,"conditions":[{"path":"/livez"}]}}`} {
		set, err := Load([]byte(head+config), Options{})
		if err != nil {
			t.Fatal(err)
		}
		set.Close()
		got[config] = []bool{set.AllowsAnonymous("/livez", true), set.AllowsAnonymous("/livez/x", true), set.AllowsAnonymous("/livez", false)}
	}
	want := map[string][]bool{`null}`: {true, true, false}, `{"enabled":false}}`: {false, false, false}, `{"enabled":true}}`: {true, true, true},
		`{"enabled":true,"conditions":[{"path":"/livez"}]}}`: {true, false, true}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Who changes a rule while the issuer is down goes on with its keys.
func TestKeysOutliveAChangedConfiguration(t *testing.T) {
	t.Parallel()
	i := startIssuer(t)
	set := i.load(t, `"claimMappings":{"username":{"claim":"sub","prefix":""}}`)
	config := set.issuers[0].config
	token := i.token(t, nil)
	i.Close()
	prefix := "new:"
	config.ClaimMappings.Username.Prefix = &prefix
	next, err := New(&apiserver.AuthenticationConfiguration{JWT: []apiserver.JWTAuthenticator{config}}, Options{Log: zerolog.Nop(), Before: set})
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if u, _, err := next.User(context.Background(), token); err != nil || u.Name != "new:jane" {
		t.Error(u, err)
	}
	config.Issuer.CertificateAuthority = ""
	other, err := New(&apiserver.AuthenticationConfiguration{JWT: []apiserver.JWTAuthenticator{config}}, Options{Log: zerolog.Nop(), Before: set})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, _, err := other.User(context.Background(), token); err == nil {
		t.Error("keys that another authority has vouched for are used")
	}
}

// What is remembered of a token ends with it, and after ten seconds at the latest.
func TestTokensAreRememberedForAMoment(t *testing.T) {
	t.Parallel()
	i := startIssuer(t)
	set := i.load(t, `"claimMappings":{"username":{"claim":"sub","prefix":""}}`)
	start := time.Now()
	now := start
	set.issuers[0].now = func() time.Time { return now }
	short, long := i.token(t, jwt.MapClaims{"exp": start.Add(3 * time.Second).Unix()}), i.token(t, nil)
	for _, c := range []struct {
		token string
		after time.Duration
		want  bool
	}{{short, 0, true}, {long, 0, true}, {short, 5 * time.Second, false}, {long, 5 * time.Second, true}, {long, 11 * time.Second, false}} {
		if now = start.Add(c.after); c.after > 10*time.Second {
			set.issuers[0].keys.current.Store(&keySet{}) // withdrawn
		}
		if _, _, err := set.User(context.Background(), c.token); c.want != (err == nil) {
			t.Errorf("after %v: %v", c.after, err)
		}
	}
}

func BenchmarkUser(b *testing.B) {
	i := startIssuer(b)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		b.Fatal(err)
	}
	i.keys["r1"] = &key.PublicKey
	set := i.load(b, `"claimMappings":{"username":{"claim":"sub","prefix":""},"groups":{"claim":"groups","prefix":"g:"}}`)
	other := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.MapClaims{"iss": i.URL, "aud": "apilet", "exp": time.Now().Add(time.Hour).Unix(), "sub": "jane"})
	other.Header["kid"] = "r1"
	signed, err := other.SignedString(key)
	if err != nil {
		b.Fatal(err)
	}
	for name, token := range map[string]string{"ES256": i.token(b, nil), "RS256": signed} {
		b.Run("again/"+name, func(b *testing.B) {
			for b.Loop() {
				_, _, _ = set.User(context.Background(), token)
			}
		})
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				set.users = ttlcache.Cache[request.User]{MaxEntries: maxCached}
				if _, _, err := set.User(context.Background(), token); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
