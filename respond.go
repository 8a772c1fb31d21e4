package main

// This file gives a response its form: which media type the client's Accept header gets, how an error becomes a Status, and how a JSON
// document goes out, compact, indented or as YAML.
//
//	Accept: application/vnd.kubernetes.protobuf,application/json        a typed client: JSON, since protobuf is read here but not written
//	Accept: application/json;as=Table;g=meta.k8s.io;v=v1                kubectl get
//	Accept: text/html                                                   406

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// A mediaType is the form a response takes.
type mediaType struct {
	format      bodyFormat // jsonFormat or yamlFormat
	pretty      bool
	as, version string // "Table", "PartialObjectMetadata", "PartialObjectMetadataList" of meta.k8s.io, and "v1" or "v1beta1"
}

// responseFormats are what we write. Typed clients ask for protobuf first and are content with JSON.
var responseFormats = []bodyFormat{jsonFormat, yamlFormat}

// negotiate picks the best form in an Accept header. as are the kinds of meta.k8s.io that the endpoint can turn its answer into.
// err is a 406 Status error.
func negotiate(accept string, as ...string) (mediaType, error) {
	switch accept {
	case "", "*/*", "application/json", "application/vnd.kubernetes.protobuf,application/json":
		return mediaType{format: jsonFormat}, nil
	}
	anyFormat := false
	for _, clause := range parseAccept(accept) {
		format := clause.format()
		if format == "" {
			continue
		}
		anyFormat = true
		if m, ok := clause.transform(format, as); ok {
			return m, nil
		}
	}
	if anyFormat {
		return mediaType{}, statusError(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
			"only the following media types are accepted: "+joinFormats(responseFormats))
	}
	err := statusError(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		"406: Not Acceptable\n\nAvailable representations: "+joinFormats(responseFormats))
	err.ErrStatus.Details = &metav1.StatusDetails{}
	return mediaType{}, err
}

// An acceptClause is one of the alternatives in an Accept header.
type acceptClause struct {
	name    string
	quality float64
	params  map[string]string
}

// parseAccept returns the alternatives, the most wanted first, wildcards behind equally wanted names. It takes q=0 for the least
// wanted, not for unwanted, as kube-apiserver does.
func parseAccept(accept string) (clauses []acceptClause) {
	for part := range strings.SplitSeq(accept, ",") {
		name, rest, _ := strings.Cut(part, ";")
		clause := acceptClause{name: strings.TrimSpace(name), quality: 1, params: map[string]string{}}
		for param := range strings.SplitSeq(rest, ";") {
			key, value, _ := strings.Cut(strings.TrimSpace(param), "=")
			clause.params[key] = value
		}
		if q, ok := clause.params["q"]; ok {
			clause.quality, _ = strconv.ParseFloat(q, 64)
		}
		clauses = append(clauses, clause)
	}
	slices.SortStableFunc(clauses, func(a, b acceptClause) int {
		return cmp.Or(cmp.Compare(b.quality, a.quality), cmp.Compare(strings.Count(a.name, "*"), strings.Count(b.name, "*")))
	})
	return clauses
}

// format is the one that the clause's name selects, "" if none. kube-apiserver knows no application/* here.
func (c acceptClause) format() bodyFormat {
	if c.name == "*/*" || c.name == "*" {
		return jsonFormat
	}
	if f := bodyFormat(c.name); slices.Contains(responseFormats, f) {
		return f
	}
	return ""
}

// transform reads the parameters; ok is false when they ask for what the endpoint cannot do.
func (c acceptClause) transform(format bodyFormat, as []string) (m mediaType, ok bool) {
	m = mediaType{format: format, pretty: c.params["pretty"] == "1", as: c.params["as"], version: c.params["v"]}
	group := c.params["g"]
	if stream := c.params["stream"]; stream != "" && stream != "watch" || c.params["sv"] != "" {
		return m, false
	}
	if m.as == "" && m.version == "" && group == "" {
		return m, true
	}
	return m, group == metav1.GroupName && (m.version == "v1" || m.version == "v1beta1") && slices.Contains(as, m.as)
}

// fits is the 406 for asking for a list's form of a single object or the other way round.
func (m mediaType) fits(res *resource, isList bool) error {
	shape := ""
	switch {
	case m.as == "PartialObjectMetadata" && isList:
		shape = "is a list (*" + internalName(res.group, res.listKind) + ")"
	case m.as == "PartialObjectMetadataList" && !isList:
		shape = "is not a list (*" + internalName(res.group, res.kind) + ")"
	default:
		return nil
	}
	return statusError(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		fmt.Sprintf("you requested %s, but the requested object %s", m.as, shape))
}

// wantsPretty tells whether a human reads the response: ?pretty decides, else the tool does.
func wantsPretty(r *http.Request) bool {
	if strings.Contains(r.URL.RawQuery, "pretty") {
		if value := r.URL.Query().Get("pretty"); value != "" {
			pretty, _ := strconv.ParseBool(value)
			return pretty
		}
	}
	agent := r.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}

// writeError answers with the Status of err (an apierrors.APIStatus; anything else is a 500 InternalError), honouring Accept. It
// returns err when that was no Status: the client got a generic text, so the caller logs it.
func writeError(w http.ResponseWriter, r *http.Request, err error) (unexpected error) {
	status, unexpected := errorStatus(err)
	if d := status.Details; d != nil && d.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(d.RetryAfterSeconds)))
	}
	doc, _ := marshalAs(&status, "v1", "Status")
	writeJSON(w, r, int(status.Code), doc)
	return unexpected
}

func errorStatus(err error) (status metav1.Status, unexpected error) {
	var apiErr apierrors.APIStatus
	if !errors.As(err, &apiErr) {
		return apierrors.NewInternalError(errors.New("the server could not complete the request; its log says why")).ErrStatus, err
	}
	status = apiErr.Status()
	status.Status = cmp.Or(status.Status, metav1.StatusFailure)
	switch {
	case status.Code != 0:
	case status.Status == metav1.StatusSuccess:
		status.Code = http.StatusOK
	default:
		status.Code = http.StatusInternalServerError
	}
	return status, nil
}

func errNoSuchResource() error {
	return routerError(http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
}

func errMethodNotAllowed() error {
	return routerError(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "the server does not allow this method on the requested resource")
}

// routerError is an error of the path or method: its details are there, and empty.
func routerError(code int32, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason,
		Message: message, Details: &metav1.StatusDetails{}}}
}

// writeJSON answers with a JSON document, as YAML when the request's Accept prefers it. An Accept that cannot be met gets JSON: the
// handler has refused it before, and errors have to go out somehow.
func writeJSON(w http.ResponseWriter, r *http.Request, code int, doc []byte) {
	m, err := negotiate(r.Header.Get("Accept"), "Table", "PartialObjectMetadata", "PartialObjectMetadataList")
	if err != nil {
		m.format = jsonFormat
	}
	doc, newline, format := m.dress(doc, wantsPretty(r))
	header := w.Header()
	header.Set("Content-Type", string(format))
	header.Set("Content-Length", strconv.Itoa(len(doc)+len(newline)))
	if header.Get("Cache-Control") == "" {
		header.Set("Cache-Control", "no-cache, private")
	}
	w.WriteHeader(code)
	w.Write(doc)
	io.WriteString(w, newline)
}

// dress gives a JSON document the negotiated form, and names what belongs behind it: like kube-apiserver's, compact JSON ends in a newline
// and indented JSON does not. What YAML cannot hold, such as a DEL character, stays JSON and says so in its format, and what is nested
// deeply stays compact: indenting the 10,000 levels that a custom resource may have makes 100 MB of spaces.
func (m mediaType) dress(doc []byte, forHumans bool) (dressed []byte, newline string, format bodyFormat) {
	plain := m.format != yamlFormat && !m.pretty && !forHumans
	if plain || nestedDeeply(doc) {
		return doc, "\n", jsonFormat
	}
	if m.format == yamlFormat {
		if asYAML, err := yaml.JSONToYAML(doc); err == nil {
			return asYAML, "", yamlFormat
		}
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, doc, "", "  "); err != nil {
		return doc, "\n", jsonFormat
	}
	return indented.Bytes(), "", jsonFormat
}

// nestedDeeply tells whether a JSON document has more levels than anyone reads.
func nestedDeeply(doc []byte) bool {
	const most = 500
	depth, inString := 0, false
	for i := 0; i < len(doc); i++ {
		switch c := doc[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > most {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}
