// Package proxy forwards requests to other servers and returns their responses. The other servers
// are aggregated API servers, kubelets, and programs in Pods.
//
//	forward := &proxy.Forwarder{Slots: places, Stopping: stopping}
//	forward.Serve(w, r, user, &proxy.Hop{Plain: transport, Upgrade: transport, Rewrite: rewrite, ErrorHandler: failed})
//
// Responses are streamed as they arrive. Upgraded connections (WebSocket, SPDY) are proxied as
// well. The other server is not trusted. Interim responses (1xx) are not forwarded to the client,
// the size of the header is limited, and timeouts are used where possible. The number of
// long-running requests per user is limited as well.
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

	"apilet/internal/limits"
	"apilet/internal/request"
)

// MaxHeader is the maximum size in bytes of a response header. It equals the limit for request
// headers.
const MaxHeader = 64 << 10

// Forwarder forwards requests. Set its fields before the first use. It is safe for concurrent use.
type Forwarder struct {
	Slots    *limits.Slots   // limits the long-running requests of a user
	Stopping <-chan struct{} // closed when long-running requests must end
}

// Hop defines how to forward one request.
type Hop struct {
	// for requests without an upgrade
	Plain http.RoundTripper
	// for requests that upgrade the connection; HTTP/1.1 only
	Upgrade http.RoundTripper
	// prepares the outgoing request
	Rewrite func(*httputil.ProxyRequest)
	// changes the response; ours is this server's header; nil means unchanged
	Modify func(ours http.Header, answer *http.Response) error
	// responds if the other server does not
	ErrorHandler func(w http.ResponseWriter, r *http.Request, err error)

	// counts against the user's limit even without an upgrade
	Limited bool
	// the response may be an endless stream
	Streaming bool
	// timeout for the request, ignored if Streaming is set
	Limit time.Duration
	// WriteTimeout is the timeout for each write of a long-running response, and for the time after
	// the client has closed its side. If it is zero, writes are not limited, and the connection
	// is closed after a minute.
	WriteTimeout time.Duration
	// if not nil, called before a long-running request is forwarded
	OnStart func()
}

// Serve forwards r. If the user has too many long-running requests, it returns a 429 error without
// writing anything.
func (f *Forwarder) Serve(w http.ResponseWriter, r *http.Request, user request.User, hop *Hop) error {
	upgrades := UpgradeType(r.Header) != ""
	if upgrades || hop.Limited {
		leave, err := f.Slots.Acquire(user)
		if err != nil {
			return err
		}
		defer leave()
	}
	ctx, release, cancel := lifetime(r.Context(), upgrades, hop)
	defer cancel()
	if upgrades || hop.Streaming {
		defer f.endWhenStopping(cancel)()
		if hop.OnStart != nil {
			hop.OnStart()
		}
		w = newDeadlineWriter(w, hop.WriteTimeout, cancel)
	}
	transport := hop.Plain
	if upgrades {
		transport = hop.Upgrade
	}
	proxy := &httputil.ReverseProxy{Transport: untracedTransport{transport, ctx}, FlushInterval: -1, BufferPool: buffers, ErrorLog: discardLog, Rewrite: hop.Rewrite,
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

// Stream counts a long-running response that is not forwarded by Serve against the user's limit. It
// returns a ResponseWriter that flushes each write, and the context of the response. The caller
// must call done at the end. The error is a 429 if the limit is reached.
func (f *Forwarder) Stream(w http.ResponseWriter, r *http.Request, user request.User) (out http.ResponseWriter, ctx context.Context, done func(), err error) {
	leave, err := f.Slots.Acquire(user)
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := context.WithCancel(r.Context())
	ended := f.endWhenStopping(cancel)
	return newDeadlineWriter(w, 0, cancel), ctx, func() {
		ended()
		cancel()
		leave()
	}, nil
}

// fail responds with an error, unless the connection has been hijacked.
func (h *Hop) fail(w http.ResponseWriter, r *http.Request, err error) {
	if p, ok := w.(*deadlineWriter); !ok || !p.hijacked {
		h.ErrorHandler(w, r, err)
	}
}

// endWhenStopping calls cancel when the server stops, until the caller calls ended.
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

// lifetime returns the context of a request. After the connection has been upgraded, Serve calls
// release, so that ctx is not canceled when the client's request ends.
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

// UpgradeType returns the protocol to which a request upgrades the connection, or "".
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

// untracedTransport is a transport that does not report 1xx responses. httputil.ReverseProxy
// registers a trace that sends all of them to the client, and then clears the headers of the final
// response. Without a trace, http.Transport skips 1xx responses and limits their size.
type untracedTransport struct {
	http.RoundTripper
	ctx context.Context // the context of the request without the trace
}

func (t untracedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.RoundTripper.RoundTrip(r.WithContext(t.ctx))
}

// deadlineWriter limits the time of each write of a long-running response, instead of the time of
// the whole response. It flushes each write.
type deadlineWriter struct {
	http.ResponseWriter
	control  *http.ResponseController
	timeout  time.Duration // 0 means no limit
	end      func()        // cancels the request
	hijacked bool
}

func newDeadlineWriter(w http.ResponseWriter, patience time.Duration, end func()) *deadlineWriter {
	control := http.NewResponseController(w)
	// replaces the server's deadline, which is too short
	_ = control.SetWriteDeadline(time.Time{})
	return &deadlineWriter{w, control, patience, end, false}
}

func (w *deadlineWriter) Write(p []byte) (int, error) {
	if w.timeout > 0 {
		_ = w.control.SetWriteDeadline(time.Now().Add(w.timeout))
	}
	n, err := w.ResponseWriter.Write(p)
	if err == nil {
		err = w.control.Flush()
	}
	if w.timeout > 0 {
		_ = w.control.SetWriteDeadline(time.Time{})
	}
	return n, err
}

// Hijack takes over the connection. After that the ResponseWriter must not be used.
func (w *deadlineWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := w.control.Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.hijacked = true
	return &upgradedConn{Conn: conn, timeout: cmp.Or(w.timeout, time.Minute), end: w.end}, buffered, nil
}

// Unwrap gives http.ResponseController access to the connection.
func (w *deadlineWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// upgradedConn is the client's side of an upgraded connection. When the client has closed its side,
// the other server may continue to send for the duration patience. Without that limit, a server
// that ignores the end of the data would keep the connection open forever.
type upgradedConn struct {
	net.Conn
	timeout time.Duration
	end     func()
	once    sync.Once
}

func (c *upgradedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.once.Do(func() { time.AfterFunc(c.timeout, c.end) })
	}
	return n, err
}

// CloseWrite is called by httputil.ReverseProxy when the other server has sent all its data.
func (c *upgradedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// discardLog discards the log of httputil. It reports aborted responses, which the request log
// already contains.
var discardLog = log.New(io.Discard, "", 0)

// bufferPool holds the buffers for copying responses.
type bufferPool struct{ pool sync.Pool }

const copyBufferSize = 32 << 10 // bytes per buffer

var buffers = &bufferPool{sync.Pool{New: func() any { return new([copyBufferSize]byte) }}}

func (b *bufferPool) Get() []byte { return b.pool.Get().(*[copyBufferSize]byte)[:] }

func (b *bufferPool) Put(p []byte) { b.pool.Put((*[copyBufferSize]byte)(p)) }
