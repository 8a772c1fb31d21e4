package oidc

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/rs/zerolog"
)

const (
	issuerURL    = "https://issuer.example.com"
	discoveryURL = issuerURL + "/.well-known/openid-configuration"
)

// A network answers requests by their addresses, without a connection.
type network func(url string) (code int, location, body string)

func (n network) RoundTrip(r *http.Request) (*http.Response, error) {
	code, location, body := n(r.URL.String())
	if code == 0 {
		return nil, errors.New("refused")
	}
	return &http.Response{StatusCode: code, Header: http.Header{"Location": {location}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// jwk is an elliptic key of a name.
func jwk(id string) string {
	return `{"kty":"EC","kid":"` + id + `","crv":"P-256","x":"axfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5RdiYwpY","y":"T-NC4v4af5uO5-tKfA-eFivOM1drMV7Oy7ZAaDe_UfU"}`
}

// TestHostileIssuersGiveNoKeys checks each answer of an issuer that must not become keys.
func TestHostileIssuersGiveNoKeys(t *testing.T) {
	t.Parallel()
	document := fmt.Sprintf(`{"issuer":%q,"jwks_uri":%q}`, issuerURL, issuerURL+"/keys")
	keySet := `{"keys":[` + jwk("k") + `]}`
	good := network(func(url string) (int, string, string) {
		if url == discoveryURL {
			return 200, "", document
		}
		return 200, "", keySet
	})
	at := func(where string, code int, location, body string) network {
		return func(url string) (int, string, string) {
			if url == where {
				return code, location, body
			}
			return good(url)
		}
	}
	const keysURL = issuerURL + "/keys"
	for name, c := range map[string]struct {
		network network
		err     string // "" for one key
	}{
		"good":                     {good, ""},
		"redirected":               {at(keysURL, 302, "https://keys.example.com/", ""), ""},
		"redirected to plain text": {at(keysURL, 302, "http://keys.example.com/", ""), "redirects are not followed (to http://keys.example.com/)"},
		"redirected for ever":      {at(keysURL, 302, keysURL, ""), "not followed"},
		"another issuer":           {at(discoveryURL, 200, "", strings.Replace(document, issuerURL, issuerURL+"/x", 1)), "issuer did not match"},
		"keys in plain text":       {at(discoveryURL, 200, "", strings.Replace(document, keysURL, "http://issuer.example.com/keys", 1)), "which is not an https URL"},
		"keys in a file":           {at(discoveryURL, 200, "", strings.Replace(document, keysURL, "file:///etc/passwd", 1)), "which is not an https URL"},
		"no document":              {at(discoveryURL, 404, "", document), "status 404"},
		"another protocol":         {at(keysURL, 101, "", keySet), "status 101"},
		"no answer":                {at(keysURL, 0, "", ""), "refused"},
		"not JSON":                 {at(keysURL, 200, "", "<html>"), "invalid character"},
		"too long":                 {at(keysURL, 200, "", `{"keys":[]`+strings.Repeat(" ", maxDocumentBytes)+`}`), "bytes"},
		"too many keys":            {at(keysURL, 200, "", `{"keys":[`+strings.Repeat(`{},`, maxKeys)+jwk("k")+`]}`), "has more than"},
		"as many as may be":        {at(keysURL, 200, "", `{"keys":[`+strings.Repeat(`{},`, maxKeys-1)+jwk("k")+`]}`), ""},
	} {
		set, err := newKeys(issuerURL, discoveryURL, c.network, zerolog.Nop()).fetch(t.Context())
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) || err == nil && len(set.all) != 1 {
			t.Errorf("%s: got %v, %v; want %q", name, set, err, c.err)
		}
	}
}

// TestKeysThatAreNoneAreIgnored: a key that signs nothing, or is weak, is not used, and hides no
// other one.
func TestKeysThatAreNoneAreIgnored(t *testing.T) {
	t.Parallel()
	rsaKey := func(bits int, e string) string {
		return `{"kty":"RSA","kid":"k","n":"` + base64.RawURLEncoding.EncodeToString(bytes.Repeat([]byte{0xff}, bits/8)) + `","e":"` + e + `"}`
	}
	for key, usable := range map[string]bool{
		jwk("k"): true,
		strings.Replace(jwk("k"), `"crv"`, `"use":"sig","crv"`, 1): true,
		strings.Replace(jwk("k"), `"crv"`, `"use":"enc","crv"`, 1): false,
		strings.Replace(jwk("k"), "P-256", "P-224", 1):             false,
		strings.Replace(jwk("k"), "P-256", "P-384", 1):             false, // no point of this curve
		strings.Replace(jwk("k"), "axfR", "axfS", 1):               false, // likewise
		strings.Replace(jwk("k"), `"x":"`, `"x":"AAAA`, 1):         true,  // zeros before the number
		strings.Replace(jwk("k"), `"x":"`, `"x":"Zm9v`, 1):         false, // too long
		strings.Replace(jwk("k"), `"x":"`, `"x":"!`, 1):            false,
		`{"kty":"EC","kid":"k","crv":"P-256"}`:                     false,
		`{"kty":"oct","kid":"k","k":"c2VjcmV0"}`:                   false,
		`{"kid":"k"}`:                                              false,
		rsaKey(2048, "AQAB"):                                       true,
		rsaKey(1020, "AQAB"):                                       false,
		rsaKey(2048, "AQ"):                                         false, // the signature is the message
		rsaKey(2048, ""):                                           false,
		rsaKey(2048, "AQAAAAAAAAAB"):                               false,
		rsaKey(0, "AQAB"):                                          false,
	} {
		var list []jsonKey
		if err := json.Unmarshal([]byte("["+key+"]"), &list); err != nil {
			t.Fatal(err)
		}
		k := newKeys(issuerURL, discoveryURL, nil, zerolog.Nop())
		set := k.keySetOf(append(list, jsonKey{Type: "none", ID: "k"}))
		if got := len(set.all) == 1 && len(set.find("k")) == 1 && len(set.find("")) == 1; got != usable || !usable && len(set.all)+len(set.byID) > 0 {
			t.Errorf("%s: used %v, want %v", key, got, usable)
		}
	}
}

// A simulatedIssuer publishes one key, which a test changes, and keeps the log of the code that
// reads it.
type simulatedIssuer struct {
	mu    sync.Mutex // guards all fields
	fails bool
	id    string // of its key
	asked []time.Time
	log   bytes.Buffer
}

// answer is the issuer's side of a network.
func (i *simulatedIssuer) answer(url string) (int, string, string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if url != discoveryURL {
		return 200, "", `{"keys":[` + jwk(i.id) + `]}`
	}
	if i.asked = append(i.asked, time.Now()); i.fails {
		return 503, "", ""
	}
	return 200, "", fmt.Sprintf(`{"issuer":%q,"jwks_uri":%q}`, issuerURL, issuerURL+"/keys")
}

// Write appends to the log.
func (i *simulatedIssuer) Write(p []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.log.Write(p)
}

// set changes whether the issuer fails, and its key.
func (i *simulatedIssuer) set(fails bool, id string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.fails, i.id = fails, id
}

// seen returns the times of the requests and the log.
func (i *simulatedIssuer) seen() ([]time.Time, string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.asked), i.log.String()
}

// TestKeysAreAskedForSeldom: no issuer is asked twice within retryAfter, whoever sends tokens that
// name unknown keys. A new key is found nevertheless, and keys from before stay in force while the
// issuer fails.
func TestKeysAreAskedForSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		issuer := &simulatedIssuer{fails: true, id: "a"}
		k := newKeys(issuerURL, discoveryURL, network(issuer.answer), zerolog.New(issuer))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { k.run(ctx); close(ended) }()
		defer func() { cancel(); <-ended }()
		pause := func(d time.Duration) { // never at the instant of one of the timers
			time.Sleep(d + time.Millisecond)
			synctest.Wait()
		}
		pause(3 * retryAfter)
		if asked, log := issuer.seen(); len(asked) != 4 || k.now() != nil || strings.Count(log, "cannot fetch") != 1 {
			t.Errorf("asked %d times in three periods, log:\n%s", len(asked), log)
		}
		issuer.set(false, "a")
		pause(retryAfter)
		if _, log := issuer.seen(); k.now() == nil || strings.Count(log, "fetched") != 1 {
			t.Fatalf("the keys were not read again, log:\n%s", log)
		}
		pause(retryAfter)
		issuer.set(false, "b")
		if _, keys, err := k.named(ctx, "b"); err != nil || len(keys) != 1 {
			t.Errorf("a new key: %v", err)
		}
		for second := range 600 {
			issuer.set(second > 300, "b")
			for range 10 {
				if _, _, err := k.named(ctx, "c"); err == nil {
					t.Error("an unknown key is known")
				}
			}
			if _, keys, err := k.named(ctx, "b"); err != nil || len(keys) != 1 {
				t.Fatalf("a key that was read is gone: %v", err)
			}
			pause(time.Second)
		}
		asked, _ := issuer.seen()
		for i := range asked[1:] {
			if gap := asked[i+1].Sub(asked[i]); gap < retryAfter {
				t.Fatalf("asked again after %v", gap)
			}
		}
		if len(asked) < 20 {
			t.Errorf("asked %d times", len(asked))
		}
	})
}

// TestClaimsThatSayNothingAreRefused: a claim of another type than the configuration expects makes
// no user.
func TestClaimsThatSayNothingAreRefused(t *testing.T) {
	t.Parallel()
	i := startIssuer(t)
	for _, c := range []struct {
		config string
		claims jwt.MapClaims
		want   string // in the error; "": a user
	}{
		{`"claimMappings":{"username":{"claim":"sub","prefix":""}}`, jwt.MapClaims{}, ""},
		{`"claimMappings":{"username":{"claim":"sub","prefix":""}}`, jwt.MapClaims{"sub": 7}, "parse username claims"},
		{`"claimMappings":{"username":{"claim":"sub","prefix":""}}`, jwt.MapClaims{"sub": nil}, "claim not present"},
		{`"claimMappings":{"username":{"claim":"email","prefix":""}}`, jwt.MapClaims{"email": "a@b", "email_verified": "true"}, "parse 'email_verified' claim"},
		{`"claimMappings":{"username":{"claim":"email","prefix":""}}`, jwt.MapClaims{"email": "a@b", "email_verified": false}, "email not verified"},
		{`"claimMappings":{"username":{"claim":"sub","prefix":""},"groups":{"claim":"groups","prefix":""}}`, jwt.MapClaims{"groups": map[string]any{"a": "system:masters"}}, "parse groups claim"},
		{`"claimMappings":{"username":{"claim":"sub","prefix":""},"groups":{"claim":"groups","prefix":""}}`, jwt.MapClaims{"groups": []any{"a", 7}}, "parse groups claim"},
		{`"claimMappings":{"username":{"claim":"sub","prefix":""},"uid":{"claim":"uid"}}`, jwt.MapClaims{"uid": 7}, "parse uid claim"},
		{`"claimMappings":{"username":{"expression":"dyn(claims.name)"}}`, jwt.MapClaims{"name": ""}, "empty username via CEL expression is not allowed"},
		{`"claimMappings":{"username":{"expression":"dyn(claims.name)"}}`, jwt.MapClaims{"name": 7}, "username claim expression must return a string"},
		{`"claimMappings":{"username":{"expression":"dyn(claims.name)"}}`, jwt.MapClaims{}, "no such key"},
		{`"claimMappings":{"username":{"claim":"sub","prefix":""},"groups":{"expression":"dyn(claims.roles)"}}`, jwt.MapClaims{"roles": 7}, "must return a string or a list of strings"},
		{`"claimMappings":{"username":{"claim":"sub","prefix":""},"groups":{"expression":"dyn(claims.roles)"}}`, jwt.MapClaims{"roles": []any{"a", []any{"b"}}}, "must return a string or a list of strings"},
		{`"claimMappings":{"username":{"claim":"sub","prefix":""},"groups":{"expression":"dyn(claims.roles)"}}`, jwt.MapClaims{"roles": "a"}, ""},
		{`"claimMappings":{"username":{"claim":"sub","prefix":""},"groups":{"expression":"dyn(claims.roles).map(r, r.a)"}}`, jwt.MapClaims{"roles": 7}, "error evaluating group claim expression"},
		{`"claimMappings":{"username":{"claim":"sub","prefix":""},"extra":[{"key":"example.com/a","valueExpression":"dyn(claims.team)"}]}`, jwt.MapClaims{"team": map[string]any{}}, "error evaluating extra claim expression"},
		{`"claimMappings":{"username":{"claim":"sub","prefix":""},"extra":[{"key":"example.com/a","valueExpression":"dyn(claims.team)"}]}`, jwt.MapClaims{}, "no such key"},
		{`"claimMappings":{"username":{"claim":"sub","prefix":""}},"claimValidationRules":[{"claim":"hd","requiredValue":"x"}]`, jwt.MapClaims{}, "required claim hd not present"},
		{`"claimMappings":{"username":{"claim":"sub","prefix":""}},"claimValidationRules":[{"claim":"hd","requiredValue":"x"}]`, jwt.MapClaims{"hd": true}, "parse claim hd"},
		{`"claimMappings":{"username":{"claim":"sub","prefix":""}},"claimValidationRules":[{"claim":"hd","requiredValue":"x"}]`, jwt.MapClaims{"hd": "y"}, "value does not match"},
		{`"claimMappings":{"username":{"claim":"sub","prefix":""}},"claimValidationRules":[{"expression":"dyn(claims.ok) == true","message":"not so"}]`, jwt.MapClaims{"ok": false}, "failed: not so"},
		{`"claimMappings":{"username":{"claim":"sub","prefix":""}},"userValidationRules":[{"expression":"!user.username.startsWith('system:')","message":"reserved"}]`, jwt.MapClaims{"sub": "system:admin"}, "failed: reserved"},
	} {
		set := i.load(t, c.config)
		user, _, err := set.issuers[0].user(t.Context(), i.token(t, c.claims))
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || user.Name != "" || len(user.Groups) > 0) {
			t.Errorf("%s %v: got %q, %v; want %q", c.config, c.claims, user.Name, err, c.want)
		}
	}
}
