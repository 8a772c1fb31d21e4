package kubeconfig_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"apilet/internal/kubeconfig"
)

// The server writes where it is reached while it serves, and takes that out again at its end.
func Example() {
	dir, _ := os.MkdirTemp("", "example")
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "config")
	cluster, user := map[string]any{"server": "https://127.0.0.1:6443"}, map[string]any{"token": "t"}
	leads := func() bool { text, _ := os.ReadFile(path); return strings.Contains(string(text), "127.0.0.1:6443") }

	fmt.Println(kubeconfig.CheckOwnership(path), kubeconfig.Write(path, cluster, user), leads())
	fmt.Println(kubeconfig.Clear(path), leads())
	// Output:
	// <nil> <nil> true
	// <nil> false
}

// A file with somebody else's content is not the server's to write.
func ExampleCheckOwnership() {
	dir, _ := os.MkdirTemp("", "example")
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "config")
	os.WriteFile(path, []byte("apiVersion: v1\nkind: Config\ncontexts: [{name: production, context: {cluster: c, user: u}}]\n"), 0o600)
	fmt.Println(kubeconfig.CheckOwnership(path) != nil)
	// Output:
	// true
}
