package main

// This file starts etcd and the servers for the comparison. Each process has its own directory.

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	startsWithin = 2 * time.Minute
	adminToken   = "bench"
)

// A program is a process that can be restarted.
type program struct {
	kind    string // the column in the tables
	path    string
	args    []string
	logFile string
	cmd     *exec.Cmd
	*server // nil for etcd
}

func (p *program) start() error {
	out, err := os.OpenFile(p.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	p.cmd = exec.Command(p.path, p.args...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", p.kind, err)
	}
	if p.server != nil {
		p.pids = []int{p.cmd.Process.Pid}
	}
	return nil
}

// stop interrupts the process and waits for its end.
func (p *program) stop() {
	_ = p.cmd.Process.Signal(os.Interrupt)
	hurry := time.AfterFunc(20*time.Second, func() { _ = p.cmd.Process.Kill() })
	_ = p.cmd.Wait()
	hurry.Stop()
}

func (p *program) kill() {
	if p.cmd != nil && p.cmd.Process != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

// ready waits until the server is ready.
func (p *program) ready(ctx context.Context) error { return p.answers(ctx, "/readyz") }

// lists waits until the server can list ConfigMaps from memory or from a file.
func (p *program) lists(ctx context.Context) error {
	return p.answers(ctx, "/api/v1/namespaces/default/configmaps?resourceVersion=0")
}

// serves waits for both.
func (p *program) serves(ctx context.Context) error {
	if err := p.ready(ctx); err != nil {
		return err
	}
	return p.lists(ctx)
}

func (p *program) answers(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, startsWithin)
	defer cancel()
	c := p.newClient(ctx, 0)
	defer c.close()
	for {
		err := c.ask(request{path: path})
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			text, _ := os.ReadFile(p.logFile)
			return fmt.Errorf("%s is not ready: %w\n%s", p.kind, err, text[max(0, len(text)-2000):])
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// A stage contains the directory, the running programs, and the address of etcd.
type stage struct {
	dir      string
	paths    map[string]string // paths of the three programs
	running  []*program
	etcd     *program
	etcdURL  string
	keys     string // file with the signing key for tokens of service accounts
	tokens   string
	launched int
}

// openStage creates the directory and starts etcd in it.
func openStage(ctx context.Context) (*stage, error) {
	s := &stage{paths: map[string]string{}}
	for _, name := range []string{"ETCD", "KUBE_APISERVER", "APILET"} {
		if s.paths[name] = os.Getenv(name); s.paths[name] == "" {
			return nil, fmt.Errorf("%s is to name the program", name)
		}
	}
	var err error
	if s.dir, err = os.MkdirTemp("", "bench-"); err != nil {
		return nil, err
	}
	if err = s.writeSecrets(); err == nil {
		err = s.startEtcd(ctx)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *stage) close() {
	for _, p := range s.running {
		p.kill()
	}
	_ = os.RemoveAll(s.dir)
}

func (s *stage) writeSecrets() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	s.keys, s.tokens = filepath.Join(s.dir, "accounts.key"), filepath.Join(s.dir, "tokens.csv")
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	if err := os.WriteFile(s.keys, pem.EncodeToMemory(block), 0o600); err != nil {
		return err
	}
	return os.WriteFile(s.tokens, []byte(adminToken+",admin,1,\"system:masters\"\n"), 0o600)
}

func (s *stage) run(kind, path, url string, args ...string) (*program, error) {
	s.launched++
	p := &program{kind: kind, path: path, args: args, logFile: filepath.Join(s.dir, fmt.Sprint(s.launched, ".log"))}
	if kind != "etcd" {
		var err error
		if p.server, err = newServer(kind + "=" + url + ",token=" + adminToken); err != nil {
			return nil, err
		}
	}
	s.running = append(s.running, p)
	return p, p.start()
}

// startEtcd starts a member with fsync, as in production.
func (s *stage) startEtcd(ctx context.Context) (err error) {
	url, peer := "http://"+freeAddress(), "http://"+freeAddress()
	s.etcdURL = url
	s.etcd, err = s.run("etcd", s.paths["ETCD"], "", "--name", "one", "--data-dir", filepath.Join(s.dir, "etcd"), "--listen-client-urls", url,
		"--advertise-client-urls", url, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "one="+peer,
		"--log-level", "warn", "--quota-backend-bytes", strconv.Itoa(8<<30))
	for end := time.Now().Add(startsWithin); err == nil; time.Sleep(20 * time.Millisecond) {
		text, asked := s.etcdSays(ctx, "/health")
		if asked == nil && strings.Contains(text, `"true"`) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("etcd is not ready: %s %w", text, asked)
		}
	}
	return err
}

// startKube starts a kube-apiserver with flags that are typical for a cluster and may affect the
// performance.
func (s *stage) startKube(ctx context.Context) (*program, error) {
	_, port, _ := net.SplitHostPort(freeAddress())
	p, err := s.run("kube-apiserver", s.paths["KUBE_APISERVER"], "https://127.0.0.1:"+port, "--etcd-servers", s.etcdURL, "--secure-port", port,
		"--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--cert-dir", filepath.Join(s.dir, "kube-certs-"+port),
		"--token-auth-file", s.tokens, "--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.96.0.0/16",
		"--service-account-issuer", "https://bench", "--service-account-key-file", s.keys, "--service-account-signing-key-file", s.keys,
		"--disable-admission-plugins", "ServiceAccount", "--endpoint-reconciler-type", "none")
	if err != nil {
		return nil, err
	}
	return p, p.serves(ctx)
}

// startApilet starts a server on etcd with its own prefix, or, if onEtcd is false, on a file.
func (s *stage) startApilet(ctx context.Context, onEtcd bool) (*program, error) {
	address, kind := freeAddress(), "apilet"
	dir := filepath.Join(s.dir, "apilet-"+strings.ReplaceAll(address, ":", "-"))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	args := []string{"--data", filepath.Join(dir, "data.db"), "--listen", address, "--cert-dir", filepath.Join(dir, "certs"), "--token-auth-file", s.tokens}
	if onEtcd {
		args = append(args, "--etcd-servers", s.etcdURL, "--etcd-prefix", apiletPrefix)
	} else {
		kind = "on a file"
	}
	p, err := s.run(kind, s.paths["APILET"], "https://"+address, args...)
	if err != nil {
		return nil, err
	}
	return p, p.serves(ctx)
}

// etcdSays sends an HTTP request to etcd.
func (s *stage) etcdSays(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	etcd, err := newServer("etcd=" + s.etcdURL)
	if err != nil {
		return "", err
	}
	text, err := etcd.do(ctx, "GET", path, nil)
	return string(text), err
}

// etcdCounter returns the value of a metric of etcd, summed over all labels.
func (s *stage) etcdCounter(ctx context.Context, name string) (sum float64, err error) {
	text, err := s.etcdSays(ctx, "/metrics")
	for line := range strings.Lines(text) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if bare, _, _ := strings.Cut(series, "{"); bare == name {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, err
			}
			sum += v
		}
	}
	return sum, err
}

func freeAddress() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// cpu returns the processor time that processes have used so far (Linux).
func cpu(pids ...int) (total time.Duration, err error) {
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, err
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest)
		if len(fields) < 13 {
			return 0, fmt.Errorf("/proc/%d/stat: %q", pid, text)
		}
		for _, field := range fields[11:13] {
			ticks, err := strconv.Atoi(field)
			if err != nil {
				return 0, err
			}
			total += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	return total, nil
}

// written returns the number of bytes that the kernel has written to the disk for processes so far
// (Linux).
func written(pids ...int) (total int64, err error) {
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
		if err != nil {
			return 0, err
		}
		_, rest, _ := strings.Cut(string(text), "\nwrite_bytes: ")
		var n int64
		if _, err := fmt.Sscan(rest, &n); err != nil {
			return 0, fmt.Errorf("/proc/%d/io: %q", pid, text)
		}
		total += n
	}
	return total, nil
}
