package main

// This file is the table of what the server serves, and what follows from a row of it: keys, bodies in, documents out, errors.
//
// A row is one resource at one served version. Everything that can be read off the Go type of k8s.io/api is not written down: kind,
// singular name, lifecycle, JSON and protobuf shape. An object in the server's hands has the Go type of its *storage* version and no
// kind or apiVersion (an unstructured custom resource keeps both); only at the edges does it take a served version's shape:
//
//	body ──decode──▶ served type ──conversion.in──▶ object ──encodeStored──▶ {"metadata":{…},…}        in the store
//	response ◀──prefix + served JSON ◀──conversion.out── object ◀──decodeStored── {"metadata":{…},…}
//
// Nearly every row serves the storage version itself: then both conversions fall away and a read copies stored bytes behind the prefix.
//
// This file is a leaf but for convert.go, which knows the four pairs of versions whose fields differ.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	batchv1beta1 "k8s.io/api/batch/v1beta1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	flowcontrolv1beta3 "k8s.io/api/flowcontrol/v1beta3"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/version"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// builtins is the table, one group version after the other in discovery order (see groupOrder). The words of a row: traits, then plural
// and short names, then subresources.
var builtins = slices.Concat(
	groupVersion("", "v1",
		row[corev1.Binding](namespaced|createOnly, "bindings", ""),
		row[corev1.ComponentStatus](readOnly, "componentstatuses cs", ""),
		row[corev1.ConfigMap](namespaced, "configmaps cm", ""),
		row[corev1.Endpoints](namespaced, "endpoints ep", ""),
		row[corev1.Event](namespaced, "events ev", ""),
		row[corev1.LimitRange](namespaced, "limitranges limits", ""),
		row[corev1.Namespace](oneByOne, "namespaces ns", "finalize status"),
		row[corev1.Node](0, "nodes no", "proxy status"),
		row[corev1.PersistentVolumeClaim](namespaced, "persistentvolumeclaims pvc", "status"),
		row[corev1.PersistentVolume](0, "persistentvolumes pv", "status"),
		row[corev1.Pod](namespaced|inAll|counted, "pods po",
			"attach binding ephemeralcontainers eviction exec log portforward proxy resize status"),
		row[corev1.PodTemplate](namespaced|counted, "podtemplates", ""),
		row[corev1.ReplicationController](namespaced|inAll|counted, "replicationcontrollers rc", "scale status"),
		row[corev1.ResourceQuota](namespaced, "resourcequotas quota", "status"),
		row[corev1.Secret](namespaced, "secrets", ""),
		row[corev1.ServiceAccount](namespaced, "serviceaccounts sa", "token"),
		row[corev1.Service](namespaced|inAll, "services svc", "proxy status")),
	groupVersion("apps", "v1",
		row[appsv1.ControllerRevision](namespaced, "controllerrevisions", ""),
		row[appsv1.DaemonSet](namespaced|inAll|counted, "daemonsets ds", "status"),
		row[appsv1.Deployment](namespaced|inAll|counted, "deployments deploy", "scale status"),
		row[appsv1.ReplicaSet](namespaced|inAll|counted, "replicasets rs", "scale status"),
		row[appsv1.StatefulSet](namespaced|inAll|counted, "statefulsets sts", "scale status")),
	groupVersion("events.k8s.io", "v1",
		row[eventsv1.Event](namespaced, "events ev", "").
			storedIn("", converting(eventFromV1, eventToV1))),
	groupVersion("authentication.k8s.io", "v1",
		row[authenticationv1.SelfSubjectReview](createOnly, "selfsubjectreviews", ""),
		row[authenticationv1.TokenReview](createOnly, "tokenreviews", "")),
	groupVersion("authorization.k8s.io", "v1",
		row[authorizationv1.LocalSubjectAccessReview](namespaced|createOnly, "localsubjectaccessreviews", ""),
		row[authorizationv1.SelfSubjectAccessReview](createOnly, "selfsubjectaccessreviews", ""),
		row[authorizationv1.SelfSubjectRulesReview](createOnly, "selfsubjectrulesreviews", ""),
		row[authorizationv1.SubjectAccessReview](createOnly, "subjectaccessreviews", "")),
	groupVersion("autoscaling", "v2",
		row[autoscalingv2.HorizontalPodAutoscaler](namespaced|inAll, "horizontalpodautoscalers hpa", "status")),
	groupVersion("autoscaling", "v1",
		row[autoscalingv1.HorizontalPodAutoscaler](namespaced|inAll, "horizontalpodautoscalers hpa", "status").
			storedIn("autoscaling", converting(hpaFromV1, hpaToV1))),
	groupVersion("batch", "v1",
		row[batchv1.CronJob](namespaced|inAll|counted, "cronjobs cj", "status"),
		row[batchv1.Job](namespaced|inAll|counted, "jobs", "status")),
	groupVersion("batch", "v1beta1",
		row[batchv1beta1.CronJob](namespaced|inAll|counted, "cronjobs cj", "status").
			storedIn("batch", sameShape[batchv1.CronJob](nil, nil))),
	groupVersion("certificates.k8s.io", "v1",
		row[certificatesv1.CertificateSigningRequest](0, "certificatesigningrequests csr", "approval status")),
	groupVersion("networking.k8s.io", "v1",
		row[networkingv1.IngressClass](counted, "ingressclasses", ""),
		row[networkingv1.Ingress](namespaced|counted, "ingresses ing", "status"),
		row[networkingv1.IPAddress](0, "ipaddresses ip", ""),
		row[networkingv1.NetworkPolicy](namespaced|counted, "networkpolicies netpol", ""),
		row[networkingv1.ServiceCIDR](0, "servicecidrs", "status")),
	groupVersion("policy", "v1",
		row[policyv1.PodDisruptionBudget](namespaced|counted, "poddisruptionbudgets pdb", "status")),
	groupVersion("policy", "v1beta1",
		row[policyv1beta1.PodDisruptionBudget](namespaced|counted, "poddisruptionbudgets pdb", "status").
			storedIn("policy", sameShape(budgetFromV1beta1, budgetToV1beta1))),
	groupVersion("rbac.authorization.k8s.io", "v1",
		row[rbacv1.ClusterRoleBinding](0, "clusterrolebindings", ""),
		row[rbacv1.ClusterRole](0, "clusterroles", ""),
		row[rbacv1.RoleBinding](namespaced, "rolebindings", ""),
		row[rbacv1.Role](namespaced, "roles", "")),
	groupVersion("storage.k8s.io", "v1",
		row[storagev1.CSIDriver](0, "csidrivers", ""),
		row[storagev1.CSINode](0, "csinodes", ""),
		row[storagev1.CSIStorageCapacity](namespaced, "csistoragecapacities", ""),
		row[storagev1.StorageClass](0, "storageclasses sc", ""),
		row[storagev1.VolumeAttachment](0, "volumeattachments", "status"),
		row[storagev1.VolumeAttributesClass](0, "volumeattributesclasses vac", "")),
	groupVersion("admissionregistration.k8s.io", "v1",
		row[admissionregistrationv1.MutatingAdmissionPolicy](inExtensions|counted, "mutatingadmissionpolicies", ""),
		row[admissionregistrationv1.MutatingAdmissionPolicyBinding](inExtensions|counted, "mutatingadmissionpolicybindings", ""),
		row[admissionregistrationv1.MutatingWebhookConfiguration](inExtensions|counted, "mutatingwebhookconfigurations", ""),
		row[admissionregistrationv1.ValidatingAdmissionPolicy](inExtensions|counted, "validatingadmissionpolicies", "status"),
		row[admissionregistrationv1.ValidatingAdmissionPolicyBinding](inExtensions|counted, "validatingadmissionpolicybindings", ""),
		row[admissionregistrationv1.ValidatingWebhookConfiguration](inExtensions|counted, "validatingwebhookconfigurations", "")),
	groupVersion("scheduling.k8s.io", "v1",
		row[schedulingv1.PriorityClass](counted, "priorityclasses pc", "")),
	groupVersion("coordination.k8s.io", "v1",
		row[coordinationv1.Lease](namespaced, "leases", "")),
	groupVersion("node.k8s.io", "v1",
		row[nodev1.RuntimeClass](0, "runtimeclasses", "")),
	groupVersion("discovery.k8s.io", "v1",
		row[discoveryv1.EndpointSlice](namespaced|counted, "endpointslices", "")),
	groupVersion("resource.k8s.io", "v1",
		row[resourcev1.DeviceClass](counted, "deviceclasses", ""),
		row[resourcev1.ResourceClaim](namespaced, "resourceclaims", "status"),
		row[resourcev1.ResourceClaimTemplate](namespaced, "resourceclaimtemplates", ""),
		row[resourcev1.ResourceSlice](counted, "resourceslices", "")),
	groupVersion("flowcontrol.apiserver.k8s.io", "v1",
		row[flowcontrolv1.FlowSchema](counted, "flowschemas", "status"),
		row[flowcontrolv1.PriorityLevelConfiguration](counted, "prioritylevelconfigurations", "status")),
	groupVersion("flowcontrol.apiserver.k8s.io", "v1beta3",
		row[flowcontrolv1beta3.FlowSchema](counted, "flowschemas", "status").
			storedIn("flowcontrol.apiserver.k8s.io", sameShape[flowcontrolv1.FlowSchema](nil, nil)),
		row[flowcontrolv1beta3.PriorityLevelConfiguration](counted, "prioritylevelconfigurations", "status").
			storedIn("flowcontrol.apiserver.k8s.io", sameShape(levelFromV1beta3, levelToV1beta3))),
)

// groupOrder is kube-apiserver's order of groups in discovery; groups that are not named come after it, by name.
var groupOrder = []string{"", "apps", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io", "autoscaling", "batch",
	"certificates.k8s.io", "networking.k8s.io", "policy", "rbac.authorization.k8s.io", "storage.k8s.io", "admissionregistration.k8s.io",
	"apiextensions.k8s.io", "scheduling.k8s.io", "coordination.k8s.io", "node.k8s.io", "discovery.k8s.io", "resource.k8s.io",
	"flowcontrol.apiserver.k8s.io"}

// subresourceBodies are the subresources whose body is not the parent itself. A kind that starts with * takes the parent's kind in its
// place, as in PodProxyOptions.
var subresourceBodies = map[string]subresource{
	"attach":      {version: "v1", kind: "*AttachOptions", verbs: []string{"create", "get"}},
	"binding":     {version: "v1", kind: "Binding", verbs: []string{"create"}},
	"eviction":    {group: "policy", version: "v1", kind: "Eviction", verbs: []string{"create"}},
	"exec":        {version: "v1", kind: "*ExecOptions", verbs: []string{"create", "get"}},
	"portforward": {version: "v1", kind: "*PortForwardOptions", verbs: []string{"create", "get"}},
	"proxy":       {version: "v1", kind: "*ProxyOptions", verbs: []string{"create", "delete", "get", "patch", "update"}},
	"scale":       {group: "autoscaling", version: "v1", kind: "Scale", verbs: []string{"get", "patch", "update"}},
	"token":       {group: "authentication.k8s.io", version: "v1", kind: "TokenRequest", verbs: []string{"create"}},
}

// subresourceTypes are the Go types of those bodies that are objects.
var subresourceTypes = map[string]reflect.Type{
	"Binding":      reflect.TypeFor[corev1.Binding](),
	"Eviction":     reflect.TypeFor[policyv1.Eviction](),
	"Scale":        reflect.TypeFor[autoscalingv1.Scale](),
	"TokenRequest": reflect.TypeFor[authenticationv1.TokenRequest](),
}

// An object is a built-in Go type of k8s.io/api or an *unstructured.Unstructured.
type object interface {
	metav1.Object
	runtime.Object
}

// A resource is one row of the table: one resource at one served version. Immutable once in a registry.
type resource struct {
	group, version   string
	kind             string
	listKind         string
	plural, singular string
	shortNames       []string
	categories       []string
	namespaced       bool
	verbs            []string // create delete deletecollection get list patch update watch
	subresources     []subresource
	storageGroup     string       // the group in the object's key: both groups of Event show one object
	goType           reflect.Type // struct type of the served version; nil for a custom resource
	conversion       *conversion  // nil: the served version is the storage version
	generation       bool         // metadata.generation counts changes outside metadata and status
	virtual          bool         // nothing is stored: a review, answered at once
	prefix           string       // `"kind":"Pod","apiVersion":"v1",` what reading puts before the stored members
	base             string       // `//pods/` what all keys of the resource start with
	deprecation      *deprecation // nil: not deprecated

	// schema returns a custom resource's OpenAPI v3 schema when a client asks for it; nil: any object. schemaTag changes with it.
	schema    func() (json.RawMessage, error)
	schemaTag string

	custom *custom // nil for the rows of the table
}

// custom is where a type that a definition made, and the type of definitions itself, goes its own way on the walk of a request. Whoever
// makes the row sets it; a nil function goes the common way. old is nil for a create; sub is "" or "status".
type custom struct {
	admit     func() error // may objects be created?
	defaults  func(obj object)
	prepare   func(obj, old object, sub string) object
	validate  func(ctx context.Context, obj, old object, sub string) field.ErrorList // metadata included
	warnings  func(obj, old object) []string
	deleting  func(obj object)                // marks an object whose deletion begins
	committed func(ctx context.Context) error // after a write, before its answer

	storageVersion string          // of custom resources, as all that follows
	over           <-chan struct{} // closed when the definition was changed, or went: watches end
	deprecation    string          // the warning of a deprecated version
	// Objects are stored in the storage version, pruned and with its defaults, by the schema of their day.
	shape      func(*unstructured.Unstructured) (unknown []error, err error)        // a body: prune, coerce, default
	settled    func(stored []byte) bool                                             // needs no complete
	complete   func(*unstructured.Unstructured) error                               // stored object, as of today's schema
	toStorage  func(*unstructured.Unstructured) (*unstructured.Unstructured, error) // nil: as it is
	columns    func() []metav1.TableColumnDefinition                                // nil: name and age
	cells      func(obj object) []any                                               // one row of them
	scale      func(u *unstructured.Unstructured, set *int32) (scalable, error)     // set, when not nil, changes the count
	keep       func(build func() any) any                                           // what build makes of the schema, for as long as that is kept
	selectable []string                                                             // fields that may be selected by, as spec.color
}

// A scalable is the replica count that a Scale shows; path says where it is in a custom resource.
type scalable struct {
	replicas *int32
	status   int32
	selector string
	path     string
}

// A subresource is /status, /scale, /binding, ...; kind is that of its body. group and version are empty when they are the parent's.
type subresource struct {
	name                 string
	group, version, kind string
	verbs                []string
}

// A deprecation is what the Go type's lifecycle methods say. Versions are {major, minor}; removed is {0, 0} when none is planned.
type deprecation struct {
	deprecated, removed                            [2]int
	replacementGroup, replacementVersion, replaced string
}

// A conversion is between a served version and the storage version. Bodies are decoded into wire; in and out may be nil.
type conversion struct {
	wire, stored reflect.Type
	in, out      func(object) object
}

// A trait is what a row of the table says in a word.
type trait uint

const (
	namespaced   trait = 1 << iota
	counted            // metadata.generation is kept
	inAll              // in the category "all"
	inExtensions       // in the category "api-extensions"
	createOnly         // virtual: a question, answered at once
	readOnly           // virtual: an empty list
	oneByOne           // no deletecollection
)

// row is one line of the table. What T tells is read off T. It is apart from rowOf because a generic function is compiled once for each
// T, and this one has seventy.
func row[T any](traits trait, names, subresources string) *resource {
	return rowOf(reflect.TypeFor[T](), traits, names, subresources)
}

func rowOf(t reflect.Type, traits trait, names, subresources string) *resource {
	words := strings.Fields(names)
	res := &resource{
		kind: t.Name(), plural: words[0], singular: strings.ToLower(t.Name()), shortNames: words[1:], goType: t,
		namespaced: traits&namespaced != 0, generation: traits&counted != 0, virtual: traits&(createOnly|readOnly) != 0,
		verbs: verbsOf(traits), deprecation: lifecycleOf(reflect.New(t).Interface()),
	}
	if traits&inAll != 0 {
		res.categories = []string{"all"}
	}
	if traits&inExtensions != 0 {
		res.categories = []string{"api-extensions"}
	}
	for _, name := range strings.Fields(subresources) {
		res.subresources = append(res.subresources, subresourceOf(name, res.kind))
	}
	return res
}

func verbsOf(traits trait) []string {
	switch {
	case traits&createOnly != 0:
		return []string{"create"}
	case traits&readOnly != 0:
		return []string{"get", "list"}
	case traits&oneByOne != 0:
		return []string{"create", "delete", "get", "list", "patch", "update", "watch"}
	}
	return []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
}

func subresourceOf(name, parentKind string) subresource {
	sub, other := subresourceBodies[name]
	if !other {
		sub = subresource{kind: parentKind, verbs: []string{"get", "patch", "update"}}
	}
	switch name {
	case "log":
		sub.verbs = []string{"get"}
	case "finalize":
		sub.verbs = []string{"update"}
	}
	sub.name = name
	if rest, ok := strings.CutPrefix(sub.kind, "*"); ok {
		sub.kind = parentKind + rest
		sub.group, sub.version = "", ""
	}
	return sub
}

// lifecycleOf reads the methods that k8s.io/api gives a type which is on its way out.
func lifecycleOf(goType any) *deprecation {
	old, ok := goType.(interface{ APILifecycleDeprecated() (int, int) })
	if !ok {
		return nil
	}
	d := &deprecation{}
	d.deprecated[0], d.deprecated[1] = old.APILifecycleDeprecated()
	if end, ok := goType.(interface{ APILifecycleRemoved() (int, int) }); ok {
		d.removed[0], d.removed[1] = end.APILifecycleRemoved()
	}
	if next, ok := goType.(interface {
		APILifecycleReplacement() schema.GroupVersionKind
	}); ok {
		gvk := next.APILifecycleReplacement()
		d.replacementGroup, d.replacementVersion, d.replaced = gvk.Group, gvk.Version, gvk.Kind
	}
	return d
}

// storedIn says that a row's objects live under another group or in another version.
func (res *resource) storedIn(group string, c *conversion) *resource {
	res.storageGroup, res.conversion = group, c
	return res
}

// converting joins two Go types by functions between them.
func converting[Served, Stored any](in func(*Served) *Stored, out func(*Stored) *Served) *conversion {
	return &conversion{
		wire: reflect.TypeFor[Served](), stored: reflect.TypeFor[Stored](),
		in:  func(obj object) object { return any(in(any(obj).(*Served))).(object) },
		out: func(obj object) object { return any(out(any(obj).(*Stored))).(object) },
	}
}

// sameShape serves a version whose JSON and protobuf are those of the storage version, but for what in and out change in place.
func sameShape[Stored any](in, out func(*Stored)) *conversion {
	inPlace := func(change func(*Stored)) func(object) object {
		if change == nil {
			return nil
		}
		return func(obj object) object { change(any(obj).(*Stored)); return obj }
	}
	t := reflect.TypeFor[Stored]()
	return &conversion{wire: t, stored: t, in: inPlace(in), out: inPlace(out)}
}

func groupVersion(group, version string, rows ...*resource) []*resource {
	for _, res := range rows {
		if res.conversion == nil {
			res.storageGroup = group
		}
		res.group, res.version = group, version
		for i := range res.subresources {
			if sub := &res.subresources[i]; sub.version == "" {
				sub.group, sub.version = group, version
			}
		}
		res.derive()
	}
	return rows
}

// derive fills in what follows from the rest, once.
func (res *resource) derive() {
	if res.prefix != "" {
		return
	}
	res.listKind = cmp.Or(res.listKind, res.kind+"List")
	res.prefix = `"kind":"` + res.kind + `","apiVersion":"` + res.apiVersion() + `",`
	if res.goType == nil { // the order in which Kubernetes writes what is no struct
		res.prefix = `"apiVersion":"` + res.apiVersion() + `","kind":"` + res.kind + `",`
	}
	res.base = "/" + res.storageGroup + "/" + res.plural + "/"
}

// apiVersion is "v1" or "apps/v1".
func (res *resource) apiVersion() string { return groupVersionString(res.group, res.version) }

func groupVersionString(group, version string) string {
	if group == "" {
		return version
	}
	return group + "/" + version
}

func (res *resource) groupKind() schema.GroupKind {
	return schema.GroupKind{Group: res.group, Kind: res.kind}
}
func (res *resource) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: res.group, Resource: res.plural}
}
func (res *resource) groupVersionKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: res.group, Version: res.version, Kind: res.kind}
}

// allows tells whether the resource has a verb.
func (res *resource) allows(verb string) bool { return slices.Contains(res.verbs, verb) }

// subresource finds a subresource by name; nil when there is none.
func (res *resource) subresource(name string) *subresource {
	for i := range res.subresources {
		if res.subresources[i].name == name {
			return &res.subresources[i]
		}
	}
	return nil
}

// key is the store's key of one object: /group/resource/namespace/name (namespace "" when cluster-scoped).
func (res *resource) key(namespace, name string) string { return res.base + namespace + "/" + name }

// keyPrefix is the range of a namespace ("": of the whole resource).
func (res *resource) keyPrefix(namespace string) string {
	if namespace == "" {
		return res.base
	}
	return res.base + namespace + "/"
}

// splitKey takes a key apart: base + namespace + "/" + name is the key again. ok is false for what key never returns.
func splitKey(key string) (base, namespace, name string, ok bool) {
	parts := strings.Split(key, "/")
	if len(parts) != 5 || parts[0] != "" || parts[2] == "" || parts[4] == "" {
		return "", "", "", false
	}
	return key[:len(parts[1])+len(parts[2])+3], parts[3], parts[4], true
}

// A registry is the set of resources that are served. Lookups are safe beside changes (custom resources come and go).
type registry struct {
	current atomic.Pointer[catalog]
	mu      sync.Mutex // held while a new catalog is made
}

// A catalog is one state of the registry, never changed once it is current.
type catalog struct {
	byPath map[resourcePath]*resource
	sorted []*resource
	memo   sync.Map // what is derived from this state, by name; see remember
}

type resourcePath struct{ group, version, plural string }

func newRegistry() *registry {
	reg := &registry{}
	reg.replaceCustom(nil)
	return reg
}

// replaceCustom makes rows the resources that are served beside the built-in ones. The rows belong to the registry from then on. A row
// at a path that is taken is dropped: the built-in types cannot be shadowed.
func (reg *registry) replaceCustom(rows []*resource) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	c := &catalog{byPath: make(map[resourcePath]*resource, len(builtins)+len(rows))}
	for _, res := range slices.Concat(builtins, rows) {
		res.derive()
		path := resourcePath{res.group, res.version, res.plural}
		if c.byPath[path] == nil {
			c.byPath[path] = res
			c.sorted = append(c.sorted, res)
		}
	}
	slices.SortStableFunc(c.sorted, compareRows)
	reg.current.Store(c)
}

// compareRows is discovery's order: groups as groupOrder has them, then versions from the most stable and newest down, then names.
func compareRows(a, b *resource) int {
	return cmp.Or(
		cmp.Compare(groupRank(a.group), groupRank(b.group)),
		cmp.Compare(a.group, b.group),
		version.CompareKubeAwareVersionStrings(b.version, a.version),
		cmp.Compare(a.plural, b.plural))
}

func groupRank(group string) int {
	if rank := slices.Index(groupOrder, group); rank >= 0 {
		return rank
	}
	return len(groupOrder)
}

// lookup finds a resource by group, version and plural name; nil when it is not served.
func (reg *registry) lookup(group, version, plural string) *resource {
	return reg.current.Load().byPath[resourcePath{group, version, plural}]
}

// all returns every served resource in discovery order: the preferred version of a group first. Not to be changed.
func (reg *registry) all() []*resource { return reg.current.Load().sorted }

// remember returns what build made of this catalog the first time, under name. Two callers at once may both build; one result stays.
func (c *catalog) remember(name string, build func(*catalog) []byte) []byte {
	if doc, ok := c.memo.Load(name); ok {
		return doc.([]byte)
	}
	doc, _ := c.memo.LoadOrStore(name, build(c))
	return doc.([]byte)
}

// groupVersions cuts the sorted rows into those of each group version.
func (c *catalog) groupVersions() (all [][]*resource) {
	for rest := c.sorted; len(rest) > 0; {
		n := slices.IndexFunc(rest, func(res *resource) bool { return res.group != rest[0].group || res.version != rest[0].version })
		if n < 0 {
			n = len(rest)
		}
		all = append(all, rest[:n])
		rest = rest[n:]
	}
	return all
}

// rowsOf are the rows of one group version; nil when it is not served.
func (c *catalog) rowsOf(group, version string) []*resource {
	for _, gv := range c.groupVersions() {
		if gv[0].group == group && gv[0].version == version {
			return gv
		}
	}
	return nil
}

// storesAsIs says that a row serves the storage version: what it reads and writes again is not the poorer for it.
func (res *resource) storesAsIs() bool {
	return res.conversion == nil && (res.custom == nil || res.custom.toStorage == nil)
}

// storedType is the Go type of the objects in the server's hands; nil for custom resources.
func (res *resource) storedType() reflect.Type {
	if res.conversion != nil {
		return res.conversion.stored
	}
	return res.goType
}

// newObject returns an empty object of the storage version.
func (res *resource) newObject() object {
	t := res.storedType()
	if t == nil {
		u := &unstructured.Unstructured{Object: map[string]any{}}
		u.SetGroupVersionKind(res.groupVersionKind())
		return u
	}
	return newOf(t)
}

func newOf(t reflect.Type) object { return reflect.New(t).Interface().(object) }

// patchSchema is a value of the served version for strategic merge patches; nil for custom resources, which have none.
func (res *resource) patchSchema() any {
	if res.goType == nil {
		return nil
	}
	return reflect.Zero(res.goType).Interface()
}

// A wantedBody is what the body of a request has to be.
type wantedBody struct {
	group, version, kind string
	wire                 reflect.Type // nil: unstructured
	in                   func(object) object
	shape                func(*unstructured.Unstructured) ([]error, error) // of custom resources
}

// bodyOf tells what the body of a request to the resource or its subresource sub has to be.
func (res *resource) bodyOf(sub string) wantedBody {
	want := wantedBody{group: res.group, version: res.version, kind: res.kind, wire: res.goType}
	if s := res.subresource(sub); s != nil && s.kind != res.kind {
		return wantedBody{group: s.group, version: s.version, kind: s.kind, wire: subresourceTypes[s.kind]}
	}
	if res.conversion != nil {
		want.wire, want.in = res.conversion.wire, res.conversion.in
	}
	if res.custom != nil {
		want.shape = res.custom.shape
	}
	return want
}

func (b wantedBody) apiVersion() string { return groupVersionString(b.group, b.version) }

// serves tells whether the body's own kind and apiVersion, each of which may be absent, are the wanted ones. Evictions are as good in
// policy/v1beta1, from before they had a v1.
func (b wantedBody) serves(apiVersion, kind string) bool {
	if kind != "" && kind != b.kind {
		return false
	}
	return apiVersion == "" || apiVersion == b.apiVersion() || b.kind == "Eviction" && apiVersion == "policy/v1beta1"
}

// bodyFormat is how a body is written.
type bodyFormat string

const (
	jsonFormat     bodyFormat = "application/json"
	yamlFormat     bodyFormat = "application/yaml"
	protobufFormat bodyFormat = "application/vnd.kubernetes.protobuf"
)

// formatOf reads a Content-Type; parameters do not matter, and no header means JSON.
func formatOf(contentType string) (bodyFormat, error) {
	if contentType == "" || contentType == string(jsonFormat) {
		return jsonFormat, nil
	}
	if contentType == string(protobufFormat) {
		return protobufFormat, nil
	}
	name, _, err := mime.ParseMediaType(contentType)
	if f := bodyFormat(name); err == nil && (f == jsonFormat || f == yamlFormat || f == protobufFormat) {
		return f, nil
	}
	return "", unsupportedMediaType(jsonFormat, yamlFormat, protobufFormat)
}

func unsupportedMediaType(accepted ...bodyFormat) error {
	return statusError(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
		"the body of the request was in an unknown format - accepted media types include: "+joinFormats(accepted))
}

func joinFormats(formats []bodyFormat) string {
	names := make([]string, len(formats))
	for i, f := range formats {
		names[i] = string(f)
	}
	return strings.Join(names, ", ")
}

func statusError(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}}
}

// decode reads a request body (JSON, YAML or Kubernetes protobuf, by its Content-Type) into a new object of the storage version (or of
// the subresource's kind sub). strictErrs are unknown and duplicate fields. err is a Status error: 400 or 415.
func (res *resource) decode(data []byte, contentType, sub string) (obj object, strictErrs []error, err error) {
	format, err := formatOf(contentType)
	if err != nil {
		return nil, nil, err
	}
	want := res.bodyOf(sub)
	switch {
	case format == protobufFormat && want.wire == nil:
		return nil, nil, unsupportedMediaType(jsonFormat, yamlFormat)
	case format == protobufFormat:
		obj, err = want.decodeProtobuf(data)
	case format == yamlFormat:
		obj, strictErrs, err = want.decodeYAML(data)
	default:
		obj, strictErrs, err = want.decodeJSON(data, data)
	}
	if err != nil {
		return nil, nil, err
	}
	if want.in != nil {
		obj = want.in(obj)
	}
	return obj, strictErrs, nil
}

// decodeYAML turns YAML into JSON first. The lenient reading decides, as in Kubernetes: of two equal keys the last counts, and the
// strict reading only adds its complaint.
func (b wantedBody) decodeYAML(data []byte) (object, []error, error) {
	asJSON, strictErr := yaml.YAMLToJSONStrict(data)
	if strictErr != nil {
		var err error
		if asJSON, err = yaml.YAMLToJSON(data); err != nil {
			return nil, nil, b.unrecognized(err, data)
		}
	}
	obj, strictErrs, err := b.decodeJSON(asJSON, data)
	if strictErr != nil {
		strictErrs = append([]error{shortened(strictErr)}, strictErrs...)
	}
	return obj, strictErrs, err
}

// shortened cuts an error of many lines: a small file can have half a million duplicate keys. JSON's strict errors end at 100 too.
func shortened(err error) error {
	const most = 101
	lines := strings.SplitN(err.Error(), "\n", most+1)
	if len(lines) <= most {
		return err
	}
	return errors.New(strings.Join(lines[:most], "\n"))
}

// decodeJSON reads JSON; original is what the client sent, for error texts. The happy path parses once and looks at kind and
// apiVersion afterwards; only a body that fails is parsed again, to find out which of Kubernetes' texts fits.
func (b wantedBody) decodeJSON(data, original []byte) (object, []error, error) {
	if b.wire == nil {
		return b.decodeUnstructured(data, original)
	}
	obj := newOf(b.wire)
	strictErrs, err := kjson.UnmarshalStrict(data, obj)
	typeMeta := obj.GetObjectKind().(*metav1.TypeMeta)
	if err == nil && b.serves(typeMeta.APIVersion, typeMeta.Kind) {
		*typeMeta = metav1.TypeMeta{}
		return obj, strictErrs, nil
	}
	gvk, metaErr := interpretKind(data)
	if metaErr != nil {
		return nil, nil, b.unrecognized(metaErr, original)
	}
	return nil, nil, b.mismatch(gvk, err)
}

// interpretKind reads kind and apiVersion as Kubernetes does, with the standard library and thus its error texts.
func interpretKind(data []byte) (gvk schema.GroupVersionKind, err error) {
	meta := struct {
		APIVersion string `json:"apiVersion,omitempty"`
		Kind       string `json:"kind,omitempty"`
	}{}
	if err := json.Unmarshal(data, &meta); err != nil {
		return gvk, fmt.Errorf("couldn't get version/kind; json parse error: %v", err)
	}
	gv, err := schema.ParseGroupVersion(meta.APIVersion)
	return gv.WithKind(meta.Kind), err
}

// unrecognized is the 400 for a body without as much as a kind.
func (b wantedBody) unrecognized(err error, data []byte) error {
	return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v (%s)", b.kind, err, bodySummary(data)))
}

// bodySummary shows the first bytes of a body, in hexadecimal unless it looks like JSON.
func bodySummary(data []byte) string {
	const most = 30
	head, more := data, ""
	if len(data) > most {
		head, more = data[:most], " ..."
	}
	switch {
	case len(data) == 0:
		return "<empty>"
	case data[0] == '{':
		return string(head) + more
	}
	return hex.EncodeToString(head) + more
}

// mismatch is the 400 for a body of another kind or version, or one of the right kind that cause kept from being decoded.
func (b wantedBody) mismatch(gvk schema.GroupVersionKind, cause error) error {
	if gvk.Kind == "" {
		gvk.Kind = b.kind
	}
	if gvk.Version == "" {
		gvk.Group, gvk.Version = b.group, b.version
	}
	apiVersion := gvk.GroupVersion().String()
	known := goName(gvk)
	switch {
	case b.serves(apiVersion, gvk.Kind):
	case known == "":
		cause = notRegistered(gvk)
	case gvk.Kind != b.kind:
		cause = fmt.Errorf("converting (%s) to (%s): unknown conversion", known, internalName(b.group, b.kind))
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)",
			apiVersion, b.apiVersion()))
	}
	return b.unhandled(gvk, cause)
}

// notRegistered keeps kube-apiserver's text, the place in its source included.
func notRegistered(gvk schema.GroupVersionKind) error {
	return fmt.Errorf("no kind %q is registered for version %q in scheme \"pkg/runtime/scheme.go:111\"", gvk.Kind, gvk.GroupVersion())
}

func (b wantedBody) unhandled(gvk schema.GroupVersionKind, cause error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", gvk.Kind, gvk.Version, b.kind, cause))
}

// goName is how Kubernetes' messages call the Go type of a built-in kind, v1.Secret; "" for others.
func goName(gvk schema.GroupVersionKind) string {
	for _, res := range builtins {
		if res.group == gvk.Group && res.version == gvk.Version && (res.kind == gvk.Kind || res.listKind == gvk.Kind) {
			return gvk.Version + "." + gvk.Kind
		}
	}
	return ""
}

// internalName is how kube-apiserver's messages call a kind: core.ConfigMap, rbac.Role.
func internalName(group, kind string) string {
	pkg, _, _ := strings.Cut(group, ".")
	if group == "" || group == "events.k8s.io" {
		pkg = "core"
	}
	return pkg + "." + kind
}

// protobufPrefix starts every protobuf body; a runtime.Unknown follows, which holds kind, apiVersion and the object's own bytes.
var protobufPrefix = []byte("k8s\x00")

func (b wantedBody) decodeProtobuf(data []byte) (object, error) {
	envelope, err := openEnvelope(data)
	if err != nil {
		return nil, b.unrecognized(err, data)
	}
	gvk := envelope.GroupVersionKind()
	if !b.serves(envelope.APIVersion, envelope.Kind) {
		return nil, b.mismatch(gvk, nil)
	}
	obj := newOf(b.wire)
	if err := obj.(interface{ Unmarshal([]byte) error }).Unmarshal(envelope.Raw); err != nil {
		return nil, b.mismatch(gvk, err)
	}
	return obj, nil
}

func openEnvelope(data []byte) (*runtime.Unknown, error) {
	raw, ok := bytes.CutPrefix(data, protobufPrefix)
	switch {
	case len(data) == 0:
		return nil, fmt.Errorf("empty data")
	case !ok:
		return nil, fmt.Errorf("provided data does not appear to be a protobuf message, expected prefix %v", protobufPrefix)
	case len(raw) == 0:
		return nil, fmt.Errorf("empty body")
	}
	envelope := &runtime.Unknown{}
	return envelope, envelope.Unmarshal(raw)
}

// decodeDeleteOptions reads the body of a DELETE. It is lenient, as Kubernetes is: any apiVersion will do, and unknown fields are dropped.
// err is a Status error: 400 or 415.
func decodeDeleteOptions(data []byte, contentType string) (*metav1.DeleteOptions, error) {
	format, err := formatOf(contentType)
	if err != nil {
		return nil, err
	}
	options := &metav1.DeleteOptions{}
	switch format {
	case protobufFormat:
		var sealed *runtime.Unknown
		if sealed, err = openEnvelope(data); err == nil {
			err = options.Unmarshal(sealed.Raw)
			options.APIVersion, options.Kind = sealed.APIVersion, sealed.Kind
		}
	case yamlFormat:
		if data, err = yaml.YAMLToJSON(data); err == nil {
			err = unmarshalOptions(data, options)
		}
	default:
		err = unmarshalOptions(data, options)
	}
	if kind := options.Kind; err == nil && kind != "" && kind != "DeleteOptions" {
		err = notRegistered(options.GroupVersionKind())
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	options.TypeMeta = metav1.TypeMeta{}
	return options, nil
}

func unmarshalOptions(data []byte, options *metav1.DeleteOptions) error {
	if _, err := interpretKind(data); err != nil {
		return err
	}
	return kjson.UnmarshalCaseSensitivePreserveInts(data, options)
}

// decodeUnstructured reads a custom resource. Its kind has to be there, and its metadata has to be metadata.
func (b wantedBody) decodeUnstructured(data, original []byte) (object, []error, error) {
	gvk, err := interpretKind(data)
	if err != nil {
		return nil, nil, b.unrecognized(err, original)
	}
	content := map[string]any{}
	strictErrs, err := kjson.UnmarshalStrict(data, &content)
	switch {
	case err != nil:
		return nil, nil, b.unhandled(gvk, err)
	case gvk.Kind == "":
		return nil, nil, b.unrecognized(runtime.NewMissingKindErr(string(original)), original)
	}
	u := &unstructured.Unstructured{Object: content}
	shape := b.shape
	if shape == nil {
		shape = coerceMetadata
	}
	unknown, err := shape(u)
	if err != nil {
		return nil, nil, b.unhandled(gvk, err)
	}
	if err := b.checkCustomKind(u, gvk); err != nil {
		return nil, nil, err
	}
	return u, append(strictErrs, unknown...), nil
}

func (b wantedBody) checkCustomKind(u *unstructured.Unstructured, gvk schema.GroupVersionKind) error {
	if apiVersion := gvk.GroupVersion().String(); apiVersion != b.apiVersion() {
		return apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)",
			apiVersion, b.apiVersion()))
	}
	if gvk.Kind != b.kind {
		return apierrors.NewInvalid(gvk.GroupKind(), u.GetName(),
			field.ErrorList{field.Invalid(field.NewPath("kind"), gvk.Kind, "must be "+b.kind)})
	}
	return nil
}

// coerceMetadata replaces an unstructured object's metadata by what ObjectMeta knows of it. It returns the fields that were unknown.
func coerceMetadata(u *unstructured.Unstructured) ([]error, error) {
	content := u.Object
	given, ok := content["metadata"]
	if !ok || given == nil {
		content["metadata"] = map[string]any{}
		return nil, nil
	}
	asJSON, err := json.Marshal(given)
	if err != nil {
		return nil, err
	}
	meta := metav1.ObjectMeta{}
	strictErrs, err := kjson.UnmarshalStrict(asJSON, &meta)
	if err != nil {
		return nil, err
	}
	for _, strictErr := range strictErrs {
		if fieldErr, ok := strictErr.(kjson.FieldError); ok {
			fieldErr.SetFieldPath("metadata." + fieldErr.FieldPath())
		}
	}
	content["metadata"], err = runtime.DefaultUnstructuredConverter.ToUnstructured(&meta)
	return strictErrs, err
}

// strictError is the 400 for unknown and duplicate fields when the client asked for strictness.
func (res *resource) strictError(sub string, strictErrs []error) error {
	b := res.bodyOf(sub)
	return b.unhandled(schema.GroupVersionKind{Version: b.version, Kind: b.kind}, runtime.NewStrictDecodingError(strictErrs))
}

// strictWarnings are the texts for unknown and duplicate fields when the client asked for warnings. YAML's complaint about several keys
// is one error of many lines; a warning has one.
func strictWarnings(strictErrs []error) (texts []string) {
	for _, err := range strictErrs {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			if line = strings.TrimSpace(line); line != "" && line != "yaml: unmarshal errors:" {
				texts = append(texts, line)
			}
		}
	}
	return texts
}

// decodeStored reads stored JSON.
func (res *resource) decodeStored(stored []byte) (object, error) {
	obj := res.newObject()
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, kjson.UnmarshalCaseSensitivePreserveInts(stored, obj)
	}
	kind := maps.Clone(u.Object)
	if err := kjson.UnmarshalCaseSensitivePreserveInts(stored, &u.Object); err != nil {
		return nil, err
	}
	maps.Copy(u.Object, kind)
	if c := res.custom; c != nil && !c.settled(stored) {
		return u, c.complete(u)
	}
	return u, nil
}

// resourceVersionField is searched for in encoded objects, where encodeStored planted it.
var resourceVersionField = []byte(`"resourceVersion":"`)

// encodeStored writes an object as the store keeps it: without kind and apiVersion, resourceVersion empty; revAt is where the
// decimal revision belongs. It changes obj while it works and back at the end: nobody else may be reading it.
func (res *resource) encodeStored(obj object) (stored []byte, revAt int, err error) {
	before := obj.GetResourceVersion()
	obj.SetResourceVersion("0") // an empty one would be left out
	defer obj.SetResourceVersion(before)
	buf := encodeBuffers.Get().(*bytes.Buffer)
	defer func() { buf.Reset(); encodeBuffers.Put(buf) }()

	if u, ok := obj.(*unstructured.Unstructured); ok {
		if c := res.custom; c != nil && c.toStorage != nil {
			if u, err = c.toStorage(u); err != nil {
				return nil, 0, err
			}
		}
		revAt, err = encodeUnstructured(buf, u)
	} else {
		revAt, err = encodeTyped(buf, obj)
	}
	if err != nil {
		return nil, 0, err
	}
	encoded := buf.Bytes()
	stored = make([]byte, 0, len(encoded)-1)
	return append(append(stored, encoded[:revAt]...), encoded[revAt+1:]...), revAt, nil
}

// encodeBuffers are for encoding; what leaves is copied out of them.
var encodeBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// encodeTyped relies on metadata being the first member of every type and on resourceVersion coming before all of the user's maps in
// it: the first unescaped occurrence of the field is the object's own.
func encodeTyped(buf *bytes.Buffer, obj object) (revAt int, err error) {
	typeMeta := obj.GetObjectKind().(*metav1.TypeMeta)
	before := *typeMeta
	*typeMeta = metav1.TypeMeta{}
	defer func() { *typeMeta = before }()
	if err := json.NewEncoder(buf).Encode(obj); err != nil {
		return 0, err
	}
	buf.Truncate(buf.Len() - 1) // the encoder's newline
	return bytes.Index(buf.Bytes(), resourceVersionField) + len(resourceVersionField), nil
}

// encodeUnstructured writes metadata first. The last occurrence of the field in it is the object's own: what sorts behind it there,
// selfLink and uid, are strings.
func encodeUnstructured(buf *bytes.Buffer, u *unstructured.Unstructured) (revAt int, err error) {
	if err := encodeMember(buf, `{"metadata":`, u.Object["metadata"]); err != nil {
		return 0, err
	}
	revAt = bytes.LastIndex(buf.Bytes(), resourceVersionField) + len(resourceVersionField)
	for _, name := range slices.Sorted(maps.Keys(u.Object)) {
		if name == "metadata" || name == "kind" || name == "apiVersion" {
			continue
		}
		key, _ := json.Marshal(name)
		if err := encodeMember(buf, ","+string(key)+":", u.Object[name]); err != nil {
			return 0, err
		}
	}
	return revAt, buf.WriteByte('}')
}

func encodeMember(buf *bytes.Buffer, before string, value any) error {
	buf.WriteString(before)
	if err := json.NewEncoder(buf).Encode(value); err != nil {
		return err
	}
	buf.Truncate(buf.Len() - 1)
	return nil
}

// convertOut returns an object of the storage version as the served one, convertIn the reverse; the object itself where they are the same.
func (res *resource) convertOut(obj object) object {
	if res.conversion == nil || res.conversion.out == nil {
		return obj
	}
	return res.conversion.out(obj)
}

func (res *resource) convertIn(obj object) object {
	if res.conversion == nil || res.conversion.in == nil {
		return obj
	}
	return res.conversion.in(obj)
}

// decodeServed reads stored JSON into an object of the served version.
func (res *resource) decodeServed(stored []byte) (object, error) {
	obj, err := res.decodeStored(stored)
	if err != nil {
		return nil, err
	}
	return res.convertOut(obj), nil
}

// served turns stored JSON into the members of the served version, still without kind and apiVersion: prefix belongs before them.
// For all but the converted rows, and custom resources older than their schema, that is the stored JSON itself.
func (res *resource) served(stored []byte) ([]byte, error) {
	if c := res.custom; c != nil && c.settled != nil && !c.settled(stored) {
		obj, err := res.decodeStored(stored)
		if err != nil {
			return nil, err
		}
		var buf bytes.Buffer
		_, err = encodeUnstructured(&buf, obj.(*unstructured.Unstructured))
		return buf.Bytes(), err
	}
	if res.conversion == nil || res.conversion.out == nil {
		return stored, nil
	}
	obj, err := res.decodeStored(stored)
	if err != nil {
		return nil, err
	}
	return json.Marshal(res.conversion.out(obj))
}

// marshalAs is the JSON of an object that is not stored (a review, a Scale, a Status) under the given kind.
func marshalAs(obj runtime.Object, apiVersion, kind string) ([]byte, error) {
	obj.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(apiVersion, kind))
	return json.Marshal(obj)
}
