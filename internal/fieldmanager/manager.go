package fieldmanager

// This file is what a Manager knows of its kind, and the library that it has for what has no fast path: an objectShape answers the library's questions
// about objects.

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"apilet/internal/bounded"
	"apilet/internal/scheme"
)

// A Manager keeps the managedFields of the objects of one kind at one version. Immutable but for what it builds at first use: the types
// take a millisecond and 100 KiB, so keep one per kind, not one per request.
type Manager struct {
	Kind     schema.GroupVersionKind // group, version and kind of the entries that it writes
	GoType   reflect.Type            // struct type; nil for a custom resource
	Versions []string                // other apiVersions of the kind that are served; entries of versions unknown here are dropped
	Schema   map[string]any          // openAPIV3Schema of a custom resource; nil: lists are atomic, maps are not
	Status   bool                    // has a status subresource: main writes do not own status
	Ways     *Ways                   // counts the writes; nil: nobody asks

	// ConvertTo returns a custom resource in another version, where a webhook knows how, and SchemaOf the openAPIV3Schema of that version;
	// nil: versions differ by name alone.
	ConvertTo func(u *unstructured.Unstructured, version string) (*unstructured.Unstructured, error)
	SchemaOf  func(version string) map[string]any

	mu       sync.Mutex                             // guards what follows
	types    *typed.ParseableType                   // nil until used
	plan     *plan                                  // how objects of GoType are compared
	read     map[string]fieldSet                    // sets of entries that were read, by their text, and conform
	readSize int                                    // bytes of their texts
	managers map[string]*managedfields.FieldManager // by subresource
	others   map[string]*typed.ParseableType        // types of other versions, where a webhook converts
}

// ready makes the kind's types at their first use.
func (o *Manager) ready() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.types != nil {
		return
	}
	o.types = typesOf(o.GoType, o.Schema)
	if o.GoType != nil {
		planner := planner{types: o.types.Schema, made: commonPlans()}
		o.plan = planner.plan(o.GoType, o.types.TypeRef)
	}
}

// manager returns the library's manager for the updates of a subresource, which is built at the first
// call.
func (o *Manager) manager(subresource string) (*managedfields.FieldManager, error) {
	o.ready()
	o.mu.Lock()
	defer o.mu.Unlock()
	if manager := o.managers[subresource]; manager != nil {
		return manager, nil
	}
	if o.managers == nil {
		o.managers = map[string]*managedfields.FieldManager{}
	}
	manager, err := o.newManager(subresource, &objectShape{Manager: o, types: o.types})
	if err == nil {
		o.managers[subresource] = manager
	}
	return manager, err
}

// A shape answers the library's questions about objects: how one is typed, converted, defaulted and
// created.
type shape interface {
	managedfields.TypeConverter
	runtime.ObjectConvertor
	runtime.ObjectDefaulter
	runtime.ObjectCreater
}

func (o *Manager) newManager(subresource string, s shape) (*managedfields.FieldManager, error) {
	return managedfields.NewDefaultFieldManager(s, s, s, s, o.Kind, o.Kind.GroupVersion(), subresource, o.resets(subresource))
}

// resets are the fields that a write through a subresource leaves as they were; nobody comes to own them by it.
func (o *Manager) resets(subresource string) map[fieldpath.APIVersion]fieldpath.Filter {
	set := fieldpath.NewSet()
	for _, path := range o.resetPaths(subresource) {
		var steps []any
		for _, step := range path {
			steps = append(steps, step)
		}
		set.Insert(fieldpath.MakePathOrDie(steps...))
	}
	reset := map[fieldpath.APIVersion]*fieldpath.Set{fieldpath.APIVersion(o.Kind.GroupVersion().String()): set}
	if o.ConvertTo != nil && subresource == "status" { // of all versions, as kube-apiserver does for custom resources
		for _, version := range o.Versions {
			reset[fieldpath.APIVersion(version)] = set
		}
	}
	return fieldpath.NewExcludeFilterSetMap(reset)
}

func (o *Manager) resetPaths(subresource string) (split [][]string) {
	paths, special := subresourceResets[strings.TrimSuffix(o.Kind.GroupKind().String()+"/"+subresource, "/")]
	switch {
	case special:
	case subresource == "status" && o.GoType == nil:
		paths = []string{"metadata", "spec"}
	case subresource == "status":
		paths = []string{"spec"}
	case subresource == "" && o.Status:
		paths = []string{"status"}
	}
	for _, path := range paths {
		split = append(split, strings.Split(path, "."))
	}
	return split
}

// subresourceResets lists what is not the common status (main writes) or spec (status writes).
var subresourceResets = map[string][]string{
	"APIService.apiregistration.k8s.io/status":                       {"metadata", "spec"},
	"CertificateSigningRequest.certificates.k8s.io":                  {"spec", "status"},
	"CertificateSigningRequest.certificates.k8s.io/approval":         {"spec", "status.certificate"},
	"CertificateSigningRequest.certificates.k8s.io/status":           {"spec", "status.conditions"},
	"Deployment.apps/status":                                         {"spec", "metadata.labels"},
	"FlowSchema.flowcontrol.apiserver.k8s.io/status":                 {"metadata", "spec"},
	"Namespace/finalize":                                             {"status"},
	"Pod/status":                                                     {"spec", "metadata.deletionTimestamp", "metadata.ownerReferences"},
	"PodGroup.scheduling.k8s.io/status":                              {"metadata", "spec"},
	"PriorityLevelConfiguration.flowcontrol.apiserver.k8s.io/status": {"metadata", "spec"},
	"ResourceClaim.resource.k8s.io/status":                           {"metadata", "spec"},
	"ServiceCIDR.networking.k8s.io/status":                           {"metadata", "spec"},
	"StorageVersionMigration.storagemigration.k8s.io/status":         {"metadata", "spec"},
	"ValidatingAdmissionPolicy.admissionregistration.k8s.io/status":  {"metadata", "spec"},
	"VolumeAttachment.storage.k8s.io/status":                         {"metadata", "spec"},
}

// orNew is obj under the manager's kind, or a new object where there is none.
func (o *Manager) orNew(obj scheme.Object) scheme.Object {
	if !isNil(obj) {
		return o.stamp(obj)
	}
	if o.GoType == nil {
		return o.stamp(&unstructured.Unstructured{Object: map[string]any{}})
	}
	return o.stamp(reflect.New(o.GoType).Interface().(scheme.Object))
}

// stamp writes the manager's kind and version into obj, which it returns.
func (o *Manager) stamp(obj scheme.Object) scheme.Object {
	obj.GetObjectKind().SetGroupVersionKind(o.Kind)
	return obj
}

// An objectShape is the shape of updates.
type objectShape struct {
	*Manager
	types *typed.ParseableType
}

// ObjectToTyped turns Go types into maps first: the library reads them in place too, but walks an object a dozen times, each time by
// reflection.
func (s *objectShape) ObjectToTyped(obj runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	members, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, err
	}
	if longest(members) > maxApplyElements {
		return nil, errLongList
	}
	if version := obj.GetObjectKind().GroupVersionKind().Version; s.ConvertTo != nil && version != s.Kind.Version {
		return s.typesOf(version).FromUnstructured(members, options...)
	}
	if s.GoType != nil && len(options) > 0 { // an object, not an apply body: the Go type has checked its fields already
		return typed.AsTypedUnvalidated(value.NewValueInterface(members), s.types.Schema, s.types.TypeRef), nil
	}
	return s.types.FromUnstructured(members, options...)
}

// typesOf are the types of another version, which has other fields where a webhook converts.
func (o *Manager) typesOf(version string) *typed.ParseableType {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.others[version] == nil {
		if o.others == nil {
			o.others = map[string]*typed.ParseableType{}
		}
		o.others[version] = typesOf(nil, o.SchemaOf(version))
	}
	return o.others[version]
}

func (s *objectShape) TypedToObject(doc *typed.TypedValue) (runtime.Object, error) {
	members, ok := doc.AsValue().Unstructured().(map[string]any)
	if !ok {
		return nil, errors.New("the document is no object")
	}
	return &unstructured.Unstructured{Object: members}, nil
}

// ConvertToVersion turns the library's maps into the Go type, and changes versions of those by name alone: a simplification, since the
// entry of a manager that wrote through a version with other fields (autoscaling/v1) then names fields that are not found here and fades.
func (s *objectShape) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	version, ok := target.(schema.GroupVersion)
	if own := s.Kind.GroupVersion(); !ok || version != own && !slices.Contains(s.Versions, version.String()) {
		return nil, runtime.NewNotRegisteredErrForTarget("", reflect.TypeOf(in), target)
	}
	kind := version.WithKind(s.Kind.Kind)
	members, isMap := in.(*unstructured.Unstructured)
	if isMap && s.ConvertTo != nil {
		return s.ConvertTo(members, version.Version)
	}
	if isMap && s.GoType != nil {
		out := reflect.New(s.GoType).Interface().(runtime.Object)
		if err := bounded.FromUnstructured(members.Object, out, false); err != nil {
			return nil, fmt.Errorf("unable to convert unstructured object to %v: %w", kind, err)
		}
		in = out
	} else if isMap && version != s.Kind.GroupVersion() {
		in = &unstructured.Unstructured{Object: maps.Clone(members.Object)}
	}
	in.GetObjectKind().SetGroupVersionKind(kind)
	return in, nil
}

func (s *objectShape) Convert(in, out, context any) error {
	return fmt.Errorf("%T into %T: not converted", in, out) // the library does not ask
}

func (s *objectShape) ConvertFieldLabel(kind schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

// Default leaves the outcome of a merge as it is: what an apply leaves out is filled in by its caller, as for every other write.
func (s *objectShape) Default(runtime.Object) {}

func (s *objectShape) New(schema.GroupVersionKind) (runtime.Object, error) {
	return s.orNew(nil), nil
}

// Ways counts which way the writes went whose fields were tracked.
type Ways struct {
	Short, General atomic.Int64 // writes since the start: by the fast path, and through structured-merge-diff
}

// Load is how many went each way.
func (w *Ways) Load() (short, general int64) { return w.Short.Load(), w.General.Load() }

func (w *Ways) count(short bool) {
	switch {
	case w == nil:
	case short:
		w.Short.Add(1)
	default:
		w.General.Add(1)
	}
}

func isNil(obj scheme.Object) bool { return obj == nil || reflect.ValueOf(obj).IsNil() }

var errLongList = fmt.Errorf("a list or map of more than %d elements is too long to track its fields", maxApplyElements)
