package main

// This file starts and stops processes of apilet and etcd. It detects processes that end
// unexpectedly.

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A process represents a program that can be started and stopped.
type process struct {
	name  string
	dir   string          // for the log
	args  func() []string // returns the command line for the next start
	env   []string        // in addition to the soak's own environment
	alarm func(error)     // called if the process ends unexpectedly

	pid  atomic.Int64 // 0 if it does not run
	told atomic.Bool  // whether it has been stopped deliberately

	mu  sync.Mutex // guards the fields below
	cmd *exec.Cmd  // the command of the last start, or nil if the process was never started
	// receives the exit status of cmd; it is buffered because it may never be received
	ended chan error
}

func (p *process) logFile() string { return filepath.Join(p.dir, p.name+".log") }

// run starts the process. Its output is appended to the log.
func (p *process) run() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	log, err := os.OpenFile(p.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	args := p.args()
	cmd, ended := exec.Command(args[0], args[1:]...), make(chan error, 1)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), p.env...), log, log
	p.told.Store(false)
	if err := cmd.Start(); err != nil {
		return err
	}
	p.cmd, p.ended = cmd, ended
	p.pid.Store(int64(cmd.Process.Pid))
	go func() { // ends with the process
		err := cmd.Wait()
		ended <- err
		if p.pid.CompareAndSwap(int64(cmd.Process.Pid), 0) && !p.told.Load() {
			p.alarm(fmt.Errorf("%s has ended by itself (%v); its log is %s", p.name, err, p.logFile()))
		}
	}()
	return nil
}

// end stops the process and waits for it. After SIGTERM it must exit with 0 within endWithin.
func (p *process) end(how syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || p.told.Swap(true) {
		return nil
	}
	if err := p.cmd.Process.Signal(how); err != nil {
		return err
	}
	select {
	case err := <-p.ended:
		if err != nil && how == syscall.SIGTERM {
			return fmt.Errorf("%s was sent SIGTERM and ended with %w", p.name, err)
		}
		return nil
	case <-time.After(endWithin):
		return errors.Join(fmt.Errorf("%s was sent %v and has not ended after %v", p.name, how, endWithin), p.cmd.Process.Kill())
	}
}

// signal sends a signal that does not end the process.
func (p *process) signal(what syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Signal(what)
}

// ---- A server ----

// A server is an apilet process.
type server struct {
	process
	kubeconfig string
	// authority returns the PEM of the authority for its certificate; nil if it does not use TLS.
	authority func() []byte
	url       atomic.Pointer[string] // of the running process
	// number of checked bytes of the log; used by the subject only
	seen int64
}

// start runs the server and waits until it serves.
func (s *server) start() error {
	if err := os.Remove(s.kubeconfig); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := s.run(); err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline) && s.pid.Load() != 0; time.Sleep(5 * time.Millisecond) {
		if url := serverOf(s.kubeconfig); url != "" {
			s.url.Store(&url)
			return nil
		}
	}
	_ = s.end(syscall.SIGKILL)
	return fmt.Errorf("%s does not serve after %v; its log is %s", s.name, patience, s.logFile())
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

// logged returns the current size of the log, for said.
func (s *server) logged() int64 {
	info, err := os.Stat(s.logFile())
	if err != nil {
		return 0
	}
	return info.Size()
}

// said returns the log after that offset.
func (s *server) said(since int64) []byte {
	log, _ := os.ReadFile(s.logFile())
	return log[min(since, int64(len(log))):]
}

// awaitSaid waits until the log contains a text.
func (s *server) awaitSaid(since int64, text string) error {
	return await(fmt.Sprintf("%s logs %q", s.name, text), func() bool { return bytes.Contains(s.said(since), []byte(text)) })
}

// certificate returns the server's certificate. It must be valid for the authority.
func (s *server) certificate() (*x509.Certificate, error) {
	at, err := url.Parse(*s.url.Load())
	if err != nil {
		return nil, err
	}
	conn, err := tls.Dial("tcp", at.Host, &tls.Config{RootCAs: poolOf(s.authority())})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0], nil
}

func poolOf(pem []byte) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return pool
}

// await waits for a condition.
func await(what string, holds func() bool) error {
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("waited %v until %s", patience, what)
		}
	}
	return nil
}
