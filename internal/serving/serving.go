// Package serving is where a server is reached: its address, the certificate that it shows there, and the kubeconfig that tells clients of
// both.
//
//	e := &serving.Endpoint{Options: &options, Log: log}
//	listener, err := e.Listen()                  // before any file is made: a port in use leaves none behind
//	err = e.Open()                               // --cert-dir, where the server makes its own certificate
//	url, secured, err := e.Secure(listener, cas) // cas: whose client certificates are taken
//	err = e.WriteKubeconfig()                    // for those who shall come, once they can be answered
//	err = serving.Accept(server, listener)       // with secured in it
//	go e.Run(ctx)                                // what the server has made is renewed before it expires
//
// How certificates are made, kept and followed is package auth/certs.
package serving

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"apilet/internal/auth/certs"
	"apilet/internal/kubeconfig"
	"apilet/internal/options"
	"apilet/internal/registry/allocator"
	"apilet/internal/tlsbatch"
)

const renewEvery = 6 * time.Hour // certificates are looked at

// An Endpoint is one server's. Its methods are called one after the other, in the order above.
type Endpoint struct {
	*options.Options
	Log       zerolog.Logger // is told of certificates that are renewed
	certs     *certs.Folder  // nil without TLS, or with --tls-cert-file
	url       string         // known to Secure
	adminEnds time.Time      // of the certificate in the kubeconfig
}

// Listen takes the port.
func (e *Endpoint) Listen() (net.Listener, error) {
	listener, err := net.Listen("tcp", e.Options.Listen)
	if err != nil {
		return nil, explainListen(e.Options.Listen, err)
	}
	return listener, nil
}

// explainListen says what to do about a port that cannot be had.
func explainListen(address string, err error) error {
	advice := "name an address of this machine"
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		advice = "stop the program that has it, or choose another port (0 picks a free one)"
	case errors.Is(err, syscall.EACCES):
		advice = "ports below 1024 are for privileged programs: choose another"
	}
	return fmt.Errorf("--listen %s: %w: %s", address, err, advice)
}

// Open opens --cert-dir where the server needs it. The authority there is one that may sign client certificates.
func (e *Endpoint) Open() error {
	if !e.OwnCerts {
		return nil
	}
	host, _, _ := net.SplitHostPort(e.Options.Listen) // checked with the flags
	serviceIP, err := allocator.FirstServiceIP(e.ServiceRange)
	if err != nil {
		return err
	}
	e.certs, err = certs.OpenCertFolder(e.CertDir, func() []string { return certs.OwnHosts(host, e.Advertised, serviceIP) }, e.Log)
	if err == nil {
		e.Auth.OwnCA = e.certs.Authority.CertPEM
	}
	return err
}

// Secure says under which URL the listener is reached, and returns the TLS configuration if there is one. clientCAs may be nil: no client
// shows a certificate then.
func (e *Endpoint) Secure(listener net.Listener, clientCAs *certs.Followed[x509.CertPool]) (url string, secured *tls.Config, err error) {
	addr := listener.Addr().(*net.TCPAddr)
	host := addr.String()
	if addr.IP.IsUnspecified() { // listens on all addresses, but it is none
		host = net.JoinHostPort("127.0.0.1", strconv.Itoa(addr.Port))
	}
	e.url = "http://" + host
	var certificate func() *tls.Certificate
	switch {
	case e.certs != nil:
		certificate = e.certs.Serving.Load
	case e.TLSCert != "":
		pair, err := certs.FollowPair(e.Log, e.TLSCert, e.TLSKey)
		if err != nil {
			return "", nil, fmt.Errorf("--tls-cert-file: %w", err)
		}
		certificate = pair.Now
	default:
		return e.url, nil, nil
	}
	e.url = "https://" + host
	if clientCAs == nil {
		return e.url, certs.TLSConfig(certificate, nil), nil
	}
	return e.url, certs.TLSConfig(certificate, clientCAs.Now), nil
}

// Accept serves until the listener is closed, over TLS if the server has a configuration for it.
func Accept(server *http.Server, listener net.Listener) error {
	if server.TLSConfig == nil {
		return server.Serve(listener)
	}
	return server.ServeTLS(tlsbatch.Listener{Listener: listener}, "", "")
}

// WriteKubeconfig writes how to reach this server, at once and whole, where that is asked for.
func (e *Endpoint) WriteKubeconfig() error {
	if e.Kubeconfig == "" {
		return nil
	}
	cluster, admin, err := e.access()
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	return kubeconfig.Write(e.Kubeconfig, cluster, admin)
}

// access is what a client needs. On the plain port it says insecure-skip-tls-verify: the JavaScript client refuses plain HTTP otherwise,
// the others ignore it. A server with an authority of its own adds an administrator's certificate; another cannot make one, and leaves
// the user empty.
func (e *Endpoint) access() (cluster, admin map[string]any, err error) {
	cluster, admin = map[string]any{"server": e.url}, map[string]any{}
	switch {
	case e.certs != nil:
		cluster["certificate-authority-data"] = e.certs.Authority.CertPEM
		pair, err := e.certs.IssueAdmin()
		if err != nil {
			return nil, nil, err
		}
		admin["client-certificate-data"], admin["client-key-data"] = pair.CertPEM, pair.KeyPEM
		e.adminEnds = pair.Cert.NotAfter
	case e.TLSCert != "":
		ca, err := os.ReadFile(e.TLSCert)
		if err != nil {
			return nil, nil, err
		}
		cluster["certificate-authority-data"] = ca
	default:
		cluster["insecure-skip-tls-verify"] = true
	}
	return cluster, admin, nil
}

// Run keeps the certificates that the server makes from expiring under it, until ctx ends.
func (e *Endpoint) Run(ctx context.Context) {
	if e.certs == nil {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(renewEvery):
		}
		err := e.certs.Renew()
		if err == nil && e.Kubeconfig != "" && time.Now().Add(certs.RenewBefore).After(e.adminEnds) {
			err = e.WriteKubeconfig()
		}
		if err != nil {
			e.Log.Error().Err(err).Msg("renewing certificates")
		}
	}
}
