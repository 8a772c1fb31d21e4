package main

// This file measures the whole server over HTTP on loopback, the client on the same cores, each figure beside what the machine can do
// at most: raw commits of the same bytes, a handler that writes the same bytes. Run it with
//
//	go test -run xxx -bench 'HTTP|Watch'
//
// The client is a bare one (a request is bytes, an answer is skipped), so that what is measured is the server.

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/scheme"
	"apilet/internal/scheme/protobuf"
	"apilet/internal/scheme/schemetest"
)

const benchPath = "/api/v1/namespaces/default/configmaps"

// A benchConn is one connection of a client that wastes nothing.
type benchConn struct {
	conn net.Conn
	in   *bufio.Reader
}

func benchDial(b testing.TB, url string) *benchConn {
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	return &benchConn{conn, bufio.NewReaderSize(conn, 64<<10)}
}

func bareRequest(method, path, body string) []byte {
	return fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body)
}

// head sends a request and reads the answer's head: its code, and its length, -1 when it is chunked.
func (c *benchConn) head(request []byte) (code, length int, err error) {
	if _, err := c.conn.Write(request); err != nil {
		return 0, 0, err
	}
	length = -1
	for first := true; ; first = false {
		line, err := c.in.ReadSlice('\n')
		switch {
		case err != nil:
			return code, length, err
		case first:
			code, _ = strconv.Atoi(string(line[9:12]))
		case len(line) <= 2:
			return code, length, nil
		case bytes.HasPrefix(line, []byte("Content-Length: ")):
			length, _ = strconv.Atoi(string(bytes.TrimSpace(line[16:])))
		}
	}
}

// do sends a request and skips the answer's body. It returns the body's size.
func (c *benchConn) do(request []byte) (size int, err error) {
	code, length, err := c.head(request)
	if err != nil {
		return 0, err
	}
	if code >= 300 {
		return 0, errors.New("status " + strconv.Itoa(code))
	}
	if length >= 0 {
		return c.in.Discard(length)
	}
	for { // chunks
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return size, err
		}
		n, _ := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 64)
		if _, err := c.in.Discard(int(n) + 2); err != nil || n == 0 {
			return size, err
		}
		size += int(n)
	}
}

// hammer makes n requests from as many connections at once, and returns how many a second.
func hammer(b testing.TB, url string, clients, n int, request func(client, i int) []byte) float64 {
	conns := make([]*benchConn, clients)
	for i := range conns {
		conns[i] = benchDial(b, url)
	}
	var next atomic.Int64
	var group sync.WaitGroup
	begin := time.Now()
	for c, conn := range conns {
		group.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if _, err := conn.do(request(c, int(i))); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	return float64(n) / time.Since(begin).Seconds()
}

// report gives a rate and its ratio to what was measured beside it.
func report(b *testing.B, rate float64, unit string, baseline float64) {
	b.ReportMetric(rate, unit)
	b.ReportMetric(rate/baseline, "of-baseline")
	b.ReportMetric(0, "ns/op")
}

// rawCommits is how many objects a second bare bbolt takes, so many of them in each commit.
func rawCommits(b *testing.B, size, perCommit int) float64 {
	db, err := bbolt.Open(filepath.Join(b.TempDir(), "raw.db"), 0o600, &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	value := bytes.Repeat([]byte("x"), size)
	begin, n := time.Now(), 0
	for ; time.Since(begin) < 500*time.Millisecond; n += perCommit {
		err = errors.Join(err, db.Update(func(tx *bbolt.Tx) error {
			bucket, err := tx.CreateBucketIfNotExists([]byte("rev"))
			for i := range perCommit {
				err = errors.Join(err, bucket.Put(binary.BigEndian.AppendUint64(nil, uint64(n+i)), value))
			}
			return err
		}))
	}
	if err != nil {
		b.Fatal(err)
	}
	return float64(n) / time.Since(begin).Seconds()
}

// static serves the same bytes to every request.
func static(b *testing.B, body []byte) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.Write(body)
	}))
	b.Cleanup(server.Close)
	return server.URL
}

func benchObject(name string, n int) string {
	return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `"},"data":{"n":"` + strconv.Itoa(n) + `","k":"` + strings.Repeat("x", 750) + `"}}`
}

// BenchmarkHTTPCreate: every create is on the disk when it is answered. Beside it, bbolt commits as many objects at once as there are
// clients.
func BenchmarkHTTPCreate(b *testing.B) {
	s := startTest(b, onFile(filepath.Join(b.TempDir(), "a.db")))
	round := 0
	for _, clients := range []int{1, 16, 64} {
		b.Run("clients="+strconv.Itoa(clients), func(b *testing.B) {
			round++
			rate := hammer(b, s.url, clients, b.N, func(_, i int) []byte {
				return bareRequest("POST", benchPath, benchObject(fmt.Sprintf("r%d-%d", round, i), i))
			})
			b.StopTimer()
			report(b, rate, "creates/s", rawCommits(b, 1000, clients))
		})
	}
}

func BenchmarkHTTPGet(b *testing.B) {
	s := startTest(b)
	body := s.want(201, "POST", benchPath, benchObject("a", 1)).body
	get := bareRequest("GET", benchPath+"/a", "")
	b.Run("clients=16", func(b *testing.B) {
		rate := hammer(b, s.url, 16, b.N, func(_, _ int) []byte { return get })
		b.StopTimer()
		report(b, rate, "gets/s", hammer(b, static(b, body), 16, 20_000, func(_, _ int) []byte { return get }))
	})
}

func BenchmarkHTTPUpdate(b *testing.B) {
	s := startTest(b, onFile(filepath.Join(b.TempDir(), "a.db")))
	for c := range 16 {
		s.want(201, "POST", benchPath, benchObject(fmt.Sprintf("u%d", c), 0))
	}
	round := 0
	b.Run("clients=16", func(b *testing.B) {
		round++
		rate := hammer(b, s.url, 16, b.N, func(c, i int) []byte {
			name := fmt.Sprintf("u%d", c)
			return bareRequest("PUT", benchPath+"/"+name, benchObject(name, round*1_000_000_000+i))
		})
		b.StopTimer()
		report(b, rate, "updates/s", rawCommits(b, 1000, 16))
	})
}

// BenchmarkHTTPList: 10,000 objects of 1 KiB, whole, in chunks, and as they were before half of them changed.
func BenchmarkHTTPList(b *testing.B) {
	const objects = 10_000
	s := startTest(b)
	s.fill(objects, 1024)
	old := s.st.Revision()
	whole := s.want(200, "GET", benchPath, "").body
	staticURL := static(b, whole)
	perSecond := func(b *testing.B, url string, n int, request []byte) float64 {
		return objects * hammer(b, url, 1, n, func(_, _ int) []byte { return request })
	}
	list := func(query string) func(*testing.B) {
		return func(b *testing.B) {
			get := bareRequest("GET", benchPath+query, "")
			rate := perSecond(b, s.url, b.N, get)
			b.StopTimer()
			report(b, rate, "objects/s", perSecond(b, staticURL, 30, get))
		}
	}
	b.Run("whole", list(""))
	b.Run("label-selector", list("?labelSelector=half"))
	b.Run("chunks=500", func(b *testing.B) {
		conn := benchDial(b, s.url)
		begin := time.Now()
		for b.Loop() {
			benchChunks(b, conn)
		}
		rate := objects * float64(b.N) / time.Since(begin).Seconds()
		report(b, rate, "objects/s", perSecond(b, staticURL, 30, bareRequest("GET", "/", "")))
	})
	for i := 0; i < objects; i += 2 {
		s.want(200, "PATCH", fmt.Sprintf("%s/c%06d", benchPath, i), `{"data":{"changed":"yes"}}`, asMergePatch)
	}
	b.Run("half-changed-since", list(fmt.Sprintf("?resourceVersion=%d&resourceVersionMatch=Exact", old)))
	b.Run("half-changed-now", list(""))
}

// benchChunks lists everything in chunks of 500. The token stands in the first bytes of a chunk.
func benchChunks(b *testing.B, conn *benchConn) {
	for token := []byte{}; ; {
		code, length, err := conn.head(bareRequest("GET", benchPath+"?limit=500&continue="+string(token), ""))
		if err != nil || code != http.StatusOK || length < 0 {
			b.Fatal(code, length, err)
		}
		start, err := conn.in.Peek(1024)
		if err != nil {
			b.Fatal(err)
		}
		_, after, more := bytes.Cut(start, []byte(`"continue":"`))
		token, _, _ = bytes.Cut(bytes.Clone(after), []byte(`"`))
		if _, err := conn.in.Discard(length); err != nil || !more {
			return
		}
	}
}

// BenchmarkHTTPHundredThousand: what a large file costs at the start, in memory, and for the first chunk of a list.
func BenchmarkHTTPHundredThousand(b *testing.B) {
	empty, full := filepath.Join(b.TempDir(), "empty.db"), filepath.Join(b.TempDir(), "full.db")
	startTest(b, onFile(empty)).halt()
	s := startTest(b, onFile(full))
	s.st.File.Db.NoSync = true // while it is filled
	s.fill(100_000, 1024)
	s.st.File.Db.NoSync = false
	b.Run("first-chunk", func(b *testing.B) {
		rate := hammer(b, s.url, 1, b.N, func(_, _ int) []byte { return bareRequest("GET", benchPath+"?limit=500", "") })
		b.ReportMetric(1000/rate, "ms")
	})
	s.halt()
	for name, path := range map[string]string{"start-empty": empty, "start-full": full} {
		b.Run(name, func(b *testing.B) {
			var ready []time.Duration
			var memory []int64
			for b.Loop() {
				program, took := startProgram(b, "--data", path)
				time.Sleep(300 * time.Millisecond) // for the work that a start begins
				ready, memory = append(ready, took), append(memory, apitest.AnonymousMemory(program.Process.Pid))
				stopProgram(b, program)
			}
			slices.Sort(ready)
			slices.Sort(memory)
			b.ReportMetric(float64(ready[len(ready)/2].Microseconds())/1000, "ms-ready")
			b.ReportMetric(float64(memory[len(memory)/2])/(1<<20), "MiB-anonymous")
		})
	}
}

// BenchmarkStartEphemeral reports the time until a server with a new file in memory is ready, and the
// processor time of the whole process.
func BenchmarkStartEphemeral(b *testing.B) {
	var ready, cpu []time.Duration
	for b.Loop() {
		program, took := startProgram(b, "--ephemeral")
		stopProgram(b, program)
		ready = append(ready, took)
		cpu = append(cpu, program.ProcessState.UserTime()+program.ProcessState.SystemTime())
	}
	slices.Sort(ready)
	slices.Sort(cpu)
	b.ReportMetric(float64(ready[len(ready)/2].Microseconds())/1000, "ms-ready")
	b.ReportMetric(float64(cpu[len(cpu)/2].Microseconds())/1000, "ms-cpu")
}

// startProgram starts this test program as apilet itself, with a free port, and returns it with the time
// from the start of the process until it serves.
func startProgram(b *testing.B, args ...string) (*exec.Cmd, time.Duration) {
	program := exec.Command(os.Args[0], append(args, "--listen", "127.0.0.1:0")...)
	program.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "GOGC=") })
	program.Env = append(program.Env, "APILET_RUN_MAIN=1")
	log, err := program.StderrPipe()
	if err != nil {
		b.Fatal(err)
	}
	begin := time.Now()
	if err := program.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { program.Process.Kill() })
	var said []string
	for lines := bufio.NewScanner(log); lines.Scan(); {
		said = append(said, lines.Text())
		if strings.Contains(lines.Text(), " serving ") {
			took := time.Since(begin)
			go io.Copy(io.Discard, log) // until the program ends
			return program, took
		}
	}
	b.Fatalf("the program does not serve: %q", said)
	return nil, 0
}

func stopProgram(b *testing.B, program *exec.Cmd) {
	if err := program.Process.Signal(os.Interrupt); err != nil {
		b.Fatal(err)
	}
	if err := program.Wait(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkHTTPEightLists: eight clients list 100,000 objects of 1 KiB at once, one of them at 10 KB/s, while somebody writes. What the
// server's anonymous memory grows by, and what the lists do to the 99th percentile of the writes, over all rounds. Each fast client is a process:
// in the writer's own it would wait behind them.
func BenchmarkHTTPEightLists(b *testing.B) {
	path := filepath.Join(b.TempDir(), "full.db")
	s := startTest(b, onFile(path))
	s.st.File.Db.NoSync = true // while it is filled
	s.fill(100_000, 1024)
	s.halt()
	child := startChild(b, path)
	defer child.end()
	time.Sleep(300 * time.Millisecond)
	var alone, beside []time.Duration
	var growth int64
	for b.Loop() {
		_, took := writesWhile(b, child, nil)
		alone = append(alone, took...)
		before := apitest.AnonymousMemory(child.cmd.Process.Pid)
		peak, took := writesWhile(b, child, func() { eightLists(b, child.url) })
		beside, growth = append(beside, took...), max(growth, peak-before)
	}
	p99 := func(took []time.Duration) time.Duration {
		slices.Sort(took)
		return took[len(took)*99/100]
	}
	b.ReportMetric(float64(growth)/(1<<20), "MiB-growth")
	b.ReportMetric(p99(alone).Seconds()*1000, "ms-alone")
	b.ReportMetric(float64(p99(beside))/float64(p99(alone)), "p99-of-alone")
}

// TestListReader reads one list, as a client that is a process of its own.
func TestListReader(t *testing.T) {
	url := os.Getenv("APILET_LIST_URL")
	if url == "" {
		t.Skip("this is BenchmarkHTTPEightLists' client")
	}
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if n, err := io.Copy(io.Discard, answer.Body); err != nil || n < 100_000*1024 {
		t.Fatalf("a list of %d bytes: %v", n, err)
	}
}

// eightLists returns when the seven fast clients have their lists.
func eightLists(b *testing.B, url string) {
	var fast sync.WaitGroup
	done := make(chan struct{})
	defer close(done)
	request := bareRequest("GET", benchPath, "")
	go func() { // the slow one
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			b.Error(err)
			return
		}
		defer conn.Close()
		conn.Write(request)
		for piece := make([]byte, 1000); ; {
			if _, err := conn.Read(piece); err != nil {
				return
			}
			select {
			case <-done:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	for range 7 {
		fast.Go(func() {
			reader := exec.Command(os.Args[0], "-test.run=^TestListReader$")
			reader.Env = append(os.Environ(), "APILET_LIST_URL="+url+benchPath)
			if out, err := reader.CombinedOutput(); err != nil {
				b.Errorf("%v: %s", err, out)
			}
		})
	}
	fast.Wait()
}

// writesWhile creates objects one after another while work runs (nil: for a second), and returns the peak of the server's anonymous
// memory and how long each create took.
func writesWhile(b *testing.B, child *serverChild, work func()) (peak int64, took []time.Duration) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if work == nil {
			time.Sleep(time.Second)
			return
		}
		work()
	}()
	for {
		select {
		case <-done:
			return peak, took
		default:
		}
		start := time.Now()
		answer, err := http.Post(child.url+benchPath, "application/json", strings.NewReader(`{"metadata":{"generateName":"w-"},"data":{"k":"v"}}`))
		if err != nil || answer.StatusCode != http.StatusCreated {
			b.Fatal(err, answer)
		}
		io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		took = append(took, time.Since(start))
		peak = max(peak, apitest.AnonymousMemory(child.cmd.Process.Pid))
	}
}

// end lets a child stop in peace.
func (child *serverChild) end() {
	child.stdin.Close()
	child.cmd.Wait()
}

// BenchmarkWatch: 100 watchers of one collection, and a writer. The time is that of both ends on the same cores.
func BenchmarkWatch(b *testing.B) {
	s := startTest(b)
	b.Run("watchers=100", func(b *testing.B) { benchFanOut(b, s, 16) })
	b.Run("watchers=100/apart", func(b *testing.B) { benchFanOut(b, s, 1) })
	b.Run("resume-10000", func(b *testing.B) { benchResume(b, s) })
	b.Run("idle", benchIdleWatchers)
}

// benchFanOut: so many writers at once, whose events 100 watchers are told of; one writer's come one at a time.
func benchFanOut(b *testing.B, s *testServer, writers int) {
	const watchers = 100
	from := s.st.Revision()
	var group sync.WaitGroup
	for range watchers {
		conn := benchDial(b, s.url)
		if _, _, err := conn.head(bareRequest("GET", fmt.Sprintf("%s?watch=1&resourceVersion=%d", benchPath, from), "")); err != nil {
			b.Fatal(err)
		}
		group.Go(func() { countEvents(b, conn, b.N) })
	}
	b.ResetTimer()
	begin := time.Now()
	defer apitest.ProcessorTime(b)()
	hammer(b, s.url, writers, b.N, func(_, i int) []byte {
		return bareRequest("POST", benchPath, benchObject(fmt.Sprintf("w%d-%d", from, i), i))
	})
	group.Wait()
	events := float64(b.N * watchers)
	b.ReportMetric(events/time.Since(begin).Seconds(), "events/s")
	b.ReportMetric(float64(time.Since(begin).Microseconds())/events, "us/event")
}

// countEvents reads a stream until it has had n events.
func countEvents(b *testing.B, conn *benchConn, n int) {
	for seen := 0; seen < n; {
		line, err := conn.in.ReadSlice('\n')
		if bytes.HasSuffix(line, []byte("}\n")) {
			seen++
		}
		if err != nil && err != bufio.ErrBufferFull {
			b.Error(err)
			return
		}
	}
}

// benchResume: a watch that begins 10,000 revisions back, in the part of the log that only the disk has.
func benchResume(b *testing.B, s *testServer) {
	const revisions = 10_000
	from := s.st.Revision()
	hammer(b, s.url, 16, revisions, func(_, i int) []byte {
		return bareRequest("POST", benchPath, benchObject(fmt.Sprintf("r%d-%d", from, i), i))
	})
	begin := time.Now()
	for b.Loop() {
		conn := benchDial(b, s.url)
		if _, _, err := conn.head(bareRequest("GET", fmt.Sprintf("%s?watch=1&resourceVersion=%d", benchPath, from), "")); err != nil {
			b.Fatal(err)
		}
		countEvents(b, conn, revisions)
		conn.conn.Close()
	}
	b.ReportMetric(float64(b.N)*revisions/time.Since(begin).Seconds(), "events/s")
}

// benchIdleWatchers: what a watch that waits costs the server, in a process of its own.
func benchIdleWatchers(b *testing.B) {
	if runtime.GOOS != "linux" {
		b.Skip("reads /proc")
	}
	const watchers = 1000
	for b.Loop() {
		child := startChild(b, filepath.Join(b.TempDir(), "a.db"))
		before := apitest.AnonymousMemory(child.cmd.Process.Pid)
		var conns []*benchConn
		for range watchers {
			conn := benchDial(b, child.url)
			if _, _, err := conn.head(bareRequest("GET", benchPath+"?watch=1&resourceVersion=1", "")); err != nil {
				b.Fatal(err)
			}
			conns = append(conns, conn)
		}
		time.Sleep(300 * time.Millisecond)
		b.ReportMetric(float64(apitest.AnonymousMemory(child.cmd.Process.Pid)-before)/watchers/1024, "KiB/watcher")
		for _, conn := range conns {
			conn.conn.Close()
		}
		child.end()
	}
}

// BenchmarkProtobuf: the same objects in JSON and in protobuf, in one run: a GET, a list that is sent as it is encoded, and one that has to
// be measured first. of-json is the share of JSON's rate.
func BenchmarkProtobuf(b *testing.B) {
	for _, kind := range []string{"configmaps", "pods"} {
		s := startTest(b)
		const objects = 5000
		path := "/api/v1/namespaces/default/" + kind
		if kind == "configmaps" {
			s.fill(objects, 1024)
		} else {
			hammer(b, s.url, 16, objects, func(_, i int) []byte { return bareRequest("POST", path, benchPod(i)) })
		}
		rate := func(b *testing.B, query, accept string, n int) float64 {
			request := []byte("GET " + path + query + " HTTP/1.1\r\nHost: 127.0.0.1\r\n" + accept + "\r\n\r\n")
			return hammer(b, s.url, 1, n, func(_, _ int) []byte { return request })
		}
		for name, query := range map[string]string{"get": "/" + s.want(200, "GET", path+"?limit=1", "").get("items.0.metadata.name").String(), "list=500": "?limit=500", "list=5000": ""} {
			b.Run(kind+"/"+name, func(b *testing.B) {
				n := max(b.N, 3)
				sealed := rate(b, query, "Accept: application/vnd.kubernetes.protobuf", n)
				report(b, sealed, "answers/s", rate(b, query, "Accept: application/json", n))
			})
		}
	}
}

// BenchmarkHTTPCreateUnderQuota is BenchmarkHTTPCreate with 16 clients, in a namespace with a quota and in one beside it.
func BenchmarkHTTPCreateUnderQuota(b *testing.B) {
	s := startTest(b, onFile(filepath.Join(b.TempDir(), "a.db")))
	round := 0
	for _, c := range []struct{ name, quota string }{{"none", ""}, {"elsewhere", "kube-public"}, {"here", "default"}} {
		if c.quota != "" {
			s.want(201, "POST", "/api/v1/namespaces/"+c.quota+"/resourcequotas", `{"metadata":{"name":"q"},"spec":{"hard":{"configmaps":"9000000"}}}`)
		}
		b.Run(c.name, func(b *testing.B) {
			round++
			rate := hammer(b, s.url, 16, b.N, func(_, i int) []byte {
				return bareRequest("POST", benchPath, benchObject(fmt.Sprintf("r%d-%d", round, i), i))
			})
			b.StopTimer()
			report(b, rate, "creates/s", rawCommits(b, 1000, 16))
		})
	}
}

// BenchmarkStatusPatches8Workers: what a controller's workers do to their Deployments, over HTTP on loopback, with and without
// managedFields. The CPU time is that of both ends.
func BenchmarkStatusPatches8Workers(b *testing.B) {
	const path = "/apis/apps/v1/namespaces/default/deployments"
	file := func(c *config) { onFile(filepath.Join(b.TempDir(), rand.Text()))(c) }
	for _, c := range []struct {
		name string
		edit []func(*config)
	}{
		{"ephemeral", nil},
		{"ephemeral/unmanaged", []func(*config){func(c *config) { c.ManagedFields = false }}},
		{"file", []func(*config){file}},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := startTest(b, c.edit...)
			defer s.halt()
			for i := range 8 {
				body := strings.NewReplacer(`"uid":"1",`, ``, `"resourceVersion":"7",`, ``, `"name":"d"`, fmt.Sprintf(`"name":"d%d"`, i)).Replace(kubetest.DeploymentJSON(3))
				s.want(201, "POST", path, body)
			}
			round := 0
			for range 2 { // the first makes the entries
				round++
				before := apitest.Processor()
				rate := hammer(b, s.url, 8, max(8, b.N), func(worker, i int) []byte {
					body := fmt.Sprintf(`{"status":{"observedGeneration":%d,"replicas":%d}}`, 1, round*1_000_000+i)
					return fmt.Appendf(nil, "PATCH %s/d%d/status HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/merge-patch+json\r\nUser-Agent: worker\r\nContent-Length: %d\r\n\r\n%s",
						path, worker, len(body), body)
				})
				used := apitest.Processor() - before
				b.ReportMetric(rate, "patches/s")
				b.ReportMetric(float64(used.Nanoseconds())/1000/float64(max(8, b.N)), "cpu-us/patch")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func BenchmarkTranscode(b *testing.B) {
	res := scheme.NewRegistry().Lookup("", "v1", "pods")
	s := startTest(b)
	s.want(201, "POST", "/api/v1/namespaces/default/pods", benchPod(1))
	rec, err := s.st.Get(res.Key("default", "p1"))
	if err != nil {
		b.Fatal(err)
	}
	b.Run("directly", func(b *testing.B) {
		b.ReportAllocs()
		var dst []byte
		for b.Loop() {
			dst, _ = protobuf.Transcode(dst[:0], rec.JSON, res.StoredType())
		}
	})
	b.Run("by-its-type", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			schemetest.GeneratedBytes(b, res, rec.JSON)
		}
	})
}

func benchPod(i int) string {
	return fmt.Sprintf(`{"metadata":{"name":"p%d","labels":{"app":"web","tier":"front"}},"spec":{"containers":[{"name":"main","image":"registry.example.com/web:1.2.3",
		"env":[{"name":"A","value":"1"},{"name":"B","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}],"ports":[{"containerPort":8080,"name":"http"}],
		"resources":{"requests":{"cpu":"100m","memory":"128Mi"},"limits":{"cpu":"1","memory":"256Mi"}},"readinessProbe":{"httpGet":{"path":"/","port":"http"}}}]}}`, i)
}

// ---- What the history costs

// The history and the detector of fights cost requests that nobody asks about: two servers in one process, one of which notes neither when nor by
// whom a record is written and detects nothing, take turns at the same requests.
//
//	go test -run xxx -bench HistoryPrice -benchtime 100x .
//
// Each turn counts the processor's time of the whole process, its client included, and what it allocates; what is reported is the median of
// the turns' ratios, and how far the quartiles are from each other. Other work on the machine moves single turns and hardly their median.

// turn makes n requests, and returns the processor time that they took, and the allocations.
func turn(b *testing.B, s *testServer, n int, request func(i int) []byte) (used, made float64) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	begin := apitest.Processor()
	hammer(b, s.url, 1, n, func(_, i int) []byte { return request(i) })
	used = float64(apitest.Processor() - begin)
	runtime.ReadMemStats(&after)
	return used, float64(after.Mallocs - before.Mallocs)
}

func BenchmarkHistoryPrice(b *testing.B) {
	const perTurn, listed = 1000, 500
	with, without := startTest(b), startTest(b)
	without.st.Opts.Author, without.api.instruments.Findings = nil, nil // no request has been sent to it yet
	without.st.Opts.Clock = func() time.Time { return time.UnixMilli(0) }
	for _, s := range []*testServer{with, without} {
		s.fill(listed, 1024)
		for i := range 100 {
			s.want(201, "POST", benchPath, benchObject(fmt.Sprintf("u%d", i), 0))
		}
	}
	n := 0
	get := bareRequest("GET", benchPath+"?limit=500", "")
	for _, c := range []struct {
		title   string
		turn    int
		request func(i int) []byte
	}{
		{"create", perTurn, func(i int) []byte { return bareRequest("POST", benchPath, benchObject(fmt.Sprintf("z%d", i), i)) }},
		{"update", perTurn, func(i int) []byte {
			name := fmt.Sprintf("u%d", i%100)
			return bareRequest("PUT", benchPath+"/"+name, benchObject(name, i))
		}},
		{"get", perTurn, func(i int) []byte { return bareRequest("GET", fmt.Sprintf("%s/u%d", benchPath, i%100), "") }},
		{"list", 60, func(int) []byte { return get }},
	} {
		b.Run(c.title, func(b *testing.B) {
			var ratios, allocs []float64
			for i := 0; b.Loop(); i++ {
				var used, made [2]float64
				for k := range 2 {
					at := (i + k) % 2 // who is first changes
					used[at], made[at] = turn(b, []*testServer{with, without}[at], c.turn, func(i int) []byte { return c.request(n + i) })
				}
				n += c.turn
				ratios, allocs = append(ratios, used[0]/used[1]), append(allocs, made[0]-made[1])
			}
			slices.Sort(ratios)
			slices.Sort(allocs)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(ratios[len(ratios)/2], "cpu-ratio")
			b.ReportMetric(ratios[len(ratios)*3/4]-ratios[len(ratios)/4], "quartiles")
			b.ReportMetric(allocs[len(allocs)/2]/float64(c.turn), "more-allocs/request")
		})
	}
}

// BenchmarkEncryption: the same creates, gets and lists with objects in clear and under each provider. What the store does is in the file of
// --encryption-provider-config alone, so that all is measured through HTTP.
func BenchmarkEncryption(b *testing.B) {
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("k"), 32))
	for _, provider := range []string{"", "secretbox", "aesgcm", "aescbc"} {
		flags := []func(*config){onFile(filepath.Join(b.TempDir(), "a.db"))}
		if provider != "" {
			file := filepath.Join(b.TempDir(), "keys.yaml")
			text := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [configmaps]\n  providers:\n  - " +
				provider + ": {keys: [{name: k, secret: " + key + "}]}\n"
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				b.Fatal(err)
			}
			flags = append(flags, func(c *config) { c.EncryptionConfig = file })
		}
		s, round := startTest(b, flags...), 0
		run := func(what string, request func(i int) []byte) {
			b.Run(cmp.Or(provider, "clear")+"/"+what, func(b *testing.B) {
				round++
				b.ReportMetric(hammer(b, s.url, 4, b.N, func(_, i int) []byte { return request(i) }), what+"s/s")
			})
		}
		run("create", func(i int) []byte {
			return bareRequest("POST", benchPath, benchObject(fmt.Sprintf("r%d-%d", round, i), i))
		})
		s.fill(500, 1024)
		run("get", func(int) []byte { return bareRequest("GET", benchPath+"/c000001", "") })
		run("list", func(int) []byte { return bareRequest("GET", benchPath+"?limit=500", "") })
	}
}
