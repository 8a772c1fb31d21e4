// Package proxy passes requests on to other servers and their answers back: to aggregated API servers, to kubelets, and to programs in Pods.
//
//	forward := &proxy.Forwarder{Places: places, Stopping: stopping}
//	forward.Serve(w, r, user, &proxy.Hop{Plain: transport, Upgrade: transport, Rewrite: rewrite, Failed: failed})
//
// Answers are streamed as they arrive. A connection that is upgraded (WebSocket, SPDY) becomes one through this server. The other server
// is not trusted: it sends no interim answers (1xx) to the client, its header has a bound, and it is given a limited time where that is
// possible. A request that may last takes one of its user's places.
package proxy

import (
	"bufio"
	"cmp"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"time"

	"apilet/internal/request"
	"apilet/internal/shares"
)

// MaxHeader is the number of bytes that the header of an answer may have, as many as the header of a request.
const MaxHeader = 64 << 10

// A Forwarder passes requests on. Set its fields before the first use. It is safe for concurrent use.
type Forwarder struct {
	Places   *shares.Places  // for requests that last
	Stopping <-chan struct{} // closed when requests that last have to end
}

// A Hop is the way of one request to the other server.
type Hop struct {
	Plain   http.RoundTripper                                       // for requests that upgrade nothing
	Upgrade http.RoundTripper                                       // for requests that upgrade the connection; HTTP/1.1 only
	Rewrite func(*httputil.ProxyRequest)                            // makes the outgoing request
	Modify  func(ours http.Header, answer *http.Response) error     // changes the answer; ours is this server's header; nil means unchanged
	Failed  func(w http.ResponseWriter, r *http.Request, err error) // answers if the other server does not

	Placed   bool          // takes a place although nothing is upgraded
	Lasts    bool          // the answer may last as long as the client likes
	Limit    time.Duration // limit on the whole request unless it lasts; 0 means no limit
	Patience time.Duration // limit on writing each part of an answer that lasts, and on the rest after the client has closed its side; 0 means no limit, and a minute
	Started  func()        // called before a request that lasts is passed on; nil means nothing to do
}

// Serve answers r by way of the hop. The error is a 429 if the user has no place left; nothing has been written then.
func (f *Forwarder) Serve(w http.ResponseWriter, r *http.Request, user request.User, hop *Hop) error {
	upgrades := UpgradeType(r.Header) != ""
	if upgrades || hop.Placed {
		leave, err := f.Places.Enter(user)
		if err != nil {
			return err
		}
		defer leave()
	}
	ctx, release, cancel := lifetime(r.Context(), upgrades, hop)
	defer cancel()
	if upgrades || hop.Lasts {
		defer f.endWhenStopping(cancel)()
		if hop.Started != nil {
			hop.Started()
		}
		w = newPatientWriter(w, hop.Patience, cancel)
	}
	transport := hop.Plain
	if upgrades {
		transport = hop.Upgrade
	}
	proxy := &httputil.ReverseProxy{Transport: untraced{transport, ctx}, FlushInterval: -1, BufferPool: buffers, ErrorLog: quiet, Rewrite: hop.Rewrite,
		ModifyResponse: func(answer *http.Response) error {
			if answer.StatusCode == http.StatusSwitchingProtocols {
				release()
			}
			if hop.Modify == nil {
				return nil
			}
			return hop.Modify(w.Header(), answer)
		},
		ErrorHandler: hop.fail}
	proxy.ServeHTTP(w, r.WithContext(ctx))
	return nil
}

// Stream takes one of the user's places for an answer that lasts and that is not passed on by Serve. It returns a ResponseWriter that
// flushes each part, and the context of the answer. The caller calls done at the end. The error is a 429 if the user has no place left.
func (f *Forwarder) Stream(w http.ResponseWriter, r *http.Request, user request.User) (out http.ResponseWriter, ctx context.Context, done func(), err error) {
	leave, err := f.Places.Enter(user)
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := context.WithCancel(r.Context())
	ended := f.endWhenStopping(cancel)
	return newPatientWriter(w, 0, cancel), ctx, func() {
		ended()
		cancel()
		leave()
	}, nil
}

// fail answers for the other server, unless the client has taken the connection over.
func (h *Hop) fail(w http.ResponseWriter, r *http.Request, err error) {
	if p, ok := w.(*patientWriter); !ok || !p.hijacked {
		h.Failed(w, r, err)
	}
}

// endWhenStopping calls cancel when the server stops, until the function that it returns is called.
func (f *Forwarder) endWhenStopping(cancel context.CancelFunc) (ended func()) {
	over := make(chan struct{})
	go func() {
		select {
		case <-f.Stopping:
			cancel()
		case <-over:
		}
	}()
	return func() { close(over) }
}

// lifetime returns the context of a request. A connection that was upgraded lasts as long as its two ends like: release is called then,
// after which the end of the request that asked for it does not end the connection.
func lifetime(asked context.Context, upgrades bool, hop *Hop) (ctx context.Context, release func(), cancel context.CancelFunc) {
	switch {
	case upgrades:
		ctx, cancel = context.WithCancel(context.WithoutCancel(asked))
		stop := context.AfterFunc(asked, cancel)
		return ctx, func() { stop() }, cancel
	case hop.Limit > 0:
		ctx, cancel = context.WithTimeout(asked, hop.Limit)
	default:
		ctx, cancel = context.WithCancel(asked)
	}
	return ctx, func() {}, cancel
}

// UpgradeType returns the protocol to which a request asks to upgrade the connection, or "".
func UpgradeType(h http.Header) string {
	for _, value := range h.Values("Connection") {
		for token := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.TrimSpace(token), "upgrade") {
				return h.Get("Upgrade")
			}
		}
	}
	return ""
}

// An untraced transport does not report 1xx responses. httputil.ReverseProxy registers a trace that sends them to the client, as many as
// there are, and then clears the headers of the final response. Without a trace http.Transport skips 1xx responses and bounds their size.
type untraced struct {
	http.RoundTripper
	ctx context.Context // the request's context without the trace
}

func (t untraced) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.RoundTripper.RoundTrip(r.WithContext(t.ctx))
}

// A patientWriter gives a client so much time for each part of an answer that lasts, instead of a time for the whole. It flushes each part.
type patientWriter struct {
	http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration // 0 means no limit
	end      func()        // ends the request
	hijacked bool
}

func newPatientWriter(w http.ResponseWriter, patience time.Duration, end func()) *patientWriter {
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Time{}) // in place of the server's, which is too short
	return &patientWriter{w, control, patience, end, false}
}

func (w *patientWriter) Write(p []byte) (int, error) {
	if w.patience > 0 {
		_ = w.control.SetWriteDeadline(time.Now().Add(w.patience))
	}
	n, err := w.ResponseWriter.Write(p)
	if err == nil {
		err = w.control.Flush()
	}
	if w.patience > 0 {
		_ = w.control.SetWriteDeadline(time.Time{})
	}
	return n, err
}

// Hijack takes over the connection. After that the ResponseWriter must not be used.
func (w *patientWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := w.control.Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.hijacked = true
	return &upgradedConn{Conn: conn, patience: cmp.Or(w.patience, time.Minute), end: w.end}, buffered, nil
}

// Unwrap lets http.ResponseController reach the connection.
func (w *patientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// An upgradedConn is a client's connection that was upgraded. When the client has sent everything, the other server may continue to send
// for the duration patience. Without that limit, a server that ignores the end of the data keeps the connection and the user's place
// forever.
type upgradedConn struct {
	net.Conn
	patience time.Duration
	end      func()
	once     sync.Once
}

func (c *upgradedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.once.Do(func() { time.AfterFunc(c.patience, c.end) })
	}
	return n, err
}

// CloseWrite is called by httputil.ReverseProxy when the other server has sent everything.
func (c *upgradedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// quiet discards the log of httputil. It reports responses that break off, which are in the log of requests already.
var quiet = log.New(io.Discard, "", 0)

// A bufferPool lends the bytes through which answers are copied.
type bufferPool struct{ pool sync.Pool }

const copied = 32 << 10 // bytes at a time

var buffers = &bufferPool{sync.Pool{New: func() any { return new([copied]byte) }}}

func (b *bufferPool) Get() []byte { return b.pool.Get().(*[copied]byte)[:] }

func (b *bufferPool) Put(p []byte) { b.pool.Put((*[copied]byte)(p)) }
