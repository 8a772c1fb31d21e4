package browser

// This file starts servers for the pages and sends writes to them.

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"apilet/apilettest"
)

// A server is an apilet process on the plain port.
type server struct {
	*apilettest.Server
	t *testing.T
}

func startServer(t *testing.T, flags ...string) *server {
	t.Helper()
	return &server{apilettest.Start(t, apilettest.Flags(flags...)), t}
}

// write sends a document with a user agent. It must succeed.
func (s *server) write(agent, method, path, body string) []byte {
	s.t.Helper()
	r, err := http.NewRequest(method, s.URL()+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("User-Agent", agent)
	r.Header.Set("Content-Type", map[string]string{"PATCH": "application/merge-patch+json"}[method])
	if method != "PATCH" {
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	if answer.StatusCode >= 300 {
		s.t.Fatalf("%s %s: %s %s", method, path, answer.Status, text)
	}
	return text
}

// configMap creates a ConfigMap in the namespace default and returns its resourceVersion.
func (s *server) configMap(name, key, value string) string {
	s.t.Helper()
	_, rev := s.made("kubectl-create", "/api/v1/namespaces/default/configmaps", fmt.Sprintf(`{"metadata":{"name":%q},"data":{%q:%q}}`, name, key, value))
	return rev
}

// create posts a document and returns the new object's UID.
func (s *server) create(agent, path, body string) string {
	s.t.Helper()
	uid, _ := s.made(agent, path, body)
	return uid
}

// made posts a document and returns the new object's UID and resourceVersion.
func (s *server) made(agent, path, body string) (uid, rev string) {
	s.t.Helper()
	answer := s.write(agent, "POST", path, body)
	var made struct {
		Metadata struct{ UID, ResourceVersion string }
	}
	if err := json.Unmarshal(answer, &made); err != nil {
		s.t.Fatal(err)
	}
	return made.Metadata.UID, made.Metadata.ResourceVersion
}
