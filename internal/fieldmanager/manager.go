package fieldmanager

// This file implements the Manager, and the interfaces that are needed to call the library if
// there is no fast path. An objectShape implements the interfaces through which the library
// accesses objects.

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

// A Manager updates the managedFields of objects. There is a Manager for each kind and version.
// Its exported fields are immutable. The types need 100 KiB and a millisecond to build, so a
// Manager must not be created for each request.
type Manager struct {
	Kind     schema.GroupVersionKind // used in the entries
	GoType   reflect.Type            // struct type; nil for a custom resource
	Versions []string                // Other served apiVersions of the kind. Entries of unknown versions are dropped.
	// openAPIV3Schema of a custom resource; if nil, lists are atomic and maps are not
	Schema   map[string]any
	Status   bool      // if there is a status subresource, other requests do not own the status
	Counters *Counters // counts the writes; may be nil

	// ConvertTo converts a custom resource to another version by a webhook. SchemaOf returns the
	// openAPIV3Schema of a version. Both are nil if all versions have the same fields.
	ConvertTo func(u *unstructured.Unstructured, version string) (*unstructured.Unstructured, error)
	SchemaOf  func(version string) map[string]any

	mu       sync.Mutex                             // guards the fields below
	types    *typed.ParseableType                   // nil until the first use
	plan     *plan                                  // plan for comparing objects of GoType
	read     map[string]fieldSet                    // the parsed sets of valid entries
	readSize int                                    // total length of the texts in read
	managers map[string]*managedfields.FieldManager // by subresource
	others   map[string]*typed.ParseableType        // used if there is a conversion webhook
}

// ready builds the types if they are not built yet.
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

// manager returns the manager of the library for the subresource. It is only created once.
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

// A shape implements the interfaces that are required by the library to convert, default and
// create objects.
type shape interface {
	managedfields.TypeConverter
	runtime.ObjectConvertor
	runtime.ObjectDefaulter
	runtime.ObjectCreater
}

func (o *Manager) newManager(subresource string, s shape) (*managedfields.FieldManager, error) {
	return managedfields.NewDefaultFieldManager(s, s, s, s, o.Kind, o.Kind.GroupVersion(), subresource, o.resets(subresource))
}

// resets returns the fields that a write to the subresource does not change. The manager does not
// become the owner of these fields.
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
	// for custom resources, kube-apiserver uses all versions
	if o.ConvertTo != nil && subresource == "status" {
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

// subresourceResets lists the exceptions from the default, which is status for writes to the main
// resource and spec for writes to status.
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

// orNew sets the kind of obj and returns it. If obj is nil, it returns a new object.
func (o *Manager) orNew(obj scheme.Object) scheme.Object {
	if !isNil(obj) {
		return o.stamp(obj)
	}
	if o.GoType == nil {
		return o.stamp(&unstructured.Unstructured{Object: map[string]any{}})
	}
	return o.stamp(reflect.New(o.GoType).Interface().(scheme.Object))
}

// stamp sets the kind and version of obj and returns obj.
func (o *Manager) stamp(obj scheme.Object) scheme.Object {
	obj.GetObjectKind().SetGroupVersionKind(o.Kind)
	return obj
}

// An objectShape is the shape of updates.
type objectShape struct {
	*Manager
	types *typed.ParseableType
}

// ObjectToTyped converts Go types to maps first. The library can also read Go types directly, but
// it walks an object a dozen times, each time by reflection.
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
	// this is an object, whose Go type has already validated its fields, and not an apply body
	if s.GoType != nil && len(options) > 0 {
		return typed.AsTypedUnvalidated(value.NewValueInterface(members), s.types.Schema, s.types.TypeRef), nil
	}
	return s.types.FromUnstructured(members, options...)
}

// typesOf returns the types for another version, which is converted by a webhook.
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

// ConvertToVersion converts the library's maps to the Go type. Without a webhook it only changes
// the name of the version. This is a simplification. If an object was written through a version
// with different fields (autoscaling/v1), the entry may contain unknown fields, which are dropped
// by the library.
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
	return fmt.Errorf("%T into %T: not converted", in, out) // the library never calls it
}

func (s *objectShape) ConvertFieldLabel(kind schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

// Default does nothing, because the caller sets default values after an apply, as after every
// other write.
func (s *objectShape) Default(runtime.Object) {}

func (s *objectShape) New(schema.GroupVersionKind) (runtime.Object, error) {
	return s.orNew(nil), nil
}

// Counters counts the writes with tracked fields by the algorithm that handled them.
type Counters struct {
	Short, General atomic.Int64 // writes since the start, by fast path or structured-merge-diff
}

// Load returns both counters.
func (w *Counters) Load() (short, general int64) { return w.Short.Load(), w.General.Load() }

func (w *Counters) count(short bool) {
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
