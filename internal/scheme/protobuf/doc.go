// Package protobuf writes Kubernetes' protobuf: the envelope around everything that stands alone (k8s and a NUL, then a runtime.Unknown), and
// stored JSON brought into the wire form of its Go type without the object in between, which takes a quarter of the time or less
// (BenchmarkTranscode compares the two).
//
//	out, ok := protobuf.Transcode(nil, doc, reflect.TypeFor[corev1.Pod]())
//	if !ok { // something that only the Go type's own methods can tell: decode, then protobuf.AppendMessage
//	}
//
// The envelope is k8s.io/apimachinery/pkg/runtime/serializer/protobuf's; numbers and kinds of fields are those of the types' generated code,
// read from the protobuf tags of their fields. It imports none of our packages.
//
// Invariants: what [Transcode] writes is what the generated code writes for the same object, to the last byte, or it returns false; it
// appends to dst and keeps nothing of doc.
package protobuf
