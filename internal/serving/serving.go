// Package serving manages the address of a server, the certificate that it uses there, and the
// kubeconfig for clients.
//
//	e := &serving.Endpoint{Options: &options, Log: log}
//	listener, err := e.Listen()                  // before any file is created: a port in use leaves no file behind
//	err = e.Open(share)                          // opens --cert-dir for a generated certificate; share: where servers share their CA
//	url, secured, err := e.Secure(listener, cas) // cas: the CAs of accepted client certificates
//	err = e.WriteKubeconfig()                    // when the server is ready for clients
//	err = serving.Accept(server, listener)       // the server uses secured
//	go e.Run(ctx, clockSet)                      // renews generated certificates
//	err = e.CheckCertificates()                  // names certificates that expire soon or have expired, with advice
//
// Package auth/certs creates, stores and reloads certificates.
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

const renewInterval = 6 * time.Hour // interval between checks of the certificates

// An Endpoint represents the address of a server. The methods must be called in the order above.
type Endpoint struct {
	*options.Options
	Log       zerolog.Logger // logs the renewal of certificates
	Now       func() time.Time
	certs     *certs.Folder                    // nil without TLS, or with --tls-cert-file
	provided  *certs.Dynamic[tls.Certificate]  // the certificate of --tls-cert-file, if it is set
	url       string                           // set by Secure
	localOnly bool                             // the URL works only on this machine, although the server is reachable from others
	admin     atomic.Pointer[x509.Certificate] // client certificate in the kubeconfig, if any
}

// A Certificate is used by the server or by its administrator.
type Certificate struct {
	Name string            // serving, authority or admin
	Cert *x509.Certificate // the current certificate
	help string            // advice for when it expires
}

// Certificates returns the current certificates. The caller must have called Secure. The
// administrator's certificate exists after WriteKubeconfig.
func (e *Endpoint) Certificates() (all []Certificate) {
	switch {
	case e.certs != nil:
		all = append(all, Certificate{"serving", e.certs.Serving.Load().Leaf, "the server renews it every few hours in its last 30 days: its log says why it could not; a restart tries again"},
			Certificate{"authority", e.certs.Authority.Cert, "restart the server, which makes it anew on the same key, and give the new ca.crt to clients"})
	case e.provided != nil:
		all = append(all, Certificate{"serving", e.provided.Current().Leaf, "put a new one into the files of --tls-cert-file and --tls-private-key-file: the server reads them by itself"})
	}
	if admin := e.admin.Load(); admin != nil {
		all = append(all, Certificate{"admin", admin, "the server renews it in the file of --kubeconfig; a restart writes a new one"})
	}
	return all
}

// CheckCertificates returns an error that names the certificates that have expired or expire soon,
// with advice.
func (e *Endpoint) CheckCertificates() error {
	var ending []error
	for _, c := range e.Certificates() {
		if err := certs.CheckExpiry(c.Cert, e.Now()); err != nil {
			ending = append(ending, fmt.Errorf("the %s certificate %w: %s", c.Name, err, c.help))
		}
	}
	return errors.Join(ending...)
}

// KubeletCertificate returns a function that returns the client certificate for kubelets. The
// certificate is from --kubelet-client-certificate, or issued by the server's own CA. If there is
// neither, the function returns nil.
func (e *Endpoint) KubeletCertificate() (func() *tls.Certificate, error) {
	switch {
	case e.Kubelet.CertFile != "":
		pair, err := certs.NewDynamicPair(e.Log, e.Kubelet.CertFile, e.Kubelet.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("--kubelet-client-certificate: %w", err)
		}
		return pair.Current, nil
	case e.certs != nil:
		return e.certs.ClientPair(certs.KubeletClientName).Current, nil
	}
	return func() *tls.Certificate { return nil }, nil
}

// Listen binds the port.
func (e *Endpoint) Listen() (net.Listener, error) {
	listener, err := net.Listen("tcp", e.Options.Listen)
	if err != nil {
		return nil, explainListen(e.Options.Listen, err)
	}
	return listener, nil
}

// explainListen adds advice to an error of Listen.
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

// Open opens --cert-dir if the server creates its own certificate. The CA in that folder also signs
// client certificates. share lets several servers use the same CA; it may be nil.
func (e *Endpoint) Open(share certs.Share) error {
	if !e.OwnCerts {
		return nil
	}
	host, _, _ := net.SplitHostPort(e.Options.Listen) // validated with the flags
	services, err := e.ServiceRanges()
	if err != nil {
		return err
	}
	serviceIP := services[0].Addr().Next().AsSlice() // the cluster IP of the API server's Service
	named := e.Names
	if e.Advertised != "" {
		named = append(slices.Clip(named), e.Advertised)
	}
	e.certs, err = certs.OpenCertFolder(certs.Config{Dir: e.CertDir, Hosts: func() []string { return certs.ServerHosts(host, serviceIP, named...) },
		Now: e.Now, Share: share, Log: e.Log})
	if err == nil {
		e.Auth.OwnCA = e.certs.Authority.CertPEM
	}
	return err
}

// Secure returns the URL of the listener and the TLS configuration, if there is one. If clientCAs
// is nil, clients are not asked for certificates.
func (e *Endpoint) Secure(listener net.Listener, clientCAs func() *x509.CertPool) (url string, secured *tls.Config, err error) {
	host, localOnly := e.URLHost(listener.Addr().(*net.TCPAddr))
	e.localOnly = localOnly
	e.url = "http://" + host
	var certificate func() *tls.Certificate
	switch {
	case e.certs != nil:
		certificate = e.certs.Serving.Load
	case e.TLSCert != "":
		pair, err := certs.NewDynamicPair(e.Log, e.TLSCert, e.TLSKey)
		if err != nil {
			return "", nil, fmt.Errorf("--tls-cert-file: %w", err)
		}
		e.provided, certificate = pair, pair.Current
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

// WriteKubeconfig writes the kubeconfig atomically, if --kubeconfig is set.
func (e *Endpoint) WriteKubeconfig() error {
	if e.Kubeconfig == "" {
		return nil
	}
	cluster, admin, err := e.access()
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	if e.localOnly {
		e.Log.Info().Msg("the kubeconfig contains 127.0.0.1 and works only on this machine; for other machines, set --tls-san NAME or --advertise-address IP")
	}
	return kubeconfig.Write(e.Kubeconfig, cluster, admin)
}

// access returns the contents of the kubeconfig. For plain HTTP it sets insecure-skip-tls-verify,
// because the JavaScript client rejects plain HTTP without it and other clients ignore it. If the
// server has its own CA, access adds an administrator's certificate. Otherwise it cannot issue one,
// and the user is empty.
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

// Run renews the certificates that the server has created, until ctx ends. It checks them regularly
// and after each change of the clock.
func (e *Endpoint) Run(ctx context.Context, clockSet <-chan struct{}) {
	if e.certs == nil {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(renewInterval):
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
