// Package webhook calls programs that speak HTTPS: the client, its limits, and where a Service is found. What is asked, of whom, and
// what follows from the answer, is for package admission (reviews of writes) and package crd (objects in other versions).
//
//	POST https://127.0.0.1:9443/mutate?timeout=10s     {"kind":"AdmissionReview","request":{"uid":"7f…","operation":"CREATE",…}}
//	200                                                {"kind":"AdmissionReview","response":{"uid":"7f…","allowed":true,…}}
//
// The other side may be anything: down, slow, dripping bytes, talking HTML, or another program altogether. So each call ends at its
// deadline, reads at most so many bytes, follows no redirect (it would carry objects where nobody has allowed them to go), sends
// nothing twice, and every way to fail comes back as an error that says what was wrong.
//
// A Service has no address here, since no network belongs to the cluster. It is dialled where its endpoints are, or where its
// externalName points, under the name that its certificate has: NAME.NAMESPACE.svc.
package webhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"apilet/internal/apierror"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	maxQuotedAnswer = 2048 // bytes of an answer that is no review, in the error
	idleConn        = 90 * time.Second
	idleConns       = 25
	maxHeader       = 64 << 10                   // bytes of an answer's header
	agent           = "kube-apiserver-admission" // by this name webhooks know who calls
)

// ---- The call

// A Client holds the connections to one webhook.
type Client struct {
	url       string          // that it posts to
	transport *http.Transport // its connections; the dialler finds what stands behind a Service
	client    *http.Client
}

// NewClient makes the client of a webhook. dial is told where a Service is to be found.
func NewClient(config *admissionv1.WebhookClientConfig, services *ServiceResolver) (*Client, error) {
	secured := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(config.CABundle) > 0 {
		secured.RootCAs = x509.NewCertPool()
		if !secured.RootCAs.AppendCertsFromPEM(config.CABundle) {
			return nil, errors.New("unable to load root certificates: unable to parse bytes as PEM block")
		}
	}
	c := &Client{transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: secured, TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: idleConns, IdleConnTimeout: idleConn, MaxResponseHeaderBytes: maxHeader}}
	// Calls over one HTTP/2 connection all go to one instance of the webhook: that is for loopback, where there is only one.
	local := false
	switch s := config.Service; {
	case s != nil:
		c.url = serviceURL(s)
		secured.ServerName = s.Name + "." + s.Namespace + ".svc"
		c.transport.Proxy, c.transport.DialContext = nil, services.Dialer(s.Namespace, s.Name, servicePort(s))
	case config.URL != nil:
		u, err := url.Parse(*config.URL)
		if err != nil {
			return nil, fmt.Errorf("Unparsable URL: %w", err)
		}
		c.url, local = u.Scheme+"://"+u.Host+cleanPath(u.Path), request.IsLoopback(u.Hostname())
	default:
		return nil, errors.New("webhook configuration must have either service or URL")
	}
	c.transport.Protocols = new(http.Protocols)
	c.transport.Protocols.SetHTTP1(true)
	c.transport.Protocols.SetHTTP2(local)
	c.client = &http.Client{Transport: c.transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return c, nil
}

// Post sends a review and returns the body of a good answer, which has at most so many bytes. ctx has a deadline, which the webhook is told.
func (c *Client) Post(ctx context.Context, body []byte, most int) ([]byte, error) {
	target := c.url
	if deadline, ok := ctx.Deadline(); ok {
		left := max(time.Until(deadline), 0)
		target += "?timeout=" + ((left + time.Second - 1).Truncate(time.Second)).String()
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, */*")
	r.Header.Set("User-Agent", agent)
	defer request.From(ctx).NoteHook(time.Now())
	response, err := c.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusSwitchingProtocols { // its body is the connection, whose reads do not end with ctx
		return nil, refusedCall(response, nil)
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, int64(most)+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("unexpected error when reading response body. Please retry. Original error: %w", err)
	case response.StatusCode < 200 || response.StatusCode > http.StatusPartialContent:
		return nil, refusedCall(response, answer)
	case len(answer) == 0:
		return nil, fmt.Errorf("0-length response with status code: %d and content type: %s", response.StatusCode, response.Header.Get("Content-Type"))
	case len(answer) > most:
		return nil, fmt.Errorf("the response is longer than %d bytes", most)
	}
	return answer, nil
}

// refusedCall words an HTTP status that is none of success: a Status of its own, or what stands in the body.
func refusedCall(response *http.Response, body []byte) error {
	var status metav1.Status
	if json.Unmarshal(body, &status) == nil && status.Kind == "Status" && status.Status == metav1.StatusFailure {
		status.Code = int32(apierror.ForeignCode(cmp.Or(int(status.Code), response.StatusCode)))
		return apierrors.FromObject(&status)
	}
	message := "unknown"
	if kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type")); err != nil || strings.HasPrefix(kind, "text/") {
		message = strings.TrimSpace(string(body[:min(len(body), maxQuotedAnswer)]))
	}
	return apierrors.NewGenericServerResponse(apierror.ForeignCode(response.StatusCode), http.MethodPost, schema.GroupResource{}, "", message, 0, true)
}

// Close lets go of the connections that no call uses.
func (c *Client) Close() {
	if c != nil {
		c.transport.CloseIdleConnections()
	}
}

// ---- Services

// A ServiceResolver finds the addresses behind Services.
type ServiceResolver struct {
	Store *store.Store     // where Services and their endpoints are read
	Types *scheme.Registry // their rows
}

// serviceURL is the address of a Service as messages write it: https://NAME.NAMESPACE.svc:PORT/PATH.
func serviceURL(s *admissionv1.ServiceReference) string {
	called := ""
	if s.Path != nil {
		called = *s.Path
	}
	return fmt.Sprintf("https://%s.%s.svc:%d%s", s.Name, s.Namespace, servicePort(s), cleanPath(called))
}

// cleanPath is the shortest form of a webhook's path: one slash between two segments, none at the end. envtest joins an address that ends
// in a slash with a path that begins with one, and Go's ServeMux answers what is not clean with a redirect, which is not followed.
func cleanPath(called string) string {
	clean := url.URL{Path: path.Join("/", called)}
	return clean.EscapedPath()
}

// Dialer connects to whatever stands behind a Service at that moment.
func (b *ServiceResolver) Dialer(namespace, name string, port int32) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		address, err := b.resolve(namespace, name, port)
		if err != nil {
			return nil, err
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
}

// Service reads a Service; the error is the store's where there is none.
func (b *ServiceResolver) Service(namespace, name string) (svc corev1.Service, err error) {
	rec, err := b.Store.Get(b.Types.Lookup("", "v1", "services").Key(namespace, name))
	if err == nil {
		err = json.Unmarshal(rec.JSON, &svc)
	}
	return svc, err
}

// resolve returns an address of a Service's port: its externalName, or one of its endpoints.
func (b *ServiceResolver) resolve(namespace, name string, port int32) (string, error) {
	svc, err := b.Service(namespace, name)
	if errors.Is(err, store.ErrNotFound) {
		return "", &unreachable{fmt.Sprintf("service %q not found", name), fmt.Sprintf("there is no Service %s/%s", namespace, name)}
	}
	if err != nil {
		return "", err
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return net.JoinHostPort(svc.Spec.ExternalName, strconv.Itoa(int(port))), nil
	}
	for _, p := range svc.Spec.Ports {
		if p.Port != port {
			continue
		}
		addresses, _, err := b.Endpoints(namespace, name, p.Name)
		if err == nil && len(addresses) == 0 {
			err = &unreachable{fmt.Sprintf("no endpoints available for service %q", name), fmt.Sprintf("Service %s/%s has no endpoints, and no pods run here that would give it some", namespace, name)}
		}
		if err != nil {
			return "", err
		}
		return addresses[rand.IntN(len(addresses))], nil
	}
	return "", fmt.Errorf("no service port %d found for service %q", port, name)
}

// Endpoints lists the addresses of a Service's named port, by its EndpointSlices and its Endpoints. any says that there are such objects.
func (b *ServiceResolver) Endpoints(namespace, service, port string) (addresses []string, any bool, err error) {
	slices := b.Types.Lookup("discovery.k8s.io", "v1", "endpointslices")
	for rec, err := range b.Store.All(store.Span{Prefix: slices.KeyPrefix(namespace), Sound: true}) {
		if err != nil {
			return nil, any, err
		}
		if gjson.GetBytes(rec.JSON, `metadata.labels.kubernetes\.io/service-name`).String() == service {
			addresses, any = append(addresses, sliceAddresses(rec.JSON, port)...), true
		}
	}
	rec, err := b.Store.Get(b.Types.Lookup("", "v1", "endpoints").Key(namespace, service))
	if errors.Is(err, store.ErrNotFound) {
		return addresses, any, nil
	}
	var old corev1.Endpoints
	if err == nil {
		err = json.Unmarshal(rec.JSON, &old)
	}
	for _, subset := range old.Subsets {
		for _, p := range subset.Ports {
			for _, a := range subset.Addresses {
				if p.Name == port {
					addresses = append(addresses, net.JoinHostPort(a.IP, strconv.Itoa(int(p.Port))))
				}
			}
		}
	}
	return addresses, true, err
}

// sliceAddresses lists the addresses of a slice's endpoints that are ready, or do not say.
func sliceAddresses(stored []byte, port string) (addresses []string) {
	var slice discoveryv1.EndpointSlice
	if json.Unmarshal(stored, &slice) != nil {
		return nil
	}
	for _, p := range slice.Ports {
		named := p.Name == nil && port == "" || p.Name != nil && *p.Name == port
		if !named || p.Port == nil {
			continue
		}
		for _, e := range slice.Endpoints {
			if len(e.Addresses) > 0 && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
				addresses = append(addresses, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*p.Port))))
			}
		}
	}
	return addresses
}
