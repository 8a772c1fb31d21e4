package serviceaccount

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/tidwall/gjson"
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
