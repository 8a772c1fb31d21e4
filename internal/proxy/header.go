package proxy

// This file decides which headers of a request the other server must not see.

import (
	"net/http"
	"slices"

	"apilet/internal/request"
)

// HideCredentials removes credentials from the header of a request, and headers that only this server may set. Authentication has removed the
// tokens among the protocols of a WebSocket. The spelling X_Remote_User counts as X-Remote-User, because many servers read both as the same variable.
func HideCredentials(h http.Header) {
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
