package kubeconfig

// This file connects commands to a server. The server is specified by the flags --server,
// --token-file and --certificate-authority, or by a kubeconfig.

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"time"
)

// Remote defines a server and its credentials. It has a URL, and optionally a file with a bearer
// token and a file with CAs that replace those of the system. Alternatively, the context of a
// kubeconfig defines all of them, and possibly a client certificate.
type Remote struct {
	Server, TokenFile, CAFile string
	// "" means the current context
	Kubeconfig, Context string
	// the User-Agent; "" means Go's default
	Agent string
}

// Client is the client of one server.
type Client struct {
	http              *http.Client
	url, token, agent string
	Namespace         string // the namespace of the kubeconfig's context
}

// Client reads the files and returns the client.
func (r Remote) Client() (*Client, error) {
	if r.Kubeconfig != "" {
		return r.fromFile()
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true
	c := &Client{http: &http.Client{Transport: transport}, url: strings.TrimSuffix(r.Server, "/"), agent: r.Agent}
	if r.CAFile != "" {
		pem, err := os.ReadFile(r.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--certificate-authority: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--certificate-authority: no certificate in %s", r.CAFile)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	if r.TokenFile == "" {
		return c, nil
	}
	if !strings.HasPrefix(strings.ToLower(c.url), "https:") {
		return nil, errors.New("--token-file requires a --server with https: tokens are not sent in plain text")
	}
	token, err := os.ReadFile(r.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("--token-file: %w", err)
	}
	c.token = strings.TrimSpace(string(token))
	return c, nil
}

// fromFile returns a client for a kubeconfig's context.
func (r Remote) fromFile() (*Client, error) {
	k, err := read(r.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	if k != nil && r.Context != "" {
		k["current-context"] = r.Context
	}
	server, err := k.destination(r.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig %s: %w", r.Kubeconfig, err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true
	transport.TLSClientConfig = server.tls
	if server.token != "" && !strings.HasPrefix(strings.ToLower(server.url), "https:") {
		return nil, fmt.Errorf("--kubeconfig %s: tokens are not sent to %s in plain text", r.Kubeconfig, server.url)
	}
	current, _ := k["current-context"].(string)
	return &Client{http: &http.Client{Transport: transport}, url: strings.TrimSuffix(server.url, "/"), token: server.token, agent: r.Agent,
		Namespace: text(k.named("contexts", "context", current), "namespace")}, nil
}

const webhookConns = 100

// NewWebhookClient returns the client for a program that the server calls. The address and the
// credentials are read from the current context. Redirects are not followed, because they could
// send data to a server that was not configured. The number of connections is limited to
// webhookConns. If all connections are in use, further calls wait until their deadline.
func NewWebhookClient(path, agent string) (*Client, error) {
	k, err := read(path)
	if err == nil && k == nil {
		err = fmt.Errorf("stat %s: %w", path, fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	server, err := k.destination(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig, transport.MaxIdleConnsPerHost = server.tls, 25
	transport.MaxConnsPerHost, transport.MaxResponseHeaderBytes = webhookConns, 64<<10
	return &Client{url: server.url, token: server.token, agent: agent, http: &http.Client{Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}, nil
}

// Post sends a JSON document to the server. It returns the status code and the body of the
// response. If the body is longer than most bytes, it returns an error. The deadline of ctx is sent
// as the parameter timeout.
func (c *Client) Post(ctx context.Context, body []byte, most int64) (code int, answer []byte, err error) {
	return c.PostTo(ctx, "", body, most)
}

// URL returns the address of the server.
func (c *Client) URL() string { return c.url }

// PostTo is like Post, but appends a path, with or without a query, to the URL.
func (c *Client) PostTo(ctx context.Context, path string, body []byte, most int64) (code int, answer []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		query := r.URL.Query()
		query.Set("timeout", max(time.Until(deadline).Round(time.Second), time.Second).String())
		r.URL.RawQuery = query.Encode()
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, */*")
	if c.agent != "" {
		r.Header.Set("User-Agent", c.agent)
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := c.http.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	// the body is the connection, and reading it would not end with ctx
	if response.StatusCode == http.StatusSwitchingProtocols {
		return response.StatusCode, nil, nil
	}
	answer, err = io.ReadAll(io.LimitReader(response.Body, most+1))
	if err == nil && int64(len(answer)) > most {
		err = fmt.Errorf("the response is longer than %d bytes", most)
	}
	return response.StatusCode, answer, err
}

// NewClient returns a client that uses the caller's transport.
func NewClient(transport http.RoundTripper, url string) *Client {
	return &Client{http: &http.Client{Transport: transport}, url: url}
}

// Get sends a GET request for a path, which may have a query. headers are alternating names and
// values. The caller must close the body of the response.
func (c *Client) Get(ctx context.Context, path string, headers ...string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+path, nil)
	if err != nil {
		return nil, err
	}
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	if c.agent != "" {
		request.Header.Set("User-Agent", c.agent)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	return c.http.Do(request)
}
