package main

import (
	"net/http"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// An object is a built-in Go type of k8s.io/api or an *unstructured.Unstructured.
type object interface {
	metav1.Object
	runtime.Object
}

// A resource is one row of the table: one resource at one served version. Immutable once in a registry.
type resource struct {
	group, version   string
	kind             string
	plural, singular string
	shortNames       []string
	categories       []string
	namespaced       bool
	verbs            []string // create delete deletecollection get list patch update watch
	subresources     []subresource
	storageGroup     string       // the group in the object's key: both groups of Event show one object
	goType           reflect.Type // struct type of the served version; nil for a custom resource
	generation       bool         // metadata.generation counts changes outside metadata and status
	virtual          bool         // nothing is stored: a review, answered at once
	prefix           string       // `"kind":"Pod","apiVersion":"v1",` what reading puts before the stored members
	deprecation      *deprecation // nil: not deprecated
}

// A subresource is /status, /scale, /binding, ...; kind is that of its body.
type subresource struct {
	name                 string
	group, version, kind string
	verbs                []string
}

// A deprecation is what the Go type's lifecycle methods say. Versions are {major, minor}.
type deprecation struct {
	deprecated, removed                            [2]int
	replacementGroup, replacementVersion, replaced string
}

// A registry is the set of resources that are served. Lookups are safe beside changes (custom resources come and go).
type registry struct{}

func newRegistry() *registry { panic("skeleton") }

// lookup finds a resource by group, version and plural name; nil when it is not served.
func (reg *registry) lookup(group, version, plural string) *resource { panic("skeleton") }

// all returns every served resource in discovery order: the preferred version of a group first.
func (reg *registry) all() []*resource { panic("skeleton") }

// key is the store's key of one object: /group/resource/namespace/name (namespace "" when cluster-scoped).
func (res *resource) key(namespace, name string) string { panic("skeleton") }

// keyPrefix is the range of a namespace ("": of the whole resource).
func (res *resource) keyPrefix(namespace string) string { panic("skeleton") }

// decode reads a request body (JSON, YAML or Kubernetes protobuf, by its Content-Type) into a new object of the resource's type
// (or of the subresource's kind sub). strictErrs are unknown and duplicate fields. err is a Status error: 400 or 415.
func (res *resource) decode(body []byte, contentType, sub string) (obj object, strictErrs []error, err error) {
	panic("skeleton")
}

// decodeStored reads stored JSON.
func (res *resource) decodeStored(json []byte) (object, error) { panic("skeleton") }

// encodeStored writes an object as the store keeps it: without kind and apiVersion, resourceVersion empty; revAt is where the
// decimal revision belongs.
func (res *resource) encodeStored(obj object) (json []byte, revAt int, err error) { panic("skeleton") }

// writeError answers with the Status of err (an apierrors.APIStatus; anything else is a 500 InternalError), honouring Accept.
func writeError(w http.ResponseWriter, r *http.Request, err error) { panic("skeleton") }

// writeJSON answers with a JSON document, as YAML when the request's Accept prefers it.
func writeJSON(w http.ResponseWriter, r *http.Request, code int, json []byte) { panic("skeleton") }
