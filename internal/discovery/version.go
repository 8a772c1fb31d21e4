package discovery

import (
	"encoding/json"
	"net/http"
	"runtime"
	"strconv"

	"k8s.io/apimachinery/pkg/version"

	"apilet/internal/apierror"
	"apilet/internal/response"
	"apilet/internal/scheme"
)

// ServeVersion returns the handler of /version for a server with the given version string.
func ServeVersion(gitVersion string) http.HandlerFunc {
	release := scheme.MinorVersion()
	minor := strconv.Itoa(release[1])
	body, _ := json.MarshalIndent(version.Info{Major: "1", Minor: minor, EmulationMajor: "1", EmulationMinor: minor,
		MinCompatibilityMajor: "1", MinCompatibilityMinor: strconv.Itoa(release[1] - 1), GitVersion: gitVersion, GitTreeState: "clean",
		GoVersion: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH}, "", "  ")
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			_ = response.Refuse(w, r, apierror.MethodNotAllowed())
			return
		}
		response.WriteJSON(w, r, http.StatusOK, body)
	}
}
