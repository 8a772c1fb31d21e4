package discovery

import (
	"encoding/json"
	"net/http"

	"apilet/internal/apierror"
	"apilet/internal/response"
	"apilet/internal/scheme"
)

// ServeVersion returns the handler of /version for a server with the given version string. The
// response also contains the emulated version.
func ServeVersion(gitVersion string) http.HandlerFunc {
	info := *scheme.EffectiveVersion().Info()
	info.GitVersion, info.GitCommit, info.GitTreeState, info.BuildDate = gitVersion, "", "clean", ""
	body, _ := json.MarshalIndent(info, "", "  ")
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			_ = response.Refuse(w, r, apierror.MethodNotAllowed())
			return
		}
		response.WriteJSON(w, r, http.StatusOK, body)
	}
}
