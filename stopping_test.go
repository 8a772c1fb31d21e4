package main

// This file: stopping has a bound, whatever hangs in a server. That the process ends, too, is tested on real ones in testdata/etcd.

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"apilet/internal/apitest"
	"apilet/internal/drain"
	"apilet/internal/health"
)

// stopInTime stops a server. Nothing of it may wait without a bound.
func (s *testServer) stopInTime(t *testing.T) (err error) {
	t.Helper()
	s.stopped = true
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	select {
	case err := <-stopped:
		return err
	case <-apitest.Timeout(t):
		t.Fatal("the server does not stop")
		return nil
	}
}

// startHasty starts a server that waits for little when it stops, and tells warnings.
func startHasty(t *testing.T, edit ...func(*config)) (s *testServer, log *apitest.Log) {
	log = &apitest.Log{}
	return startTest(t, append(edit, func(c *config) {
		c.grace = 200 * time.Millisecond
		c.log = zerolog.New(log)
	})...), log
}

// A handler that does not look at its context, and a reader that does not read, have their connections cut.
func TestStoppingCutsRequestsThatDoNotEnd(t *testing.T) {
	t.Parallel()
	s, log := startHasty(t)
	begun, released := make(chan struct{}), make(chan struct{})
	defer close(released)
	served := s.http.Handler
	s.http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/computes" {
			close(begun)
			<-released
		}
		served.ServeHTTP(w, r)
	})
	cut := make(chan error, 1)
	go func() {
		_, err := s.try("GET", "/computes", "")
		cut <- err
	}()
	<-begun
	s.fill(20, 400<<10) // more than the kernel takes for a reader
	deaf := s.deaf("GET /api/v1/configmaps HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
	defer deaf.Close()
	apitest.WaitFor(t, "both requests to be served", func() bool { return s.entrance.resting.Busy() == 2 })
	if err := s.stopInTime(t); err != nil {
		t.Error(err)
	}
	if err := <-cut; err == nil {
		t.Error("the request was answered")
	}
	if text := log.String(); !strings.Contains(text, `"connections":2`) || !strings.Contains(text, "shutdown: closing the connections of requests that do not end") {
		t.Errorf("the log says\n%s", text)
	}
}

// Background work that hangs is named, and the file is closed without it.
func TestStoppingGivesUpWork(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "data.db")
	s, log := startHasty(t, onFile(path))
	s.want(201, "POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"kept"}}`)
	released := make(chan struct{})
	defer close(released)
	s.work.Go("a piece that hangs", func() { <-released })
	if err := s.stopInTime(t); err != nil {
		t.Error(err)
	}
	if text := log.String(); !strings.Contains(text, "a piece that hangs") || !strings.Contains(text, "did not end within 40ms") {
		t.Errorf("the log says\n%s", text)
	}
	s.start()
	s.stopped = false
	s.want(200, "GET", "/api/v1/namespaces/default/configmaps/kept", "")
}

// A disk that takes a commit and never says that it has it: the file is left as it is, with all that was answered in it.
func TestStoppingGivesUpTheDisk(t *testing.T) {
	t.Parallel()
	path, commits, released := filepath.Join(t.TempDir(), "data.db"), make(chan struct{}, 1), make(chan struct{})
	hangs := make(chan struct{})
	s, _ := startHasty(t, onFile(path), func(c *config) {
		c.clock = func() time.Time { // a commit asks when it is
			select {
			case <-hangs:
				select {
				case commits <- struct{}{}:
				default:
				}
				<-released
			default:
			}
			return time.Now()
		}
	})
	const maps = "/api/v1/namespaces/default/configmaps"
	s.want(201, "POST", maps, `{"metadata":{"name":"answered"}}`)
	close(hangs)
	cut := make(chan error, 1)
	go func() {
		_, err := s.try("PATCH", maps+"/answered", `{"data":{"un":"answered"}}`, "Content-Type: application/merge-patch+json") // the commit alone asks
		cut <- err
	}()
	<-commits
	err := s.stopInTime(t)
	if !errors.Is(err, drain.ErrUnfinished) || !strings.Contains(err.Error(), "closing the data file") {
		t.Errorf("got %v", err)
	}
	if err := <-cut; err == nil {
		t.Error("the write was answered")
	}
	close(released)
	_ = s.st.Close() // waits for the one that was not waited for
	s.start()
	s.stopped = false
	s.want(200, "GET", maps+"/answered", "")
}

// A server that leaves serves on for its delay, watches among it, and has each client connect anew; a failure ends the delay.
func TestServerThatLeavesServesOn(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			s, _ := startTLS(t)
			transport, root := s.client.Transport.(*http.Transport), "Authorization: Bearer root-token"
			if transport.ForceAttemptHTTP2 = protocol == "HTTP/2.0"; !transport.ForceAttemptHTTP2 {
				transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
			}
			const maps = "/api/v1/namespaces/default/configmaps"
			anew := func(method, path, body string, code int) (connected bool) { // whether it had to connect
				t.Helper()
				request, _ := http.NewRequest(method, s.url+path, strings.NewReader(body))
				request.Header.Set("Authorization", "Bearer root-token")
				answer, err := s.client.Do(request.WithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
					GotConn: func(c httptrace.GotConnInfo) { connected = !c.Reused }})))
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
				if answer.StatusCode != code || answer.Proto != protocol {
					t.Errorf("%s %s: %s over %s, want %d", method, path, answer.Status, answer.Proto, code)
				}
				return connected
			}
			watch := s.watch(maps+"?watch=1", root)
			anew("GET", "/readyz", "", 200)
			if anew("GET", "/readyz", "", 200) {
				t.Error("before it leaves, a connection ends with its answer")
			}
			left := make(chan struct{})
			go func() {
				s.sendAway(time.Hour)
				close(left)
			}()
			<-s.leave.leaving
			anew("GET", "/readyz", "", 500)
			apitest.WaitFor(t, "the answer to end the connection", func() bool { return anew("GET", "/livez", "", 200) })
			anew("POST", maps, `{"metadata":{"name":"late"}}`, 201)
			for told := ""; told != "ADDED late"; {
				f := watch.next()
				if told = f.String(); f.kind == "" || f.kind == "ERROR" {
					t.Fatalf("the watch ends: %s", told)
				}
			}
			if why := string(s.send("GET", "/readyz?verbose", "", root).body); !strings.Contains(why, "[-]shutdown failed: process is shutting down") {
				t.Error(why)
			}
			select {
			case <-left:
				t.Error("it has left")
			default:
			}
			cause := errors.New("of the test")
			s.failed <- cause
			<-left
			if err := <-s.failed; err != cause {
				t.Error(err)
			}
			if err := s.stopInTime(t); err != nil {
				t.Error(err)
			}
		})
	}
}

// A server that serves proves its life, on each kind of address; one whose listener is closed does not.
func TestProofOfLife(t *testing.T) {
	t.Parallel()
	for _, listen := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::1]:0"} {
		if probe, err := net.Listen("tcp", listen); err != nil {
			t.Log(err)
			continue
		} else {
			probe.Close()
		}
		s := startTest(t, func(c *config) {
			c.Listen, c.CertDir = listen, filepath.Join(t.TempDir(), "certs")
			c.Auth.Anonymous = false // a 401 is an answer
		})
		for range 2 {
			if err := s.alive(t.Context()); err != nil {
				t.Error(listen, err)
			}
		}
		s.halt()
		if err := s.alive(t.Context()); err == nil {
			t.Error(listen, "a server that has stopped proves its life")
		}
	}
	mute, err := net.Listen("tcp", "127.0.0.1:0") // accepts in the kernel, and answers nothing
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := health.NewProbe(mute.Addr().(*net.TCPAddr).AddrPort(), false).Ask(ctx, "/livez"); err == nil {
		t.Error("a server that answers nothing proves its life")
	}
}
