package aggregation

// This file decides which parts of another server's response reach the client.
//
//	from the other server          to the client
//	103 Early Hints                nothing: of the 1xx responses only a requested 101 counts
//	200, Content-Type, ETag        the same
//	Set-Cookie, Refresh, Link      nothing: only the headers and trailers listed here pass
//	099, 600                       502
//	301, Location                  passes unless redirects are rejected; then 502
//
// The response has the origin of this server. A header that a browser obeys could otherwise act on
// everything of that origin.

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"apilet/internal/apierror"
)

// passedHeaders lists the response headers that reach the client. Location is handled separately,
// because it is allowed in a 201 response and in redirects, unless redirects are rejected.
var passedHeaders = headerSet(`
	Accept-Patch Accept-Ranges Age Allow Cache-Control Content-Digest Content-Disposition Content-Encoding Content-Language Content-Length
	Content-Location Content-Range Content-Type Date Deprecation Digest Etag Expires Last-Modified Pragma Preference-Applied Repr-Digest
	Retry-After Sunset Vary Warning X-Accepted-Stream-Protocol-Versions X-Stream-Protocol-Version
	Sec-Websocket-Accept Sec-Websocket-Extensions Sec-Websocket-Protocol Sec-Websocket-Version
	Grpc-Accept-Encoding Grpc-Encoding Grpc-Message Grpc-Status Grpc-Status-Details-Bin`)

// passedTrailers lists the response trailers that reach the client. Since clients may merge
// trailers into the headers, the list does not contain headers that affect the interpretation of
// the body.
var passedTrailers = headerSet(`Content-Digest Digest Etag Grpc-Message Grpc-Status Grpc-Status-Details-Bin Repr-Digest`)

func headerSet(names string) map[string]bool {
	set := map[string]bool{}
	for name := range strings.FieldsSeq(names) {
		set[name] = true
	}
	return set
}

// filterHeaders removes all headers from a response that an aggregated server may not set. ours are
// the headers of this server. Headers that the response replaces are deleted from ours.
func (g *Aggregator) filterHeaders(ours http.Header, answer *http.Response) {
	code, location := answer.StatusCode, answer.Header.Get("Location")
	redirects := code >= 300 && code <= 399 && location != ""
	switch {
	case redirects && g.RejectRedirects:
		replaceAnswer(answer, "the backend attempted to redirect this request, which is not permitted")
		return
	case code != http.StatusSwitchingProtocols && apierror.UpstreamCode(code) != code:
		replaceAnswer(answer, fmt.Sprintf("the backend answered with the status code %03d, which is none of HTTP's final ones", code))
		return
	}
	for key := range answer.Header {
		passes := passedHeaders[key] || key == "Location" && (redirects || code == http.StatusCreated) ||
			code == http.StatusSwitchingProtocols && (key == "Connection" || key == "Upgrade")
		switch {
		case !passes:
			delete(answer.Header, key)
		case key != "Warning" && key != "Connection":
			ours.Del(key)
		}
	}
	answer.Header.Set("Content-Security-Policy", "sandbox")
	if code == http.StatusSwitchingProtocols {
		answer.Header.Set("Connection", "Upgrade")
		answer.Status = "" // drops the reason phrase of the other server
		return
	}
	filterTrailer(answer.Trailer)
	answer.Body = &trailerFilter{answer.Body, answer}
}

// replaceAnswer replaces the response by a 502 with the given text. The body that the other server
// sends is not read.
func replaceAnswer(answer *http.Response, text string) {
	_ = answer.Body.Close() // its content is not needed
	*answer = http.Response{StatusCode: http.StatusBadGateway, Proto: answer.Proto, ProtoMajor: answer.ProtoMajor, ProtoMinor: answer.ProtoMinor, Request: answer.Request,
		Header: http.Header{"Content-Type": {"text/plain; charset=utf-8"}}, Body: io.NopCloser(strings.NewReader(text)), ContentLength: int64(len(text))}
}

// trailerFilter removes trailers that do not pass. http.Transport adds trailers to the response
// when the body has been read, announced or not, and httputil.ReverseProxy copies them after it has
// closed the body.
type trailerFilter struct {
	io.ReadCloser
	answer *http.Response
}

func (b *trailerFilter) Close() error {
	err := b.ReadCloser.Close()
	filterTrailer(b.answer.Trailer)
	return err
}

func filterTrailer(trailer http.Header) {
	for key := range trailer {
		if !passedTrailers[http.CanonicalHeaderKey(key)] {
			delete(trailer, key)
		}
	}
}
