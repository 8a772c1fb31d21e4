package rules

// This file runs the handlers and the registry of kube-apiserver with a map instead of etcd.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime/debug"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/recognizer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	_ "k8s.io/kubernetes/pkg/apis/certificates/install"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/discovery/install"
	_ "k8s.io/kubernetes/pkg/apis/events/install"
	_ "k8s.io/kubernetes/pkg/apis/flowcontrol/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/node/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
	_ "k8s.io/kubernetes/pkg/apis/storagemigration/install"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/resolver"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"apilet/internal/scheme"
)

const serviceRange = "10.96.0.0/16"

// firstRevision is used to distinguish the revisions of the reference from the revisions of the
// candidate and from other numbers.
const firstRevision = 1 << 40

var everyone = authorizerfactory.NewAlwaysAllowAuthorizer()

// A reference answers requests as kube-apiserver does.
type reference struct {
	opts     *options
	storages map[schema.GroupResource]rest.Storage
	handlers map[handlerKey]http.HandlerFunc
}

type handlerKey struct {
	row         *scheme.Resource
	method, sub string
}

func newReference() *reference {
	opts := &options{rev: firstRevision}
	return &reference{opts: opts, storages: storages(opts), handlers: map[handlerKey]http.HandlerFunc{}}
}

// serves reports whether a storage exists for a resource or subresource.
func (ref *reference) serves(row *scheme.Resource, sub string) bool {
	return ref.storage(row, sub) != nil
}

func (ref *reference) storage(row *scheme.Resource, sub string) rest.Storage {
	name := row.Plural
	if sub != "" {
		name += "/" + sub
	}
	return ref.storages[schema.GroupResource{Group: row.Group, Resource: name}]
}

// do sends a request to its handler. If kube-apiserver panics, the response does not contain a
// reason.
func (ref *reference) do(c *call) (a answer) {
	defer func() {
		if r := recover(); r != nil {
			a = answer{panicked: fmt.Sprint(r), body: debug.Stack()}
		}
	}()
	r, notes := c.request()
	ctx := request.WithRequestInfo(r.Context(), &request.RequestInfo{IsResourceRequest: true, Path: r.URL.Path, Verb: c.verb(), APIPrefix: "apis",
		APIGroup: c.row.Group, APIVersion: c.row.Version, Namespace: c.namespace(), Resource: c.row.Plural, Subresource: c.sub, Name: c.name})
	ctx = request.WithNamespace(ctx, c.namespace())
	ctx = audit.WithAuditContext(ctx)
	ctx = request.WithUser(ctx, &user.DefaultInfo{Name: userName, Groups: []string{groupName}})
	w := httptest.NewRecorder()
	ref.handler(c)(w, r.WithContext(ctx))
	return answer{code: w.Code, body: w.Body.Bytes(), warnings: notes.texts}
}

// handler returns the handler for a method. It is created in the same way as in the installer of
// kube-apiserver.
func (ref *reference) handler(c *call) http.HandlerFunc {
	key := handlerKey{c.row, c.method, c.sub}
	if made := ref.handlers[key]; made != nil {
		return made
	}
	storage, scope := ref.storage(c.row, c.sub), scopeOf(c.row, c.sub)
	var made http.HandlerFunc
	switch c.method {
	case http.MethodPost:
		made = handlers.CreateResource(storage.(rest.Creater), scope, nil)
	case http.MethodPut:
		made = handlers.UpdateResource(storage.(rest.Updater), scope, nil)
	case http.MethodPatch:
		made = handlers.PatchResource(storage.(rest.Patcher), scope, nil, []string{string(types.JSONPatchType), string(types.MergePatchType),
			string(types.StrategicMergePatchType)})
	}
	ref.handlers[key] = made
	return made
}

// clear removes all objects.
func (ref *reference) clear() {
	for _, opened := range ref.opts.opened {
		clear(opened.entries)
	}
}

func scopeOf(row *scheme.Resource, sub string) *handlers.RequestScope {
	s, codecs := schemeOf(row.Group)
	scope := &handlers.RequestScope{
		Namer:      handlers.ContextBasedNaming{Namer: runtime.Namer(meta.NewAccessor()), ClusterScoped: !row.Namespaced},
		Serializer: codecs, ParameterCodec: runtime.NewParameterCodec(s), Creater: s, Convertor: s, Defaulter: s, Typer: s,
		UnsafeConvertor: runtime.UnsafeObjectConvertor(s), Authorizer: everyone, EquivalentResourceMapper: runtime.NewEquivalentResourceRegistry(),
		TableConvertor: rest.NewDefaultTableConvertor(row.GroupResource()), Resource: schema.GroupVersionResource{Group: row.Group, Version: row.Version,
			Resource: row.Plural}, Kind: schema.GroupVersionKind{Group: row.Group, Version: row.Version, Kind: row.Kind}, Subresource: sub,
		MetaGroupVersion: metav1.SchemeGroupVersion, HubGroupVersion: schema.GroupVersion{Group: row.Group, Version: runtime.APIVersionInternal},
		MaxRequestBodyBytes: 3 << 20,
	}
	if sub == "scale" {
		scope.Kind = schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}
		scope.HubGroupVersion = schema.GroupVersion{Group: "autoscaling", Version: runtime.APIVersionInternal}
	}
	scope.FieldManager = must(managedfields.NewDefaultFieldManager(noTypes{}, scope.UnsafeConvertor, s, s, scope.Kind, scope.HubGroupVersion, sub, nil))
	return scope
}

func schemeOf(group string) (*runtime.Scheme, serializer.CodecFactory) {
	if group == "apiregistration.k8s.io" {
		return aggregatorscheme.Scheme, aggregatorscheme.Codecs
	}
	return legacyscheme.Scheme, legacyscheme.Codecs
}

// noTypes disables the field manager, because managed fields are not compared.
type noTypes struct{}

var errNoTypes = errors.New("no types")

func (noTypes) ObjectToTyped(runtime.Object, ...typed.ValidationOptions) (*typed.TypedValue, error) {
	return nil, errNoTypes
}

func (noTypes) TypedToObject(*typed.TypedValue) (runtime.Object, error) { return nil, errNoTypes }

// unasked is a resolver that is required but never called.
type unasked struct{ resolver.ResourceResolver }

// plainNamespaces returns namespaces without labels.
type plainNamespaces struct{ v1.NamespaceInterface }

func (plainNamespaces) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Namespace, error) {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
}

// ---- Storage ----

// options gives each resource a memory.
type options struct {
	opened []*memory
	rev    int64
}

// GetRESTOptions returns the options with which kube-apiserver stores protobuf in etcd.
func (o *options) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	s, codecs := schemeOf(resource.Group)
	stored := s.PrioritizedVersionsForGroup(resource.Group)[0]
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		return generic.RESTOptions{}, errors.New("no protobuf")
	}
	codec := runtime.NewCodec(codecs.EncoderForVersion(info.Serializer, stored),
		codecs.DecoderToVersion(recognizer.NewDecoder(info.Serializer), runtime.InternalGroupVersioner))
	config := &storagebackend.ConfigForResource{Config: storagebackend.Config{Codec: codec, EncodeVersioner: stored}, GroupResource: resource}
	return generic.RESTOptions{StorageConfig: config, ResourcePrefix: resource.Resource, Decorator: o.open}, nil
}

func (o *options) open(config *storagebackend.ConfigForResource, _ string, _ func(runtime.Object) (string, error), newObject, _ func() runtime.Object,
	_ storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
	m := &memory{rev: &o.rev, codec: config.Codec, newObject: newObject, entries: map[string]entry{}}
	o.opened = append(o.opened, m)
	return m, func() {}, nil
}

// A memory is a storage.Interface in a map. Only the methods that writes need are implemented.
type memory struct {
	storage.Interface // nil
	storage.APIObjectVersioner
	rev       *int64
	codec     runtime.Codec
	newObject func() runtime.Object
	entries   map[string]entry
}

// An entry is an encoded object.
type entry struct {
	data []byte
	rev  int64
}

func (m *memory) Versioner() storage.Versioner { return m.APIObjectVersioner }

func (m *memory) ReadinessCheck() error { return nil }

func (m *memory) Watch(context.Context, string, storage.ListOptions) (watch.Interface, error) {
	return watch.NewEmptyWatch(), nil
}

func (m *memory) Create(_ context.Context, key string, obj, out runtime.Object, _ uint64) error {
	if version, err := m.ObjectResourceVersion(obj); err == nil && version != 0 {
		return storage.ErrResourceVersionSetOnCreate
	}
	if _, ok := m.entries[key]; ok {
		return storage.NewKeyExistsError(key, 0)
	}
	return m.put(key, obj, out)
}

// put encodes the object and stores it under the key. It decodes the stored object into out.
func (m *memory) put(key string, obj, out runtime.Object) error {
	if err := m.PrepareObjectForStorage(obj); err != nil {
		return err
	}
	data, err := runtime.Encode(m.codec, obj)
	if err != nil {
		return err
	}
	e, ok := m.entries[key]
	if !ok || !bytes.Equal(e.data, data) {
		*m.rev++
		e = entry{data, *m.rev}
		m.entries[key] = e
	}
	return m.decode(e, out)
}

func (m *memory) decode(e entry, out runtime.Object) error {
	if out == nil {
		return nil
	}
	if _, err := conversion.EnforcePtr(out); err != nil {
		return err
	}
	if _, _, err := m.codec.Decode(e.data, nil, out); err != nil {
		return err
	}
	return m.UpdateObject(out, uint64(e.rev))
}

func (m *memory) Get(_ context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	e, ok := m.entries[key]
	if !ok {
		if opts.IgnoreNotFound {
			return runtime.SetZeroValue(out)
		}
		return storage.NewKeyNotFoundError(key, 0)
	}
	return m.decode(e, out)
}

func (m *memory) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions, validate storage.ValidateObjectFunc,
	_ runtime.Object, _ storage.DeleteOptions) error {
	e, ok := m.entries[key]
	if !ok {
		return storage.NewKeyNotFoundError(key, 0)
	}
	if err := m.decode(e, out); err != nil {
		return err
	}
	if preconditions != nil {
		if err := preconditions.Check(key, out); err != nil {
			return err
		}
	}
	if err := validate(ctx, out); err != nil {
		return err
	}
	delete(m.entries, key)
	return nil
}

func (m *memory) GuaranteedUpdate(_ context.Context, key string, out runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions,
	update storage.UpdateFunc, _ runtime.Object) error {
	old, e := m.newObject(), m.entries[key]
	switch {
	case e.rev != 0:
		if err := m.decode(e, old); err != nil {
			return err
		}
	case !ignoreNotFound:
		return storage.NewKeyNotFoundError(key, 0)
	}
	if err := preconditions.Check(key, old); err != nil {
		return err
	}
	obj, _, err := update(old, storage.ResponseMeta{ResourceVersion: uint64(e.rev)})
	if err != nil {
		return err
	}
	return m.put(key, obj, out)
}

// ---- Warnings ----

// notes records warnings.
type notes struct{ texts []string }

func (n *notes) AddWarning(_, text string) {
	if text != "" && !slices.Contains(n.texts, text) {
		n.texts = append(n.texts, text)
	}
}

var _ warning.Recorder = &notes{}
