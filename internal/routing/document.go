package routing

import (
	"net/http"

	"apilet/internal/apierror"
	"apilet/internal/response"
)

// Document serves bytes that do not change while the server runs.
func Document(contentType string, body []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			response.WriteError(w, r, apierror.MethodNotAllowed())
			return
		}
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Cache-Control", "public, max-age=3600")
		_, _ = w.Write(body) // fails only if the client is gone
	}
}
