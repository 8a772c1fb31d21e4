package proxy

// This file defines the request headers that are hidden from other servers.

import (
	"net/http"
	"slices"

	"apilet/internal/request"
)

// RemoveCredentials removes credentials from the header of a request, and headers that only this
// server may set. Authentication has already removed tokens from the WebSocket protocols. The
// spelling X_Remote_User counts as X-Remote-User, because many servers map both to the same
// variable.
func RemoveCredentials(h http.Header) {
	for key := range h {
		if hidden(key) {
			delete(h, key)
		}
	}
}

func hidden(key string) bool {
	return slices.ContainsFunc(hiddenHeaders, func(name string) bool { return request.IsHeader(key, name) }) ||
		slices.ContainsFunc(hiddenPrefixes, func(prefix string) bool { return request.HasHeaderPrefix(key, prefix) })
}

var (
	hiddenHeaders  = []string{"Authorization", "Proxy-Authorization", "Audit-Id", "Forwarded", "Proxy"}
	hiddenPrefixes = []string{"X-Remote-", "Impersonate-", "X-Forwarded-"}
)
