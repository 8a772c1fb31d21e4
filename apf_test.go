package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/tidwall/gjson"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/types"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/flowcontrol"
	"apilet/internal/history"
	"apilet/internal/options"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/serving"
	"apilet/internal/store"
)

// flowFront makes the request record that the middleware before flow control makes: the user is the first path segment, the verb the
// second, then resource, namespace and name; "-" is none. A deadline comes from ?timeout=.
func flowFront(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		part := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
		for i := range part {
			part[i] = strings.TrimPrefix(part[i], "-")
		}
		part = append(part, "", "", "", "", "")
		resource, subresource, _ := strings.Cut(part[2], ".")
		rec := &request.Request{Received: time.Now(), Streaming: part[1] == "watch", User: request.User{Name: part[0], Groups: []string{"system:authenticated"}},
			Info: request.Info{ResourceRequest: resource != "", Verb: part[1], Version: "v1", Resource: resource, Subresource: subresource,
				Namespace: part[3], Name: part[4], Path: r.URL.Path}}
		if part[0] == "admin" {
			rec.User.Groups = append(rec.User.Groups, "system:masters")
		}
		ctx := context.WithValue(r.Context(), request.Key{}, rec)
		if timeout, err := time.ParseDuration(r.URL.Query().Get("timeout")); err == nil {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, timeout)
			defer cancel()
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func nothingStored(string, string, string) (int64, int64) { return -1, 0 }

// smallFlowControl is flow control of two seats, a queue of one place for everybody but the exempt.
func smallFlowControl(counts storedCounts) *flowControl {
	fc := newFlowControl(2, time.Minute, counts)
	level, schema := kubetest.LimitedLevel("small", 1000, 1, 1, 1), kubetest.SchemaFor("small", "*")
	level.UID, schema.UID, schema.Spec.MatchingPrecedence = "level-uid", "schema-uid", 10
	fc.configure(flowcontrol.Objects{Schemas: []*flowcontrolv1.FlowSchema{schema}, Levels: []*flowcontrolv1.PriorityLevelConfiguration{level}})
	return fc
}

// A seatGate is a handler that holds every request until it is opened.
type seatGate struct {
	open chan struct{}
	in   atomic.Int32
}

func (g *seatGate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.in.Add(1)
	defer g.in.Add(-1)
	select {
	case <-g.open:
	case <-r.Context().Done():
	}
}

func flowCall(handler http.Handler, method, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(method, target, nil))
	return w
}

// Who finds the queue full gets 429 at once, who waits in vain gets it after a quarter of the time-out; the exempt are served all the same.
func TestTooManyRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &seatGate{open: make(chan struct{})}
		handler := flowFront(smallFlowControl(nothingStored).middleware(g))
		for range 2 {
			go flowCall(handler, "GET", "/alice/get/pods/ns/a")
		}
		synctest.Wait()
		start := time.Now()
		late := make(chan *httptest.ResponseRecorder, 1)
		go func() { late <- flowCall(handler, "GET", "/alice/get/pods/ns/a?timeout=8s") }()
		synctest.Wait()
		if g.in.Load() != 2 {
			t.Fatalf("%d run, want 2", g.in.Load())
		}
		for _, w := range []*httptest.ResponseRecorder{flowCall(handler, "GET", "/alice/get/pods/ns/a"), <-late} {
			if w.Code != 429 || w.Body.String() != tooManyRequests+"\n" {
				t.Errorf("%d %q", w.Code, w.Body)
			}
			for name, want := range map[string]string{"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff",
				"Retry-After": "1", "X-Kubernetes-PF-FlowSchema-UID": "schema-uid", "X-Kubernetes-PF-PriorityLevel-UID": "level-uid"} {
				if got := w.Header().Get(name); got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
		}
		if waited := time.Since(start); waited != 2*time.Second {
			t.Errorf("waited %v of 8 s, want 2 s", waited)
		}
		go flowCall(handler, "GET", "/admin/get/pods/ns/a")
		synctest.Wait()
		if g.in.Load() != 3 {
			t.Error("an administrator waits")
		}
		close(g.open)
		synctest.Wait()
		if w := flowCall(handler, "GET", "/alice/get/pods/ns/a"); w.Code != 200 || w.Header().Get("X-Kubernetes-PF-FlowSchema-UID") != "schema-uid" {
			t.Errorf("afterwards: %d, %v", w.Code, w.Header())
		}
		time.Sleep(time.Minute)
	})
}

// A watch gives its seat back once it has begun; what streams to and from pods never has one.
func TestLongRunningRequestsTakeNoSeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &seatGate{open: make(chan struct{})}
		fc := smallFlowControl(nothingStored)
		handler := flowFront(fc.middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			returnWatchSeats(r.Context())
			g.ServeHTTP(w, r)
		})))
		for _, path := range []string{"/a/get/pods.exec/ns/p", "/a/create/pods.attach/ns/p", "/a/get/pods.log/ns/p", "/a/create/pods.portforward/ns/p", "/a/get/services.proxy/ns/p"} {
			go flowCall(handler, "GET", path)
		}
		for range 100 {
			go flowCall(handler, "GET", "/a/watch/pods/ns")
			synctest.Wait()
		}
		if g.in.Load() != 105 {
			t.Errorf("%d run, want 105", g.in.Load())
		}
		if n := fc.watchers.Interested("", "pods", "ns", ""); n != 100 {
			t.Errorf("%d watchers, want 100", n)
		}
		told, of := flowMetrics(t, fc), "{flow_schema=small,priority_level=small"
		watches, others, executing := told["request_execution_seconds"+of+",type=watch}"], told["request_execution_seconds"+of+",type=regular}"], told["current_executing_requests"+of+"}"]
		if watches != 100 || others != 0 || executing != 0 {
			t.Errorf("%v watches and %v others had seats, %v have one", watches, others, executing)
		}
		close(g.open)
		synctest.Wait()
		if fc.watchers.Len() != 0 {
			t.Errorf("watchers left: %v", fc.watchers.Len())
		}
	})
}

// Lists are as wide as what they read, writes as those who watch what is written.
func TestEstimates(t *testing.T) {
	t.Parallel()
	const kb = 1000
	for _, c := range []struct {
		query      string
		watch      bool
		single     bool
		count, avg int64
		want       int
	}{
		{"limit=399&resourceVersion=1", false, false, 699, 10 * kb, 40},
		{"resourceVersion=1", false, false, 699, 10 * kb, 10},
		{"resourceVersion=1", false, false, 69, 10 * kb, 7},
		{"continue=abc&limit=399", false, false, 699, 10 * kb, 40},
		{"resourceVersion=0&limit=20", false, false, 699, 10 * kb, 2},
		{"labelSelector=a&resourceVersion=1&resourceVersionMatch=Exact", false, false, 799, 10 * kb, 80},
		{"labelSelector=a&limit=49&resourceVersion=1", false, false, 799, 10 * kb, 40},
		{"labelSelector=a&limit=699&resourceVersion=1", false, false, 799, 10 * kb, 70},
		{"labelSelector=a&resourceVersion=0", false, false, 799, 10 * kb, 10},
		{"labelSelector=a&resourceVersion=0&limit=29", false, false, 799, 10 * kb, 3},
		{"", false, true, 799, 200 * kb, 2},
		{"resourceVersion=1&resourceVersionMatch=Exact", false, true, 799, 1500 * kb, 15},
		{"resourceVersionMatch=Exact&resourceVersion=1", false, false, 5000, 10 * kb, 100},
		{"resourceVersionMatch=NotOlderThan&resourceVersion=1&limit=5000", false, false, 5000, 10 * kb, 10},
		{"", false, false, -1, 0, 1},
		{"", false, false, 0, 0, 1},
		{"", false, false, 5, 1 * kb, 1},
		{"", false, false, 4, 1000 * kb, 10},
		{"limit=1&resourceVersion=7", false, false, 1e9, 1500 * kb, 15},
		{"", true, false, 799, 1 * kb, 8},
		{"resourceVersion=0", true, false, 799, 1 * kb, 8},
		{"resourceVersion=99", true, false, 799, 1 * kb, 1},
		{"resourceVersion=99&sendInitialEvents=true", true, false, 799, 1 * kb, 8},
		{"resourceVersion=99&sendInitialEvents=", true, false, 799, 1 * kb, 8},
		{"resourceVersion=99&sendInitialEvents=False", true, false, 799, 1 * kb, 1},
		{"limit=many", false, false, 5, 1 * kb, 100},
		{"limit=", false, false, 5, 1 * kb, 100},
		{"timeoutSeconds=many", true, false, 5, 1 * kb, 100},
		{"limit=%zz", false, false, 5, 1 * kb, 1}, // no pair, and so no limit
	} {
		fc := &flowControl{stored: func(string, string, string) (int64, int64) { return c.count, c.count * c.avg }}
		target := "/api/v1/pods?" + c.query
		if c.watch {
			target += "&watch"
		}
		if c.single {
			target += "&fieldSelector=metadata.name%3Dx"
		}
		info := request.Parse(httptest.NewRequest("GET", target, nil))
		if got := fc.estimate(&request.Request{Info: info}).InitialSeats; got != c.want {
			t.Errorf("%s %q, %d of %d bytes: %d seats, want %d", info.Verb, c.query, c.count, c.avg, got, c.want)
		}
	}
	for watchers, want := range map[int]flowcontrol.Estimate{9: {}, 10: {FinalSeats: 1, Tail: 5 * time.Millisecond}, 25: {FinalSeats: 3, Tail: 5 * time.Millisecond},
		1000: {FinalSeats: 10, Tail: 50 * time.Millisecond}} {
		got := mutatingWork(watchers)
		if got.InitialSeats != 1 || got.FinalSeats != want.FinalSeats || got.Tail != want.Tail {
			t.Errorf("%d watchers: %+v", watchers, got)
		}
	}
}

// The dumps have kube-apiserver's names and columns.
func TestDumps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &seatGate{open: make(chan struct{})}
		fc := smallFlowControl(nothingStored)
		handler := flowFront(fc.middleware(g))
		for _, target := range []string{"/alice/get/pods/ns/a", "/alice/list/pods/ns", "/bob/update/pods/ns/b"} {
			go flowCall(handler, "GET", target)
			synctest.Wait()
		}
		flowCall(handler, "GET", "/late/get/pods/ns/a")
		page := func(name string) []string {
			w := flowCall(http.HandlerFunc(fc.serveDump), "GET", "/debug/api_priority_and_fairness/"+name)
			if w.Code != 200 || w.Header().Get("Content-Type") != "text/plain; charset=utf-8" {
				t.Errorf("%s: %d %v", name, w.Code, w.Header())
			}
			return strings.Split(w.Body.String(), "\n")
		}
		want := func(name string, lines ...string) {
			got := page(name)
			for _, line := range lines {
				if !slices.Contains(got, line) {
					t.Errorf("%s lacks\n%q in\n%s", name, line, strings.Join(got, "\n"))
				}
			}
		}
		want("dump_priority_levels",
			"PriorityLevelName, ActiveQueues, IsIdle, IsQuiescing, WaitingRequests, ExecutingRequests, DispatchedRequests, RejectedRequests, TimedoutRequests, CancelledRequests",
			"catch-all,         0,            true,   false,       0,               0,                 0,                  0,                0,                0",
			"small,             1,            false,  false,       1,               2,                 2,                  1,                0,                0")
		want("dump_queues",
			"PriorityLevelName, Index,  PendingRequests, ExecutingRequests, SeatsInUse, NextDispatchR, InitialSeatsSum, MaxSeatsSum, TotalWorkSum",
			"small,             0,      1,               2,                 2,          0.00000000ss,  1,               1,           0.00300000ss")
		want("dump_requests",
			"PriorityLevelName, FlowSchemaName, QueueIndex, RequestIndexInQueue, FlowDistingsher, ArriveTime,           InitialSeats, FinalSeats, AdditionalLatency, StartTime",
			"small,             small,          0,          0,                   ,                2000-01-01T00:00:00Z, 1,            0,          0s,                0001-01-01T00:00:00Z",
			"small,             small,          0,          -1,                  ,                2000-01-01T00:00:00Z, 1,            0,          0s,                2000-01-01T00:00:00Z")
		want("dump_requests?includeRequestDetails=1",
			"PriorityLevelName, FlowSchemaName, QueueIndex, RequestIndexInQueue, FlowDistingsher, ArriveTime,           InitialSeats, FinalSeats, AdditionalLatency, StartTime,            UserName, Verb,   APIPath,               Namespace, Name,   APIVersion, Resource, SubResource",
			"small,             small,          0,          0,                   ,                2000-01-01T00:00:00Z, 1,            0,          0s,                0001-01-01T00:00:00Z, bob,      update, /bob/update/pods/ns/b, ns,        b,      v1,         pods,     ")
		close(g.open)
	})
}

// Names, labels and sums; a registry refuses what is inconsistent.
// flowMetrics are flow control's series: name and labels, without the prefix of the name, and the value or the number of observations.
func flowMetrics(t *testing.T, fc *flowControl) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(fc.dispatcher); err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, label := range m.GetLabel() {
				labels = append(labels, label.GetName()+"="+label.GetValue())
			}
			key := strings.TrimPrefix(family.GetName(), "apiserver_flowcontrol_") + "{" + strings.Join(labels, ",") + "}"
			got[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return got
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &seatGate{open: make(chan struct{})}
		fc := smallFlowControl(nothingStored)
		handler := flowFront(fc.middleware(g))
		for _, target := range []string{"/alice/get/pods/ns/a", "/admin/get/pods/ns/a", "/alice/list/pods/ns", "/bob/update/pods/ns/b", "/late/get/pods/ns/a"} {
			go flowCall(handler, "GET", target)
			synctest.Wait()
			time.Sleep(time.Second)
		}
		values := func() map[string]float64 { return flowMetrics(t, fc) }
		want := func(wanted map[string]float64) {
			t.Helper()
			got := values()
			for key, value := range wanted {
				if v, ok := got[key]; !ok || v != value {
					t.Errorf("%s: %v (%v), want %v", key, v, ok, value)
				}
			}
			if t.Failed() {
				t.Log(got)
			}
		}
		want(map[string]float64{
			"dispatched_requests_total{flow_schema=small,priority_level=small}":                   2,
			"dispatched_requests_total{flow_schema=exempt,priority_level=exempt}":                 1,
			"rejected_requests_total{flow_schema=small,priority_level=small,reason=queue-full}":   1,
			"current_inqueue_requests{flow_schema=small,priority_level=small}":                    1,
			"current_inqueue_seats{flow_schema=small,priority_level=small}":                       1,
			"current_executing_requests{flow_schema=small,priority_level=small}":                  2,
			"current_executing_seats{flow_schema=small,priority_level=small}":                     2,
			"request_wait_duration_seconds{execute=true,flow_schema=small,priority_level=small}":  2,
			"request_wait_duration_seconds{execute=false,flow_schema=small,priority_level=small}": 1,
			"request_queue_length_after_enqueue{flow_schema=small,priority_level=small}":          3,
			"work_estimated_seats{flow_schema=small,priority_level=small}":                        4,
			"watch_count_samples{flow_schema=small,priority_level=small}":                         1,
			"current_limit_seats{priority_level=exempt}":                                          0,
			"upper_limit_seats{priority_level=small}":                                             4,
			"priority_level_seat_utilization{phase=executing,priority_level=small}":               5e9,
			"priority_level_request_utilization{phase=waiting,priority_level=small}":              5e9,
			"priority_level_request_utilization{phase=executing,priority_level=exempt}":           5e9,
			"demand_seats{priority_level=small}":                                                  5e9,
			"read_vs_write_current_requests{phase=waiting,request_kind=mutating}":                 5e9,
			"epoch_advance_total{priority_level=small,success=true}":                              0,
		})
		close(g.open)
		time.Sleep(time.Minute)
		want(map[string]float64{
			"current_inqueue_requests{flow_schema=small,priority_level=small}":               0,
			"current_executing_seats{flow_schema=small,priority_level=small}":                0,
			"dispatched_requests_total{flow_schema=small,priority_level=small}":              3,
			"request_execution_seconds{flow_schema=small,priority_level=small,type=regular}": 3,
		})
	})
}

// The off switch.
func TestMaxInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &seatGate{open: make(chan struct{})}
		handler := flowFront(maxInFlight(2, 1, g))
		for _, target := range []string{"/a/get/pods", "/a/list/pods", "/a/create/pods", "/a/watch/pods", "/a/watch/pods", "/admin/get/pods"} {
			go flowCall(handler, "GET", target)
			synctest.Wait()
		}
		if g.in.Load() != 6 {
			t.Errorf("%d run, want 6", g.in.Load())
		}
		for _, target := range []string{"/a/get/pods", "/a/delete/pods/ns/p"} {
			if w := flowCall(handler, "GET", target); w.Code != 429 || w.Header().Get("Retry-After") != "1" || w.Body.String() != tooManyRequests+"\n" {
				t.Errorf("%s: %d %v", target, w.Code, w.Header())
			}
		}
		close(g.open)
		synctest.Wait()
		if w := flowCall(handler, "GET", "/a/get/pods"); w.Code != 200 {
			t.Errorf("afterwards: %d", w.Code)
		}
	})
}

// A pipeListener hands a server connections that are made in memory, so that the time of a bubble is theirs, too.
type pipeListener struct {
	conns   chan net.Conn
	closed  chan struct{}
	secured bool // TLS
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }
func (l *pipeListener) Close() error   { close(l.closed); return nil }

func (l *pipeListener) dial(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	l.conns <- there
	if l.secured {
		return tls.Client(here, &tls.Config{InsecureSkipVerify: true}), nil
	}
	return here, nil
}

// inBubble serves a handler in the time of a bubble, over TLS if there is a configuration, and gives test a way to connect and a client.
func inBubble(t *testing.T, handler http.Handler, secured *tls.Config, test func(t *testing.T, l *pipeListener, client *http.Client)) {
	synctest.Test(t, func(t *testing.T) {
		l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{}), secured: secured != nil}
		server := &http.Server{Handler: handler, TLSConfig: secured}
		var accepting sync.WaitGroup
		accepting.Go(func() { _ = serving.Accept(server, l) }) // until server.Close
		transport := &http.Transport{DialContext: l.dial, MaxIdleConnsPerHost: 1000}
		test(t, l, &http.Client{Transport: transport})
		transport.CloseIdleConnections()
		_ = server.Close()
		accepting.Wait()
	})
}

// TestSlowReadersDoNotKeepSeats: six that do not read have large responses, and a mouse does not wait for them. In the bubble whoever
// waited for one of them would wait until its time-out.
func TestSlowReadersDoNotKeepSeats(t *testing.T) {
	t.Parallel()
	certFile, keyFile, _ := apitest.ServerCertificate(t)
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	for name, secured := range map[string]*tls.Config{"plain": nil, "tls": {Certificates: []tls.Certificate{pair}}} {
		t.Run(name, func(t *testing.T) { testSlowReaders(t, secured) })
	}
}

func testSlowReaders(t *testing.T, secured *tls.Config) {
	fc := smallFlowControl(nothingStored)
	page := make([]byte, 1<<20)
	handler := flowFront(fc.middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/list/") {
			for range 64 {
				if _, err := w.Write(page); err != nil {
					return
				}
			}
		}
	})))
	inBubble(t, handler, secured, func(t *testing.T, l *pipeListener, client *http.Client) {
		for range 6 {
			conn, _ := l.dial(t.Context(), "", "")
			defer conn.Close()
			_, _ = fmt.Fprint(conn, "GET /slow/list/pods HTTP/1.1\r\nHost: x\r\n\r\n")
			if line, err := bufio.NewReaderSize(conn, 16).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
				t.Fatalf("%q, %v", line, err)
			}
		}
		for range 20 {
			start := time.Now()
			resp, err := client.Get("http://pipe/mouse/get/pods/ns/p")
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if took := time.Since(start); resp.StatusCode != 200 || took > time.Second {
				t.Errorf("the mouse got %d after %v", resp.StatusCode, took)
			}
		}
	})
}

// TestAWaitingPostLeavesWithItsClient over real sockets: long before its minute is over.
func TestAWaitingPostLeavesWithItsClient(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells")
	}
	t.Run("plain", func(t *testing.T) { testWaitingPost(t, (*httptest.Server).Start, net.Dial) })
	t.Run("tls", func(t *testing.T) {
		testWaitingPost(t, (*httptest.Server).StartTLS, func(network, address string) (net.Conn, error) {
			return tls.Dial(network, address, &tls.Config{InsecureSkipVerify: true})
		})
	})
}

func testWaitingPost(t *testing.T, start func(*httptest.Server), dial func(network, address string) (net.Conn, error)) {
	t.Parallel()
	fc, g := smallFlowControl(nothingStored), &seatGate{open: make(chan struct{})}
	server := httptest.NewUnstartedServer(flowFront(fc.middleware(g)))
	server.Config.ConnContext = withConn
	start(server)
	defer server.Close()
	defer close(g.open)
	var conns []net.Conn
	for range 3 {
		conn, err := dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = fmt.Fprint(conn, "POST /alice/create/pods/ns HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nhalf a body")
		conns = append(conns, conn)
	}
	level := func() flowcontrol.LevelState {
		levels := fc.dispatcher.State().Levels
		return levels[slices.IndexFunc(levels, func(l flowcontrol.LevelState) bool { return l.Name == "small" })]
	}
	apitest.WaitFor(t, "the requests", func() bool { l := level(); return l.Waiting == 1 && l.Executing == 2 })
	for _, conn := range conns { // one of the three is the one that waits
		_ = conn.Close()
	}
	apitest.WaitFor(t, "the one whose client has gone to leave the queue", func() bool { return cancelled(fc, "small") == "1" })
}

// cancelled is how many requests of a level have left its queue with their clients, as the dump tells.
func cancelled(fc *flowControl, level string) string {
	var page strings.Builder
	fc.dispatcher.Dump(&page, "dump_priority_levels", false)
	for line := range strings.Lines(page.String()) {
		if cells := strings.Split(line, ","); strings.TrimSpace(cells[0]) == level {
			return strings.TrimSpace(cells[len(cells)-1])
		}
	}
	return ""
}

// TestFlowsShareEvenlyOverHTTP: eight seats are busy for three seconds, and four users of 4 to 256 connections get a quarter each.
func TestFlowsShareEvenlyOverHTTP(t *testing.T) {
	t.Parallel()
	fc := newFlowControl(8, time.Minute, nothingStored)
	level, schema := kubetest.LimitedLevel("level", 10000, 64, 6, 500), kubetest.SchemaFor("level", "*")
	schema.Spec.MatchingPrecedence = 10
	fc.configure(flowcontrol.Objects{Schemas: []*flowcontrolv1.FlowSchema{schema}, Levels: []*flowcontrolv1.PriorityLevelConfiguration{level}})
	const flows, duration, exec = 4, 3 * time.Second, 100 * time.Millisecond
	var served [flows]int32
	handler := flowFront(fc.middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(exec) })))
	inBubble(t, handler, nil, func(t *testing.T, _ *pipeListener, client *http.Client) {
		var wg sync.WaitGroup
		stop := time.Now().Add(duration)
		for i := range flows {
			for range 4 << (2 * i) {
				wg.Go(func() {
					for time.Now().Before(stop) {
						resp, err := client.Get(fmt.Sprintf("http://pipe/user%d/get/pods/ns/p", i))
						if err != nil {
							t.Error(err)
							return
						}
						_, _ = io.Copy(io.Discard, resp.Body)
						_ = resp.Body.Close()
						if !time.Now().After(stop) {
							atomic.AddInt32(&served[i], 1)
						}
						time.Sleep(time.Microsecond) // a client that asks again at once would stop the bubble's time
					}
				})
			}
		}
		wg.Wait()
	})
	total := 0.
	for _, n := range served {
		total += float64(n)
	}
	if full := 8 * float64(duration/exec); total < .95*full || total > full {
		t.Errorf("%v requests of %v: the seats were not busy", total, full)
	}
	for i, n := range served {
		if got := float64(n); !apitest.Nearly(got, total/flows, .1) {
			t.Errorf("flow %d of %d connections got %.0f of %.0f", i, 4<<(2*i), got, total)
		}
	}
}

type discardResponse struct{ header http.Header }

func (w *discardResponse) Header() http.Header         { return w.header }
func (w *discardResponse) Write(p []byte) (int, error) { return len(p), nil }
func (w *discardResponse) WriteHeader(int)             {}

func BenchmarkMiddleware(b *testing.B) {
	fc := newFlowControl(600, time.Minute, nothingStored)
	mandatory, suggested := flowcontrol.MandatoryObjects(), flowcontrol.SuggestedObjects()
	fresh := flowcontrol.Objects{Schemas: append(mandatory.Schemas, suggested.Schemas...), Levels: append(mandatory.Levels, suggested.Levels...)}
	for _, obj := range fresh.Schemas {
		obj.UID = types.UID("uid-of-" + obj.Name)
	}
	fc.configure(fresh)
	handler := fc.middleware(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) }))
	for name, group := range map[string]string{"exempt": "system:masters", "global-default": "system:authenticated"} {
		b.Run(name, func(b *testing.B) {
			r := httptest.NewRequest("GET", "/api/v1/namespaces/ns/pods/p", nil)
			rec := &request.Request{Received: time.Now(), User: request.User{Name: "alice", Groups: []string{group}},
				Info: request.Info{ResourceRequest: true, Verb: "get", Version: "v1", Resource: "pods", Namespace: "ns", Name: "p"}}
			r = r.WithContext(context.WithValue(r.Context(), request.Key{}, rec))
			w := &discardResponse{http.Header{}}
			b.ReportAllocs()
			defer apitest.ProcessorTime(b)()
			for b.Loop() {
				handler.ServeHTTP(w, r)
			}
		})
	}
}

// What asks about a moment is weighed as the same request now; no path of the past is a probe.
func TestThePastIsClassifiedLikeThePresent(t *testing.T) {
	t.Parallel()
	s, _ := startTLS(t)
	schemas := map[string]string{}
	for _, item := range s.want(200, "GET", "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas", "", "Authorization: Bearer root-token").get("items").Array() {
		schemas[item.Get("metadata.uid").String()] = item.Get("metadata.name").String()
	}
	schema := func(path string, headers ...string) string {
		return schemas[s.send("GET", path, "", headers...).header.Get("X-Kubernetes-Pf-Flowschema-Uid")]
	}
	bob := "Authorization: Bearer bob-token"
	for _, c := range []struct{ path, now, then, who string }{
		{"/readyz", "probes", "global-default", "X-Nobody: x"}, {"/version", "global-default", "global-default", "X-Nobody: x"}, {"/readyz", "probes", "global-default", bob},
		{"/api/v1/configmaps", "global-default", "global-default", bob}, {"/apis/coordination.k8s.io/v1/leases", "global-default", "global-default", bob},
	} {
		if got := schema(c.path, c.who); got != c.now {
			t.Errorf("%s: %s", c.path, got)
		}
		if got := schema(history.PathAt+"5"+c.path, c.who); got != c.then {
			t.Errorf("%s in the past: %s, want %s", c.path, got, c.then)
		}
	}
	fc := &flowControl{stored: func(_, resource, _ string) (int64, int64) {
		if resource == "gone" {
			return -1, 0
		}
		return 1000, 10_000_000
	}}
	for path, want := range map[string]int{"/api/v1/configmaps": 100, "/api/v1/configmaps?resourceVersion=0": 100, "/api/v1/configmaps?limit=20": 2, "/api/v1/gone": 10, "/api/v1/namespaces/x/configmaps/m": 1} {
		if got := fc.estimate(&request.Request{Moment: "5", Info: recordOf("GET", path).Info}).InitialSeats; got != want {
			t.Errorf("%s: %d seats, want %d", path, got, want)
		}
	}
}

// recordOf is the record of somebody's request.
func recordOf(method, path string) *request.Request {
	r := httptest.NewRequest(method, path, nil)
	return &request.Request{Info: request.Parse(r), User: request.User{Name: "carol"}, Agent: "looper/1"}
}

func autoFlow(c *config) { c.MaxReadonly, c.MaxMutating = options.AutoSeats, options.AutoSeats }

// A server that finds its seats shows what it knows; requests take part in it by what they did themselves, and a create that a webhook delays is
// expected to take as long again, but to be no wider.
func TestServerThatFindsItsSeats(t *testing.T) {
	t.Parallel()
	s := startTest(t, autoFlow)
	const delay = 50 * time.Millisecond
	s.validateSlowly(delay)
	const maps = "/api/v1/namespaces/default/configmaps"
	as := []string{"Impersonate-User", "alice"}
	for _, name := range []string{"a", "b", "c"} {
		s.want(201, "POST", maps, configMap(name), as...)
	}
	for range 3 {
		s.want(200, "GET", maps, "", as...)
	}
	info := request.Parse(httptest.NewRequest("POST", maps, nil))
	if est := s.fc.estimate(&request.Request{Info: info}); est.InitialSeats != 1 || est.ExpectedDuration < delay {
		t.Errorf("a create that took more than %v is estimated at %+v", delay, est)
	}
	if seats := metricValue(s, "apilet_flowcontrol_auto_seats"); seats < 1 {
		t.Errorf("%v seats", seats)
	}
	if page := string(s.want(200, "GET", "/debug/api_priority_and_fairness/dump_seats", "").body); !strings.HasPrefix(page, "Seats,") {
		t.Errorf("the dump is %q", page)
	}
	all := string(s.want(200, "GET", "/metrics", "").body)
	for _, name := range []string{"seats", "goodput_seats", "in_use_seats", "efficiency", "headroom", "run_delay_seconds", "probes_total"} {
		if !strings.Contains(all, "\napilet_flowcontrol_auto_"+name+" ") {
			t.Errorf("no metric %s", name)
		}
	}
	given := newFlowControl(600, time.Minute, nothingStored)
	if code := flowCall(http.HandlerFunc(given.serveDump), "GET", "/debug/api_priority_and_fairness/dump_seats").Code; code != 404 {
		t.Errorf("the dump of a given number of seats: %d", code)
	}
}

// validateSlowly has a webhook allow all ConfigMaps after a while.
func (s *testServer) validateSlowly(delay time.Duration) {
	s.t.Helper()
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		time.Sleep(delay)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":%q,"allowed":true}}`, gjson.GetBytes(body, "request.uid"))
	}))
	s.t.Cleanup(hook.Close)
	bundle, _ := json.Marshal(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw}))
	s.want(201, "POST", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", fmt.Sprintf(`{"metadata":{"name":"slow"},"webhooks":[{
		"name":"slow.example.com","admissionReviewVersions":["v1"],"sideEffects":"None","clientConfig":{"url":"%s/","caBundle":%s},
		"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"]}]}]}`, hook.URL, bundle))
}

// Requests of a verb, a resource, a scope and a width are a class.
func TestWorkClasses(t *testing.T) {
	t.Parallel()
	seen := map[uint64]string{}
	for _, target := range []string{"GET /api/v1/pods", "GET /api/v1/namespaces/a/pods", "GET /api/v1/namespaces/a/pods/x", "GET /api/v1/namespaces/a/pods/x/status",
		"GET /apis/apps/v1/deployments", "POST /api/v1/namespaces/a/pods", "PUT /api/v1/namespaces/a/pods/x", "GET /livez"} {
		method, path, _ := strings.Cut(target, " ")
		info := request.Parse(httptest.NewRequest(method, path, nil))
		for _, seats := range []int{0, 1, 2, 8} {
			class := workClass(&request.Request{Info: info}, seats)
			if old, twice := seen[class]; twice {
				t.Errorf("%s with %d seats is as %s", target, seats, old)
			}
			seen[class] = target
		}
		other := request.Parse(httptest.NewRequest(method, strings.ReplaceAll(strings.ReplaceAll(path, "/a/", "/b/"), "/x", "/y"), nil))
		if workClass(&request.Request{Info: info}, 9) != workClass(&request.Request{Info: other}, 15) {
			t.Errorf("another object than that of %s is of another class", target)
		}
	}
}

// ---- Clients that ask for much and take little ----

// slowRoutes are requests for every kind of answer; what lies behind the verb is the path, and what behind that is a body or a header.
var slowRoutes = []string{
	"GET /api/v1/namespaces/default/podtemplates/big",
	"GET /api/v1/namespaces/default/podtemplates/big?pretty=1",
	"GET /api/v1/namespaces/default/podtemplates/big yaml",
	"GET /api/v1/namespaces/default/podtemplates/big protobuf",
	"GET /api/v1/podtemplates",
	"GET /api/v1/podtemplates?limit=500",
	"GET /api/v1/podtemplates?pretty=1",
	"GET /api/v1/podtemplates yaml",
	"GET /api/v1/podtemplates table",
	"GET /api/v1/podtemplates protobuf",
	"GET /api/v1/podtemplates?watch=1",
	"GET /api/v1/podtemplates?watch=1&resourceVersion=1",
	"GET /api/v1/podtemplates?watch=1 protobuf",
	"GET /api/v1/podtemplates?watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
	"GET /api/v1/watch/namespaces/default/podtemplates/big",
	"PATCH /api/v1/namespaces/default/podtemplates/big?dryRun=All patch",
	"PATCH /api/v1/namespaces/default/podtemplates/big patch",
	"PUT /api/v1/namespaces/default/podtemplates/big upload",
	"POST /api/v1/namespaces/default/podtemplates upload",
	"DELETE /api/v1/namespaces/default/podtemplates?dryRun=All",
	"GET /at/REV/api/v1/podtemplates",
	"GET /debug/history?objects=true",
	"GET /debug/history?follow=true&objects=true",
	"GET /debug/history?follow=true&tail=10&objects=true",
	"GET /debug/history?follow=true&tail=10&objects=true&sse=1",
	"GET /debug/history?tail=100",
	"GET /debug/ui/",
	"GET /debug/ui/data",
	"GET /debug/backup",
	"GET /debug/findings",
	"GET /debug/deprecations",
	"GET /debug/api_priority_and_fairness/dump_requests?includeRequestDetails=1",
	"GET /metrics",
	"GET /openapi/v2",
	"GET /openapi/v3",
	"GET /openapi/v3/apis/apps/v1",
	"GET /api/v1",
	"GET /apis aggregated",
	"GET /apis?pretty=1",
	"GET /version",
	"GET /nowhere",
}

// slowRequest is one of slowRoutes as it goes over the wire.
func slowRequest(route string, rev int64, user string) string {
	method, path, _ := strings.Cut(route, " ")
	path, kind, _ := strings.Cut(strings.ReplaceAll(path, "REV", fmt.Sprint(rev)), " ")
	head, body := "", ""
	switch kind {
	case "yaml":
		head = "Accept: application/yaml\r\n"
	case "protobuf":
		head = "Accept: application/vnd.kubernetes.protobuf\r\n"
	case "table":
		head = "Accept: application/json;as=Table;g=meta.k8s.io;v=v1\r\n"
	case "aggregated":
		head = "Accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList\r\n"
	case "patch":
		body = `{"metadata":{"labels":{"a":"b"}}}`
		head = fmt.Sprintf("Content-Type: application/merge-patch+json\r\nContent-Length: %d\r\n", len(body))
	case "upload": // which ends in the middle
		body = `{"metadata":{"name":"up","annotations":{"a":"`
		head = "Content-Length: 2000000\r\n"
	}
	return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nImpersonate-User: %s\r\n%s\r\n%s", method, path, user, head, body)
}

// storeLarge makes a PodTemplate with so many bytes of text, as many patches can.
func (s *testServer) storeLarge(name string, size int) {
	s.t.Helper()
	s.want(201, "POST", "/api/v1/namespaces/default/podtemplates", `{"metadata":{"name":"`+name+`"},"template":{"spec":{"containers":[{"name":"c","image":"i"}]}}}`)
	rec, err := s.st.Get("//podtemplates/default/" + name)
	if err != nil {
		s.t.Fatal(err)
	}
	json, revAt := scheme.WithoutRevision(rec.JSON)
	json = bytes.Replace(json, []byte(`"image":"i"`), []byte(`"image":"`+strings.Repeat("i", size)+`"`), 1)
	if _, err := s.st.Commit(s.t.Context(), store.Change{Op: store.OpUpdate, Key: rec.Key, Expect: rec.Rev, JSON: json, RevAt: revAt}); err != nil {
		s.t.Fatal(err)
	}
}

// overPipes serves what a server serves over connections in memory, which hold nothing that is not read, and counts the requests that run.
func overPipes(s *testServer) (l *pipeListener, running *atomic.Int32) {
	running = &atomic.Int32{}
	l = &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	front := &http.Server{ConnContext: withConn, ErrorLog: s.http.ErrorLog, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		running.Add(1)
		defer running.Add(-1)
		r.RemoteAddr = "127.0.0.1:1"
		s.http.Handler.ServeHTTP(w, r)
	})}
	ended := make(chan struct{})
	go func() { // until front.Close
		defer close(ended)
		_ = front.Serve(l)
	}()
	s.t.Cleanup(func() {
		_ = front.Close()
		<-ended
		apitest.WaitFor(s.t, "the requests to end", func() bool { return running.Load() == 0 })
	})
	return l, running
}

// seatsHeld is how many requests have seats, and how many were given some so far, but for the exempt.
func (s *testServer) seatsHeld() (executing int, dispatched uint64) {
	for _, l := range s.fc.dispatcher.State().Levels {
		if !l.Exempt {
			executing, dispatched = executing+l.Executing, dispatched+l.Dispatched
		}
	}
	return executing, dispatched
}

// TestSlownessHoldsNoSeat: whatever is asked for, a client that reads nothing, or a byte now and then, soon has no seat. There are three.
func TestSlownessHoldsNoSeat(t *testing.T) {
	t.Parallel()
	s := startTest(t, func(c *config) { c.MaxReadonly, c.MaxMutating = 2, 1 })
	for i := range 100 {
		s.want(201, "POST", "/api/v1/namespaces/default/configmaps", configMap(fmt.Sprint("c", i), "k", strings.Repeat("x", 1000)))
	}
	s.storeLarge("big", 1<<20)
	l, running := overPipes(s)
	dial := func(context.Context, string, string) (net.Conn, error) { return l.dial(context.Background(), "", "") }
	others := &http.Client{Transport: &http.Transport{DialContext: dial}}
	defer others.CloseIdleConnections()
	for i, route := range slowRoutes {
		_, before := s.seatsHeld()
		conn, _ := l.dial(t.Context(), "", "")
		defer conn.Close()
		if _, err := io.WriteString(conn, slowRequest(route, s.st.Revision(), "alice")); err != nil {
			t.Fatal(err)
		}
		if i%2 == 1 {
			go trickle(conn)
		}
		apitest.WaitFor(t, route+" to lend its seats", func() bool {
			executing, dispatched := s.seatsHeld()
			return dispatched > before && executing == 0
		})
		for _, user := range []string{"bob", "system:serviceaccount:default:robot"} { // of her level, and of another
			r, _ := http.NewRequest("GET", "http://127.0.0.1/api/v1/namespaces/default/configmaps/c1", nil)
			r.Header.Set("Impersonate-User", user)
			resp, err := others.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != 200 {
				t.Errorf("beside %s, %s gets %d", route, user, resp.StatusCode)
			}
		}
	}
	t.Logf("%d requests run, and none has a seat", running.Load())
	if n := running.Load(); int(n) < len(slowRoutes)/2 {
		t.Errorf("%d of %d requests are slow: this tests little", n, len(slowRoutes))
	}
}

// trickle reads a byte now and then, until the connection is closed.
func trickle(conn net.Conn) {
	for b := make([]byte, 1); ; time.Sleep(20 * time.Millisecond) {
		if _, err := conn.Read(b); err != nil {
			return
		}
	}
}

// TestLargeAnswersHaveOneBound: two dozen connections ask for four megabytes each and read nothing. What is held is one user's share, and others get theirs.
func TestLargeAnswersHaveOneBound(t *testing.T) {
	const n, size = 24, 4 << 20
	s := startTest(t)
	s.storeLarge("big", size)
	for i, route := range []string{
		"GET /api/v1/namespaces/default/podtemplates/big",
		"GET /api/v1/namespaces/default/podtemplates/big protobuf",
		"GET /api/v1/namespaces/default/podtemplates/big?pretty=1",
		"GET /at/REV/api/v1/namespaces/default/podtemplates/big",
		"GET /api/v1/podtemplates",
		"GET /api/v1/podtemplates protobuf",
		"GET /api/v1/podtemplates?watch=1",
		"GET /api/v1/podtemplates?watch=1&resourceVersion=BEFORE",
		"GET /debug/history?follow=true&tail=5&objects=true",
		"PATCH /api/v1/namespaces/default/podtemplates/big patch",
		"PATCH /api/v1/namespaces/default/podtemplates/big?dryRun=All patch",
	} {
		if i%apitest.Every(4) != 0 {
			continue
		}
		t.Run(route, func(t *testing.T) {
			l, running := overPipes(&testServer{t: t, server: s.server, inside: s.inside})
			before, rev := heldMemory(), s.st.Revision()
			for range n {
				conn, _ := l.dial(t.Context(), "", "")
				t.Cleanup(func() { conn.Close() })
				request := slowRequest(strings.Replace(route, "BEFORE", fmt.Sprint(rev-1), 1), rev, "alice")
				if _, err := io.WriteString(conn, request); err != nil {
					t.Fatal(err)
				}
			}
			apitest.WaitFor(t, "the requests", func() bool { return running.Load() == n })
			for _, user := range []string{"Impersonate-User: bob", ""} {
				s.want(200, "GET", "/api/v1/namespaces/default/podtemplates/big", "", user)
			}
			expectMemory(t, before, 48<<20)
		})
	}
}

// heldMemory is what this process, its servers among it, holds in heap and stacks.
func heldMemory() int64 {
	runtime.GC()
	runtime.GC() // pools give way at the second
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc + stats.StackInuse)
}

// expectMemory waits until at most limit bytes more than before are held. Blocked requests release the
// memory that they needed until then, but not at a known time.
func expectMemory(t *testing.T, before, limit int64) {
	t.Helper()
	var grown int64
	apitest.WaitFor(t, fmt.Sprintf("at most %d KiB more to be held", limit>>10), func() bool {
		grown = heldMemory() - before
		return grown <= limit
	}, func() any { return fmt.Sprintf("%d KiB", grown>>10) })
	t.Logf("held: %d KiB more", grown>>10)
}
