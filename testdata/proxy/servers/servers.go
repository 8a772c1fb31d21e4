//go:build unix

// Package servers starts programs for tests that kill them: apilet, kube-apiserver, etcd, and what works on these.
//
//	s := servers.Apilet(t, "--etcd-servers", urls)      // serves when this returns, and ends with the test
//	s.Now().URL                                         // where, in its present life
//	s.Kill(syscall.SIGKILL)                             // returns when the process has ended
//	err := s.Start()                                    // its next life, on the same data
//
// A [Server] is what has the same data all the time, a [Life] is one process of it. A panic in any of them fails the test.
package servers

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"apilet-proxy"
)

// Patience is for what takes no time on an idle machine.
const Patience = 90 * time.Second

// Token is of a user who may do everything at a server that [Kubernetes] has started.
const Token = "linear"

// A Life is one process.
type Life struct {
	URL  string
	Dead chan struct{} // closed when the process has ended
	End  time.Time     // when that was; to be read after Dead is closed
	proc *exec.Cmd
}

// A Server is what has the same data, and the process that has it at the moment.
type Server struct {
	launch Launch
	log    output // of all processes
	now    atomic.Pointer[Life]
}

// A Launch makes a process that has not begun, and what tells its URL once it serves, "" until then.
type Launch func() (proc *exec.Cmd, serves func() string)

// output is what processes have said.
type output struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// panicked is how programs tell of a panic, kube-apiserver's way of saying that there was none left out.
var panicked = regexp.MustCompile(`panic: |panic serving|Observed a panic|goroutine \d+ \[running\]`)

// With starts a server whose processes launch makes.
func With(t *testing.T, launch Launch) *Server {
	t.Helper()
	s := &Server{launch: launch}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Kill(syscall.SIGKILL)
		log := s.Log()
		if at := panicked.FindStringIndex(log); at != nil {
			t.Errorf("the server panicked:\n%s", log[max(0, at[0]-1000):min(len(log), at[1]+5000)])
		}
	})
	return s
}

// Start begins the next life and waits until it serves.
func (s *Server) Start() error {
	proc, serves := s.launch()
	proc.Stderr = &s.log
	if err := proc.Start(); err != nil {
		return err
	}
	next := &Life{proc: proc, Dead: make(chan struct{})}
	go func() {
		_ = proc.Wait()
		next.End = time.Now()
		close(next.Dead)
	}()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		if next.URL = serves(); next.URL != "" {
			s.now.Store(next)
			return nil
		}
		ended := false
		select {
		case <-next.Dead:
			ended = true
		default:
		}
		if ended || time.Since(begin) > Patience {
			_ = proc.Process.Kill()
			<-next.Dead
			return fmt.Errorf("no server after %v:\n%s", time.Since(begin), s.Log())
		}
	}
}

// Kill ends the present life.
func (s *Server) Kill(how syscall.Signal) {
	present := s.Now()
	_ = present.proc.Process.Signal(how)
	<-present.Dead
}

// Now is the present life, or the last.
func (s *Server) Now() *Life { return s.now.Load() }

// Lives tells whether its process has not ended.
func (s *Server) Lives() bool {
	select {
	case <-s.Now().Dead:
		return false
	default:
		return true
	}
}

// Log is what its processes have said so far.
func (s *Server) Log() string { return s.log.String() }

// ---- Programs ----

// Apilet starts the program that APILET names, or what is built of this repository, on a free port without TLS unless flags say otherwise.
func Apilet(t *testing.T, flags ...string) *Server {
	t.Helper()
	binary, dir := Binary(t), t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	return With(t, func() (*exec.Cmd, func() string) {
		_ = os.Remove(kubeconfig)
		return exec.Command(binary, append([]string{"--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--kubeconfig", kubeconfig,
			"--compaction-interval", "20s"}, flags...)...), func() string { return serverOf(kubeconfig) }
	})
}

// Binary is apilet's.
func Binary(t *testing.T) string {
	t.Helper()
	if binary := os.Getenv("APILET"); binary != "" {
		return binary
	}
	binary := filepath.Join(t.TempDir(), "apilet")
	build := exec.Command("go", "build", "-o", binary, ".")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return binary
}

func serverOf(kubeconfig string) string {
	text, _ := os.ReadFile(kubeconfig)
	var config struct {
		Clusters []struct{ Cluster struct{ Server string } }
	}
	if json.Unmarshal(text, &config) != nil || len(config.Clusters) == 0 {
		return ""
	}
	return config.Clusters[0].Cluster.Server
}

// Kubernetes starts a kube-apiserver on etcd. Its port stays the same.
func Kubernetes(t *testing.T, program, etcd string) *Server {
	t.Helper()
	dir := t.TempDir()
	port, err := proxy.HoldPort()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = port.Close() })
	keys := Keys(t, dir)
	tokens := filepath.Join(dir, "tokens")
	if err := os.WriteFile(tokens, []byte(Token+`,admin,1,"system:masters"`), 0o600); err != nil {
		t.Fatal(err)
	}
	url := fmt.Sprint("https://127.0.0.1:", port.Number)
	return With(t, func() (*exec.Cmd, func() string) {
		return exec.Command(program, "--etcd-servers", etcd, "--secure-port", fmt.Sprint(port.Number), "--bind-address", "127.0.0.1", "--permit-port-sharing",
			"--cert-dir", filepath.Join(dir, "certs"), "--token-auth-file", tokens, "--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.96.0.0/16",
			"--service-account-issuer", "https://linear", "--service-account-key-file", keys, "--service-account-signing-key-file", keys,
			"--disable-admission-plugins", "ServiceAccount", "--advertise-address", "10.9.9.9"), Ready(url)
	})
}

// Keys makes the file with which service accounts' tokens are signed.
func Keys(t *testing.T, dir string) (path string) {
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

// Ready tells url when who serves there is ready.
func Ready(url string) (serves func() string) {
	asking := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	return func() string {
		answer, err := asking.Get(url + "/readyz")
		if err != nil {
			return ""
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return ""
		}
		return url
	}
}
