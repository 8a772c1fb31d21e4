package clients

// This file starts servers for the other files, and clients of them. A server is a process on a port of its own; what a test breaks is
// its own server. A client's config can be counted and cut off, to see how a program asks, and what it does when nobody answers.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	ns       = "default"
	protobuf = runtime.ContentTypeProtobuf
	patience = 2 * time.Minute // for what needs no waiting at all on an idle machine
)

var apilet string // the binary

func TestMain(m *testing.M) {
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	klog.SetLogger(klog.Logger{}) // the clients' own complaints about servers that the tests stop
	ctrllog.SetLogger(klog.Logger{})
	if apilet = os.Getenv("APILET"); apilet != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "apilet-clients-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	apilet = filepath.Join(dir, "apilet")
	build := exec.Command("go", "build", "-o", apilet, ".")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// ---- Servers ----

// A server is an apilet process that ends with its test.
type server struct {
	t    testing.TB
	dir  string
	args []string // the listen address is not among them
	host string   // URL
	proc *exec.Cmd
	dead chan struct{} // closed when the process has ended
	log  *bytes.Buffer // to be read when it has
}

// startEphemeral starts a server that keeps nothing.
func startEphemeral(t testing.TB, args ...string) *server {
	return start(t, append(args, "--ephemeral"))
}

// startOnFile starts a server whose objects are on disk. It can be restarted.
func startOnFile(t testing.TB, args ...string) *server {
	return start(t, append(args, "--data", filepath.Join(t.TempDir(), "apilet.db")))
}

// shortHistory expires within seconds. What has to happen before it does is done by a server without: expire starts one with it for as long as
// it takes.
const shortHistory = "--compaction-interval=1s"

func start(t testing.TB, args []string) *server {
	t.Helper()
	s := &server{t: t, dir: t.TempDir(), args: args, log: &bytes.Buffer{}}
	s.run(fmt.Sprint("127.0.0.1:", ports.free(t)))
	t.Cleanup(func() {
		s.stop(syscall.SIGKILL)
		for _, bad := range []string{"panic", "internal error"} {
			if strings.Contains(s.log.String(), bad) {
				t.Errorf("the server logged a %s:\n%s", bad, s.log)
			}
		}
	})
	return s
}

func (s *server) kubeconfig() string { return filepath.Join(s.dir, "kubeconfig") }

// run starts the process and waits for its kubeconfig: from then on it serves. Somebody else may just have the port: nobody keeps it, while the
// server is away, from who asks for any.
func (s *server) run(listen string, more ...string) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); !s.launch(deadline, listen, more); time.Sleep(100 * time.Millisecond) {
		if said := s.log.String(); !strings.Contains(said, "address already in use") || time.Now().After(deadline) {
			s.t.Fatalf("no kubeconfig after %v; the server says:\n%s", patience, said)
		}
		s.log.Reset()
	}
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig())
	if err != nil {
		s.t.Fatal(err)
	}
	s.host = config.Host
}

// launch starts the process, and tells whether it has come to serve. If it has not it has ended.
func (s *server) launch(deadline time.Time, listen string, more []string) bool {
	s.t.Helper()
	_ = os.Remove(s.kubeconfig())
	proc, dead := exec.Command(apilet, slices.Concat(s.args, []string{"--listen", listen, "--kubeconfig", s.kubeconfig()}, more)...), make(chan struct{})
	proc.Stderr = s.log
	if err := proc.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		_ = proc.Wait()
		close(dead)
	}()
	s.proc, s.dead = proc, dead
	for time.Now().Before(deadline) {
		if _, err := os.Stat(s.kubeconfig()); err == nil {
			return true
		}
		select {
		case <-dead:
			return false
		case <-time.After(time.Millisecond):
		}
	}
	s.stop(syscall.SIGKILL)
	return false
}

func (s *server) stop(how syscall.Signal) {
	_ = s.proc.Process.Signal(how)
	<-s.dead
}

// restart ends the process, SIGKILL being a crash, and starts it again on its file and its port, with more flags if there are.
func (s *server) restart(how syscall.Signal, more ...string) {
	s.t.Helper()
	s.stop(how)
	s.run(strings.TrimPrefix(s.host, "http://"), more...)
}

var ports = portBook{given: map[int]bool{}}

// A portBook gives each port once: that of a server which is being restarted is free for whoever tries it. They are below those that the
// system gives to whoever asks for any, as envtest does and keeps them unused for a while.
type portBook struct {
	mu    sync.Mutex // guards given
	given map[int]bool
}

func (b *portBook) free(t testing.TB) int {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	half := 0 // the other process of these tests runs beside this one
	if os.Getenv(streamingGate) != "" {
		half = 1
	}
	for range 1000 {
		port := 30000 + 2*rand.IntN(1384) + half
		if b.given[port] {
			continue
		}
		if l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port)); err == nil {
			l.Close()
			b.given[port] = true
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

// ---- Clients ----

// config is for clients without a limit of their own, so that the server's speed shows. Bodies go in contentType.
func (s *server) config(contentType string) *rest.Config {
	s.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig())
	if err != nil {
		s.t.Fatal(err)
	}
	config.QPS = -1
	config.ContentType = contentType
	if contentType == protobuf {
		config.AcceptContentTypes = protobuf // alone: nothing may need JSON
	}
	return config
}

// typed is the clientset as most controllers have it: protobuf wherever the server takes it.
func (s *server) typed() kubernetes.Interface {
	s.t.Helper()
	return must(kubernetes.NewForConfig(s.config(protobuf)))
}

// A tap sees the requests of a client, and can keep them from the server.
type tap struct {
	cut atomic.Bool // while set, nobody listens at the server's port, as far as this client can tell

	mu   sync.Mutex     // guards seen
	seen map[string]int // requests by kind
}

// attach puts a tap into a config.
func attach(config *rest.Config) *tap {
	p := &tap{seen: map[string]int{}}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if p.cut.Load() {
				return nil, &os.SyscallError{Syscall: "connect", Err: syscall.ECONNREFUSED}
			}
			p.mu.Lock()
			p.seen[kindOf(r)]++
			p.mu.Unlock()
			return next.RoundTrip(r)
		})
	})
	return p
}

// count says how many requests of a kind there were: "streaming list", "watch", "list" or "other".
func (p *tap) count(kind string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[kind]
}

func kindOf(r *http.Request) string {
	query := r.URL.Query()
	switch {
	case query.Get("sendInitialEvents") == "true":
		return "streaming list"
	case query.Has("watch"):
		return "watch"
	case r.Method == http.MethodGet && (query.Has("resourceVersion") || query.Has("limit")):
		return "list"
	}
	return "other"
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// ---- Small help ----

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// check fails the test with what was attempted.
func check(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// eventually waits until a thing is so.
func eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not after %v: %s", patience, what)
		}
	}
}

// expire waits until the server has forgotten revision rv. It writes, because an idle server forgets nothing. One that has its objects on disk
// is restarted to forget, and once more to remember again.
func (s *server) expire(ctx context.Context, rv string) {
	s.t.Helper()
	if slices.Contains(s.args, "--data") {
		s.restart(syscall.SIGTERM, shortHistory)
		defer s.restart(syscall.SIGTERM)
	}
	cs := s.typed()
	past := metav1.ListOptions{ResourceVersion: rv, ResourceVersionMatch: metav1.ResourceVersionMatchExact, Limit: 1}
	turn := 0
	eventually(s.t, "revision "+rv+" is compacted", func() bool {
		turn++
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"turn":"%d"}}}`, turn)
		_, err := cs.CoreV1().Namespaces().Patch(ctx, "kube-public", "application/merge-patch+json", []byte(patch), metav1.PatchOptions{})
		check(s.t, "a write that passes the time", err)
		time.Sleep(100 * time.Millisecond)
		_, err = cs.CoreV1().Namespaces().List(ctx, past)
		if err != nil && !apierrors.IsResourceExpired(err) {
			s.t.Fatalf("LIST at %s: %v", rv, err)
		}
		return err != nil
	})
}

// receive waits for what is told on a channel.
func receive[T any](t testing.TB, what string, from <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-from:
	case <-time.After(patience):
		t.Fatalf("not after %v: %s", patience, what)
	}
	return got
}

// cause is the first cause of a Status error.
func cause(err error) metav1.StatusCause {
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil && len(status.Status().Details.Causes) > 0 {
		return status.Status().Details.Causes[0]
	}
	return metav1.StatusCause{}
}
