package kubelet

// This file proxies exec, attach, portforward and proxy requests.

import (
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"apilet/internal/admission"
	"apilet/internal/apierror"
	"apilet/internal/proxy"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/scheme/internalversion"
	"apilet/internal/store"
)

// Connector serves requests that connect a client with a node or a Pod. Set its fields before the
// first use. It is safe for concurrent use.
type Connector struct {
	Clients   *Clients
	Store     *store.Store
	Types     *scheme.Registry
	Admission *admission.Chain
	// returns a 403 error if the user may not create the subresource
	MayCreate func(*request.Request) error
	Forward   *proxy.Forwarder
	// writes an error as a Status
	WriteError func(w http.ResponseWriter, r *http.Request, err error)
}

// Serve handles a request for a connecting subresource of res. The user must be authorized for the
// verb of the request.
func (c *Connector) Serve(w http.ResponseWriter, r *http.Request, rec *request.Request, res *scheme.Resource) error {
	if rec.Info.Subresource == "log" {
		return c.serveLog(w, r, rec)
	}
	if r.URL.Query().Has("dryRun") {
		return apierrors.NewBadRequest("dryRun is not supported")
	}
	options, err := c.admit(r, rec, res)
	if err != nil {
		return err
	}
	if rec.Info.Subresource == "proxy" {
		return c.serveProxy(w, r, rec, proxyPath(options))
	}
	if err := c.MayCreate(rec); err != nil {
		return err
	}
	to, err := c.ofStream(rec.Info.Namespace, rec.Info.Name, options)
	if err != nil {
		return withoutReason(err)
	}
	switch {
	case proxy.UpgradeType(r.Header) == "":
		return apierrors.NewBadRequest("Upgrade request required")
	case to.old && isTranslated(r, options):
		return c.translate(w, r, rec.User, to, options)
	}
	return c.Forward.Serve(w, r, rec.User, c.hop(to, func(p *httputil.ProxyRequest) { rewriteRequest(p, to.url) }))
}

// admit decodes the options of a request and returns them as modified by admission.
func (c *Connector) admit(r *http.Request, rec *request.Request, res *scheme.Resource) (runtime.Object, error) {
	body := res.ExpectedBody(rec.Info.Subresource)
	options := newOptions[body.Kind]()
	query := r.URL.Query()
	if rec.Info.Subresource == "proxy" {
		query.Set("path", restOf(r.URL, rec.Info.Rest))
	}
	if err := internalversion.DecodeParameters(query, options); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	attributes := admission.Attributes{Resource: res, Subresource: rec.Info.Subresource, Operation: admission.OpConnect, Request: rec}
	if !c.Admission.Handles(attributes) {
		return options, nil
	}
	members, err := runtime.DefaultUnstructuredConverter.ToUnstructured(options)
	if err != nil {
		return nil, err
	}
	object := &unstructured.Unstructured{Object: members}
	object.SetAPIVersion(body.APIVersion())
	object.SetKind(body.Kind)
	attributes.Object = object
	decided, err := c.Admission.Decide(r.Context(), attributes)
	if err != nil {
		return nil, err
	}
	changed := newOptions[body.Kind]()
	return changed, runtime.DefaultUnstructuredConverter.FromUnstructured(decided.(*unstructured.Unstructured).Object, changed)
}

// newOptions maps the kind of a connecting subresource to a function that returns its options.
var newOptions = map[string]func() runtime.Object{
	"PodExecOptions":        func() runtime.Object { return new(corev1.PodExecOptions) },
	"PodAttachOptions":      func() runtime.Object { return new(corev1.PodAttachOptions) },
	"PodPortForwardOptions": func() runtime.Object { return new(corev1.PodPortForwardOptions) },
	"PodProxyOptions":       func() runtime.Object { return new(corev1.PodProxyOptions) },
	"ServiceProxyOptions":   func() runtime.Object { return new(corev1.ServiceProxyOptions) },
	"NodeProxyOptions":      func() runtime.Object { return new(corev1.NodeProxyOptions) },
}

func proxyPath(options runtime.Object) string {
	switch o := options.(type) {
	case *corev1.PodProxyOptions:
		return o.Path
	case *corev1.ServiceProxyOptions:
		return o.Path
	case *corev1.NodeProxyOptions:
		return o.Path
	}
	return ""
}

// restOf returns the path after the subresource proxy. It starts with a slash unless it is empty,
// and ends with one if the path of the request does.
func restOf(u *url.URL, rest string) string {
	if u.RawPath != "" {
		if plain, err := url.PathUnescape(rest); err == nil {
			rest = plain
		}
	}
	if rest != "" && !strings.HasPrefix(rest, "/") {
		rest = "/" + rest
	}
	if strings.HasSuffix(u.Path, "/") && !strings.HasSuffix(rest, "/") {
		rest += "/"
	}
	return rest
}

// serveProxy proxies a request to a Pod, a Service or a node.
func (c *Connector) serveProxy(w http.ResponseWriter, r *http.Request, rec *request.Request, path string) error {
	to, err := c.ofProxy(r.Context(), rec.Info.Resource, rec.Info.Namespace, rec.Info.Name, path)
	if err != nil {
		return withoutReason(err)
	}
	to.url.RawQuery = r.URL.RawQuery
	upgrades := proxy.UpgradeType(r.Header) != ""
	if to.url.Path == "" && !upgrades && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		addSlash(w, r.URL)
		return nil
	}
	hop := c.hop(to, func(p *httputil.ProxyRequest) {
		rewriteRequest(p, to.url)
		p.Out.Host = p.In.Host
	})
	hop.Limited, hop.Plain = true, &linkRewriter{to.plain, prefixOf(r.URL.Path, to.url.Path)}
	hop.Modify = func(_ http.Header, answer *http.Response) error { return filterHeaders(answer) }
	return c.Forward.Serve(w, r, rec.User, hop)
}

// addSlash redirects to the path with a trailing slash, so that the relative links of the page
// work.
func addSlash(w http.ResponseWriter, u *url.URL) {
	to := u.Path + "/"
	if u.RawQuery != "" {
		to += "?" + u.RawQuery
	}
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusMovedPermanently)
}

// hop returns the proxy settings for a location.
func (c *Connector) hop(to *location, rewrite func(*httputil.ProxyRequest)) *proxy.Hop {
	return &proxy.Hop{Plain: to.plain, Upgrade: to.stream, Streaming: true, Rewrite: rewrite, Modify: func(_ http.Header, answer *http.Response) error {
		if code := answer.StatusCode; code != http.StatusSwitchingProtocols && code < http.StatusBadRequest {
			return fmt.Errorf("invalid upgrade response: status code %d", code)
		}
		return filterHeaders(answer)
	}, ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
		if proxy.UpgradeType(r.Header) == "" {
			c.WriteError(w, r, apierrors.NewServiceUnavailable("error trying to reach service: "+err.Error()))
			return
		}
		c.WriteError(w, r, apierror.InternalWithoutReason("error dialing backend: "+err.Error()))
	}}
}

// rewriteRequest prepares the request to a location, without the client's credentials.
func rewriteRequest(p *httputil.ProxyRequest, to *url.URL) {
	p.Out.URL, p.Out.Host, p.Out.Trailer = to, to.Host, nil
	proxy.RemoveCredentials(p.Out.Header)
	if before := p.In.Header["X-Forwarded-For"]; len(before) > 0 {
		p.Out.Header["X-Forwarded-For"] = slices.Clone(before)
	}
	p.SetXForwarded()
}

// withoutReason converts err to a 500 error without a reason, unless it is a Status error.
func withoutReason(err error) error {
	if _, ok := err.(apierrors.APIStatus); ok {
		return err
	}
	return apierror.InternalWithoutReason(err.Error())
}

// filterHeaders removes response headers that would allow a program in a Pod to affect other pages
// of this server in the user's browser. The sandbox isolates these pages from the origin.
func filterHeaders(answer *http.Response) error {
	for key := range answer.Header {
		if slices.Contains(hostWide, key) || strings.HasPrefix(key, "Access-Control-") {
			delete(answer.Header, key)
		}
	}
	answer.Header.Set("Content-Security-Policy", "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts")
	return nil
}

// hostWide lists headers that affect other pages.
var hostWide = []string{"Alt-Svc", "Audit-Id", "Clear-Site-Data", "Content-Security-Policy", "Service-Worker-Allowed", "Strict-Transport-Security"}
