package main

// This file is the client that asks the servers which are measured.
//
// It shares the machine with them. What it spends on a request, no server can spend, and the better a server is, the more of the rate is the client's:
// with net/http here, which takes about as much for a GET as apilet does, two servers of which one needs a seventh of the other's processor time
// seemed to differ four times. So this client does what load generators like wrk do, and no more:
//
//   - a connection belongs to one client, and a client to one goroutine. Nothing is handed from goroutine to goroutine, nothing is locked, nobody waits
//     for anybody but the server;
//   - a request is bytes that lie ready, with a name or a number spliced in, in a buffer that is written anew each time;
//   - of an answer only what has to be known is read: the status, the length, and of a chunked body the sizes. The body passes through a buffer, where
//     TLS has put it, and is counted there. Who needs some of it says how much is to be kept. Events of a watch are counted by their ends of line;
//   - a request allocates nothing here (TLS does, a little: crypto/tls has no way around it), so that no collector runs beside a measurement.
//
// What it does not save is looking: each answer has the status that the request is to have, and at least the bytes that its objects have, to the
// end of its body. A wrong answer is counted as none (cases.go), and shown. A connection that a server closes between two answers is opened anew.
//
// TLS is crypto/tls with what both servers offer and choose, version 1.3 with AES-128-GCM, which the processor has instructions for; main.go prints it.
// HTTP is version 1.1: with version 2 all clients would share one connection, and frames would have to be sorted.

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

// A client has one connection to a server, and is one goroutine's. Its buffers are written anew for each request.
type client struct {
	*server
	ctx    context.Context // its end is the connection's
	number int             // among those that work beside each other

	conn    net.Conn    // nil before the first request, and after it was closed
	release func() bool // conn no longer ends with ctx

	in      []byte // what was read of conn
	at, end int    // in[at:end] is not looked at yet
	status  int    // of the answer
	left    int    // bytes of its body, or of the chunk, that are not looked at
	chunked bool   // more chunks come
	closing bool   // the connection ends with this answer

	out, name, body []byte // of the request
	kept            []byte // of the answer
}

// A request is what is asked, and what the answer has to be like.
type request struct {
	method string // "": GET
	path   string
	name   []byte // after it
	query  string // after that
	header string // lines, each with its end
	body   []byte
	status int // 0: 200
	least  int // bytes of the answer's body
	keep   int // bytes of the answer's body that are kept, from its beginning
}

// A wrongAnswer is one that came whole, and is not what was to be answered.
type wrongAnswer struct{ text string }

func (w *wrongAnswer) Error() string { return w.text }

// errHungUp is a connection that ended before the first byte of an answer.
var errHungUp = errors.New("the server has closed the connection")

// trusting is for servers of one's own.
var trusting = &tls.Config{InsecureSkipVerify: true, CurvePreferences: []tls.CurveID{tls.X25519}}

// newClient connects with its first request.
func (s *server) newClient(ctx context.Context, number int) *client {
	return &client{server: s, ctx: ctx, number: number, in: make([]byte, 16<<10)} // a record of TLS has no more
}

// connect opens the connection, if there is none.
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

// close ends the connection. The next request opens another.
func (c *client) close() {
	if c.conn != nil {
		c.release()
		_ = c.conn.Close()
		c.conn = nil
	}
}

// do returns the whole answer. It is for what is not measured.
func (c *client) do(method, path string, body []byte) ([]byte, error) {
	status := 200
	if method == "POST" {
		status = 201
	}
	err := c.ask(request{method: method, path: path, body: body, status: status, keep: math.MaxInt})
	return c.kept, err
}

// do asks once, over a connection of its own.
func (s *server) do(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	c := s.newClient(ctx, 0)
	defer c.close()
	return c.do(method, path, body)
}

// ask sends a request, and lets the answer pass.
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

// open sends a request, and reads the answer's head. Its body is left to next.
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

// drain lets the rest of the body pass, keeps some of it, and returns its length.
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

// broken ends the connection, of which nobody knows any more where an answer would begin.
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

// exchange writes the request, and reads the head of the answer.
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

// headers are the lines that all requests have, after the path.
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

// readHead reads up to the body. The answer says how long that is, as those of Go's servers do, or is refused.
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

// next is the next piece of the body as it lies in the buffer, until the next call. Its end is io.EOF.
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

// nextChunk reads the size of a chunk, before which the line of the last one ends. After that of size 0 it reads to the end of the answer.
func (c *client) nextChunk() error {
	line, err := c.line()
	if err == nil && len(line) == 0 {
		line, err = c.line()
	}
	if err != nil {
		return err
	}
	size, _, _ := bytes.Cut(line, semicolon) // extensions
	if c.left = number(size, 16); c.left < 0 {
		return fmt.Errorf("no chunk has the size %q", line)
	}
	if c.left > 0 {
		return nil
	}
	c.chunked = false
	for len(line) > 0 { // trailers
		if line, err = c.line(); err != nil {
			return err
		}
	}
	return nil
}

// line is the next line without its end, until the next call.
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

// more reads what has come. What is not looked at yet moves to the front.
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

// number is one without a sign, or -1 if there is none.
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
