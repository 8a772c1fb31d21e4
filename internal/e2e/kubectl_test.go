package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"apilet/internal/apitest"
)

// Every kubectl names a kind that is not there, instead of its own trouble with schemas.
func TestKubectlSaysThatAKindIsMissing(t *testing.T) {
	t.Parallel()
	s, dir := startTest(t), t.TempDir()
	for _, kubectl := range apitest.Kubectls(t) {
		for apiVersion, kind := range map[string]string{"nope.example.com/v1": "Widget", "apps/v1": "Deploymnt"} {
			cmd := exec.Command(kubectl, "--server", s.url, "--cache-dir", filepath.Join(dir, filepath.Base(kubectl)), "apply", "-f", "-")
			cmd.Env = append(os.Environ(), "KUBECONFIG=/dev/null", "HOME="+dir)
			cmd.Stdin = strings.NewReader("apiVersion: " + apiVersion + "\nkind: " + kind + "\nmetadata: {name: a}\n")
			want := `no matches for kind "` + kind + `" in version "` + apiVersion + `"` + "\nensure CRDs are installed first"
			if out, err := cmd.CombinedOutput(); err == nil || !bytes.Contains(out, []byte(want)) {
				t.Errorf("%s: %v %s", filepath.Base(kubectl), err, out)
			}
		}
	}
}
