package main

// This file is the HTTP client that sends requests to the measured servers.
//
// It runs on the same machine as the servers and competes with them for CPU time. The faster a
// server is, the more the client determines the rate. With net/http, which takes about as much time
// for a GET as apilet, two servers whose processor times differed by a factor of seven seemed to
// differ by a factor of four. Therefore this client does as little as load generators like wrk:
//
//   - A connection belongs to one client, and a client to one goroutine. There are no locks and no
//     communication between goroutines. A client only waits for the server.
//   - A request is prepared as bytes. Only a name or a number is inserted, in a reused buffer.
//   - Of a response the client parses only the status, the length, and the sizes of chunks. It counts
//     the bytes of the body in the buffer in which TLS puts them. Callers say how many of them to keep.
//     Events of a watch are counted by their line ends.
//   - A request allocates nothing here (crypto/tls allocates a little), so that no garbage collection
//     disturbs a measurement.
//
// The client checks the status and the minimum size of each response, and that the body is
// complete. Wrong responses do not count (cases.go) and are printed. If the server closes a
// connection between two responses, the client opens a new one.
//
// It uses crypto/tls with the parameters that are selected by both servers: version 1.3 with
// AES-128-GCM, which is supported by the processor. They are printed by main.go. The client uses
// HTTP/1.1, because with HTTP/2 all clients would share one connection and would have to sort
// frames.

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
)

// A client uses a single connection and must only be used by one goroutine. Its buffers are reused
// for each request.
type client struct {
	*server
	ctx    context.Context // its end closes the connection
	number int             // distinguishes clients that run concurrently

	conn    net.Conn    // nil if the client is not connected
	release func() bool // detaches conn from ctx

	in      []byte // bytes read from conn
	at, end int    // in[at:end] is not parsed yet
	status  int    // of the response
	left    int    // number of bytes of the body or of the chunk that are still unread
	chunked bool   // more chunks follow
	closing bool   // the server closes the connection after this response

	out, name, body []byte // parts of the request
	kept            []byte // start of the response's body
}

// A request describes a request and the expected response.
type request struct {
	method string // "" means GET
	path   string
	name   []byte // appended to path
	query  string // appended to name
	header string // complete lines
	body   []byte
	status int // 0 means 200
	least  int // minimum size of the response's body
	keep   int // number of bytes of the response's body to keep
}

// A wrongAnswer is a complete response that does not match the request.
type wrongAnswer struct{ text string }

func (w *wrongAnswer) Error() string { return w.text }

// errHungUp is returned if a connection ends before the first byte of a response.
var errHungUp = errors.New("the server has closed the connection")

// trusting disables the verification of certificates. It is only used for test servers.
var trusting = &tls.Config{InsecureSkipVerify: true, CurvePreferences: []tls.CurveID{tls.X25519}}

// newClient returns a client. It connects with its first request.
func (s *server) newClient(ctx context.Context, number int) *client {
	// TLS records are not larger
	return &client{server: s, ctx: ctx, number: number, in: make([]byte, 16<<10)}
}

// connect opens the connection unless it is open.
func (c *client) connect() error {
	if c.conn != nil {
		return nil
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(c.ctx, "tcp", c.address)
	if err != nil {
		return err
	}
	c.release = context.AfterFunc(c.ctx, func() { _ = conn.Close() })
	c.conn, c.at, c.end = conn, 0, 0
	if !c.secure {
		return nil
	}
	secured := tls.Client(conn, trusting)
	c.conn = secured
	if err := secured.HandshakeContext(c.ctx); err != nil {
		c.close()
		return err
	}
	return nil
}

// close closes the connection. The next request opens another.
func (c *client) close() {
	if c.conn != nil {
		c.release()
		_ = c.conn.Close()
		c.conn = nil
	}
}

// do returns the whole response. It is not used in measurements.
func (c *client) do(method, path string, body []byte) ([]byte, error) {
	status := 200
	if method == "POST" {
		status = 201
	}
	err := c.ask(request{method: method, path: path, body: body, status: status, keep: math.MaxInt})
	return c.kept, err
}

// do sends one request over a new connection.
func (s *server) do(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	c := s.newClient(ctx, 0)
	defer c.close()
	return c.do(method, path, body)
}

// ask sends a request and reads the response.
func (c *client) ask(r request) error {
	if err := c.open(r); err != nil {
		return err
	}
	size, err := c.drain(r.keep)
	if err != nil {
		return c.broken(r, err)
	}
	if size < r.least {
		return &wrongAnswer{fmt.Sprintf("%s: %d bytes, at least %d were to come", r, size, r.least)}
	}
	return nil
}

// open sends a request and reads the response's head. The caller reads the body by next.
func (c *client) open(r request) error {
	reused := c.conn != nil
	err := c.exchange(r)
	if reused && errors.Is(err, errHungUp) && c.ctx.Err() == nil {
		err = c.exchange(r)
	}
	if err != nil {
		return c.broken(r, err)
	}
	if c.status == r.status || r.status == 0 && c.status == 200 {
		return nil
	}
	if _, err := c.drain(500); err != nil {
		return c.broken(r, err)
	}
	return &wrongAnswer{fmt.Sprintf("%s: status %d: %s", r, c.status, c.kept)}
}

// drain reads the rest of the body and returns its length. It keeps the first bytes in c.kept.
func (c *client) drain(keep int) (size int, err error) {
	c.kept = c.kept[:0]
	for {
		piece, err := c.next()
		if err == io.EOF {
			return size, nil
		}
		if err != nil {
			return size, err
		}
		size += len(piece)
		if room := keep - len(c.kept); room > 0 {
			c.kept = append(c.kept, piece[:min(room, len(piece))]...)
		}
	}
}

// broken closes the connection, because the start of the next response is unknown after an error.
func (c *client) broken(r request, err error) error {
	c.close()
	if c.ctx.Err() != nil {
		return c.ctx.Err()
	}
	return fmt.Errorf("%s: %w", r, err)
}

func (r request) String() string {
	return fmt.Sprintf("%s %s%s%s", cmp.Or(r.method, "GET"), r.path, r.name, r.query)
}

// ---- HTTP/1.1

// exchange writes the request and reads the head of the response.
func (c *client) exchange(r request) error {
	if err := c.connect(); err != nil {
		return err
	}
	if _, err := c.conn.Write(c.encode(r)); err != nil {
		c.close()
		return fmt.Errorf("%w: %w", errHungUp, err)
	}
	c.at, c.end = 0, 0
	if err := c.more(); err != nil {
		c.close()
		return fmt.Errorf("%w: %w", errHungUp, err)
	}
	return c.readHead()
}

func (c *client) encode(r request) []byte {
	b := append(c.out[:0], r.method...)
	if r.method == "" {
		b = append(b, "GET"...)
	}
	b = append(b, ' ')
	b = append(b, c.prefix...)
	b = append(b, r.path...)
	b = append(b, r.name...)
	b = append(b, r.query...)
	b = append(b, c.headers...)
	b = append(b, r.header...)
	if r.body != nil {
		b = append(b, "Content-Type: application/json\r\nContent-Length: "...)
		b = strconv.AppendInt(b, int64(len(r.body)), 10)
		b = append(b, "\r\n"...)
	}
	b = append(b, "\r\n"...)
	c.out = append(b, r.body...)
	return c.out
}

// headers returns the end of the request line and the headers of all requests.
func headers(host, token string) string {
	var b strings.Builder
	fmt.Fprintf(&b, " HTTP/1.1\r\nHost: %s\r\nUser-Agent: bench\r\n", host)
	if token != "" {
		fmt.Fprintf(&b, "Authorization: Bearer %s\r\n", token)
	}
	return b.String()
}

var (
	contentLength    = []byte("Content-Length")
	transferEncoding = []byte("Transfer-Encoding")
	connection       = []byte("Connection")

	colon, semicolon, space, carriageReturn = []byte(":"), []byte(";"), []byte(" "), []byte("\r")
)

// readHead reads up to the body. It returns an error if the length is missing, because it is always
// set by servers in Go.
func (c *client) readHead() error {
	line, err := c.line()
	if err != nil {
		return err
	}
	_, rest, _ := bytes.Cut(line, space)
	code, _, _ := bytes.Cut(rest, space)
	if c.status = number(code, 10); c.status < 200 || c.status > 599 {
		return fmt.Errorf("no answer begins with %q", line)
	}
	c.left, c.chunked, c.closing = -1, false, false
	for {
		line, err := c.line()
		if err != nil {
			return err
		}
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, colon)
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, contentLength):
			if c.left = number(value, 10); c.left < 0 {
				return fmt.Errorf("no length is %q", value)
			}
		case bytes.EqualFold(name, transferEncoding):
			c.chunked = string(value) == "chunked"
		case bytes.EqualFold(name, connection):
			c.closing = string(value) == "close"
		}
	}
	if c.chunked {
		c.left = 0
	}
	if c.left < 0 {
		return errors.New("the answer has neither a length nor chunks")
	}
	return nil
}

// next returns the next piece of the body in the buffer. It is valid until the next call. At the
// end of the body it returns io.EOF.
func (c *client) next() ([]byte, error) {
	if c.left == 0 && c.chunked {
		if err := c.nextChunk(); err != nil {
			return nil, err
		}
	}
	if c.left == 0 {
		if c.closing {
			c.close()
		}
		return nil, io.EOF
	}
	if c.at == c.end {
		if err := c.more(); err != nil {
			return nil, err
		}
	}
	piece := c.in[c.at:min(c.end, c.at+c.left)]
	c.at += len(piece)
	c.left -= len(piece)
	return piece, nil
}

// nextChunk reads the line end after the previous chunk and the size of the next. It reads the rest
// of the response if this was the last chunk.
func (c *client) nextChunk() error {
	line, err := c.line()
	if err == nil && len(line) == 0 {
		line, err = c.line()
	}
	if err != nil {
		return err
	}
	size, _, _ := bytes.Cut(line, semicolon) // without extensions
	if c.left = number(size, 16); c.left < 0 {
		return fmt.Errorf("no chunk has the size %q", line)
	}
	if c.left > 0 {
		return nil
	}
	c.chunked = false
	for len(line) > 0 { // skip trailers
		if line, err = c.line(); err != nil {
			return err
		}
	}
	return nil
}

// line returns the next line of the response without the trailing newline. It is valid until the
// next call.
func (c *client) line() ([]byte, error) {
	for seen := 0; ; {
		if i := bytes.IndexByte(c.in[c.at+seen:c.end], '\n'); i >= 0 {
			line := c.in[c.at : c.at+seen+i]
			c.at += seen + i + 1
			return bytes.TrimSuffix(line, carriageReturn), nil
		}
		seen = c.end - c.at
		if err := c.more(); err != nil {
			return nil, err
		}
	}
}

// more reads from the connection. It moves unparsed bytes to the front first.
func (c *client) more() error {
	c.end = copy(c.in, c.in[c.at:c.end])
	c.at = 0
	if c.end == len(c.in) {
		return fmt.Errorf("a line has more than %d bytes", len(c.in))
	}
	n, err := c.conn.Read(c.in[c.end:])
	c.end += n
	if n > 0 {
		return nil
	}
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// number parses a number without a sign. It returns -1 if text is not a number.
func number(text []byte, base int) int {
	n := 0
	for _, c := range text {
		digit := 16
		switch {
		case c >= '0' && c <= '9':
			digit = int(c - '0')
		case c >= 'a' && c <= 'f':
			digit = int(c-'a') + 10
		case c >= 'A' && c <= 'F':
			digit = int(c-'A') + 10
		}
		if digit >= base || n > math.MaxInt32 {
			return -1
		}
		n = n*base + digit
	}
	if len(text) == 0 {
		return -1
	}
	return n
}
