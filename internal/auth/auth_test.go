package auth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/auth/certs"
	"apilet/internal/auth/rbac"
	"apilet/internal/auth/serviceaccount"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store/storetest"
)

func TestListenNeedsLoopbackOrAnAuthenticator(t *testing.T) {
	for addr, insecureOK := range map[string]bool{
		"127.0.0.1:8080": true, "localhost:0": true, "[::1]:80": true, "127.9.9.9:1": true, "[::ffff:127.0.0.1]:1": true, "LOCALHOST.:1": true,
		"0.0.0.0:80": false, ":80": false, "[::]:80": false, "10.0.0.1:80": false, "example.com:80": false, "localhost.example.com:80": false,
	} {
		if err := (Config{Insecure: true}).CheckListen(addr); (err == nil) != insecureOK {
			t.Errorf("insecure %s: %v, want allowed=%v", addr, err, insecureOK)
		}
		if err := (Config{}).CheckListen(addr); err != nil {
			t.Errorf("with an authenticator %s: %v", addr, err)
		}
	}
	if err := (Config{}).CheckListen("8080"); err == nil {
		t.Error("an address without a port was accepted")
	}
}

// testAuthenticator knows bob-token (bob), dev-token (alice in dev) and root-token (system:masters).
func testAuthenticator(t *testing.T, edit func(*Config)) *Authenticator {
	t.Helper()
	cfg := Config{Anonymous: true, TokenFile: apitest.TempFile(t, "tokens.csv",
		"bob-token,bob,3\ndev-token,alice,2,\"dev,ops\"\nroot-token,root,1,system:masters\n")}
	if edit != nil {
		edit(&cfg)
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// status returns code and message of a Status error, 200 for nil.
func status(t *testing.T, err error) (int, string) {
	t.Helper()
	if err == nil {
		return 200, ""
	}
	as, ok := err.(apierrors.APIStatus)
	if !ok {
		t.Fatalf("%v is no Status error", err)
	}
	return int(as.Status().Code), as.Status().Message
}

func TestIdentifyByToken(t *testing.T) {
	for _, c := range []struct {
		header, name string
		groups       string
		code         int
	}{
		{"", request.UserAnonymous, request.GroupUnauthenticated, 200},
		{"Bearer bob-token", "bob", request.GroupAuthenticated, 200},
		{"bEARER bob-token", "bob", request.GroupAuthenticated, 200},
		{"  Bearer bob-token  ", "bob", request.GroupAuthenticated, 200},
		{"Bearer bob-token trailing words", "bob", request.GroupAuthenticated, 200},
		{"Bearer dev-token", "alice", "dev,ops," + request.GroupAuthenticated, 200},
		{"Bearer nope", "", "", 401},
		{"Bearer  bob-token", request.UserAnonymous, request.GroupUnauthenticated, 200}, // and a warning
		{"Bearer", request.UserAnonymous, request.GroupUnauthenticated, 200},
		{"Basic Ym9iOnB3", request.UserAnonymous, request.GroupUnauthenticated, 200},
	} {
		a := testAuthenticator(t, nil)
		r := httptest.NewRequest("GET", "/api", nil)
		r.Header.Set("Authorization", c.header)
		u, err := a.identify(r)
		if code, _ := status(t, err); code != c.code || u.Name != c.name || strings.Join(u.Groups, ",") != c.groups {
			t.Errorf("%q: %+v, %v; want %s in %s, %d", c.header, u, err, c.name, c.groups, c.code)
		}
	}
	if _, padded := bearerToken(http.Header{"Authorization": {"Bearer  x"}}); !padded {
		t.Error("two spaces before the token were not noticed")
	}
	closed := testAuthenticator(t, func(cfg *Config) { cfg.Anonymous = false })
	_, err := closed.identify(httptest.NewRequest("GET", "/api", nil))
	if code, text := status(t, err); code != 401 || text != "Unauthorized" {
		t.Errorf("without --anonymous-auth: %d %q", code, text)
	}
}

func TestTokenFileMistakesAreStartErrors(t *testing.T) {
	for text, want := range map[string]string{
		"a,b":                    "line 1",
		"x,bob,1\n\ny,bob\n":     "line 3",
		"x,bob,1\nx,alice,2\n":   "line 2",
		",bob,1\n":               "line 1",
		"x,bob,1,\"unfinished\n": "quote",
		"x,\"bo\"b,1\n":          "quote",
		"x,b,1,g\ny,\n":          "line 2",
	} {
		_, err := New(Config{TokenFile: apitest.TempFile(t, "tokens", text)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one about %s", text, err, want)
		}
	}
	if _, err := New(Config{TokenFile: "/does/not/exist"}); err == nil {
		t.Error("a missing token file was accepted")
	}
	if _, err := New(Config{ClientCAFile: apitest.TempFile(t, "ca", "no pem")}); err == nil {
		t.Error("a client CA file without certificates was accepted")
	}
	if _, err := New(Config{CORSOrigins: []string{"("}}); err == nil {
		t.Error("a broken regular expression was accepted")
	}
}

func TestTokenFileIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testAuthenticator(t, nil)
		replace := func(text string, age time.Duration) {
			os.WriteFile(a.cfg.TokenFile, []byte(text), 0o600)
			when := time.Now().Add(-age)
			os.Chtimes(a.cfg.TokenFile, when, when)
		}
		known := func(token string) bool {
			time.Sleep(certs.CheckInterval)
			_, ok := a.fileUser(token)
			return ok
		}
		replace("new-token,bob,3\n", time.Hour)
		if !known("new-token") || known("bob-token") {
			t.Error("the new file is not in use")
		}
		replace("broken", 2*time.Hour)
		if !known("new-token") {
			t.Error("a broken file emptied the table")
		}
		os.Remove(a.cfg.TokenFile)
		if !known("new-token") {
			t.Error("a missing file emptied the table")
		}
		replace("again,bob,3\n", 3*time.Hour)
		if !known("again") {
			t.Error("the repaired file is not in use")
		}
	})
}

func TestPlainPortKeepsForeignPagesOut(t *testing.T) {
	a, err := New(Config{Insecure: true, AlwaysAllow: true, CORSOrigins: []string{`^https://good\.example$`}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		host, origin string
		code         int
	}{
		{"localhost:8080", "", 200}, {"127.0.0.1", "", 200}, {"[::1]:8080", "", 200}, {"[::1]", "", 200}, {"LocalHost", "", 200},
		{"evil.example:8080", "", 403}, {"localhost.evil.example", "", 403}, {"10.0.0.1:8080", "", 403}, {"", "", 403}, {"0.0.0.0:1", "", 403},
		{"localhost:8080", "http://evil.example", 403}, {"localhost:8080", "null", 403}, {"localhost:8080", "http://localhost:8080", 403},
		{"localhost:8080", "https://good.example", 200}, {"evil.example", "https://good.example", 403},
	} {
		r := httptest.NewRequest("GET", "/api/v1/secrets", nil)
		r.Host = c.host
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		u, err := a.identify(r)
		if code, _ := status(t, err); code != c.code || code == 200 && u.Name != request.UserUnsecured {
			t.Errorf("Host %q Origin %q: %+v %v, want %d", c.host, c.origin, u, err, c.code)
		}
	}
	h := http.Header{}
	if a.allowOrigin(h, "https://evil.example") || len(h) > 0 {
		t.Errorf("a foreign origin got %v", h)
	}
	if !a.allowOrigin(h, "https://good.example") || h.Get("Access-Control-Allow-Origin") != "https://good.example" || h.Get("Access-Control-Allow-Credentials") != "true" {
		t.Errorf("an allowed origin got %v", h)
	}
}

func TestPreflightIsAnsweredForAllowedOrigins(t *testing.T) {
	a, _ := New(Config{Insecure: true, CORSOrigins: []string{"//good$"}})
	r := httptest.NewRequest("OPTIONS", "http://localhost/api/v1/pods", nil)
	r.Header.Set("Origin", "http://good")
	w := httptest.NewRecorder()
	a.Authenticate(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the preflight went through") })).ServeHTTP(w, r)
	if w.Code != 204 || w.Header().Get("Access-Control-Allow-Methods") == "" {
		t.Errorf("preflight: %d %v", w.Code, w.Header())
	}
}

func TestCredentialsAreGoneBehindAuthentication(t *testing.T) {
	rec := &request.Request{}
	r := httptest.NewRequest("GET", "/api", nil).WithContext(context.WithValue(t.Context(), request.Key{}, rec))
	for _, key := range []string{"Authorization", "X-Remote-User", "X-Remote-Uid", "X-Remote-Group", "X-Remote-Extra-Scopes",
		"X_remote_user", "X_remote_extra_scopes", "X-Remote.group"} {
		r.Header.Set(key, "Bearer root-token")
	}
	r.Header.Set("Accept", "x")
	testAuthenticator(t, nil).Authenticate(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.Header) != 1 {
			t.Errorf("left over: %v", r.Header)
		}
	})).ServeHTTP(httptest.NewRecorder(), r)
	if rec.User.Name != "root" {
		t.Errorf("user %+v", rec.User)
	}
}

func TestIdentifyByCertificate(t *testing.T) {
	ca, file := apitest.NewCA(t)
	other, _ := apitest.NewCA(t)
	a := testAuthenticator(t, func(cfg *Config) { cfg.ClientCAFile = file })
	uid := func(ids ...string) pkix.Name {
		name := pkix.Name{CommonName: "carol"}
		for _, id := range ids {
			name.ExtraNames = append(name.ExtraNames, pkix.AttributeTypeAndValue{Type: uidOID, Value: id})
		}
		return name
	}
	for _, c := range []struct {
		title, token string
		cert         *x509.Certificate
		code         int
		want         string
	}{
		{"user and groups", "", ca.Issue(t, pkix.Name{CommonName: "carol", Organization: []string{"ops"}}, time.Hour, x509.ExtKeyUsageClientAuth), 200, "carol  ops,system:authenticated"},
		{"uid", "", ca.Issue(t, uid("u-1"), time.Hour, x509.ExtKeyUsageClientAuth), 200, "carol u-1 system:authenticated"},
		{"two uids", "", ca.Issue(t, uid("u-1", "u-2"), time.Hour, x509.ExtKeyUsageClientAuth), 401, ""},
		{"certificate before token", "bob-token", ca.Issue(t, pkix.Name{CommonName: "carol"}, time.Hour, x509.ExtKeyUsageClientAuth), 200, "carol  system:authenticated"},
		{"expired", "", ca.Issue(t, pkix.Name{CommonName: "carol"}, -time.Minute, x509.ExtKeyUsageClientAuth), 401, ""},
		{"expired, good token", "bob-token", ca.Issue(t, pkix.Name{CommonName: "carol"}, -time.Minute, x509.ExtKeyUsageClientAuth), 200, "bob 3 system:authenticated"},
		{"a server's", "", ca.Issue(t, pkix.Name{CommonName: "carol"}, time.Hour, x509.ExtKeyUsageServerAuth), 401, ""},
		{"another CA's", "", other.Issue(t, pkix.Name{CommonName: "carol"}, time.Hour, x509.ExtKeyUsageClientAuth), 401, ""},
		{"nobody's", "", ca.Issue(t, pkix.Name{}, time.Hour, x509.ExtKeyUsageClientAuth), 200, "system:anonymous  system:unauthenticated"},
	} {
		for range 2 { // the second time from memory
			r := httptest.NewRequest("GET", "/api", nil)
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c.cert}}
			if c.token != "" {
				r.Header.Set("Authorization", "Bearer "+c.token)
			}
			u, err := a.identify(r)
			got := ""
			if err == nil {
				got = u.Name + " " + u.UID + " " + strings.Join(u.Groups, ",")
			}
			if code, _ := status(t, err); code != c.code || got != c.want {
				t.Errorf("%s: %d %q %v, want %d %q", c.title, code, got, err, c.code, c.want)
			}
		}
	}
}

func TestRememberedCertificateExpires(t *testing.T) {
	ca, file := apitest.NewCA(t)
	a := testAuthenticator(t, func(cfg *Config) { cfg.ClientCAFile = file; cfg.Anonymous = false })
	r := httptest.NewRequest("GET", "/api", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{ca.Issue(t, pkix.Name{CommonName: "carol"}, time.Hour, x509.ExtKeyUsageClientAuth)}}
	if _, err := a.identify(r); err != nil {
		t.Fatal(err)
	}
	a.cfg.Now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	if _, err := a.identify(r); err == nil {
		t.Error("an expired certificate was let in from memory")
	}
}

// TestRememberedCertificateNeedsItsAuthority: an authority that is removed from the file no longer vouches for anybody.
func TestRememberedCertificateNeedsItsAuthority(t *testing.T) {
	ca, file := apitest.NewCA(t)
	_, other := apitest.NewCA(t)
	a := testAuthenticator(t, func(cfg *Config) { cfg.ClientCAFile = file; cfg.Anonymous = false })
	r := httptest.NewRequest("GET", "/api", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{ca.Issue(t, pkix.Name{CommonName: "carol"}, time.Hour, x509.ExtKeyUsageClientAuth)}}
	if _, err := a.identify(r); err != nil {
		t.Fatal(err)
	}
	var err error
	if a.ClientCAs, err = certs.NewDynamicCAs(zerolog.Nop(), nil, other); err != nil {
		t.Fatal(err)
	}
	if u, err := a.identify(r); err == nil {
		t.Errorf("%s was let in from memory", u.Name)
	}
}

// TestBadAccountTokenIsRefusedOnThePlainPort: its client would otherwise become an administrator. A token of no known issuer is ignored there.
func TestBadAccountTokenIsRefusedOnThePlainPort(t *testing.T) {
	a, err := New(Config{Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	st := storetest.Open(t, filepath.Join(t.TempDir(), "a.db"))
	if a.Accounts, err = serviceaccount.New(st, serviceaccount.Config{Issuers: []string{"https://i"}}); err != nil {
		t.Fatal(err)
	}
	forged := func(issuer string) string {
		return "eyJhbGciOiJFUzI1NiJ9." + base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"`+issuer+`"}`)) + ".AAAA"
	}
	for token, want := range map[string]int{"": 200, "x": 200, forged("https://j"): 200, forged("https://i"): 401} {
		r := httptest.NewRequest("GET", "/api", nil)
		r.Host = "localhost"
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		u, err := a.identify(r)
		if code, _ := status(t, err); code != want {
			t.Errorf("%q: %d %q, want %d", token, code, u.Name, want)
		}
	}
}

func TestForbiddenIsKubernetesText(t *testing.T) {
	for target, want := range map[string]string{
		"/api/v1/pods":                                 `pods is forbidden: User "bob" cannot list resource "pods" in API group "" at the cluster scope`,
		"/api/v1/namespaces/default/pods/x/log":        `pods "x" is forbidden: User "bob" cannot get resource "pods/log" in API group "" in the namespace "default"`,
		"/apis/apps/v1/deployments":                    `deployments.apps is forbidden: User "bob" cannot list resource "deployments" in API group "apps" at the cluster scope`,
		"/api/v1/namespaces/x":                         `namespaces "x" is forbidden: User "bob" cannot get resource "namespaces" in API group "" in the namespace "x"`,
		"/foo%3Cb%3E":                                  `forbidden: User "bob" cannot get path "/foo&lt;b&gt;"`,
		"/api/v1/pods?fieldSelector=metadata.name=foo": `pods "foo" is forbidden: User "bob" cannot list resource "pods" in API group "" at the cluster scope`,
		"/api/v1//pods":                                `forbidden: User "bob" cannot get resource "" in API group "" at the cluster scope`,
	} {
		a := testAuthenticator(t, nil)
		rec := &request.Request{Info: request.Parse(httptest.NewRequest("GET", target, nil)), User: request.User{Name: "bob"}.WithAuthenticatedGroup()}
		if code, text := status(t, a.Authorize(rec)); code != 403 || strings.TrimPrefix(text, ` "pods" is `) != want {
			t.Errorf("%s: %d %s\nwant %s", target, code, text, want)
		}
		if rec.Annotations()["authorization.k8s.io/decision"] != "forbid" {
			t.Errorf("%s: annotations %v", target, rec.Annotations())
		}
	}
}

func TestAuthorizeKnowsMastersAndWhatEverybodyMay(t *testing.T) {
	a := testAuthenticator(t, nil)
	bob := request.User{Name: "bob"}.WithAuthenticatedGroup()
	root := request.User{Name: "root", Groups: []string{request.GroupMasters}}
	for _, c := range []struct {
		who    request.User
		method string
		target string
		want   int
	}{
		{root, "DELETE", "/api/v1/nodes", 200},
		{root, "GET", "/metrics", 200},
		{anonymousUser(), "GET", "/version", 200},
		{anonymousUser(), "GET", "/healthz", 200},
		{anonymousUser(), "GET", "/livez", 200},
		{anonymousUser(), "POST", "/readyz", 403},
		{anonymousUser(), "GET", "/readyzz", 403},
		{anonymousUser(), "GET", "/apis", 403},
		{anonymousUser(), "GET", "/api/v1/pods", 403},
		{anonymousUser(), "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", 403},
		{bob, "GET", "/apis", 200},
		{bob, "GET", "/apis/apps/v1", 200},
		{bob, "GET", "/openapi/v3", 200},
		{bob, "GET", "/metrics", 403},
		{bob, "GET", "/api/v1/pods", 403},
		{bob, "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", 200},
		{bob, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", 200},
		{bob, "POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", 200},
		{bob, "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", 403},
	} {
		rec := &request.Request{User: c.who, Info: request.Parse(httptest.NewRequest(c.method, c.target, nil))}
		if code, text := status(t, a.Authorize(rec)); code != c.want {
			t.Errorf("%s %s %s: %d %s, want %d", c.who.Name, c.method, c.target, code, text, c.want)
		}
	}
}

// TestStrangersSeeThePresentOnly, whatever their roles are.
func TestStrangersSeeThePresentOnly(t *testing.T) {
	a := testAuthenticator(t, nil)
	a.SetPolicy(rbac.ParsePolicy("ClusterRole r\n\tlist core pods\n\tto Group:system:unauthenticated Group:system:authenticated\n"))
	for _, u := range []request.User{anonymousUser(), request.User{Name: "bob"}.WithAuthenticatedGroup()} {
		for _, at := range []string{"", "7"} {
			rec := &request.Request{User: u, Moment: at, Info: request.Parse(httptest.NewRequest("GET", "/api/v1/pods", nil))}
			want := 200
			if at != "" && u.Name == request.UserAnonymous {
				want = 403
			}
			if code, text := status(t, a.Authorize(rec)); code != want {
				t.Errorf("%s at %q: %d %s, want %d", u.Name, at, code, text, want)
			}
		}
	}
}

func TestImpersonationHeaders(t *testing.T) {
	for _, c := range []struct {
		headers [][2]string
		code    int
		want    string // name uid groups extra, or the message
	}{
		{nil, 200, "root  system:masters,system:authenticated map[]"},
		{[][2]string{{"User", "alice"}}, 200, "alice  system:authenticated map[]"},
		{[][2]string{{"User", "alice"}, {"Group", "a"}, {"Group", "b"}, {"Uid", "7"}}, 200, "alice 7 a,b,system:authenticated map[]"},
		{[][2]string{{"User", "alice"}, {"Group", "system:unauthenticated"}}, 200, "alice  system:unauthenticated map[]"},
		{[][2]string{{"User", "alice"}, {"Group", "system:masters"}}, 200, "alice  system:masters,system:authenticated map[]"},
		{[][2]string{{"User", "alice"}, {"Extra-Example.com%2FScope", "x"}, {"Extra-Example.com%2Fscope", "y"}}, 200, "alice  system:authenticated map[example.com/scope:[x y]]"},
		{[][2]string{{"User", "alice"}, {"Extra-%zz", "x"}}, 200, "alice  system:authenticated map[%zz:[x]]"},
		{[][2]string{{"User", "system:anonymous"}}, 200, "system:anonymous  system:unauthenticated map[]"},
		{[][2]string{{"User", "system:anonymous"}, {"Group", "g"}}, 200, "system:anonymous  g,system:unauthenticated map[]"},
		{[][2]string{{"User", "system:serviceaccount:ns:sa"}}, 200, "system:serviceaccount:ns:sa  system:serviceaccounts,system:serviceaccounts:ns,system:authenticated map[]"},
		{[][2]string{{"User", "system:serviceaccount:ns:sa"}, {"Group", "g"}}, 200, "system:serviceaccount:ns:sa  g,system:authenticated map[]"},
		{[][2]string{{"User", "system:serviceaccount:NS:sa"}}, 200, "system:serviceaccount:NS:sa  system:authenticated map[]"},
		{[][2]string{{"User", "system:node:n1"}}, 200, "system:node:n1  system:nodes,system:authenticated map[]"},
		{[][2]string{{"User", "system:node:n1"}, {"Group", "g"}}, 200, "system:node:n1  g,system:authenticated map[]"},
		{[][2]string{{"Group", "x"}, {"Uid", "7"}}, 400, `requested &user.DefaultInfo{Name:"", UID:"7", Groups:[]string{"x"}, Extra:map[string][]string(nil)} without impersonating a user name`},
		{[][2]string{{"Extra-A", "x"}}, 400, `requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string(nil), Extra:map[string][]string{"a":[]string{"x"}}} without impersonating a user name`},
		{[][2]string{{"User", ""}, {"Group", "g"}}, 400, `requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string{"g"}, Extra:map[string][]string(nil)} without impersonating a user name`},
	} {
		a := testAuthenticator(t, nil)
		h := http.Header{}
		for _, kv := range c.headers {
			h.Add("Impersonate-"+kv[0], kv[1])
		}
		rec := &request.Request{User: request.User{Name: "root", Groups: []string{request.GroupMasters, request.GroupAuthenticated}}, Info: request.Info{Verb: "get", Path: "/api"}}
		want, err := wantedUser(h)
		if err == nil && want != nil {
			err = a.impersonateAs(rec, *want)
		}
		code, got := status(t, err)
		if err == nil {
			u := rec.User
			got = u.Name + " " + u.UID + " " + strings.Join(u.Groups, ",") + " " + strings.ReplaceAll(reflect.ValueOf(u.Extra).String(), "<map[string][]string Value>", sprintMap(u.Extra))
			if len(c.headers) > 0 && (rec.Impersonator == nil || rec.Impersonator.Name != "root" || len(h) > 0) {
				t.Errorf("%v: impersonator %+v, headers left %v", c.headers, rec.Impersonator, h)
			}
		}
		if code != c.code || got != c.want {
			t.Errorf("%v\n got %d %s\nwant %d %s", c.headers, code, got, c.code, c.want)
		}
	}
}

func sprintMap(m map[string][]string) string {
	var parts []string
	for k, v := range m {
		parts = append(parts, k+":["+strings.Join(v, " ")+"]")
	}
	return "map[" + strings.Join(parts, " ") + "]"
}

func TestImpersonationIsRefusedInKubernetesWords(t *testing.T) {
	for _, c := range []struct {
		want   request.User
		target string
		text   string
	}{
		{request.User{Name: "alice"}, "/api", `forbidden: User "bob" cannot impersonate-on:user-info:get path "/api"`},
		{request.User{Name: "system:serviceaccount:default:foo"}, "/api", `forbidden: User "bob" cannot impersonate-on:serviceaccount:get path "/api"`},
		{request.User{Name: "system:node:foo"}, "/api", `forbidden: User "bob" cannot impersonate-on:arbitrary-node:get path "/api"`},
		{request.User{Name: "alice", Groups: []string{"g"}, UID: "u"}, "/api/v1/namespaces/default/pods", `pods is forbidden: User "bob" cannot impersonate-on:user-info:list resource "pods" in API group "" in the namespace "default"`},
		{request.User{Name: "system:node:foo", Groups: []string{"g"}}, "/api", `nodes "foo"`},
	} {
		a := testAuthenticator(t, nil)
		rec := &request.Request{User: request.User{Name: "bob"}.WithAuthenticatedGroup(), Info: request.Parse(httptest.NewRequest("GET", c.target, nil))}
		code, text := status(t, a.impersonateAs(rec, c.want))
		if c.want.Name == "system:node:foo" && len(c.want.Groups) > 0 { // no narrow mode applies: the plain one answers
			c.text = `users "system:node:foo" is forbidden: User "bob" cannot impersonate resource "users" in API group "" at the cluster scope`
		}
		if code != 403 || text != c.text || rec.User.Name != "bob" || rec.Impersonator != nil {
			t.Errorf("%+v on %s\n got %d %s (%+v)\nwant 403 %s", c.want, c.target, code, text, rec.User, c.text)
		}
	}
}

func TestIdentityPartsAreOnePermissionEach(t *testing.T) {
	want := request.User{Name: "system:serviceaccount:ns:sa", UID: "u", Groups: []string{"g"}, Extra: map[string][]string{"b": {"2"}, "a": {"1", "0"}}}
	var got []string
	for _, part := range identityParts(want, "") {
		got = append(got, part.Verb+" "+part.Group+" "+part.Namespace+" "+part.Resource+"/"+part.Subresource+" "+part.Name)
	}
	exp := []string{"impersonate  ns serviceaccounts/ sa", "impersonate authentication.k8s.io  uids/ u", "impersonate   groups/ g",
		"impersonate authentication.k8s.io  userextras/a 1", "impersonate authentication.k8s.io  userextras/a 0", "impersonate authentication.k8s.io  userextras/b 2"}
	if !reflect.DeepEqual(got, exp) {
		t.Errorf("got  %q\nwant %q", got, exp)
	}
	for part, text := range map[request.Info]string{
		{Resource: "groups"}:                                              "impersonating the empty string group is not allowed",
		{Resource: "groups", Name: request.GroupMasters}:                  "impersonating the system:masters group is not allowed",
		{Resource: "userextras", Name: "x"}:                               "impersonating the empty string key in extra is not allowed",
		{Resource: "userextras", Subresource: "example.com/a"}:            "impersonating the empty string value in extra is not allowed",
		{Resource: "userextras", Subresource: "nodomain", Name: "x"}:      "impersonating an invalid key in extra is not allowed: ",
		{Resource: "userextras", Subresource: "example.com/a", Name: "x"}: "",
		{Resource: "users", Name: "x"}:                                    "",
	} {
		if got := unfitForMode(part); !strings.HasPrefix(got, text) || text == "" && got != "" {
			t.Errorf("%+v: %q, want %q", part, got, text)
		}
	}
}

// reviewed runs review for a user and returns the object's status as JSON, or the message.
func reviewed(t *testing.T, a *Authenticator, u request.User, namespace string, obj runtime.Object) (int, string) {
	t.Helper()
	rec := &request.Request{User: u, Info: request.Info{Namespace: namespace}}
	if code, text := status(t, a.Review(context.WithValue(t.Context(), request.Key{}, rec), obj)); code != 200 {
		return code, text
	}
	var doc struct{ Status json.RawMessage }
	data, _ := json.Marshal(obj)
	json.Unmarshal(data, &doc)
	return 200, string(doc.Status)
}

func TestReviews(t *testing.T) {
	bob := request.User{Name: "bob", UID: "3", Extra: map[string][]string{"k": {"v"}}}.WithAuthenticatedGroup()
	root := request.User{Name: "root", Groups: []string{request.GroupMasters}}
	pods := &authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods", Namespace: "default"}
	api := &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/api"}
	token := func(token string, audiences ...string) runtime.Object {
		return &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences}}
	}
	access := func(u string, groups []string, at *authorizationv1.ResourceAttributes, path *authorizationv1.NonResourceAttributes) runtime.Object {
		return &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: u, Groups: groups, ResourceAttributes: at, NonResourceAttributes: path}}
	}
	self := func(at *authorizationv1.ResourceAttributes, path *authorizationv1.NonResourceAttributes) runtime.Object {
		return &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: at, NonResourceAttributes: path}}
	}
	local := func(namespace string, at *authorizationv1.ResourceAttributes, path *authorizationv1.NonResourceAttributes) runtime.Object {
		return &authorizationv1.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: namespace},
			Spec: authorizationv1.SubjectAccessReviewSpec{User: "bob", ResourceAttributes: at, NonResourceAttributes: path}}
	}
	selectors := &authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods",
		FieldSelector: &authorizationv1.FieldSelectorAttributes{Requirements: []metav1.FieldSelectorRequirement{{Key: "a", Operator: "Exists"}}},
		LabelSelector: &authorizationv1.LabelSelectorAttributes{RawSelector: "a=b,&"}}
	partly := &authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods",
		FieldSelector: &authorizationv1.FieldSelectorAttributes{Requirements: []metav1.FieldSelectorRequirement{{Key: "a", Operator: "Foo"}, {Key: "a", Operator: "In", Values: []string{"b"}}}},
		LabelSelector: &authorizationv1.LabelSelectorAttributes{RawSelector: "a=b"}}
	both := &authorizationv1.ResourceAttributes{
		FieldSelector: &authorizationv1.FieldSelectorAttributes{RawSelector: "a", Requirements: []metav1.FieldSelectorRequirement{{Key: "a", Operator: "Foo"}}},
		LabelSelector: &authorizationv1.LabelSelectorAttributes{}}
	badPath := &authorizationv1.NonResourceAttributes{Path: "/x"}
	const discovery = `"RBAC: allowed by ClusterRoleBinding \"system:discovery\" of ClusterRole \"system:discovery\" to Group \"system:authenticated\""`
	const invalid = `.authorization.k8s.io "" is invalid: `
	const exactlyOne = `spec: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified`
	for _, c := range []struct {
		who  request.User
		obj  runtime.Object
		code int
		want string
	}{
		{root, token(""), 400, "token is required for TokenReview in authentication"},
		{root, token("bob-token"), 200, `{"authenticated":true,"user":{"username":"bob","uid":"3","groups":["system:authenticated"]},"audiences":["` + serviceaccount.DefaultIssuer + `"]}`},
		{root, token("bob-token", serviceaccount.DefaultIssuer), 200, `{"authenticated":true,"user":{"username":"bob","uid":"3","groups":["system:authenticated"]},"audiences":["` + serviceaccount.DefaultIssuer + `"]}`},
		{root, token("bob-token", "x"), 200, `{"user":{},"error":"invalid bearer token"}`},
		{root, token("nope"), 200, `{"user":{},"error":"invalid bearer token"}`},
		{root, token(" bob-token"), 200, `{"authenticated":true,"user":{"username":"system:anonymous","groups":["system:unauthenticated"]},"audiences":["` + serviceaccount.DefaultIssuer + `"]}`},
		{bob, &authenticationv1.SelfSubjectReview{}, 200, `{"userInfo":{"username":"bob","uid":"3","groups":["system:authenticated"],"extra":{"k":["v"]}}}`},
		{root, access("bob", nil, pods, nil), 200, `{"allowed":false}`},
		{root, access("bob", []string{request.GroupMasters}, pods, nil), 200, `{"allowed":true}`},
		{root, access("bob", []string{request.GroupAuthenticated}, nil, api), 200, `{"allowed":true,"reason":` + discovery + `}`},
		{root, access("bob", nil, nil, api), 200, `{"allowed":false}`},
		{root, access("", nil, nil, nil), 422, invalid + "[" + exactlyOne + `, spec.user: Invalid value: "": at least one of user or group must be specified]`},
		{root, access("bob", nil, pods, badPath), 422, invalid + `spec: Invalid value: {"Path":"/x","Verb":""}: exactly one of nonResourceAttributes or resourceAttributes must be specified`},
		{root, access("", nil, both, nil), 422, invalid + `[spec.user: Invalid value: "": at least one of user or group must be specified, spec.resourceAttributes.fieldSelector.rawSelector: Invalid value: "a": may not specified at the same time as requirements, spec.resourceAttributes.labelSelector.requirements: Required value: when spec.resourceAttributes.labelSelector is specified, requirements or rawSelector is required]`},
		{bob, self(pods, nil), 200, `{"allowed":false}`},
		{root, self(pods, nil), 200, `{"allowed":true}`},
		{bob, self(nil, api), 200, `{"allowed":true,"reason":` + discovery + `}`},
		{bob, self(nil, nil), 422, invalid + exactlyOne},
		{root, self(selectors, nil), 200, `{"allowed":true,"evaluationError":"spec.resourceAttributes.fieldSelector ignored due to parse error; spec.resourceAttributes.labelSelector ignored due to parse error"}`},
		{root, self(partly, nil), 200, `{"allowed":true,"evaluationError":"spec.resourceAttributes.fieldSelector partially ignored due to parse error"}`},
		{root, local("default", pods, nil), 200, `{"allowed":false}`},
		{root, local("default", &authorizationv1.ResourceAttributes{Namespace: "x"}, nil), 422, invalid + `spec.resourceAttributes.namespace: Invalid value: "x": must match metadata.namespace`},
		{root, local("default", nil, badPath), 422, invalid + `spec.nonResourceAttributes: Invalid value: {"Path":"/x","Verb":""}: disallowed on this kind of request`},
		{root, local("x", &authorizationv1.ResourceAttributes{Namespace: "x"}, nil), 400, "spec.resourceAttributes.namespace must match namespace: default"},
		{bob, &authorizationv1.SelfSubjectRulesReview{}, 400, "no namespace on request"},
		{bob, &authorizationv1.SubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: authorizationv1.SubjectAccessReviewSpec{User: "x", NonResourceAttributes: api}}, 422, invalid + `metadata: Invalid value: {"name":"x"}: must be empty`},
	} {
		code, got := reviewed(t, testAuthenticator(t, nil), c.who, "default", c.obj)
		if code != c.code || got != c.want {
			t.Errorf("%T %+v as %s\n got %d %s\nwant %d %s", c.obj, c.obj, c.who.Name, code, got, c.code, c.want)
		}
	}
}

func TestRulesReviewListsWhatTheRolesGive(t *testing.T) {
	const basic = `{"verbs":["create"],"apiGroups":["authorization.k8s.io"],"resources":["selfsubjectaccessreviews","selfsubjectrulesreviews"]},` +
		`{"verbs":["create"],"apiGroups":["authentication.k8s.io"],"resources":["selfsubjectreviews"]}`
	const paths = `{"verbs":["get"],"nonResourceURLs":["/api","/api/*","/apis","/apis/*","/healthz","/livez","/openapi","/openapi/*","/readyz","/version","/version/"]},` +
		`{"verbs":["get"],"nonResourceURLs":["/healthz","/livez","/readyz","/version","/version/"]}`
	const all = `{"verbs":["*"],"apiGroups":["*"],"resources":["*"]}`
	const allPaths = `{"verbs":["*"],"nonResourceURLs":["*"]}`
	const lost = `[clusterrole.rbac.authorization.k8s.io \"missing\" not found, role.rbac.authorization.k8s.io \"missing\" not found]`
	a := testAuthenticator(t, nil)
	rules := func(who request.User) string {
		_, got := reviewed(t, a, who, "", &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"}})
		return got
	}
	bob := request.User{Name: "bob"}.WithAuthenticatedGroup()
	if got, want := rules(bob), `{"resourceRules":[`+basic+`],"nonResourceRules":[`+paths+`],"incomplete":false}`; got != want {
		t.Errorf("bob\n got %s\nwant %s", got, want)
	}
	root := request.User{Name: "root", Groups: []string{request.GroupMasters, request.GroupAuthenticated}}
	if got, want := rules(root), `{"resourceRules":[`+all+`,`+basic+`],"nonResourceRules":[`+allPaths+`,`+paths+`],"incomplete":false}`; got != want {
		t.Errorf("root\n got %s\nwant %s", got, want)
	}
	toBob := rbacv1.Subject{Kind: "User", Name: "bob"}
	a.SetPolicy([]scheme.Object{kubetest.ClusterRoleBinding("b", "missing", toBob), kubetest.RoleBinding("default", "b", "Role", "missing", toBob)})
	if got, want := rules(bob), `{"resourceRules":[],"nonResourceRules":[],"incomplete":false,"evaluationError":"`+lost+`"}`; got != want {
		t.Errorf("bound to missing roles\n got %s\nwant %s", got, want)
	}
	rec := &request.Request{User: bob, Info: request.Parse(httptest.NewRequest("GET", "/api/v1/namespaces/default/pods", nil))}
	want := `pods is forbidden: User "bob" cannot list resource "pods" in API group "" in the namespace "default": rbac: RBAC: ` + strings.ReplaceAll(lost, `\"`, `"`)
	if _, got := status(t, a.Authorize(rec)); got != want {
		t.Errorf("refusal\n got %s\nwant %s", got, want)
	}
}

func TestAlwaysAllowAllows(t *testing.T) {
	a, err := New(Config{Insecure: true, AlwaysAllow: true})
	if err != nil {
		t.Fatal(err)
	}
	alice := request.User{Name: "alice"}.WithAuthenticatedGroup()
	rec := &request.Request{User: alice, Info: request.Parse(httptest.NewRequest("DELETE", "/api/v1/nodes", nil))}
	if err := a.Authorize(rec); err != nil || rec.Annotations()["authorization.k8s.io/decision"] != "allow" {
		t.Errorf("authorize: %v, annotations %v", err, rec.Annotations())
	}
	if err := a.MayGrant(rec, kubetest.ClusterRoleBinding("b", "cluster-admin"), nil); err != nil {
		t.Errorf("mayGrant: %v", err)
	}
	if err := a.impersonateAs(rec, request.User{Name: "bob", Groups: []string{"dev"}}); err != nil || rec.User.Name != "bob" || rec.Impersonator.Name != "alice" || rec.Constraint != "impersonate:user-info" {
		t.Errorf("become: %v, %+v", err, rec)
	}
	if _, got := reviewed(t, a, alice, "", &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "x"}}); got !=
		`{"resourceRules":[{"verbs":["*"],"apiGroups":["*"],"resources":["*"]}],"nonResourceRules":[{"verbs":["*"],"nonResourceURLs":["*"]}],"incomplete":false}` {
		t.Errorf("rules %s", got)
	}
	if _, got := reviewed(t, a, alice, "", &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "x"}}); got != `{"user":{},"error":"invalid bearer token"}` {
		t.Errorf("a token where none is known: %s", got)
	}
}

func TestPolicyIsSwappedUnderLoad(t *testing.T) {
	a := testAuthenticator(t, nil)
	bob, info := request.User{Name: "bob"}.WithAuthenticatedGroup(), request.Info{ResourceRequest: true, Verb: "get", Resource: "pods"}
	grant := append(rbac.ParsePolicy("ClusterRole r\n\tget core pods\n"), kubetest.ClusterRoleBinding("b", "r", rbacv1.Subject{Kind: "User", Name: "bob"}))
	done := make(chan struct{})
	go func() { // ends with the loop
		defer close(done)
		for range 200 {
			a.SetPolicy(grant)
			a.SetPolicy(nil)
		}
		a.SetPolicy(grant)
	}()
	for range 2000 {
		if allowed, reason := a.Decide(bob, info); allowed != (reason != "") {
			t.Fatalf("%v %q", allowed, reason)
		}
	}
	<-done
	if allowed, _ := a.Decide(bob, info); !allowed {
		t.Error("the last policy is not in force")
	}
}
