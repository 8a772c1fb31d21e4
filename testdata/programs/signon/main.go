// Signon is a single sign-on for experiments: an issuer of tokens (OpenID Connect), a credential
// plug-in for kubectl, and an authorization webhook. The key, the certificate and the configuration
// files for the API server are stored in a directory. The program listens on a loopback port:
//
//	go run ./testdata/programs/signon -dir sso &     # authentication.yaml, authorization.yaml and webhook.kubeconfig are in sso
//	go run ./testdata/programs/signon -dir sso -login jane -groups dev,ops
//
// kubectl calls the second command (users: exec:). It prints an ExecCredential with a token for
// jane and does not require a password. A real plug-in such as kubelogin (int128/kubelogin) asks
// for a password or opens a browser. It uses the endpoints in flows.go (testdata/kubelogin.sh). The
// webhook answers SubjectAccessReviews: users in the group dev may read everything except for
// Secrets, and access to Secrets is denied regardless of roles.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

var (
	dir    = flag.String("dir", "sso", "the `folder` of the key, the certificate and the files")
	listen = flag.String("listen", "127.0.0.1:0", "`address` to serve on")
	login  = flag.String("login", "", "print a token for this `user` instead of serving")
	groups = flag.String("groups", "", "the user's `groups`, comma-separated")
	lasts  = flag.Duration("lasts", 10*time.Minute, "how long the token is good for")

	people   = flag.String("people", "jane=dev", "who may sign on by a form, with their groups: `jane=dev,ops;bob=`")
	password = flag.String("password", "sesame", "what they type there; it is the `same` for all")
)

func main() {
	flag.Parse()
	var err error
	if *dir, err = filepath.Abs(*dir); err != nil {
		log.Fatal(err)
	}
	if *login != "" {
		err = printCredential()
	} else {
		err = serve()
	}
	if err != nil {
		log.Fatal(err)
	}
}

func inDir(name string) string { return filepath.Join(*dir, name) }

// printCredential prints the output that kubectl expects from a plug-in.
func printCredential() error {
	text, err := os.ReadFile(inDir("key.pem"))
	if err != nil {
		return err
	}
	key, err := jwt.ParseECPrivateKeyFromPEM(text)
	if err != nil {
		return err
	}
	issuer, err := os.ReadFile(inDir("url"))
	if err != nil {
		return err
	}
	ends := time.Now().Add(*lasts)
	signed, err := sign(key, string(issuer), *login, strings.FieldsFunc(*groups, func(r rune) bool { return r == ',' }), "", ends)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
		"status": map[string]any{"token": signed, "expirationTimestamp": ends.UTC().Format(time.RFC3339)}})
}

// sign creates a token.
func sign(key *ecdsa.PrivateKey, issuer, user string, groups []string, nonce string, ends time.Time) (string, error) {
	claims := jwt.MapClaims{"iss": issuer, "aud": client, "sub": user, "iat": time.Now().Unix(), "exp": ends.Unix(), "groups": groups}
	if nonce != "" {
		claims["nonce"] = nonce
	}
	token := jwt.NewWithClaims(jwt.SigningMethodES256, claims)
	token.Header["kid"] = "1"
	return token.SignedString(key)
}

func serve() error {
	if err := os.MkdirAll(*dir, 0o700); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	certificate, authority, err := certify(key)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	url := "https://" + listener.Addr().String()
	if err := writeFiles(key, url, string(authority)); err != nil {
		return err
	}
	log.Printf("%s signs tokens; its files are in %s", url, *dir)
	return http.Serve(tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{certificate}}), routes(key, url))
}

func certify(key *ecdsa.PrivateKey) (tls.Certificate, []byte, error) {
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "signon"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, DNSNames: []string{"localhost"},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), err
}

// writeFiles writes the server's files and the files for -login. The last file is written when all
// other files are complete.
func writeFiles(key *ecdsa.PrivateKey, url, authority string) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	indented := strings.ReplaceAll(strings.TrimSpace(authority), "\n", "\n      ")
	for _, file := range [][2]string{
		{"key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))},
		{"authority.pem", authority},
		{"authentication.yaml", `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer:
    url: ` + url + `
    audiences: [apilet]
    certificateAuthority: |
      ` + indented + `
  claimMappings:
    username: {expression: '"sso:" + claims.sub'}
    groups: {claim: groups, prefix: "sso:"}
  userValidationRules:
  - expression: "!user.username.startsWith('sso:system')"
    message: names of the system are not given out
anonymous:
  enabled: true
  conditions:
  - path: /livez
`},
		{"webhook.kubeconfig", fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"signon",
 "contexts":[{"name":"signon","context":{"cluster":"signon","user":"apilet"}}],"users":[{"name":"apilet","user":{}}],
 "clusters":[{"name":"signon","cluster":{"server":%q,"certificate-authority-data":%q}}]}
`, url+"/may", base64.StdEncoding.EncodeToString([]byte(authority)))},
		{"authorization.yaml", `apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Webhook
  name: signon
  webhook:
    timeout: 3s
    authorizedTTL: 1m
    unauthorizedTTL: 10s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: Deny
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: ` + inDir("webhook.kubeconfig") + `}
    matchConditions:
    - expression: request.user.startsWith('sso:')
- {type: RBAC, name: rbac}
`},
		{"url", url},
	} {
		if err := os.WriteFile(inDir(file[0]), []byte(file[1]), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func routes(key *ecdsa.PrivateKey, url string) http.Handler {
	mux := http.NewServeMux()
	(&desk{key: key, issuer: url, people: parsePeople(*people), grants: map[string]*grant{}, device: map[string]string{}}).routes(mux)
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, r *http.Request) {
		send(w, http.StatusOK, map[string]any{"issuer": url, "jwks_uri": url + "/keys", "id_token_signing_alg_values_supported": []string{"ES256"},
			"authorization_endpoint": url + "/authorize", "token_endpoint": url + "/token", "device_authorization_endpoint": url + "/device/code",
			"code_challenge_methods_supported": []string{"S256"}, "response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"}})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, r *http.Request) {
		number := func(n *big.Int) string { return base64.RawURLEncoding.EncodeToString(n.FillBytes(make([]byte, 32))) }
		send(w, http.StatusOK, map[string]any{"keys": []map[string]string{{"kty": "EC", "crv": "P-256", "kid": "1", "use": "sig", "alg": "ES256", "x": number(key.X), "y": number(key.Y)}}})
	})
	mux.HandleFunc("POST /may", func(w http.ResponseWriter, r *http.Request) {
		var review struct {
			APIVersion string `json:"apiVersion"`
			Spec       struct {
				User               string                           `json:"user"`
				Groups             []string                         `json:"groups"`
				ResourceAttributes *struct{ Verb, Resource string } `json:"resourceAttributes"`
			} `json:"spec"`
		}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		status := map[string]any{"allowed": false}
		if at := review.Spec.ResourceAttributes; at != nil {
			switch reads := slices.Contains([]string{"get", "list", "watch"}, at.Verb); {
			case at.Resource == "secrets":
				status = map[string]any{"allowed": false, "denied": true, "reason": "Secrets are nobody's business"}
			case reads && slices.Contains(review.Spec.Groups, "sso:dev"):
				status = map[string]any{"allowed": true, "reason": "developers may read"}
			}
		}
		log.Printf("%s asks for %v: %v", review.Spec.User, review.Spec.ResourceAttributes, status)
		send(w, http.StatusOK, map[string]any{"apiVersion": review.APIVersion, "kind": "SubjectAccessReview", "status": status})
	})
	return mux
}
