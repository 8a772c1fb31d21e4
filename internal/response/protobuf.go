package response

// This file writes Kubernetes' protobuf encoding. The store keeps JSON. An object is either
// transcoded directly (package scheme/protobuf), or decoded into its Go type and encoded by the
// methods generated in k8s.io/api. Both cost the server more than copying JSON, but save a typed
// client more than that.
//
// A top-level object is wrapped in an envelope, a runtime.Unknown after four magic bytes:
//
//	6b 38 73 00                 "k8s\0"
//	0a nn  0a .. 12 ..          1: apiVersion and kind, which the encoded object does not contain
//	12 nn  ..                   2: the encoded object
//	1a 00  22 00                3, 4: content encoding and content type, both empty
//
// A list is encoded as one object. The metadata is encoded as field 1, and the items are encoded as
// field 2 without an envelope. Watch events are not wrapped in an envelope, but their objects are:
//
//	00 00 nn nn                 the length of the frame
//	0a nn  ADDED                1: type
//	12 nn  0a nn  k8s\0 ..      2: a RawExtension, whose field 1 is the object in its envelope
//
// The length must be written before the data, but lists are not held in memory. If a list is larger
// than one megabyte, it is therefore encoded twice at the same revision. The first pass only
// computes the length. (The list cannot be split, because field 2 of the envelope has the type
// bytes, and a second occurrence would replace the first. Spooling the list into a file would cost
// a disk write for each read.) The measured length is also sent as Content-Length; if the second
// encoding has another length, the response is aborted.

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"

	"apilet/internal/scheme"
	"apilet/internal/scheme/protobuf"
	"apilet/internal/store"
)

// ---- Bytes ----

// EncodeProtobuf encodes an object that is not stored, in an envelope with the kind that the object
// carries.
func EncodeProtobuf(obj runtime.Object) ([]byte, error) {
	m, err := protobuf.AsMessage(obj)
	if err != nil {
		return nil, err
	}
	apiVersion, kind := obj.GetObjectKind().GroupVersionKind().ToAPIVersionAndKind()
	return protobuf.AppendInEnvelope(nil, apiVersion, kind, m)
}

// ---- Objects in the form of a view ----

// message decodes an object in the form of the view: the complete object, or only its metadata.
func (v *View) message(rec *store.Record) (protobuf.Message, error) {
	if v.Media.As != "" {
		partial := &metav1.PartialObjectMetadata{}
		if err := kjson.UnmarshalCaseSensitivePreserveInts([]byte(v.metadataIn(rec.JSON)), &partial.ObjectMeta); err != nil {
			return nil, fmt.Errorf("%w: %w", scheme.ErrUnreadable, err)
		}
		return partial, nil
	}
	obj, err := v.Res.DecodeServed(rec.JSON)
	if err != nil {
		return nil, err
	}
	return protobuf.AsMessage(obj)
}

// content appends the encoded object in the form of the view, without tag or envelope. Most objects
// are transcoded directly from JSON.
func (v *View) content(dst []byte, rec *store.Record) ([]byte, error) {
	if t := v.transcodeType(); t != nil {
		if out, ok := protobuf.Transcode(dst, rec.JSON, t); ok {
			return out, nil
		}
	}
	m, err := v.message(rec)
	if err == nil {
		dst, err = protobuf.AppendMessage(dst, m, m.Size())
	}
	if err != nil {
		// for the log
		return dst, fmt.Errorf("%s at revision %d as protobuf: %w", rec.Key, rec.Rev, err)
	}
	return dst, nil
}

// transcodeType returns the Go type for transcoding the stored JSON, or nil if the object must be
// converted first.
func (v *View) transcodeType() reflect.Type {
	if v.Media.As != "" || v.Res.Conversion != nil && v.Res.Conversion.Out != nil {
		return nil
	}
	return v.Res.StoredType()
}

// AppendProtobuf appends one object in an envelope.
func (v *View) AppendProtobuf(dst []byte, rec *store.Record) ([]byte, error) {
	apiVersion, kind := v.Res.APIVersion(), v.Res.Kind
	if v.Media.As != "" {
		apiVersion, kind = v.listVersion(), "PartialObjectMetadata"
	}
	start := len(dst)
	dst, err := v.content(dst, rec)
	if err != nil {
		return dst[:start], err
	}
	dst = slices.Insert(dst, start, protobuf.AppendEnvelope(nil, apiVersion, kind, int64(len(dst)-start))...)
	return append(dst, protobuf.EnvelopeEnd...), nil
}

// writeSealed writes a response that consists of an envelope.
func writeSealed(w http.ResponseWriter, code int, sealed []byte) {
	header := w.Header()
	header.Set("Content-Type", string(scheme.ProtobufFormat))
	header.Set("Content-Length", strconv.Itoa(len(sealed)))
	if header.Get("Cache-Control") == "" {
		header.Set("Cache-Control", "no-cache, private")
	}
	w.WriteHeader(code)
	w.Write(sealed)
}

// ---- Lists ----

// HasListLength reports whether the length of a list precedes its items.
func (v *View) HasListLength() bool { return v.Media.Format == scheme.ProtobufFormat }

// old reports whether the metadata of the list follows its items, as in v1beta1 of meta.k8s.io.
func (v *View) old() bool {
	return v.Media.As != "" && v.Media.Version == metav1beta1.SchemeGroupVersion.Version
}

func (v *View) itemTag() byte {
	if v.old() {
		return protobuf.Field1
	}
	return protobuf.Field2
}

// AppendProtobufItem appends one item of a list.
func (v *View) AppendProtobufItem(dst []byte, rec *store.Record) ([]byte, error) {
	start := len(dst)
	dst, err := v.content(dst, rec)
	if err != nil {
		return dst[:start], err
	}
	var head [1 + binary.MaxVarintLen64]byte
	return slices.Insert(dst, start, protobuf.AppendLength(head[:0], v.itemTag(), int64(len(dst)-start))...), nil
}

// ProtobufListEnds returns the bytes before and after the items. items is the total length of the
// items in bytes.
func (v *View) ProtobufListEnds(meta ListMeta, items int64) (head, tail []byte, err error) {
	metadata := &metav1.ListMeta{Continue: meta.Cont, RemainingItemCount: meta.Remaining}
	if meta.Rev != 0 {
		metadata.ResourceVersion = strconv.FormatInt(meta.Rev, 10)
	}
	tag := byte(protobuf.Field1)
	if v.old() {
		tag = protobuf.Field2
	}
	encoded, err := protobuf.AppendField(nil, tag, metadata)
	if err != nil {
		return nil, nil, err
	}
	head = protobuf.AppendEnvelope(nil, v.listVersion(), v.listKind(), int64(len(encoded))+items)
	if v.old() {
		return head, append(encoded, protobuf.EnvelopeEnd...), nil
	}
	return append(head, encoded...), []byte(protobuf.EnvelopeEnd), nil
}

// ---- Events of a watch ----

// StreamType returns the Content-Type of a watch.
func (v *View) StreamType() string {
	if v.Media.Format == scheme.ProtobufFormat {
		return string(scheme.ProtobufFormat) + ";stream=watch"
	}
	return string(scheme.JSONFormat)
}

// AppendFrame appends one event. The object must already be encoded in its envelope.
func AppendFrame(dst []byte, kind string, sealed []byte) []byte {
	raw := protobuf.FieldSize(len(sealed))
	dst = binary.BigEndian.AppendUint32(dst, uint32(protobuf.FieldSize(len(kind))+protobuf.FieldSize(raw)))
	dst = protobuf.AppendString(dst, protobuf.Field1, kind)
	dst = protobuf.AppendLength(dst, protobuf.Field2, int64(raw))
	return append(protobuf.AppendLength(dst, protobuf.Field1, int64(len(sealed))), sealed...)
}

const (
	// MaxCachedProtobuf is the maximum size in bytes of a cached protobuf object. The cache is
	// limited to 4 MiB of protobuf. It also holds the JSON of these objects, most of which is
	// shared with the event log.
	MaxCachedProtobuf = 64 << 10
)

// ---- Decoding ----

// ProtobufToJSON decodes a protobuf response to JSON. It serves readers other than the client, such
// as the audit log.
func ProtobufToJSON(types *scheme.Registry, sealed []byte) ([]byte, error) {
	envelope, err := scheme.OpenEnvelope(sealed)
	if err != nil {
		return nil, err
	}
	gvk := envelope.GroupVersionKind()
	for _, res := range types.All() {
		wire := res.ExpectedBody("").Wire
		switch {
		case wire == nil || res.Group != gvk.Group || res.Version != gvk.Version:
		case res.Kind == gvk.Kind:
			return unsealedAs(reflect.New(wire).Interface(), envelope)
		case res.ListKind == gvk.Kind:
			return unsealedList(wire, envelope)
		}
	}
	for _, sub := range scheme.SubresourceTypes {
		if obj := reflect.New(sub).Interface(); sub.Name() == gvk.Kind {
			return unsealedAs(obj, envelope)
		}
	}
	if obj := newUnstored(gvk); obj != nil {
		return unsealedAs(obj, envelope)
	}
	return nil, fmt.Errorf("%s is nothing that is answered", gvk)
}

// newUnstored returns a new object of a kind that is not stored, or nil if the kind is unknown.
func newUnstored(gvk schema.GroupVersionKind) any {
	switch gvk.Kind {
	case "Status":
		return &metav1.Status{}
	case "PartialObjectMetadata":
		return &metav1.PartialObjectMetadata{}
	case "PartialObjectMetadataList":
		if gvk.Version == metav1beta1.SchemeGroupVersion.Version {
			return &metav1beta1.PartialObjectMetadataList{}
		}
		return &metav1.PartialObjectMetadataList{}
	case "APIGroup":
		return &metav1.APIGroup{}
	case "APIGroupList":
		return &metav1.APIGroupList{}
	case "APIResourceList":
		return &metav1.APIResourceList{}
	case "APIGroupDiscoveryList":
		return &apidiscoveryv2.APIGroupDiscoveryList{}
	case "APIVersions":
		return &metav1.APIVersions{}
	}
	return nil
}

func unsealedAs(obj any, envelope *runtime.Unknown) ([]byte, error) {
	if err := obj.(interface{ Unmarshal([]byte) error }).Unmarshal(envelope.Raw); err != nil {
		return nil, err
	}
	switch list := obj.(type) {
	case *metav1.PartialObjectMetadataList:
		for i := range list.Items {
			list.Items[i].TypeMeta = metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: envelope.APIVersion}
		}
	case *metav1beta1.PartialObjectMetadataList:
		for i := range list.Items {
			list.Items[i].TypeMeta = metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: envelope.APIVersion}
		}
	}
	if typed, ok := obj.(runtime.Object); ok {
		typed.GetObjectKind().SetGroupVersionKind(envelope.GroupVersionKind())
	}
	return json.Marshal(obj)
}

// unsealedList decodes the metadata and the items of a list.
func unsealedList(item reflect.Type, envelope *runtime.Unknown) ([]byte, error) {
	list := struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        metav1.ListMeta `json:"metadata"`
		Items           []any           `json:"items"`
	}{TypeMeta: metav1.TypeMeta{Kind: envelope.Kind, APIVersion: envelope.APIVersion}, Items: []any{}}
	for rest := envelope.Raw; len(rest) > 0; {
		number, kind, n := protowire.ConsumeTag(rest)
		if n < 0 || kind != protowire.BytesType {
			return nil, errors.New("the list is none in protobuf")
		}
		content, m := protowire.ConsumeBytes(rest[n:])
		if m < 0 {
			return nil, protowire.ParseError(m)
		}
		var into any = &list.Metadata
		if number != 1 {
			into = reflect.New(item).Interface()
			list.Items = append(list.Items, into)
		}
		if err := into.(interface{ Unmarshal([]byte) error }).Unmarshal(content); err != nil {
			return nil, err
		}
		rest = rest[n+m:]
	}
	return json.Marshal(&list)
}
