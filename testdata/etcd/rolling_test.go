package etcd

// This file tests a rolling restart of three servers behind a load balancer. Clients must not
// notice it. The balancer is HAProxy with the configuration of docs/scale.md. It is found in the
// PATH or by the variable HAPROXY. Otherwise the test uses its own balancer, which also checks
// /readyz.

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"apilet/apilettest"
)

// --shutdown-delay-duration; HAProxy checks every second
const leaveFor = 5 * time.Second

// balance starts a load balancer and returns its address.
func balance(t *testing.T, servers []*server) (address string) {
	t.Helper()
	program := cmp.Or(os.Getenv("HAPROXY"), "haproxy")
	if _, err := exec.LookPath(program); err != nil {
		t.Log("no HAProxy on this machine: a balancer of the test's own stands in")
		return balanceByTest(t, servers)
	}
	document := content(t, "../../docs/scale.md")
	_, config, found := strings.Cut(document, "```haproxy\n")
	config, _, closed := strings.Cut(config, "```")
	if !found || !closed {
		t.Fatal("docs/scale.md has no configuration of HAProxy")
	}
	port := apilettest.FreePort(t) // HAProxy shares its ports
	replace := func(what, by string) {
		t.Helper()
		if !strings.Contains(config, what) {
			t.Fatalf("the configuration of docs/scale.md has no %q", what)
		}
		config = strings.Replace(config, what, by, 1)
	}
	replace("bind :6443", fmt.Sprint("bind 127.0.0.1:", port))
	replace("/etc/haproxy/apilet-ca.crt", filepath.Join(servers[0].folder(), "ca.crt"))
	for i, s := range servers {
		replace(fmt.Sprintf("10.0.0.1%d:6443", i+1), strings.TrimPrefix(s.URL(), "https://"))
	}
	file := filepath.Join(t.TempDir(), "haproxy.cfg")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	p := newProcess(t, program, "-db", "-f", file)
	p.Launch()
	return fmt.Sprint("127.0.0.1:", port)
}

// balanceByTest sends each connection to the next ready server.
func balanceByTest(t *testing.T, servers []*server) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ready, ending := make([]atomic.Bool, len(servers)), make(chan struct{})
	t.Cleanup(func() {
		close(ending)
		listener.Close()
	})
	var addresses []string
	for i, s := range servers {
		addresses = append(addresses, strings.TrimPrefix(s.URL(), "https://"))
		probe := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		url := s.URL() + "/readyz"
		go func() {
			for {
				answer, err := probe.Get(url)
				if err == nil {
					answer.Body.Close()
				}
				ready[i].Store(err == nil && answer.StatusCode == 200)
				select {
				case <-ending:
					return
				case <-time.After(100 * time.Millisecond):
				}
			}
		}()
	}
	go func() {
		for next := 0; ; next++ {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			for range servers {
				if i := next % len(servers); ready[i].Load() {
					if to, err := net.Dial("tcp", addresses[i]); err == nil {
						go join(from, to)
						from = nil
						break
					}
				}
				next++
			}
			if from != nil {
				from.Close()
			}
		}
	}()
	return listener.Addr().String()
}

// join copies bytes in both directions until both connections are closed.
func join(a, b net.Conn) {
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		both.Go(func() {
			_, _ = io.Copy(way[1], way[0])
			_ = way[1].(*net.TCPConn).CloseWrite()
		})
	}
	both.Wait()
	a.Close()
	b.Close()
}

// A plainClient does not reconnect or retry, so any failure is an error.
type plainClient struct {
	address     string
	credentials *tls.Config
	conn        *tls.Conn
	answers     *bufio.Reader
	connections int
}

func (p *plainClient) ask(method, path, body string) (code int, err error) {
	if p.conn == nil {
		if p.conn, err = tls.Dial("tcp", p.address, p.credentials); err != nil {
			return 0, err
		}
		p.answers = bufio.NewReader(p.conn)
		p.connections++
	}
	request, err := http.NewRequest(method, "https://api.example.com"+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/merge-patch+json")
	if err := request.Write(p.conn); err != nil {
		return 0, err
	}
	answer, err := http.ReadResponse(p.answers, request)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	answer.Body.Close()
	if answer.Close {
		p.conn.Close()
		p.conn = nil
	}
	return answer.StatusCode, err
}

// TestRollingRestartCutsNobody runs three clients, each with the kubeconfig of a different server,
// that keep their connections while each server is stopped and started in turn. All requests must
// succeed, and all acknowledged writes must be there.
func TestRollingRestartCutsNobody(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	var servers []*server
	for range 3 {
		servers = append(servers, c.aSecured("--tls-san", "api.example.com", "--shutdown-delay-duration", leaveFor.String()))
	}
	runSecured(t, servers...)
	address := balance(t, servers)
	var clients sync.WaitGroup
	var asked, connections atomic.Int64
	ending := make(chan struct{})
	for i, s := range servers {
		credentials, err := s.credentials()
		if err != nil {
			t.Fatal(err)
		}
		credentials.ServerName = "api.example.com"
		name := fmt.Sprint("of-", i)
		s.do(201, "POST", maps, aMap(name, "", ""))
		p := &plainClient{address: address, credentials: credentials}
		apilettest.Until(t, "the balancer serves", func() error {
			code, err := p.ask("GET", "/readyz", "")
			if err != nil {
				p.conn = nil
			} else if code != 200 {
				err = fmt.Errorf("%d", code)
			}
			return err
		})
		clients.Go(func() {
			n := 0
			defer func() { connections.Add(int64(p.connections)) }()
			for over := false; !over; n++ {
				select {
				case <-ending:
					over = true
				default:
				}
				method, body := "PATCH", fmt.Sprintf(`{"data":{"v":"%d"}}`, n)
				if n%2 == 1 {
					method, body = "GET", ""
				}
				code, err := p.ask(method, maps+"/"+name, body)
				if err != nil || code != 200 {
					t.Errorf("client %d, request %d: %d %v", i, n, code, err)
					return
				}
				asked.Add(1)
			}
			if last := read(t, servers[0].do(200, "GET", maps+"/"+name, "")).Data["v"]; last != fmt.Sprint((n-1)/2*2) {
				t.Errorf("client %d wrote %d last, and there is %s", i, (n-1)/2*2, last)
			}
		})
	}
	for _, s := range servers {
		s.ends(t, 0, syscall.SIGTERM)
		s.run()
	}
	close(ending)
	clients.Wait()
	t.Logf("%d requests over %d connections", asked.Load(), connections.Load())
	if connections.Load() < 6 { // each client has moved from a stopped server to another
		t.Errorf("%d connections", connections.Load())
	}
}
