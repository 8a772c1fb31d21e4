// Package kubelet connects clients with nodes and with the Pods that run on them. It implements the
// following subresources:
//
//	pods/log                            GET      the kubelet's /containerLogs, as text or by WebSocket
//	pods/exec, attach, portforward      GET POST an upgraded connection (SPDY or WebSocket) to the kubelet
//	pods/proxy, services/proxy          any      a request to a program in a Pod
//	nodes/proxy                         any      a request to the kubelet, or to another port of its node
//
// Admission runs with the operation CONNECT for all of them except for logs. Exec, attach and
// portforward require permission to create the subresource even if the request is a GET, because
// WebSockets begin with a GET.
//
// The address of a kubelet is read from its Node object. Its serving certificate is verified if
// --kubelet-certificate-authority is given, as in kube-apiserver. The number of proxied requests
// per user is limited, so that no user exhausts the server's connections. Package proxy describes
// the restrictions on the other server.
package kubelet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"apilet/internal/proxy"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	defaultPort = 10250            // used if the status of the Node does not contain a port
	idleConn    = 90 * time.Second // how long an idle connection is kept
	idleConns   = 2                // per address
	// maximum time until a kubelet sends the header of its response
	headerTimeout = time.Minute
)

// Config defines how to connect to kubelets.
type Config struct {
	Certificate func() *tls.Certificate // returns the client certificate, or nil
	// CAs for the certificates of kubelets; if nil, certificates are not verified
	Authorities  func() *x509.CertPool
	AddressTypes []corev1.NodeAddressType // types of Node addresses, in order of preference
	Timeout      time.Duration            // for connecting to a kubelet
}

// Clients are the HTTP transports to kubelets and Pods.
type Clients struct {
	config     Config
	verified   *http.Transport // to kubelets
	unverified *http.Transport // to kubelets if the client asked to skip verification
	pods       *http.Transport // to Pods, and to other ports of nodes
	podStreams *http.Transport // the same for upgraded connections
}

// NewClients returns transports that have not connected to anything yet.
func NewClients(config Config) *Clients {
	c := &Clients{config: config}
	c.verified, c.unverified = c.toKubelets(config.Authorities), c.toKubelets(nil)
	c.pods, c.podStreams = toPods(true), toPods(false)
	return c
}

// toKubelets returns a transport for kubelets. If authorities is not nil, it is used to verify
// their certificates. It loads the certificate and the authorities for each connection, because
// both may be replaced while the server runs.
func (c *Clients) toKubelets(authorities func() *x509.CertPool) *http.Transport {
	dialer := &net.Dialer{Timeout: c.config.Timeout}
	return &http.Transport{
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host, InsecureSkipVerify: authorities == nil}
			if authorities != nil {
				config.RootCAs = authorities()
			}
			if own := c.config.Certificate(); own != nil {
				config.Certificates = []tls.Certificate{*own}
			}
			return (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, network, address)
		},
		ResponseHeaderTimeout: headerTimeout, MaxResponseHeaderBytes: proxy.MaxHeader, MaxIdleConnsPerHost: idleConns, IdleConnTimeout: idleConn,
		DisableCompression: true, ExpectContinueTimeout: time.Second,
	}
}

// toPods returns a transport that does not verify certificates, because the server does not know
// the CAs of programs in Pods.
func toPods(http2 bool) *http.Transport {
	t := &http.Transport{DialContext: (&net.Dialer{Timeout: 30 * time.Second}).DialContext, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		TLSHandshakeTimeout: 10 * time.Second, MaxResponseHeaderBytes: proxy.MaxHeader, MaxIdleConnsPerHost: idleConns, IdleConnTimeout: idleConn,
		DisableCompression: true, ExpectContinueTimeout: time.Second, Protocols: new(http.Protocols)}
	t.Protocols.SetHTTP1(true)
	t.Protocols.SetHTTP2(http2)
	return t
}

// Close closes the idle connections.
func (c *Clients) Close() {
	for _, t := range []*http.Transport{c.verified, c.unverified, c.pods, c.podStreams} {
		t.CloseIdleConnections()
	}
}

// server is the address of a node's kubelet.
type server struct {
	host, port string
	old        bool // it does not support the newest WebSocket protocols
}

// kubelet returns the kubelet of a node. The error is a Status error if the node does not exist.
func (c *Connector) kubelet(node string) (server, error) {
	var n corev1.Node
	if err := c.read(c.Types.Lookup("", "v1", "nodes"), "", node, &n); err != nil {
		return server{}, err
	}
	port := n.Status.DaemonEndpoints.KubeletEndpoint.Port
	if port <= 0 {
		port = defaultPort
	}
	for _, preferred := range c.Clients.config.AddressTypes {
		for _, a := range n.Status.Addresses {
			if a.Type == preferred {
				return server{a.Address, strconv.Itoa(int(port)), !slices.Contains(n.Status.DeclaredFeatures, knowsWebSockets)}, nil
			}
		}
	}
	return server{}, fmt.Errorf("no preferred addresses found; known addresses: %v", n.Status.Addresses)
}

// read decodes an object. The error is a Status error if the object does not exist.
func (c *Connector) read(res *scheme.Resource, namespace, name string, into any) error {
	rec, err := c.Store.Get(res.Key(res.Scope(namespace), name))
	switch {
	case errors.Is(err, store.ErrNotFound):
		return response.StoreError(err, res, name)
	case err != nil:
		return err
	}
	return json.Unmarshal(rec.JSON, into)
}
