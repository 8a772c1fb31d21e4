package e2e

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/auth/serviceaccount"
	"apilet/internal/request"
)

const (
	shopAccounts = "/api/v1/namespaces/shop/serviceaccounts"
	masterToken  = "Authorization: Bearer root-token"
	whoamiPath   = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	whoamiBody   = `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`
)

// startShop starts a TLS server that has namespace shop with the accounts app and other, pods and a
// secret, and also a node.
func startShop(t *testing.T, flags ...string) *testServer {
	t.Helper()
	s, _ := startTLS(t, flags...)
	s.want(201, "POST", "/api/v1/namespaces", `{"metadata":{"name":"shop"}}`, masterToken)
	for _, name := range []string{"app", "other"} {
		s.want(201, "POST", shopAccounts, `{"metadata":{"name":"`+name+`"}}`, masterToken)
	}
	s.want(201, "POST", "/api/v1/nodes", `{"metadata":{"name":"n1"}}`, masterToken)
	s.want(201, "POST", "/api/v1/namespaces/shop/secrets", `{"metadata":{"name":"s"}}`, masterToken)
	for pod, node := range map[string]string{"p": "", "on-n1": "n1", "on-none": "gone"} {
		s.want(201, "POST", "/api/v1/namespaces/shop/pods", kubetest.PodOf(pod, node), masterToken)
	}
	return s
}

// tokenFor requests a token for account app. spec are the members of the TokenRequest's spec.
func (s *testServer) tokenFor(spec string) string {
	s.t.Helper()
	return s.want(201, "POST", shopAccounts+"/app/token", `{"spec":{`+spec+`}}`, masterToken).get("status.token").String()
}

// claimsOf returns a token's claims without verifying it.
func claimsOf(t *testing.T, token string) gjson.Result {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("%q is no token", token)
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	return gjson.ParseBytes(payload)
}

// reviewOf returns the result of a TokenReview. This is either the user's name with the audiences
// or the error.
func (s *testServer) reviewOf(token string, audiences ...string) string {
	s.t.Helper()
	body, _ := json.Marshal(map[string]any{"spec": map[string]any{"token": token, "audiences": audiences}})
	a := s.want(201, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", string(body), masterToken)
	if problem := a.get("status.error").String(); problem != "" {
		if a.get("status.authenticated").Bool() {
			s.t.Errorf("authenticated, and %s", problem)
		}
		return problem
	}
	return a.get("status.user.username").String() + " " + a.get("status.audiences").Raw
}

func boundTo(kind, name string) string {
	return fmt.Sprintf(`"boundObjectRef":{"kind":%q,"apiVersion":"v1","name":%q}`, kind, name)
}

// TestTokenRequestIsKubernetes checks that the responses match kube-apiserver 1.36.
func TestTokenRequestIsKubernetes(t *testing.T) {
	t.Parallel()
	s := startShop(t)
	for _, c := range []struct{ path, body, want string }{
		{"app", `{"spec":{"expirationSeconds":599}}`, `422 Invalid TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes`},
		{"app", `{"spec":{"expirationSeconds":0}}`, `422 Invalid TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 0: may not specify a duration less than 10 minutes`},
		{"app", `{"spec":{"expirationSeconds":4294967297}}`, `422 Invalid TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 4294967297: may not specify a duration larger than 2^32 seconds`},
		{"app", `{"metadata":{"name":"zz"}}`, `422 Invalid TokenRequest.authentication.k8s.io "app" is invalid: metadata.name: Invalid value: "zz": must match the service account name if specified`},
		{"app", `{"metadata":{"namespace":"zz"}}`, `400 BadRequest the namespace of the provided object does not match the namespace sent on the request`},
		{"nope", `{}`, `404 NotFound serviceaccounts "nope" not found`},
		{"app", `{"spec":{` + boundTo("Pod", "nope") + `}}`, `404 NotFound pods "nope" not found`},
		{"app", `{"spec":{` + boundTo("Node", "nope") + `}}`, `404 NotFound nodes "nope" not found`},
		{"app", `{"spec":{` + boundTo("Secret", "nope") + `}}`, `404 NotFound secrets "nope" not found`},
		{"app", `{"spec":{` + boundTo("Pod", "") + `}}`, `400 BadRequest Name parameter required.`},
		{"app", `{"spec":{` + boundTo("ConfigMap", "s") + `}}`, `400 BadRequest cannot bind token to object of type /v1, Kind=ConfigMap`},
		{"app", `{"spec":{"boundObjectRef":{"kind":"Pod","apiVersion":"apps/v1","name":"p"}}}`, `400 BadRequest cannot bind token to object of type apps/v1, Kind=Pod`},
		{"app", `{"spec":{"boundObjectRef":{}}}`, `400 BadRequest cannot bind token to object of type /, Kind=`},
		{"app", `{"spec":{"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"p","uid":"x"}}}`, `409 Conflict Operation cannot be fulfilled on Pod "p": the UID in the bound object reference (x) does not match the UID in record. The object might have been deleted and then recreated`},
		{"other", `{"spec":{` + boundTo("Pod", "p") + `}}`, `400 BadRequest cannot bind token for serviceaccount "other" to pod running with different serviceaccount name.`},
		{"app", `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{"foo":1}}`, ``},
		{"app/token?fieldValidation=Strict&x=", `{"spec":{"foo":1}}`, `400 BadRequest TokenRequest in version "v1" cannot be handled as a TokenRequest: strict decoding error: unknown field "spec.foo"`},
		{"app", ``, `400 BadRequest the object provided is unrecognized (must be of type TokenRequest): couldn't get version/kind; json parse error: unexpected end of JSON input (<empty>)`},
		{"app", `{"apiVersion":"v1","kind":"Pod"}`, `400 BadRequest Pod in version "v1" cannot be handled as a TokenRequest: converting (v1.Pod) to (authentication.TokenRequest): unknown conversion`},
	} {
		path := shopAccounts + "/" + c.path
		if !strings.Contains(path, "/token") {
			path += "/token"
		}
		a := s.send("POST", path, c.body, masterToken)
		if got := a.failure(); got != c.want && (c.want != "" || a.code != 201) {
			t.Errorf("%s %s\n got %s\nwant %s", c.path, c.body, got, c.want)
		}
	}
	uid := s.want(200, "GET", shopAccounts+"/app", "", masterToken).get("metadata.uid").String()
	if got, want := s.send("POST", shopAccounts+"/app/token", `{"metadata":{"uid":"x"}}`, masterToken).failure(), `409 Conflict Operation cannot be fulfilled on `+
		`TokenRequest.authentication.k8s.io "app": the UID in the token request (x) does not match the UID of the service account (`+uid+`)`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := s.send("POST", "/api/v1/namespaces/nope/serviceaccounts/app/token", `{}`, masterToken).failure(); got != `404 NotFound namespaces "nope" not found` {
		t.Error(got)
	}
	for _, method := range []string{"GET", "PUT", "DELETE"} {
		s.want(405, method, shopAccounts+"/app/token", "{}", masterToken)
	}
}

// TestTokenSaysWhoItsBearerIs checks the claims in the token, their defaults, and the user of
// requests with the token.
func TestTokenSaysWhoItsBearerIs(t *testing.T) {
	t.Parallel()
	s := startShop(t)
	uid := func(path string) string {
		return s.want(200, "GET", path, "", masterToken).get("metadata.uid").String()
	}
	account := uid(shopAccounts + "/app")
	pods, node := "/api/v1/namespaces/shop/pods/", uid("/api/v1/nodes/n1")
	for _, c := range []struct{ spec, bound, extra string }{
		{``, ``, ``},
		{boundTo("Pod", "p"), `"pod":{"name":"p","uid":"` + uid(pods+"p") + `"}`, `pod-name=p pod-uid=` + uid(pods+"p")},
		{boundTo("Pod", "on-n1"), `"pod":{"name":"on-n1","uid":"` + uid(pods+"on-n1") + `"},"node":{"name":"n1","uid":"` + node + `"}`,
			"node-name=n1 node-uid=" + node + " pod-name=on-n1 pod-uid=" + uid(pods+"on-n1")},
		{boundTo("Pod", "on-none"), `"pod":{"name":"on-none","uid":"` + uid(pods+"on-none") + `"},"node":{"name":"gone"}`,
			"node-name=gone pod-name=on-none pod-uid=" + uid(pods+"on-none")},
		{boundTo("Node", "n1"), `"node":{"name":"n1","uid":"` + node + `"}`, "node-name=n1 node-uid=" + node},
		{boundTo("Secret", "s"), `"secret":{"name":"s","uid":"` + uid("/api/v1/namespaces/shop/secrets/s") + `"}`, ``},
	} {
		answer := s.want(201, "POST", shopAccounts+"/app/token", `{"spec":{`+c.spec+`}}`, masterToken)
		token := answer.get("status.token").String()
		claims := claimsOf(t, token)
		want := `{"namespace":"shop","serviceaccount":{"name":"app","uid":"` + account + `"}`
		if c.bound != "" {
			want += "," + c.bound
		}
		if got := claims.Get(`kubernetes\.io`).Raw; got != want+"}" {
			t.Errorf("%s: %s, want %s}", c.spec, got, want)
		}
		life := claims.Get("exp").Int() - claims.Get("iat").Int()
		if claims.Get("sub").String() != "system:serviceaccount:shop:app" || claims.Get("aud").Raw != `["`+serviceaccount.DefaultIssuer+`"]` ||
			claims.Get("iss").String() != serviceaccount.DefaultIssuer || life != 3600 || claims.Get("nbf").Int() != claims.Get("iat").Int() {
			t.Errorf("%s: claims %s", c.spec, claims.Raw)
		}
		if got := answer.get("spec.expirationSeconds").Int(); got != 3600 || answer.get("kind").String() != "TokenRequest" || answer.get("metadata.uid").String() != account {
			t.Errorf("%s: answered %s", c.spec, answer.body)
		}
		who := s.want(201, "POST", whoamiPath, whoamiBody, "Authorization: Bearer "+token).get("status.userInfo")
		extra := strings.TrimSpace(c.extra + " credential-id=JTI=" + claims.Get("jti").String())
		var told []string
		for _, key := range []string{"node-name", "node-uid", "pod-name", "pod-uid", "credential-id"} {
			if value := who.Get(`extra.authentication\.kubernetes\.io/` + key + ".0").String(); value != "" {
				told = append(told, key+"="+value)
			}
		}
		if got := strings.Join(told, " "); got != extra || who.Get("username").String() != "system:serviceaccount:shop:app" || who.Get("uid").String() != account ||
			who.Get("groups").Raw != `["system:serviceaccounts","system:serviceaccounts:shop","system:authenticated"]` {
			t.Errorf("%s: %s, want extra %s", c.spec, who.Raw, extra)
		}
	}
}

// TestTokenDiesWithWhatItIsBoundTo checks that a token is no longer valid after its object is
// deleted, even if a new object with the same name is created.
func TestTokenDiesWithWhatItIsBoundTo(t *testing.T) {
	t.Parallel()
	s := startShop(t)
	plain, toPod, toOld := s.tokenFor(""), s.tokenFor(boundTo("Pod", "p")), s.tokenFor(boundTo("Pod", "on-none"))
	toNode, toSecret, ofPodOnNode := s.tokenFor(boundTo("Node", "n1")), s.tokenFor(boundTo("Secret", "s")), s.tokenFor(boundTo("Pod", "on-n1"))
	alive := `system:serviceaccount:shop:app ["` + serviceaccount.DefaultIssuer + `"]`
	for _, token := range []string{plain, toPod, toOld, toNode, toSecret, ofPodOnNode} {
		if got := s.reviewOf(token); got != alive {
			t.Fatal(got)
		}
	}
	invalidated := "[invalid bearer token, service account token has been invalidated]"
	expect := func(title, token, want string) {
		t.Helper()
		if got := s.reviewOf(token); got != want && !(strings.HasSuffix(want, "…") && strings.HasPrefix(got, strings.TrimSuffix(want, "…"))) {
			t.Errorf("%s: %s, want %s", title, got, want)
		}
		code := 401
		if want == alive {
			code = 201
		}
		s.want(code, "POST", whoamiPath, whoamiBody, "Authorization: Bearer "+token)
	}
	s.want(200, "DELETE", "/api/v1/namespaces/shop/secrets/s", "", masterToken)
	expect("secret", toSecret, invalidated)
	s.want(200, "DELETE", "/api/v1/nodes/n1", "", masterToken)
	expect("node", toNode, invalidated)
	expect("a pod of that node", ofPodOnNode, alive)
	for _, pod := range []string{"p", "on-none"} {
		s.want(200, "DELETE", "/api/v1/namespaces/shop/pods/"+pod+"?gracePeriodSeconds=0", "", masterToken)
	}
	s.want(201, "POST", "/api/v1/namespaces/shop/pods", kubetest.PodOf("on-none", ""), masterToken)
	expect("pod", toPod, invalidated)
	expect("pod of the same name", toOld, "[invalid bearer token, pod UID (…")
	expect("the account is there", plain, alive)
	s.want(200, "DELETE", shopAccounts+"/app", "", masterToken)
	expect("account", plain, `[invalid bearer token, serviceaccounts "app" not found]`)
	s.want(201, "POST", shopAccounts, `{"metadata":{"name":"app"}}`, masterToken)
	expect("account of the same name", plain, "[invalid bearer token, service account UID (…")
}

// A signingKey is a key for account tokens. It is created outside of the server.
type signingKey struct {
	*ecdsa.PrivateKey
	file string
}

func newSigningKey(t *testing.T) signingKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return signingKey{key, apitest.TempFile(t, "key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))}
}

// signs returns a flag that gives the server the key.
func (k signingKey) signs() string { return "--service-account-signing-key-file=" + k.file }

// keyOf returns the key ID in a token's header.
func keyOf(t *testing.T, token string) string {
	t.Helper()
	head, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[0])
	if err != nil {
		t.Fatal(err)
	}
	return gjson.GetBytes(head, "kid").String()
}

// forge modifies the given token and signs it again with the same key. Only a server with a wrong
// clock would issue such a token.
func forge(t *testing.T, key signingKey, good string, edit func(jwt.MapClaims)) string {
	t.Helper()
	claims := jwt.MapClaims(claimsOf(t, good).Value().(map[string]any))
	for _, when := range []string{"exp", "nbf", "iat"} {
		delete(claims, when)
	}
	edit(claims)
	token := jwt.NewWithClaims(jwt.SigningMethodES256, claims)
	token.Header["kid"] = keyOf(t, good)
	text, err := token.SignedString(key.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestTokenTimesHaveAMinuteOfLeeway checks that apilet allows the same clock skew as
// kube-apiserver.
func TestTokenTimesHaveAMinuteOfLeeway(t *testing.T) {
	t.Parallel()
	key := newSigningKey(t)
	s := startShop(t, key.signs())
	good := s.tokenFor("")
	at := func(d time.Duration) *jwt.NumericDate { return jwt.NewNumericDate(time.Now().Add(d)) }
	for _, c := range []struct {
		title string
		edit  func(jwt.MapClaims)
		want  string
	}{
		{"just expired", func(c jwt.MapClaims) { c["exp"] = at(-30 * time.Second) }, ""},
		{"expired", func(c jwt.MapClaims) { c["exp"] = at(-62 * time.Second) }, "service account token has expired"},
		{"nearly valid", func(c jwt.MapClaims) { c["nbf"] = at(30 * time.Second) }, ""},
		{"not yet valid", func(c jwt.MapClaims) { c["nbf"] = at(90 * time.Second) }, "service account token is not valid yet"},
		{"of the future", func(c jwt.MapClaims) { c["iat"] = at(90 * time.Second) }, "service account token is issued in the future"},
		{"without bond", func(c jwt.MapClaims) { delete(c, "kubernetes.io") }, `serviceaccounts "" not found`},
		{"of a foreign name", func(c jwt.MapClaims) { c["kubernetes.io"].(map[string]any)["namespace"] = "shop/app/.." }, `serviceaccounts "app" not found`},
	} {
		want := `system:serviceaccount:shop:app ["` + serviceaccount.DefaultIssuer + `"]`
		if c.want != "" {
			want = "[invalid bearer token, " + c.want + "]"
		}
		for asked := false; !asked; { // repeat until the reviews finish within 25 seconds
			begin := time.Now()
			token := forge(t, key, good, c.edit)
			// The second review finds the verified signature in the cache.
			first, second := s.reviewOf(token), s.reviewOf(token)
			if asked = time.Since(begin) < 25*time.Second; asked && (first != want || second != want) {
				t.Errorf("%s: %s, then %s, want %s", c.title, first, second, want)
			}
		}
	}
}

// TestTokenReviewKnowsAudiences checks that the responses match kube-apiserver.
func TestTokenReviewKnowsAudiences(t *testing.T) {
	t.Parallel()
	s := startShop(t)
	plain, xy, both := s.tokenFor(""), s.tokenFor(`"audiences":["x","y"]`), s.tokenFor(`"audiences":["x","`+serviceaccount.DefaultIssuer+`"]`)
	app, us := "system:serviceaccount:shop:app ", serviceaccount.DefaultIssuer
	for _, c := range []struct {
		title, token string
		audiences    []string
		want         string
	}{
		{"plain", plain, nil, app + `["` + us + `"]`},
		{"plain", plain, []string{"x"}, `[invalid bearer token, token audiences ["` + us + `"] is invalid for the target audiences ["x"]]`},
		{"plain", plain, []string{"x", us}, app + `["` + us + `"]`},
		{"x and y", xy, nil, `[invalid bearer token, token audiences ["x" "y"] is invalid for the target audiences ["` + us + `"]]`},
		{"x and y", xy, []string{"y", "x"}, app + `["y","x"]`},
		{"x and us", both, nil, app + `["` + us + `"]`},
		{"x and us", both, []string{"x", "z"}, app + `["x"]`},
		{"a line of the token file", "root-token", nil, `root ["` + us + `"]`},
		{"a line of the token file", "root-token", []string{"x", us}, `root ["` + us + `"]`},
		{"a line of the token file", "root-token", []string{"x"}, "invalid bearer token"},
		{"junk", "junk", nil, "invalid bearer token"},
		{"junk with dots", "a.b.c", nil, "invalid bearer token"},
	} {
		if got := s.reviewOf(c.token, c.audiences...); got != c.want {
			t.Errorf("%s for %v: %s, want %s", c.title, c.audiences, got, c.want)
		}
	}
	s.want(401, "GET", "/version", "", "Authorization: Bearer "+xy)
	s.want(200, "GET", "/version", "", "Authorization: Bearer "+both)
}

// TestForgedTokensAreRefused tries every way to sign a token without a key of the server.
func TestForgedTokensAreRefused(t *testing.T) {
	t.Parallel()
	key := newSigningKey(t)
	s := startShop(t, key.signs())
	good := s.tokenFor("")
	parts := strings.Split(good, ".")
	encode := base64.RawURLEncoding.EncodeToString
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	stranger, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	signed := func(method jwt.SigningMethod, kid string, key any) string {
		token := jwt.NewWithClaims(method, jwt.MapClaims(claimsOf(t, good).Value().(map[string]any)))
		token.Header["kid"] = kid
		text, err := token.SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	kid := keyOf(t, good)
	noKeys, bad := "[invalid bearer token, invalid signature, no keys found]", "[invalid bearer token, invalid signature]"
	for title, c := range map[string]struct{ token, want string }{
		"no signature":                 {parts[0] + "." + parts[1] + ".", bad},
		"algorithm none":               {signed(jwt.SigningMethodNone, kid, jwt.UnsafeAllowNoneSignatureType), bad},
		"the public key as a password": {signed(jwt.SigningMethodHS256, kid, public), bad},
		"PEM as a password":            {signed(jwt.SigningMethodHS256, kid, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})), bad},
		"a stranger's key":             {signed(jwt.SigningMethodES256, kid, stranger), bad},
		"a stranger's key and id":      {signed(jwt.SigningMethodES256, "x", stranger), noKeys},
		"a stranger's key and no id":   {signed(jwt.SigningMethodES256, "", stranger), bad},
		"other claims":                 {parts[0] + "." + encode([]byte(`{"iss":"`+serviceaccount.DefaultIssuer+`"}`)) + "." + parts[2], bad},
		"another issuer":               {parts[0] + "." + encode([]byte(`{"iss":"https://elsewhere"}`)) + "." + parts[2], "invalid bearer token"},
		"the older kind's issuer":      {parts[0] + "." + encode([]byte(`{"iss":"kubernetes/serviceaccount"}`)) + "." + parts[2], bad},
		"no header":                    {"." + parts[1] + "." + parts[2], bad},
	} {
		if got := s.reviewOf(c.token); got != c.want {
			t.Errorf("%s: %s, want %s", title, got, c.want)
		}
		s.want(401, "GET", "/version", "", "Authorization: Bearer "+c.token)
	}
}

// ---- Keys

// TestTokensOutliveARestart checks that the signing key is kept in the data file.
func TestTokensOutliveARestart(t *testing.T) {
	t.Parallel()
	s := startShop(t, onSomeFile(t))
	token, transport := s.tokenFor(""), s.client.Transport
	s.restart()
	s.client.Transport = transport
	s.want(201, "POST", whoamiPath, whoamiBody, "Authorization: Bearer "+token)
}

// ---- Secrets that hold a token

const (
	shopSecrets = "/api/v1/namespaces/shop/secrets"
	mergePatch  = "Content-Type: application/merge-patch+json"
)

// tokenSecret returns the JSON of a Secret for an account's token. metadata are more members of its
// metadata.
func tokenSecret(account, metadata string) string {
	return `{"type":"kubernetes.io/service-account-token","metadata":{"annotations":{"kubernetes.io/service-account.name":"` + account + `"},` + metadata + `}}`
}

// filled waits until the Secret contains a token. It returns the Secret and the token.
func (s *testServer) filled(name string) (secret answer, token string) {
	s.t.Helper()
	apitest.WaitFor(s.t, "the token of Secret "+name, func() bool {
		secret = s.want(200, "GET", shopSecrets+"/"+name, "", masterToken)
		return secret.get("data.token").Exists()
	})
	text, _ := base64.StdEncoding.DecodeString(secret.get("data.token").String())
	return secret, string(text)
}

// TestTokenOfASecretIsFilledIn checks that the token does not expire. It becomes invalid if its
// Secret or its account is deleted, or if the Secret gets another token.
func TestTokenOfASecretIsFilledIn(t *testing.T) {
	t.Parallel()
	s := startShop(t)
	made := func(account, metadata string) (name, token string) {
		t.Helper()
		name = s.want(201, "POST", shopSecrets, tokenSecret(account, metadata), masterToken).get("metadata.name").String()
		_, token = s.filled(name)
		return name, token
	}
	one, first := made("app", `"name":"one"`)
	two, second := made("app", `"generateName":"two-"`)
	uid := s.want(200, "GET", shopAccounts+"/app", "", masterToken).get("metadata.uid").String()
	stored := s.want(200, "GET", shopSecrets+"/one", "", masterToken)
	if got := stored.get(`metadata.annotations.kubernetes\.io/service-account\.uid`).String(); got != uid || stored.get("data.namespace").String() != "c2hvcA==" {
		t.Errorf("the account %s is in %s", uid, stored.body)
	}
	alive := `system:serviceaccount:shop:app ["` + serviceaccount.DefaultIssuer + `"]`
	for name, token := range map[string]string{one: first, two: second} {
		if got := s.reviewOf(token); got != alive {
			t.Errorf("%s: %s", name, got)
		}
		if claims := claimsOf(t, token); claims.Get("exp").Exists() || claims.Get(`kubernetes\.io/serviceaccount/secret\.name`).String() != name {
			t.Errorf("claims %s", claims.Raw)
		}
	}
	s.want(200, "PATCH", shopSecrets+"/"+two, `{"data":{"token":"eA=="}}`, masterToken, mergePatch)
	s.want(200, "DELETE", shopSecrets+"/one", "", masterToken)
	for want, token := range map[string]string{"Token has been invalidated": first, "Token does not match server's copy": second} {
		if got := s.reviewOf(token); got != "[invalid bearer token, "+want+"]" {
			t.Errorf("%s, want %s", got, want)
		}
	}
	_, third := made("other", `"name":"three"`)
	s.want(200, "DELETE", shopAccounts+"/other", "", masterToken)
	if got := s.reviewOf(third); got != `[invalid bearer token, serviceaccounts "other" not found]` {
		t.Error(got)
	}
}

// TestSecretsGetTheirTokenLater checks that a Secret gets a token after the token was removed,
// after the account is created, and after the server starts. A Secret for an earlier account of the
// same name remains empty.
func TestSecretsGetTheirTokenLater(t *testing.T) {
	t.Parallel()
	s := startShop(t, onSomeFile(t), "--controllers=false")
	s.want(201, "POST", shopSecrets, tokenSecret("app", `"name":"found"`), masterToken)
	transport := s.client.Transport
	s.flags = append(s.flags, "--controllers=true")
	s.restart()
	s.client.Transport = transport
	_, first := s.filled("found")

	s.want(200, "PATCH", shopSecrets+"/found", `{"data":null}`, masterToken, mergePatch)
	apitest.WaitFor(t, "another token", func() bool { _, again := s.filled("found"); return again != first })

	s.want(201, "POST", shopSecrets, tokenSecret("late", `"name":"waits"`), masterToken)
	s.want(201, "POST", shopSecrets, strings.Replace(tokenSecret("late", `"name":"stale"`), `"annotations":{`, `"annotations":{"kubernetes.io/service-account.uid":"x",`, 1), masterToken)
	s.want(201, "POST", shopSecrets, tokenSecret("app", `"name":"now"`), masterToken)
	s.filled("now") // the other Secrets have been processed before this one
	if a := s.want(200, "GET", shopSecrets+"/waits", "", masterToken); a.get("data").Exists() {
		t.Errorf("filled without an account: %s", a.body)
	}
	s.want(201, "POST", shopAccounts, `{"metadata":{"name":"late"}}`, masterToken)
	s.filled("waits")
	s.want(201, "POST", shopSecrets, tokenSecret("late", `"name":"last"`), masterToken)
	s.filled("last")
	if a := s.want(200, "GET", shopSecrets+"/stale", "", masterToken); a.get("data").Exists() {
		t.Errorf("%s was filled", a.body)
	}
}

// TestWritesShowNoTokens checks that the permission to create Secrets is not sufficient to get a
// token.
func TestWritesShowNoTokens(t *testing.T) {
	t.Parallel()
	s := startShop(t)
	for _, verb := range []string{"create", "update"} {
		s.want(201, "POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/shop/roles",
			`{"metadata":{"name":"`+verb+`"},"rules":[{"apiGroups":[""],"resources":["secrets"],"verbs":["`+verb+`"]}]}`, masterToken)
		s.want(201, "POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/shop/rolebindings", `{"metadata":{"name":"`+verb+`"},
			"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"`+verb+`"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"eve"}]}`, masterToken)
	}
	eve := []string{masterToken, "Impersonate-User: eve"}
	silent := func(a answer) {
		t.Helper()
		if a.get("data").Exists() || a.get(`metadata.annotations.kubernetes\.io/service-account\.uid`).Exists() {
			t.Errorf("an answer tells %s", a.body)
		}
	}
	for _, query := range []string{"?dryRun=All", ""} {
		silent(s.want(201, "POST", shopSecrets+query, tokenSecret("app", `"name":"tok"`), eve...))
		silent(s.want(201, "POST", shopSecrets+query, tokenSecret("app", `"generateName":"tok-"`), eve...))
	}
	s.filled("tok")
	for _, query := range []string{"?dryRun=All", ""} {
		silent(s.want(200, "PUT", shopSecrets+"/tok"+query, tokenSecret("app", `"name":"tok"`), eve...))
	}
	s.want(403, "GET", shopSecrets+"/tok", "", eve...)
	s.want(403, "POST", shopAccounts+"/app/token", `{}`, eve...)
}

// ---- Discovery

// TestOthersCanVerifyTokens verifies tokens with the keys from /openid/v1/jwks alone, without any
// code of apilet.
func TestOthersCanVerifyTokens(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{
		"ES256": nil,
		"RS256": {"--service-account-signing-key-file=" + apitest.KeyFiles(t)["rsa"]},
	} {
		s := startShop(t, flags...)
		token := s.tokenFor("")
		config := s.want(200, "GET", "/.well-known/openid-configuration", "", masterToken)
		want := `{"issuer":"` + serviceaccount.DefaultIssuer + `","jwks_uri":"` + s.url + `/openid/v1/jwks","response_types_supported":["id_token"],` +
			`"subject_types_supported":["public"],"id_token_signing_alg_values_supported":["` + name + `"]}`
		if string(config.body) != want || config.header.Get("Cache-Control") != "public, max-age=3600" || config.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %v", config.body, config.header)
		}
		set := s.want(200, "GET", "/openid/v1/jwks", "", "Authorization: Bearer "+token) // all accounts may read it
		if set.header.Get("Content-Type") != "application/jwk-set+json" {
			t.Errorf("the keys come as %s", set.header.Get("Content-Type"))
		}
		if !verifiesAlone(t, set.get("keys.0"), token) {
			t.Errorf("%s does not verify a token", set.body)
		}
		s.want(405, "POST", "/openid/v1/jwks", "{}", masterToken)
		s.want(403, "GET", "/openid/v1/jwks", "")
	}
	s, _ := startTLS(t, "--service-account-issuer=not-a-url")
	if a := s.send("GET", "/.well-known/openid-configuration", "", masterToken); a.code != 404 {
		t.Errorf("an issuer that is no URL is described by %s", a.body)
	}
}

// verifiesAlone reports whether a JSON Web Key verifies a token's signature.
func verifiesAlone(t *testing.T, key gjson.Result, token string) bool {
	t.Helper()
	number := func(text string) *big.Int {
		b, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		return new(big.Int).SetBytes(b)
	}
	dot := strings.LastIndexByte(token, '.')
	sum := sha256.Sum256([]byte(token[:dot]))
	sig, err := base64.RawURLEncoding.DecodeString(token[dot+1:])
	if err != nil {
		t.Fatal(err)
	}
	if key.Get("kty").String() == "RSA" {
		public := &rsa.PublicKey{N: number(key.Get("n").String()), E: int(number(key.Get("e").String()).Int64())}
		return rsa.VerifyPKCS1v15(public, crypto.SHA256, sum[:], sig) == nil
	}
	public := &ecdsa.PublicKey{Curve: elliptic.P256(), X: number(key.Get("x").String()), Y: number(key.Get("y").String())}
	return key.Get("crv").String() == "P-256" && ecdsa.Verify(public, sum[:], new(big.Int).SetBytes(sig[:32]), new(big.Int).SetBytes(sig[32:]))
}

// ---- The plain port and confidential data

// TestPlainPortKnowsServiceAccounts checks that a token authenticates its account on the plain
// port. The token of a deleted account is rejected. Tokens that are not from this server are
// ignored.
func TestPlainPortKnowsServiceAccounts(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.want(201, "POST", "/api/v1/namespaces/default/serviceaccounts", `{"metadata":{"name":"app"}}`)
	token := s.want(201, "POST", "/api/v1/namespaces/default/serviceaccounts/app/token", `{}`).get("status.token").String()
	who := func(headers ...string) string {
		return s.want(201, "POST", whoamiPath, whoamiBody, headers...).get("status.userInfo.username").String()
	}
	if got := who("Authorization: Bearer " + token); got != "system:serviceaccount:default:app" {
		t.Errorf("a service account is %s", got)
	}
	if got := who("Authorization: Bearer other"); got != request.UserUnsecured {
		t.Errorf("a token of nobody here is %s", got)
	}
	if got := who(); got != request.UserUnsecured {
		t.Errorf("without token: %s", got)
	}
	s.want(200, "DELETE", "/api/v1/namespaces/default/serviceaccounts/app", "")
	s.want(401, "POST", whoamiPath, whoamiBody, "Authorization: Bearer "+token)
}

// TestSecretsAreNeverTold checks that secrets do not appear in the log, in the audit log, in
// metrics, or in responses to other clients.
func TestSecretsAreNeverTold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	audit, kubeconfig := filepath.Join(dir, "audit"), filepath.Join(dir, "kubeconfig")
	tokens := apitest.TempFile(t, "tokens", "root-token,root,1,system:masters\nbob-token,bob,2\n")
	s := startTest(t, "--v=9", "--audit-log-path="+audit, "--kubeconfig="+kubeconfig, "--cert-dir="+filepath.Join(dir, "certs"), "--token-auth-file="+tokens)
	s.client, _ = kubetest.KubeconfigClient(t, kubeconfig)
	s.want(201, "POST", "/api/v1/namespaces", `{"metadata":{"name":"shop"}}`)
	s.want(201, "POST", shopAccounts, `{"metadata":{"name":"app"}}`)
	token := s.want(201, "POST", shopAccounts+"/app/token", `{}`).get("status.token").String()
	secrets := map[string]string{"the account's token": token, "a stranger's token": "stranger-token", "a line of the token file": "bob-token",
		"a new line": "new-token", "the account's signature": token[strings.LastIndexByte(token, '.')+1:], "a secret's data": "c2VjcmV0LWRhdGE="}
	for _, name := range []string{"ca.key", "apiserver.key"} {
		secrets[name] = strings.Split(string(apitest.ReadFile(t, filepath.Join(dir, "certs", name))), "\n")[1]
	}
	secrets["the administrator's key"] = gjson.GetBytes(apitest.ReadFile(t, kubeconfig), "users.0.user.client-key-data").String()
	plain := s.withoutCertificate
	var answers bytes.Buffer
	for _, header := range []string{token, token[:len(token)-4], token + "x", "stranger-token", "bob-token", " bob-token"} {
		for _, path := range []string{"/api/v1/pods", "/metrics", "/api/v1/namespaces/shop/serviceaccounts/app/token", "/version?token=" + "x"} {
			answers.Write(plain("GET", path, "", header))
			answers.Write(plain("POST", path, "{broken", header))
		}
	}
	for _, review := range []string{token, token + "x", "stranger-token", "bob-token"} {
		reviewed := s.want(201, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", `{"spec":{"token":"`+review+`"}}`)
		// The spec is a copy of the client's request.
		answers.WriteString(reviewed.get("status").Raw)
		// The error quotes the token, but only to the client that sent it.
		s.want(400, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", `{"spec":{"token":"`+review+`"`)
	}
	s.want(201, "POST", "/api/v1/namespaces/shop/secrets", `{"metadata":{"name":"s"},"data":{"x":"c2VjcmV0LWRhdGE="}}`)
	apitest.WriteFile(t, tokens, []byte("new-token\n"))
	plain("GET", "/version", "", "new-token")
	answers.Write(s.want(200, "GET", "/metrics", "").body)
	answers.Write(s.want(200, "GET", "/debug/deprecations", "").body)
	s.halt()
	events := apitest.ReadFile(t, audit)
	if len(s.log.String()) < 1000 || len(events) < 1000 {
		t.Fatalf("%d bytes of log, %d of audit: this test sees nothing", len(s.log.String()), len(events))
	}
	for what, secret := range secrets {
		for where, text := range map[string]string{"the log": s.log.String(), "the audit log": string(events), "an answer": answers.String()} {
			if strings.Contains(text, secret) {
				t.Errorf("%s is in %s", what, where)
			}
		}
	}
	if !strings.Contains(string(events), `"authentication.kubernetes.io/issued-credential-id":"JTI=`+claimsOf(t, token).Get("jti").String()) {
		t.Error("the audit log does not name the credential that was issued")
	}
}

// withoutCertificate sends a request with a bearer token, but without the administrator's
// certificate, and returns the response body.
func (s *testServer) withoutCertificate(method, path, body, token string) []byte {
	s.t.Helper()
	config := s.client.Transport.(*http.Transport).TLSClientConfig.Clone()
	config.Certificates, config.NextProtos = nil, nil
	bare := &testServer{t: s.t, url: s.url, client: &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}}
	a, err := bare.try(method, path, body, "Authorization: Bearer "+token)
	if err != nil {
		s.t.Fatal(err)
	}
	return a.body
}

// TestWhatADataFileGivesAway checks which confidential data a stolen data file contains. It
// contains every Secret. It also contains the key for signing account tokens, unless the key is in
// a separate file. It must not contain any other credentials.
func TestWhatADataFileGivesAway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	signing := apitest.KeyFiles(t)["p256"]
	for _, keyFile := range []string{"", signing} {
		path := filepath.Join(dir, fmt.Sprint("data", len(keyFile), ".db"))
		s := startShop(t, onFile(path), "--service-account-signing-key-file="+keyFile)
		s.want(201, "POST", "/api/v1/namespaces/shop/secrets", `{"metadata":{"name":"open"},"data":{"x":"c2VjcmV0LWRhdGE="}}`, masterToken)
		token := s.tokenFor("")
		s.halt()
		if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
			t.Errorf("the file has mode %v", info.Mode())
		}
		file := apitest.ReadFile(t, path)
		tlsKey, _ := pem.Decode(apitest.ReadFile(t, s.flag("tls-private-key-file")))
		for what, c := range map[string]struct {
			secret []byte
			in     bool
		}{
			"a Secret":                      {[]byte("c2VjcmV0LWRhdGE="), true},
			"the service accounts' key":     {[]byte("secret/service-account-key"), keyFile == ""},
			"a token that was issued":       {[]byte(token), false},
			"a line of the token file":      {[]byte("root-token"), false},
			"the certificate's private key": {tlsKey.Bytes, false},
		} {
			if got := bytes.Contains(file, c.secret); got != c.in {
				t.Errorf("signing with %q: %s is in the data file: %v", keyFile, what, got)
			}
		}
	}
}
