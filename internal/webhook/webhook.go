// Package webhook calls programs over HTTPS. It contains the client with its limits, and resolves
// Services. Package admission (reviews of writes) and package crd (conversion between versions)
// define the content of the calls.
//
//	POST https://127.0.0.1:9443/mutate?timeout=10s     {"kind":"AdmissionReview","request":{"uid":"7f…","operation":"CREATE",…}}
//	200                                                {"kind":"AdmissionReview","response":{"uid":"7f…","allowed":true,…}}
//
// The webhook may be unavailable or slow, or may return invalid data. Therefore, the duration and
// the size of the response are limited, and calls are not retried. Redirects are not followed,
// because they could send objects to a server that was not configured. Each failure is returned as
// an error that describes the cause.
//
// A Service has no virtual IP, since apilet has no cluster network. The client connects to an
// endpoint of the Service, or to its externalName, and verifies the certificate for
// NAME.NAMESPACE.svc.
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
	// maximum number of bytes of an invalid response that are quoted in an error
	maxQuotedAnswer = 2048
	idleConn        = 90 * time.Second
	idleConns       = 25
	// maximum size in bytes of a response header
	maxHeader = 64 << 10
	// the User-Agent by which webhooks recognize kube-apiserver
	agent = "kube-apiserver-admission"
)

// ---- The call

// Client holds the connections to one webhook.
type Client struct {
	// the URL of the webhook
	url string
	// its dialer resolves a Service for each connection
	transport *http.Transport
	client    *http.Client
}

// NewClient returns the client of a webhook. services resolves Services.
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
	// All calls over one HTTP/2 connection reach the same instance of the webhook. HTTP/2 is
	// therefore only used for loopback addresses, where there is only one instance.
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

// Post sends a review and returns the body of a successful response, which has at most most bytes.
// ctx should have a deadline, which is sent to the webhook.
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
	defer request.From(ctx).AddHookWait(time.Now())
	response, err := c.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	// the body is the connection, and reading it would not end with ctx
	if response.StatusCode == http.StatusSwitchingProtocols {
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

// refusedCall returns the error for an unsuccessful HTTP status: the Status in the body, or the
// text of the body.
func refusedCall(response *http.Response, body []byte) error {
	var status metav1.Status
	if json.Unmarshal(body, &status) == nil && status.Kind == "Status" && status.Status == metav1.StatusFailure {
		status.Code = int32(apierror.UpstreamCode(cmp.Or(int(status.Code), response.StatusCode)))
		return apierrors.FromObject(&status)
	}
	message := "unknown"
	if kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type")); err != nil || strings.HasPrefix(kind, "text/") {
		message = strings.TrimSpace(string(body[:min(len(body), maxQuotedAnswer)]))
	}
	return apierrors.NewGenericServerResponse(apierror.UpstreamCode(response.StatusCode), http.MethodPost, schema.GroupResource{}, "", message, 0, true)
}

// Close closes the idle connections.
func (c *Client) Close() {
	if c != nil {
		c.transport.CloseIdleConnections()
	}
}

// ---- Services

// ServiceResolver finds the addresses of Services.
type ServiceResolver struct {
	Store *store.Store     // contains the Services and their endpoints
	Types *scheme.Registry // their types
}

// serviceURL returns the URL of a Service as it appears in messages:
// https://NAME.NAMESPACE.svc:PORT/PATH.
func serviceURL(s *admissionv1.ServiceReference) string {
	called := ""
	if s.Path != nil {
		called = *s.Path
	}
	return fmt.Sprintf("https://%s.%s.svc:%d%s", s.Name, s.Namespace, servicePort(s), cleanPath(called))
}

// cleanPath returns the shortest form of a webhook's path, without duplicate or trailing slashes.
// envtest joins an address that ends in a slash with a path that begins with one, and Go's ServeMux
// redirects paths that are not clean, which the client does not follow.
func cleanPath(called string) string {
	clean := url.URL{Path: path.Join("/", called)}
	return clean.EscapedPath()
}

// Dialer returns a function that connects to a current endpoint of a Service.
func (b *ServiceResolver) Dialer(namespace, name string, port int32) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		address, err := b.resolve(namespace, name, port)
		if err != nil {
			return nil, err
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
}

// Service reads a Service. If it does not exist, the error is that of the store.
func (b *ServiceResolver) Service(namespace, name string) (svc corev1.Service, err error) {
	rec, err := b.Store.Get(b.Types.Lookup("", "v1", "services").Key(namespace, name))
	if err == nil {
		err = json.Unmarshal(rec.JSON, &svc)
	}
	return svc, err
}

// resolve returns the address for a port of a Service. It is either the externalName or a random
// endpoint.
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

// Endpoints returns the addresses of a Service's named port, from its EndpointSlices and its
// Endpoints. any reports whether such objects exist.
func (b *ServiceResolver) Endpoints(namespace, service, port string) (addresses []string, any bool, err error) {
	slices := b.Types.Lookup("discovery.k8s.io", "v1", "endpointslices")
	for rec, err := range b.Store.All(store.Span{Prefix: slices.KeyPrefix(namespace), SkipDamaged: true}) {
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

// sliceAddresses returns the addresses of all endpoints in an EndpointSlice that are not marked as
// unready.
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
