package browser

// This file starts servers for the pages, and writes to them as anybody would.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

var apilet string // the binary

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	if apilet = os.Getenv("APILET"); apilet != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "apilet-browser-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	apilet = filepath.Join(dir, "apilet")
	build := exec.Command("go", "build", "-o", apilet, ".")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// A server is an apilet process on the plain port, which ends with its test.
type server struct {
	t          *testing.T
	url        string
	kubeconfig string // path of the administrator's
}

func startServer(t *testing.T, args ...string) *server {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	var log bytes.Buffer
	proc := exec.Command(apilet, append([]string{"--ephemeral", "--listen", "127.0.0.1:0", "--kubeconfig", kubeconfig}, args...)...)
	proc.Stderr = &log
	if err := proc.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = proc.Process.Signal(syscall.SIGTERM)
		_ = proc.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		text, _ := os.ReadFile(kubeconfig)
		if m := regexp.MustCompile(`"server": "([^"]+)"`).FindSubmatch(text); m != nil {
			return &server{t: t, url: string(m[1]), kubeconfig: kubeconfig}
		}
	}
	t.Fatal("the server does not come up: ", log.String())
	return nil
}

// write sends a document as a program of a name, and wants a success.
func (s *server) write(agent, method, path, body string) []byte {
	s.t.Helper()
	r, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
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

// configMap creates one in the namespace default, and returns its resourceVersion.
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

// made posts a document and returns what the new object has been given.
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
