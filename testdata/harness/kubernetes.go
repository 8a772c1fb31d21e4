// Package harness starts etcd and kube-apiserver for tests. Package apilettest starts apilet.
//
//	func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }
//
//	func test(t *testing.T) {
//		cluster := harness.StartEtcd(t, harness.EtcdOptions{Members: 3})
//		kube := harness.Kubernetes(t, cluster.URLs[0])
//		...
//	}
//
// The ports of these programs must be known in advance, so each port is reserved before the program
// starts.
package harness

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"apilet/apilettest"
)

// An Etcd is a cluster of etcd.
type Etcd struct {
	Members []*apilettest.Server
	URLs    []string // of the clients
}

// EtcdOptions describe a cluster of etcd.
type EtcdOptions struct {
	Members int // 0 means 1
	Flags   []string
	// Advertise returns the peer URLs that the members advertise, given the URLs that they listen
	// on. nil means the same URLs.
	Advertise func(listening []string) []string
}

// StartEtcd starts the members and does not wait for them: etcd's clients do.
func StartEtcd(t testing.TB, options EtcdOptions) *Etcd {
	t.Helper()
	program, n, scheme := EtcdProgram(t), max(1, options.Members), "http"
	if slices.Contains(options.Flags, "--cert-file") {
		scheme = "https"
	}
	c := &Etcd{}
	var listening, initial []string
	for range n {
		c.URLs = append(c.URLs, fmt.Sprintf("%s://127.0.0.1:%d", scheme, apilettest.FreePort(t)))
		listening = append(listening, fmt.Sprintf("http://127.0.0.1:%d", apilettest.FreePort(t)))
	}
	peers := listening
	if options.Advertise != nil {
		peers = options.Advertise(listening)
	}
	for i, peer := range peers {
		initial = append(initial, fmt.Sprintf("m%d=%s", i, peer))
	}
	for i := range n {
		args := []string{"--name", fmt.Sprint("m", i), "--data-dir", filepath.Join(t.TempDir(), "data"), "--listen-client-urls", c.URLs[i],
			"--advertise-client-urls", c.URLs[i], "--listen-peer-urls", listening[i], "--initial-advertise-peer-urls", peers[i],
			"--initial-cluster", strings.Join(initial, ","), "--initial-cluster-token", initial[0],
			"--log-level", "error", "--unsafe-no-fsync"}
		member := apilettest.New(t, program, append(args, options.Flags...)...)
		member.Launch()
		c.Members = append(c.Members, member)
	}
	return c
}

// Token belongs to a user with all permissions at a server that [Kubernetes] starts.
const Token = "harness"

// Kubernetes starts the kube-apiserver that KUBE_APISERVER names on etcd, and returns when it is
// ready. Its port stays the same. It skips the test if the variable is not set.
func Kubernetes(t testing.TB, etcd string, flags ...string) *apilettest.Server {
	t.Helper()
	program := os.Getenv("KUBE_APISERVER")
	if program == "" {
		t.Skip("KUBE_APISERVER names no kube-apiserver")
	}
	dir := t.TempDir()
	keys, tokens, port := SigningKey(t, dir), filepath.Join(dir, "tokens"), apilettest.FreePort(t)
	if err := os.WriteFile(tokens, []byte(Token+`,admin,1,"system:masters"`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := apilettest.New(t, program, append([]string{"--etcd-servers", etcd, "--secure-port", fmt.Sprint(port), "--bind-address", "127.0.0.1",
		"--cert-dir", filepath.Join(dir, "certs"), "--token-auth-file", tokens, "--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.96.0.0/16",
		"--service-account-issuer", "https://harness", "--service-account-key-file", keys, "--service-account-signing-key-file", keys,
		"--disable-admission-plugins", "ServiceAccount", "--advertise-address", "10.9.9.9"}, flags...)...)
	s.Ready = Readyz(fmt.Sprint("https://127.0.0.1:", port))
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	return s
}

// SigningKey writes the key that signs the tokens of service accounts and returns the file's path.
func SigningKey(t testing.TB, dir string) (path string) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "sa.key")
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Readyz returns a function for the field Ready of an [apilettest.Server] that requests /readyz.
func Readyz(url string) func() (string, error) {
	client := &http.Client{Timeout: 5 * time.Second, // a request to a stopped process gets no answer; the next one may
		Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	return func() (string, error) {
		response, err := client.Get(url + "/readyz")
		if err != nil {
			return "", err
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return "", fmt.Errorf("%s/readyz: %s", url, response.Status)
		}
		return url, nil
	}
}
