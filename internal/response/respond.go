package response

// This file gives a response its form: which media type the client's Accept header gets, how an error becomes a Status, and how a JSON
// document goes out, compact, indented or as YAML. (What protobuf looks like is told in protobuf.go.)
//
//	Accept: application/vnd.kubernetes.protobuf,application/json        a typed client: protobuf, of custom resources JSON
//	Accept: application/json;as=Table;g=meta.k8s.io;v=v1                kubectl get
//	Accept: */*, application/*, or no Accept                            JSON
//	Accept: text/html                                                   406

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/tidwall/gjson"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"apilet/internal/apierror"
	"apilet/internal/kinds/printers"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/shares"
	"apilet/internal/store"
	"apilet/internal/unreadable"
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

// WriteError answers with the Status of err (an apierrors.APIStatus; anything else is a 500 InternalError), honouring Accept. It
// returns err when that was no Status: the client got a generic text, so the caller logs it.
func WriteError(w http.ResponseWriter, r *http.Request, err error) (unexpected error) {
	status, unexpected := ErrorStatus(err)
	if d := status.Details; d != nil && d.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(d.RetryAfterSeconds)))
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	_ = WriteObject(w, r, int(status.Code), &status) // a Status can be encoded
	return unexpected
}

// ErrorStatus is the Status that tells err to a client. unexpected is err itself when it was no Status error: it is for the log.
func ErrorStatus(err error) (status metav1.Status, unexpected error) {
	var apiErr apierrors.APIStatus
	if !errors.As(err, &apiErr) {
		if errors.Is(err, store.ErrDamaged) { // told to the log when it was found
			return apierrors.NewInternalError(err).ErrStatus, nil
		}
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

// WriteObject answers with an object that is not stored, in the form that the request's Accept prefers. obj carries its kind. An Accept
// that cannot be met gets JSON: the handler has refused it before, and errors have to go out somehow.
func WriteObject(w http.ResponseWriter, r *http.Request, code int, obj runtime.Object) error {
	m, err := Objects.Negotiate(r.Header.Get("Accept"))
	if err != nil { // such as a form that only what is stored has
		m = MediaType{Format: scheme.JSONFormat}
	}
	if m.Format == scheme.ProtobufFormat {
		sealed, err := SealObject(obj)
		if err == nil {
			writeSealed(w, code, sealed)
		}
		return err
	}
	doc, err := json.Marshal(obj)
	if err == nil {
		m.write(w, r, code, doc)
	}
	return err
}

// WriteJSON answers with a JSON document, as YAML when the request's Accept prefers it, and as JSON when it cannot be met.
func WriteJSON(w http.ResponseWriter, r *http.Request, code int, doc []byte) {
	m, err := Offer{Formats: documents.Formats, as: objectForms}.Negotiate(r.Header.Get("Accept"))
	if err != nil {
		m.Format = scheme.JSONFormat
	}
	m.write(w, r, code, doc)
}

// write answers with a JSON document in the form that was negotiated.
func (m MediaType) write(w http.ResponseWriter, r *http.Request, code int, doc []byte) {
	doc, newline, format := m.Encode(doc, WantsPretty(r))
	header := w.Header()
	values := [...]string{string(format), strconv.Itoa(len(doc) + len(newline))} // one piece of memory for both
	header["Content-Type"], header["Content-Length"] = values[0:1:1], values[1:2:2]
	if header.Get("Cache-Control") == "" {
		header.Set("Cache-Control", "no-cache, private")
	}
	w.WriteHeader(code)
	w.Write(doc)
	io.WriteString(w, newline)
}

// Encode gives a JSON document the negotiated form, and names what belongs behind it: like kube-apiserver's, compact JSON ends in a newline
// and indented JSON does not. What YAML cannot hold, such as a DEL character, stays JSON and says so in its format, and so, and compact, does what
// indentation would multiply: 3 MB of a list that is 480 levels deep would be 1.4 GB.
func (m MediaType) Encode(doc []byte, forHumans bool) (encoded []byte, newline string, format scheme.BodyFormat) {
	plain := m.Format != scheme.YAMLFormat && !m.Pretty && !forHumans
	if plain || indentationMultiplies(doc, m.Format == scheme.YAMLFormat) {
		return doc, "\n", scheme.JSONFormat
	}
	if m.Format == scheme.YAMLFormat {
		if asYAML, err := yaml.JSONToYAML(doc); err == nil {
			return asYAML, "", scheme.YAMLFormat
		}
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, doc, "", "  "); err != nil {
		return doc, "\n", scheme.JSONFormat
	}
	return indented.Bytes(), "", scheme.JSONFormat
}

// indentationMultiplies tells whether a JSON document with its lines indented would be more than four times as long, and a megabyte. What people
// write is twice as long. YAML's indentation is JSON's, or less, but it breaks texts, too, at newlines and spaces.
func indentationMultiplies(doc []byte, breaksTexts bool) bool {
	depth, spaces, most := 0, 0, 3*len(doc)+1<<20
	for i := 0; i < len(doc); i++ {
		switch doc[i] {
		case '"':
			for i++; i < len(doc) && doc[i] != '"'; i++ {
				escaped := doc[i] == '\\'
				if escaped {
					i++
				}
				if breaksTexts && i < len(doc) && (doc[i] == ' ' || escaped && doc[i] == 'n') {
					spaces += 1 + 2*depth
				}
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case ',':
		default:
			continue
		}
		if spaces += 1 + 2*depth; spaces > most {
			return true
		}
	}
	return false
}

// Refuse answers with an error, which the audit log is to tell. It returns err when that was no Status, as WriteError does.
func Refuse(w http.ResponseWriter, r *http.Request, err error) (unexpected error) {
	if rec := request.From(r.Context()); rec != nil {
		status, _ := ErrorStatus(err)
		rec.Answered = &status
	}
	return WriteError(w, r, err)
}

var gzipPool = sync.Pool{New: func() any { z, _ := gzip.NewWriterLevel(nil, 1); return z }}

const (
	GzipThreshold = 128 << 10 // bytes from which compression pays
	bodyKept      = 64 << 10  // bytes of an answer whose memory is used again
)

// Compresses says whether a response of about size bytes is worth gzip: the client wants it and is not on this host.
func Compresses(r *http.Request, size int) bool {
	if size < GzipThreshold || !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		return false
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	ip := net.ParseIP(host)
	return ip == nil || !ip.IsLoopback()
}

// Compress returns where to write a response of about size bytes, and what to call at its end.
func Compress(w http.ResponseWriter, r *http.Request, size int) (out io.Writer, finish func()) {
	if !Compresses(r, size) {
		return w, func() {}
	}
	w.Header().Set("Content-Encoding", "gzip")
	w.Header().Add("Vary", "Accept-Encoding")
	z := gzipPool.Get().(*gzip.Writer)
	z.Reset(w)
	return z, func() { _ = z.Close(); gzipPool.Put(z) }
}

// formsOf are what an answer can be turned into. A question's answer has no columns, nor has what a pod or an account is asked to take.
func formsOf(res *scheme.Resource, info *request.Info) []string {
	switch {
	case res.Virtual && res.Allows("create"), info.Subresource == "binding", info.Subresource == "eviction", info.Subresource == "token":
		return objectForms[1:]
	}
	return objectForms
}

// A View is how one response shows objects: whole, as the rows of a Table, or as their metadata alone; in JSON, YAML or protobuf.
type View struct {
	Res     *scheme.Resource // the type of the objects
	Media   MediaType        // as negotiated
	include string           // includeObject of a Table: None, Metadata or Object
	now     time.Time        // that ages of a Table count to
	Mute    bool             // a Table watch has told its columns already
}

// ContentType is the header of an answer that is no stream.
func (v *View) ContentType() string {
	return string(v.Media.Format)
}

// Convert makes records show their objects in the version of a row, where a webhook knows how: views, selectors and decoders take them
// from there. Its errors are Statuses.
func Convert(ctx context.Context, res *scheme.Resource, records ...*store.Record) error {
	if !res.Converts() || len(records) == 0 {
		return nil
	}
	docs := make([][]byte, len(records))
	for i, rec := range records {
		docs[i] = rec.JSON
	}
	if err := res.Custom.Webhook.Read(ctx, docs); err != nil {
		return err
	}
	for i, rec := range records {
		rec.JSON = docs[i]
	}
	return nil
}

// Weight is about how many bytes an answer holds that shows so many bytes of stored JSON.
func (v *View) Weight(r *http.Request, stored int) int {
	if v.Media.Format == scheme.YAMLFormat || v.Media.Pretty || WantsPretty(r) {
		return 4 * stored
	}
	return stored
}

// Respond answers with one object. Whoever may still refuse has held what it weighs before.
func (v *View) Respond(w http.ResponseWriter, r *http.Request, code int, rec *store.Record) error {
	if err := v.Media.Check(v.Res, false); err != nil {
		return err
	}
	if v.Res.Converts() {
		shown := *rec
		rec = &shown
		if err := Convert(r.Context(), v.Res, rec); err != nil {
			return err
		}
	}
	if len(rec.JSON) > shares.Large/4 {
		shares.Insist(r.Context(), w, v.Weight(r, len(rec.JSON)))
	}
	if v.Media.Format == scheme.ProtobufFormat {
		body, err := v.Sealed(nil, rec)
		if err == nil {
			writeSealed(w, code, body)
		}
		return err
	}
	body := bodies.Get().(*[]byte)
	defer bodies.put(body)
	var err error
	if *body, err = v.Object((*body)[:0], rec); err != nil {
		_, name := scheme.NamespacedName(rec.Key)
		return StoreError(err, v.Res, name)
	}
	v.Media.write(w, r, code, *body)
	return nil
}

// A bodyPool has memory for answers of one object. It may be used again once it is written: a ResponseWriter keeps nothing of it.
type bodyPool struct{ sync.Pool }

var bodies = bodyPool{sync.Pool{New: func() any { return new([]byte) }}}

// put leaves what is larger than most objects to the collector: a pool of them would hold memory for what hardly ever comes.
func (p *bodyPool) put(body *[]byte) {
	if cap(*body) <= bodyKept {
		p.Put(body)
	}
}

// Object appends one object that stands alone: the answer to a GET or a write, or the object of a watch event. Always JSON.
func (v *View) Object(dst []byte, rec *store.Record) ([]byte, error) {
	switch v.Media.As {
	case "Table":
		dst = v.tableHead(dst, ListMeta{Rev: rec.Rev})
		dst, err := v.row(dst, rec)
		return append(dst, "]}"...), err
	case "PartialObjectMetadata":
		return v.metadata(dst, rec.JSON), nil
	}
	json, err := v.Res.Served(rec.JSON)
	if err != nil {
		return dst, err
	}
	dst = append(append(dst, '{'), v.Res.Prefix...)
	return append(dst, json[1:]...), nil
}

// Item appends one object as an item of a list. Items of built-in types carry no kind, as typed encoders leave it out.
func (v *View) Item(dst []byte, rec *store.Record) ([]byte, error) {
	switch v.Media.Format {
	case scheme.YAMLFormat:
		return v.yamlItem(dst, rec)
	case scheme.ProtobufFormat:
		return v.SealedItem(dst, rec)
	}
	switch v.Media.As {
	case "Table":
		return v.row(dst, rec)
	case "PartialObjectMetadataList":
		return v.metadata(dst, rec.JSON), nil
	}
	json, err := v.Res.Served(rec.JSON)
	if err != nil || v.Res.GoType != nil {
		return append(dst, json...), err
	}
	dst = append(append(dst, '{'), v.Res.Prefix...)
	return append(dst, json[1:]...), nil
}

// metadata appends a PartialObjectMetadata.
func (v *View) metadata(dst, stored []byte) []byte {
	dst = append(dst, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/`...)
	dst = append(append(dst, v.Media.Version...), `","metadata":`...)
	return append(append(dst, v.metadataIn(stored)...), '}')
}

// foldedAnnotations are those that kube-apiserver reads into fields of its internal types, by what the keys of a type start with: it makes tables and
// metadata of these, so that they lack them.
var foldedAnnotations = map[string]string{
	"/apps/daemonsets/":  appsv1.DeprecatedTemplateGeneration,
	"/apps/deployments/": appsv1.DeprecatedRollbackTo,
}

// metadataIn is the metadata of a stored object as it is shown by itself.
func (v *View) metadataIn(stored []byte) string {
	whole := gjson.GetBytes(stored, "metadata").Raw
	folded, meta := foldedAnnotations[v.Res.Base], metav1.ObjectMeta{}
	if folded == "" || !strings.Contains(whole, folded) || json.Unmarshal([]byte(whole), &meta) != nil {
		return whole
	}
	delete(meta.Annotations, folded)
	without, err := json.Marshal(&meta)
	if err != nil {
		return whole
	}
	return string(without)
}

// row appends one row of a Table.
func (v *View) row(dst []byte, rec *store.Record) ([]byte, error) {
	obj, err := v.Res.DecodeServed(rec.JSON)
	if err != nil {
		return dst, err
	}
	cells, err := json.Marshal(printers.CellsOf(v.Res, obj, v.now))
	if err != nil {
		return dst, err
	}
	dst = append(append(dst, `{"cells":`...), cells...)
	if conditions := printers.RowConditionsOf(obj); conditions != nil {
		text, _ := json.Marshal(conditions)
		dst = append(append(dst, `,"conditions":`...), text...)
	}
	dst = append(dst, `,"object":`...)
	switch v.include {
	case "None":
		dst = append(dst, "null"...)
	case "Metadata":
		dst = v.metadata(dst, rec.JSON)
	default:
		whole := View{Res: v.Res}
		if dst, err = whole.Object(dst, rec); err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

// ListHead appends what stands before the items.
func (v *View) ListHead(dst []byte, meta ListMeta) []byte {
	switch {
	case v.Media.Format == scheme.YAMLFormat:
		dst = append(append(dst, "apiVersion: "...), v.listVersion()...)
		if v.Media.As != "Table" {
			return append(dst, "\nitems:\n"...)
		}
		columns, _ := yaml.JSONToYAML(slices.Concat([]byte(`{"columnDefinitions":`), v.columns(),
			[]byte(`,"kind":"Table","metadata":`), v.listMeta(nil, meta), []byte("}")))
		return append(append(append(dst, '\n'), columns...), "rows:\n"...)
	case v.Media.As == "Table":
		return v.tableHead(dst, meta)
	}
	dst = append(append(dst, `{"kind":"`...), v.listKind()...)
	dst = append(append(dst, `","apiVersion":"`...), v.listVersion()...)
	dst = append(dst, `","metadata":`...)
	dst = v.listMeta(dst, meta)
	return append(dst, `,"items":[`...)
}

func (v *View) tableHead(dst []byte, meta ListMeta) []byte {
	dst = append(append(dst, `{"kind":"Table","apiVersion":"meta.k8s.io/`...), v.Media.Version...)
	dst = append(dst, `","metadata":`...)
	dst = v.listMeta(dst, meta)
	dst = append(append(dst, `,"columnDefinitions":`...), v.columns()...)
	return append(dst, `,"rows":[`...)
}

func (v *View) columns() []byte {
	if v.Mute {
		return []byte("null")
	}
	columns, _ := json.Marshal(printers.ColumnsOf(v.Res)) // plain fields always can
	return columns
}

func (v *View) listMeta(dst []byte, meta ListMeta) []byte {
	if meta.Rev == 0 { // an object that was not stored, as a Table
		return append(dst, "{}"...)
	}
	dst = append(dst, `{"resourceVersion":"`...)
	dst = append(strconv.AppendInt(dst, meta.Rev, 10), '"')
	if meta.Cont != "" || v.Res.GoType == nil && v.Media.As == "" {
		dst = append(append(append(dst, `,"continue":"`...), meta.Cont...), '"')
	}
	if meta.Remaining != nil {
		dst = strconv.AppendInt(append(dst, `,"remainingItemCount":`...), *meta.Remaining, 10)
	}
	return append(dst, '}')
}

// ListTail is what stands behind the items.
func (v *View) ListTail(meta ListMeta) []byte {
	switch {
	case v.Media.Format != scheme.YAMLFormat:
		return []byte("]}\n")
	case v.Media.As == "Table":
		return nil
	}
	tail, _ := yaml.JSONToYAML(append(append([]byte(`{"kind":"`+v.listKind()+`","metadata":`), v.listMeta(nil, meta)...), '}'))
	return tail
}

// WithoutItems are the ends of a list that turns out to have none, as the real server's encoders write it.
func (v *View) WithoutItems(head, tail []byte) ([]byte, []byte) {
	switch none := v.Media.As == "PartialObjectMetadataList"; {
	case v.Media.Format == scheme.YAMLFormat && none:
		return append(bytes.TrimSuffix(head, []byte("\n")), " null\n"...), tail
	case v.Media.Format == scheme.YAMLFormat:
		return append(bytes.TrimSuffix(head, []byte("\n")), " []\n"...), tail
	case none:
		return bytes.TrimSuffix(head, []byte("[")), []byte("null}\n")
	}
	return head, tail
}

// Separator stands between the items of a list: a comma in JSON, nothing elsewhere.
func (v *View) Separator() string {
	if v.Media.Format == scheme.JSONFormat {
		return ","
	}
	return ""
}

func (v *View) listKind() string {
	if v.Media.As != "" {
		return v.Media.As
	}
	return v.Res.ListKind
}

func (v *View) listVersion() string {
	if v.Media.As != "" {
		return "meta.k8s.io/" + v.Media.Version
	}
	return v.Res.APIVersion()
}

// yamlItem appends an item of a YAML list: the item's own document, indented behind a dash.
func (v *View) yamlItem(dst []byte, rec *store.Record) ([]byte, error) {
	plain := *v
	plain.Media.Format = scheme.JSONFormat
	item, err := plain.Item(nil, rec)
	if err != nil {
		return dst, err
	}
	text := item // which is YAML, too
	if !indentationMultiplies(item, true) {
		if text, err = yaml.JSONToYAML(item); err != nil {
			return dst, err
		}
	}
	text = bytes.ReplaceAll(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"), []byte("\n  "))
	return append(append(append(dst, "- "...), text...), '\n'), nil
}

// NewView negotiates how a request's answer looks.
func NewView(r *http.Request, res *scheme.Resource) (*View, error) {
	rec := request.From(r.Context())
	media, err := offerOf(res, &rec.Info).Negotiate(r.Header.Get("Accept"))
	if err != nil {
		return nil, err
	}
	v := &View{Res: res, Media: media}
	if media.As == "Table" {
		v.now, v.include = rec.Then, "Metadata"
		if v.now.IsZero() {
			v.now = time.Now()
		}
		if include := r.URL.Query().Get("includeObject"); include != "" {
			v.include = include
		}
		if v.include != "None" && v.include != "Metadata" && v.include != "Object" {
			return nil, apierrors.NewBadRequest(fmt.Sprintf(
				"Unable to convert to Table as requested: includeObject: Invalid value: %q: must be 'Metadata', 'Object', 'None', or empty", v.include))
		}
	}
	return v, nil
}

// ListMeta is the metadata of a list; remaining is nil when it is not told.
type ListMeta struct {
	Rev       int64  // resourceVersion
	Cont      string // continue; "" at the end
	Remaining *int64 // remainingItemCount; nil: not told
}

// StoreError turns the store's sentinels into the Status that clients know. Other errors pass unchanged.
func StoreError(err error, res *scheme.Resource, name string) error {
	gr := res.GroupResource()
	switch {
	case errors.Is(err, store.ErrNotFound):
		return apierrors.NewNotFound(gr, name)
	case errors.Is(err, store.ErrExists):
		return apierrors.NewAlreadyExists(gr, name)
	case errors.Is(err, store.ErrDeleting):
		exists := apierrors.NewAlreadyExists(gr, name)
		exists.ErrStatus.Message = "object is being deleted: " + exists.ErrStatus.Message
		return exists
	case errors.Is(err, store.ErrConflict):
		return apierrors.NewConflict(gr, name, errors.New("the object has been modified; please apply your changes to the latest version and try again"))
	case errors.Is(err, store.ErrCompacted):
		return apierrors.NewResourceExpired("The resourceVersion for the provided list is too old.")
	case errors.Is(err, scheme.ErrUnreadable):
		return unreadable.NamedUnreadable(err, res, name)
	case errors.Is(err, store.ErrDiskFull), errors.Is(err, store.ErrQuota), errors.Is(err, store.ErrFileLost):
		return apierrors.NewInternalError(err)
	case errors.Is(err, store.ErrDamaged):
		return &damagedError{apierrors.NewInternalError(err), err}
	}
	return err
}

// A damagedError is the 500 of what lies on damaged pages. Who works in the background has to tell it apart.
type damagedError struct {
	*apierrors.StatusError
	cause error
}

// Unwrap leads to store.ErrDamaged.
func (e *damagedError) Unwrap() error { return e.cause }

// ErrAborted says that a response broke after its head was sent: the connection is closed, so that nobody takes the rest for whole.
var ErrAborted = errors.New("response aborted")
