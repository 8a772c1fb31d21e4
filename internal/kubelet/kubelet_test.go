package kubelet

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/apitest"
	"apilet/internal/limits"
	"apilet/internal/proxy"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

func TestMain(m *testing.M) { apitest.Main(m) }

// A fixture is a Connector behind an HTTP server. Each address of a Pod leads to pod, a listener of the test.
type fixture struct {
	t      *testing.T
	c      *Connector
	server *httptest.Server
	pod    net.Listener

	mu     sync.Mutex // guards dialled
	dialed []string
}

const user = "alice"

func newFixture(t *testing.T) *fixture {
	t.Helper()
	st, err := store.Open(filepath.Join(t.TempDir(), "a.db"), store.Options{Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	f := &fixture{t: t}
	if f.pod, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.pod.Close() })
	clients := NewClients(Config{Certificate: func() *tls.Certificate { return nil }, AddressTypes: []corev1.NodeAddressType{corev1.NodeInternalIP}, Timeout: time.Minute})
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		f.mu.Lock()
		f.dialed = append(f.dialed, address)
		f.mu.Unlock()
		return (&net.Dialer{}).DialContext(ctx, network, f.pod.Addr().String())
	}
	clients.pods.DialContext, clients.podStreams.DialContext = dial, dial
	fail := func(w http.ResponseWriter, r *http.Request, err error) { response.Refuse(w, r, err) }
	f.c = &Connector{Clients: clients, Store: st, Types: scheme.NewRegistry(), MayCreate: func(*request.Request) error { return nil }, WriteError: fail,
		Forward: &proxy.Forwarder{Slots: limits.NewSlots(16), Stopping: make(chan struct{})}}
	f.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := &request.Request{Info: request.Parse(r), User: request.User{Name: user}}
		r = r.WithContext(context.WithValue(r.Context(), request.Key{}, rec))
		if err := f.c.Serve(w, r, rec, f.c.Types.Lookup(rec.Info.Group, rec.Info.Version, rec.Info.Resource)); err != nil {
			fail(w, r, err)
		}
	}))
	t.Cleanup(func() { f.server.CloseClientConnections(); f.server.Close(); clients.Close() })
	return f
}

// store writes an object without any checks.
func (f *fixture) store(plural, group string, obj scheme.Object) {
	f.t.Helper()
	res := f.c.Types.Lookup(group, "v1", plural)
	text, revAt, err := res.EncodeStored(obj)
	if err != nil {
		f.t.Fatal(err)
	}
	change := store.Change{Op: store.OpCreate, Key: res.Key(res.Scope(obj.GetNamespace()), obj.GetName()), JSON: text, RevAt: revAt}
	if _, err := f.c.Store.Commit(f.t.Context(), change); err != nil {
		f.t.Fatal(err)
	}
}

// podAt stores a Pod with an address.
func (f *fixture) podAt(name, address string) {
	f.t.Helper()
	f.store("pods", "", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name},
		Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}}},
		Status: corev1.PodStatus{PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}}})
}

// serve answers the requests to Pods.
func (f *fixture) serve(answer http.HandlerFunc) {
	server := &http.Server{Handler: answer}
	go func() { _ = server.Serve(f.pod) }()
	f.t.Cleanup(func() { server.Close() })
}

// get asks without following redirects.
func (f *fixture) get(method, path string, headers ...string) (*http.Response, string) {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), method, f.server.URL+path, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	return answer, string(body)
}

const proxied = "/api/v1/namespaces/n/pods/p/proxy"

func TestRequestsReachPods(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.podAt("p", "10.1.2.3")
	f.podAt("local", "127.0.0.1")
	f.podAt("new", "")
	f.serve(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %s %q %q", r.Method, r.RequestURI, r.Header.Get("X-Forwarded-Uri"), r.Header.Get("Authorization"), r.Header.Get("X-Remote-User"))
	})
	for attributes, want := range map[string]string{
		"GET " + proxied + "/":                         `GET / ` + proxied + `/ "" ""`,
		"GET " + proxied + "/a/b?c=d&e=%2F":            `GET /a/b?c=d&e=%2F ` + proxied + `/a/b "" ""`,
		"POST " + proxied + "/a/":                      `POST /a/ ` + proxied + `/a/ "" ""`,
		"DELETE " + proxied + "/a%20b":                 `DELETE /a%20b ` + proxied + `/a%20b "" ""`,
		"OPTIONS " + proxied + "/a":                    `OPTIONS /a ` + proxied + `/a "" ""`,
		"GET /api/v1/namespaces/n/pods/p:99/proxy/x":   `GET /x /api/v1/namespaces/n/pods/p:99/proxy/x "" ""`,
		"GET /api/v1/namespaces/n/pods/local/proxy/x":  "address not allowed",
		"GET /api/v1/namespaces/n/pods/new/proxy/x":    "address not allowed",
		"GET /api/v1/namespaces/n/pods/absent/proxy/x": `pods \"absent\" not found`,
		"GET /api/v1/namespaces/n/pods/a:b:c:d/proxy/": `invalid pod request \"a:b:c:d\"`,
	} {
		method, path, _ := strings.Cut(attributes, " ")
		answer, body := f.get(method, path, "Authorization", "Bearer secret", "X-Remote-User", "root")
		if !strings.Contains(body, want) {
			t.Errorf("%s: got %d %s\nwant %s", attributes, answer.StatusCode, body, want)
		}
		if policy := answer.Header.Get("Content-Security-Policy"); answer.StatusCode == 200 && !strings.HasPrefix(policy, "sandbox") {
			t.Errorf("%s: its page has the server's origin (%q)", attributes, policy)
		}
	}
	if answer, _ := f.get("HEAD", proxied+"/x"); answer.StatusCode != 200 {
		t.Errorf("HEAD: %d", answer.StatusCode)
	}
	if answer, _ := f.get("GET", proxied+"?a=b"); answer.StatusCode != 301 || answer.Header.Get("Location") != proxied+"/?a=b" {
		t.Errorf("without a slash: %d to %q", answer.StatusCode, answer.Header.Get("Location"))
	}
	for _, address := range f.dialed {
		if address != "10.1.2.3:8080" && address != "10.1.2.3:99" {
			t.Errorf("dialled %s", address)
		}
	}
}

func TestLinksLeadBackThroughTheProxy(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.podAt("p", "10.1.2.3")
	long := strings.Repeat("x", maxRewritten)
	f.serve(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Set-Cookie", "a=b")
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Strict-Transport-Security", "max-age=1")
		page := `<a href="/x">x</a><a href="y">y</a><a href="https://elsewhere/z">z</a>`
		switch r.URL.Path {
		case "/moved":
			http.Redirect(w, r, "/there", http.StatusFound)
		case "/long":
			_, _ = io.WriteString(w, page+long)
		case "/endless":
			for {
				if _, err := io.WriteString(w, page); err != nil {
					return
				}
			}
		default:
			_, _ = io.WriteString(w, page)
		}
	})
	answer, body := f.get("GET", proxied+"/")
	if want := `<a href="` + proxied + `/x">x</a><a href="y">y</a><a href="https://elsewhere/z">z</a>`; body != want {
		t.Errorf("got %s\nwant %s", body, want)
	}
	if h := answer.Header; h.Get("Access-Control-Allow-Origin")+h.Get("Strict-Transport-Security") != "" || h.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Errorf("got %v", h)
	}
	if answer, _ := f.get("GET", proxied+"/moved"); answer.Header.Get("Location") != proxied+"/there" {
		t.Errorf("redirected to %s", answer.Header.Get("Location"))
	}
	if answer, body := f.get("GET", proxied+"/long"); len(body) < len(long) || !strings.HasPrefix(body, `<a href="/x">`) || answer.Header.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Errorf("a long page: %d bytes, %v, %.60s", len(body), answer.Header, body)
	}
	r, _ := http.NewRequest("GET", f.server.URL+proxied+"/endless", nil)
	endless, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer endless.Body.Close()
	if n, err := io.CopyN(io.Discard, endless.Body, 4*maxRewritten); err != nil {
		t.Errorf("a page without an end: %d bytes, %v", n, err)
	}
}

// A Pod that answers with anything but HTTP, or not at all, costs its own user's places only.
func TestPodsThatMisbehave(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string]string{
		"garbage":       "what?\r\n\r\n",
		"early hints":   strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 100),
		"unasked 101":   "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
		"a long header": "HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("a", 1<<20) + "\r\n\r\n",
		"nothing":       "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.podAt("p", "10.1.2.3")
			go func() {
				for {
					conn, err := f.pod.Accept()
					if err != nil {
						return
					}
					_, _ = http.ReadRequest(bufio.NewReader(conn))
					_, _ = io.WriteString(conn, sent)
					conn.Close()
				}
			}()
			for range 20 { // more than the user has places
				if answer, body := f.get("GET", proxied+"/x"); answer.StatusCode != 503 && answer.StatusCode != 502 && answer.StatusCode != 500 {
					t.Fatalf("got %d %.100s", answer.StatusCode, body)
				}
			}
		})
	}
}

// One user whose Pods do not answer has no more than a quarter of the places.
func TestUsersHaveTheirOwnPlaces(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.podAt("p", "10.1.2.3")
	f.podAt("q", "10.1.2.4")
	arrived := make(chan struct{})
	f.serve(func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-r.Context().Done()
	})
	var waiting sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 4 { // of 16
		waiting.Go(func() {
			r, _ := http.NewRequestWithContext(ctx, "GET", f.server.URL+proxied+"/", nil)
			if answer, err := http.DefaultTransport.RoundTrip(r); err == nil {
				answer.Body.Close()
			}
		})
	}
	for range 4 {
		<-arrived
	}
	if answer, _ := f.get("GET", proxied+"/"); answer.StatusCode != 429 {
		t.Errorf("a fifth request: %d", answer.StatusCode)
	}
	cancel()
	waiting.Wait()
}

func TestServicesLeadToTheirPods(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.podAt("p", "10.1.2.3")
	f.podAt("q", "10.1.2.4")
	f.serve(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) })
	f.store("services", "", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "s"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "web", Port: 80}, {Name: "admin", Port: 81}}}})
	web, port, ready, not := "web", int32(8080), true, false
	of := func(pod, address string, ready *bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: ready}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "n", Name: pod}}
	}
	f.store("endpointslices", "discovery.k8s.io", &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "s-1", Labels: map[string]string{discoveryv1.LabelServiceName: "s"}},
		Ports:     []discoveryv1.EndpointPort{{Name: &web, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{of("p", "10.1.2.3", &ready), of("q", "10.1.2.4", &not), of("p", "10.9.9.9", &ready), {Addresses: []string{"10.8.8.8"}}}})
	for range 10 {
		for _, name := range []string{"s:web", "s:80", "http:s:web"} {
			if answer, body := f.get("GET", "/api/v1/namespaces/n/services/"+name+"/proxy/x"); answer.StatusCode != 200 || body != "/x" {
				t.Errorf("%s: got %d %s", name, answer.StatusCode, body)
			}
		}
	}
	for name, want := range map[string]string{"s": "no endpoints available", "s:81": "no endpoints available", "s:82": `no service port 82 found for service \"s\"`, "t:80": `services \"t\" not found`} {
		if _, body := f.get("GET", "/api/v1/namespaces/n/services/"+name+"/proxy/x"); !strings.Contains(body, want) {
			t.Errorf("%s: got %s, want %s", name, body, want)
		}
	}
	for _, address := range f.dialed {
		if address != "10.1.2.3:8080" {
			t.Errorf("dialled %s", address)
		}
	}
}

// Requests to Pods may upgrade the connection, too.
func TestWebSocketsReachPods(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.podAt("p", "10.1.2.3")
	f.serve(func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		fmt.Fprintf(conn, "HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n%s", r.Header.Get("Upgrade"), r.RequestURI)
		conn.Close()
	})
	answer, _ := f.get("GET", proxied+"/a?b=c", "Connection", "Upgrade", "Upgrade", "websocket")
	if answer.StatusCode != 101 {
		t.Errorf("got %d", answer.StatusCode)
	}
}
