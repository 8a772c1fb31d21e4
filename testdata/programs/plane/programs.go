package main

// This file starts the programs and reads their resource usage from /proc. The output of each
// program is written to a log.

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const startsWithin = 2 * time.Minute

// A program is a process.
type program struct {
	name  string
	cmd   *exec.Cmd
	ended chan struct{}
}

// launch starts a program. The environment variable contains its path.
func (r *run) launch(name, variable string, args ...string) (*program, error) {
	path := os.Getenv(variable)
	if path == "" {
		return nil, fmt.Errorf("%s is not set: the path of %s", variable, name)
	}
	out, err := os.Create(filepath.Join(r.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &program{name: name, cmd: exec.Command(path, args...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Env = out, out, append(os.Environ(), "HOME="+r.dir)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// ended returns the name of a program that has ended unexpectedly, or "" if all run.
func (r *run) ended() string {
	for _, p := range append(r.others, r.server...) {
		select {
		case <-p.ended:
			return p.name
		default:
		}
	}
	return ""
}

// end stops all programs. The server is stopped last.
func (r *run) end() {
	for _, p := range append(r.others, r.server...) {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.ended:
		case <-time.After(20 * time.Second):
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
	}
}

func (r *run) begin(ctx context.Context) error {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	if err := os.WriteFile(r.file("sa.key"), pem.EncodeToMemory(block), 0o600); err != nil {
		return err
	}
	var authority string
	switch r.name {
	case "kube-apiserver":
		authority, err = r.file("certs/apiserver.crt"), r.beginKube()
	case "memory":
		authority, err = r.file("certs/ca.crt"), r.beginApilet("--ephemeral")
	case "disk":
		authority, err = r.file("certs/ca.crt"), r.beginApilet("--data", r.file("apilet.db"))
	case "etcd":
		var etcd string
		if etcd, err = r.beginEtcd(); err == nil {
			authority, err = r.file("certs/ca.crt"), r.beginApilet("--data", r.file("apilet.db"), "--etcd-servers", etcd)
		}
	default:
		return fmt.Errorf("-on does not know %q", r.name)
	}
	if err != nil {
		return err
	}
	if err := r.awaitServer(ctx); err != nil {
		return err
	}
	return r.beginOthers(authority)
}

func (r *run) file(name string) string { return filepath.Join(r.dir, name) }

func (r *run) beginApilet(more ...string) error {
	p, err := r.launch("apilet", "APILET", append([]string{"--listen", "127.0.0.1:0", "--controllers=false", "--cert-dir", r.file("certs"),
		"--kubeconfig", r.file("kubeconfig"), "--service-account-signing-key-file", r.file("sa.key")}, more...)...)
	if err != nil {
		return err
	}
	r.server = append([]*program{p}, r.server...)
	return nil
}

func (r *run) beginEtcd() (url string, err error) {
	ports, err := freePorts(2)
	if err != nil {
		return "", err
	}
	url, peer := "http://127.0.0.1:"+ports[0], "http://127.0.0.1:"+ports[1]
	p, err := r.launch("etcd", "ETCD", "--data-dir", r.file("etcd"), "--name", "o", "--listen-client-urls", url, "--advertise-client-urls", url,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "o="+peer, "--log-level", "error")
	if err == nil {
		r.server = append(r.server, p)
	}
	return url, err
}

func (r *run) beginKube() error {
	const token = "plane"
	etcd, err := r.beginEtcd()
	if err != nil {
		return err
	}
	ports, err := freePorts(1)
	if err != nil {
		return err
	}
	if err := os.WriteFile(r.file("tokens.csv"), []byte(token+",admin,1,\"system:masters\"\n"), 0o600); err != nil {
		return err
	}
	config, err := json.Marshal(object{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": []object{{"name": "c", "cluster": object{"server": "https://127.0.0.1:" + ports[0], "insecure-skip-tls-verify": true}}},
		"users":    []object{{"name": "c", "user": object{"token": token}}},
		"contexts": []object{{"name": "c", "context": object{"cluster": "c", "user": "c"}}}})
	if err != nil {
		return err
	}
	if err := os.WriteFile(r.file("kubeconfig"), config, 0o600); err != nil {
		return err
	}
	p, err := r.launch("kube-apiserver", "KUBE_APISERVER", "--etcd-servers", etcd, "--secure-port", ports[0], "--bind-address", "127.0.0.1",
		"--advertise-address", "127.0.0.1", "--cert-dir", r.file("certs"), "--token-auth-file", r.file("tokens.csv"), "--authorization-mode", "Node,RBAC",
		"--service-cluster-ip-range", "10.96.0.0/16", "--service-account-issuer", "https://plane", "--service-account-key-file", r.file("sa.key"),
		"--service-account-signing-key-file", r.file("sa.key"))
	if err == nil {
		r.server = append([]*program{p}, r.server...)
	}
	return err
}

func (r *run) awaitServer(ctx context.Context) error {
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		c, err := readKubeconfig(r.file("kubeconfig"))
		if err == nil {
			r.client = c
			if _, err = c.call(ctx, "GET", "/readyz", "", nil); err == nil {
				return nil
			}
		}
		if ended := r.ended(); ended != "" || time.Since(begin) > startsWithin || ctx.Err() != nil {
			return fmt.Errorf("the server does not start: see the logs in %s: %w", r.dir, err)
		}
	}
}

// beginOthers starts the control plane without leader election. The number of workers and the rate
// limits are set for a large cluster.
func (r *run) beginOthers(authority string) error {
	clients := []string{"--kubeconfig", r.file("kubeconfig"), "--authentication-kubeconfig", r.file("kubeconfig"), "--authorization-kubeconfig", r.file("kubeconfig"),
		"--secure-port", "0", "--leader-elect=false", "--kube-api-qps", "5000", "--kube-api-burst", "5000"}
	workers := "apiVersion: config.kwok.x-k8s.io/v1alpha1\nkind: KwokConfiguration\noptions:\n" +
		"  {nodePlayStageParallelism: 16, podPlayStageParallelism: 16, nodeLeaseParallelism: 16, podsOnNodeSyncParallelism: 4}\n"
	if err := os.WriteFile(r.file("kwok.yaml"), []byte(workers), 0o600); err != nil {
		return err
	}
	for _, p := range []struct {
		name, variable string
		args           []string
	}{
		{"kube-controller-manager", "KUBE_CONTROLLER_MANAGER", append(clients, "--use-service-account-credentials", "--root-ca-file", authority,
			"--service-account-private-key-file", r.file("sa.key"), "--allocate-node-cidrs", "--cluster-cidr", "10.128.0.0/9",
			"--concurrent-deployment-syncs", "20", "--concurrent-replicaset-syncs", "20", "--concurrent-service-endpoint-syncs", "10",
			"--node-monitor-grace-period", "120s")},
		{"kube-scheduler", "KUBE_SCHEDULER", clients},
		{"kwok", "KWOK", []string{"--kubeconfig", r.file("kubeconfig"), "--manage-all-nodes", "--node-lease-duration-seconds", "40",
			"--config", r.file("kwok.yaml"), "--config", filepath.Join("testdata", "plane", "kwok.yaml")}},
	} {
		started, err := r.launch(p.name, p.variable, p.args...)
		if err != nil {
			return err
		}
		r.others = append(r.others, started)
	}
	return nil
}

func freePorts(n int) (ports []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // closed at the end to make sure that all ports are different
		ports = append(ports, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	return ports, nil
}

// ---- Resource usage

// A usage contains the resources that have been used by processes since they were started.
type usage struct {
	cpu     time.Duration
	anon    int64 // current anonymous memory in bytes
	written int64 // bytes written to the disk
}

func (u usage) since(before usage) usage {
	return usage{cpu: u.cpu - before.cpu, anon: u.anon, written: u.written - before.written}
}

// use returns the total usage of the programs. Processes that have ended do not count.
func use(programs []*program) (sum usage) {
	for _, p := range programs {
		u, err := usageOf(p.cmd.Process.Pid)
		if err != nil {
			continue
		}
		sum.cpu, sum.anon, sum.written = sum.cpu+u.cpu, sum.anon+u.anon, sum.written+u.written
	}
	return sum
}

func usageOf(pid int) (u usage, err error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return u, err
	}
	_, rest, _ := bytes.Cut(stat, []byte(") ")) // after the program's name
	fields := strings.Fields(string(rest))
	if len(fields) < 13 {
		return u, errors.New("/proc/PID/stat has another form")
	}
	for _, field := range fields[11:13] { // utime and stime, in units of 10 ms
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return u, err
		}
		u.cpu += time.Duration(ticks) * 10 * time.Millisecond
	}
	u.anon = 1024 * field(filepath.Join(dir, "status"), "RssAnon:")
	u.written = field(filepath.Join(dir, "io"), "write_bytes:")
	return u, nil
}

// field returns the number after a name at the start of a line, or 0 if no line starts with the
// name.
func field(file, name string) int64 {
	text, _ := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
			n, _ := strconv.ParseInt(number, 10, 64)
			return n
		}
	}
	return 0
}
