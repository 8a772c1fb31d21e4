package aggregation

// This file proxies a request to the server of its group version.
//
//	request from the client                    request to wardle/api
//	GET /apis/wardle…/v1alpha1/flunders        the same, to https://api.wardle.svc:443
//	Authorization: Bearer …                    (removed)
//	X-Remote-User: root                        X-Remote-User: alice, the authenticated user
//	                                           X-Forwarded-For, -Uri, -Host, -Proto, Audit-Id, Via
//
// Streams are forwarded as they arrive. An upgraded connection (WebSocket, SPDY) is proxied as
// well; the number per user is limited. The method tame filters the response, so that the other
// server cannot act on the client's browser.
//
// A path that the other server might interpret differently is rejected, because authorization has
// checked this server's interpretation.

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"apilet/internal/discovery"
	"apilet/internal/proxy"
	"apilet/internal/request"
)

const (
	idleConn         = 90 * time.Second
	idleConns        = 25
	handshakeTimeout = 10 * time.Second // limit for connecting, and for the TLS handshake
	discoveryTimeout = 5 * time.Second  // limit for the list of a version's types
)

// ---- Routes ----

// route holds the connections to a server. It is replaced when the APIService refers to another
// server.
type route struct {
	spec            []byte // the encoded result of routeSpec
	host            string
	plain, upgrades *http.Transport // upgrades need HTTP/1.1
	err             error           // why the server cannot be reached
}

// routeSpec returns the encoded part of an APIService that determines a route.
func routeSpec(spec *apiregistrationv1.APIServiceSpec) []byte {
	text, _ := json.Marshal(apiregistrationv1.APIServiceSpec{Group: spec.Group, Version: spec.Version, Service: spec.Service, CABundle: spec.CABundle,
		InsecureSkipTLSVerify: spec.InsecureSkipTLSVerify})
	return text
}

func (r *route) isFor(spec *apiregistrationv1.APIServiceSpec) bool {
	return spec.Service != nil && bytes.Equal(r.spec, routeSpec(spec))
}

// newRoute returns a route. It does not connect yet.
func (g *Aggregator) newRoute(spec *apiregistrationv1.APIServiceSpec) *route {
	service := spec.Service
	name := service.Name + "." + service.Namespace + ".svc"
	r := &route{spec: routeSpec(spec), host: net.JoinHostPort(name, strconv.Itoa(int(*service.Port)))}
	secured := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: name, InsecureSkipVerify: spec.InsecureSkipTLSVerify}
	if len(spec.CABundle) > 0 {
		if secured.RootCAs = x509.NewCertPool(); !secured.RootCAs.AppendCertsFromPEM(spec.CABundle) {
			r.err = errors.New("unable to load root certificates: unable to parse bytes as PEM block")
		}
	}
	secured.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if own := g.Certificate(); own != nil {
			return own, nil
		}
		return new(tls.Certificate), nil
	}
	make := func(upgrades bool) *http.Transport {
		t := &http.Transport{TLSClientConfig: secured.Clone(), DialContext: within(handshakeTimeout, g.Services.Dialer(service.Namespace, service.Name, *service.Port)),
			TLSHandshakeTimeout: handshakeTimeout, ResponseHeaderTimeout: g.ResponseHeaderTimeout, ExpectContinueTimeout: time.Second, MaxResponseHeaderBytes: proxy.MaxHeader,
			MaxIdleConnsPerHost: idleConns, IdleConnTimeout: idleConn, DisableCompression: true, Protocols: new(http.Protocols),
			HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second}}
		t.Protocols.SetHTTP1(true)
		t.Protocols.SetHTTP2(!upgrades)
		return t
	}
	r.plain, r.upgrades = make(false), make(true)
	return r
}

// within limits the time to connect.
func within(limit time.Duration, dial func(ctx context.Context, network, address string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return dial(ctx, network, address)
	}
}

func (r *route) close() {
	r.plain.CloseIdleConnections()
	r.upgrades.CloseIdleConnections()
}

// ---- Requests ----

// Serve handles requests for types and groups of other servers. It returns false if the request is
// not for another server. The request must already be authorized.
func (g *Aggregator) Serve(w http.ResponseWriter, r *http.Request) bool {
	t := g.table.Load()
	if t == nil {
		return false
	}
	gv := groupVersionOf(&request.From(r.Context()).Info)
	if s := t.servers[gv]; s != nil {
		g.proxy(s, w, r)
		return true
	}
	if gv.Version == "" && gv.Group != "" && t.others.Has(gv.Group) {
		discovery.ServeMerged(g.Types, t.others, w, r)
		return true
	}
	return false
}

// groupVersionOf returns the group version of a path below /apis/.
func groupVersionOf(info *request.Info) (gv metav1.GroupVersion) {
	if info.ResourceRequest {
		if info.APIPrefix == "apis" {
			gv.Group, gv.Version = info.Group, info.Version
		}
		return gv
	}
	root, rest, _ := strings.Cut(strings.Trim(info.Path, "/"), "/")
	if root == "apis" {
		gv.Group, rest, _ = strings.Cut(rest, "/")
		gv.Version, _, _ = strings.Cut(rest, "/")
	}
	return gv
}

// proxy proxies a request to a server.
func (g *Aggregator) proxy(s *server, w http.ResponseWriter, r *http.Request) {
	switch {
	case !s.available:
		http.Error(w, "service unavailable", http.StatusServiceUnavailable)
		return
	case s.route.err != nil:
		http.Error(w, s.route.err.Error(), http.StatusInternalServerError)
		return
	case !isUnambiguousPath(r.URL):
		g.WriteError(w, r, apierrors.NewBadRequest("the path contains an escaped slash, an empty segment or a dot segment, which another server might interpret differently"))
		return
	case slices.ContainsFunc(r.Header.Values("Via"), func(via string) bool { return strings.Contains(via, g.self) }):
		http.Error(w, "this server has passed the request on before: the APIService's Service leads back to it", http.StatusLoopDetected)
		return
	}
	rec := request.From(r.Context())
	// the bodies are in the audit log of the other server
	if rec.AuditData != nil {
		rec.AuditData.SkipResponse = true
	}
	hop := &proxy.Hop{Plain: s.route.plain, Upgrade: s.route.upgrades, Streaming: rec.Streaming || request.IsLongRunning(&rec.Info), WriteTimeout: g.ResponseHeaderTimeout,
		OnStart: func() { g.OnLongRunning(r.Context()) },
		Rewrite: func(p *httputil.ProxyRequest) { g.rewrite(p, s.route, rec) },
		Modify: func(ours http.Header, answer *http.Response) error {
			g.filterHeaders(ours, answer)
			return nil
		},
		ErrorHandler: g.handleError}
	if !rec.Info.ResourceRequest {
		hop.Limit = discoveryTimeout
	}
	forward := &proxy.Forwarder{Slots: g.Upgrades, Stopping: g.Stopping}
	if err := forward.Serve(w, r, rec.User, hop); err != nil {
		g.WriteError(w, r, err)
	}
}

// isUnambiguousPath reports whether all servers split the path into the same segments.
func isUnambiguousPath(u *url.URL) bool {
	if strings.Contains(strings.ToLower(u.EscapedPath()), "%2f") || strings.Contains(u.Path, "\\") {
		return false
	}
	clean := path.Clean(u.Path)
	return clean == u.Path || clean+"/" == u.Path
}

// rewrite prepares the outgoing request.
func (g *Aggregator) rewrite(p *httputil.ProxyRequest, to *route, rec *request.Request) {
	out := p.Out
	out.URL.Scheme, out.URL.Host, out.Host = "https", to.host, to.host
	// drops parameters that this server did not understand
	out.URL.RawQuery = p.In.URL.Query().Encode()
	// httputil.ReverseProxy would announce the names of trailers without values
	out.Trailer = nil
	h := out.Header
	proxy.RemoveCredentials(h)
	for key := range h {
		if slices.ContainsFunc(redirecting, func(name string) bool { return request.IsHeader(key, name) }) {
			delete(h, key)
		}
	}
	addIdentity(h, &rec.User)
	if before := p.In.Header["X-Forwarded-For"]; len(before) > 0 {
		h["X-Forwarded-For"] = slices.Clone(before)
	}
	if host, _, err := net.SplitHostPort(p.In.RemoteAddr); err == nil {
		h.Set("X-Forwarded-For", strings.Join(append(h["X-Forwarded-For"], host), ", "))
	}
	h.Set("X-Forwarded-Uri", p.In.URL.EscapedPath())
	h.Set("X-Forwarded-Host", p.In.Host)
	h.Set("X-Forwarded-Proto", "http")
	if p.In.TLS != nil {
		h.Set("X-Forwarded-Proto", "https")
	}
	h.Set("Audit-Id", rec.ID)
	h.Add("Via", "1.1 "+g.self)
}

// redirecting are headers that ask for another method or path than the authorized ones, and
// cookies, which belong to this server's origin.
var redirecting = []string{"Cookie", "Cookie2", "X-Http-Method", "X-Http-Method-Override", "X-Method-Override", "X-Original-Method", "X-Original-Uri",
	"X-Original-Url", "X-Override-Url", "X-Rewrite-Url"}

// addIdentity adds the user's identity to the headers that API servers use by default.
func addIdentity(h http.Header, u *request.User) {
	h.Set("X-Remote-User", u.Name)
	if u.UID != "" {
		h.Set("X-Remote-Uid", u.UID)
	}
	for _, group := range u.Groups {
		h.Add("X-Remote-Group", group)
	}
	for key, values := range u.Extra {
		for _, value := range values {
			h.Add("X-Remote-Extra-"+escapeKey(key), value)
		}
	}
}

// escapeKey percent-encodes characters that are not allowed in the name of a header, and the
// percent sign.
func escapeKey(key string) string {
	var b strings.Builder
	for i := range len(key) {
		c := key[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("!#$&'*+-.^_`|~", c) >= 0 {
			b.WriteByte(c)
			continue
		}
		const digits = "0123456789ABCDEF"
		b.WriteString("%" + digits[c>>4:c>>4+1] + digits[c&15:c&15+1])
	}
	return b.String()
}

// handleError responds if the other server did not.
func (g *Aggregator) handleError(w http.ResponseWriter, r *http.Request, err error) {
	if cause := r.Context().Err(); cause != nil {
		g.WriteError(w, r, cause)
		return
	}
	http.Error(w, "error trying to reach service: "+err.Error(), http.StatusServiceUnavailable)
}
