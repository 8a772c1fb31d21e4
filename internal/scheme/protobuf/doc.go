// Package protobuf writes Kubernetes' protobuf encoding. It writes the envelope of an object or
// list ("k8s" and a NUL byte, then a runtime.Unknown). [Transcode] converts stored JSON to the
// wire format of its Go type without decoding it into an object, which takes at most a quarter of
// the time (see BenchmarkTranscode).
//
//	out, ok := protobuf.Transcode(nil, doc, reflect.TypeFor[corev1.Pod]())
//	if !ok { // only the Go type's own methods can encode it: decode, then call protobuf.AppendMessage
//	}
//
// The envelope is that of k8s.io/apimachinery/pkg/runtime/serializer/protobuf. The numbers and
// types of fields are read from the protobuf tags of the Go types, as in the generated code. This
// package does not import other packages of this program.
//
// Invariants: Transcode writes exactly the bytes that the generated code writes for the same
// object, or returns false. It appends to dst and does not retain doc.
package protobuf
