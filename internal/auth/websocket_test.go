package auth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"apilet/internal/apitest"
	"apilet/internal/request"
)

// TestHandshakesCarryTokens expects the answers of kube-apiserver 1.37.
func TestHandshakesCarryTokens(t *testing.T) {
	ca, file := apitest.NewCA(t)
	a := testAuthenticator(t, func(cfg *Config) { cfg.ClientCAFile = file })
	carol := ca.Issue(t, pkix.Name{CommonName: "carol"}, time.Hour, x509.ExtKeyUsageClientAuth)
	shown := func(token string) string { return bearerProtocol + base64.RawURLEncoding.EncodeToString([]byte(token)) }
	bob, browser := shown("bob-token"), "Origin: https://console.example\nUser-Agent: Mozilla/5.0\nAccept-Language: en\nSec-Fetch-Site: cross-site\n"
	const upgrade, other = "Connection: keep-alive, Upgrade\nUpgrade: websocket\nSec-WebSocket-Protocol: ", "v5.channel.k8s.io"
	for _, c := range []struct {
		name, headers, user string // user "" is a 401
		cert                *x509.Certificate
		left                string // of the subprotocols
	}{
		{"first", upgrade + bob + ", " + other, "bob", nil, other},
		{"last", upgrade + other + "," + bob, "bob", nil, other},
		{"on a line of its own", upgrade + bob + "\nSec-WebSocket-Protocol: " + other + ", x", "bob", nil, other + ",x"},
		{"of a page of another site, which knows the token", browser + upgrade + bob + "," + other, "bob", nil, other},
		{"empty", upgrade + bearerProtocol + "," + other, "system:anonymous", nil, other},
		{"without a handshake", strings.Replace(upgrade, "Upgrade: websocket\n", "", 1) + bob + "," + other, "system:anonymous", nil, other},
		{"for another protocol", strings.Replace(upgrade, "websocket", "SPDY/3.1", 1) + bob + "," + other, "system:anonymous", nil, other},
		{"beside a good header", "Authorization: Bearer root-token\n" + upgrade + bob + "," + other, "root", nil, other},
		{"malformed beside a good header", "Authorization: Bearer root-token\n" + upgrade + bearerProtocol + "=," + other, "root", nil, other},
		{"beside a certificate", upgrade + bob + "," + other, "carol", carol, other},
		{"malformed beside a certificate", upgrade + bearerProtocol + "=," + other, "carol", carol, other},

		{"unknown", upgrade + shown("no-token") + "," + other, "", nil, ""},
		{"alone", upgrade + bob, "", nil, ""},
		{"twice", upgrade + bob + "," + bob + "," + other, "", nil, ""},
		{"with padding", upgrade + bearerProtocol + "Ym9iLXRva2VuAA==," + other, "", nil, ""},
		{"not UTF-8", upgrade + shown("\xff") + "," + other, "", nil, ""},
	} {
		rec := &request.Request{}
		r := httptest.NewRequest("GET", "/api", nil).WithContext(context.WithValue(t.Context(), request.Key{}, rec))
		for line := range strings.SplitSeq(strings.TrimSuffix(c.headers, "\n"), "\n") {
			name, value, _ := strings.Cut(line, ": ")
			r.Header.Add(name, value)
		}
		if c.cert != nil {
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c.cert}}
		}
		w, left := httptest.NewRecorder(), []string(nil)
		a.Authenticate(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { left = r.Header[protocolHeader] })).ServeHTTP(w, r)
		if code := w.Code; (code == 401) != (c.user == "") || rec.User.Name != c.user || strings.Join(left, ";") != c.left {
			t.Errorf("%s: got %d, user %q, subprotocols %q, want %q and %q", c.name, code, rec.User.Name, left, c.user, c.left)
		}
	}
}
