package webhook

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"apilet/internal/scheme"
	"apilet/internal/store"
)

func TestServiceURLHasTheCleanPath(t *testing.T) {
	for given, want := range map[string]string{"": "/", "/": "/", "/a": "/a", "a": "/a", "/a/b/": "/a/b", "//a": "/a"} {
		got := serviceURL(&admissionv1.ServiceReference{Namespace: "system", Name: "hook", Path: &given})
		if want := "https://hook.system.svc:443" + want; got != want {
			t.Errorf("service path %q: got %s, want %s", given, got, want)
		}
	}
}

// A cluster is what a ServiceResolver looks through.
type cluster struct {
	t *testing.T
	*ServiceResolver
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	st, err := store.Open(filepath.Join(t.TempDir(), "db"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return &cluster{t, &ServiceResolver{Store: st, Types: scheme.NewRegistry()}}
}

// put stores an object of the namespace default.
func (c *cluster) put(apiVersion, kind, plural, rest string) {
	c.t.Helper()
	group, version, grouped := strings.Cut(apiVersion, "/")
	if !grouped {
		group, version = "", apiVersion
	}
	res := c.Types.Lookup(group, version, plural)
	obj, _, err := res.Decode(fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,%s}`, apiVersion, kind, rest), "application/json", "")
	if err != nil {
		c.t.Fatal(err)
	}
	doc, revAt, err := res.EncodeStored(obj)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.Store.Commit(c.t.Context(), store.Change{Op: store.OpCreate, Key: res.Key("default", obj.GetName()), JSON: doc, RevAt: revAt}); err != nil {
		c.t.Fatal(err)
	}
}

// remove deletes what put has stored.
func (c *cluster) remove(key string) {
	c.t.Helper()
	const last = `{"metadata":{"resourceVersion":""}}`
	rec, err := c.Store.Get(key)
	if err == nil {
		_, err = c.Store.Commit(c.t.Context(), store.Change{Op: store.OpDelete, Key: key, Expect: rec.Rev, JSON: []byte(last), RevAt: len(last) - 3})
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func TestAServiceIsDialledWhereItsEndpointsAre(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	service := func(rest string) { t.Helper(); c.put("v1", "Service", "services", rest) }
	endpoints := func(rest string) { t.Helper(); c.put("v1", "Endpoints", "endpoints", rest) }
	slice := func(name, address string, ready bool) {
		t.Helper()
		c.put("discovery.k8s.io/v1", "EndpointSlice", "endpointslices", fmt.Sprintf(`"metadata":{"name":"web-%s","labels":{"kubernetes.io/service-name":"web"}},"addressType":"IPv4",
			"endpoints":[{"addresses":["%s"],"conditions":{"ready":%v}}],"ports":[{"name":"hook","port":8443}]`, name, address, ready))
	}
	check := func(name string, port int32, want string) {
		t.Helper()
		got, err := c.resolve("default", name, port)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	check("web", 443, `service "web" not found`)
	service(`"metadata":{"name":"web"},"spec":{"ports":[{"name":"hook","port":443},{"name":"other","port":80}]}`)
	check("web", 443, `no endpoints available for service "web"`)
	endpoints(`"metadata":{"name":"web"},"subsets":[{"addresses":[{"ip":"10.0.0.7"}],"ports":[{"name":"other","port":8080},{"name":"hook","port":8443}]}]`)
	check("web", 443, "10.0.0.7:8443")
	c.remove("//endpoints/default/web")
	slice("down", "10.0.0.8", false)
	check("web", 443, `no endpoints available for service "web"`)
	slice("up", "10.0.0.9", true)
	check("web", 443, "10.0.0.9:8443")
	service(`"metadata":{"name":"elsewhere"},"spec":{"type":"ExternalName","externalName":"hooks.example.com"}`)
	check("elsewhere", 443, "hooks.example.com:443")
	check("web", 444, `no service port 444 found for service "web"`)
}

// TestAServiceIsCalledByItsName, which is what its certificate has to be for, whatever address stands behind it.
func TestAServiceIsCalledByItsName(t *testing.T) {
	t.Parallel()
	cl := newCluster(t)
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{}`) }))
	defer hook.Close()
	_, port, _ := net.SplitHostPort(hook.Listener.Addr().String())
	cl.put("v1", "Service", "services", `"metadata":{"name":"hook"},"spec":{"ports":[{"port":443}]}`)
	cl.put("v1", "Endpoints", "endpoints", `"metadata":{"name":"hook"},"subsets":[{"addresses":[{"ip":"198.51.100.1"}],"ports":[{"port":`+port+`}]}]`)
	called := "/review"
	c, err := NewClient(&admissionv1.WebhookClientConfig{CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw}),
		Service: &admissionv1.ServiceReference{Namespace: "default", Name: "hook", Path: &called}}, cl.ServiceResolver)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.url != "https://hook.default.svc:443/review" || c.transport.TLSClientConfig.ServerName != "hook.default.svc" || c.transport.Protocols.HTTP2() {
		t.Errorf("%s as %s", c.url, c.transport.TLSClientConfig.ServerName)
	}
	c.transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if got, err := cl.resolve("default", "hook", 443); got != "198.51.100.1:"+port || address != "hook.default.svc:443" {
			t.Errorf("dials %s (%v) for %s", got, err, address)
		}
		return (&net.Dialer{}).DialContext(ctx, network, hook.Listener.Addr().String())
	}
	_, err = c.Post(t.Context(), []byte(`{}`), 1<<20)
	if err == nil || !strings.Contains(err.Error(), "not hook.default.svc") {
		t.Errorf("a certificate for another name: %v", err)
	}
	c.transport.TLSClientConfig.ServerName = "example.com" // which the test server's certificate is for
	if _, err := c.Post(t.Context(), []byte(`{"apiVersion":"admission.k8s.io/v1"}`), 1<<20); err != nil {
		t.Error(err)
	}
}

// TestSwitchingProtocolsIsAnError: the body of a 101 is the connection, and reading it would last longer than the request.
func TestSwitchingProtocolsIsAnError(t *testing.T) {
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n{}")
		_, _ = io.Copy(io.Discard, conn) // until the client closes it
	}))
	defer hook.Close()
	client, err := NewClient(&admissionv1.WebhookClientConfig{URL: &hook.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if answer, err := client.Post(t.Context(), []byte("{}"), 100); err == nil {
		t.Errorf("%q is taken for an answer", answer)
	}
}
