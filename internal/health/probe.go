package health

// This file: a server asks itself whether it answers, at its own port.

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/netip"
)

// A Probe asks the server of this process. It keeps one connection, so that a crowd of others does not keep it out. Make one with NewProbe.
type Probe struct {
	url    string
	client *http.Client
}

// NewProbe makes a probe of the server that listens at an address, with or without TLS. It shows no credentials, and does not look at the certificate,
// which may be for other names.
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

// Ask asks for a path. That strangers may not ask is an answer, too.
func (p Probe) Ask(ctx context.Context, path string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, nil)
	if err != nil {
		return err
	}
	r.Header.Set("User-Agent", "apilet/watchdog")
	answer, err := p.client.Do(r)
	if err != nil {
		return fmt.Errorf("the server does not answer itself: %w", err)
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 64<<10)) // so that the connection is used again
	switch answer.StatusCode {
	case http.StatusOK, http.StatusUnauthorized, http.StatusForbidden:
		return nil
	}
	return fmt.Errorf("the server answers itself %s", answer.Status)
}
