package bounded

// This file reads the administrator's configuration files, which are of types in
// apiserver.config.k8s.io.

import (
	"errors"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// DecodeConfiguration decodes a file in any of the versions that add registers. An unknown field is
// an error with the text of k8s.io/apimachinery. config has the internal version. kind is the kind
// that the file names.
func DecodeConfiguration(text []byte, add ...func(*runtime.Scheme) error) (config runtime.Object, kind *schema.GroupVersionKind, err error) {
	types := runtime.NewScheme()
	for _, to := range add {
		err = errors.Join(err, to(types))
	}
	if err != nil {
		return nil, nil, err
	}
	return serializer.NewCodecFactory(types, serializer.EnableStrict).UniversalDecoder().Decode(text, nil, nil)
}
