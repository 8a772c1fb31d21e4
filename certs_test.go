package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"
)

// openTestCerts opens a certificate folder for hosts, and returns what it has logged.
func openTestCerts(t *testing.T, dir string, hosts ...string) (*certFolder, string, error) {
	t.Helper()
	log := &logLines{}
	f, err := openCertFolder(dir, func() []string { return append(hosts, "localhost") }, zerolog.New(log))
	return f, log.String(), err
}

// mustReadFile reads a file that has to be there.
func mustReadFile(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func mustWriteFile(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// kubeconfigClient returns a client with the authority and the certificate of a kubeconfig.
func kubeconfigClient(t *testing.T, path string) (*http.Client, *x509.Certificate) {
	t.Helper()
	text := mustReadFile(t, path)
	decoded := func(at string) []byte {
		var content []byte
		if err := json.Unmarshal([]byte(gjson.GetBytes(text, at).Raw), &content); err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		return content
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(decoded("clusters.0.cluster.certificate-authority-data"))
	pair, err := tls.X509KeyPair(decoded("users.0.user.client-certificate-data"), decoded("users.0.user.client-key-data"))
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}}}, pair.Leaf
}

// TestServerMakesItsOwnCertificates: each of the three wishes for TLS is met, and the kubeconfig has all that a client needs.
func TestServerMakesItsOwnCertificates(t *testing.T) {
	dir, tokens := t.TempDir(), writeTemp(t, "tokens", "s3cret,bob,1\n")
	for name, edit := range map[string]func(*config){
		"the folder that was given":  func(c *config) { c.certDir = filepath.Join(dir, "given") },
		"a folder beside the data":   func(c *config) { c.auth.tokenFile, c.ephemeral, c.data = tokens, false, filepath.Join(dir, "a.db") },
		"no folder for what is lost": func(c *config) { c.auth.tokenFile = tokens },
	} {
		t.Run(name, func(t *testing.T) {
			kubeconfig := filepath.Join(t.TempDir(), "config")
			s := startTest(t, func(c *config) { c.kubeconfig = kubeconfig }, edit)
			client, admin := kubeconfigClient(t, kubeconfig)
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
			if admin.NotAfter.After(time.Now().Add(certificateLife)) || !slices.Contains(admin.Subject.Organization, groupMasters) {
				t.Errorf("the administrator is %v until %v", admin.Subject, admin.NotAfter)
			}
			for _, host := range []string{"localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
				"kubernetes.default.svc.cluster.local", "10.96.0.1"} {
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

// TestPlainPortStaysPlain: nothing asks for TLS, so there is none, and no folder is made.
func TestPlainPortStaysPlain(t *testing.T) {
	dir := t.TempDir()
	s := startTest(t, onFile(filepath.Join(dir, "a.db")))
	s.want(200, "GET", "/api/v1/pods", "")
	if files, _ := os.ReadDir(dir); len(files) != 1 || !strings.HasPrefix(s.url, "http://") {
		t.Errorf("%s with %v", s.url, files)
	}
}

// TestWhoAsksForTLS is the decision alone.
func TestWhoAsksForTLS(t *testing.T) {
	for _, c := range []struct {
		title         string
		config        config
		own, insecure bool
		refused       string
	}{
		{"loopback", config{listen: "127.0.0.1:0"}, false, true, ""},
		{"beyond loopback", config{listen: "0.0.0.0:0"}, true, false, ""},
		{"a folder", config{listen: "127.0.0.1:0", certDir: "x"}, true, false, ""},
		{"a token file", config{listen: "127.0.0.1:0", auth: authConfig{tokenFile: "x"}}, true, false, ""},
		{"client certificates", config{listen: "127.0.0.1:0", auth: authConfig{clientCAFile: "x"}}, true, false, ""},
		{"a certificate", config{listen: "127.0.0.1:0", tlsCert: "x", tlsKey: "y"}, false, true, ""},
		{"a certificate and a folder", config{listen: "127.0.0.1:0", tlsCert: "x", tlsKey: "y", certDir: "z"}, false, true, ""},
		{"a certificate and an authenticator", config{listen: ":0", tlsCert: "x", tlsKey: "y", auth: authConfig{tokenFile: "z"}}, false, false, ""},
		{"a certificate beyond loopback", config{listen: ":0", tlsCert: "x", tlsKey: "y"}, false, true, "without an authenticator"},
		{"half a certificate", config{listen: ":0", tlsCert: "x"}, false, false, "belong together"},
	} {
		err := c.config.finish()
		if c.refused != "" {
			if err == nil || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%s: %v, want %q", c.title, err, c.refused)
			}
			continue
		}
		if err != nil || c.config.ownCerts != c.own || c.config.auth.insecure != c.insecure || c.config.auth.alwaysAllow != c.insecure {
			t.Errorf("%s: own certificate %v, insecure %v, %v", c.title, c.config.ownCerts, c.config.auth.insecure, err)
		}
	}
}

func TestCertFolderIsKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	if _, _, err := openTestCerts(t, dir, "a.example"); err != nil {
		t.Fatal(err)
	}
	if info, _ := os.Stat(dir); info.Mode().Perm() != 0o700 {
		t.Errorf("the folder has mode %v", info.Mode())
	}
	before := map[string][]byte{}
	for _, name := range []string{"ca.crt", "ca.key", "apiserver.crt", "apiserver.key"} {
		before[name] = mustReadFile(t, filepath.Join(dir, name))
		if info, _ := os.Stat(filepath.Join(dir, name)); info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
	}
	if _, log, err := openTestCerts(t, dir, "a.example"); err != nil || log != "" {
		t.Errorf("opening it again: %v %s", err, log)
	}
	for name, content := range before {
		if !bytes.Equal(content, mustReadFile(t, filepath.Join(dir, name))) {
			t.Errorf("%s has changed", name)
		}
	}
	if files, _ := os.ReadDir(dir); len(files) != 4 {
		t.Errorf("the folder has %v", files)
	}
}

// TestServingCertificateIsMadeAnew when the one that is there does not fit. The authority stays.
func TestServingCertificateIsMadeAnew(t *testing.T) {
	stranger, _, err := openTestCerts(t, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	shortLived := func(f *certFolder) *keyPair {
		tmpl := servingTemplate([]string{"localhost"})
		tmpl.NotAfter = time.Now().Add(renewBefore - time.Hour)
		pair, err := newPair(tmpl, f.authority)
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	for want, spoil := range map[string]func(f *certFolder){
		"it does not name new.example": func(*certFolder) {},
		"it ends at":                   func(f *certFolder) { f.save("apiserver", shortLived(f)) },
		"another authority has signed it": func(f *certFolder) {
			p, _ := stranger.issue(servingTemplate([]string{"localhost"}))
			f.save("apiserver", p)
		},
		"does not match": func(f *certFolder) {
			mustWriteFile(t, f.file("apiserver.key"), mustReadFile(t, stranger.file("apiserver.key")))
		},
		"no such file":          func(f *certFolder) { os.Remove(f.file("apiserver.key")) },
		"failed to find any PE": func(f *certFolder) { mustWriteFile(t, f.file("apiserver.crt"), nil) },
	} {
		dir := t.TempDir()
		f, _, err := openTestCerts(t, dir)
		if err != nil {
			t.Fatal(err)
		}
		ca := mustReadFile(t, f.file("ca.crt"))
		spoil(f)
		f, log, err := openTestCerts(t, dir, "new.example")
		if err != nil || want != "no such file" && !strings.Contains(log, want) || !strings.Contains(log, "anew") && want != "no such file" {
			t.Errorf("%s: %v, logged %s", want, err, log)
			continue
		}
		if err := f.serving.Load().Leaf.VerifyHostname("new.example"); err != nil {
			t.Errorf("%s: %v", want, err)
		}
		if _, err := tls.LoadX509KeyPair(f.file("apiserver.crt"), f.file("apiserver.key")); err != nil || !bytes.Equal(ca, mustReadFile(t, f.file("ca.crt"))) {
			t.Errorf("%s: afterwards %v, or another authority", want, err)
		}
	}
}

// TestRunningServerRenews: what renewCerts calls every few hours.
func TestRunningServerRenews(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		hosts := []string{"localhost"}
		f, err := openCertFolder(dir, func() []string { return hosts }, zerolog.Nop())
		if err != nil {
			t.Fatal(err)
		}
		first := f.serving.Load()
		if err := f.renew(); err != nil || !bytes.Equal(f.serving.Load().Certificate[0], first.Certificate[0]) {
			t.Errorf("in %q a certificate that fits was made anew, or %v", dir, err)
		}
		hosts = append(hosts, "10.1.2.3")
		if err := f.renew(); err != nil || f.serving.Load().Leaf.VerifyHostname("10.1.2.3") != nil {
			t.Errorf("in %q the new address is not in the certificate, %v", dir, err)
		}
	}
}

// TestDamagedAuthorityIsAnError, and is left as it is: clients trust it.
func TestDamagedAuthorityIsAnError(t *testing.T) {
	stranger, _, err := openTestCerts(t, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	expired, err := newPair(&x509.Certificate{Subject: pkix.Name{CommonName: "old"}, NotAfter: time.Now().Add(-time.Minute), IsCA: true, BasicConstraintsValid: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(f *certFolder){
		"half a certificate": func(f *certFolder) {
			c := mustReadFile(t, f.file("ca.crt"))
			mustWriteFile(t, f.file("ca.crt"), c[:len(c)/2])
		},
		"an empty certificate": func(f *certFolder) { mustWriteFile(t, f.file("ca.crt"), nil) },
		"no key":               func(f *certFolder) { os.Remove(f.file("ca.key")) },
		"another's key":        func(f *certFolder) { mustWriteFile(t, f.file("ca.key"), stranger.authority.keyPEM) },
		"no authority":         func(f *certFolder) { p, _ := f.issueAdmin(); f.save("ca", p) },
		"expired":              func(f *certFolder) { f.save("ca", expired) },
	} {
		dir := t.TempDir()
		f, _, err := openTestCerts(t, dir)
		if err != nil {
			t.Fatal(err)
		}
		spoil(f)
		spoilt := mustReadFile(t, f.file("ca.crt"))
		_, _, err = openTestCerts(t, dir)
		if err == nil || !strings.Contains(err.Error(), "ca.crt") || !strings.Contains(err.Error(), "restore both") {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "PRIVATE") {
			t.Errorf("%s: the error shows a key", name)
		}
		if !bytes.Equal(spoilt, mustReadFile(t, f.file("ca.crt"))) {
			t.Errorf("%s: the file was replaced", name)
		}
	}
}

// TestCertFolderSurvivesAPowerCut after each of its steps: what a start finds is complete or made anew, and never another authority than
// the one that was there.
func TestCertFolderSurvivesAPowerCut(t *testing.T) {
	whole, _, err := openTestCerts(t, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	order := []string{"ca.key", "ca.crt", "apiserver.key", "apiserver.crt"} // as they are written
	for done := range len(order) + 1 {
		dir := t.TempDir()
		for _, name := range order[:done] {
			mustWriteFile(t, filepath.Join(dir, name), mustReadFile(t, whole.file(name)))
		}
		mustWriteFile(t, filepath.Join(dir, ".apilet-123.tmp"), []byte("half"))
		f, _, err := openTestCerts(t, dir)
		if err != nil {
			t.Errorf("after %d files: %v", done, err)
			continue
		}
		if kept := bytes.Equal(f.authority.certPEM, whole.authority.certPEM); kept != (done >= 2) {
			t.Errorf("after %d files the authority was kept: %v", done, kept)
		}
		roots := x509.NewCertPool()
		roots.AddCert(f.authority.cert)
		if _, err := f.serving.Load().Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "localhost"}); err != nil {
			t.Errorf("after %d files: %v", done, err)
		}
	}
}

func TestSavedFileIsWholeOrAsBefore(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, content := range []string{"one", "two"} {
		if err := saveFile(path, []byte(content)); err != nil || string(mustReadFile(t, path)) != content {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := saveFile(filepath.Join(dir, "d"), nil); err == nil {
		t.Error("a folder was replaced")
	}
	if err := saveFile(filepath.Join(dir, "none", "f"), nil); !os.IsNotExist(err) {
		t.Errorf("in a folder that is not there: %v", err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 2 {
		t.Errorf("left behind: %v", files)
	}
}

// ---- Files that change

// mountedPair puts a certificate and key where Kubernetes' volumes do: DIR/tls.crt -> ..data/tls.crt, ..data -> VERSION. swap puts
// another pair in their place as kubelet does, by renaming the link.
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
		mustWriteFile(m.t, filepath.Join(m.dir, version, name), content)
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

// servedBy makes a new connection and returns the certificate that it shows.
func servedBy(t *testing.T, s *testServer) []byte {
	t.Helper()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(s.url, "https://"), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].Raw
}

// TestServingCertificateIsReloaded: new handshakes show the new certificate, and a connection that is open goes on.
func TestServingCertificateIsReloaded(t *testing.T) {
	f, _, err := openTestCerts(t, "", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	pair := func() (*keyPair, map[string][]byte) {
		p, err := f.issue(servingTemplate([]string{"127.0.0.1"}))
		if err != nil {
			t.Fatal(err)
		}
		return p, map[string][]byte{"tls.crt": p.certPEM, "tls.key": p.keyPEM}
	}
	mount := &mountedPair{t: t, dir: t.TempDir()}
	old, files := pair()
	mount.swap(files)
	s, _ := startTLS(t, func(c *config) { c.tlsCert, c.tlsKey = mount.file("tls.crt"), mount.file("tls.key") })
	s.client.Transport.(*http.Transport).TLSClientConfig.InsecureSkipVerify = true
	s.want(200, "GET", "/version", "")
	open := s.dialTLS()
	defer open.Close()
	if !bytes.Equal(servedBy(t, s), old.cert.Raw) {
		t.Fatal("the server shows another certificate than its own")
	}
	next, files := pair()
	mount.swap(files)
	if !bytes.Equal(servedBy(t, s), next.cert.Raw) {
		t.Error("a new connection shows the old certificate")
	}
	if code := requestOver(t, open); code != 200 {
		t.Errorf("the open connection answers %d", code)
	}
	for title, broken := range map[string]map[string][]byte{
		"a key of another certificate": {"tls.crt": next.certPEM, "tls.key": old.keyPEM},
		"half a certificate":           {"tls.crt": next.certPEM[:100], "tls.key": next.keyPEM},
		"nothing":                      {},
	} {
		mount.swap(broken)
		for range 3 {
			if !bytes.Equal(servedBy(t, s), next.cert.Raw) {
				t.Errorf("%s: the certificate before is not shown any more", title)
			}
		}
	}
	if log := s.log.String(); strings.Count(log, "changed files are no good") != 3 || strings.Contains(log, "PRIVATE") {
		t.Errorf("three broken changes were logged as\n%s", log)
	}
	again, files := pair()
	mount.swap(files)
	if !bytes.Equal(servedBy(t, s), again.cert.Raw) {
		t.Error("the repaired files are not in use")
	}
}

// dialTLS opens one connection, for requestOver.
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

// certClient presents a certificate, on a new connection each time.
func certClient(cert *x509.Certificate, ca testCA) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: ca.key}, nil
		}}}}
}

func TestRemovedClientAuthorityIsRefused(t *testing.T) {
	s, first := startTLS(t)
	second, _ := newTestCA(t)
	subject := pkix.Name{CommonName: "carol", Organization: []string{groupMasters}}
	code := func(ca testCA) int {
		answer, err := certClient(ca.issue(t, subject, time.Hour, x509.ExtKeyUsageClientAuth), ca).Get(s.url + "/api/v1/pods")
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		return answer.StatusCode
	}
	pemOf := func(ca testCA) []byte { return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw}) }
	file := s.conf.auth.clientCAFile
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
			mustWriteFile(t, file, step.content)
		}
		if a, b := code(first), code(second); a != step.first || b != step.second {
			t.Errorf("%s: %d and %d, want %d and %d", step.title, a, b, step.first, step.second)
		}
	}
}

func TestRemovedTokenIsRefusedAtOnce(t *testing.T) {
	s, _ := startTLS(t)
	for i, tokens := range []string{"one-token,bob,1,system:masters\n", "second-token,bob,1,system:masters\n", "3-token,bob,1,system:masters\n"} {
		mustWriteFile(t, s.conf.auth.tokenFile, []byte(tokens))
		name, _, _ := strings.Cut(tokens, ",")
		s.want(200, "GET", "/api/v1/pods", "", "Authorization: Bearer "+name)
		if i == 0 {
			s.want(401, "GET", "/api/v1/pods", "", "Authorization: Bearer root-token")
		}
	}
	s.want(401, "GET", "/api/v1/pods", "", "Authorization: Bearer one-token")
	mustWriteFile(t, s.conf.auth.tokenFile, []byte("3-token\n"))
	s.want(200, "GET", "/api/v1/pods", "", "Authorization: Bearer 3-token")
	if log := s.log.String(); !strings.Contains(log, "changed files are no good") || strings.Contains(log, "3-token") {
		t.Errorf("logged: %s", log)
	}
}

// TestFollowedFileIsReadOncePerChange: the same pointer as long as nothing changes, also from many goroutines.
func TestFollowedFileIsReadOncePerChange(t *testing.T) {
	path := writeTemp(t, "f", "1")
	reads := 0
	f, err := follow(zerolog.Nop(), func(contents [][]byte) (*string, error) {
		reads++
		text := string(contents[0])
		return &text, nil
	}, path)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := f.now(), f.now(); a != b || *a != "1" || reads != 1 {
		t.Errorf("%q, %q after %d reads", *a, *b, reads)
	}
	mustWriteFile(t, path, []byte("22"))
	if got := *f.now(); got != "22" || reads != 2 {
		t.Errorf("%q after %d reads", got, reads)
	}
	if _, err := follow(zerolog.Nop(), func([][]byte) (*string, error) { return nil, fs.ErrInvalid }, path); err == nil {
		t.Error("the first reading's error was dropped")
	}
}
