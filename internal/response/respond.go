package response

// This file gives a response the form that was negotiated: how an error becomes a Status, how objects become items, rows or metadata, and how a
// JSON document goes out, compact, indented or as YAML. (What protobuf looks like is told in protobuf.go.)

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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"apilet/internal/kinds/printers"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/shares"
	"apilet/internal/store"
	"apilet/internal/unreadable"
)

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
		if errors.Is(err, store.ErrDamaged) || errors.Is(err, store.ErrSealed) { // told to the log when it was found, or in metrics
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
	switch none := v.Media.As == "PartialObjectMetadataList" || v.Media.As == "Table" && printers.Default(v.Res); {
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
func NewView(r *http.Request, rec *request.Request, res *scheme.Resource) (*View, error) {
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
	case errors.Is(err, store.ErrDamaged), errors.Is(err, store.ErrSealed):
		return &damagedError{apierrors.NewInternalError(err), err}
	}
	return err
}

// A damagedError is the 500 of what lies on damaged pages, or cannot be decrypted. Who works in the background has to tell it apart.
type damagedError struct {
	*apierrors.StatusError
	cause error
}

// Unwrap leads to store.ErrDamaged, or store.ErrSealed.
func (e *damagedError) Unwrap() error { return e.cause }

// ErrAborted says that a response broke after its head was sent: the connection is closed, so that nobody takes the rest for whole.
var ErrAborted = errors.New("response aborted")
