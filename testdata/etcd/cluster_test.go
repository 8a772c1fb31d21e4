package etcd

// This file starts the processes of etcd and apilet.

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"apilet-harness"
	"apilet/apilettest"
)

const patience = 2 * time.Minute // for operations that take no time on an idle machine

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// A process can be killed, paused and restarted.
type process struct {
	*apilettest.Server
	t *testing.T
}

func newProcess(t *testing.T, path string, args ...string) *process {
	return &process{apilettest.New(t, path, args...), t}
}

// flag returns the value of a flag on the command line.
func (p *process) flag(name string) string {
	at := slices.Index(p.Args, name)
	if at < 0 {
		p.t.Fatalf("%q has no %s", p.Args, name)
	}
	return p.Args[at+1]
}

// signal pauses or resumes the process. Other signals are sent to the process, and signal waits
// until it has exited.
func (p *process) signal(how syscall.Signal) {
	p.t.Helper()
	switch how {
	case syscall.SIGCONT:
		p.Resume()
	case syscall.SIGSTOP:
		p.Pause()
	default:
		p.Terminate(how)
	}
}

// A cluster is an etcd cluster.
type cluster struct {
	t       *testing.T
	members []*process
	urls    []string
}

func startCluster(t *testing.T, n int, more ...string) *cluster {
	t.Helper()
	etcd := harness.StartEtcd(t, harness.EtcdOptions{Members: n, Flags: more})
	c := &cluster{t: t, urls: etcd.URLs}
	for _, member := range etcd.Members {
		c.members = append(c.members, &process{member, t})
	}
	return c
}

// client returns a client of etcd that does not use a server.
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
	data   string
	client *http.Client // nil means the default client
}

func (c *cluster) startServer(more ...string) *server {
	c.t.Helper()
	s := c.aServer(more...)
	s.run()
	return s
}

// aServer returns a server on the cluster that has not been started.
func (c *cluster) aServer(more ...string) *server {
	c.t.Helper()
	return c.serverWith(apilettest.Flags(more...))
}

func (c *cluster) serverWith(options ...apilettest.Option) *server {
	c.t.Helper()
	flags := apilettest.Flags("--etcd-servers", strings.Join(c.urls, ","), "--compaction-interval", "0")
	return aServer(c.t, filepath.Join(c.t.TempDir(), "replica.db"), append([]apilettest.Option{flags}, options...)...)
}

// aServer returns a server on a file that has not been started.
func aServer(t *testing.T, data string, options ...apilettest.Option) *server {
	t.Helper()
	return &server{process: &process{apilettest.Prepare(t, append(options, apilettest.Data(data))...), t}, data: data}
}

// run starts the server and waits until it is ready.
func (s *server) run() {
	s.t.Helper()
	s.Launch()
	s.ready()
}

// ready waits until the server is ready.
func (s *server) ready() {
	s.t.Helper()
	s.WaitReady()
	apilettest.Until(s.t, "the server is ready", func() error { return s.answers("/readyz?verbose") })
}

// answers returns an error unless the response for a path is 200.
func (s *server) answers(path string) error {
	if s.URL() == "" {
		return errors.New("the server has no address yet")
	}
	code, body, err := s.try("GET", path, "", 5*time.Second)
	if err == nil && code != 200 {
		err = fmt.Errorf("%d %s", code, body)
	}
	return err
}

func (s *server) try(method, path, body string, limit time.Duration) (int, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, s.URL()+path, strings.NewReader(body))
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

// do sends a request that must return a code. The request is retried if etcd is too slow on a busy
// machine.
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

// An object contains the common fields of all objects.
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

// A watcher records the events that are received from a watch.
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
	w, url := &watcher{cancel: cancel}, s.URL()+path+"?watch=1&resourceVersion="+since
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

// take records the events of a stream. It returns true if the request must be repeated because its
// server has not reached the revision in time.
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

// story returns the events so far: "ADDED a", ...
func (w *watcher) story() (told []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ev := range w.events {
		told = append(told, ev.Type+" "+ev.Object.Metadata.Name)
	}
	return told
}
