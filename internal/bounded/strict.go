package bounded

// This file reads the files of administrators: configurations of apiserver.config.k8s.io, which say what there is no flag for.

import (
	"errors"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// Configuration reads a file in any of the versions that add knows, strictly: a field that nobody knows is an error, in k8s.io/apimachinery's words. It
// becomes what the internal version has; kind is what it said that it is.
func Configuration(text []byte, add ...func(*runtime.Scheme) error) (config runtime.Object, kind *schema.GroupVersionKind, err error) {
	types := runtime.NewScheme()
	for _, to := range add {
		err = errors.Join(err, to(types))
	}
	if err != nil {
		return nil, nil, err
	}
	return serializer.NewCodecFactory(types, serializer.EnableStrict).UniversalDecoder().Decode(text, nil, nil)
}
