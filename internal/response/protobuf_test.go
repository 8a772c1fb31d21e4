package response

import (
	"bytes"
	"testing"

	"apilet/internal/apitest/kubetest"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// Lists of all types have the same two fields; the generated code of each says so.
func TestListsAreReadByTheirTypes(t *testing.T) {
	left := int64(3)
	checked := 0
	for _, res := range scheme.NewRegistry().All() {
		list, err := kubetest.Builtin().New(res.GroupVersionKind().GroupVersion().WithKind(res.ListKind))
		if err != nil {
			continue
		}
		checked++
		v := &View{Res: res, Media: MediaType{Format: scheme.ProtobufFormat}}
		obj := kubetest.Filled(res.StoredType())
		stored, revAt, err := res.EncodeStored(obj)
		if err != nil {
			t.Fatal(err)
		}
		rec := &store.Record{Rev: 7, JSON: []byte(string(stored[:revAt]) + "7" + string(stored[revAt:]))}
		item, err := v.AppendProtobufItem(nil, rec)
		if err != nil {
			t.Fatal(err)
		}
		head, tail, err := v.ProtobufListEnds(ListMeta{Rev: 9, Cont: "more", Remaining: &left}, int64(2*len(item)))
		if err != nil {
			t.Fatal(err)
		}
		whole := bytes.Join([][]byte{head, item, item, tail}, nil)
		envelope, err := scheme.OpenEnvelope(whole)
		if err != nil {
			t.Fatal(err)
		}
		if err := list.(interface{ Unmarshal([]byte) error }).Unmarshal(envelope.Raw); err != nil {
			t.Fatal(err)
		}
		asItsType, err := list.(interface{ Marshal() ([]byte, error) }).Marshal()
		if err != nil || !bytes.Equal(asItsType, envelope.Raw) {
			t.Errorf("%s\n got %q\nwant %q, %v", res.ListKind, envelope.Raw, asItsType, err)
		}
	}
	if checked < 55 {
		t.Errorf("%d lists", checked)
	}
}
