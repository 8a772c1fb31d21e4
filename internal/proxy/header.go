package proxy

// This file decides which headers of a request the other server must not see.

import (
	"net/http"
	"slices"
	"strings"

	"apilet/internal/request"
)

// HideCredentials removes credentials from the header of a request, and headers that only this server may set. The spelling
// X_Remote_User counts as X-Remote-User, because many servers read both as the same variable.
func HideCredentials(h http.Header) {
	for key := range h {
		if hidden(key) {
			delete(h, key)
		}
	}
	hideTokens(h)
}

func hidden(key string) bool {
	return slices.ContainsFunc(hiddenHeaders, func(name string) bool { return request.IsHeader(key, name) }) ||
		slices.ContainsFunc(hiddenPrefixes, func(prefix string) bool { return request.HasHeaderPrefix(key, prefix) })
}

var (
	hiddenHeaders  = []string{"Authorization", "Proxy-Authorization", "Audit-Id", "Forwarded", "Proxy"}
	hiddenPrefixes = []string{"X-Remote-", "Impersonate-", "X-Forwarded-"}
)

// bearerProtocol is the prefix with which browsers send a token in the list of a WebSocket's protocols.
const bearerProtocol = "base64url.bearer.authorization.k8s.io."

// hideTokens removes tokens from the list of a WebSocket's protocols.
func hideTokens(h http.Header) {
	const key = "Sec-Websocket-Protocol"
	if len(h[key]) == 0 {
		return
	}
	kept := slices.DeleteFunc(strings.Split(strings.Join(h[key], ","), ","), func(name string) bool {
		return strings.HasPrefix(strings.TrimSpace(name), bearerProtocol)
	})
	if h.Del(key); len(kept) > 0 {
		h.Set(key, strings.TrimSpace(strings.Join(kept, ",")))
	}
}
