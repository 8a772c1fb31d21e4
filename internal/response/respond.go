package response

// This file writes responses in the negotiated format. It converts errors to Statuses, objects to
// items, rows or metadata, and writes JSON documents compact, indented or as YAML. protobuf.go
// describes the protobuf format.

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
	"github.com/rs/zerolog"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"apilet/internal/corrupt"
	"apilet/internal/kinds/printers"
	"apilet/internal/limits"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// WriteError responds with the Status of err, in the format that Accept prefers. If err is not an
// apierrors.APIStatus, the response is a generic 500 InternalError, and err is returned so that the
// caller can log it.
func WriteError(w http.ResponseWriter, r *http.Request, err error) (unexpected error) {
	status, unexpected := ErrorStatus(err)
	if d := status.Details; d != nil && d.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(d.RetryAfterSeconds)))
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	_ = WriteObject(w, r, int(status.Code), &status) // A Status can always be encoded.
	return unexpected
}

// ErrorStatus returns the Status for err. If err is not a Status error, unexpected is err itself,
// for the log.
func ErrorStatus(err error) (status metav1.Status, unexpected error) {
	var apiErr apierrors.APIStatus
	if !errors.As(err, &apiErr) {
		// already logged when it was found, or counted in metrics
		if errors.Is(err, store.ErrDamaged) || errors.Is(err, store.ErrSealed) {
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

// WriteObject responds with an object that is not stored, in the format that Accept prefers. obj
// must carry its kind. If no format is acceptable, it writes JSON: the handler has already rejected
// such requests, and errors must be written in some format.
func WriteObject(w http.ResponseWriter, r *http.Request, code int, obj runtime.Object) error {
	m, err := Objects.Negotiate(r.Header.Get("Accept"))
	if err != nil { // such as a form that only stored objects have
		m = MediaType{Format: scheme.JSONFormat}
	}
	if m.Format == scheme.ProtobufFormat {
		sealed, err := EncodeProtobuf(obj)
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

// WriteJSON responds with a JSON document, converted to YAML if Accept prefers it. If no format is
// acceptable, it writes JSON.
func WriteJSON(w http.ResponseWriter, r *http.Request, code int, doc []byte) {
	m, err := Offer{Formats: documents.Formats, as: objectForms}.Negotiate(r.Header.Get("Accept"))
	if err != nil {
		m.Format = scheme.JSONFormat
	}
	m.write(w, r, code, doc)
}

// write responds with a JSON document in the negotiated format.
func (m MediaType) write(w http.ResponseWriter, r *http.Request, code int, doc []byte) {
	doc, newline, format := m.Encode(doc, WantsPretty(r))
	header := w.Header()
	// a single allocation for both
	values := [...]string{string(format), strconv.Itoa(len(doc) + len(newline))}
	header["Content-Type"], header["Content-Length"] = values[0:1:1], values[1:2:2]
	if header.Get("Cache-Control") == "" {
		header.Set("Cache-Control", "no-cache, private")
	}
	w.WriteHeader(code)
	w.Write(doc)
	io.WriteString(w, newline)
}

// Encode converts a JSON document to the negotiated format. It also returns the trailing newline:
// as in kube-apiserver, compact JSON ends in a newline and indented JSON does not. A document that
// YAML cannot represent, for example one with a DEL character, stays JSON. If indentation would
// multiply the size of a document, Encode returns compact JSON. For example, a 3 MB list with 480
// levels would become 1.4 GB. The returned format is the actual format.
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

// indentationMultiplies reports whether indentation would make a JSON document more than four times
// as long, plus a megabyte. Typical documents double in size. If breaksTexts is set, it also counts
// line breaks within strings, which YAML inserts at newlines and spaces.
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

// Refuse responds with an error and records its Status for the audit log. Like WriteError, it
// returns err if err is not a Status.
func Refuse(w http.ResponseWriter, r *http.Request, err error) (unexpected error) {
	if rec := request.From(r.Context()); rec != nil {
		status, _ := ErrorStatus(err)
		rec.ResponseStatus = &status
	}
	return WriteError(w, r, err)
}

const lateAnswer = 5 * time.Second // time to write an error after the request's deadline

// Fail responds with an error and logs unexpected errors. It does not log a request that ran out of
// time.
func Fail(w http.ResponseWriter, r *http.Request, err error, log zerolog.Logger) {
	if r.Context().Err() != nil { // the write deadline may have passed during a long computation
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(lateAnswer))
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
	}
	if unexpected := Refuse(w, r, err); unexpected != nil {
		log.Error().Err(unexpected).Str("path", r.URL.Path).Str("id", request.From(r.Context()).ID).Msg("internal error")
	}
}

var gzipPool = sync.Pool{New: func() any { z, _ := gzip.NewWriterLevel(nil, 1); return z }}

const (
	GzipThreshold   = 128 << 10 // minimum size in bytes for compression
	maxReusedBuffer = 64 << 10  // maximum size in bytes of a buffer that is reused
)

// ShouldCompress reports whether to gzip a response of about size bytes: it is large, the client
// accepts gzip, and the client is not on this host.
func ShouldCompress(r *http.Request, size int) bool {
	if size < GzipThreshold || !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		return false
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	ip := net.ParseIP(host)
	return ip == nil || !ip.IsLoopback()
}

// Compress returns the writer for a response of about size bytes, and a function that the caller
// must call at the end.
func Compress(w http.ResponseWriter, r *http.Request, size int) (out io.Writer, finish func()) {
	if !ShouldCompress(r, size) {
		return w, func() {}
	}
	w.Header().Set("Content-Encoding", "gzip")
	w.Header().Add("Vary", "Accept-Encoding")
	z := gzipPool.Get().(*gzip.Writer)
	z.Reset(w)
	return z, func() { _ = z.Close(); gzipPool.Put(z) }
}

// ContentType returns the Content-Type of a response that is not a stream.
func (v *View) ContentType() string {
	return string(v.Media.Format)
}

// Convert converts records to the version of res if that needs a conversion webhook. The JSON of
// the records is replaced. Its errors are Statuses.
func Convert(ctx context.Context, res *scheme.Resource, records ...*store.Record) error {
	if !res.NeedsConversion() || len(records) == 0 {
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

// EstimateSize estimates the size in bytes of a response that shows the given number of bytes of
// stored JSON.
func (v *View) EstimateSize(r *http.Request, stored int) int {
	if v.Media.Format == scheme.YAMLFormat || v.Media.Pretty || WantsPretty(r) {
		return 4 * stored
	}
	return stored
}

// Respond writes a response with one object. Large objects reserve memory even over the limit,
// because it is too late to reject the request; the caller should have reserved the memory before.
func (v *View) Respond(w http.ResponseWriter, r *http.Request, code int, rec *store.Record) error {
	if err := v.Media.Check(v.Res, false); err != nil {
		return err
	}
	if v.Res.NeedsConversion() {
		shown := *rec
		rec = &shown
		if err := Convert(r.Context(), v.Res, rec); err != nil {
			return err
		}
	}
	if len(rec.JSON) > limits.Large/4 {
		limits.ForceReserve(r.Context(), w, v.EstimateSize(r, len(rec.JSON)))
	}
	if v.Media.Format == scheme.ProtobufFormat {
		body, err := v.AppendProtobuf(nil, rec)
		if err == nil {
			writeSealed(w, code, body)
		}
		return err
	}
	body := bodies.Get().(*[]byte)
	defer bodies.put(body)
	var err error
	if *body, err = v.AppendObject((*body)[:0], rec); err != nil {
		_, name := scheme.NamespacedName(rec.Key)
		return StoreError(err, v.Res, name)
	}
	v.Media.write(w, r, code, *body)
	return nil
}

// bodyPool holds buffers for responses with one object. A buffer may be reused as soon as it is
// written, because a ResponseWriter does not retain it.
type bodyPool struct{ sync.Pool }

var bodies = bodyPool{sync.Pool{New: func() any { return new([]byte) }}}

// put drops buffers that are larger than most objects need, so that the pool does not retain memory
// for rare large responses.
func (p *bodyPool) put(body *[]byte) {
	if cap(*body) <= maxReusedBuffer {
		p.Put(body)
	}
}

// AppendObject appends one top-level object, as in the response to a GET or a write, or in a watch
// event. The output is always JSON.
func (v *View) AppendObject(dst []byte, rec *store.Record) ([]byte, error) {
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

// AppendItem appends one object as an item of a list. The kind is omitted for built-in types, as in
// kube-apiserver.
func (v *View) AppendItem(dst []byte, rec *store.Record) ([]byte, error) {
	switch v.Media.Format {
	case scheme.YAMLFormat:
		return v.yamlItem(dst, rec)
	case scheme.ProtobufFormat:
		return v.AppendProtobufItem(dst, rec)
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
		if dst, err = whole.AppendObject(dst, rec); err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

// AppendListHead appends the beginning of a list, up to the first item.
func (v *View) AppendListHead(dst []byte, meta ListMeta) []byte {
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
	if v.OmitColumns {
		return []byte("null")
	}
	// Column definitions can always be encoded.
	columns, _ := json.Marshal(printers.ColumnsOf(v.Res))
	return columns
}

func (v *View) listMeta(dst []byte, meta ListMeta) []byte {
	if meta.Rev == 0 { // an object that is not stored, shown as a Table
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

// ListTail returns the end of a list, starting after the last item.
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

// EmptyListEnds returns the beginning and the end of an empty list, in the form that
// kube-apiserver's encoders write.
func (v *View) EmptyListEnds(head, tail []byte) ([]byte, []byte) {
	switch none := v.Media.As == "PartialObjectMetadataList" || v.Media.As == "Table" && printers.NullIfEmpty(v.Res); {
	case v.Media.Format == scheme.YAMLFormat && none:
		return append(bytes.TrimSuffix(head, []byte("\n")), " null\n"...), tail
	case v.Media.Format == scheme.YAMLFormat:
		return append(bytes.TrimSuffix(head, []byte("\n")), " []\n"...), tail
	case none:
		return bytes.TrimSuffix(head, []byte("[")), []byte("null}\n")
	}
	return head, tail
}

// Separator returns the separator for list items, which is empty unless the format is JSON.
func (v *View) Separator() string {
	if v.Media.Format == scheme.JSONFormat {
		return ","
	}
	return ""
}

// yamlItem appends a list item as YAML, indented after a dash.
func (v *View) yamlItem(dst []byte, rec *store.Record) ([]byte, error) {
	plain := *v
	plain.Media.Format = scheme.JSONFormat
	item, err := plain.AppendItem(nil, rec)
	if err != nil {
		return dst, err
	}
	text := item // JSON is valid YAML
	if !indentationMultiplies(item, true) {
		if text, err = yaml.JSONToYAML(item); err != nil {
			return dst, err
		}
	}
	text = bytes.ReplaceAll(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"), []byte("\n  "))
	return append(append(append(dst, "- "...), text...), '\n'), nil
}

// NewView negotiates the format of the response.
func NewView(r *http.Request, rec *request.Request, res *scheme.Resource) (*View, error) {
	media, err := offerOf(res, &rec.Info).Negotiate(r.Header.Get("Accept"))
	if err != nil {
		return nil, err
	}
	v := &View{Res: res, Media: media}
	if media.As == "Table" {
		v.now, v.include = rec.AsOf, "Metadata"
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

// StoreError converts the errors of the store to the Statuses that Kubernetes clients expect. Other
// errors are returned unchanged.
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
		return corrupt.StatusError(err, res, name)
	case errors.Is(err, store.ErrDiskFull), errors.Is(err, store.ErrQuota), errors.Is(err, store.ErrFileLost):
		return apierrors.NewInternalError(err)
	case errors.Is(err, store.ErrDamaged), errors.Is(err, store.ErrSealed):
		return &damagedError{apierrors.NewInternalError(err), err}
	}
	return err
}

// damagedError is a 500 error for objects that are damaged or cannot be decrypted. Background
// workers distinguish it from other errors.
type damagedError struct {
	*apierrors.StatusError
	cause error
}

// Unwrap returns store.ErrDamaged or store.ErrSealed.
func (e *damagedError) Unwrap() error { return e.cause }

// ErrAborted is returned if an error occurs after the header was sent. The connection is closed, so
// that clients do not mistake the partial response for a complete one.
var ErrAborted = errors.New("response aborted")
