package response

// This file writes Kubernetes' protobuf. The store keeps JSON, so an answer is decoded into its Go type and encoded by the methods that
// k8s.io/api generates, or brought from one encoding into the other without that, which package scheme/protobuf tells. Either costs the server more
// than to copy JSON, and spares a typed client more than that.
//
// Everything that stands alone is sealed in an envelope, a runtime.Unknown behind four bytes by which a reader knows it:
//
//	6b 38 73 00                 "k8s\0"
//	0a nn  0a .. 12 ..          1: apiVersion and kind, which the object's own bytes do not have
//	12 nn  ..                   2: the object's own bytes
//	1a 00  22 00                3, 4: encoding and type of these bytes, both empty
//
// A list is one object: 1 is its metadata and each item is a 2, without an envelope of its own. An event of a watch has no envelope, but
// its object does:
//
//	00 00 nn nn                 the frame's length
//	0a nn  ADDED                1: type
//	12 nn  0a nn  k8s\0 ..      2: a RawExtension, whose 1 is the sealed object
//
// A length comes before what it counts. For a list of millions of items that is a hard word, since a list is never held in memory. So a
// list that does not fit into the first megabyte is encoded twice at one revision: once to be measured, chunk by chunk, and once to be
// sent. (Lengths inside do not help: field 2 is bytes, of which a second occurrence replaces the first. To spool the list into a file
// would cost a disk write for each read.) What was measured is announced as Content-Length, too: an answer that comes out otherwise is cut.

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

// SealObject seals an object that is not stored, under the kind that it carries.
func SealObject(obj runtime.Object) ([]byte, error) {
	m, err := protobuf.AsMessage(obj)
	if err != nil {
		return nil, err
	}
	apiVersion, kind := obj.GetObjectKind().GroupVersionKind().ToAPIVersionAndKind()
	return protobuf.AppendSealed(nil, apiVersion, kind, m)
}

// ---- Objects as a view shows them ----

// message decodes what the view shows of an object: the whole, or its metadata alone.
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

// content appends the bytes of an object as the view shows it, without tag or envelope. Most come straight from the JSON.
func (v *View) content(dst []byte, rec *store.Record) ([]byte, error) {
	if t := v.directly(); t != nil {
		if out, ok := protobuf.Transcode(dst, rec.JSON, t); ok {
			return out, nil
		}
	}
	m, err := v.message(rec)
	if err == nil {
		dst, err = protobuf.AppendMessage(dst, m, m.Size())
	}
	if err != nil {
		return dst, fmt.Errorf("%s at revision %d as protobuf: %w", rec.Key, rec.Rev, err) // for the log
	}
	return dst, nil
}

// directly is the Go type whose fields the stored JSON has as they are shown; nil when the object has to be made.
func (v *View) directly() reflect.Type {
	if v.Media.As != "" || v.Res.Conversion != nil && v.Res.Conversion.Out != nil {
		return nil
	}
	return v.Res.StoredType()
}

// Sealed appends one object that stands alone.
func (v *View) Sealed(dst []byte, rec *store.Record) ([]byte, error) {
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
	return append(dst, protobuf.SealEnd...), nil
}

// writeSealed answers with an envelope.
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

// Measured says that a list's length stands before its items.
func (v *View) Measured() bool { return v.Media.Format == scheme.ProtobufFormat }

// old says that the list's metadata comes behind its items: so it was in v1beta1 of meta.k8s.io, and nowhere else.
func (v *View) old() bool {
	return v.Media.As != "" && v.Media.Version == metav1beta1.SchemeGroupVersion.Version
}

func (v *View) itemTag() byte {
	if v.old() {
		return protobuf.Field1
	}
	return protobuf.Field2
}

// SealedItem appends one item of a list.
func (v *View) SealedItem(dst []byte, rec *store.Record) ([]byte, error) {
	start := len(dst)
	dst, err := v.content(dst, rec)
	if err != nil {
		return dst[:start], err
	}
	var head [1 + binary.MaxVarintLen64]byte
	return slices.Insert(dst, start, protobuf.AppendLength(head[:0], v.itemTag(), int64(len(dst)-start))...), nil
}

// SealedEnds are what stands before and behind items of so many bytes altogether.
func (v *View) SealedEnds(meta ListMeta, items int64) (head, tail []byte, err error) {
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
		return head, append(encoded, protobuf.SealEnd...), nil
	}
	return append(head, encoded...), []byte(protobuf.SealEnd), nil
}

// ---- Events of a watch ----

// StreamType is the Content-Type of a watch.
func (v *View) StreamType() string {
	if v.Media.Format == scheme.ProtobufFormat {
		return string(scheme.ProtobufFormat) + ";stream=watch"
	}
	return string(scheme.JSONFormat)
}

// AppendFrame appends one event whose object is sealed.
func AppendFrame(dst []byte, kind string, sealed []byte) []byte {
	raw := protobuf.FieldSize(len(sealed))
	dst = binary.BigEndian.AppendUint32(dst, uint32(protobuf.FieldSize(len(kind))+protobuf.FieldSize(raw)))
	dst = protobuf.AppendString(dst, protobuf.Field1, kind)
	dst = protobuf.AppendLength(dst, protobuf.Field2, int64(raw))
	return append(protobuf.AppendLength(dst, protobuf.Field1, int64(len(sealed))), sealed...)
}

const (
	SealedMost = 64 << 10 // bytes of an object that is remembered: all together are 4 MiB at most, and as much JSON that the log mostly has, too
)

// ---- And back ----

// Unsealed is what an answer in protobuf says, as JSON: for who has to read it that has not asked for it.
func Unsealed(types *scheme.Registry, sealed []byte) ([]byte, error) {
	envelope, err := scheme.OpenEnvelope(sealed)
	if err != nil {
		return nil, err
	}
	gvk := envelope.GroupVersionKind()
	for _, res := range types.All() {
		wire := res.BodyOf("").Wire
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
	if obj := unstored(gvk); obj != nil {
		return unsealedAs(obj, envelope)
	}
	return nil, fmt.Errorf("%s is nothing that is answered", gvk)
}

// unstored is a new object of a kind that no type has.
func unstored(gvk schema.GroupVersionKind) any {
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

// unsealedList takes a list apart: its metadata stand first, then each of its items.
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
