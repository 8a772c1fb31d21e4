package serviceaccount

import (
	"context"
	"encoding/pem"
	"path/filepath"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"
	authenticationv1 "k8s.io/api/authentication/v1"

	"apilet/internal/apitest"
	"apilet/internal/store"
)

// TestKeysOfEveryFormSignAndVerify: a token that one server signs with a private key is good for another that has the public one.
func TestKeysOfEveryFormSignAndVerify(t *testing.T) {
	t.Parallel()
	st, files := openTestStore(t, filepath.Join(t.TempDir(), "a.db")), apitest.KeyFiles(t)
	for private, c := range map[string]struct{ public, alg string }{
		"rsa": {"rsa.pub", "RS256"}, "p256": {"p256.pub", "ES256"}, "p384": {"p384.pub", "ES384"}, "p521": {"p521.pub", "ES512"}, "pkcs8": {"certificate", "ES256"},
	} {
		issuer, err := New(st, Config{SigningKeyFile: files[private], Issuers: []string{"https://i"}})
		if err != nil {
			t.Fatal(err)
		}
		token, err := issuer.sign(&tokenClaims{RegisteredClaims: jwt.RegisteredClaims{Issuer: "https://i"}})
		if err != nil {
			t.Fatal(err)
		}
		other, err := New(st, Config{KeyFiles: []string{files["rsa.pub"], files[c.public]}, Issuers: []string{"https://j", "https://i"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.verified(context.Background(), token); err != nil || issuer.signer.method.Alg() != c.alg {
			t.Errorf("%s (%s): %v", private, issuer.signer.method.Alg(), err)
		}
		alone, err := New(st, Config{Issuers: []string{"https://i"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := alone.verified(context.Background(), token); err != errNoKey {
			t.Errorf("%s: a server without the key says %v", private, err)
		}
	}
}

func TestWhichKeySigns(t *testing.T) {
	t.Parallel()
	st, files := openTestStore(t, filepath.Join(t.TempDir(), "a.db")), apitest.KeyFiles(t)
	for _, c := range []struct {
		title string
		cfg   Config
		alg   string
		keys  int
	}{
		{"the data file's", Config{}, "ES256", 1},
		{"the data file's beside a public one", Config{KeyFiles: []string{files["rsa.pub"]}}, "ES256", 2},
		{"a private one among those that verify", Config{KeyFiles: []string{files["p384.pub"], files["rsa"]}}, "RS256", 2},
		{"the signing one", Config{KeyFiles: []string{files["rsa"]}, SigningKeyFile: files["p521"]}, "ES512", 2},
		{"the signing one, once", Config{KeyFiles: []string{files["rsa.pub"]}, SigningKeyFile: files["rsa"]}, "RS256", 1},
	} {
		tokens, err := New(st, c.cfg)
		if err != nil || tokens.signer.method.Alg() != c.alg || len(tokens.keys) != c.keys {
			t.Errorf("%s: %v, %+v", c.title, err, tokens)
		}
	}
	for want, cfg := range map[string]Config{
		"--service-account-signing-key-file: open":                {SigningKeyFile: "/does/not/exist"},
		"contains no private key":                                 {SigningKeyFile: files["rsa.pub"]},
		"--service-account-key-file: open":                        {KeyFiles: []string{"/does/not/exist"}},
		"contains no PEM key":                                     {KeyFiles: []string{apitest.TempFile(t, "x", "secret-text")}},
		`a "DSA PRIVATE KEY" cannot sign tokens`:                  {KeyFiles: []string{apitest.TempFile(t, "x", "-----BEGIN DSA PRIVATE KEY-----\nc2VjcmV0\n-----END DSA PRIVATE KEY-----\n")}},
		"--service-account-key-file: " + files["rsa"] + "-broken": {KeyFiles: []string{broken(t, files["rsa"])}},
	} {
		_, err := New(st, cfg)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret-text") || strings.Contains(err.Error(), "BEGIN") {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// broken writes a PEM file whose contents is cut short.
func broken(t *testing.T, path string) string {
	t.Helper()
	block, _ := pem.Decode(apitest.ReadFile(t, path))
	block.Bytes = block.Bytes[:len(block.Bytes)/2]
	apitest.WriteFile(t, path+"-broken", pem.EncodeToMemory(block))
	return path + "-broken"
}

// BenchmarkAccountToken: with the signature remembered, and without.
func BenchmarkAccountToken(b *testing.B) {
	for name, forget := range map[string]bool{"remembered": false, "new": true} {
		b.Run(name, func(b *testing.B) {
			st := openTestStore(b, filepath.Join(b.TempDir(), "a.db"))
			const head = `{"metadata":{"name":"app","namespace":"default","uid":"u","resourceVersion":"`
			if _, err := st.Commit(b.Context(), store.Change{Op: store.OpCreate, Key: "//serviceaccounts/default/app", JSON: []byte(head + `"}}`), RevAt: len(head)}); err != nil {
				b.Fatal(err)
			}
			tokens, err := New(st, Config{Issuers: []string{DefaultIssuer}})
			if err != nil {
				b.Fatal(err)
			}
			var asked authenticationv1.TokenRequest
			if _, err := tokens.Request(&asked, "default", "app"); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if forget {
					clear(tokens.known)
				}
				if _, err := tokens.Check(b.Context(), asked.Status.Token, tokens.Audiences); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
