package kubelet

// This file rewrites the links in pages that a program in a Pod serves, so that they lead through
// the proxy subresource.

import (
	"bytes"
	"io"
	"net/http"
	"strings"

	utilproxy "k8s.io/apimachinery/pkg/util/proxy"
)

// maxRewritten is the maximum size in bytes of a rewritten page. Longer pages are passed unchanged,
// because rewriting a page requires it to be in memory.
const maxRewritten = 1 << 20

// notRewritten is a prefix of the Content-Type that hides HTML from utilproxy.Transport.
const notRewritten = "unrewritten/"

// linkRewriter is a transport that prepends a path to the links in HTML pages, and to the Location
// of a redirect.
type linkRewriter struct {
	next   http.RoundTripper
	prefix string
}

// prefixOf returns the part of a request's path before the path on the other server.
func prefixOf(path, there string) string {
	if strings.HasSuffix(path, "/") && !strings.HasSuffix(there, "/") {
		there += "/"
	}
	return strings.TrimSuffix(path, there)
}

func (t *linkRewriter) RoundTrip(r *http.Request) (*http.Response, error) {
	inner := &utilproxy.Transport{PathPrepend: t.prefix, RoundTripper: boundedTransport{t.next}}
	answer, err := inner.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if kind, hidden := strings.CutPrefix(answer.Header.Get("Content-Type"), notRewritten); hidden {
		answer.Header.Set("Content-Type", kind)
	}
	return answer, nil
}

// boundedTransport is a transport that buffers pages up to maxRewritten bytes. It marks longer and
// compressed pages as unrewritten.
type boundedTransport struct{ next http.RoundTripper }

func (t boundedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := t.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	kind := answer.Header.Get("Content-Type")
	if media, _, _ := strings.Cut(kind, ";"); strings.TrimSpace(media) != "text/html" || r.Method == http.MethodHead {
		return answer, nil
	}
	if answer.ContentLength > maxRewritten || answer.Header.Get("Content-Encoding") != "" {
		answer.Header.Set("Content-Type", notRewritten+kind)
		return answer, nil
	}
	page, err := io.ReadAll(io.LimitReader(answer.Body, maxRewritten+1))
	switch {
	case err != nil:
		answer.Body.Close()
		return nil, err
	case len(page) > maxRewritten:
		answer.Header.Set("Content-Type", notRewritten+kind)
		answer.Body = restBody{io.MultiReader(bytes.NewReader(page), answer.Body), answer.Body}
		return answer, nil
	}
	answer.Body.Close()
	answer.Body = io.NopCloser(bytes.NewReader(page))
	return answer, nil
}

// restBody is a partially read body.
type restBody struct {
	io.Reader
	io.Closer
}
