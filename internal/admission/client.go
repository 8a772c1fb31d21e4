package admission

// This file makes one call of an admission webhook: an AdmissionReview goes out as a POST over TLS, one comes back. What is asked, of
// whom, and what follows from the answer is decided elsewhere.
//
//	POST https://127.0.0.1:9443/mutate?timeout=10s     {"kind":"AdmissionReview","request":{"uid":"7f…","operation":"CREATE",…}}
//	200                                                {"kind":"AdmissionReview","response":{"uid":"7f…","allowed":true,…}}
//
// The other side may be anything: down, slow, dripping bytes, talking HTML, or another program altogether. So each call ends at its
// deadline, reads at most MaxReviewAnswer, follows no redirect (it would carry objects where nobody has allowed them to go), sends
// nothing twice, and every way to fail comes back as an error that says what was wrong.
//
// A Service has no address here, since no network belongs to the cluster. It is dialled where its endpoints are, or where its
// externalName points, under the name that its certificate has: NAME.NAMESPACE.svc.

import (
	"bytes"
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
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"

	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	MaxReviewAnswer = 16 << 20 // bytes: a patch may bring a whole object, in base64
	maxQuotedAnswer = 2048     // bytes of an answer that is no review, in the error
	idleHookConn    = 90 * time.Second
	idleHookConns   = 25
	hookAgent       = "kube-apiserver-admission" // by this name webhooks know who calls
	reviewKind      = "AdmissionReview"
	reviewGroup     = "admission.k8s.io"
)

// A hookKind tells the two kinds of webhooks apart, by the names that metrics have for them.
type hookKind string

const (
	MutatingHook   hookKind = "admit"
	validatingHook hookKind = "validating"
)

// ---- The two documents

// A reviewRequest is what a webhook is told. v1 and v1beta1 have the same members.
type reviewRequest struct {
	UID                types.UID                    `json:"uid"`
	Kind               metav1.GroupVersionKind      `json:"kind"`
	Resource           metav1.GroupVersionResource  `json:"resource"`
	SubResource        string                       `json:"subResource,omitempty"`
	RequestKind        *metav1.GroupVersionKind     `json:"requestKind,omitempty"`
	RequestResource    *metav1.GroupVersionResource `json:"requestResource,omitempty"`
	RequestSubResource string                       `json:"requestSubResource,omitempty"`
	Name               string                       `json:"name,omitempty"`
	Namespace          string                       `json:"namespace,omitempty"`
	Operation          string                       `json:"operation"`
	UserInfo           authenticationv1.UserInfo    `json:"userInfo"`
	Object             json.RawMessage              `json:"object"` // null for a deletion
	OldObject          json.RawMessage              `json:"oldObject"`
	DryRun             *bool                        `json:"dryRun,omitempty"`
	Options            json.RawMessage              `json:"options"`
}

// A reviewAnswer is what a webhook says.
type reviewAnswer struct {
	UID              types.UID         `json:"uid"`
	Allowed          bool              `json:"allowed"`
	Result           *metav1.Status    `json:"status,omitempty"`
	Patch            []byte            `json:"patch,omitempty"`
	PatchType        *string           `json:"patchType,omitempty"`
	AuditAnnotations map[string]string `json:"auditAnnotations,omitempty"`
	Warnings         []string          `json:"warnings,omitempty"`
}

type review struct {
	metav1.TypeMeta
	Request  *reviewRequest `json:"request,omitempty"`
	Response *reviewAnswer  `json:"response,omitempty"`
}

// reviewVersion is the first of a webhook's admissionReviewVersions that is known here.
func reviewVersion(accepted []string) (string, error) {
	for _, version := range accepted {
		if version == "v1" || version == "v1beta1" {
			return version, nil
		}
	}
	return "", errors.New("webhook does not accept known AdmissionReview versions (v1, v1beta1)")
}

// DecodeReview reads an answer and checks it as strictly as its version wants: v1beta1 let everything pass but a missing response.
func DecodeReview(body []byte, version string, uid types.UID, kind hookKind) (*reviewAnswer, error) {
	var got review
	gvk, err := scheme.InterpretKind(body)
	if named := gvk != (schema.GroupVersionKind{}); err == nil && named && (gvk.Group != reviewGroup || gvk.Kind != reviewKind) {
		err = scheme.NotRegistered(gvk)
	}
	if err == nil {
		err = kjson.UnmarshalCaseSensitivePreserveInts(body, &got)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to call webhook: %w", err)
	}
	if err := checkReview(&got, version, uid, kind); err != nil {
		return nil, fmt.Errorf("received invalid webhook response: %w", err)
	}
	return got.Response, nil
}

func checkReview(got *review, version string, uid types.UID, kind hookKind) error {
	a, mutating := got.Response, kind == MutatingHook
	want := schema.GroupVersionKind{Group: reviewGroup, Version: version, Kind: reviewKind}
	switch {
	case a == nil:
		return errors.New("webhook response was absent")
	case version != "v1":
		a.PatchType = nil
		if !mutating {
			a.Patch = nil
		}
		return nil
	case a.UID != uid:
		return fmt.Errorf("expected response.uid=%q, got %q", uid, a.UID)
	case got.GroupVersionKind() != want:
		return fmt.Errorf("expected webhook response of %v, got %v", want.String(), got.GroupVersionKind().String())
	case !mutating && len(a.Patch) > 0:
		return errors.New("validating webhook may not return response.patch")
	case !mutating && a.PatchType != nil:
		return errors.New("validating webhook may not return response.patchType")
	case len(a.Patch) > 0 && a.PatchType == nil:
		return errors.New("webhook returned response.patch but not response.patchType")
	case len(a.Patch) == 0 && a.PatchType != nil:
		return errors.New("webhook returned response.patchType but not response.patch")
	case a.PatchType != nil && *a.PatchType == "":
		return fmt.Errorf("webhook returned invalid response.patchType of %q", *a.PatchType)
	}
	return nil
}

// ---- The call

// A caller holds the connections to one webhook.
type client struct {
	Url       string
	Transport *http.Transport
	client    *http.Client
}

// NewClient makes the client of a webhook. dial is told where a Service is to be found.
func NewClient(config *admissionv1.WebhookClientConfig, services *ServiceResolver) (*client, error) {
	secured := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(config.CABundle) > 0 {
		secured.RootCAs = x509.NewCertPool()
		if !secured.RootCAs.AppendCertsFromPEM(config.CABundle) {
			return nil, errors.New("unable to load root certificates: unable to parse bytes as PEM block")
		}
	}
	c := &client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: secured, TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: idleHookConns, IdleConnTimeout: idleHookConn}}
	// Calls over one HTTP/2 connection all go to one instance of the webhook: that is for loopback, where there is only one.
	local := false
	switch s := config.Service; {
	case s != nil:
		c.Url = ServiceURL(s)
		secured.ServerName = s.Name + "." + s.Namespace + ".svc"
		c.Transport.Proxy, c.Transport.DialContext = nil, services.dialer(s)
	case config.URL != nil:
		u, err := url.Parse(*config.URL)
		if err != nil {
			return nil, fmt.Errorf("Unparsable URL: %w", err)
		}
		c.Url, local = u.Scheme+"://"+u.Host+cleanPath(u.Path), request.IsLoopback(u.Hostname())
	default:
		return nil, errors.New("webhook configuration must have either service or URL")
	}
	c.Transport.Protocols = new(http.Protocols)
	c.Transport.Protocols.SetHTTP1(true)
	c.Transport.Protocols.SetHTTP2(local)
	c.client = &http.Client{Transport: c.Transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return c, nil
}

// Post sends a review and returns the body of a good answer. ctx has a deadline, which the webhook is told.
func (c *client) Post(ctx context.Context, body []byte) ([]byte, error) {
	target := c.Url
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
	r.Header.Set("User-Agent", hookAgent)
	response, err := c.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, MaxReviewAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("unexpected error when reading response body. Please retry. Original error: %w", err)
	case response.StatusCode < 200 || response.StatusCode > http.StatusPartialContent:
		return nil, refusedCall(response, answer)
	case len(answer) == 0:
		return nil, fmt.Errorf("0-length response with status code: %d and content type: %s", response.StatusCode, response.Header.Get("Content-Type"))
	case len(answer) > MaxReviewAnswer:
		return nil, fmt.Errorf("the response is longer than %d bytes", MaxReviewAnswer)
	}
	return answer, nil
}

// refusedCall words an HTTP status that is none of success: a Status of its own, or what stands in the body.
func refusedCall(response *http.Response, body []byte) error {
	var status metav1.Status
	if json.Unmarshal(body, &status) == nil && status.Kind == "Status" && status.Status == metav1.StatusFailure {
		return apierrors.FromObject(&status)
	}
	message := "unknown"
	if kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type")); err != nil || strings.HasPrefix(kind, "text/") {
		message = strings.TrimSpace(string(body[:min(len(body), maxQuotedAnswer)]))
	}
	return apierrors.NewGenericServerResponse(response.StatusCode, http.MethodPost, schema.GroupResource{}, "", message, 0, true)
}

// Close lets go of the connections that no call uses.
func (c *client) Close() {
	if c != nil {
		c.Transport.CloseIdleConnections()
	}
}

// ---- Services

// A ServiceResolver finds the addresses behind Services.
type ServiceResolver struct {
	Store *store.Store
	Types *scheme.Registry
}

func servicePort(s *admissionv1.ServiceReference) int32 {
	if s.Port == nil {
		return 443
	}
	return *s.Port
}

func ServiceURL(s *admissionv1.ServiceReference) string {
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

// dialer connects to whatever stands behind a Service at that moment.
func (b *ServiceResolver) dialer(s *admissionv1.ServiceReference) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		address, err := b.Resolve(s.Namespace, s.Name, servicePort(s))
		if err != nil {
			return nil, err
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
}

// Resolve returns an address of a Service's port: its externalName, or one of its endpoints.
func (b *ServiceResolver) Resolve(namespace, name string, port int32) (string, error) {
	services := b.Types.Lookup("", "v1", "services")
	rec, err := b.Store.Get(services.Key(namespace, name))
	if err != nil {
		return "", fmt.Errorf("service %q not found", name)
	}
	var svc corev1.Service
	if err := json.Unmarshal(rec.JSON, &svc); err != nil {
		return "", err
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return net.JoinHostPort(svc.Spec.ExternalName, strconv.Itoa(int(port))), nil
	}
	for _, p := range svc.Spec.Ports {
		if p.Port != port {
			continue
		}
		addresses, err := b.endpoints(namespace, name, p.Name)
		if err == nil && len(addresses) == 0 {
			err = fmt.Errorf("no endpoints available for service %q", name)
		}
		if err != nil {
			return "", err
		}
		return addresses[rand.IntN(len(addresses))], nil
	}
	return "", fmt.Errorf("no service port %d found for service %q", port, name)
}

// endpoints lists the addresses of a Service's named port, by its EndpointSlices and its Endpoints.
func (b *ServiceResolver) endpoints(namespace, service, port string) (addresses []string, err error) {
	slices := b.Types.Lookup("discovery.k8s.io", "v1", "endpointslices")
	c := &store.Chunk{}
	for at := (store.Span{Prefix: slices.KeyPrefix(namespace)}); ; at.Rev, at.Start = c.Rev, c.Next {
		if err := b.Store.Chunk(at, c); err != nil {
			return nil, err
		}
		for i := range c.Records {
			if gjson.GetBytes(c.Records[i].JSON, `metadata.labels.kubernetes\.io/service-name`).String() == service {
				addresses = append(addresses, sliceAddresses(c.Records[i].JSON, port)...)
			}
		}
		if c.Next == "" {
			break
		}
	}
	rec, err := b.Store.Get(b.Types.Lookup("", "v1", "endpoints").Key(namespace, service))
	if errors.Is(err, store.ErrNotFound) {
		return addresses, nil
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
	return addresses, err
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
