package etcd

// This file tests that servers that use TLS share one certificate authority, either through etcd or
// by their configuration.

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"apilet/apilettest"
)

const sharedAuthority = "/registry/.apilet/authority"

// aSecured returns a server over TLS that has not been started. Its address stays the same.
func (c *cluster) aSecured(more ...string) *server {
	s := c.serverWith(apilettest.KeepPort(), apilettest.Flags("--cert-dir", filepath.Join(c.t.TempDir(), "certs")), apilettest.Flags(more...))
	s.client = &http.Client{Transport: &http.Transport{}}
	return s
}

// folder returns its --cert-dir.
func (s *server) folder() string { return s.flag("--cert-dir") }

// credentials returns the trusted authority and the certificate in the kubeconfig.
func (s *server) credentials() (*tls.Config, error) {
	text, err := os.ReadFile(s.KubeconfigFile)
	if err != nil {
		return nil, err
	}
	var config struct {
		Clusters []struct {
			Cluster struct {
				Authority []byte `json:"certificate-authority-data"`
			}
		}
		Users []struct {
			User struct {
				Certificate []byte `json:"client-certificate-data"`
				Key         []byte `json:"client-key-data"`
			}
		}
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(config.Clusters[0].Cluster.Authority)
	pair, err := tls.X509KeyPair(config.Users[0].User.Certificate, config.Users[0].User.Key)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}, err
}

// runSecured starts servers over TLS concurrently. Requests to each use its own kubeconfig.
func runSecured(t *testing.T, servers ...*server) {
	t.Helper()
	for _, s := range servers {
		s.Launch()
	}
	for _, s := range servers {
		s.readySecured()
	}
}

func (s *server) readySecured() {
	s.t.Helper()
	var credentials *tls.Config
	apilettest.Until(s.t, "the server writes its kubeconfig", func() (err error) {
		credentials, err = s.credentials()
		return err
	})
	s.client = &http.Client{Transport: &http.Transport{TLSClientConfig: credentials}}
	s.ready()
}

// asked sends a request to this server with the credentials of another server's kubeconfig.
func (s *server) asked(with *server) error {
	credentials, err := with.credentials()
	if err != nil {
		return err
	}
	transport := &http.Transport{TLSClientConfig: credentials}
	defer transport.CloseIdleConnections()
	other := &server{process: s.process, client: &http.Client{Transport: transport}}
	code, text, err := other.try("GET", "/api/v1/namespaces/kube-system/secrets", "", patience)
	if err == nil && code != 200 {
		err = fmt.Errorf("%d %s", code, text)
	}
	return err
}

// root returns the certificate authority that is published in the namespaces.
func (s *server) root() string {
	var o struct{ Data map[string]string }
	if err := json.Unmarshal([]byte(s.do(200, "GET", maps+"/kube-root-ca.crt", "")), &o); err != nil {
		s.t.Fatal(err)
	}
	return o.Data["ca.crt"]
}

func (c *cluster) shared() string {
	c.t.Helper()
	found, err := c.client().Get(c.t.Context(), sharedAuthority)
	if err != nil || len(found.Kvs) != 1 {
		c.t.Fatal(found, err)
	}
	return string(found.Kvs[0].Value)
}

func content(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestServersHaveOneAuthority starts three servers concurrently on an empty etcd. All kubeconfig
// files must be valid for all servers, even if the directory of a server is lost.
func TestServersHaveOneAuthority(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	servers := []*server{c.aSecured(), c.aSecured(), c.aSecured("--tls-san", "api.example.com")}
	runSecured(t, servers...)
	everybody := func(when string) {
		t.Helper()
		for i, s := range servers {
			for j, other := range servers {
				if err := s.asked(other); err != nil {
					t.Errorf("%s: server %d with the kubeconfig of %d: %v", when, i, j, err)
				}
			}
			if got, want := s.root(), content(t, filepath.Join(s.folder(), "ca.crt")); got != want {
				t.Errorf("%s: kube-root-ca.crt of server %d is not its authority", when, i)
			}
		}
	}
	everybody("at the start")
	if text := c.shared(); !strings.Contains(text, "PRIVATE KEY") {
		t.Errorf("the key is not shared: %s", text)
	}
	lost := servers[1]
	lost.ends(t, 0, syscall.SIGTERM)
	before := content(t, filepath.Join(lost.folder(), "ca.crt"))
	if err := os.RemoveAll(lost.folder()); err != nil {
		t.Fatal(err)
	}
	lost.Launch()
	lost.readySecured()
	everybody("with a new folder")
	if content(t, filepath.Join(lost.folder(), "ca.crt")) != before {
		t.Error("another authority")
	}
	if err := servers[2].named("api.example.com"); err != nil {
		t.Error(err)
	}

	// The key must not be stored in a migrated file, a backup, or a copy.
	back := filepath.Join(t.TempDir(), "back.db")
	if said, problem := c.migrate(back, "--to-file"); problem != "" {
		t.Errorf("%s%s", said, problem)
	}
	for _, file := range []string{back, servers[0].data} {
		if text := content(t, file); strings.Contains(text, "-----BEGIN PRIVATE") {
			t.Errorf("a private key is in %s", filepath.Base(file))
		}
	}
}

// named checks that the certificate of the server is valid for the name.
func (s *server) named(name string) error {
	credentials, err := s.credentials()
	if err != nil {
		return err
	}
	credentials.ServerName = name
	conn, err := tls.Dial("tcp", strings.TrimPrefix(s.URL(), "https://"), credentials)
	if err != nil {
		return err
	}
	return conn.Close()
}

// TestAuthoritiesOfBeforeSharing checks earlier installations with separate authorities. The
// authority of the server that starts first is shared. Another server does not use the shared
// authority, because its clients trust the existing one. It logs a warning and uses the shared
// authority after its files have been removed.
func TestAuthoritiesOfBeforeSharing(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	first, second := c.aSecured(), c.aSecured()
	for _, s := range []*server{first, second} { // like earlier servers with a file each
		alone := startOnFileSecured(t, s.folder())
		alone.ends(t, 0, syscall.SIGTERM)
	}
	own := content(t, filepath.Join(second.folder(), "ca.crt"))
	runSecured(t, first)
	runSecured(t, second)
	if text := c.shared(); !strings.Contains(text, "PRIVATE KEY") || strings.Contains(first.Log(), "WRN this server's authority") {
		t.Errorf("%s\n%s", text, first.Log())
	}
	says(t, second.Log(), "this server's CA differs from the one that the servers on this etcd share, and stays in use", "remove ca.crt and ca.key here")
	if content(t, filepath.Join(second.folder(), "ca.crt")) != own || second.asked(second) != nil {
		t.Error("its clients are locked out")
	}
	if err := second.asked(first); err == nil {
		t.Error("a client of the first trusts the second")
	}
	second.ends(t, 0, syscall.SIGTERM)
	for _, name := range []string{"ca.crt", "ca.key"} {
		if err := os.Remove(filepath.Join(second.folder(), name)); err != nil {
			t.Fatal(err)
		}
	}
	second.Launch()
	second.readySecured()
	for _, asked := range []error{second.asked(first), first.asked(second)} {
		if asked != nil {
			t.Error(asked)
		}
	}
}

func startOnFileSecured(t *testing.T, folder string) *server {
	t.Helper()
	s := aServer(t, filepath.Join(t.TempDir(), "data.db"), apilettest.Flags("--cert-dir", folder))
	runSecured(t, s)
	return s
}

// TestAuthorityIsHandedIn checks that servers use the configured authority and never store its key
// in etcd. A server without it must not start.
func TestAuthorityIsHandedIn(t *testing.T) {
	t.Parallel()
	c, acme := startCluster(t, 1), newAuthority(t, "acme")
	handIn := func(s *server) {
		if err := os.MkdirAll(s.folder(), 0o700); err != nil {
			t.Fatal(err)
		}
		for from, to := range map[string]string{"acme.crt": "ca.crt", "acme.key": "ca.key"} {
			if err := os.WriteFile(filepath.Join(s.folder(), to), []byte(content(t, filepath.Join(acme.dir, from))), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	servers := []*server{c.aSecured(), c.aSecured()}
	for _, s := range servers {
		handIn(s)
	}
	runSecured(t, servers...)
	for _, s := range servers {
		for _, other := range servers {
			if err := s.asked(other); err != nil {
				t.Error(err)
			}
		}
		if s.root() != content(t, filepath.Join(servers[0].folder(), "ca.crt")) {
			t.Error("kube-root-ca.crt is another")
		}
	}
	if text := c.shared(); strings.Contains(text, "PRIVATE") || !strings.Contains(text, "CERTIFICATE") {
		t.Errorf("shared is %s", text)
	}
	without := c.aSecured()
	without.Launch()
	says(t, without.exits(t, 1), "CN=acme", "put its ca.crt and ca.key here before the start")
	handIn(without)
	runSecured(t, without)
	if err := without.asked(servers[0]); err != nil {
		t.Error(err)
	}
}

// exits waits for the process to exit with a code, and returns its output.
func (p *process) exits(t *testing.T, code int) string {
	t.Helper()
	apilettest.Until(t, "it ends", func() error {
		select {
		case <-p.Process().Done:
			return nil
		default:
			return fmt.Errorf("it says %s", p.Log())
		}
	})
	if got := p.Process().State().ExitCode(); got != code {
		t.Errorf("it ends with %d, want %d", got, code)
	}
	return p.Log()
}
