package serviceaccount

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/tidwall/gjson"
	authenticationv1 "k8s.io/api/authentication/v1"

	"apilet/internal/store"
)

// TestTokenOfADeletedPodLastsAMinute beyond the pod's time, when its finalizers keep it here.
func TestTokenOfADeletedPodLastsAMinute(t *testing.T) {
	now := time.Now()
	for title, c := range map[string]struct {
		object string
		gone   bool
	}{
		"not deleted": {`{"metadata":{}}`, false},
		"in grace":    {`{"metadata":{"deletionTimestamp":"` + now.Add(time.Minute).UTC().Format(time.RFC3339) + `"}}`, false},
		"just now":    {`{"metadata":{"deletionTimestamp":"` + now.Add(-30*time.Second).UTC().Format(time.RFC3339) + `"}}`, false},
		"long ago":    {`{"metadata":{"deletionTimestamp":"` + now.Add(-90*time.Second).UTC().Format(time.RFC3339) + `"}}`, true},
	} {
		if got := deletedBy(gjson.Parse(c.object), now.Add(-tokenLeeway)); got != c.gone {
			t.Errorf("%s: %v", title, got)
		}
	}
}

// FuzzAccountToken: whatever is shown, check ends, and lets in nothing that the key has not signed.
func FuzzAccountToken(f *testing.F) {
	key, err := parseKey(pemOfKey(f))
	if err != nil {
		f.Fatal(err)
	}
	tokens := &Tokens{issuers: []string{DefaultIssuer}, Audiences: []string{DefaultIssuer}, signer: key, keys: []accountKey{key}}
	good, _ := tokens.sign(&tokenClaims{RegisteredClaims: jwt.RegisteredClaims{Issuer: DefaultIssuer}})
	head, rest, _ := strings.Cut(good, ".")
	f.Add(rest[:len(rest)-3] + "abc")
	f.Add("e30.")
	f.Fuzz(func(t *testing.T, rest string) {
		token := head + "." + rest
		if token == good || strings.Contains(rest, "\n") {
			return
		}
		if claims, err := tokens.verified(context.Background(), token); err == nil {
			t.Errorf("%q was let in as %+v", token, claims)
		}
		claimedIssuer(rest)
	})
}

func pemOfKey(t testing.TB) *pem.Block {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &pem.Block{Type: "PRIVATE KEY", Bytes: der}
}

// TestRememberedSignaturesAreBounded, in number and in size.
func TestRememberedSignaturesAreBounded(t *testing.T) {
	tokens, err := New(openTestStore(t, filepath.Join(t.TempDir(), "a.db")), Config{Issuers: []string{"https://i"}})
	if err != nil {
		t.Fatal(err)
	}
	sign := func(id string) string {
		token, _ := tokens.sign(&tokenClaims{RegisteredClaims: jwt.RegisteredClaims{Issuer: "https://i", ID: id}})
		return token
	}
	for i := range maxKnownTokens {
		tokens.known[sha256.Sum256([]byte{byte(i), byte(i >> 8)})] = &tokenClaims{}
	}
	if _, err := tokens.verified(context.Background(), sign("one more")); err != nil || len(tokens.known) != 1 {
		t.Errorf("%v, and %d tokens are remembered", err, len(tokens.known))
	}
	clear(tokens.known)
	if _, err := tokens.verified(context.Background(), sign(strings.Repeat("x", maxKnownToken))); err != nil || len(tokens.known) != 0 {
		t.Errorf("%v, and %d large tokens are remembered", err, len(tokens.known))
	}
}

// TestRejectedTokensCostOneCheck: a client that repeats a forged token makes the server check one signature, and a good token is not affected.
func TestRejectedTokensCostOneCheck(t *testing.T) {
	tokens, err := New(openTestStore(t, filepath.Join(t.TempDir(), "a.db")), Config{Issuers: []string{"https://i"}})
	if err != nil {
		t.Fatal(err)
	}
	good, _ := tokens.sign(&tokenClaims{RegisteredClaims: jwt.RegisteredClaims{Issuer: "https://i"}})
	forged := good[:len(good)-4] + "AAAA"
	for range 50 {
		if _, err := tokens.verified(context.Background(), forged); err != errInvalidSignature {
			t.Fatal(err)
		}
	}
	if n := tokens.gate.Checks(); n != 1 {
		t.Errorf("%d checks for one token", n)
	}
	if _, err := tokens.verified(context.Background(), good); err != nil {
		t.Error(err)
	}
}

// TestCriticalExtensionsAreRefused, even if the server's own key has signed the token.
func TestCriticalExtensionsAreRefused(t *testing.T) {
	tokens, err := New(openTestStore(t, filepath.Join(t.TempDir(), "a.db")), Config{Issuers: []string{"https://i"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, extension := range []string{"", "crit"} {
		token := jwt.NewWithClaims(tokens.signer.method, jwt.RegisteredClaims{Issuer: "https://i"})
		if extension != "" {
			token.Header[extension] = []string{"b64"}
		}
		signed, err := token.SignedString(tokens.signer.private)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tokens.verified(context.Background(), signed); (extension == "") != (err == nil) {
			t.Errorf("%q: %v", extension, err)
		}
	}
}

// TestTokensCountWhileTheirObjectsDo: a token is good for its audience and in its time, as long as its account and the object that it is
// bound to are those that it names.
func TestTokensCountWhileTheirObjectsDo(t *testing.T) {
	st := openTestStore(t, filepath.Join(t.TempDir(), "a.db"))
	tokens, err := New(st, Config{Issuers: []string{"https://i"}})
	if err != nil {
		t.Fatal(err)
	}
	storeObject := func(key, uid, rest string) {
		head := `{"metadata":{"resourceVersion":"`
		change := store.Change{Op: store.OpCreate, Key: key, JSON: []byte(head + `","uid":"` + uid + `"}` + rest + `}`), RevAt: len(head)}
		if _, err := st.Commit(t.Context(), change); err != nil {
			t.Fatal(err)
		}
	}
	now, hour := st.Now(), time.Hour
	claims := func(edit func(*tokenClaims)) *tokenClaims {
		c := &tokenClaims{Bound: &boundClaims{Namespace: "n", Account: objectID{"a", "ua"}}, RegisteredClaims: jwt.RegisteredClaims{Issuer: "https://i",
			Audience: []string{"https://i"}, NotBefore: jwt.NewNumericDate(now), IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(hour))}}
		edit(c)
		return c
	}
	legacy := &tokenClaims{RegisteredClaims: jwt.RegisteredClaims{Issuer: legacyIssuer, Subject: serviceAccountName("n", "a")},
		legacyClaims: legacyClaims{Namespace: "n", SecretName: "s", AccountName: "a", AccountUID: "ua"}}
	kept, err := tokens.sign(legacy)
	if err != nil {
		t.Fatal(err)
	}
	storeObject("//serviceaccounts/n/a", "ua", "")
	storeObject("//serviceaccounts/n/b", "ub", "")
	storeObject("//pods/n/p", "up", `,"spec":{"serviceAccountName":"a"}`)
	storeObject("//secrets/n/s", "us", `,"data":{"token":"`+base64.StdEncoding.EncodeToString([]byte(kept))+`"}`)
	storeObject("//nodes//m", "um", "")
	legacy.ID = "another"
	for title, c := range map[string]struct {
		claims *tokenClaims
		want   string // part of the error; "" if there is none
	}{
		"good":                        {claims(func(*tokenClaims) {}), ""},
		"expired within the leeway":   {claims(func(c *tokenClaims) { c.ExpiresAt = jwt.NewNumericDate(now.Add(-30 * time.Second)) }), ""},
		"expired":                     {claims(func(c *tokenClaims) { c.ExpiresAt = jwt.NewNumericDate(now.Add(-90 * time.Second)) }), "has expired"},
		"too early":                   {claims(func(c *tokenClaims) { c.NotBefore = jwt.NewNumericDate(now.Add(hour)) }), "not valid yet"},
		"issued in the future":        {claims(func(c *tokenClaims) { c.IssuedAt = jwt.NewNumericDate(now.Add(hour)) }), "in the future"},
		"another audience":            {claims(func(c *tokenClaims) { c.Audience = []string{"vault"} }), "is invalid for the target audiences"},
		"an account of the past":      {claims(func(c *tokenClaims) { c.Bound.Account.UID = "old" }), "does not match claim"},
		"no account":                  {claims(func(c *tokenClaims) { c.Bound.Account.Name = "x" }), "not found"},
		"a pod":                       {claims(func(c *tokenClaims) { c.Bound.Pod = &objectID{"p", "up"} }), ""},
		"a pod and a node that left":  {claims(func(c *tokenClaims) { c.Bound.Pod, c.Bound.Node = &objectID{"p", "up"}, &objectID{"x", "ux"} }), ""},
		"a pod of the past":           {claims(func(c *tokenClaims) { c.Bound.Pod = &objectID{"p", "old"} }), "does not match"},
		"a pod that is gone":          {claims(func(c *tokenClaims) { c.Bound.Pod = &objectID{"x", "ux"} }), "invalidated"},
		"a secret of the past":        {claims(func(c *tokenClaims) { c.Bound.Secret = &objectID{"s", "old"} }), "does not match"},
		"a node":                      {claims(func(c *tokenClaims) { c.Bound.Node = &objectID{"m", "um"} }), ""},
		"a node of the past":          {claims(func(c *tokenClaims) { c.Bound.Node = &objectID{"m", "old"} }), "does not match"},
		"another token of the secret": {legacy, "does not match server's copy"},
	} {
		token, err := tokens.sign(c.claims)
		if err != nil {
			t.Fatal(err)
		}
		id, err := tokens.Check(t.Context(), token, []string{"https://i"})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v; want %q", title, id, err, c.want)
		}
	}
	if id, err := tokens.Check(t.Context(), kept, []string{"https://i"}); err != nil || id.UID != "ua" {
		t.Errorf("the secret's token: %+v, %v", id, err)
	}
}

// TestTokenRequestsAreChecked: a token lasts ten minutes at least, and is bound to a pod of its account alone.
func TestTokenRequestsAreChecked(t *testing.T) {
	st := openTestStore(t, filepath.Join(t.TempDir(), "a.db"))
	tokens, err := New(st, Config{Issuers: []string{"https://i"}})
	if err != nil {
		t.Fatal(err)
	}
	for key, rest := range map[string]string{"//serviceaccounts/n/a": "", "//pods/n/own": `,"spec":{"serviceAccountName":"a"}`, "//pods/n/other": `,"spec":{"serviceAccountName":"b"}`} {
		head := `{"metadata":{"resourceVersion":"`
		if _, err := st.Commit(t.Context(), store.Change{Op: store.OpCreate, Key: key, JSON: []byte(head + `","uid":"u"}` + rest + `}`), RevAt: len(head)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		pod     string
		seconds int64
		want    string // part of the error; "" if there is none
	}{
		{"", minTokenLife, ""}, {"", minTokenLife - 1, "less than 10 minutes"}, {"", maxTokenLife, ""}, {"", maxTokenLife + 1, "larger than 2^32 seconds"},
		{"own", minTokenLife, ""}, {"other", minTokenLife, "different serviceaccount name"}, {"none", minTokenLife, "not found"},
	} {
		obj := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &c.seconds}}
		if c.pod != "" {
			obj.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: c.pod}
		}
		_, err := tokens.Request(obj, "n", "a")
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("pod %q, %d seconds: %v, want %q", c.pod, c.seconds, err, c.want)
		}
	}
}
