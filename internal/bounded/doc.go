// Package bounded decodes documents in bounded time and memory, and detects documents that could
// be stored but not decoded again. The decoders of Go and Kubernetes trust their input: three
// bytes of JSON become 400 bytes of memory, ten characters become a number with two billion
// digits, and a decoder may reject the output of its own encoder. This package therefore checks a
// document first, along the Go type that it will be decoded into. For most documents one scan of
// the bytes is enough.
//
//	strictErrs, err := bounded.UnmarshalStrict(body, &pod)     // the body of a request, in JSON
//	err = bounded.UnmarshalWire(&pod, wire)                    // or in protobuf
//	err = bounded.Unmarshal(stored, &pod)                      // a stored document: only quantities are checked
//	if bounded.Inspect(encoded).Depth > bounded.StoredDepth {} // a document to be stored
//
// These functions are in decode.go. quantities.go has the limits of numbers, weight.go the limit
// of memory, and document.go the limits of depth and of the years of times. strict.go reads the
// administrator's files, which are trusted. Documents within the limits are decoded by
// k8s.io/apimachinery and sigs.k8s.io/json.
//
// Invariants: a document is checked before any part of it is decoded, and a check costs a small
// fraction of decoding (BenchmarkCheckQuantities, BenchmarkWeight). This package does not import
// other packages of this program.
package bounded
