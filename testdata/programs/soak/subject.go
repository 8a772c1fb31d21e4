package main

// This file implements the subject, which includes the servers, the load and the results.

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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
	// maximum wait for a response, a start, a condition, or watches to catch up; far more than any
	// of these needs
	patience  = 2 * time.Minute
	endWithin = time.Minute // timeout after SIGTERM, which is twice the limit of the server
	blink     = 20 * time.Millisecond
	faultsMax = 50 // maximum number of errors to print
	token     = "soak"
)

// counts are the increasing columns of the table.
type counts struct{ requests, written, listed, events, expired, refused, cutOff atomic.Int64 }

// tallies are the counts at one moment.
type tallies struct{ written, expired, refused, cutOff int64 }

func (c *counts) now() tallies {
	return tallies{c.written.Load(), c.expired.Load(), c.refused.Load(), c.cutOff.Load()}
}

func (t tallies) minus(was tallies) tallies {
	return tallies{t.written - was.written, t.expired - was.expired, t.refused - was.refused, t.cutOff - was.cutOff}
}

// A subject is the system under test with its observed state.
type subject struct {
	name, dir string
	program   string         // binary of its servers
	front     *balancer      // nil if requests are sent to the server directly
	etcd      *cluster       // nil if the server has a file
	drift     *drift         // nil if the server uses the clock of the machine
	authority string         // file with the certificate authority; "" if it does not use TLS
	standing  leave          // effects that are always allowed
	had       map[string]int // number of times that each fault occurred; used by the timetable only
	// the log may still have errors of the last fault; used by the timetable only
	late     bool
	client   *http.Client
	counts   counts
	ledger   *ledger
	samples  []sample // used by the table only
	draining chan struct{}
	over     context.Context // canceled with the cause when the subject has failed
	fail     context.CancelCauseFunc

	leave   atomic.Pointer[leave] // currently allowed effects
	lineage atomic.Int64          // incremented when the data is copied and gets new revisions
	rewound atomic.Int64          // incremented when a backup is restored
	slow    atomic.Int64          // responses outside of faults that the standing leave allowed
	silence atomic.Int64          // longest wait of the bystander since the reset, in nanoseconds

	usedBefore time.Duration // processor time at the previous row; used by the table only
	rowBefore  time.Time

	mu      sync.Mutex // guards the fields below
	servers []*server
	said    []string // the first errors
	count   int      // number of all errors
}

// newSubject returns a subject with a single server that uses a file.
func newSubject(name, dir, program string) *subject {
	over, fail := context.WithCancelCause(context.Background())
	s := &subject{name: name, dir: filepath.Join(dir, name), program: program, ledger: newLedger(), draining: make(chan struct{}), had: map[string]int{},
		over: over, fail: fail, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}}
	s.leave.Store(&s.standing)
	s.servers = []*server{s.newServer("apilet", func() []string { return []string{"--data", s.data()} })}
	return s
}

// secure makes the subject's servers use TLS with generated certificates.
func (s *subject) secure() *subject {
	s.authority = filepath.Join(s.dir, "certs", "ca.crt")
	return s
}

// spread replaces the server by three servers on etcd.
func (s *subject) spread() (err error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	if s.etcd, err = newCluster(s.dir, s.fail); err != nil {
		return err
	}
	if s.front, err = newBalancer(); err != nil {
		return err
	}
	s.authority = filepath.Join(s.dir, "ca.crt")
	s.standing = leave{refuses: slowly, latest: true}
	s.servers = nil
	for i := range members {
		data := filepath.Join(s.dir, fmt.Sprintf("replica-%d.db", i))
		s.servers = append(s.servers, s.newServer(fmt.Sprint("apilet-", i), func() []string { return append([]string{"--data", data}, s.etcd.flags()...) }))
	}
	return os.WriteFile(s.authority, s.etcd.signer.pem, 0o600)
}

// newServer returns a server that has not been started. The flags for the storage are returned by
// where.
func (s *subject) newServer(name string, where func() []string) *server {
	one := &server{kubeconfig: filepath.Join(s.dir, name+".kubeconfig"), authority: func() []byte { pem, _ := os.ReadFile(s.authority); return pem }}
	one.process = process{name: name, dir: s.dir, alarm: s.fail, args: func() []string {
		args := []string{s.program, "--listen", "127.0.0.1:0", "--kubeconfig", one.kubeconfig, "--compaction-interval", compact.String(),
			"--event-ttl", "1m", "--log-format", "json"}
		switch {
		case s.etcd != nil:
			args = append(args, "--tls-cert-file", s.etcd.signer.file(), "--tls-private-key-file", s.etcd.signer.file(), "--token-auth-file", s.tokens())
		case s.authority != "":
			args = append(args, "--cert-dir", filepath.Dir(s.authority), "--token-auth-file", s.tokens())
		}
		return append(args, where()...)
	}}
	return one
}

func (s *subject) tokens() string { return filepath.Join(s.dir, "tokens.csv") }

func (s *subject) data() string { return filepath.Join(s.dir, "disk", "apilet.db") }

// running returns the current servers.
func (s *subject) running() []*server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.servers
}

func (s *subject) become(servers ...*server) {
	s.mu.Lock()
	s.servers = servers
	s.mu.Unlock()
	s.front.serve(servers...)
}

// live runs the subject and its load until ctx is done. At the end it waits for the watches, stops
// the servers and checks the files.
func (s *subject) live(ctx context.Context, out *table, troubles []*trouble, order *rand.Rand) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	context.AfterFunc(s.over, stop)
	defer s.killAll()
	if err := s.begin(); err != nil {
		return err
	}
	var workers, watchers sync.WaitGroup
	s.startWatchers(&watchers)
	s.startWorkers(ctx, &workers)
	err := s.suffer(ctx, out, troubles, order)
	stop()
	if err != nil {
		s.fail(err)
	}
	workers.Wait()
	if s.over.Err() == nil {
		s.compareAll()
	}
	close(s.draining) // the watchers stop when they have received all writes
	watchers.Wait()
	if s.over.Err() != nil {
		return context.Cause(s.over)
	}
	return s.finish()
}

// begin starts the servers and creates the initial objects.
func (s *subject) begin() error {
	if err := errors.Join(os.MkdirAll(s.dir, 0o700), os.MkdirAll(filepath.Dir(s.data()), 0o700),
		os.WriteFile(s.tokens(), []byte(token+",soak,soak,system:masters\n"), 0o600)); err != nil {
		return err
	}
	if err := os.Remove(s.data()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if s.drift != nil {
		if err := s.drift.set(0); err != nil {
			return err
		}
	}
	if s.etcd != nil {
		if err := s.etcd.startAll(); err != nil {
			return err
		}
	}
	if err := each(s.servers, (*server).start); err != nil {
		return err
	}
	if s.authority != "" {
		s.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: poolOf(s.servers[0].authority())}
	}
	if s.front != nil {
		s.front.client = s.client
		s.front.serve(s.servers...)
		go s.front.run(s.over)
	}
	return s.furnish()
}

// finish stops all servers and checks their data files.
func (s *subject) finish() error {
	defer s.fail(nil)
	stopped := each(s.servers, func(one *server) error { return one.end(syscall.SIGTERM) })
	checked := each(s.servers, func(one *server) error {
		args := one.args()
		for i, arg := range args {
			if arg == "--data" {
				if out, err := exec.Command(s.program, "check", "--data", args[i+1]).CombinedOutput(); err != nil {
					return fmt.Errorf("apilet check: %w\n%s", err, out)
				}
			}
		}
		return nil
	})
	return errors.Join(stopped, s.checkLogs(s.late), checked)
}

func (s *subject) killAll() {
	for _, one := range s.running() {
		_ = one.end(syscall.SIGKILL)
	}
	if s.etcd != nil {
		_ = s.etcd.killAll()
	}
}

// checkLogs checks the new log lines for errors and panics.
func (s *subject) checkLogs(allowed bool) error {
	for _, one := range s.running() {
		text := one.said(one.seen)
		one.seen += int64(len(text))
		for line := range bytes.Lines(text) {
			if bytes.Contains(line, []byte(`"level":"error"`)) && !allowed || bytes.Contains(line, []byte("panic")) || bytes.HasPrefix(line, []byte("fatal")) {
				s.fault("the log says %.300s", bytes.TrimSpace(line))
			}
		}
	}
	return nil
}

// ---- Samples ----

var (
	anonymous   = regexp.MustCompile(`RssAnon:\s+(\d+) kB`)
	goroutines  = regexp.MustCompile(`(?m)^go_goroutines (\S+)`)
	fileBytes   = regexp.MustCompile(`(?m)^apilet_store_file_bytes (\S+)`)
	freeBytes   = regexp.MustCompile(`(?m)^apilet_store_free_bytes (\S+)`)
	clockBehind = regexp.MustCompile(`(?m)^apilet_clock_behind_seconds (\S+)`)
)

// sample returns the sum of the servers' resources, from the operating system and from /metrics.
func (s *subject) sample() (now sample, ok bool) {
	all := s.running()
	for _, one := range all {
		part, ok := s.sampleOf(one)
		if !ok {
			return now, false
		}
		now.memory += part.memory
		now.goroutines += part.goroutines
		now.files += part.files
		now.size += part.size
		now.used += part.used
	}
	return now, len(all) > 0
}

func (s *subject) sampleOf(one *server) (now sample, ok bool) {
	if one.pid.Load() == 0 || one.url.Load() == nil {
		return now, false
	}
	process := fmt.Sprintf("/proc/%d/", one.pid.Load())
	status, err1 := os.ReadFile(process + "status")
	files, err2 := os.ReadDir(process + "fd")
	a, err3 := s.askServer(one, "/metrics")
	if errors.Join(err1, err2, err3) != nil || a.code != http.StatusOK {
		return now, false
	}
	size := number(fileBytes, a.body)
	return sample{memory: 1024 * number(anonymous, status), goroutines: number(goroutines, a.body), files: float64(len(files)),
		size: size, used: size - number(freeBytes, a.body)}, true
}

func number(pattern *regexp.Regexp, text []byte) float64 {
	match := pattern.FindSubmatch(text)
	if match == nil {
		return 0
	}
	n, _ := strconv.ParseFloat(string(match[1]), 64)
	return n
}

// processor returns the CPU usage of the servers since the last row, in percent of one core.
func (s *subject) processor() float64 {
	ticks := 0
	for _, one := range s.running() {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", one.pid.Load()))
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		if len(fields) < 13 {
			return 0
		}
		user, _ := strconv.Atoi(fields[11])
		system, _ := strconv.Atoi(fields[12])
		ticks += user + system
	}
	// Linux counts in ticks of 1/100 s
	used, now := time.Duration(ticks)*10*time.Millisecond, time.Now()
	share := 100 * (used - s.usedBefore).Seconds() / now.Sub(s.rowBefore).Seconds()
	// the process was restarted since the last row
	if used < s.usedBefore || s.rowBefore.IsZero() {
		share = 0
	}
	s.usedBefore, s.rowBefore = used, now
	return share
}

// ---- Requests and errors ----

// An answer contains the status and the body of an HTTP response.
type answer struct {
	code int
	body []byte
}

// errDoubt means that a request may have been executed, or may be executed later.
var errDoubt = errors.New("there was no answer")

// A refusedError is an error response that the current fault allows. The request has not been
// executed.
type refusedError struct{ answer }

func (e refusedError) Error() string { return fmt.Sprintf("%d %.200s", e.code, e.body) }

// address returns the URL for clients.
func (s *subject) address() string {
	if s.front != nil {
		return s.front.url()
	}
	return *s.running()[0].url.Load()
}

func (s *subject) request(ctx context.Context, method, url, body, contentType string) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	if s.authority != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return r, nil
}

func (s *subject) send(ctx context.Context, method, url, body, contentType string) (answer, error) {
	r, err := s.request(ctx, method, url, body, contentType)
	if err != nil {
		return answer{}, err
	}
	response, err := s.client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, text}, err
}

// askServer sends a request to one server. Any response is allowed.
func (s *subject) askServer(one *server, path string) (answer, error) {
	ctx, cancel := context.WithTimeout(s.over, 5*time.Second)
	defer cancel()
	return s.send(ctx, "GET", *one.url.Load()+path, "", "")
}

// call sends one request. It returns an error if the response is allowed by the current fault.
// Other responses must be checked by the caller.
func (s *subject) call(method, path, body, contentType string) (answer, error) {
	ctx, cancel := context.WithTimeout(s.over, patience)
	defer cancel()
	s.counts.requests.Add(1)
	before := s.leave.Load()
	a, err := s.send(ctx, method, s.address()+path, body, contentType)
	if s.over.Err() != nil {
		return answer{}, context.Cause(s.over)
	}
	// effects that were allowed when the request was sent or answered
	for _, leave := range []*leave{before, s.leave.Load()} {
		switch {
		case err != nil && leave.cut && ctx.Err() == nil:
			s.counts.cutOff.Add(1)
			return answer{}, errDoubt
		case err == nil && leave.refuses != nil && leave.refuses(method, path, a):
			s.counts.refused.Add(1)
			if leave == &s.standing {
				s.slow.Add(1)
			}
			if leave.nothing {
				return answer{}, refusedError{a}
			}
			return answer{}, errDoubt
		}
	}
	if err != nil {
		s.counts.cutOff.Add(1)
		s.fault("%s %.200s: %v", method, path, err)
		return answer{}, errDoubt
	}
	return a, nil
}

// ask repeats a GET until the server responds. It stops when the subject has failed.
func (s *subject) ask(path string) answer {
	for s.over.Err() == nil {
		a, err := s.call("GET", path, "", "")
		if err == nil {
			return a
		}
		time.Sleep(blink)
	}
	return answer{}
}

// fault records an error. Errors after the end of the subject are ignored, because they are
// consequences.
func (s *subject) fault(format string, args ...any) {
	if s.over.Err() != nil {
		return
	}
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

// verdict prints the subject's result. It returns an error if the subject has failed.
func (s *subject) verdict(out io.Writer) error {
	judged := bounds
	if len(s.samples) < 4 {
		judged = nil
		fmt.Fprintf(out, "%-7s was hardly ever without a trouble: whether it grows is not known\n", s.name)
	}
	for _, b := range judged {
		before, after, grown := growth(s.samples, b)
		fmt.Fprintf(out, "%-7s %-17s %12.0f in the second quarter, %12.0f in the last (medians)\n", s.name, b.title, before, after)
		if grown && *length >= settled {
			s.said, s.count = append(s.said, fmt.Sprintf("%s grew from %.0f to %.0f", b.title, before, after)), s.count+1
		}
	}
	if slow, all := s.slow.Load(), s.counts.requests.Load(); slow > all/20 {
		s.said, s.count = append(s.said, fmt.Sprintf("%d of %d requests took too long outside of troubles", slow, all)), s.count+1
	}
	for _, text := range s.said {
		fmt.Fprintln(out, s.name, "FAULT", text)
	}
	if s.count > 0 {
		return fmt.Errorf("%s: %d faults", s.name, s.count)
	}
	return nil
}
