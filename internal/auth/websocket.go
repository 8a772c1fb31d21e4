package auth

// This file reads bearer tokens from WebSocket handshakes. A page cannot set the Authorization
// header of a handshake. Therefore the token can be sent as a subprotocol, as in kube-apiserver
// (k8s.io/apiserver/pkg/authentication/request/websocket):
//
//	Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.Ym9iLXRva2Vu, v5.channel.k8s.io
//
// The client must offer at least one other subprotocol, because the server selects one of those for
// its response.

import (
	"encoding/base64"
	"errors"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	protocolHeader = "Sec-Websocket-Protocol"
	bearerProtocol = "base64url.bearer.authorization.k8s.io."
)

// isHandshake reports whether the request is a WebSocket handshake.
func isHandshake(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket") && strings.Contains(strings.ToLower(r.Header.Get("Connection")), "upgrade")
}

// requestToken returns the token of the Authorization header or of a WebSocket handshake. It
// returns "" if there is none.
func requestToken(r *http.Request) (string, error) {
	if token, _ := bearerToken(r.Header); token != "" || !isHandshake(r) {
		return token, nil
	}
	return protocolToken(r.Header)
}

// protocolToken returns the token among the subprotocols. It returns the same errors as
// kube-apiserver.
func protocolToken(h http.Header) (string, error) {
	tokens, others := splitProtocols(h)
	if len(tokens) == 0 {
		return "", nil
	}
	token, err := base64.RawURLEncoding.DecodeString(tokens[0])
	switch {
	case len(tokens) > 1:
		return "", errors.New("multiple base64.bearer.authorization tokens specified")
	case err != nil:
		return "", errors.New("invalid base64.bearer.authorization token encoding")
	case !utf8.Valid(token):
		return "", errors.New("invalid base64.bearer.authorization token")
	case len(token) > 0 && len(others) == 0:
		return "", errors.New("missing additional subprotocol")
	}
	return string(token), nil
}

// splitProtocols returns the encoded tokens and the other subprotocols of a handshake.
func splitProtocols(h http.Header) (tokens, others []string) {
	for _, line := range h[protocolHeader] {
		for name := range strings.SplitSeq(line, ",") {
			name = strings.TrimSpace(name)
			if token, ok := strings.CutPrefix(name, bearerProtocol); ok {
				tokens = append(tokens, token)
			} else {
				others = append(others, name)
			}
		}
	}
	return tokens, others
}

// dropProtocolTokens removes tokens from the subprotocols.
func dropProtocolTokens(h http.Header) {
	if !slices.ContainsFunc(h[protocolHeader], func(line string) bool { return strings.Contains(line, bearerProtocol) }) {
		return
	}
	_, others := splitProtocols(h)
	if h.Del(protocolHeader); len(others) > 0 {
		h.Set(protocolHeader, strings.Join(others, ","))
	}
}
