package tlsbatch

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// ---- Under crypto/tls ----

// suites are those that a server offers, and what a record of theirs is longer than its content.
var suites = []struct {
	version, suite uint16
}{
	{tls.VersionTLS13, 0}, // not to be chosen
	{tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256},
	{tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256},
	{tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA},
}

func eachSuite(t *testing.T, test func(t *testing.T, server, client *tls.Config)) {
	certificate, roots := selfSigned(t)
	for _, s := range suites {
		t.Run(fmt.Sprintf("%x/%s", s.version, tls.CipherSuiteName(s.suite)), func(t *testing.T) {
			t.Parallel()
			server := &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: s.version, MaxVersion: s.version}
			if s.suite != 0 {
				server.CipherSuites = []uint16{s.suite}
			}
			test(t, server, &tls.Config{RootCAs: roots, ServerName: "here"})
		})
	}
}

// What is written arrives, in order, whatever the lengths of the writes, and in fewer writes than there are records. In the time of a bubble, where
// the timer never comes between two of them.
func TestWhatIsWrittenArrives(t *testing.T) {
	t.Parallel()
	eachSuite(t, func(t *testing.T, server, client *tls.Config) {
		seed := mathrand.Uint64()
		t.Log("seed", seed)
		random := mathrand.New(mathrand.NewPCG(seed, 0))
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe()
			below := &counted{Conn: here}
			records := &counted{Conn: &conn{Conn: below}}
			var got []byte
			var reading sync.WaitGroup
			reading.Go(func() {
				var err error
				if got, err = io.ReadAll(tls.Client(there, client)); err != nil {
					t.Error(err)
				}
			})
			ours := tls.Server(records, server)
			var sent []byte
			for len(sent) < 3<<20 {
				length := []int{1 + random.IntN(100), random.IntN(300_000), plaintext * (1 + random.IntN(9)), plaintext - 1, plaintext + 1, buffered}[random.IntN(6)]
				piece := make([]byte, length)
				for i := range piece {
					piece[i] = byte(random.Uint32())
				}
				sent = append(sent, piece...)
				if n, err := ours.Write(piece); n != length || err != nil {
					t.Fatal(n, err)
				}
			}
			if err := ours.Close(); err != nil {
				t.Fatal(err)
			}
			reading.Wait()
			there.Close()
			if !bytes.Equal(got, sent) {
				t.Errorf("%d bytes arrived, %d were sent", len(got), len(sent))
			}
			if writes, records := below.writes.Load(), records.writes.Load(); writes > records*4/5 {
				t.Errorf("%d writes for %d records", writes, records)
			}
		})
	})
}

// A write that ends with a full record is sent, though nothing follows it until the peer has answered.
func TestFullRecordsAreSentWithoutMore(t *testing.T) {
	t.Parallel()
	eachSuite(t, func(t *testing.T, server, client *tls.Config) {
		server.DynamicRecordSizingDisabled = true
		ours, peer := dialed(t, server, client)
		for n := 1; n < 7; n++ {
			if _, err := ours.Write(make([]byte, n*plaintext)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(peer, make([]byte, n*plaintext)); err != nil {
				t.Fatal(err)
			}
			if _, err := peer.Write([]byte{byte(n)}); err != nil {
				t.Fatal(err)
			}
			answer := make([]byte, 1)
			if _, err := io.ReadFull(ours, answer); err != nil || answer[0] != byte(n) {
				t.Fatal(answer, err)
			}
		}
	})
}

// So is one that ends with a full buffer of net/http's, and what follows such a one goes with it.
func TestFullBuffersAreSentWithoutMore(t *testing.T) {
	t.Parallel()
	eachSuite(t, func(t *testing.T, server, client *tls.Config) {
		server.DynamicRecordSizingDisabled = true
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe()
			below := &counted{Conn: here}
			ours, peer := tls.Server(&conn{Conn: below}, server), tls.Client(there, client)
			exchange := func(writes int64, lengths ...int) {
				t.Helper()
				before, sum := below.writes.Load(), 0
				for _, length := range lengths {
					sum += length
				}
				read := make(chan error)
				go func() {
					_, err := io.ReadFull(peer, make([]byte, sum))
					read <- err
				}()
				for _, length := range lengths {
					if _, err := ours.Write(make([]byte, length)); err != nil {
						t.Fatal(err)
					}
				}
				if err := <-read; err != nil {
					t.Fatal(err)
				}
				if got := below.writes.Load() - before; writes > 0 && got != writes {
					t.Errorf("%v: %d writes, want %d", lengths, got, writes)
				}
			}
			exchange(0, plaintext) // with the handshake
			exchange(1, buffered)
			exchange(1, buffered, 30_000)
			exchange(1, buffered, 1)
			exchange(2, buffered, 4*plaintext+1)
			ours.Close()
			peer.Close()
		})
	})
}

// A peer that leaves ends the writer.
func TestPeerThatLeavesEndsTheWriter(t *testing.T) {
	t.Parallel()
	eachSuite(t, func(t *testing.T, server, client *tls.Config) {
		ours, peer := dialed(t, server, client)
		go func() {
			io.ReadFull(peer, make([]byte, 1<<20))
			peer.NetConn().Close()
		}()
		for piece := make([]byte, 5*plaintext); ; {
			if _, err := ours.Write(piece); err != nil {
				return
			}
		}
	})
}

// Answers of HTTP/1 and HTTP/2 arrive whole, those that the handler waits in as well.
func TestAnswersOfHTTP(t *testing.T) {
	t.Parallel()
	certificate, roots := selfSigned(t)
	goOn := make(chan struct{})
	server := &http.Server{
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2", "http/1.1"}},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			length, _ := strconv.Atoi(r.FormValue("length"))
			w.Write(make([]byte, length))
			w.(http.Flusher).Flush()
			<-goOn
			w.Write([]byte("end"))
		}),
	}
	listener := listen(t)
	go server.ServeTLS(Listener{listener}, "", "")
	t.Cleanup(func() { server.Close() })
	for _, second := range []bool{false, true} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "here"}, ForceAttemptHTTP2: second}
		t.Cleanup(transport.CloseIdleConnections)
		for _, length := range []int{1, 1000, buffered, plaintext, 4 * plaintext, 300_000, 1 << 20} {
			answer, err := (&http.Client{Transport: transport}).Get(fmt.Sprintf("https://%s/?length=%d", listener.Addr(), length))
			if err != nil {
				t.Fatal(err)
			}
			if (answer.ProtoMajor == 2) != second {
				t.Fatal(answer.Proto)
			}
			if _, err := io.ReadFull(answer.Body, make([]byte, length)); err != nil { // while the handler waits
				t.Fatal(err)
			}
			goOn <- struct{}{}
			if rest, err := io.ReadAll(answer.Body); string(rest) != "end" || err != nil {
				t.Fatal(string(rest), err)
			}
			answer.Body.Close()
		}
	}
}

// ---- By itself ----

// fullRecord is one as long as AES-GCM of TLS 1.3 makes it.
func fullRecord() []byte { return record(plaintext) }

func record(content int) []byte {
	length := content + 17
	return append([]byte{applicationData, 3, 3, byte(length >> 8), byte(length)}, make([]byte, length)...)
}

// What is not full is written before Write returns, with what was held back; and only while something is held back there is a buffer.
func TestSmallRecordsPassAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		below := &written{}
		c := &conn{Conn: below}
		expect := func(b []byte, want ...int) {
			t.Helper()
			before := len(below.since(0))
			if n, err := c.Write(b); n != len(b) || err != nil {
				t.Fatal(n, err)
			}
			if got := below.since(before); !slices.Equal(got, want) {
				t.Errorf("writes of %v, want %v", got, want)
			}
			if (c.buffer != nil) != (c.held > 0) {
				t.Error("a buffer without anything in it")
			}
		}
		full := len(fullRecord())
		expect([]byte{21, 3, 3, 0, 2, 1, 0}, 7)
		expect(record(100), 122)
		expect(record(buffered), buffered+22) // not known yet to be one
		if c.timer != nil {
			t.Error("a timer before anything was held back")
		}
		expect(fullRecord())
		expect(record(100), full+122)
		expect(fullRecord())
		expect(fullRecord())
		expect(fullRecord())
		expect(fullRecord(), 4*full)
		expect(record(plaintext-1), full-1) // longer than its content's maximum, and not full
		expect(fullRecord())
		expect(record(plaintext-1), 2*full-1)
		expect(fullRecord())
		expect(bytes.Repeat(record(100), 1000), full, 122_000) // not one record
		expect(record(buffered))
		expect(record(100), buffered+22+122)
		expect(record(buffered))
		expect(fullRecord())
		expect(fullRecord())
		expect(fullRecord(), 3*full+buffered+22) // a fourth finds no room
		expect(record(buffered-1), buffered+21)
		expect(record(buffered+1), buffered+23)
		expect(append(fullRecord(), 0), full+1)
		if c.buffer != nil {
			t.Error("a buffer at rest")
		}
	})
}

// A full record that nothing follows goes after a moment, and what has been sent is not sent again.
func TestTimerSendsWhatIsHeldBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		below := &written{}
		c := &conn{Conn: below}
		for round := range 3 {
			c.Write(fullRecord())
			c.Write(fullRecord())
			if early := below.since(round); len(early) != 0 {
				t.Error(round, early)
			}
			time.Sleep(patience)
			synctest.Wait()
			if sent := below.since(round); !slices.Equal(sent, []int{2 * len(fullRecord())}) {
				t.Error(round, sent)
			}
		}
		c.Write(fullRecord())
		c.Write(record(1))
		time.Sleep(time.Second)
		if sent := below.since(3); len(sent) != 1 {
			t.Error(sent)
		}
	})
}

// An error that the timer meets is the next write's, and that of all that follow.
func TestErrorOfTheTimerIsTheNextWrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		below := &written{err: broken}
		c := &conn{Conn: below}
		if _, err := c.Write(fullRecord()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(patience)
		synctest.Wait()
		for range 2 {
			if n, err := c.Write(record(1)); n != 0 || err != broken {
				t.Error(n, err)
			}
		}
		if sent := below.since(0); len(sent) != 1 {
			t.Error(sent)
		}
	})
}

// A peer that does not read holds the writer up, until the deadline or somebody closes the connection.
func TestPeerThatDoesNotReadHoldsTheWriterUp(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(c *conn){"deadline": func(c *conn) { c.SetWriteDeadline(time.Now()) }, "close": func(c *conn) { c.Close() }} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours, theirs := net.Pipe()
			defer theirs.Close()
			below := &began{Conn: ours, began: make(chan struct{}, 100)}
			c := &conn{Conn: below}
			taken, failed := 0, make(chan error)
			go func() {
				var err error
				for ; err == nil && taken < 100; taken++ {
					_, err = c.Write(fullRecord())
				}
				failed <- err
			}()
			<-below.began // for the fifth record, or the timer's
			end(c)
			if err := <-failed; err == nil || taken > 5 {
				t.Errorf("%v after %d records", err, taken)
			}
			c.Close()
			if c.buffer != nil {
				t.Error("a closed connection has a buffer")
			}
		})
	}
}

// The same, when the timer is what waits.
func TestTimerThatWaitsHoldsTheWriterUp(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	defer theirs.Close()
	below := &began{Conn: ours, began: make(chan struct{}, 100)}
	c := &conn{Conn: below}
	c.Write(fullRecord())
	<-below.began
	failed := make(chan error)
	go func() {
		_, err := c.Write(record(1))
		failed <- err
	}()
	c.SetWriteDeadline(time.Now())
	if err := <-failed; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	c.Close()
}

// Reading is not held up by a write that waits.
func TestReadDoesNotWaitForWrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		c := &conn{Conn: ours}
		go func() {
			for range 8 {
				c.Write(fullRecord())
			}
		}()
		synctest.Wait()
		go theirs.Write([]byte("x"))
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Error(err)
		}
		c.Close()
		theirs.Close()
	})
}

// Closed with something held back, a connection has neither buffer nor timer, and writes nothing more.
func TestCloseForgets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		below := &written{}
		c := &conn{Conn: below}
		c.Write(fullRecord())
		c.Close()
		time.Sleep(time.Second)
		if sent := below.since(0); len(sent) != 0 || c.buffer != nil || !below.closed {
			t.Error(sent)
		}
	})
}

// ---- What the tests stand on ----

// A written notes the lengths of writes.
type written struct {
	net.Conn
	err error

	mu      sync.Mutex // guards what follows
	lengths []int
	closed  bool
}

// since are the lengths of those after the first n.
func (w *written) since(n int) []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.lengths[n:])
}

func (w *written) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lengths = append(w.lengths, len(b))
	if w.err != nil {
		return 0, w.err
	}
	return len(b), nil
}

func (w *written) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	return nil
}

// A began tells when a write begins.
type began struct {
	net.Conn
	began chan struct{}
}

func (b *began) Write(p []byte) (int, error) {
	b.began <- struct{}{}
	return b.Conn.Write(p)
}

// A counted counts its writes.
type counted struct {
	net.Conn
	writes atomic.Int64
}

func (c *counted) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener
}

// dialed are the two ends of a connection.
func dialed(t *testing.T, server, client *tls.Config) (ours, peer *tls.Conn) {
	t.Helper()
	listener := Listener{listen(t)}
	var shaken sync.WaitGroup
	shaken.Go(func() {
		var err error
		if peer, err = tls.Dial("tcp", listener.Addr().String(), client); err != nil {
			t.Error(err)
		}
	})
	plain, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	ours = tls.Server(plain, server)
	if err := ours.Handshake(); err != nil {
		t.Fatal(err)
	}
	shaken.Wait()
	if peer == nil {
		t.FailNow()
	}
	t.Cleanup(func() { ours.NetConn().Close(); peer.NetConn().Close() })
	return ours, peer
}

func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"here"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}
