package oidc

// This file attacks the server as an issuer whose keys are expensive, and as clients who send tokens that no issuer has signed.

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/rs/zerolog"

	"apilet/internal/auth/signature"
)

// unsigned is a token with good claims and a signature of ones.
func (i *testIssuer) unsigned(kid string) string {
	encode := base64.RawURLEncoding.EncodeToString
	header := `{"alg":"RS256"}`
	if kid != "" {
		header = fmt.Sprintf(`{"alg":"RS256","kid":%q}`, kid)
	}
	return encode([]byte(header)) + "." + encode(fmt.Appendf(nil, `{"iss":%q,"aud":"apilet","exp":9999999999,"sub":"root"}`, i.URL)) + "." +
		encode([]byte(strings.Repeat("\x01", 256)))
}

// number is an odd number of so many bits: enough of a modulus for a check that fails.
func number(bits int) *big.Int {
	n, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), uint(bits-1)))
	return n.SetBit(n.SetBit(n, bits-1, 1), 0, 1)
}

func TestKeysThatAreExpensiveAreIgnored(t *testing.T) {
	encode := func(n *big.Int) string { return base64.RawURLEncoding.EncodeToString(n.Bytes()) }
	k := newKeys("https://i", "https://i/d", nil, zerolog.Nop())
	for _, c := range []struct {
		bits     int
		exponent int64
		used     int
	}{{2048, 65537, 1}, {8192, 65537, 1}, {8192, signature.MaxExponent, 1}, {8193, 65537, 0}, {16384, 65537, 0}, {2048, signature.MaxExponent + 2, 0},
		{2048, 1<<31 - 1, 0}, {2048, 1<<62 + 1, 0}, {2048, 1, 0}, {1023, 65537, 0}} {
		set := k.keySetOf([]jsonKey{{Type: "RSA", ID: "a", N: encode(number(c.bits)), E: encode(big.NewInt(c.exponent))}})
		if len(set.all) != c.used || len(set.byID) != c.used {
			t.Errorf("%d bits, exponent %d: %d keys are used, want %d", c.bits, c.exponent, len(set.all), c.used)
		}
	}
	huge := encode(number(8 << 16))
	if set := k.keySetOf([]jsonKey{{Type: "RSA", N: encode(number(2048)), E: huge}, {Type: "EC", Curve: "P-256", X: huge, Y: huge}}); len(set.all) != 0 {
		t.Errorf("%d keys of huge numbers are used", len(set.all))
	}
}

// TestForgedTokensCostFewChecks: 365 keys, and a token that names none, cost 16 checks once, however often it is sent.
func TestForgedTokensCostFewChecks(t *testing.T) {
	t.Parallel()
	i := startIssuer(t)
	for n := range 365 {
		i.keys[fmt.Sprint("r", n)] = &rsa.PublicKey{N: number(2048), E: 65537}
	}
	set := i.load(t, `"claimMappings":{"username":{"claim":"sub","prefix":""}}`)
	now := time.Now()
	set.issuers[0].now = func() time.Time { return now }
	checks := set.issuers[0].gate.Checks
	for _, c := range []struct {
		kid  string
		want int64
	}{{"", signature.MaxKeys}, {"r1", signature.MaxKeys + 1}, {"unknown", signature.MaxKeys + 1}} {
		for range 20 {
			if _, _, err := set.User(context.Background(), i.unsigned(c.kid)); err == nil {
				t.Fatal("a forged token is taken")
			}
		}
		if got := checks(); got != c.want {
			t.Errorf("key %q: %d checks so far, want %d", c.kid, got, c.want)
		}
	}
	// The EC key is one of 366, but the only one for its algorithm.
	token := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{"iss": i.URL, "aud": "apilet", "exp": 9999999999, "sub": "jane"})
	signed, err := token.SignedString(i.key)
	if err != nil {
		t.Fatal(err)
	}
	if u, _, err := set.User(context.Background(), signed); err != nil || u.Name != "jane" {
		t.Error(u, err)
	}
}

// TestRejectionsEndWithTheKeys: a token that was rejected is good as soon as its key is there.
func TestRejectionsEndWithTheKeys(t *testing.T) {
	t.Parallel()
	i, later := startIssuer(t), startIssuer(t)
	set := i.load(t, `"claimMappings":{"username":{"claim":"sub","prefix":""}}`)
	token := later.token(t, jwt.MapClaims{"iss": i.URL})
	if _, _, err := set.User(context.Background(), token); err == nil {
		t.Fatal("another issuer's signature is taken")
	}
	keys := set.issuers[0].keys
	if _, ok := keys.now().rejected.Get(sha256.Sum256([]byte(token)), time.Now()); !ok {
		t.Error("the rejection is not remembered")
	}
	keys.current.Store(&keySet{byID: map[string]crypto.PublicKey{"k1": &later.key.PublicKey}})
	if u, _, err := set.User(context.Background(), token); err != nil || u.Name != "jane" {
		t.Error(u, err)
	}
}

// TestRequestsThatEndedRejectNothing: a request that ended while it waited says nothing about its token.
func TestRequestsThatEndedRejectNothing(t *testing.T) {
	t.Parallel()
	i := startIssuer(t)
	set := i.load(t, `"claimMappings":{"username":{"claim":"sub","prefix":""}}`)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	token := i.token(t, nil)
	if _, _, err := set.User(ended, token); err == nil {
		t.Error("a signature was checked for nobody")
	}
	if _, _, err := set.User(context.Background(), token); err != nil {
		t.Error(err)
	}
}

func TestCriticalExtensionsAreRefused(t *testing.T) {
	t.Parallel()
	i := startIssuer(t)
	set := i.load(t, `"claimMappings":{"username":{"claim":"sub","prefix":""}}`)
	for _, critical := range []any{nil, []string{"b64"}, []string{"exp"}, []string{}} {
		token := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{"iss": i.URL, "aud": "apilet", "exp": 9999999999, "sub": "jane"})
		if token.Header["kid"] = "k1"; critical != nil {
			token.Header["crit"], token.Header["b64"] = critical, false
		}
		signed, err := token.SignedString(i.key)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := set.User(context.Background(), signed); (critical == nil) != (err == nil) {
			t.Errorf("crit %v: %v", critical, err)
		}
	}
}
