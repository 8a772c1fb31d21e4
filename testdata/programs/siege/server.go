package main

// This file runs the server under siege. It starts the server with secure settings, creates the
// initial objects, reads the meters of the process, and stops the server.

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	namespace  = "siege-a" // the tenant may edit this namespace
	otherPlace = "siege-b" // the bystander's namespace
	startLimit = 90 * time.Second
	// timeout after SIGTERM: the limit of the server plus extra time for a busy machine
	stopLimit = 45 * time.Second
	tick      = 10 * time.Millisecond
)

// A server is a running process with its data file.
type server struct {
	dir, url string
	process  *exec.Cmd
	// closed when the process has ended. Its state can then be read from process.
	ended   chan struct{}
	roots   *x509.CertPool
	clients map[string]*http.Client // clients by persona. They do not share connections.
}

// start runs the binary on the data in dir, which may be new.
func start(ctx context.Context, binary, dir string) (*server, error) {
	kubeconfig, tokens := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "tokens.csv")
	if err := os.Remove(kubeconfig); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	lines := tokenPrefix + "administrator,siege-administrator,1,system:masters\n" + tokenPrefix + "tenant,alice,2,\n" +
		tokenPrefix + "bystander,bob,3,\n" + tokenPrefix + "node,system:node:n1,4,system:nodes\n"
	if err := os.WriteFile(tokens, []byte(lines), 0o600); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s := &server{dir: dir, ended: make(chan struct{}), clients: map[string]*http.Client{}}
	s.process = exec.Command(binary, "--data", s.data(), "--cert-dir", filepath.Join(dir, "certs"), "--token-auth-file", tokens, "--kubeconfig", kubeconfig,
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--listen", "127.0.0.1:0", "--log-format", "json", "--compaction-interval=20s")
	s.process.Stderr = log
	if err := s.process.Start(); err != nil {
		return nil, err
	}
	go func() { _ = s.process.Wait(); close(s.ended) }()
	return s, s.await(ctx, kubeconfig)
}

// await waits until the server is ready and then creates the clients.
func (s *server) await(ctx context.Context, kubeconfig string) error {
	for deadline := time.Now().Add(startLimit); time.Now().Before(deadline) && ctx.Err() == nil && s.alive(); time.Sleep(tick) {
		text, _ := os.ReadFile(kubeconfig)
		var config struct {
			Clusters []struct{ Cluster struct{ Server string } }
		}
		if json.Unmarshal(text, &config) != nil || len(config.Clusters) == 0 {
			continue
		}
		s.url = config.Clusters[0].Cluster.Server
		authority, err := os.ReadFile(filepath.Join(s.dir, "certs", "ca.crt"))
		s.roots = x509.NewCertPool()
		s.roots.AppendCertsFromPEM(authority)
		for _, persona := range append([]string{"bystander", "passer-by"}, personas...) {
			s.clients[persona] = &http.Client{Transport: &http.Transport{TLSClientConfig: s.tls(), DisableCompression: true}}
		}
		return err
	}
	s.kill()
	return fmt.Errorf("the server does not serve; its log ends:\n%s", s.logEnd())
}

func (s *server) tls() *tls.Config {
	return &tls.Config{RootCAs: s.roots, NextProtos: []string{"http/1.1"}}
}
func (s *server) data() string         { return filepath.Join(s.dir, "apilet.db") }
func (s *server) pid() int             { return s.process.Process.Pid }
func (s *server) proc(f string) string { return fmt.Sprintf("/proc/%d/%s", s.pid(), f) }

func (s *server) alive() bool {
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

// kill ends the server immediately.
func (s *server) kill() {
	_ = s.process.Process.Kill() // has no effect if the process has ended
	<-s.ended
	s.hangUp()
}

func (s *server) hangUp() {
	for _, c := range s.clients {
		c.CloseIdleConnections()
	}
}

// stop ends the server by SIGTERM. It returns an error if the server does not stop correctly.
func (s *server) stop() error {
	s.hangUp()
	if err := s.process.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-s.ended:
	case <-time.After(stopLimit):
		s.kill()
		return fmt.Errorf("SIGTERM: still there after %v", stopLimit)
	}
	if code := s.process.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("SIGTERM: exit code %d; the log ends:\n%s", code, s.logEnd())
	}
	return nil
}

// check runs `apilet check` on the data file of a server that has ended.
func (s *server) check(binary string) error {
	if out, err := exec.Command(binary, "check", "--data", s.data()).CombinedOutput(); err != nil {
		return fmt.Errorf("apilet check: %w\n%.2000s", err, out)
	}
	return nil
}

func (s *server) logEnd() string {
	log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
	return string(log[max(0, len(log)-1500):])
}

var stack = regexp.MustCompile(`(?i)panic|goroutine \d+ \[|fatal error|runtime error`)

// panics returns the panics in the log after the offset, and the new end of the log.
func (s *server) panics(offset int64) (string, int64) {
	file, err := os.Open(filepath.Join(s.dir, "log"))
	if err != nil {
		return "", offset
	}
	defer file.Close()
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return "", offset
	}
	log, _ := io.ReadAll(file)
	if at := stack.FindIndex(log); at != nil {
		return string(log[at[0]:min(len(log), at[0]+1500)]), offset + int64(len(log))
	}
	return "", offset + int64(len(log))
}

// ---- Meters ----

// cpu returns the processor time that the process has used. Linux counts it in units of 1/100 s.
func (s *server) cpu() time.Duration {
	stat, _ := os.ReadFile(s.proc("stat"))
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * tick
}

var (
	resident = regexp.MustCompile(`VmRSS:\s+(\d+) kB`)
	peak     = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)
)

// memory returns the current memory of the process and its maximum since forgetPeak, in bytes.
func (s *server) memory() (now, most int64) {
	status, _ := os.ReadFile(s.proc("status"))
	return kilobytes(resident, status), kilobytes(peak, status)
}

func kilobytes(pattern *regexp.Regexp, text []byte) int64 {
	match := pattern.FindSubmatch(text)
	if match == nil {
		return 0
	}
	n, _ := strconv.ParseInt(string(match[1]), 10, 64)
	return n << 10
}

// forgetPeak resets the maximum to the current memory.
func (s *server) forgetPeak() { _ = os.WriteFile(s.proc("clear_refs"), []byte("5"), 0) }

// ---- Initial objects ----

const definition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"blobs.siege.example"},"spec":{"group":"siege.example","scope":"Namespaced",
"names":{"plural":"blobs","singular":"blob","kind":"Blob","listKind":"BlobList"},"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},
"schema":{"openAPIV3Schema":{"type":"object","properties":{"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true},"spec":{"type":"object","properties":{
"free":{"type":"object","x-kubernetes-preserve-unknown-fields":true},"number":{"x-kubernetes-int-or-string":true},"at":{"type":"string","format":"date-time"},
"share":{"type":"number","format":"double"},"count":{"type":"integer","format":"int64"},"by":{"type":"object","additionalProperties":{"type":"string"}},
"byNumber":{"type":"object","additionalProperties":{"x-kubernetes-int-or-string":true}},"words":{"type":"array","items":{"type":"string"}},
"set":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}},"parts":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"],
"items":{"type":"object","required":["name"],"properties":{"name":{"type":"string"},"size":{"type":"integer"}}}}}}}}}}]}}`

// furniture contains the objects that are created by the administrator whenever the server is
// started without data.
var furniture = [][2]string{
	{"/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"` + namespace + `","labels":{"pod-security.kubernetes.io/warn":"restricted"}}}`},
	{"/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"` + otherPlace + `"}}`},
	{"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition},
	{"/apis/rbac.authorization.k8s.io/v1/clusterroles", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"blobs","labels":{"rbac.authorization.k8s.io/aggregate-to-edit":"true"}},
		"rules":[{"apiGroups":["siege.example"],"resources":["*"],"verbs":["*"]}]}`},
	{"/apis/rbac.authorization.k8s.io/v1/namespaces/" + namespace + "/rolebindings", bindingOf("edit", "alice")},
	{"/apis/rbac.authorization.k8s.io/v1/namespaces/" + otherPlace + "/rolebindings", bindingOf("admin", "bob")},
	{"/api/v1/namespaces/" + namespace + "/resourcequotas", `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"much"},"spec":{"hard":{"pods":"99999999","count/configmaps":"99999999"}}}`},
	{policies + "validatingadmissionpolicies", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"never"},"spec":{"matchConstraints":{` + everything + `},
		"validations":[{"expression":"object == null || !has(object.metadata.labels) || object.metadata.labels.all(k, object.metadata.labels[k] != 'never')"}]}}`},
	{policies + "validatingadmissionpolicybindings", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":"never"},"spec":{"policyName":"never",
		"validationActions":["Deny"],` + inNamespace + `}}`},
	{policies + "mutatingadmissionpolicies", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingAdmissionPolicy","metadata":{"name":"label"},"spec":{"matchConstraints":{` + everything + `},
		"reinvocationPolicy":"Never","mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"Object{metadata: Object.metadata{labels: {'seen': 'yes'}}}"}}]}}`},
	{policies + "mutatingadmissionpolicybindings", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingAdmissionPolicyBinding","metadata":{"name":"label"},"spec":{"policyName":"label",` + inNamespace + `}}`},
	{"/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}`},
	{"/api/v1/namespaces/" + otherPlace + "/configmaps", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"bobs"},"data":{"a":"b"}}`},
}

const (
	policies    = "/apis/admissionregistration.k8s.io/v1/"
	everything  = `"resourceRules":[{"apiGroups":["*"],"apiVersions":["*"],"operations":["CREATE","UPDATE"],"resources":["*"]}]`
	inNamespace = `"matchResources":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"` + namespace + `"}}}`
)

const bystandersPath = "/api/v1/namespaces/" + otherPlace + "/configmaps/bobs"

func bindingOf(role, user string) string {
	return `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"` + user + `"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"` + role +
		`"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"` + user + `"}]}`
}

func (s *server) furnish() error {
	for _, f := range furniture {
		if code, answer, err := s.ask("administrator", "POST", f[0], []byte(f[1])); err != nil || code != 201 && code != 409 {
			return errors.Join(fmt.Errorf("POST %s: %d %.300s", f[0], code, answer), err)
		}
	}
	for deadline := time.Now().Add(startLimit); time.Now().Before(deadline); time.Sleep(5 * tick) {
		code, _, err := s.ask("tenant", "GET", "/apis/siege.example/v1/namespaces/"+namespace+"/blobs", nil)
		if err != nil || code == 200 {
			return err
		}
	}
	return errors.New("the custom resource is not served to the tenant")
}

// ask sends a plain request in JSON.
func (s *server) ask(persona, method, path string, body []byte) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	q := request{As: persona, Method: method, Path: path, ContentType: "application/json"}
	r, err := q.http(s.url, body)
	if err != nil {
		return 0, nil, err
	}
	response, err := s.clients[persona].Do(r.WithContext(ctx))
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

// documents returns the OpenAPI documents of all group versions.
func (s *server) documents() ([]*document, error) {
	_, index, err := s.ask("administrator", "GET", "/openapi/v3", nil)
	if err != nil {
		return nil, err
	}
	var paths struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	if err := json.Unmarshal(index, &paths); err != nil {
		return nil, err
	}
	var all []*document
	for _, path := range slices.Sorted(maps.Keys(paths.Paths)) {
		entry := paths.Paths[path]
		if !strings.Contains(path, "/v") { // lists of versions define no types
			continue
		}
		_, text, err := s.ask("administrator", "GET", entry.ServerRelativeURL, nil)
		d := new(document)
		if err := errors.Join(err, json.NewDecoder(bytes.NewReader(text)).Decode(d)); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, d)
	}
	return all, nil
}

// signingRequest returns a certificate request for a CertificateSigningRequest.
var signingRequest = sync.OnceValue(func() string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "siege"}}, key)
	if err != nil {
		panic(err)
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
})
