// Package schemetest provides a custom resource and a decoder of protobuf responses for tests.
// The tests of package scheme cannot import it because of an import cycle, so they contain a copy
// of two small functions.
package schemetest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	authenticationv1 "k8s.io/api/authentication/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"

	"apilet/internal/scheme"
	"apilet/internal/scheme/protobuf"
)

// CustomFoo returns the custom resource foos of x.io.
func CustomFoo() *scheme.Resource {
	return &scheme.Resource{Group: "x.io", Version: "v1", Kind: "Foo", Plural: "foos", Singular: "foo", StorageGroup: "x.io", Namespaced: true,
		Verbs: []string{"create", "get", "list"}}
}

// GeneratedBytes returns the protobuf encoding of a stored document by the methods of its Go
// type.
func GeneratedBytes(t testing.TB, res *scheme.Resource, doc []byte) []byte {
	t.Helper()
	obj, err := res.DecodeStored(doc)
	if err != nil {
		t.Fatalf("%v: %s", err, doc)
	}
	m, err := protobuf.AsMessage(obj)
	if err != nil {
		t.Fatal(err)
	}
	want, err := protobuf.AppendMessage(nil, m, m.Size())
	if err != nil {
		t.Fatal(err)
	}
	return want
}

// protobufTypes maps the types that an envelope may hold, in addition to the built-in types and
// lists.
var protobufTypes = map[string]reflect.Type{
	"v1 Status":                             reflect.TypeFor[metav1.Status](),
	"v1 APIResourceList":                    reflect.TypeFor[metav1.APIResourceList](),
	"v1 APIGroup":                           reflect.TypeFor[metav1.APIGroup](),
	"v1 APIGroupList":                       reflect.TypeFor[metav1.APIGroupList](),
	" APIResourceList":                      reflect.TypeFor[metav1.APIResourceList](),
	" APIVersions":                          reflect.TypeFor[metav1.APIVersions](),
	"autoscaling/v1 Scale":                  reflect.TypeFor[autoscalingv1.Scale](),
	"authentication.k8s.io/v1 TokenRequest": reflect.TypeFor[authenticationv1.TokenRequest](),
	"apidiscovery.k8s.io/v2 APIGroupDiscoveryList":  reflect.TypeFor[apidiscoveryv2.APIGroupDiscoveryList](),
	"meta.k8s.io/v1 PartialObjectMetadata":          reflect.TypeFor[metav1.PartialObjectMetadata](),
	"meta.k8s.io/v1 PartialObjectMetadataList":      reflect.TypeFor[metav1.PartialObjectMetadataList](),
	"meta.k8s.io/v1beta1 PartialObjectMetadata":     reflect.TypeFor[metav1.PartialObjectMetadata](),
	"meta.k8s.io/v1beta1 PartialObjectMetadataList": reflect.TypeFor[metav1beta1.PartialObjectMetadataList](),
}

type unmarshaler interface{ Unmarshal([]byte) error }

// Unsealed decodes an envelope and returns the content as JSON. The content must be an object or
// a list of the given types, or be listed in protobufTypes.
func Unsealed(rows []*scheme.Resource, sealed []byte) ([]byte, error) {
	envelope, err := scheme.OpenEnvelope(sealed)
	if err != nil {
		return nil, err
	}
	if again, err := envelope.Marshal(); err != nil || !bytes.Equal(again, sealed[4:]) {
		return nil, fmt.Errorf("%s is not how an envelope is written: %v", envelope.Kind, err)
	}
	goType := protobufTypes[envelope.APIVersion+" "+envelope.Kind]
	for _, res := range rows {
		switch {
		case res.APIVersion() != envelope.APIVersion:
		case res.Kind == envelope.Kind:
			goType = res.GoType
		case res.ListKind == envelope.Kind:
			return unsealedList(res, envelope.Raw)
		}
	}
	if goType == nil {
		return nil, fmt.Errorf("an envelope of %s %s", envelope.APIVersion, envelope.Kind)
	}
	obj := reflect.New(goType).Interface()
	if err := obj.(unmarshaler).Unmarshal(envelope.Raw); err != nil {
		return nil, err
	}
	return scheme.MarshalAs(obj.(runtime.Object), envelope.APIVersion, envelope.Kind)
}

// unsealedList decodes a list of any kind. The metadata is in field 1, and the items are in field
// 2.
func unsealedList(res *scheme.Resource, raw []byte) ([]byte, error) {
	meta, items := metav1.ListMeta{}, []json.RawMessage{}
	for len(raw) > 0 {
		length, n := binary.Uvarint(raw[1:])
		if n <= 0 || length > uint64(len(raw)-1-n) {
			return nil, fmt.Errorf("%s: a field of %d bytes where %d are left", res.ListKind, length, len(raw))
		}
		tag, content := raw[0], raw[1+n:][:length]
		raw = raw[1+n:][length:]
		if tag == protobuf.Field1 {
			if err := meta.Unmarshal(content); err != nil {
				return nil, err
			}
			continue
		}
		obj := reflect.New(res.GoType).Interface().(scheme.Object)
		if err := obj.(unmarshaler).Unmarshal(content); err != nil || tag != protobuf.Field2 {
			return nil, fmt.Errorf("%s: field %#x: %v", res.ListKind, tag, err)
		}
		item, err := json.Marshal(obj)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return json.Marshal(map[string]any{"kind": res.ListKind, "apiVersion": res.APIVersion(), "metadata": meta, "items": items})
}
