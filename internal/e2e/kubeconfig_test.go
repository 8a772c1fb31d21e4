package e2e

// These tests start a server whose kubeconfig file already exists. It may have been written by
// another program, or by the server and then modified.

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
	"sigs.k8s.io/yaml"

	"apilet/internal/apitest"
)

func TestKubeconfigOfOthersIsLeftAsItIs(t *testing.T) {
	t.Parallel()
	for title, content := range map[string]string{
		"another cluster's": "apiVersion: v1\nkind: Config\ncurrent-context: prod\nclusters: [{name: prod, cluster: {server: https://prod}}]\n",
		"an empty one":      "apiVersion: v1\nkind: Config\nclusters: []\n",
		"no kubeconfig":     "my diary: {",
		"one with a namesake": "clusters: [{name: apilet, cluster: {server: https://prod}}, {name: b, cluster: {server: https://b}}]\n" +
			"users: [{name: apilet, user: {}}]\ncontexts: [{name: apilet, context: {cluster: apilet, user: apilet}}]\n",
	} {
		t.Run(title, func(t *testing.T) {
			path := apitest.TempFile(t, "config", content)
			data := filepath.Join(t.TempDir(), "a.db")
			why := startFails(t, "--kubeconfig="+path, onFile(data))
			if !strings.Contains(why, path+" was not written by apilet") {
				t.Errorf("got %q", why)
			}
			if got := string(apitest.ReadFile(t, path)); got != content {
				t.Errorf("the file is now %q", got)
			}
			if isThere(data) {
				t.Error("a data file was made")
			}
		})
	}
}

func TestKubeconfigOfTheLastRunIsGoneWhenTheNextOneStarts(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config")
	startTest(t, "--kubeconfig="+path).halt()
	if !isThere(path) {
		t.Fatal("no kubeconfig")
	}
	data := apitest.TempFile(t, "a.db", "no data file") // the start fails at this file
	startFails(t, "--kubeconfig="+path, onFile(data))
	if !isThere(path) {
		t.Error("a server that has no data took the kubeconfig of one that may have it open")
	}
	keys := apitest.TempFile(t, "keys", "no key")
	startFails(t, "--kubeconfig="+path, "--continue-key-file="+keys)
	if isThere(path) {
		t.Errorf("the last run's is still there: %s", apitest.ReadFile(t, path))
	}
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Additions to the file by `kubectl config` belong to the user.
func TestKubeconfigKeepsWhatWasAdded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config")
	withConfig := "--kubeconfig=" + path
	startTest(t, withConfig).halt()
	var k map[string]any
	if err := yaml.Unmarshal(apitest.ReadFile(t, path), &k); err != nil {
		t.Fatal(err)
	}
	contexts, clusters := k["contexts"].([]any), k["clusters"].([]any)
	contexts[0].(map[string]any)["context"].(map[string]any)["namespace"] = "shop"
	k["contexts"] = append(contexts, map[string]any{"name": "mine", "context": map[string]any{"cluster": "far", "user": "me"}})
	k["clusters"] = append(clusters, map[string]any{"name": "far", "cluster": map[string]any{"server": "https://far"}})
	k["current-context"] = "mine"
	edited, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	apitest.WriteFile(t, path, edited)
	keys := apitest.TempFile(t, "keys", "no key")
	startFails(t, withConfig, "--continue-key-file="+keys)
	if text := apitest.ReadFile(t, path); strings.Contains(string(text), "127.0.0.1") || !strings.Contains(string(text), "https://far") {
		t.Errorf("after a start that failed: %s", text)
	}
	s := startTest(t, withConfig)
	text := apitest.ReadFile(t, path)
	for query, want := range map[string]string{
		`clusters.#(name=="apilet").cluster.server`:            s.url,
		`clusters.#(name=="far").cluster.server`:               "https://far",
		`contexts.#(name=="mine").context.user`:                "me",
		`contexts.#(name=="apilet").context.namespace`:         "shop",
		`current-context`:                                      "mine",
		`clusters.#`:                                           "2",
		`contexts.#`:                                           "2",
		`users.#`:                                              "1",
		`clusters.#(name=="apilet").cluster.extensions.0.name`: "apilet",
	} {
		if got := gjson.GetBytes(text, query).String(); got != want {
			t.Errorf("%s: got %q, want %q", query, got, want)
		}
	}
}

func TestPortInUseLeavesNoFileAndNamesTheFlag(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	why := startFails(t, onFile(filepath.Join(dir, "a.db")), "--listen="+taken.Addr().String(),
		"--cert-dir="+filepath.Join(dir, "certs"), "--audit-log-path="+filepath.Join(dir, "audit"))
	if !strings.Contains(why, "--listen "+taken.Addr().String()) || strings.Count(why, "\n") != 1 {
		t.Errorf("got %q", why)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// apilet backup authenticates as the user of the kubeconfig.
func TestBackupAsTheUserOfAKubeconfig(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config")
	startTest(t, "--cert-dir="+filepath.Join(t.TempDir(), "certs"), "--kubeconfig="+path)
	plain := filepath.Join(t.TempDir(), "config")
	startTest(t, "--kubeconfig="+plain)
	token := startTokenConfig(t)
	for title, c := range map[string]struct{ path, want string }{
		"a client certificate": {path, ""},
		"the plain port":       {plain, ""},
		"a token":              {token, ""},
		"nothing":              {filepath.Join(t.TempDir(), "none"), "names no server"},
		"a program": {apitest.TempFile(t, "exec", "current-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n"+
			"clusters: [{name: a, cluster: {server: https://127.0.0.1:1}}]\nusers: [{name: a, user: {exec: {command: x}}}]\n"), "kubectl get --raw"},
		"a token on a plain port": {apitest.TempFile(t, "plain", "current-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n"+
			"clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: a, user: {token: x}}]\n"), "in plain text"},
	} {
		dest := filepath.Join(t.TempDir(), "copy.db")
		r := runAs(t, "apilet", "backup", "--kubeconfig", c.path, dest)
		if c.want == "" && r.code != 0 || c.want != "" && (r.code != 1 || !strings.Contains(r.errs, c.want)) {
			t.Errorf("%s: %d %s", title, r.code, r.errs)
		}
		if info, err := os.Stat(dest); (err == nil) != (c.want == "") || err == nil && info.Mode().Perm() != 0o600 {
			t.Errorf("%s: the file: %v %v", title, info, err)
		}
	}
}

// startTokenConfig starts a server with tokens and returns a kubeconfig that uses relative file
// names.
func startTokenConfig(t *testing.T) string {
	t.Helper()
	s, _ := startTLS(t)
	dir := filepath.Dir(apitest.TempFile(t, "token", "root-token\n"))
	apitest.WriteFile(t, filepath.Join(dir, "ca.pem"), s.servedAuthority())
	path := filepath.Join(dir, "config")
	content := "current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\n" +
		"clusters: [{name: c, cluster: {server: '" + s.url + "', certificate-authority: ca.pem}}]\nusers: [{name: u, user: {tokenFile: token}}]\n"
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
