package etcd

// This file runs processes: members of etcd, and servers on them.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"apilet-proxy"
)

const patience = 2 * time.Minute // for what takes no time on an idle machine

var programs struct{ apilet, etcd string }

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "apilet-etcd-")
	if err != nil {
		panic(err)
	}
	build := func(env, from, what string) string {
		if path := os.Getenv(env); path != "" {
			path, _ = filepath.Abs(path)
			return path
		}
		path := filepath.Join(dir, strings.ToLower(env))
		command := exec.Command("go", "build", "-o", path, what)
		command.Dir = from
		if out, err := command.CombinedOutput(); err != nil {
			panic(fmt.Sprintf("go build: %v\n%s", err, out))
		}
		return path
	}
	programs.apilet, programs.etcd = build("APILET", "../..", "."), build("ETCD", ".", "go.etcd.io/etcd/server/v3")
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// A process can be killed, and started again.
type process struct {
	t    *testing.T
	name string
	args []string
	attr *syscall.SysProcAttr // nil: as usual
	log  *lockedBuffer
	cmd  *exec.Cmd
	dead chan struct{}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (p *process) start() {
	p.t.Helper()
	p.cmd = exec.Command(p.name, p.args...)
	p.cmd.SysProcAttr = p.attr
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	cmd, dead := p.cmd, make(chan struct{})
	p.dead = dead
	go func() {
		_ = cmd.Wait()
		close(dead)
	}()
}

func (p *process) signal(how syscall.Signal) {
	_ = p.cmd.Process.Signal(how)
	switch how {
	case syscall.SIGCONT:
	case syscall.SIGSTOP:
		until(p.t, "the process stands still", func() error { // it goes on for a moment on other processors
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
			if _, state, _ := strings.Cut(string(stat), ") "); err == nil && !strings.HasPrefix(state, "T") {
				return errors.New(state)
			}
			return nil
		})
	default:
		<-p.dead
	}
}

// held are ports for the time of the test, also while the member is down that listens there.
func held(t *testing.T, n int) (ports []int) {
	t.Helper()
	for range n {
		port, err := proxy.HoldPort()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = port.Close() })
		ports = append(ports, port.Number)
	}
	return ports
}

// A cluster is etcd.
type cluster struct {
	t       *testing.T
	members []*process
	urls    []string
	dirs    []string
}

func startCluster(t *testing.T, n int, more ...string) *cluster {
	t.Helper()
	c := &cluster{t: t}
	ports := held(t, 2*n)
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("m%d=http://127.0.0.1:%d", i, ports[n+i]))
	}
	for i := range n {
		scheme := "http"
		if slices.Contains(more, "--cert-file") {
			scheme = "https"
		}
		client, peer := fmt.Sprintf("%s://127.0.0.1:%d", scheme, ports[i]), fmt.Sprintf("http://127.0.0.1:%d", ports[n+i])
		dir := filepath.Join(t.TempDir(), "data")
		member := &process{t: t, name: programs.etcd, log: &lockedBuffer{}, args: append([]string{"--name", fmt.Sprint("m", i), "--data-dir", dir,
			"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
			"--initial-cluster", strings.Join(all, ","), "--initial-cluster-token", all[0], "--socket-reuse-port", "--log-level", "error", "--unsafe-no-fsync"}, more...)}
		member.start()
		c.members, c.urls, c.dirs = append(c.members, member), append(c.urls, client), append(c.dirs, dir)
	}
	t.Cleanup(func() {
		for _, member := range c.members {
			_ = member.cmd.Process.Signal(syscall.SIGCONT)
			member.signal(syscall.SIGKILL)
		}
	})
	return c
}

// client speaks to etcd past all servers.
func (c *cluster) client() *clientv3.Client {
	c.t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: c.urls, DialTimeout: 5 * time.Second})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { client.Close() })
	return client
}

// A server is an apilet.
type server struct {
	*process
	url, data, kubeconfig string
	client                *http.Client // nil: the usual one
}

func (c *cluster) startServer(more ...string) *server {
	c.t.Helper()
	s := c.aServer(more...)
	s.run()
	return s
}

// aServer is one that has not been started.
func (c *cluster) aServer(more ...string) *server {
	dir := c.t.TempDir()
	s := &server{data: filepath.Join(dir, "replica.db"), kubeconfig: filepath.Join(dir, "kubeconfig")}
	s.process = &process{t: c.t, name: programs.apilet, log: &lockedBuffer{}, args: append([]string{"--etcd-servers", strings.Join(c.urls, ","),
		"--data", s.data, "--listen", "127.0.0.1:0", "--kubeconfig", s.kubeconfig, "--compaction-interval", "0"}, more...)}
	return s
}

// run starts the server for the time of the test.
func (s *server) run() {
	s.t.Helper()
	s.start()
	s.ready()
	s.tidy()
}

// tidy ends the server with the test, and looks at what it has said.
func (s *server) tidy() {
	s.t.Helper()
	s.t.Cleanup(func() {
		s.signal(syscall.SIGKILL)
		if log := s.log.String(); strings.Contains(log, "panic") || strings.Contains(log, "DATA RACE") || s.t.Failed() {
			s.t.Errorf("the server's log:\n%s", log)
		}
	})
}

func (s *server) start() {
	_ = os.Remove(s.kubeconfig)
	s.process.start()
}

// ready waits until the server is, and learns its address.
func (s *server) ready() {
	s.t.Helper()
	until(s.t, "the server is ready", func() error { return s.answers("/readyz?verbose") })
}

// answers says whether a path has a 200, at the address that the server tells.
func (s *server) answers(path string) error {
	text, err := os.ReadFile(s.kubeconfig)
	var config struct {
		Clusters []struct{ Cluster struct{ Server string } }
	}
	if err == nil {
		err = json.Unmarshal(text, &config)
	}
	if err != nil {
		return err
	}
	s.url = config.Clusters[0].Cluster.Server
	code, body, err := s.try("GET", path, "", 5*time.Second)
	if err == nil && code != 200 {
		err = fmt.Errorf("%d %s", code, body)
	}
	return err
}

// until waits for something to come true.
func until(t *testing.T, what string, check func() error) {
	t.Helper()
	var err error
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(5 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	t.Fatalf("%s: not after %v: %v", what, patience, err)
}

func (s *server) try(method, path, body string, limit time.Duration) (int, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("Content-Type", "application/json")
	if method == "PATCH" {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	answer, err := cmp.Or(s.client, http.DefaultClient).Do(request)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text), err
}

// do wants a code. Who is told to come again does: on a busy machine a read may have no word from etcd within the seconds that it waits.
func (s *server) do(want int, method, path, body string) string {
	s.t.Helper()
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		code, text, err := s.try(method, path, body, patience)
		if err == nil && code == want {
			return text
		}
		later := code == http.StatusTooManyRequests || code == http.StatusGatewayTimeout && method == "GET"
		if !later || time.Since(begin) > patience {
			s.t.Fatalf("%s %s: got %d %s %v, want %d", method, path, code, text, err, want)
		}
	}
}

// An object is what all have.
type object struct {
	Metadata struct {
		Name, Namespace, ResourceVersion, UID string
		Continue                              string
		RemainingItemCount                    int
	}
	Code  int // of a Status
	Data  map[string]string
	Items []object
}

func read(t *testing.T, text string) (o object) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return o
}

const maps = "/api/v1/namespaces/default/configmaps"

func aMap(name, value, rev string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"resourceVersion":%q},"data":{"v":%q}}`, name, rev, value)
}

// A watcher notes what a watch tells.
type watcher struct {
	mu     sync.Mutex
	events []event
	cancel context.CancelFunc
}

type event struct {
	Type   string
	Object object
}

func (s *server) watch(t *testing.T, path, since string) *watcher {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	w, url := &watcher{cancel: cancel}, s.url+path+"?watch=1&resourceVersion="+since
	begin := func() (*http.Response, error) {
		request, _ := http.NewRequestWithContext(ctx, "GET", url, nil)
		answer, err := http.DefaultClient.Do(request)
		if err == nil && answer.StatusCode != 200 {
			_, err = answer.Body.Close(), fmt.Errorf("a watch is answered with %s", answer.Status)
		}
		return answer, err
	}
	answer, err := begin()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for err == nil && w.take(answer) {
			answer, err = begin()
		}
	}()
	return w
}

// take notes what a stream tells. The revision may not have come to its server within the seconds that it waits for it: then it is to be asked again.
func (w *watcher) take(answer *http.Response) (again bool) {
	defer answer.Body.Close()
	for frames := json.NewDecoder(answer.Body); ; {
		var ev event
		if frames.Decode(&ev) != nil {
			return false
		}
		if ev.Type == "ERROR" && ev.Object.Code == http.StatusGatewayTimeout {
			return true
		}
		w.mu.Lock()
		w.events = append(w.events, ev)
		w.mu.Unlock()
	}
}

// story is what was told so far: "ADDED a", ...
func (w *watcher) story() (told []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ev := range w.events {
		told = append(told, ev.Type+" "+ev.Object.Metadata.Name)
	}
	return told
}
