package e2e

// These tests use a fake kubelet. Tests with real kubelets are in .ci/node.

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"apilet/internal/apitest"
)

// A fakeKubelet is a TLS server that verifies client certificates.
type fakeKubelet struct {
	*httptest.Server
	port int

	mu     sync.Mutex // guards the fields below
	asked  []string   // method and URI of each request
	users  []string   // names in the client certificates
	answer http.HandlerFunc
}

// startKubelet starts a kubelet with a certificate issued by ca.
func startKubelet(t *testing.T, ca apitest.CA, answer http.HandlerFunc) *fakeKubelet {
	t.Helper()
	certFile, keyFile := ca.IssuePair(t, &x509.Certificate{SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "node-1"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	k := &fakeKubelet{answer: answer}
	k.Server = httptest.NewUnstartedServer(k)
	k.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert}
	k.StartTLS()
	k.port = k.Listener.Addr().(*net.TCPAddr).Port
	t.Cleanup(func() { k.CloseClientConnections(); k.Close() })
	return k
}

func (k *fakeKubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	k.asked = append(k.asked, r.Method+" "+r.URL.RequestURI())
	user := ""
	if len(r.TLS.PeerCertificates) > 0 {
		user = r.TLS.PeerCertificates[0].Subject.CommonName
	}
	k.users = append(k.users, user)
	k.mu.Unlock()
	k.answer(w, r)
}

// requests returns all requests to the kubelet.
func (k *fakeKubelet) requests() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]string(nil), k.asked...)
}

// upgrade responds with 101 and returns the connection.
func upgrade(t *testing.T, w http.ResponseWriter, protocol string) net.Conn {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		t.Error(err)
		return nil
	}
	fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n", protocol)
	return conn
}

// startWithNode starts a server that has a node with kubelet k, and Pods on it.
func startWithNode(t *testing.T, k *fakeKubelet, flags ...string) *testServer {
	t.Helper()
	s, _ := startTLS(t, flags...)
	s.headers = []string{"Authorization: Bearer root-token"}
	s.addNode(k)
	return s
}

// addNode creates a node with kubelet k, and Pods.
func (s *testServer) addNode(k *fakeKubelet) {
	s.t.Helper()
	s.want(201, "POST", "/api/v1/nodes", `{"metadata":{"name":"node-1"}}`)
	s.want(200, "PATCH", "/api/v1/nodes/node-1/status", fmt.Sprintf(`{"status":{"addresses":[{"type":"Hostname","address":"node-1"},{"type":"InternalIP","address":"127.0.0.1"}],
		"daemonEndpoints":{"kubeletEndpoint":{"Port":%d}}}}`, k.port), "Content-Type: application/merge-patch+json")
	for pod, spec := range map[string]string{
		"p":    `"nodeName":"node-1","containers":[{"name":"c","image":"i"}]`,
		"two":  `"nodeName":"node-1","containers":[{"name":"a","image":"i"},{"name":"b","image":"i"}]`,
		"lost": `"nodeName":"gone","containers":[{"name":"c","image":"i"}]`,
		"none": `"containers":[{"name":"c","image":"i"}]`,
	} {
		s.want(201, "POST", podsPath, `{"metadata":{"name":"`+pod+`"},"spec":{`+spec+`}}`)
	}
}

const podsPath = "/api/v1/namespaces/default/pods"

func TestLogsComeFromTheKubelet(t *testing.T) {
	t.Parallel()
	ca, caFile := apitest.NewCA(t)
	more := make(chan struct{})
	k := startKubelet(t, ca, func(w http.ResponseWriter, r *http.Request) {
		switch query := r.URL.Query(); {
		case r.URL.Path == "/containerLogs/default/two/b":
			http.Error(w, "no such container", http.StatusNotFound)
		case query.Has("follow"):
			_, _ = io.WriteString(w, "first\n")
			w.(http.Flusher).Flush()
			<-more
			_, _ = io.WriteString(w, "second\n")
		case query.Has("limitBytes"):
			http.Redirect(w, r, "https://127.0.0.1:1/", http.StatusFound)
		default:
			_, _ = io.WriteString(w, "hello\n")
		}
	})
	clientCert, clientKey := ca.IssuePair(t, &x509.Certificate{SerialNumber: big.NewInt(4), Subject: pkix.Name{CommonName: "the-server"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	s := startWithNode(t, k, "--kubelet-certificate-authority="+caFile, "--kubelet-client-certificate="+clientCert, "--kubelet-client-key="+clientKey)
	a := s.want(200, "GET", podsPath+"/p/log?tailLines=5&timestamps=true", "")
	if string(a.body) != "hello\n" || a.header.Get("Content-Type") != "text/plain" {
		t.Errorf("got %q, %v", a.body, a.header)
	}
	if got := k.requests(); len(got) != 1 || got[0] != "GET /containerLogs/default/p/c?tailLines=5&timestamps=true" || k.users[0] != "the-server" {
		t.Errorf("the kubelet was asked %q by %q", got, k.users)
	}
	for query, want := range map[string]string{
		"/two/log":                "a container name must be specified for pod two, choose one of: [a b]",
		"/two/log?container=c":    "container c is not valid for pod two",
		"/two/log?container=b":    "the server could not find the requested resource ( pods/log two)",
		"/lost/log":               `nodes "gone" not found`,
		"/p/log?tailLines=-1":     `PodLogOptions "p" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0`,
		"/p/log?limitBytes=9":     "redirects forbidden",
		"/absent/log":             `pods "absent" not found`,
		"/p/log?sinceTime=nobody": "",
	} {
		if a := s.send("GET", podsPath+query, ""); a.code < 400 || !strings.Contains(a.get("message").String(), want) {
			t.Errorf("%s: got %d %s", query, a.code, a.body)
		}
	}
	s.want(204, "GET", podsPath+"/none/log", "")
	s.want(405, "POST", podsPath+"/p/log", "")

	r, _ := http.NewRequest("GET", s.url+podsPath+"/p/log?follow=true", nil)
	r.Header.Set("Authorization", "Bearer root-token")
	response, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	if line, err := lines.ReadString('\n'); line != "first\n" || err != nil {
		t.Errorf("got %q, %v before the rest was written", line, err)
	}
	close(more)
	if line, err := lines.ReadString('\n'); line != "second\n" || err != nil {
		t.Errorf("got %q, %v", line, err)
	}

	ws := s.dialWebSocket(podsPath+"/p/log", "binary.k8s.io")
	for _, want := range []string{"", "hello\n"} { // the first message only means that the log was found
		var text string
		if err := websocket.Message.Receive(ws, &text); text != want || err != nil {
			t.Errorf("got %q, %v by WebSocket, want %q", text, err, want)
		}
	}
}

// The server must not send a request if the kubelet's certificate was not issued by the configured
// CA.
func TestKubeletsAreVerified(t *testing.T) {
	t.Parallel()
	ca, _ := apitest.NewCA(t)
	_, other := apitest.NewCA(t)
	k := startKubelet(t, ca, func(http.ResponseWriter, *http.Request) {})
	s := startWithNode(t, k, "--kubelet-certificate-authority="+other)
	for _, asked := range []answer{s.want(500, "GET", podsPath+"/p/log", ""), s.send("POST", podsPath+"/p/exec?command=x&stdout=1", "", "Connection: Upgrade", "Upgrade: SPDY/3.1")} {
		if asked.code != 500 || !strings.Contains(string(asked.body), "x509") {
			t.Errorf("got %d %s", asked.code, asked.body)
		}
	}
	if a := s.want(200, "GET", podsPath+"/p/log?insecureSkipTLSVerifyBackend=true", ""); len(a.body) > 0 {
		t.Errorf("got %s", a.body)
	}
	if got := k.requests(); len(got) != 1 {
		t.Errorf("the kubelet was asked %q", got)
	}
}

// By default the server uses a client certificate from its own CA. The user in this certificate
// must have sufficient permissions for kubelets.
func TestServerHasACertificateForKubelets(t *testing.T) {
	t.Parallel()
	ca, _ := apitest.NewCA(t)
	k := startKubelet(t, ca, func(http.ResponseWriter, *http.Request) {})
	tokens := apitest.TempFile(t, "tokens.csv", "root-token,root,1,system:masters\n")
	dir := filepath.Join(t.TempDir(), "certs")
	s := startTest(t, "--cert-dir="+dir, "--token-auth-file="+tokens, "--authorization-mode=RBAC")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(apitest.ReadFile(t, filepath.Join(dir, "ca.crt")))
	s.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool}
	s.headers = []string{"Authorization: Bearer root-token"}
	s.addNode(k)
	s.want(200, "GET", podsPath+"/p/log", "")
	if len(k.users) != 1 || k.users[0] != "apiserver-kubelet-client" {
		t.Errorf("the kubelet saw %q", k.users)
	}
	review := s.want(201, "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", `{"spec":{"user":"apiserver-kubelet-client","resourceAttributes":{"verb":"create","resource":"nodes","subresource":"proxy"}}}`)
	if !review.get("status.allowed").Bool() {
		t.Errorf("got %s", review.body)
	}
}

// dialUpgrade sends a request that upgrades the connection. It returns the connection and the
// response.
func (s *testServer) dialUpgrade(method, path, protocol string, headers ...string) (*bufferedConn, *http.Response) {
	s.t.Helper()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(s.url, "https://"), s.client.Transport.(*http.Transport).TLSClientConfig)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: %s\r\n", method, path, protocol)
	for _, header := range headers {
		fmt.Fprintf(conn, "%s\r\n", header)
	}
	fmt.Fprintf(conn, "\r\n")
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return &bufferedConn{conn, reader}, response
}

// A bufferedConn is a connection with data that was already read from it.
type bufferedConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *bufferedConn) Read(p []byte) (int, error) { return c.r.Read(p) }

func TestExecIsAConnectionToTheKubelet(t *testing.T) {
	t.Parallel()
	ca, caFile := apitest.NewCA(t)
	ended := make(chan struct{}, 4)
	k := startKubelet(t, ca, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("the kubelet sees the client's token")
		}
		conn := upgrade(t, w, r.Header.Get("Upgrade"))
		_, _ = io.Copy(conn, conn)
		conn.Close()
		ended <- struct{}{}
	})
	s := startWithNode(t, k, "--kubelet-certificate-authority="+caFile)
	token := "Authorization: Bearer root-token"
	for asked, want := range map[string]string{
		"POST /p/exec?command=ls&command=-l&stdin=true&stdout=true&tty=1": "POST /exec/default/p/c?command=ls&command=-l&input=1&output=1&tty=1",
		"GET /two/exec?container=b&command=ls&stdout=1":                   "GET /exec/default/two/b?command=ls&output=1",
		"POST /p/attach?stderr=true":                                      "POST /attach/default/p/c?error=1",
		"POST /p/portforward?ports=80&ports=443":                          "POST /portForward/default/p?port=80%2C443",
	} {
		method, path, _ := strings.Cut(asked, " ")
		conn, response := s.dialUpgrade(method, podsPath+path, "SPDY/3.1", token)
		if response.StatusCode != 101 || response.Header.Get("Upgrade") != "SPDY/3.1" || response.Header.Get("X-Stream-Protocol-Version") == "" {
			t.Fatalf("%s: got %d %v", asked, response.StatusCode, response.Header)
		}
		text := bytes.Repeat([]byte("0123456789abcdef"), 8<<10)
		go func() { _, _ = conn.Write(text) }()
		back := make([]byte, len(text))
		if _, err := io.ReadFull(conn, back); err != nil || !bytes.Equal(back, text) {
			t.Errorf("%s: %v", asked, err)
		}
		conn.Close()
		select {
		case <-ended: // the server must also close the connection to the kubelet
		case <-apitest.Timeout(t):
			t.Errorf("%s: the connection to the kubelet is still open", asked)
		}
		got := k.requests()
		if last := got[len(got)-1]; last != want {
			t.Errorf("%s: the kubelet was asked %s, want %s", asked, last, want)
		}
	}
	for path, want := range map[string]string{"/p/exec?command=ls": "Upgrade request required", "/none/exec?command=ls": "pod none does not have a host assigned"} {
		if a := s.want(400, "POST", podsPath+path, ""); a.get("message").String() != want {
			t.Errorf("%s: got %s", path, a.body)
		}
	}
	s.want(400, "POST", podsPath+"/p/exec?command=ls&dryRun=All", "")
	s.want(405, "DELETE", podsPath+"/p/exec", "")
}

// If there are no nodes, the error must say that Pods do not run.
func TestExecWithoutNodesSaysWhy(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.want(201, "POST", podsPath, `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)
	if a := s.want(400, "POST", podsPath+"/p/exec?command=ls", ""); !strings.Contains(a.get("message").String(), "no kubelet has registered a node") {
		t.Errorf("got %s", a.body)
	}
	s.want(204, "GET", podsPath+"/p/log", "")
}

// A user who may not create pods/exec cannot reach the kubelet. Other forms of the path and other
// verbs that begin a WebSocket do not help.
func TestExecTakesTheRightToCreate(t *testing.T) {
	t.Parallel()
	ca, _ := apitest.NewCA(t)
	k := startKubelet(t, ca, func(w http.ResponseWriter, r *http.Request) { upgrade(t, w, "websocket").Close() })
	s := startWithNode(t, k, "--authorization-mode=RBAC")
	role := `"rules":[{"apiGroups":[""],"resources":["pods","pods/exec","pods/attach","pods/portforward"],"verbs":["get","list","watch"]}]`
	s.want(201, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", `{"metadata":{"name":"reader"},`+role+`}`)
	s.want(201, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `{"metadata":{"name":"reader"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"reader"},
		"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"bob"}]}`)
	s.want(200, "GET", podsPath+"/p", "", "Authorization: Bearer bob-token")
	for _, asked := range []string{"GET /p/exec?command=x", "POST /p/exec?command=x", "GET /p/attach", "GET /p/portforward", "GET /p//exec", "GET /p/exec/", "GET /p/exec/x", "GET /p%2Fexec?command=x",
		"GET /./p/exec", "GET /p/proxy", "GET /p/proxy/../exec", "HEAD /p/exec", "GET /p/log", "GET /p/EXEC", "CONNECT /p/exec", "PUT /p/exec", "get /p/exec"} {
		method, path, _ := strings.Cut(asked, " ")
		_, response := s.dialUpgrade(method, podsPath+path, "websocket", "Authorization: Bearer bob-token", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version: 13")
		if response.StatusCode < 400 {
			t.Errorf("%s: got %d", asked, response.StatusCode)
		}
	}
	for _, path := range []string{"/api/v1/nodes/node-1/proxy/exec/default/p/c?command=x", "/api/v1/nodes/https:node-1:" + strconv.Itoa(k.port) + "/proxy/exec/default/p/c"} {
		if _, response := s.dialUpgrade("POST", path, "SPDY/3.1", "Authorization: Bearer bob-token"); response.StatusCode != 403 {
			t.Errorf("%s: got %d", path, response.StatusCode)
		}
	}
	if got := k.requests(); len(got) > 0 {
		t.Errorf("the kubelet was asked %q", got)
	}
}

// Admission plug-ins see exec as CONNECT. The object must contain the options of the request.
func TestExecGoesThroughAdmission(t *testing.T) {
	t.Parallel()
	ca, _ := apitest.NewCA(t)
	k := startKubelet(t, ca, func(w http.ResponseWriter, r *http.Request) { upgrade(t, w, "SPDY/3.1").Close() })
	s := startWithNode(t, k)
	policy := func(name, resource, expression string) {
		s.want(201, "POST", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", `{"metadata":{"name":"`+name+`"},"spec":{
			"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CONNECT"],"resources":["`+resource+`"]}]},
			"validations":[{"expression":"`+expression+`"}]}}`)
		s.want(201, "POST", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings", `{"metadata":{"name":"`+name+`"},"spec":{"policyName":"`+name+`","validationActions":["Deny"]}}`)
	}
	policy("no-shells", "pods/exec", "object.kind == 'PodExecOptions' && !('sh' in object.command) && request.operation == 'CONNECT' && request.name == 'p' && request.namespace == 'default'")
	policy("no-proxies", "nodes/proxy", "object.path != '/secret'")
	exec := func(command string) int {
		_, response := s.dialUpgrade("POST", podsPath+"/p/exec?command="+command, "SPDY/3.1", "Authorization: Bearer root-token")
		return response.StatusCode
	}
	apitest.WaitFor(t, "the policy", func() bool { return exec("sh") == 422 })
	if code := exec("ls"); code != 101 {
		t.Errorf("a command that the policy allows: %d", code)
	}
	apitest.WaitFor(t, "the policy", func() bool { return s.send("GET", "/api/v1/nodes/node-1/proxy/secret", "").code == 422 })

	var mu sync.Mutex
	var reviewed []string
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review struct {
			Request struct {
				UID, Operation, SubResource, Name, Namespace string
				Kind, Resource                               map[string]string
				Object, Options                              any
			}
		}
		_ = json.NewDecoder(r.Body).Decode(&review)
		mu.Lock()
		text, _ := json.Marshal(review.Request)
		reviewed = append(reviewed, strings.Replace(string(text), review.Request.UID, "UID", 1))
		mu.Unlock()
		fmt.Fprintf(w, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":%q,"allowed":false,"status":{"message":"no attaching","code":403}}}`, review.Request.UID)
	}))
	t.Cleanup(hook.Close)
	bundle := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw}))
	s.want(201, "POST", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", `{"metadata":{"name":"attach"},"webhooks":[{"name":"attach.example.com",
		"admissionReviewVersions":["v1"],"sideEffects":"None","clientConfig":{"url":"`+hook.URL+`","caBundle":"`+bundle+`"},
		"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CONNECT"],"resources":["pods/attach"]}]}]}`)
	var denied *http.Response
	apitest.WaitFor(t, "the webhook", func() bool {
		_, denied = s.dialUpgrade("POST", podsPath+"/p/attach?stdin=1", "SPDY/3.1", "Authorization: Bearer root-token")
		return denied.StatusCode == 403
	})
	want := `{"UID":"UID","Operation":"CONNECT","SubResource":"attach","Name":"p","Namespace":"default","Kind":{"group":"","kind":"PodAttachOptions","version":"v1"},` +
		`"Resource":{"group":"","resource":"pods","version":"v1"},"Object":{"apiVersion":"v1","kind":"PodAttachOptions","stdin":true},"Options":null}`
	if len(reviewed) != 1 || reviewed[0] != want {
		t.Errorf("the webhook was asked %s\nwant %s", reviewed, want)
	}
}

// serveSPDY behaves like a kubelet without WebSockets. It copies stdin to stdout and ends with a
// status. A port-forward gets the text hello.
func serveSPDY(t *testing.T, w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "SPDY/3.1" {
		http.Error(w, "no WebSockets here", http.StatusBadRequest)
		return
	}
	protocol, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io", "portforward.k8s.io"})
	if err != nil {
		t.Error(err)
		return
	}
	created := make(chan httpstream.Stream, 8)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		created <- s
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close()
	streams := map[string]httpstream.Stream{}
	for len(streams) < map[bool]int{true: 1, false: 3}[protocol == "portforward.k8s.io"] {
		s := <-created
		streams[s.Headers().Get("streamType")] = s
	}
	if data := streams["data"]; data != nil {
		_, _ = io.WriteString(data, "hello")
		data.Close()
		<-conn.CloseChan()
		return
	}
	_, _ = io.Copy(streams["stdout"], streams["stdin"])
	streams["stdout"].Close()
	_, _ = io.WriteString(streams["error"], `{"status":"Failure","reason":"NonZeroExitCode"}`)
	streams["error"].Close()
	<-conn.CloseChan()
}

// dialWebSocket opens a WebSocket with a subprotocol.
func (s *testServer) dialWebSocket(path, protocol string) *websocket.Conn {
	s.t.Helper()
	config, err := websocket.NewConfig(strings.Replace(s.url, "https", "wss", 1)+path, "wss://127.0.0.1")
	if err != nil {
		s.t.Fatal(err)
	}
	config.TlsConfig, config.Protocol = s.client.Transport.(*http.Transport).TLSClientConfig, []string{protocol}
	config.Header.Set("Authorization", "Bearer root-token")
	ws, err := websocket.DialConfig(config)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { ws.Close() })
	return ws
}

// The newest WebSocket subprotocols are translated for kubelets before 1.36.
func TestOldKubeletsUnderstandNewWebSockets(t *testing.T) {
	t.Parallel()
	ca, _ := apitest.NewCA(t)
	k := startKubelet(t, ca, func(w http.ResponseWriter, r *http.Request) { serveSPDY(t, w, r) })
	s := startWithNode(t, k)
	ws := s.dialWebSocket(podsPath+"/p/exec?command=cat&stdin=1&stdout=1", "v5.channel.k8s.io")
	for _, message := range []string{"\x00one ", "\x00two", "\xff\x00"} { // the last message closes channel 0
		if err := websocket.Message.Send(ws, []byte(message)); err != nil {
			t.Fatal(err)
		}
	}
	got := map[byte]string{}
	for got[3] == "" {
		var message []byte
		if err := websocket.Message.Receive(ws, &message); err != nil {
			t.Fatalf("after %q: %v", got, err)
		}
		got[message[0]] += string(message[1:])
	}
	if got[1] != "one two" || got[3] != `{"status":"Failure","reason":"NonZeroExitCode"}` {
		t.Errorf("got %q", got)
	}

	ws = s.dialWebSocket(podsPath+"/p/portforward?ports=80", "SPDY/3.1+portforward.k8s.io")
	ws.PayloadType = websocket.BinaryFrame
	tunnel, err := spdy.NewClientConnection(ws)
	if err != nil {
		t.Fatal(err)
	}
	defer tunnel.Close()
	stream, err := tunnel.CreateStream(http.Header{"streamType": {"data"}, "port": {"80"}})
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(stream); string(text) != "hello" || err != nil {
		t.Errorf("got %q, %v through the tunnel", text, err)
	}

	for path, protocol := range map[string]string{"/lost/exec?command=x&stdout=1": "v5.channel.k8s.io", "/lost/portforward?ports=1": "SPDY/3.1+portforward.k8s.io"} {
		if _, response := s.dialUpgrade("GET", podsPath+path, "websocket", "Authorization: Bearer root-token", "Sec-WebSocket-Protocol: "+protocol,
			"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version: 13"); response.StatusCode != 404 {
			t.Errorf("%s: got %d", path, response.StatusCode)
		}
	}
}

// Mutating webhooks and policies can change the options that the kubelet receives.
func TestMutatingAdmissionOfExec(t *testing.T) {
	t.Parallel()
	ca, _ := apitest.NewCA(t)
	k := startKubelet(t, ca, func(w http.ResponseWriter, r *http.Request) { upgrade(t, w, "SPDY/3.1").Close() })
	s := startWithNode(t, k)
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review struct{ Request struct{ UID string } }
		_ = json.NewDecoder(r.Body).Decode(&review)
		patch := base64.StdEncoding.EncodeToString([]byte(`[{"op":"add","path":"/command","value":["changed"]}]`))
		fmt.Fprintf(w, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":%q,"allowed":true,"patchType":"JSONPatch","patch":%q}}`, review.Request.UID, patch)
	}))
	t.Cleanup(hook.Close)
	bundle := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw}))
	s.want(201, "POST", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", `{"metadata":{"name":"exec"},"webhooks":[{"name":"exec.example.com",
		"admissionReviewVersions":["v1"],"sideEffects":"None","clientConfig":{"url":"`+hook.URL+`","caBundle":"`+bundle+`"},
		"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["*"],"resources":["pods/exec"]}]}]}`)
	asks := func(want string) {
		t.Helper()
		apitest.WaitFor(t, want, func() bool {
			_, response := s.dialUpgrade("POST", podsPath+"/p/exec?command=ls&stdout=1", "SPDY/3.1", "Authorization: Bearer root-token")
			asked := k.requests()
			return response.StatusCode == 101 && asked[len(asked)-1] == want
		})
	}
	asks("POST /exec/default/p/c?command=changed&output=1")
	s.want(201, "POST", "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies", `{"metadata":{"name":"exec"},"spec":{"reinvocationPolicy":"Never",
		"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["*"],"resources":["pods/exec"]}]},
		"mutations":[{"patchType":"JSONPatch","jsonPatch":{"expression":"[JSONPatch{op: 'add', path: '/stdin', value: true}]"}}]}}`)
	s.want(201, "POST", "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings", `{"metadata":{"name":"exec"},"spec":{"policyName":"exec"}}`)
	asks("POST /exec/default/p/c?command=changed&input=1&output=1")
}
