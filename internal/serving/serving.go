// Package serving is where a server is reached: its address, the certificate that it shows there, and the kubeconfig that tells clients of
// both.
//
//	e := &serving.Endpoint{Options: &options, Log: log}
//	listener, err := e.Listen()                  // before any file is made: a port in use leaves none behind
//	err = e.Open(share)                          // --cert-dir, where the server makes its own certificate; share: with which servers the authority is shared
//	url, secured, err := e.Secure(listener, cas) // cas: whose client certificates are taken
//	err = e.WriteKubeconfig()                    // for those who shall come, once they can be answered
//	err = serving.Accept(server, listener)       // with secured in it
//	go e.Run(ctx)                                // what the server has made is renewed before it expires
//	err = e.Valid()                              // which of its certificates ends soon, or has expired, and what to do about it
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
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"apilet/internal/auth/certs"
	"apilet/internal/kubeconfig"
	"apilet/internal/options"
)

const renewEvery = 6 * time.Hour // certificates are looked at

// An Endpoint is one server's. Its methods are called one after the other, in the order above.
type Endpoint struct {
	*options.Options
	Log     zerolog.Logger // is told of certificates that are renewed
	Now     func() time.Time
	certs   *certs.Folder                    // nil without TLS, or with --tls-cert-file
	given   *certs.Followed[tls.Certificate] // of --tls-cert-file; nil without
	url     string                           // known to Secure
	nowhere bool                             // the URL is of use on this machine alone, although others reach the server
	admin   atomic.Pointer[x509.Certificate] // in the kubeconfig; nil: none
}

// A Certificate is one that the server or its administrator depends on.
type Certificate struct {
	Name string            // serving, authority or admin
	Cert *x509.Certificate // as it is now
	help string            // what to do when it ends
}

// Certificates are those that there are: after Secure, and the administrator's after WriteKubeconfig.
func (e *Endpoint) Certificates() (all []Certificate) {
	switch {
	case e.certs != nil:
		all = append(all, Certificate{"serving", e.certs.Serving.Load().Leaf, "the server renews it every few hours in its last 30 days: its log says why it could not; a restart tries again"},
			Certificate{"authority", e.certs.Authority.Cert, "restart the server, which makes it anew on the same key, and give the new ca.crt to clients"})
	case e.given != nil:
		all = append(all, Certificate{"serving", e.given.Now().Leaf, "put a new one into the files of --tls-cert-file and --tls-private-key-file: the server reads them by itself"})
	}
	if admin := e.admin.Load(); admin != nil {
		all = append(all, Certificate{"admin", admin, "the server renews it in the file of --kubeconfig; a restart writes a new one"})
	}
	return all
}

// Valid says which certificates have expired or will soon, and what to do; nil: none.
func (e *Endpoint) Valid() error {
	var ending []error
	for _, c := range e.Certificates() {
		if err := certs.Ends(c.Cert, e.Now()); err != nil {
			ending = append(ending, fmt.Errorf("the %s certificate %w: %s", c.Name, err, c.help))
		}
	}
	return errors.Join(ending...)
}

// KubeletCertificate returns the function that returns the client certificate for kubelets: that of --kubelet-client-certificate, or one
// of the server's own authority. Without either the function returns nil.
func (e *Endpoint) KubeletCertificate() (func() *tls.Certificate, error) {
	switch {
	case e.Kubelet.CertFile != "":
		pair, err := certs.FollowPair(e.Log, e.Kubelet.CertFile, e.Kubelet.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("--kubelet-client-certificate: %w", err)
		}
		return pair.Now, nil
	case e.certs != nil:
		return e.certs.ClientPair(certs.KubeletClientName).Now, nil
	}
	return func() *tls.Certificate { return nil }, nil
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

// Open opens --cert-dir where the server needs it. The authority there is one that may sign client certificates; servers that share it have one. share
// may be nil.
func (e *Endpoint) Open(share certs.Share) error {
	if !e.OwnCerts {
		return nil
	}
	host, _, _ := net.SplitHostPort(e.Options.Listen) // checked with the flags
	services, err := e.ServiceBlocks()
	if err != nil {
		return err
	}
	serviceIP := services[0].Addr().Next().AsSlice() // the API server's own Service's
	named := e.Names
	if e.Advertised != "" {
		named = append(slices.Clip(named), e.Advertised)
	}
	e.certs, err = certs.OpenCertFolder(certs.Config{Dir: e.CertDir, Hosts: func() []string { return certs.OwnHosts(host, serviceIP, named...) },
		Now: e.Now, Share: share, Log: e.Log})
	if err == nil {
		e.Auth.OwnCA = e.certs.Authority.CertPEM
	}
	return err
}

// Secure says under which URL the listener is reached, and returns the TLS configuration if there is one. clientCAs may be nil: no client
// shows a certificate then.
func (e *Endpoint) Secure(listener net.Listener, clientCAs func() *x509.CertPool) (url string, secured *tls.Config, err error) {
	host, localOnly := e.ReachedAt(listener.Addr().(*net.TCPAddr))
	e.nowhere = localOnly
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
		e.given, certificate = pair, pair.Now
	default:
		return e.url, nil, nil
	}
	e.url = "https://" + host
	return e.url, certs.TLSConfig(certificate, clientCAs), nil
}

// Accept serves until the listener is closed, over TLS if the server has a configuration for it.
func Accept(server *http.Server, listener net.Listener) error {
	if server.TLSConfig == nil {
		return server.Serve(listener)
	}
	return server.ServeTLS(listener, "", "")
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
	if e.nowhere {
		e.Log.Info().Msg("the kubeconfig points to 127.0.0.1, and works on this machine only: for others, set --tls-san NAME or --advertise-address IP")
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
		e.admin.Store(pair.Cert)
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

// Run keeps the certificates that the server makes from expiring under it, until ctx ends. It looks at them now and then, and whenever the
// clock has been set.
func (e *Endpoint) Run(ctx context.Context, clockSet <-chan struct{}) {
	if e.certs == nil {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(renewEvery):
		case <-clockSet:
		}
		err := e.certs.Renew()
		if admin := e.admin.Load(); err == nil && admin != nil && e.Now().Add(certs.RenewBefore).After(admin.NotAfter) {
			err = e.WriteKubeconfig()
		}
		if err != nil {
			e.Log.Error().Err(err).Msg("cannot renew the certificates")
		}
	}
}
