package main

import (
	"testing"

	"apilet/internal/scheme"
	"apilet/internal/scheme/protobuf"
)

// generatedBytes are a document's protobuf by way of its Go type.
func generatedBytes(t testing.TB, res *scheme.Resource, doc []byte) []byte {
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

func BenchmarkTranscode(b *testing.B) {
	res := testResource("pods")
	s := startTest(b)
	s.want(201, "POST", "/api/v1/namespaces/default/pods", benchPod(1))
	rec, err := s.st.Get(res.Key("default", "p1"))
	if err != nil {
		b.Fatal(err)
	}
	b.Run("directly", func(b *testing.B) {
		b.ReportAllocs()
		var dst []byte
		for b.Loop() {
			dst, _ = protobuf.Transcode(dst[:0], rec.JSON, res.StoredType())
		}
	})
	b.Run("by-its-type", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			generatedBytes(b, res, rec.JSON)
		}
	})
}
