package kubeconfig

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRemote(t *testing.T) {
	t.Parallel()
	var seen *http.Request
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r }))
	defer s.Close()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	config := file("config", `{"current-context": "a", "contexts": [{"name": "a", "context": {"cluster": "here", "namespace": "shop"}}, {"name": "b", "context": {"cluster": "none"}},
		{"name": "c", "context": {"cluster": "here", "user": "token"}}, {"name": "d", "context": {"cluster": "here", "user": "program"}}],
		"clusters": [{"name": "here", "cluster": {"server": "`+s.URL+`/"}}], "users": [{"name": "token", "user": {"token": "t"}}, {"name": "program", "user": {"exec": {"command": "x"}}}]}`)
	for _, c := range []struct {
		name   string
		remote Remote
		want   string // of an error
	}{
		{"a URL", Remote{Server: s.URL + "/", Agent: "me/1"}, ""},
		{"a kubeconfig", Remote{Kubeconfig: config, Agent: "me/1"}, ""},
		{"another context", Remote{Kubeconfig: config, Context: "b"}, `the current context "b" has no server`},
		{"a context that is none", Remote{Kubeconfig: config, Context: "x"}, `the current context "x" has no server`},
		{"a token in the open", Remote{Kubeconfig: config, Context: "c"}, "in plain text"},
		{"a program", Remote{Kubeconfig: config, Context: "d"}, "has exec, which apilet does not support"},
		{"no file", Remote{Kubeconfig: filepath.Join(dir, "none")}, "has no server"},
		{"no regular file", Remote{Kubeconfig: dir}, "not a regular file"},
		{"no YAML", Remote{Kubeconfig: file("bad", "\x00")}, "--kubeconfig"},
		{"a token file in the open", Remote{Server: s.URL, TokenFile: config}, "requires a --server with https"},
		{"authorities that are none", Remote{Server: s.URL, CAFile: config}, "no certificate in"},
	} {
		client, err := c.remote.Client()
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %s", c.name, err, c.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		answer, err := client.Get(context.Background(), "/x?y=z", "Accept", "text/plain")
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		_ = answer.Body.Close()
		if seen.URL.String() != "/x?y=z" || seen.Header.Get("Accept") != "text/plain" || seen.UserAgent() != "me/1" || seen.Header.Get("Authorization") != "" {
			t.Errorf("%s: asked %s with %v", c.name, seen.URL, seen.Header)
		}
		if c.remote.Kubeconfig != "" && client.Namespace != "shop" {
			t.Errorf("%s: namespace %q", c.name, client.Namespace)
		}
	}
}
