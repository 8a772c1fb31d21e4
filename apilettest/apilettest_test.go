package apilettest

// These tests start apilet.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// request sends a request to a server and returns the response's code and body.
func request(t testing.TB, client *http.Client, method, url, body string) (code int, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/yaml")
	r.Header.Set("Accept", "application/json")
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	read, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(read)
}

const configMaps = "/api/v1/namespaces/default/configmaps"

// create creates an object in a server.
func create(t testing.TB, s *Server, path, object string) {
	t.Helper()
	if code, text := request(t, s.Client(), http.MethodPost, s.URL()+path, object); code != http.StatusCreated {
		t.Fatalf("create: %d %s", code, text)
	}
}

// names returns the names of a server's objects.
func names(t testing.TB, s *Server, path string) (all []string) {
	t.Helper()
	code, text := request(t, s.Client(), http.MethodGet, s.URL()+path, "")
	var list struct {
		Items []struct{ Metadata struct{ Name string } }
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil || code != http.StatusOK {
		t.Fatalf("list: %d %s %v", code, text, err)
	}
	for _, item := range list.Items {
		all = append(all, item.Metadata.Name)
	}
	return all
}

func TestDataSurvivesARestart(t *testing.T) {
	t.Parallel()
	s := Start(t, Data(filepath.Join(t.TempDir(), "apilet.db")), KeepPort())
	url := s.URL()
	create(t, s, configMaps, "{metadata: {name: kept}}")
	s.Kill()
	s.Restart()
	if got := names(t, s, configMaps); fmt.Sprint(got) != "[kept]" {
		t.Errorf("the server has the ConfigMaps %v, want kept", got)
	}
	if s.URL() != url {
		t.Errorf("the URL was %s and is %s", url, s.URL())
	}
}

// TestBase starts two servers on a file that apilet fork has made. A change in one does not reach
// the other.
func TestBase(t *testing.T) {
	t.Parallel()
	base := filepath.Join(t.TempDir(), "base.db")
	prepared := Start(t)
	create(t, prepared, configMaps, "{metadata: {name: prices}}")
	if out, err := exec.Command(Program(t), "fork", "--kubeconfig", prepared.KubeconfigFile, base).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	one, two := Start(t, Base(base)), Start(t, Base(base))
	create(t, one, configMaps, "{metadata: {name: more}}")
	if got := names(t, two, configMaps); fmt.Sprint(got) != "[prices]" {
		t.Errorf("the second server has the ConfigMaps %v, want prices", got)
	}
}

const planets = "/apis/example.com/v1/namespaces/default/planets"

// planetCRD is a definition in the middle of a file with other documents.
const planetCRD = `# Written by a generator.
---
apiVersion: v1
kind: ConfigMap
metadata: {name: ignored}
data:
  text: |
    kind: CustomResourceDefinition
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: planets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: planets, singular: planet, kind: Planet, listKind: PlanetList}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

const planet = "{apiVersion: example.com/v1, kind: Planet, metadata: {name: earth}}"

// writeCRDs returns a folder with definitions and other files.
func writeCRDs(t *testing.T, definition string) string {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{"planets.yaml": definition, "kustomization.yaml": "kind: Kustomization\n", "README.md": "kind: CustomResourceDefinition\n"}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestCRDs creates a custom resource as soon as the server has started, also in the next process,
// which finds the definition in its file.
func TestCRDs(t *testing.T) {
	t.Parallel()
	s := Start(t, CRDs(writeCRDs(t, planetCRD)), Data(filepath.Join(t.TempDir(), "apilet.db")))
	create(t, s, planets, planet)
	s.Restart()
	if got := names(t, s, planets); fmt.Sprint(got) != "[earth]" {
		t.Errorf("the server has the planets %v, want earth", got)
	}
	if got := names(t, s, configMaps); len(got) > 0 {
		t.Errorf("the server has the ConfigMaps %v, want none", got)
	}
}

// TestWrongCRDs starts servers with definitions that cannot be installed.
func TestWrongCRDs(t *testing.T) {
	t.Parallel()
	s := Prepare(t, CRDs(writeCRDs(t, strings.ReplaceAll(planetCRD, "scope: Namespaced", "scope: Galactic"))))
	if err := s.Run(); err == nil || !strings.Contains(err.Error(), "planets.yaml: ") || !strings.Contains(err.Error(), "Galactic") {
		t.Errorf("got %v, want the file and the refusal", err)
	}
	if _, err := readCRDs([]string{writeCRDs(t, "kind: ConfigMap\n")}); err == nil || !strings.Contains(err.Error(), "no CustomResourceDefinition") {
		t.Errorf("got %v, want that the folder has no definition", err)
	}
	if _, err := readCRDs([]string{"missing"}); !os.IsNotExist(err) {
		t.Errorf("got %v, want that the folder is missing", err)
	}
}

func TestDefinitions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		planetCRD:                                1,
		planetCRD + "---\n" + planetCRD:          2,
		"kind: \"CustomResourceDefinition\" # x": 1,
		"kind: CustomResourceDefinition\r\n--- # x\r\nkind: CustomResourceDefinition\r\n": 2,
		`{"kind": "CustomResourceDefinition"}`:                                            1,
		`{"kind": "ConfigMap"}`:                                                           0,
		"kind: CustomResourceDefinitionList\n":                                            0,
		"":                                                                                0,
	} {
		if got := len(definitions([]byte(text))); got != want {
			t.Errorf("%q has %d definitions, want %d", text, got, want)
		}
	}
}

// TestUsers sends requests of two users. A role permits one of them to read.
func TestUsers(t *testing.T) {
	t.Parallel()
	s := Start(t, User("reader", "staff", "a,b"), User("other"), CRDs(writeCRDs(t, planetCRD)))
	const rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/"
	create(t, s, rbac+"roles", "{metadata: {name: reader}, rules: [{apiGroups: [\"\"], resources: [configmaps], verbs: [list]}]}")
	create(t, s, rbac+"rolebindings", `{metadata: {name: reader}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader},
		subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: staff}]}`)
	for user, want := range map[string]int{"reader": http.StatusOK, "other": http.StatusForbidden} {
		var config struct {
			Contexts []struct{ Context struct{ User string } }
			Users    []struct {
				Name string
				User struct{ Token string }
			}
		}
		if err := json.Unmarshal(s.KubeconfigFor(user), &config); err != nil {
			t.Fatal(err)
		}
		if len(config.Users) != 1 || config.Users[0].Name != user || config.Contexts[0].Context.User != user {
			t.Errorf("the kubeconfig of %s has %+v", user, config)
		}
		client := s.Client()
		client.Transport.(*http.Transport).TLSClientConfig.Certificates = nil
		client.Transport = bearer{config.Users[0].User.Token, client.Transport}
		if code, text := request(t, client, http.MethodGet, s.URL()+configMaps, ""); code != want {
			t.Errorf("%s lists: %d %s, want %d", user, code, text, want)
		}
	}
}

// A bearer adds a token to requests.
type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

// TestFailureIsReported runs a failing test and a successful test.
func TestFailureIsReported(t *testing.T) {
	if result := os.Getenv(child); result != "" {
		s := Start(t)
		create(t, s, configMaps, "{metadata: {name: culprit}}")
		if result == "fail" {
			t.Error("the failure")
		}
		return
	}
	t.Parallel()
	run := func(result string) string {
		cmd := exec.Command(os.Args[0], "-test.run=^TestFailureIsReported$", "-test.v")
		cmd.Env = append(os.Environ(), child+"="+result, "APILET="+Program(t))
		out, err := cmd.CombinedOutput()
		if (err == nil) != (result == "succeed") {
			t.Errorf("%s: %v\n%s", result, err, out)
		}
		return string(out)
	}
	out := run("fail")
	for _, want := range []string{"apilet log --tail 40:", "create   ConfigMap default/culprit", "apilet log --findings:", "INF serving"} {
		if !strings.Contains(out, want) {
			t.Errorf("a failed test does not print %q:\n%s", want, out)
		}
	}
	if out := run("succeed"); strings.Contains(out, "culprit") || strings.Contains(out, "INF") {
		t.Errorf("a successful test prints the log:\n%s", out)
	}
}

// TestParallelTestsHaveAServerEach runs APILETTEST_SERVERS tests at the same time. All servers run
// before one of them ends.
func TestParallelTestsHaveAServerEach(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv("APILETTEST_SERVERS"))
	if err != nil {
		n = 10
	}
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.parallel="+strconv.Itoa(n))
		cmd.Env = append(os.Environ(), child+"=1", "APILET="+Program(t))
		out, err := cmd.CombinedOutput()
		if err != nil || bytes.Count(out, []byte("    --- PASS")) != n {
			t.Fatalf("%d tests: %v\n%s", n, err, out)
		}
		t.Logf("%d servers: %v of CPU time", n, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
		return
	}
	var running sync.WaitGroup
	running.Add(n)
	for i := range n {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			s := Prepare(t)
			err := s.Run()
			running.Done()
			if err != nil {
				t.Fatal(err)
			}
			running.Wait()
			create(t, s, configMaps, "{metadata: {name: mine}}")
			if got := names(t, s, configMaps); fmt.Sprint(got) != "[mine]" {
				t.Errorf("the server has the ConfigMaps %v, want mine", got)
			}
		})
	}
}

// BenchmarkStart starts a server and ends it.
func BenchmarkStart(b *testing.B) {
	for range b.N {
		Start(b).Kill()
	}
}
