// Package bounded reads documents in bounded time and memory, and says which could be stored and never read again. The decoders of Go and
// Kubernetes trust a document's author: three bytes of JSON become 400 of memory, ten characters a number of two milliards of digits, and
// what an encoder has written a decoder may refuse. Here a document is looked through first, along the Go type that it is to become, and
// most are done with one look through their bytes.
//
//	strictErrs, err := bounded.UnmarshalStrict(body, &pod)     // what a client has sent, as JSON
//	err = bounded.UnmarshalWire(&pod, wire)                    // or as protobuf
//	err = bounded.Unmarshal(stored, &pod)                      // what lies in the store: quantities alone are looked at
//	if bounded.Inspect(encoded).Depth > bounded.StoredDepth {} // what is about to be stored
//
// decode.go has these ways; quantities.go the bound on numbers, weight.go that on memory, document.go those on depth, and on the years of
// times; strict.go reads administrators' files, whose authors are trusted. What is within the bounds is read as k8s.io/apimachinery and sigs.k8s.io/json read it.
//
// Invariants: nothing is made of a document before it is known to be within the bounds; a look costs a small part of decoding
// (BenchmarkCheckQuantities, BenchmarkWeight). Of ours it imports nothing.
package bounded
