package main

// This file runs one server: it starts, restarts, samples and stops the process, and counts what is said about it.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	patience  = 60 * time.Second // for an answer, a start, or watches to catch up: far more than any needs
	faultsMax = 50               // told in words; more are only counted
)

// counts are the table's columns that only rise.
type counts struct{ requests, written, listed, events, expired, starts, cutOff atomic.Int64 }

// A subject is a server under work, and what is known of it.
type subject struct {
	name, dir string
	restarts  time.Duration // between restarts; 0: none
	client    *http.Client
	url       atomic.Pointer[string] // of the running process
	pid       atomic.Int64           // 0: none serves
	counts    counts
	ledger    *ledger
	samples   []sample // the table's
	draining  chan struct{}

	usedBefore time.Duration // processor time at the row before; the table's
	rowBefore  time.Time

	mu    sync.Mutex // guards what follows
	said  []string   // the first faults
	count int        // of all faults
}

func newSubject(name, dir string, restarts time.Duration) *subject {
	return &subject{name: name, dir: filepath.Join(dir, name), restarts: restarts, ledger: newLedger(), draining: make(chan struct{}),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}}
}

// live runs the server and everything that works it until ctx ends, then lets the watches catch up, stops the server and checks its file.
func (s *subject) live(ctx context.Context) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	if err := os.Remove(s.data()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	process, err := s.start()
	if err != nil {
		return err
	}
	defer func() { _ = process.Process.Kill() }() // nothing to a process that has ended
	if err := s.furnish(); err != nil {
		return err
	}
	var workers, watchers sync.WaitGroup
	s.startWatchers(&watchers)
	s.startWorkers(ctx, &workers)
	process, err = s.shake(ctx, process)
	workers.Wait()
	if err != nil {
		return err
	}
	s.compareAll()
	close(s.draining) // from here on watchers end when they know what the ledger knows
	watchers.Wait()
	err = errors.Join(s.end(process, syscall.SIGTERM), s.checkLog())
	return errors.Join(err, s.checkFile())
}

func (s *subject) data() string { return filepath.Join(s.dir, "apilet.db") }

// start runs the binary and waits until it serves.
func (s *subject) start() (*exec.Cmd, error) {
	kubeconfig := filepath.Join(s.dir, "kubeconfig")
	if err := os.Remove(kubeconfig); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	process := exec.Command(*binary, "--data", s.data(), "--listen", "127.0.0.1:0", "--kubeconfig", kubeconfig,
		"--compaction-interval", compact.String(), "--event-ttl", "1m", "--log-format", "json")
	process.Stderr = log
	if err := process.Start(); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if url := serverOf(kubeconfig); url != "" {
			s.counts.starts.Add(1)
			s.url.Store(&url)
			s.pid.Store(int64(process.Process.Pid))
			return process, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("%s: no kubeconfig after %v; see the log in %s", s.name, patience, s.dir), process.Process.Kill())
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

// shake restarts the server in its rhythm until ctx ends, and holds the ledger against it each time. It returns the last process.
func (s *subject) shake(ctx context.Context, process *exec.Cmd) (*exec.Cmd, error) {
	if s.restarts == 0 {
		<-ctx.Done()
		return process, nil
	}
	for turn := 0; ; turn++ {
		select {
		case <-ctx.Done():
			return process, nil
		case <-time.After(s.restarts):
		}
		how := syscall.SIGTERM
		if turn%2 == 1 {
			how = syscall.SIGKILL
		}
		s.pid.Store(0)
		if err := s.end(process, how); err != nil {
			return process, err
		}
		next, err := s.start()
		if err != nil {
			return process, err
		}
		process = next
		s.compareAll()
	}
}

// end stops the server. A server that was asked politely says so with exit code 0.
func (s *subject) end(process *exec.Cmd, how syscall.Signal) error {
	if err := process.Process.Signal(how); err != nil {
		return err
	}
	if err := process.Wait(); err != nil && how == syscall.SIGTERM {
		s.fault("SIGTERM: the server ended with %v", err)
	}
	return nil
}

// checkLog looks for what a server never says when it is well.
func (s *subject) checkLog() error {
	log, err := os.ReadFile(filepath.Join(s.dir, "log"))
	for line := range bytes.Lines(log) {
		if bytes.Contains(line, []byte(`"level":"error"`)) || bytes.Contains(line, []byte("panic")) {
			s.fault("the log says %.300s", bytes.TrimSpace(line))
		}
	}
	return err
}

func (s *subject) checkFile() error {
	out, err := exec.Command(*binary, "check", "--data", s.data()).CombinedOutput()
	if err != nil {
		return fmt.Errorf("apilet check: %w\n%s", err, out)
	}
	return nil
}

// ---- Samples ----

var (
	anonymous  = regexp.MustCompile(`RssAnon:\s+(\d+) kB`)
	goroutines = regexp.MustCompile(`(?m)^go_goroutines (\S+)`)
	fileBytes  = regexp.MustCompile(`(?m)^apilet_store_file_bytes (\S+)`)
	freeBytes  = regexp.MustCompile(`(?m)^apilet_store_free_bytes (\S+)`)
)

// sample reads what the server holds now, from the outside and from /metrics.
func (s *subject) sample() (now sample, ok bool) {
	if s.pid.Load() == 0 {
		return now, false
	}
	process := fmt.Sprintf("/proc/%d/", s.pid.Load())
	status, err1 := os.ReadFile(process + "status")
	files, err2 := os.ReadDir(process + "fd")
	info, err3 := os.Stat(s.data())
	a, err4 := s.call("GET", "/metrics", "", "")
	if errors.Join(err1, err2, err3, err4) != nil {
		return now, false
	}
	return sample{memory: 1024 * number(anonymous, status), goroutines: number(goroutines, a.body), files: float64(len(files)),
		size: float64(info.Size()), used: number(fileBytes, a.body) - number(freeBytes, a.body)}, true
}

func number(pattern *regexp.Regexp, text []byte) float64 {
	match := pattern.FindSubmatch(text)
	if match == nil {
		return 0
	}
	n, _ := strconv.ParseFloat(string(match[1]), 64)
	return n
}

// processor is the share of one core that the server has used since the row before.
func (s *subject) processor() float64 {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.pid.Load()))
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	used, now := time.Duration(user+system)*10*time.Millisecond, time.Now() // in ticks of 1/100 s, on every Linux
	share := 100 * (used - s.usedBefore).Seconds() / now.Sub(s.rowBefore).Seconds()
	if used < s.usedBefore || s.rowBefore.IsZero() { // another process than at the row before
		share = 0
	}
	s.usedBefore, s.rowBefore = used, now
	return share
}

// ---- Requests and faults ----

// An answer is an HTTP response, read to its end.
type answer struct {
	code int
	body []byte
}

// call makes one request. An error means that nobody knows whether the server has done it.
func (s *subject) call(method, path, body, contentType string) (answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, *s.url.Load()+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	s.counts.requests.Add(1)
	response, err := s.client.Do(r)
	if err != nil {
		return answer{}, s.cut(ctx, method, path, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{}, s.cut(ctx, method, path, err)
	}
	return answer{response.StatusCode, text}, nil
}

// cut counts a request that was cut off. None is but by a restart.
func (s *subject) cut(ctx context.Context, method, path string, err error) error {
	s.counts.cutOff.Add(1)
	if s.restarts == 0 || ctx.Err() != nil {
		s.fault("%s %.200s: %v", method, path, err)
	}
	return err
}

// ask is call for requests that may be repeated: it goes on until the server answers.
func (s *subject) ask(path string) answer {
	for {
		a, err := s.call("GET", path, "", "")
		if err == nil {
			return a
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// fault notes that something is not as it should be.
func (s *subject) fault(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count++; len(s.said) < faultsMax {
		s.said = append(s.said, time.Now().Format(time.TimeOnly)+" "+fmt.Sprintf(format, args...))
	}
}

func (s *subject) faults() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// verdict prints what became of the server, and returns an error if that is not well.
func (s *subject) verdict(out io.Writer) error {
	failed := false
	for _, b := range bounds {
		before, after, grown := growth(s.samples, b)
		fmt.Fprintf(out, "%-7s %-17s %12.0f in the second quarter, %12.0f in the last (medians)\n", s.name, b.title, before, after)
		if grown && *length >= settled {
			s.fault("%s grew from %.0f to %.0f", b.title, before, after)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, text := range s.said {
		fmt.Fprintln(out, s.name, "FAULT", text)
		failed = true
	}
	if failed {
		return fmt.Errorf("%s: %d faults", s.name, s.count)
	}
	return nil
}
