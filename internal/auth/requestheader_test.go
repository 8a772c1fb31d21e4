package auth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"apilet/internal/apitest"
	"apilet/internal/request"
)

// TestNobodyIsBelievedInPlaceOfAProxy attacks the headers of proxies: only a certificate of the proxies' authority, with an allowed name, for clients
// and in its time, makes them count, and only in their exact spelling. Behind the authentication they are gone.
func TestNobodyIsBelievedInPlaceOfAProxy(t *testing.T) {
	proxyCA, proxyFile := apitest.NewCA(t)
	clientCA, clientFile := apitest.NewCA(t)
	a, err := New(Config{Anonymous: true, ClientCAFile: clientFile, Log: zerolog.Nop(), RequestHeader: RequestHeader{ClientCAFile: proxyFile, AllowedNames: []string{"proxy"},
		Users: []string{"X-Remote-User"}, UIDs: []string{"X-Remote-Uid"}, Groups: []string{"X-Remote-Group"}, Extras: []string{"X-Remote-Extra-"}}})
	if err != nil {
		t.Fatal(err)
	}
	const forClients, forServers = x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth
	issue := func(ca apitest.CA, name string, valid time.Duration, usage x509.ExtKeyUsage) []*x509.Certificate {
		return []*x509.Certificate{ca.Issue(t, pkix.Name{CommonName: name}, valid, usage)}
	}
	proxy := issue(proxyCA, "proxy", time.Hour, forClients)
	const root, masters = "X-Remote-User: root", "X-Remote-Group: system:masters"
	for title, c := range map[string]struct {
		shown   []*x509.Certificate
		headers []string
		want    string // name and groups; "": refused
	}{
		"the proxy":                      {proxy, []string{root, masters}, "root [system:masters system:authenticated]"},
		"nobody":                         {nil, []string{root, masters}, "system:anonymous [system:unauthenticated]"},
		"a client":                       {issue(clientCA, "alice", time.Hour, forClients), []string{root, masters}, "alice [system:authenticated]"},
		"a client of the proxy's name":   {issue(clientCA, "proxy", time.Hour, forClients), []string{root, masters}, "proxy [system:authenticated]"},
		"another name":                   {issue(proxyCA, "Proxy", time.Hour, forClients), []string{root, masters}, ""},
		"no name":                        {issue(proxyCA, "", time.Hour, forClients), []string{root, masters}, ""},
		"a longer name":                  {issue(proxyCA, "proxy.evil", time.Hour, forClients), []string{root, masters}, ""},
		"two names":                      {[]*x509.Certificate{proxyCA.Issue(t, pkix.Name{CommonName: "proxy", OrganizationalUnit: []string{"x"}, ExtraNames: []pkix.AttributeTypeAndValue{{Type: []int{2, 5, 4, 3}, Value: "evil"}}}, time.Hour, forClients)}, []string{root, masters}, ""},
		"a server's certificate":         {issue(proxyCA, "proxy", time.Hour, forServers), []string{root, masters}, ""},
		"an old certificate":             {issue(proxyCA, "proxy", -time.Minute, forClients), []string{root, masters}, ""},
		"behind another's certificate":   {append(issue(clientCA, "alice", time.Hour, forClients), proxy...), []string{root, masters}, "alice [system:authenticated]"},
		"underscores":                    {proxy, []string{"X_Remote_User: root", "X_Remote_Group: system:masters"}, ""},
		"underscores beside":             {proxy, []string{"X-Remote-User: alice", "X_Remote_User: root", "X_Remote_Group: system:masters", "X_Remote_Extra_A: b"}, "alice [system:authenticated]"},
		"two users":                      {proxy, []string{"X-Remote-User: alice", root}, "alice [system:authenticated]"},
		"an empty user":                  {proxy, []string{"X-Remote-User: ", masters}, ""},
		"groups alone":                   {proxy, []string{masters, "X-Remote-Uid: 7"}, ""},
		"empty groups":                   {proxy, []string{"X-Remote-User: alice", "X-Remote-Group: "}, "alice [system:authenticated]"},
		"a list in one header":           {proxy, []string{"X-Remote-User: alice", "X-Remote-Group: dev,system:masters"}, "alice [dev,system:masters system:authenticated]"},
		"other names of headers":         {proxy, []string{"Remote-User: root", "X-Forwarded-User: root", "X-Remote-Username: root"}, ""},
		"a header that hop-by-hop drops": {proxy, []string{"X-Remote-User: alice", "Connection: X-Remote-User", masters}, "alice [system:masters system:authenticated]"},
		"a prefix of extra and no name":  {proxy, []string{"X-Remote-User: alice", "X-Remote-Extra: a", "X-Remote-Extra-: b"}, "alice [system:authenticated]"},
	} {
		r := httptest.NewRequest("GET", "/api", nil)
		r.TLS = &tls.ConnectionState{PeerCertificates: c.shown}
		for _, header := range c.headers {
			name, value, _ := strings.Cut(header, ": ")
			r.Header.Add(name, value)
		}
		rec := &request.Request{}
		got := ""
		a.Authenticate(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			got = fmt.Sprint(rec.User.Name, " ", rec.User.Groups)
			for _, name := range []string{"X-Remote-User", "X-Remote-Uid", "X-Remote-Group", "X-Remote-Extra-"} {
				if len(r.Header[name]) > 0 {
					t.Errorf("%s: %s is left", title, name)
				}
			}
		})).ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithValue(t.Context(), request.Key{}, rec)))
		if got != c.want {
			t.Errorf("%s: it is %q, want %q", title, got, c.want)
		}
	}
}

// TestProxyHeadersOfAnyNameAreTakenOut, also those whose names an administrator has chosen.
func TestProxyHeadersOfAnyNameAreTakenOut(t *testing.T) {
	_, file := apitest.NewCA(t)
	a, err := New(Config{Anonymous: true, Log: zerolog.Nop(), RequestHeader: RequestHeader{ClientCAFile: file, Users: []string{"X-Company-User"}, UIDs: []string{"X-Company-Uid"},
		Groups: []string{"X-Company-Group"}, Extras: []string{"X-Company-Extra-"}}})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("GET", "/api", nil)
	for _, name := range []string{"X-Company-User", "X-Company-Uid", "X-Company-Group", "X-Company-Extra-Team", "X_company_user"} {
		r.Header.Set(name, "root")
	}
	r.Header.Set("Accept", "x")
	rec := &request.Request{}
	a.Authenticate(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if len(r.Header) != 1 || rec.User.Name != request.UserAnonymous {
			t.Errorf("%s, left over: %v", rec.User.Name, r.Header)
		}
	})).ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithValue(t.Context(), request.Key{}, rec)))
}
