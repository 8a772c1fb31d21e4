package main

// This file has clients that ask for much and take little, at every kind of answer that there is: what they hold, and who waits for them.

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"apilet/internal/apitest"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

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

// seatsHeld returns the number of requests that have seats now, that have been given seats so far, and that have been rejected. Exempt requests
// do not count.
func (s *testServer) seatsHeld() (executing int, dispatched, rejected uint64) {
	for _, l := range s.fc.dispatcher.State().Levels {
		if !l.Exempt {
			executing, dispatched, rejected = executing+l.Executing, dispatched+l.Dispatched, rejected+l.Rejected
		}
	}
	return executing, dispatched, rejected
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
		_, before, _ := s.seatsHeld()
		conn, _ := l.dial(t.Context(), "", "")
		defer conn.Close()
		if _, err := io.WriteString(conn, slowRequest(route, s.st.Revision(), "alice")); err != nil {
			t.Fatal(err)
		}
		if i%2 == 1 {
			go trickle(conn)
		}
		apitest.WaitFor(t, route+" to lend its seats", func() bool {
			executing, dispatched, _ := s.seatsHeld()
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
	for _, route := range []string{
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

// TestStreamsThatNobodyReads: many streams of one HTTP/2 connection are as many requests, and a connection that is stuck ends.
func TestStreamsThatNobodyReads(t *testing.T) {
	const n, size = 40, 4 << 20
	for _, deaf := range []bool{false, true} {
		s, _ := startTLS(t, func(c *config) {
			if c.MaxReadonly, c.MaxMutating = 2, 1; deaf {
				c.RequestTimeout = 4 * time.Second // after which the stuck connection ends
			}
		})
		s.headers = []string{"Authorization: Bearer root-token"}
		s.storeLarge("big", size)
		s.want(201, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `{"metadata":{"name":"all"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io",
			"kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"system:authenticated"}]}`)
		before := heldMemory()
		c := dialDeafH2(t, s)
		if !deaf { // it reads, but makes no room for more
			go io.Copy(io.Discard, c.Conn) // until it is closed
		} else { // it makes room for everything, and does not read
			c.frame(h2Settings, 0, 0, []byte{0, 4, 0x7f, 0xff, 0xff, 0xff})
			c.frame(h2WindowUpdate, 0, 0, []byte{0x7f, 0xff, 0, 0})
		}
		c.token = "bob-token"
		for i := range n {
			c.get([]string{"/api/v1/podtemplates?watch=1", "/api/v1/podtemplates", "/api/v1/namespaces/default/podtemplates/big"}[i%3], h2EndStream|h2EndHeaders)
		}
		if err := c.send(); err != nil {
			t.Fatal(err)
		}
		apitest.WaitFor(t, "the requests to lend their seats", func() bool {
			executing, dispatched, rejected := s.seatsHeld() // a busy machine may keep requests waiting until they are rejected
			return executing == 0 && dispatched+rejected >= n
		}, func() any { return s.fc.dispatcher.State().Levels })
		apitest.WaitFor(t, "another request to be served", func() bool {
			return s.send("GET", "/api/v1/namespaces/default/configmaps?limit=1", "").code == 200
		})
		expectMemory(t, before, 48<<20)
		if !deaf {
			c.Close()
		}
		apitest.WaitFor(t, "the requests to end", func() bool {
			return metricValue(s, `apiserver_current_inflight_requests{request_kind="readOnly"}`) <= 1 && metricSum(s, "apiserver_longrunning_requests{") == 0
		})
	}
}
