package response

// This file selects the format of a response by the Accept header.
//
//	Accept: application/vnd.kubernetes.protobuf,application/json        a typed client: protobuf, or JSON for custom resources
//	Accept: application/json;as=Table;g=meta.k8s.io;v=v1                kubectl get
//	Accept: */*, application/*, or no Accept                            JSON
//	Accept: text/html                                                   406

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/apierror"
	"apilet/internal/request"
	"apilet/internal/scheme"
)

// MediaType is the negotiated format of a response.
type MediaType struct {
	// the encoding
	Format scheme.BodyFormat
	// pretty=1 in the Accept header: the JSON is indented
	Pretty bool
	// the kind "Table", "PartialObjectMetadata" or "PartialObjectMetadataList" of meta.k8s.io,
	// and the version "v1" or "v1beta1"
	As, Version string
}

// Offer lists the formats that an endpoint supports.
type Offer struct {
	// supported encodings, with the default first
	Formats []scheme.BodyFormat
	// supported kinds of meta.k8s.io
	as []string
	// the type of the objects; nil if the response is not a stored object
	stored *scheme.Resource
	// set if kube-apiserver uses a different error text
	unrouted bool
	// a LIST or WATCH of a built-in type, whose 406 also lists the stream formats
	streams bool
}

var (
	// documents without a Go type
	documents = Offer{Formats: []scheme.BodyFormat{scheme.JSONFormat, scheme.YAMLFormat}}
	// a Status, a Scale, or a discovery document
	Objects = Offer{Formats: []scheme.BodyFormat{scheme.JSONFormat, scheme.YAMLFormat, scheme.ProtobufFormat}}

	objectForms = []string{"Table", "PartialObjectMetadata", "PartialObjectMetadataList"}
)

// offerOf returns the formats supported for objects of a resource.
func offerOf(res *scheme.Resource, info *request.Info) Offer {
	o := Offer{Formats: Objects.Formats, as: formsOf(res, info), stored: res, unrouted: res.GoType == nil}
	o.streams = !o.unrouted && (info.Verb == "list" || info.Verb == "watch")
	return o
}

// formsOf returns the kinds that an object can be converted to. Reviews, bindings, evictions and
// token requests have no Table form.
func formsOf(res *scheme.Resource, info *request.Info) []string {
	switch {
	case res.Virtual && res.Allows("create"), info.Subresource == "binding", info.Subresource == "eviction", info.Subresource == "token":
		return objectForms[1:]
	}
	return objectForms
}

// wholeInProtobuf reports whether complete objects can be encoded as protobuf. For custom resources
// only the metadata can.
func (o Offer) wholeInProtobuf() bool { return o.stored == nil || o.stored.SupportsProtobuf() }

// Negotiate returns the best format of a document for an Accept header. The error is a 406 Status.
func Negotiate(accept string) (MediaType, error) { return documents.Negotiate(accept) }

// Negotiate returns the best supported format for an Accept header. The error is a 406 Status.
func (o Offer) Negotiate(accept string) (MediaType, error) {
	switch accept {
	case "", "*/*", "application/json":
		return MediaType{Format: scheme.JSONFormat}, nil
	}
	anyFormat := o.unrouted
	for _, clause := range ParseAccept(accept) {
		format := clause.Format(o.Formats)
		if format == "" {
			continue
		}
		anyFormat = true
		if m, ok := clause.transform(format, o); ok {
			return m, nil
		}
	}
	if anyFormat {
		return MediaType{}, apierror.New(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
			"only the following media types are accepted: "+scheme.JoinFormats(o.Formats))
	}
	available := o.Formats
	if o.streams {
		available = append(slices.Clip(available), scheme.JSONFormat+";stream=watch", scheme.ProtobufFormat+";stream=watch")
	}
	err := apierror.New(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		"406: Not Acceptable\n\nAvailable representations: "+scheme.JoinFormats(available))
	err.ErrStatus.Details = &metav1.StatusDetails{}
	return MediaType{}, err
}

// AcceptClause is one of the alternatives in an Accept header.
type AcceptClause struct {
	Name    string // a media type, or a wildcard
	quality float64
	params  string // the parameters as sent, separated by semicolons, including q
}

// Param returns the value of a parameter, or "" and false if it is missing. If it is repeated, the
// last value counts.
func (c AcceptClause) Param(name string) (value string, ok bool) {
	for param := range strings.SplitSeq(c.params, ";") {
		if key, v, _ := strings.Cut(strings.TrimSpace(param), "="); key == name {
			value, ok = v, true
		}
	}
	return value, ok
}

// ParseAccept returns the alternatives by descending quality; with equal quality, wildcards come
// last. Like kube-apiserver, it treats q=0 as the lowest quality, not as a refusal.
func ParseAccept(accept string) []AcceptClause {
	clauses := make([]AcceptClause, 0, strings.Count(accept, ",")+1)
	for part := range strings.SplitSeq(accept, ",") {
		name, params, _ := strings.Cut(part, ";")
		clause := AcceptClause{Name: strings.TrimSpace(name), quality: 1, params: params}
		if q, ok := clause.Param("q"); ok {
			clause.quality, _ = strconv.ParseFloat(q, 64)
		}
		clauses = append(clauses, clause)
	}
	slices.SortStableFunc(clauses, func(a, b AcceptClause) int {
		return cmp.Or(cmp.Compare(b.quality, a.quality), cmp.Compare(strings.Count(a.Name, "*"), strings.Count(b.Name, "*")))
	})
	return clauses
}

// Format returns the encoding that the clause selects, or "" if it selects none of the offered
// encodings. kube-apiserver accepts application/* as JSON for custom resources and rejects it for
// built-in types.
func (c AcceptClause) Format(offered []scheme.BodyFormat) scheme.BodyFormat {
	if c.Name == "*/*" || c.Name == "*" || c.Name == "application/*" {
		return scheme.JSONFormat
	}
	if f := scheme.BodyFormat(c.Name); slices.Contains(offered, f) {
		return f
	}
	return ""
}

// transform evaluates the parameters. ok is false if they ask for a form that the endpoint does not
// support.
func (c AcceptClause) transform(format scheme.BodyFormat, o Offer) (m MediaType, ok bool) {
	m.Format = format
	if c.params == "" {
		return m, format != scheme.ProtobufFormat || o.wholeInProtobuf()
	}
	pretty, _ := c.Param("pretty")
	m.Pretty = pretty == "1"
	m.As, _ = c.Param("as")
	m.Version, _ = c.Param("v")
	group, _ := c.Param("g")
	stream, _ := c.Param("stream")
	if sv, _ := c.Param("sv"); stream != "" && stream != "watch" || sv != "" {
		return m, false
	}
	if m.As == "" && m.Version == "" && group == "" {
		return m, format != scheme.ProtobufFormat || o.wholeInProtobuf()
	}
	if format == scheme.ProtobufFormat && m.As == "Table" {
		return m, false // The cells of a Table have no fixed type.
	}
	return m, group == metav1.GroupName && (m.Version == "v1" || m.Version == "v1beta1") && slices.Contains(o.as, m.As)
}

// Check returns a 406 error if the Accept header requests PartialObjectMetadataList for a single
// object, or PartialObjectMetadata for a list.
func (m MediaType) Check(res *scheme.Resource, isList bool) error {
	shape := ""
	switch {
	case m.As == "PartialObjectMetadata" && isList:
		shape = "is a list (*" + apierror.InternalName(res.Group, res.ListKind) + ")"
		if res.GoType == nil {
			shape = "is a list (*unstructured.UnstructuredList)"
		}
	case m.As == "PartialObjectMetadataList" && !isList:
		shape = "is not a list (*" + apierror.InternalName(res.Group, res.Kind) + ")"
	default:
		return nil
	}
	return apierror.New(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		fmt.Sprintf("you requested %s, but the requested object %s", m.As, shape))
}

// WantsPretty reports whether to indent the response: ?pretty decides if it is given, otherwise
// curl, Wget and browsers get indented JSON.
func WantsPretty(r *http.Request) bool {
	if strings.Contains(r.URL.RawQuery, "pretty") {
		if value := r.URL.Query().Get("pretty"); value != "" {
			pretty, _ := strconv.ParseBool(value)
			return pretty
		}
	}
	agent := r.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}
