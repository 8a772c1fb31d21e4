package auth

// This file decides which web pages of other origins may use this server (--cors-allowed-origins).
//
// A page with an allowed origin acts with the credentials of the browser's user, on the plain port as an administrator.
// For that reason a pattern has to match the origin as a whole, while kube-apiserver searches for a match anywhere in it.
// Two parts may be left open, because kube-apiserver's documentation recommends patterns that leave them open: the scheme
// if the pattern begins at the "//" before the host, and the port if the pattern ends with the colon after the host.
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
)

// originsHelp is kube-apiserver's help for the flag. Its errors repeat it.
const originsHelp = "List of allowed origins for CORS, comma separated. An allowed origin can be a regular expression to support subdomain matching. " +
	"If this list is empty CORS will not be enabled. Please ensure each expression matches the entire hostname by anchoring to the start with '^' or including the '//' prefix, " +
	"and by anchoring to the end with '$' or including the ':' port separator suffix. Examples of valid expressions are '//example\\.com(:|$)' and '^https://example\\.com(:|$)'"

// CheckOrigin returns an error if kube-apiserver refuses the pattern: it is empty, is no regular expression,
// or has no sign of the start or of the end of the host. The messages are kube-apiserver's.
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

// knowsOrigin reports whether a pattern of --cors-allowed-origins matches the origin.
func (a *Authenticator) knowsOrigin(origin string) bool {
	if len(a.origins) == 0 {
		return false
	}
	forms := originForms(origin)
	return slices.ContainsFunc(a.origins, func(whole *regexp.Regexp) bool { return slices.ContainsFunc(forms, whole.MatchString) })
}

// originForms returns the texts that a pattern may match: the origin, the origin without its scheme,
// and both without the digits of the port.
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

// allowOrigin sets the headers that let pages of the origin read the response. It reports whether the origin is allowed.
func (a *Authenticator) allowOrigin(h http.Header, origin string) bool {
	if origin == "" || !a.knowsOrigin(origin) {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Allow-Methods", "POST, GET, OPTIONS, PUT, DELETE, PATCH")
	h.Set("Access-Control-Allow-Headers", "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, If-Modified-Since")
	h.Set("Access-Control-Expose-Headers", "Date")
	h.Set("Access-Control-Allow-Credentials", "true")
	return true
}
