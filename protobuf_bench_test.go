package main

import (
	"testing"

	"apilet/internal/scheme"
	"apilet/internal/scheme/protobuf"
	"apilet/internal/scheme/schemetest"
)

func BenchmarkTranscode(b *testing.B) {
	res := scheme.NewRegistry().Lookup("", "v1", "pods")
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
			schemetest.GeneratedBytes(b, res, rec.JSON)
		}
	})
}
