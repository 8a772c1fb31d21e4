package clients

// This file starts servers and creates clients for the other tests. A server is a process that
// listens on a port. It must not be shared if a test stops it. A client's requests can be counted
// and blocked, to observe its requests and its behavior without a server.

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
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

	"apilet/apilettest"
)

const (
	ns       = "default"
	protobuf = runtime.ContentTypeProtobuf
	// for operations that an idle machine completes immediately
	patience = 2 * time.Minute
)

func TestMain(m *testing.M) {
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	// discard the messages about servers that have been stopped by a test
	klog.SetLogger(klog.Logger{})
	ctrllog.SetLogger(klog.Logger{})
	return m.Run()
}

// ---- Servers ----

// A server is an apilet process that always uses the same port.
type server struct {
	*apilettest.Server
	t      testing.TB
	onFile bool
}

// startEphemeral starts a server without persistence.
func startEphemeral(t testing.TB, flags ...string) *server {
	t.Helper()
	return &server{Server: start(t, apilettest.Flags(flags...)), t: t}
}

// startOnFile starts a server with a file. It can be restarted.
func startOnFile(t testing.TB) *server {
	t.Helper()
	return &server{Server: start(t, apilettest.Data(filepath.Join(t.TempDir(), "apilet.db"))), t: t, onFile: true}
}

// shortHistory makes the history expire within seconds. Servers are started without this flag and
// are only restarted with it by expire.
const shortHistory = "--compaction-interval=1s"

// start starts a server. An internal error in its log fails the test.
func start(t testing.TB, options ...apilettest.Option) *apilettest.Server {
	t.Helper()
	s := apilettest.Start(t, append(options, apilettest.KeepPort())...)
	t.Cleanup(func() {
		s.Kill()
		if log := s.Log(); strings.Contains(log, "internal error") {
			t.Errorf("the server logged an internal error:\n%s", log)
		}
	})
	return s
}

// ---- Clients ----

// config returns a client configuration without rate limits, so that the server determines the
// speed. Request bodies use contentType.
func (s *server) config(contentType string) *rest.Config {
	s.t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(s.Kubeconfig())
	if err != nil {
		s.t.Fatal(err)
	}
	config.QPS = -1
	config.ContentType = contentType
	if contentType == protobuf {
		config.AcceptContentTypes = protobuf // only protobuf; JSON must not be necessary
	}
	return config
}

// typed returns a clientset that uses protobuf if possible, like most controllers.
func (s *server) typed() kubernetes.Interface {
	s.t.Helper()
	return must(kubernetes.NewForConfig(s.config(protobuf)))
}

// A tap counts and can block the requests of a client.
type tap struct {
	cut atomic.Bool // while set, connections are refused

	mu   sync.Mutex     // guards seen
	seen map[string]int // requests by kind
}

// attach adds a tap to a configuration.
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

// count returns the number of requests of a kind: "streaming list", "watch", "list" or "other".
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

// ---- Helpers ----

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// check fails the test with a description of the attempt if err is not nil.
func check(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// eventually waits until a condition holds.
func eventually(t testing.TB, condition string, holds func() bool) {
	t.Helper()
	apilettest.Until(t, condition, func() error {
		if !holds() {
			return errors.New("it does not hold")
		}
		return nil
	})
}

// expire waits until the server has compacted revision rv. It writes, because an idle server does
// not compact. A server with a file is restarted with a short history and then again with the
// normal one.
func (s *server) expire(ctx context.Context, rv string) {
	s.t.Helper()
	if s.onFile {
		s.Restart(shortHistory)
		defer s.Restart()
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

// receive waits for a value from a channel.
func receive[T any](t testing.TB, what string, from <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-from:
	case <-time.After(patience):
		t.Fatalf("not after %v: %s", patience, what)
	}
	return got
}

// cause returns the first cause of a Status error.
func cause(err error) metav1.StatusCause {
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil && len(status.Status().Details.Causes) > 0 {
		return status.Status().Details.Causes[0]
	}
	return metav1.StatusCause{}
}
