package encryption

// This file calls a plug-in by gRPC. Each call is a POST request over HTTP/2 on a Unix socket. The
// request and the response contain one message each.
//
//	:path /v2.KeyManagementService/Status      content-type application/grpc, te trailers      0 LENGTH(4) MESSAGE
//	200                                        0 LENGTH(4) MESSAGE                             grpc-status 0 in the trailer, or only in the header
//
// KMS uses no other part of gRPC. The gRPC library would make up a quarter of the binary.

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
)

// answerMax is the maximum size in bytes of a plug-in's response. The annotations are its largest
// part.
const answerMax = 256 << 10

// remote is the client of a plug-in's socket.
type remote struct {
	client  http.Client
	timeout time.Duration // per call
}

// newRemote returns a client for a socket. It does not connect yet.
func newRemote(endpoint string, timeout time.Duration) (*remote, error) {
	at, err := url.Parse(endpoint)
	if err != nil {
		return nil, fmt.Errorf("invalid endpoint %q for remote KMS provider, error: %w", endpoint, err)
	}
	if at.Scheme != "unix" {
		return nil, fmt.Errorf("unsupported scheme %q for remote KMS provider", at.Scheme)
	}
	path := at.Path
	if strings.HasPrefix(path, "/@") { // an abstract socket of Linux
		path = path[1:]
	}
	transport := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	transport.Protocols.SetUnencryptedHTTP2(true)
	transport.MaxResponseHeaderBytes = 64 << 10
	return &remote{client: http.Client{Transport: transport}, timeout: timeout}, nil
}

func (r *remote) close() { r.client.CloseIdleConnections() }

// callError is an error of a call, with a gRPC code.
type callError struct {
	code codes.Code
	text string
}

func (e *callError) Error() string {
	return fmt.Sprintf("rpc error: code = %s desc = %s", e.code, truncate(e.text))
}

// call sends a message and returns the message of the response.
func (r *remote) call(ctx context.Context, method string, message []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	frame := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	ask, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/v2.KeyManagementService/"+method, bytes.NewReader(frame))
	if err != nil {
		return nil, err
	}
	ask.Header.Set("Content-Type", "application/grpc")
	ask.Header.Set("Te", "trailers")
	answer, err := r.client.Do(ask)
	if err != nil {
		return nil, failed(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, answerMax+1))
	switch {
	case err != nil:
		return nil, failed(err)
	case answer.StatusCode != http.StatusOK:
		return nil, &callError{codes.Unknown, "unexpected HTTP status code received from server: " + answer.Status}
	case len(body) > answerMax:
		return nil, &callError{codes.ResourceExhausted, fmt.Sprintf("received message larger than max (%d)", answerMax)}
	}
	if err := statusIn(answer); err != nil {
		return nil, err
	}
	if len(body) < 5 || body[0] != 0 || int(binary.BigEndian.Uint32(body[1:])) != len(body)-5 {
		return nil, &callError{codes.Internal, "the response is not a message"}
	}
	return body[5:], nil
}

// failed converts an error of the connection to a callError.
func failed(err error) error {
	code := codes.Unavailable
	if errors.Is(err, context.DeadlineExceeded) {
		code = codes.DeadlineExceeded
	}
	return &callError{code, err.Error()}
}

// statusIn returns the gRPC status in the trailer of a response, or in its header if there is no
// trailer. The body must have been read.
func statusIn(answer *http.Response) error {
	from := answer.Trailer
	if from.Get("Grpc-Status") == "" {
		from = answer.Header
	}
	code, err := strconv.ParseUint(from.Get("Grpc-Status"), 10, 32)
	if err != nil {
		return &callError{codes.Internal, "server closed the stream without sending trailers"}
	}
	if codes.Code(code) == codes.OK {
		return nil
	}
	text := from.Get("Grpc-Message")
	if plain, err := url.PathUnescape(text); err == nil {
		text = plain
	}
	return &callError{codes.Code(code), text}
}

// ---- The three calls

// pluginStatus is the status of a plug-in.
type pluginStatus struct{ version, healthz, keyID string }

func (r *remote) status(ctx context.Context) (s pluginStatus, err error) {
	answer, err := r.call(ctx, "Status", nil)
	if err != nil {
		return s, err
	}
	err = eachField(answer, func(number protowire.Number, text []byte, _ uint64) error {
		switch number {
		case 1:
			s.version = truncate(string(text))
		case 2:
			s.healthz = truncate(string(text))
		case 3:
			s.keyID = string(text)
		}
		return nil
	})
	return s, err
}

// encrypt calls the plug-in to encrypt a seed.
func (r *remote) encrypt(ctx context.Context, id string, seed []byte) (o envelope, err error) {
	answer, err := r.call(ctx, "Encrypt", appendBytes(appendBytes(nil, 1, seed), 2, []byte(id)))
	if err != nil {
		return o, err
	}
	err = eachField(answer, func(number protowire.Number, text []byte, _ uint64) (err error) {
		switch number {
		case 1:
			o.encryptedSeed = bytes.Clone(text)
		case 2:
			o.keyID = string(text)
		case 3:
			o.annotations, err = addEntry(o.annotations, text)
		}
		return err
	})
	return o, err
}

// decrypt calls the plug-in to decrypt the seed of an envelope.
func (r *remote) decrypt(ctx context.Context, id string, o *envelope) (seed []byte, err error) {
	ask := appendBytes(appendBytes(appendBytes(nil, 1, o.encryptedSeed), 2, []byte(id)), 3, []byte(o.keyID))
	answer, err := r.call(ctx, "Decrypt", appendMap(ask, 4, o.annotations))
	if err != nil {
		return nil, err
	}
	err = eachField(answer, func(number protowire.Number, text []byte, _ uint64) error {
		if number == 1 {
			seed = bytes.Clone(text)
		}
		return nil
	})
	return seed, err
}
