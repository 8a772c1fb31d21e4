package main

// This file describes a hostile request as data that can be shrunk, printed as a command, and read
// again by -replay.

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// A request describes the request and the number of connections. It may require other requests to
// be sent first.
type request struct {
	As          string      `json:"as"` // one of personas
	Method      string      `json:"method"`
	Path        string      `json:"path"`
	Query       [][2]string `json:"query,omitempty"`
	Accept      string      `json:"accept,omitempty"`
	ContentType string      `json:"contentType,omitempty"`
	Header      [][2]string `json:"header,omitempty"` // sent unchanged
	Body        *node       `json:"body,omitempty"`
	Before      []*request  `json:"before,omitempty"`
	// if zero, the request is sent once and the response is read completely
	Connections int `json:"connections,omitempty"`
	// how the connections behave: "never reads", "trickles" or "leaves"
	Manner string   `json:"manner,omitempty"`
	Tags   []string `json:"tags,omitempty"`
}

// The personas, sorted by their rights. Their tokens have this prefix.
var personas = []string{"stranger", "node", "tenant", "administrator"}

const tokenPrefix = "siege-token-of-"

func (q *request) target() string {
	if len(q.Query) == 0 {
		return q.Path
	}
	var query []string
	for _, p := range q.Query {
		query = append(query, url.QueryEscape(p[0])+"="+url.QueryEscape(p[1]))
	}
	return q.Path + "?" + strings.Join(query, "&")
}

// http returns the request for the server at base.
func (q *request) http(base string, body []byte) (*http.Request, error) {
	r, err := http.NewRequest(q.Method, base+q.target(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{"Accept": q.Accept, "Content-Type": q.ContentType} {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	if q.As != "stranger" {
		r.Header.Set("Authorization", "Bearer "+tokenPrefix+q.As)
	}
	for _, h := range q.Header {
		r.Header[h[0]] = []string{h[1]}
	}
	return r, nil
}

// endless reports whether the response is a stream without an end.
func (q *request) endless() bool {
	return slices.ContainsFunc(q.Query, func(p [2]string) bool { return p[0] == "watch" || p[0] == "follow" }) || strings.Contains(q.Path, "/watch/")
}

// features returns the tags of the request, the options and the body.
func (q *request) features() []string {
	all := slices.Clone(q.Tags)
	for _, p := range q.Query {
		all = append(all, "?"+p[0])
	}
	if q.Accept != "" {
		all = append(all, "Accept "+q.Accept)
	}
	if q.Manner != "" {
		all = append(all, q.Manner)
	}
	for _, h := range q.Header {
		all = append(all, "Header "+h[0])
	}
	for _, n := range q.Body.nodes() {
		all = append(all, n.Tags...)
	}
	for _, b := range q.Before {
		all = append(all, b.features()...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// curl returns the command that sends the request with a body from a file.
func (q *request) curl(file string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "curl -sk -o /dev/null -w '%%{http_code} %%{size_download} bytes\\n' -X %s", q.Method)
	if q.As != "stranger" {
		fmt.Fprintf(&b, " -H 'Authorization: Bearer %s%s'", tokenPrefix, q.As)
	}
	for _, h := range [][2]string{{"Accept", q.Accept}, {"Content-Type", q.ContentType}} {
		if h[1] != "" {
			fmt.Fprintf(&b, " -H '%s: %s'", h[0], h[1])
		}
	}
	for _, h := range q.Header {
		fmt.Fprintf(&b, " -H '%s: %.200s'", h[0], h[1])
	}
	if q.Body != nil {
		fmt.Fprintf(&b, " --data-binary @%s", file)
	}
	fmt.Fprintf(&b, ` "$U%.2000s"`, q.target())
	if q.Connections > 0 {
		fmt.Fprintf(&b, "   # %d connections, each %s", q.Connections, q.Manner)
	}
	return b.String()
}
