// Package bounded decodes documents in bounded time and memory, and detects documents that could
// be stored but not decoded again. The decoders of Go and Kubernetes trust the input. Three bytes
// of JSON may become 400 bytes of memory, and ten characters may become a number with two billion
// digits. A decoder may also reject the output of the corresponding encoder. This package
// therefore checks a document first, along the Go type that it will be decoded into. Most
// documents only need a scan of the bytes.
//
//	strictErrs, err := bounded.UnmarshalStrict(body, &pod)     // the body of a request, in JSON
//	err = bounded.UnmarshalWire(&pod, wire)                    // or in protobuf
//	err = bounded.Unmarshal(stored, &pod)                      // a stored document: only quantities are checked
//	if bounded.Inspect(encoded).Depth > bounded.StoredDepth {} // a document to be stored
//
// These functions are in decode.go. See quantities.go for the limits of numbers, weight.go for the
// limit of memory, and document.go for the limits of depth and of the years of times. The files of
// the administrator are trusted and are read by strict.go. Documents within the limits are decoded
// by k8s.io/apimachinery and sigs.k8s.io/json.
//
// Invariants: The document is checked before it is decoded, and the check is much cheaper than
// decoding (BenchmarkCheckQuantities, BenchmarkWeight). This package does not import other
// packages of this program.
package bounded
