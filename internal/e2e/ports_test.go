package e2e

// This file tests access to the ports with different clients, credentials and web pages. It also
// tests the health checks and the version.

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/scheme"
)

// TestTLSSpeaksHTTP2 checks that HTTP/2 is supported, because client-go uses one connection for all
// its watches.
func TestTLSSpeaksHTTP2(t *testing.T) {
	t.Parallel()
	s, _ := startTLS(t)
	s.client.Transport.(*http.Transport).ForceAttemptHTTP2 = true
	request, _ := http.NewRequest("GET", s.url+"/api/v1/namespaces?watch=1", nil)
	request.Header.Set("Authorization", "Bearer root-token")
	answer, err := s.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	frames := bufio.NewReader(answer.Body)
	for _, name := range []string{"default", "kube-node-lease", "kube-public", "kube-system"} {
		if line, err := frames.ReadString('\n'); answer.ProtoMajor != 2 || !strings.Contains(line, "ADDED") || !strings.Contains(line, name) {
			t.Errorf("%s %s: %s, %v", answer.Proto, answer.Status, line, err)
		}
	}
}

func TestCredentialsOverTLS(t *testing.T) {
	t.Parallel()
	s, clients := startTLS(t)
	root, bob := "Authorization: Bearer root-token", "Authorization: Bearer bob-token"
	pods := "/api/v1/namespaces/default/pods"
	for _, c := range []struct {
		title, method, path string
		headers             []string
		want                string
	}{
		{"a master may", "GET", pods, []string{root}, "200"},
		{"a known user without a role may not", "GET", pods, []string{bob},
			`403 Forbidden pods is forbidden: User "bob" cannot list resource "pods" in API group "" in the namespace "default"`},
		{"nobody in particular may not", "GET", pods, nil,
			`403 Forbidden pods is forbidden: User "system:anonymous" cannot list resource "pods" in API group "" in the namespace "default"`},
		{"a bad token is 401", "GET", pods, []string{"Authorization: Bearer nope"}, "401 Unauthorized Unauthorized"},
		{"the version is for everybody", "GET", "/version", nil, "200"},
		{"health is for everybody", "GET", "/readyz", nil, "200"},
		{"metrics are not", "GET", "/metrics", nil, `403 Forbidden forbidden: User "system:anonymous" cannot get path "/metrics"`},
		{"a master may be another", "GET", pods, []string{root, "Impersonate-User: bob"},
			`403 Forbidden pods is forbidden: User "bob" cannot list resource "pods" in API group "" in the namespace "default"`},
		{"others may not", "GET", pods, []string{bob, "Impersonate-User: root"},
			`403 Forbidden pods is forbidden: User "bob" cannot impersonate-on:user-info:list resource "pods" in API group "" in the namespace "default"`},
		{"a refused write changes nothing", "POST", pods, []string{bob},
			`403 Forbidden pods is forbidden: User "bob" cannot create resource "pods" in API group "" in the namespace "default"`},
	} {
		t.Run(c.title, func(t *testing.T) {
			a := s.send(c.method, c.path, "", c.headers...)
			got := a.failure()
			if a.code == 200 {
				got = "200"
			}
			if got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
	t.Run("a client certificate is its user", func(t *testing.T) { checkClientCertificate(t, s, clients) })
	t.Run("two spaces before the token are warned of", func(t *testing.T) {
		a := s.send("GET", "/version", "", "Authorization: Bearer  root-token")
		want := `299 - "the provided Authorization header contains extra space before the bearer token, and is ignored"`
		if got := a.header.Get("Warning"); a.code != 200 || got != want {
			t.Errorf("got %d with warning %s", a.code, got)
		}
	})
}

// checkClientCertificate sends requests with certificates from the configured CA and from another
// one.
func checkClientCertificate(t *testing.T, s *testServer, clients apitest.CA) {
	strangers, _ := apitest.NewCA(t)
	for want, ca := range map[int]apitest.CA{200: clients, 401: strangers} {
		subject := pkix.Name{CommonName: "carol", Organization: []string{"system:masters"}}
		cert := ca.Issue(t, subject, time.Hour, x509.ExtKeyUsageClientAuth)
		config := s.client.Transport.(*http.Transport).TLSClientConfig.Clone()
		config.Certificates = []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: ca.Key}}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
		response, err := client.Get(s.url + "/api/v1/pods")
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("got %d, want %d", response.StatusCode, want)
		}
	}
}

func TestAnonymousCanBeRefused(t *testing.T) {
	t.Parallel()
	s, _ := startTLS(t, "--anonymous-auth=false")
	if got := s.want(401, "GET", "/version", "").failure(); got != "401 Unauthorized Unauthorized" {
		t.Error(got)
	}
}

func TestPlainPortRefusesOtherSites(t *testing.T) {
	t.Parallel()
	s := startTest(t, `--cors-allowed-origins=^https://good\.example$`)
	for _, c := range []struct {
		header string
		code   int
	}{
		{"Host: evil.example", 403}, {"Host: localhost:1234", 200}, {"Host: [::1]:80", 200},
		{"Origin: https://evil.example", 403}, {"Origin: https://good.example", 200}, {"Origin: null", 403},
	} {
		s.want(c.code, "GET", "/api/v1/pods", "", c.header)
	}
	a := s.send("OPTIONS", "/api/v1/pods", "", "Origin: https://good.example", "Access-Control-Request-Method: GET")
	if a.code != 204 || a.header.Get("Access-Control-Allow-Origin") != "https://good.example" {
		t.Errorf("a preflight got %d %v", a.code, a.header)
	}
}

// A browser sends its user's certificate in the requests of any page, and any page can reach the
// plain port. The server must reject these requests. A simple request without a Content-Type would
// be read as JSON.
func TestOtherSitesPagesDoNothing(t *testing.T) {
	t.Parallel()
	kubeconfig := filepath.Join(t.TempDir(), "config")
	secured := startTest(t, "--cert-dir="+filepath.Join(t.TempDir(), "certs"), "--kubeconfig="+kubeconfig, `--cors-allowed-origins=^https://good\.example$`)
	secured.client, _ = kubetest.KubeconfigClient(t, kubeconfig)
	t.Cleanup(secured.client.CloseIdleConnections)
	plain := startTest(t)
	binding := `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"generateName":"csrf-"},
		"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"system:anonymous"}]}`
	bindings := "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
	evil, cross, same := "Origin: https://evil.example", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site"
	for _, s := range []*testServer{secured, plain} {
		for _, headers := range [][]string{{evil, cross}, {evil}, {"Origin: null"}, {same}, {cross}} {
			a := s.want(403, "POST", bindings, binding, headers...)
			if a.header.Get("X-Content-Type-Options") != "nosniff" || a.header.Get("Cross-Origin-Resource-Policy") != "same-origin" {
				t.Errorf("the answer's headers are %v", a.header)
			}
		}
		for _, path := range []string{"/api/v1/secrets", "/debug/backup", "/debug/history?follow=true", "/api/v1/pods?watch=true", "/debug/ui/data", "/metrics", "/readyz"} {
			s.want(403, "GET", path, "", cross)
			s.want(403, "GET", path, "", same, "Sec-Fetch-Mode: navigate")
			if a := s.send("HEAD", path, "", cross); a.code != 403 {
				t.Errorf("HEAD %s: %d", path, a.code)
			}
		}
		s.want(200, "GET", "/debug/ui/", "", cross, "Sec-Fetch-Mode: navigate") // the user follows a link
		s.want(403, "GET", "/debug/ui/", "", cross, "Sec-Fetch-Mode: no-cors")
		s.want(200, "GET", "/api/v1/pods", "", "Sec-Fetch-Site: same-origin")
		s.want(200, "GET", "/api/v1/pods", "", "Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate")
		s.want(201, "POST", bindings, binding)
		handshake := []string{"Connection: Upgrade", "Upgrade: websocket", "Origin: http://localhost"}
		s.want(200, "GET", "/api/v1/pods", "", handshake...) // from a program
		s.want(403, "GET", "/api/v1/pods", "", append(handshake, "Accept-Language: en")...)
		s.want(403, "GET", "/api/v1/pods", "", append(handshake, "User-Agent: Mozilla/5.0")...)
	}
	secured.want(201, "POST", bindings, binding, "Origin: https://good.example", cross)
	// This is a page behind kubectl proxy.
	secured.want(201, "POST", bindings, binding, "Origin: http://127.0.0.1:8001", "Sec-Fetch-Site: same-origin")

	tokens, _ := startTLS(t)
	tokens.want(201, "POST", bindings, binding, evil, cross, "Authorization: Bearer root-token") // a browser never adds this header itself
	tokens.want(403, "GET", "/version", "", cross)
}

func TestKubeconfigIsWritten(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config")
	s := startTest(t, "--kubeconfig="+path)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := gjson.GetBytes(text, "clusters.0.cluster.server").String(); got != s.url {
		t.Errorf("the kubeconfig leads to %q instead of %q", got, s.url)
	}
	if !gjson.GetBytes(text, "clusters.0.cluster.insecure-skip-tls-verify").Bool() {
		t.Error("the JavaScript client refuses a plain port without insecure-skip-tls-verify")
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("the kubeconfig has mode %v", info.Mode())
	}
}

func TestHealthVersionMetrics(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	for _, path := range []string{"/healthz", "/livez", "/readyz", "/readyz/ping", "/livez/etcd", "/healthz/etcd", "/readyz/etcd-readiness", "/readyz/informer-sync",
		"/readyz/poststarthook/crd-informer-synced", "/livez/poststarthook/scheduling/bootstrap-system-priority-classes", "/healthz/autoregister-completion"} {
		if a := s.send("GET", path, ""); a.code != 200 || string(a.body) != "ok" {
			t.Errorf("%s: %d %s", path, a.code, a.body)
		}
		if a := s.send("GET", path+"?verbose", ""); a.code != 200 || !strings.Contains(string(a.body), "ok") {
			t.Errorf("%s?verbose: %d %s", path, a.code, a.body)
		}
	}
	if a := s.send("GET", "/readyz?verbose", ""); !strings.Contains(string(a.body), "[+]store ok") {
		t.Errorf("readyz?verbose does not name the store: %s", a.body)
	}
	const roles = "/readyz/poststarthook/rbac/bootstrap-roles" // the check only exists if RBAC is enabled
	if a := s.send("GET", roles, ""); a.code != 404 {
		t.Errorf("roles where none count: %d %s", a.code, a.body)
	}
	ruled, _ := startTLS(t, "--authorization-mode=RBAC")
	if a := ruled.send("GET", roles, "", "Authorization: Bearer root-token"); a.code != 200 {
		t.Errorf("roles where they count: %d %s", a.code, a.body)
	}
	if a := s.want(200, "GET", "/version", ""); a.get("gitVersion").String() != scheme.KubernetesVersion+"+apilet" || !strings.HasPrefix(scheme.KubernetesVersion, "v1."+a.get("minor").String()+".") {
		t.Errorf("version: %s", a.body)
	}
	s.want(404, "GET", "/api/v1/namespaces/default/pods/none", "")
	metrics := string(s.send("GET", "/metrics", "").body)
	for _, want := range []string{"apiserver_request_total{", `resource="pods"`, `code="404"`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in /metrics", want)
		}
	}
}

func TestDeadlineIsKept(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	if got := s.want(400, "GET", "/api/v1/pods?timeout=abc", "").failure(); !strings.Contains(got,
		`invalid timeout specified in the request URL - time: invalid duration "abc"`) {
		t.Error(got)
	}
	a := s.send("GET", "/api/v1/pods?timeout=1ns", "")
	if a.code != 504 || a.get("reason").String() != "Timeout" {
		t.Errorf("a list that ran out of time got %d %s", a.code, a.body)
	}
}
