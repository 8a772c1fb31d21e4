package health

// This file checks from inside the process whether the server responds on its own port.

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/netip"
)

// A Probe sends requests to the server of this process. It keeps one connection open, so that it
// works even if the server accepts no more connections. Use NewProbe to create one.
type Probe struct {
	url    string
	client *http.Client
}

// NewProbe returns a Probe for the server at the given address. It uses TLS if secured is true. It
// sends no credentials. It does not verify the certificate, which may be for other names.
func NewProbe(at netip.AddrPort, secured bool) Probe {
	host := at.Addr().Unmap()
	if host.IsUnspecified() {
		host = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	scheme := "http"
	if secured {
		scheme = "https"
	}
	return Probe{url: scheme + "://" + netip.AddrPortFrom(host, at.Port()).String(), client: &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxConnsPerHost: 1}}}
}

// Get requests a path. The statuses 401 and 403 also count as success, because they show that the
// server responds.
func (p Probe) Get(ctx context.Context, path string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, nil)
	if err != nil {
		return err
	}
	r.Header.Set("User-Agent", "apilet/watchdog")
	answer, err := p.client.Do(r)
	if err != nil {
		return fmt.Errorf("the server does not respond to its own request: %w", err)
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 64<<10)) // so that the connection can be reused
	switch answer.StatusCode {
	case http.StatusOK, http.StatusUnauthorized, http.StatusForbidden:
		return nil
	}
	return fmt.Errorf("the server responded to its own request with %s", answer.Status)
}
