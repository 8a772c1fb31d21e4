package response

// This file finds which form the client's Accept header gets.
//
//	Accept: application/vnd.kubernetes.protobuf,application/json        a typed client: protobuf, of custom resources JSON
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

// A MediaType is the form a response takes.
type MediaType struct {
	Format      scheme.BodyFormat // of the bytes
	Pretty      bool              // pretty=1 in the Accept header: indented
	As, Version string            // "Table", "PartialObjectMetadata", "PartialObjectMetadataList" of meta.k8s.io, and "v1" or "v1beta1"
}

// An Offer is the forms in which an endpoint can answer.
type Offer struct {
	Formats  []scheme.BodyFormat // the first is what */* gets
	as       []string            // kinds of meta.k8s.io that the answer can be turned into
	stored   *scheme.Resource    // whose objects are answered; nil for what is no stored object
	unrouted bool                // kube-apiserver has no router for it that looks at Accept first, and complains of its own
	streams  bool                // a LIST or WATCH of a built-in type, whose 406 names the forms of a stream, too
}

var (
	documents = Offer{Formats: []scheme.BodyFormat{scheme.JSONFormat, scheme.YAMLFormat}}                        // what has no Go type
	Objects   = Offer{Formats: []scheme.BodyFormat{scheme.JSONFormat, scheme.YAMLFormat, scheme.ProtobufFormat}} // a Status, a Scale, discovery

	objectForms = []string{"Table", "PartialObjectMetadata", "PartialObjectMetadataList"}
)

// offerOf is how objects of a resource are shown.
func offerOf(res *scheme.Resource, info *request.Info) Offer {
	o := Offer{Formats: Objects.Formats, as: formsOf(res, info), stored: res, unrouted: res.GoType == nil}
	o.streams = !o.unrouted && (info.Verb == "list" || info.Verb == "watch")
	return o
}

// formsOf are what an answer can be turned into. A question's answer has no columns, nor has what a pod or an account is asked to take.
func formsOf(res *scheme.Resource, info *request.Info) []string {
	switch {
	case res.Virtual && res.Allows("create"), info.Subresource == "binding", info.Subresource == "eviction", info.Subresource == "token":
		return objectForms[1:]
	}
	return objectForms
}

// wholeInProtobuf: of a custom resource protobuf has the metadata alone.
func (o Offer) wholeInProtobuf() bool { return o.stored == nil || o.stored.InProtobuf() }

// Negotiate picks the best form of a document in an Accept header. err is a 406 Status error.
func Negotiate(accept string) (MediaType, error) { return documents.Negotiate(accept) }

// Negotiate picks the best form in an Accept header. err is a 406 Status error.
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

// An AcceptClause is one of the alternatives in an Accept header.
type AcceptClause struct {
	Name    string // a media type, or a wildcard
	quality float64
	params  string // as they were sent, between semicolons, q among them
}

// Param is the value of a parameter, the last where there are several; "" and false where there is none.
func (c AcceptClause) Param(name string) (value string, ok bool) {
	for param := range strings.SplitSeq(c.params, ";") {
		if key, v, _ := strings.Cut(strings.TrimSpace(param), "="); key == name {
			value, ok = v, true
		}
	}
	return value, ok
}

// ParseAccept returns the alternatives, the most wanted first, wildcards behind equally wanted names. It takes q=0 for the least
// wanted, not for unwanted, as kube-apiserver does.
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

// Format is the one that the clause's name selects, "" if none. kube-apiserver takes application/* for JSON where custom resources are
// concerned, and refuses it for built-in types.
func (c AcceptClause) Format(offered []scheme.BodyFormat) scheme.BodyFormat {
	if c.Name == "*/*" || c.Name == "*" || c.Name == "application/*" {
		return scheme.JSONFormat
	}
	if f := scheme.BodyFormat(c.Name); slices.Contains(offered, f) {
		return f
	}
	return ""
}

// transform reads the parameters; ok is false when they ask for what the endpoint cannot do.
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
		return m, false // its cells are anything
	}
	return m, group == metav1.GroupName && (m.Version == "v1" || m.Version == "v1beta1") && slices.Contains(o.as, m.As)
}

// Check is the 406 for asking for a list's form of a single object or the other way round.
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

// WantsPretty tells whether a human reads the response: ?pretty decides, else the tool does.
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
