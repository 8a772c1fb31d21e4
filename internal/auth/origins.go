package auth

// This file decides which web pages of other origins may use this server (--cors-allowed-origins),
// and rejects the requests of all other pages.
//
// A page with an allowed origin acts with the credentials of the browser's user, on the plain port
// as an administrator. Therefore a pattern must match the whole origin. In kube-apiserver it may
// match anywhere. Two parts may be left open, because kube-apiserver's documentation recommends
// patterns that leave them open: the scheme if the pattern begins at the "//" before the host, and
// the port if the pattern ends with the colon after the host.
//
//	'//example\.com(:|$)'        matches https://example.com, http://example.com:8080
//	'^https://example\.com$'     matches https://example.com
//	'https://example.com'        matches https://example.com, but not https://example.com.evil.org

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"apilet/internal/request"
)

// originsHelp is kube-apiserver's help for the flag. Its errors repeat it.
const originsHelp = "List of allowed origins for CORS, comma separated. An allowed origin can be a regular expression to support subdomain matching. " +
	"If this list is empty CORS will not be enabled. Please ensure each expression matches the entire hostname by anchoring to the start with '^' or including the '//' prefix, " +
	"and by anchoring to the end with '$' or including the ':' port separator suffix. Examples of valid expressions are '//example\\.com(:|$)' and '^https://example\\.com(:|$)'"

// CheckOrigin returns an error if kube-apiserver refuses the pattern: it is empty, is no regular
// expression, or has no sign of the start or of the end of the host. The messages are
// kube-apiserver's.
func CheckOrigin(pattern string) error {
	if strings.TrimSpace(pattern) == "" {
		return fmt.Errorf("empty value in --cors-allowed-origins, help: %s", originsHelp)
	}
	_, err := regexp.Compile(pattern)
	if err == nil && (!strings.Contains(pattern, "^") && !strings.Contains(pattern, "//") || !strings.ContainsAny(pattern, "$:")) {
		err = errors.New("regular expression does not pin to start/end of host in the origin header")
	}
	if err != nil {
		return fmt.Errorf("--cors-allowed-origins has an invalid regular expression: %w, help: %s", err, originsHelp)
	}
	return nil
}

// compileOrigins checks the patterns and compiles them to match whole texts.
func compileOrigins(patterns []string) (compiled []*regexp.Regexp, err error) {
	for _, pattern := range patterns {
		if err := CheckOrigin(pattern); err != nil {
			return nil, err
		}
		whole, err := regexp.Compile(`\A(?:` + pattern + `)\z`)
		if err != nil { // an open \Q, for example
			return nil, fmt.Errorf("--cors-allowed-origins has an invalid regular expression: %w", err)
		}
		compiled = append(compiled, whole)
	}
	return compiled, nil
}

// matchesOrigin reports whether a pattern of --cors-allowed-origins matches the origin.
func (a *Authenticator) matchesOrigin(origin string) bool {
	if len(a.origins) == 0 {
		return false
	}
	forms := originForms(origin)
	return slices.ContainsFunc(a.origins, func(whole *regexp.Regexp) bool { return slices.ContainsFunc(forms, whole.MatchString) })
}

// originForms returns the strings to match against the patterns: the origin, the origin without its
// scheme, and both without the port number.
func originForms(origin string) []string {
	forms := []string{origin}
	scheme, host, ok := strings.Cut(origin, "//")
	if !ok || !strings.HasSuffix(scheme, ":") {
		return forms
	}
	forms = append(forms, "//"+host)
	if colon := strings.LastIndexByte(host, ':'); colon >= 0 && strings.Trim(host[colon+1:], "0123456789") == "" {
		digits := len(host) - colon - 1
		forms = append(forms, origin[:len(origin)-digits], "//"+host[:colon+1])
	}
	return forms
}

// allowOrigin sets the headers that let pages of the origin read the response. It reports whether
// the origin is allowed.
func (a *Authenticator) allowOrigin(h http.Header, origin string) bool {
	if origin == "" || !a.matchesOrigin(origin) {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Allow-Methods", "POST, GET, OPTIONS, PUT, DELETE, PATCH")
	h.Set("Access-Control-Allow-Headers", "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, If-Modified-Since")
	h.Set("Access-Control-Expose-Headers", "Date")
	h.Set("Access-Control-Allow-Credentials", "true")
	return true
}

// checkSite returns an error if the request was sent by a browser on behalf of another site's page.
// The browser may use the client certificate of its user, or connect to the plain port of this
// machine. The server would execute the request, although the page cannot read the response.
//
// The following headers are set by the browser and cannot be changed by a page:
//
//   - Sec-Fetch-Site comes with every request to an https URL or a loopback address from Chrome 76, Firefox 90, Safari 16.4 and
//     later versions. WebSocket handshakes of Chrome (148 was tested) are the exception.
//   - Origin comes with every POST, PUT, PATCH, DELETE and WebSocket handshake, also from older browsers. Programs rarely send it
//     except with WebSocket handshakes, see isProgramHandshake.
//
// Requests of pages behind kubectl proxy are same-origin, because pages and requests both have the
// origin of the proxy. Any site may link to /debug/ui/, because that page contains no data.
func (a *Authenticator) checkSite(r *http.Request) error {
	site, origins := r.Header.Get("Sec-Fetch-Site"), r.Header["Origin"]
	if len(origins) > 0 && !slices.ContainsFunc(origins, func(o string) bool { return !a.matchesOrigin(o) }) {
		return nil
	}
	follows := r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.URL.Path == request.PathUI
	switch {
	case len(origins) > 0 && (a.cfg.Insecure || site != "same-origin") && !isProgramHandshake(r):
		return apierrors.NewForbidden(schema.GroupResource{}, "", fmt.Errorf("the Origin %q is not allowed by --cors-allowed-origins", origins[0]))
	case (site == "cross-site" || site == "same-site") && !follows:
		return apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("a page of another site has sent this request (Sec-Fetch-Site)"))
	}
	return nil
}

// isProgramHandshake reports whether the request is a WebSocket handshake that was not sent by a
// browser. Many programs set the Origin header. For example, it is required by
// golang.org/x/net/websocket, and derived from the URL by websocket-client for Python.
//
// Every browser sends Accept-Language and a User-Agent that starts with "Mozilla/", and a page can
// change neither in a handshake. If one of them is found, the client is a browser, because the user
// may have changed the other. The Origin "null" and Sec- headers that do not belong to the
// WebSocket protocol also identify browsers.
func isProgramHandshake(r *http.Request) bool {
	if r.Method != http.MethodGet || !isHandshake(r) {
		return false
	}
	for name := range r.Header {
		if name == "Accept-Language" || strings.HasPrefix(name, "Sec-") && !strings.HasPrefix(name, "Sec-Websocket-") {
			return false
		}
	}
	return !strings.HasPrefix(r.UserAgent(), "Mozilla/") && !slices.Contains(r.Header["Origin"], "null")
}
