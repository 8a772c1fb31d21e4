package etcd

// This file stops servers in various states.

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"apilet/apilettest"
)

// ends sends signals to a process, which must exit in time with a code. It returns the process's
// output after the first signal.
func (p *process) ends(t *testing.T, code int, signals ...syscall.Signal) string {
	t.Helper()
	before, begin := len(p.Log()), time.Now()
	for _, signal := range signals {
		if err := p.Process().Signal(signal); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-p.Process().Done:
	case <-time.After(patience):
		_ = p.Process().Signal(syscall.SIGQUIT)
		<-p.Process().Done
		t.Fatalf("it has not ended after %v:\n%s", patience, p.Log())
	}
	text := p.Log()[before:]
	if got := p.Process().State().ExitCode(); got != code {
		t.Errorf("it ends with %d, want %d, after %v:\n%s", got, code, time.Since(begin), text)
	}
	t.Logf("ended after %v", time.Since(begin).Round(time.Millisecond))
	return text
}

func says(t *testing.T, text string, want ...string) {
	t.Helper()
	for _, part := range want {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in\n%s", part, text)
		}
	}
}

const hasTheLease = "this server is the leader"

// TestServersStopWithoutEtcd stops the leader, a server that is waiting for the lease, and a server
// that is waiting for etcd. Afterwards all acknowledged writes must be there.
func TestServersStopWithoutEtcd(t *testing.T) {
	t.Parallel()
	for _, how := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		// the lease lasts five seconds, and a server tries to renew it for ten
		for _, after := range []time.Duration{0, 12 * time.Second} {
			t.Run(fmt.Sprint(how, " ", after), func(t *testing.T) {
				t.Parallel()
				c := startCluster(t, 1)
				a := c.startServer()
				apilettest.Until(t, "it leads", func() error {
					if !strings.Contains(a.Log(), hasTheLease) {
						return fmt.Errorf("not yet")
					}
					return nil
				})
				b := c.startServer()
				a.do(201, "POST", maps, aMap("by-a", "1", ""))
				b.do(201, "POST", maps, aMap("by-b", "1", ""))
				if strings.Contains(b.Log(), hasTheLease) {
					t.Fatal("both lead")
				}
				c.members[0].signal(how)
				time.Sleep(after)
				waiting := c.aServer()
				waiting.Launch()
				defer waiting.Kill()
				apilettest.Until(t, "it waits for etcd", func() error {
					if !strings.Contains(waiting.Log(), "etcd does not respond; retrying") {
						return fmt.Errorf("it says %s", waiting.Log())
					}
					return nil
				})
				var stopping sync.WaitGroup
				for _, s := range []*server{a, b} {
					stopping.Go(func() { s.ends(t, 0, syscall.SIGTERM) })
				}
				stopping.Wait()
				text := waiting.ends(t, 0, syscall.SIGTERM)
				says(t, text, "the server was stopped before it was ready", "until the server was stopped")
				if strings.Contains(text, "1m0s") {
					t.Errorf("it says\n%s", text)
				}
				if how == syscall.SIGSTOP {
					c.members[0].Resume()
				} else {
					c.members[0].Launch()
				}
				a.Launch()
				a.ready()
				a.do(200, "GET", maps+"/by-a", "")
				a.do(200, "GET", maps+"/by-b", "")
			})
		}
	}
}

// TestServersStopBehind checks that a server can be stopped while its replica is not up to date,
// because etcd does not respond or the disk is full.
func TestServersStopBehind(t *testing.T) {
	t.Parallel()
	t.Run("stalled", func(t *testing.T) {
		t.Parallel()
		c := startCluster(t, 1)
		behind, proxies := c.through()
		a, b := behind.startServer(), c.startServer()
		proxies[0].Stall()
		b.do(201, "POST", maps, aMap("later", "1", ""))
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			_, _, _ = a.try("GET", maps, "", patience)
		}()
		a.ends(t, 0, syscall.SIGTERM)
		<-asked
	})
	t.Run("full", func(t *testing.T) {
		t.Parallel()
		c := startCluster(t, 1)
		whole, small := c.startServer(), c.aServer()
		small.onOwnDisk(16<<20, 10<<20)
		small.run()
		for i := range 30 {
			whole.do(201, "POST", maps, aMap(fmt.Sprint("much-", i), strings.Repeat("x", 300<<10), ""))
		}
		apilettest.Until(t, "the replica cannot keep up", func() error {
			code, text, err := small.try("GET", "/readyz?verbose", "", patience)
			if err != nil || code == 200 || !strings.Contains(text, "[-]etcd") {
				return fmt.Errorf("%d %s %v", code, text, err)
			}
			return nil
		})
		if err := small.Process().Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		select {
		// the code depends on whether the end could be written to the disk
		case <-small.Process().Done:
		case <-time.After(patience):
			t.Fatal("it does not end")
		}
	})
}

// hangs returns a server that is processing two requests that never finish: a webhook does not
// respond to a write, and a client does not read the response of a list.
func hangs(t *testing.T) *server {
	t.Helper()
	s := startOnFile(t, filepath.Join(t.TempDir(), "data.db"))
	for i := range 12 {
		s.do(201, "POST", maps, aMap(fmt.Sprint("much-", i), strings.Repeat("x", 900<<10), ""))
	}
	called, released := make(chan struct{}), make(chan struct{})
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(called)
		<-released
	}))
	t.Cleanup(hook.Close)
	t.Cleanup(func() { close(released) })
	s.do(201, "POST", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", fmt.Sprintf(`{"metadata":{"name":"hangs"},"webhooks":[{
		"name":"hangs.example.com","sideEffects":"None","admissionReviewVersions":["v1"],"timeoutSeconds":30,"clientConfig":{"url":%q,"caBundle":%q},
		"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["secrets"]}]}]}`, hook.URL, vouching(hook)))
	go func() {
		_, _, _ = s.try("POST", "/api/v1/namespaces/default/secrets", `{"metadata":{"name":"hangs"}}`, patience)
	}()
	<-called
	deaf, err := net.Dial("tcp", strings.TrimPrefix(s.URL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deaf.Close() })
	_ = deaf.(*net.TCPConn).SetReadBuffer(4096)
	fmt.Fprintf(deaf, "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", maps)
	if _, err := deaf.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return s
}

// vouching returns the certificate of a server as a caBundle.
func vouching(s *httptest.Server) string {
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

// TestServersStopWithRequestsThatHang checks that hanging requests are canceled after a time limit,
// and that a second signal of either kind ends the process immediately.
func TestServersStopWithRequestsThatHang(t *testing.T) {
	t.Parallel()
	for name, signals := range map[string][]syscall.Signal{"told once": {syscall.SIGTERM}, "told twice": {syscall.SIGTERM, syscall.SIGTERM},
		"interrupted": {syscall.SIGTERM, syscall.SIGINT}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := hangs(t)
			if len(signals) == 1 {
				says(t, s.ends(t, 0, signals...), "shutdown: closing the connections of unfinished requests", "connections=2", "waited=20s")
			} else {
				_ = s.Process().Signal(signals[0])
				apilettest.Until(t, "it is stopping", func() error {
					if !strings.Contains(s.Log(), "stopping") {
						return fmt.Errorf("not yet")
					}
					return nil
				})
				says(t, s.ends(t, 1, signals[1]), "the server was told a second time to stop", "exiting now, without waiting")
			}
			s.Launch()
			s.ready()
			s.do(404, "GET", "/api/v1/namespaces/default/secrets/hangs", "")
			s.do(200, "GET", maps+"/much-11", "")
			says(t, s.ends(t, 0, syscall.SIGTERM), "stopping")
		})
	}
}

// TestServersStopUnderLoad checks that acknowledged writes are not lost when a server is stopped by
// one or two signals.
func TestServersStopUnderLoad(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"file", "etcd"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			var s *server
			if where == "etcd" {
				s = startCluster(t, 1).startServer()
			} else {
				s = startOnFile(t, filepath.Join(t.TempDir(), "data.db"))
			}
			var answered []string
			for round := range 2 {
				var mu sync.Mutex // guards answered
				var writing sync.WaitGroup
				enough := make(chan struct{})
				var once sync.Once
				for i := range 16 {
					writing.Go(func() {
						for n := 0; ; n++ {
							name := fmt.Sprintf("o-%d-%d-%d", round, i, n)
							code, _, err := s.try("POST", maps, aMap(name, "1", ""), patience)
							if err != nil {
								return
							}
							if code == 201 {
								mu.Lock()
								answered = append(answered, name)
								mu.Unlock()
							}
							if n == 20 {
								once.Do(func() { close(enough) })
							}
						}
					})
				}
				<-enough
				if round == 0 {
					s.ends(t, 0, syscall.SIGTERM)
				} else {
					_ = s.Process().Signal(syscall.SIGTERM)
					// may arrive after the process has ended
					_ = s.Process().Signal(syscall.SIGINT)
					<-s.Process().Done
				}
				writing.Wait()
				s.Launch()
				s.ready()
				there := map[string]bool{}
				for _, o := range read(t, s.do(200, "GET", maps, "")).Items {
					there[o.Metadata.Name] = true
				}
				for _, name := range answered {
					if !there[name] {
						t.Errorf("%s was answered, and is not there", name)
					}
				}
			}
		})
	}
}
