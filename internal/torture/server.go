package torture

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"sync"

	"github.com/tidwall/gjson"
)

// agent is the user agent for requests made by torture itself, such as those from the workload and
// from plans that simulate another client.
const agent = "apilet-torture"

// A server is an ephemeral apilet that runs as a child process. It keeps its whole history.
type server struct {
	url     string
	process *exec.Cmd
	ended   chan struct{} // closed when the process has ended
	log     *tail
	client  *http.Client
}

// startServer starts a server and returns when it is serving. base is the data file to start from,
// or "".
func startServer(ctx context.Context, program, base string, flags []string) (*server, error) {
	args := append([]string{"--ephemeral", "--listen=127.0.0.1:0", "--compaction-interval=0", "--log-format=json", "--event-ttl=0"}, flags...)
	if base != "" {
		args = append(args, "--base="+base)
	}
	begun := make(chan string, 1)
	s := &server{ended: make(chan struct{}), log: &tail{}, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
	s.process = exec.Command(program, args...)
	diesWithUs(s.process)
	out, err := s.process.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.process.Start(); err != nil {
		return nil, err
	}
	go func() { // until the process ends
		for lines := bufio.NewScanner(io.TeeReader(out, s.log)); lines.Scan(); {
			if line := gjson.ParseBytes(lines.Bytes()); line.Get("message").String() == "serving" {
				begun <- line.Get("url").String()
			}
		}
		_, _ = io.Copy(s.log, out) // the scanner stops if a line is too long
		_ = s.process.Wait()       // the log shows why it ended
		close(s.ended)
	}()
	select {
	case s.url = <-begun:
		return s, nil
	case <-s.ended:
		return nil, fmt.Errorf("the server did not start: %s", s.log)
	case <-ctx.Done():
		s.stop()
		return nil, ctx.Err()
	}
}

// stop kills the process. Its data need not be saved.
func (s *server) stop() {
	_ = s.process.Process.Kill()
	<-s.ended
}

// An answer contains the status code and the body of a response.
type answer struct {
	code int
	body []byte
}

// failure returns an error if the status is not 2xx.
func (a answer) failure() error {
	if a.code < 300 {
		return nil
	}
	message := gjson.GetBytes(a.body, "message").String()
	if message == "" {
		message = string(a.body)
	}
	return fmt.Errorf("%d %s", a.code, message)
}

// send sends a request with torture's user agent. contentType is needed for patches.
func (s *server) send(ctx context.Context, method, path, contentType string, body []byte) (answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	r.Header.Set("User-Agent", agent)
	r.Header.Set("Accept", "application/json")
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	resp, err := s.client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, text}, err
}

// revision returns the newest revision.
func (s *server) revision(ctx context.Context) (int64, error) {
	a, err := s.send(ctx, "GET", "/api/v1/namespaces?limit=1", "", nil)
	if err == nil {
		err = a.failure()
	}
	return gjson.GetBytes(a.body, "metadata.resourceVersion").Int(), err
}

// A kind contains the information needed to construct the path of an object.
type kind struct {
	apiVersion, resource string
	namespaced           bool
}

// path returns the path of an object, or of the collection if name is "".
func (k kind) path(namespace, name string) string {
	path := "/apis/" + k.apiVersion
	if !strings.Contains(k.apiVersion, "/") {
		path = "/api/" + k.apiVersion
	}
	if k.namespaced {
		path += "/namespaces/" + namespace
	}
	path += "/" + k.resource
	if name != "" {
		path += "/" + name
	}
	return path
}

// findKind finds a kind by discovery.
func (s *server) findKind(ctx context.Context, apiVersion, name string) (kind, error) {
	a, err := s.send(ctx, "GET", strings.TrimSuffix(kind{apiVersion: apiVersion}.path("", ""), "/"), "", nil)
	if err == nil {
		err = a.failure()
	}
	var list struct {
		Resources []struct {
			Name, Kind string
			Namespaced bool
		}
	}
	if err == nil {
		err = json.Unmarshal(a.body, &list)
	}
	if err != nil {
		return kind{}, fmt.Errorf("%s %s: %w", apiVersion, name, err)
	}
	for _, r := range list.Resources {
		if r.Kind == name && !strings.Contains(r.Name, "/") {
			return kind{apiVersion, r.Name, r.Namespaced}, nil
		}
	}
	return kind{}, fmt.Errorf("%s has no kind %s", apiVersion, name)
}

// tailBytes is the minimum amount of output that is kept for each process.
const tailBytes = 64 << 10

// A tail is a writer that only keeps the end of the data.
type tail struct {
	mu   sync.Mutex // guards text
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if len(t.text) > 2*tailBytes {
		t.text = append([]byte(nil), t.text[len(t.text)-tailBytes:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
