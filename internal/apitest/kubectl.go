package apitest

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// Kubectls returns the oldest and the newest of the versioned binaries in the folder of the kubectl
// in PATH, or that kubectl if there are fewer than two.
func Kubectls(t testing.TB) []string {
	path, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("no kubectl")
	}
	real, _ := filepath.EvalSymlinks(path)
	found, _ := filepath.Glob(filepath.Join(filepath.Dir(real), "kubectl.1.*"))
	if len(found) < 2 {
		return []string{path}
	}
	return []string{found[0], found[len(found)-1]}
}
