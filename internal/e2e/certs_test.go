package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/auth/certs"
	"apilet/internal/request"
)

// TestServerMakesItsOwnCertificates checks the three ways to enable TLS. The kubeconfig must be
// sufficient for a client.
func TestServerMakesItsOwnCertificates(t *testing.T) {
	t.Parallel()
	dir, tokens := t.TempDir(), apitest.TempFile(t, "tokens", "s3cret,bob,1\n")
	for name, flags := range map[string][]string{
		"the folder that was given":  {"--cert-dir=" + filepath.Join(dir, "given")},
		"a folder beside the data":   {"--token-auth-file=" + tokens, onFile(filepath.Join(dir, "a.db"))},
		"no folder for what is lost": {"--token-auth-file=" + tokens},
	} {
		t.Run(name, func(t *testing.T) {
			kubeconfig := filepath.Join(t.TempDir(), "config")
			s := startTest(t, append(flags, "--kubeconfig="+kubeconfig, "--advertise-address=192.0.2.7")...)
			client, admin := kubetest.KubeconfigClient(t, kubeconfig)
			defer client.CloseIdleConnections()
			answer, err := client.Get(s.url + "/api/v1/pods")
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			if answer.StatusCode != 200 || answer.ProtoMajor != 2 || answer.TLS.Version < tls.VersionTLS12 {
				t.Errorf("the administrator gets %s, %s", answer.Status, answer.Proto)
			}
			if info, _ := os.Stat(kubeconfig); info.Mode().Perm() != 0o600 {
				t.Errorf("the kubeconfig has mode %v", info.Mode())
			}
			if admin.NotAfter.After(time.Now().Add(365*24*time.Hour)) || !slices.Contains(admin.Subject.Organization, request.GroupMasters) {
				t.Errorf("the administrator is %v until %v", admin.Subject, admin.NotAfter)
			}
			for _, host := range []string{"localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
				"kubernetes.default.svc.cluster.local", "10.96.0.1", "192.0.2.7"} {
				if err := answer.TLS.PeerCertificates[0].VerifyHostname(host); err != nil {
					t.Error(err)
				}
			}
		})
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "*", "ca.crt")); len(files) != 2 || filepath.Dir(files[0]) != filepath.Join(dir, "a-certs") {
		t.Errorf("the authorities are %v", files)
	}
}

// TestPlainPortStaysPlain checks that the server uses plain HTTP if no flag requires TLS. It must
// not create a directory next to the data file and its log.
func TestPlainPortStaysPlain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := startTest(t, onFile(filepath.Join(dir, "a.db")))
	s.want(200, "GET", "/api/v1/pods", "")
	if files, _ := os.ReadDir(dir); len(files) != 2 || !strings.HasPrefix(s.url, "http://") {
		t.Errorf("%s with %v", s.url, files)
	}
}

// ---- Files that change

// A mountedPair is a certificate and key in the layout of Kubernetes' volumes: DIR/tls.crt ->
// ..data/tls.crt, ..data -> VERSION. Like the kubelet, swap replaces them by renaming the link.
type mountedPair struct {
	t    *testing.T
	dir  string
	next int
}

func (m *mountedPair) file(name string) string { return filepath.Join(m.dir, name) }

func (m *mountedPair) swap(files map[string][]byte) {
	m.t.Helper()
	m.next++
	version := strings.Repeat("v", m.next)
	if err := os.Mkdir(m.file(version), 0o700); err != nil {
		m.t.Fatal(err)
	}
	for name, content := range files {
		apitest.WriteFile(m.t, filepath.Join(m.dir, version, name), content)
		if _, err := os.Lstat(m.file(name)); os.IsNotExist(err) {
			if err := os.Symlink(filepath.Join("..data", name), m.file(name)); err != nil {
				m.t.Fatal(err)
			}
		}
	}
	if err := os.Symlink(version, m.file("..new")); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Rename(m.file("..new"), m.file("..data")); err != nil {
		m.t.Fatal(err)
	}
}

// servedBy opens a new connection and returns the server's certificate.
func servedBy(t *testing.T, s *testServer) []byte {
	t.Helper()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(s.url, "https://"), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].Raw
}

// TestServingCertificateIsReloaded checks that new handshakes use the new certificate and that open
// connections continue.
func TestServingCertificateIsReloaded(t *testing.T) {
	t.Parallel()
	pair := func() (cert []byte, files map[string][]byte) { // creates a certificate in its own directory
		dir := t.TempDir()
		f, _, err := openTestCerts(t, dir, "127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		return f.Serving.Load().Certificate[0], map[string][]byte{
			"tls.crt": apitest.ReadFile(t, filepath.Join(dir, "apiserver.crt")), "tls.key": apitest.ReadFile(t, filepath.Join(dir, "apiserver.key"))}
	}
	mount := &mountedPair{t: t, dir: t.TempDir()}
	old, oldFiles := pair()
	mount.swap(oldFiles)
	s, _ := startTLS(t, "--tls-cert-file="+mount.file("tls.crt"), "--tls-private-key-file="+mount.file("tls.key"))
	s.client.Transport.(*http.Transport).TLSClientConfig.InsecureSkipVerify = true
	s.want(200, "GET", "/version", "")
	open := s.dialTLS()
	defer open.Close()
	if !bytes.Equal(servedBy(t, s), old) {
		t.Fatal("the server shows another certificate than its own")
	}
	next, nextFiles := pair()
	mount.swap(nextFiles)
	apitest.WaitFor(t, "a new connection to show the new certificate", func() bool { return bytes.Equal(servedBy(t, s), next) })
	if code := requestOver(t, open); code != 200 {
		t.Errorf("the open connection answers %d", code)
	}
	refused := func() int { return strings.Count(s.log.String(), "changed files are invalid") }
	for title, broken := range map[string]map[string][]byte{
		"a key of another certificate": {"tls.crt": nextFiles["tls.crt"], "tls.key": oldFiles["tls.key"]},
		"half a certificate":           {"tls.crt": nextFiles["tls.crt"][:100], "tls.key": nextFiles["tls.key"]},
		"nothing":                      {},
	} {
		before := refused()
		mount.swap(broken)
		apitest.WaitFor(t, "the log to tell of "+title, func() bool {
			if !bytes.Equal(servedBy(t, s), next) {
				t.Fatalf("%s: the certificate before is not shown any more", title)
			}
			return refused() > before
		})
		if !bytes.Equal(servedBy(t, s), next) {
			t.Errorf("%s: the certificate before is not shown afterwards", title)
		}
	}
	if log := s.log.String(); refused() != 3 || strings.Contains(log, "PRIVATE") {
		t.Errorf("three broken changes were logged as\n%s", log)
	}
	again, files := pair()
	mount.swap(files)
	apitest.WaitFor(t, "the repaired files to be in use", func() bool { return bytes.Equal(servedBy(t, s), again) })
}

// dialTLS opens a connection for requestOver.
func (s *testServer) dialTLS() *tls.Conn {
	s.t.Helper()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(s.url, "https://"), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		s.t.Fatal(err)
	}
	return conn
}

func requestOver(t *testing.T, conn *tls.Conn) int {
	t.Helper()
	if _, err := conn.Write([]byte("GET /version HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := conn.Read(buf)
	if err != nil || n < 12 {
		t.Fatalf("%d bytes, %v", n, err)
	}
	return int(buf[9]-'0')*100 + int(buf[10]-'0')*10 + int(buf[11]-'0')
}

// certClient returns a client that uses a certificate and opens a new connection for each request.
func certClient(cert *x509.Certificate, ca apitest.CA) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: ca.Key}, nil
		}}}}
}

func TestRemovedClientAuthorityIsRefused(t *testing.T) {
	t.Parallel()
	s, first := startTLS(t)
	second, _ := apitest.NewCA(t)
	subject := pkix.Name{CommonName: "carol", Organization: []string{request.GroupMasters}}
	code := func(ca apitest.CA) int {
		answer, err := certClient(ca.Issue(t, subject, time.Hour, x509.ExtKeyUsageClientAuth), ca).Get(s.url + "/api/v1/pods")
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		return answer.StatusCode
	}
	pemOf := func(ca apitest.CA) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Cert.Raw})
	}
	file := s.flag("client-ca-file")
	for _, step := range []struct {
		title         string
		content       []byte
		first, second int
	}{
		{"as started", nil, 200, 401},
		{"both", append(pemOf(first), pemOf(second)...), 200, 200},
		{"the first is removed", pemOf(second), 401, 200},
		{"broken", []byte("x"), 401, 200},
		{"the first is back", append(pemOf(second), pemOf(first)...), 200, 200},
	} {
		if step.content != nil {
			apitest.WriteFile(t, file, step.content)
			apitest.WaitFor(t, "the file to be looked at: "+step.title, func() bool {
				a, b := code(first), code(second)
				return a == step.first && b == step.second && (step.title != "broken" || strings.Contains(s.log.String(), "changed files are invalid"))
			})
		}
		if a, b := code(first), code(second); a != step.first || b != step.second {
			t.Errorf("%s: %d and %d, want %d and %d", step.title, a, b, step.first, step.second)
		}
	}
}

// TestRemovedTokenIsRefused checks that the server rereads the file with tokens. New tokens are
// accepted, and removed ones are rejected.
func TestRemovedTokenIsRefused(t *testing.T) {
	t.Parallel()
	s, _ := startTLS(t)
	code := func(token string) int { return s.send("GET", "/api/v1/pods", "", "Authorization: Bearer "+token).code }
	before := "root-token"
	for _, next := range []string{"one-token", "second-token", "3-token"} {
		apitest.WriteFile(t, s.flag("token-auth-file"), []byte(next+",bob,1,system:masters\n"))
		apitest.WaitFor(t, next+" to be known", func() bool { return code(next) == 200 })
		if got := code(before); got != 401 {
			t.Errorf("%s, which was removed: %d", before, got)
		}
		before = next
	}
	apitest.WriteFile(t, s.flag("token-auth-file"), []byte("3-token\n"))
	apitest.WaitFor(t, "the log to tell of a broken file", func() bool {
		if got := code("3-token"); got != 200 {
			t.Fatalf("with a broken file the token before answers %d", got)
		}
		return strings.Contains(s.log.String(), "changed files are invalid")
	})
	if log := s.log.String(); strings.Contains(log, "3-token") {
		t.Errorf("logged: %s", log)
	}
}

// openTestCerts opens a directory with certificates for hosts. It also returns the log.
func openTestCerts(t *testing.T, dir string, hosts ...string) (*certs.Folder, string, error) {
	t.Helper()
	log := &apitest.Log{}
	f, err := certs.OpenCertFolder(certs.Config{Dir: dir, Hosts: func() []string { return append(hosts, "localhost") }, Now: time.Now, Log: zerolog.New(log)})
	return f, log.String(), err
}
