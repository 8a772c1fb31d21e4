package protobuf_test

import (
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"

	"apilet/internal/scheme/protobuf"
)

// Stored JSON becomes the message of its Go type without an object in between, or is refused: then one is decoded.
func ExampleTranscode() {
	message, ok := protobuf.Transcode(nil, []byte(`{"metadata":{"name":"a"},"data":{"k":"v"}}`), reflect.TypeFor[corev1.ConfigMap]())
	var back corev1.ConfigMap
	fmt.Println(ok, back.Unmarshal(message), back.Name, back.Data)
	_, ok = protobuf.Transcode(nil, []byte(`{"metadata":`), reflect.TypeFor[corev1.ConfigMap]())
	fmt.Println(ok)
	// Output:
	// true <nil> a map[k:v]
	// false
}
