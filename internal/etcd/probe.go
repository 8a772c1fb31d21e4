//go:build !noetcd

package etcd

// This file finds out why etcd is unreachable. gRPC retries silently and reports only a timeout. An
// administrator needs to see the refused connection, the wrong certificate authority or the missing
// certificate.

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"time"
)

const probeTimeout = 3 * time.Second

// helloHTTP2 is the HTTP/2 client preface with empty settings. A server responds with its own
// settings.
const helloHTTP2 = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// errMisconfigured reports a problem of certificates or URL schemes, which does not resolve itself.
var errMisconfigured = errors.New("retrying does not help")

// probe connects to every server. It returns nil if at least one of them responds like etcd. The
// error wraps errMisconfigured if a server rejects the configuration.
func (cfg *Config) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	found := make(chan error, len(cfg.Servers))
	for _, server := range cfg.Servers {
		go func() { found <- cfg.probeServer(ctx, server) }()
	}
	var failures []error
	for range cfg.Servers {
		err := <-found
		if err == nil {
			return nil
		}
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}

func (cfg *Config) probeServer(ctx context.Context, server string) error {
	at, err := url.Parse(server)
	// host:port without a scheme or a Unix socket, which is handled by gRPC
	if err != nil || at.Scheme != "http" && at.Scheme != "https" {
		return nil
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", at.Host)
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	if at.Scheme != "https" {
		return probePlain(conn, server)
	}
	security, err := cfg.tls()
	if err != nil {
		return err
	}
	security = security.Clone()
	security.ServerName, security.NextProtos = at.Hostname(), []string{"h2"}
	return probeTLS(ctx, tls.Client(conn, security), server)
}

func probePlain(conn net.Conn, server string) error {
	answer, err := firstWords(conn)
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s closes the connection: it may require TLS (https://)", server)
	}
	// an alert of TLS, or an HTTP page with an error
	if err == nil && (answer[0] == 0x15 || bytes.HasPrefix(answer, []byte("HTTP/1"))) {
		return fmt.Errorf("%s requires TLS: use https:// (%w)", server, errMisconfigured)
	}
	return err
}

// probeTLS performs the handshake. If the server rejects the client's certificate or misses it,
// only the first response shows this.
func probeTLS(ctx context.Context, conn *tls.Conn, server string) error {
	err := conn.HandshakeContext(ctx)
	if err == nil {
		_, err = firstWords(conn)
	}
	var unverified *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var alert tls.AlertError
	var record tls.RecordHeaderError
	var refused *net.OpError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &unverified) || errors.As(err, &unknown):
		return fmt.Errorf("%s: %w (--etcd-cafile sets the CAs that verify it; %w)", server, err, errMisconfigured)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%s closes the connection: it may not use TLS (http://)", server)
	case errors.As(err, &record):
		return fmt.Errorf("%s does not use TLS: use http:// (%w)", server, errMisconfigured)
	case errors.As(err, &alert) || errors.As(err, &refused) && refused.Op == "remote error":
		return fmt.Errorf("%s: %w (etcd requires a client certificate of its own CA: --etcd-certfile and --etcd-keyfile; %w)", server, err, errMisconfigured)
	}
	return fmt.Errorf("%s: %w", server, err)
}

func firstWords(conn net.Conn) ([]byte, error) {
	if _, err := conn.Write([]byte(helloHTTP2)); err != nil {
		return nil, err
	}
	answer := make([]byte, 9)
	n, err := conn.Read(answer)
	if n > 0 {
		err = nil
	}
	return answer[:n], err
}
