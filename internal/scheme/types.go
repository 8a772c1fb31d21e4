package scheme

// This file is the table of what the server serves, and what follows from a row of it: names, keys, subresources, verbs.
//
// A row is one resource at one served version. Everything that can be read off the Go type of k8s.io/api is not written down: kind,
// singular name, lifecycle, JSON and protobuf shape. An object in the server's hands has the Go type of its *storage* version and no
// kind or APIVersion (an unstructured custom resource keeps both); only at the edges does it take a served version's shape:
//
//	body ──decode──▶ served type ──conversion.in──▶ object ──EncodeStored──▶ {"metadata":{…},…}        in the store
//	response ◀──prefix + served JSON ◀──conversion.out── object ◀──DecodeStored── {"metadata":{…},…}
//
// Nearly every row serves the storage version itself: then both conversions fall away and a read copies stored bytes behind the prefix.
//
// codec.go does the decoding and encoding; convert.go knows the four pairs of versions whose fields differ.

import (
	"cmp"
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

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
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/version"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"apilet/internal/scheme/protobuf"
)

// Builtins is the table, one group version after the other in discovery order (see groupOrder). The words of a row: traits, then plural
// and short names, then subresources.
var Builtins = slices.Concat(
	GroupVersion("", "v1",
		Row[corev1.Binding](Namespaced|createOnly, "bindings", ""),
		Row[corev1.ComponentStatus](readOnly, "componentstatuses cs", ""),
		Row[corev1.ConfigMap](Namespaced, "configmaps cm", ""),
		Row[corev1.Endpoints](Namespaced, "endpoints ep", ""),
		Row[corev1.Event](Namespaced, "events ev", ""),
		Row[corev1.LimitRange](Namespaced, "limitranges limits", ""),
		Row[corev1.Namespace](oneByOne, "namespaces ns", "finalize status"),
		Row[corev1.Node](0, "nodes no", "proxy status"),
		Row[corev1.PersistentVolumeClaim](Namespaced, "persistentvolumeclaims pvc", "status"),
		Row[corev1.PersistentVolume](0, "persistentvolumes pv", "status"),
		Row[corev1.Pod](Namespaced|inAll|Counted, "pods po",
			"attach binding ephemeralcontainers eviction exec log portforward proxy resize status"),
		Row[corev1.PodTemplate](Namespaced|Counted, "podtemplates", ""),
		Row[corev1.ReplicationController](Namespaced|inAll|Counted, "replicationcontrollers rc", "scale status"),
		Row[corev1.ResourceQuota](Namespaced, "resourcequotas quota", "status"),
		Row[corev1.Secret](Namespaced, "secrets", ""),
		Row[corev1.ServiceAccount](Namespaced, "serviceaccounts sa", "token"),
		Row[corev1.Service](Namespaced|inAll, "services svc", "proxy status")),
	GroupVersion(apiregistrationv1.GroupName, "v1",
		Row[apiregistrationv1.APIService](InExtensions, "apiservices", "status")),
	GroupVersion("apps", "v1",
		Row[appsv1.ControllerRevision](Namespaced, "controllerrevisions", ""),
		Row[appsv1.DaemonSet](Namespaced|inAll|Counted, "daemonsets ds", "status"),
		Row[appsv1.Deployment](Namespaced|inAll|Counted, "deployments deploy", "scale status"),
		Row[appsv1.ReplicaSet](Namespaced|inAll|Counted, "replicasets rs", "scale status"),
		Row[appsv1.StatefulSet](Namespaced|inAll|Counted, "statefulsets sts", "scale status")),
	GroupVersion("events.k8s.io", "v1",
		Row[eventsv1.Event](Namespaced, "events ev", "").
			storedIn("", converting[eventsv1.Event, corev1.Event]())),
	GroupVersion("authentication.k8s.io", "v1",
		Row[authenticationv1.SelfSubjectReview](createOnly, "selfsubjectreviews", ""),
		Row[authenticationv1.TokenReview](createOnly, "tokenreviews", "")),
	GroupVersion("authorization.k8s.io", "v1",
		Row[authorizationv1.LocalSubjectAccessReview](Namespaced|createOnly, "localsubjectaccessreviews", ""),
		Row[authorizationv1.SelfSubjectAccessReview](createOnly, "selfsubjectaccessreviews", ""),
		Row[authorizationv1.SelfSubjectRulesReview](createOnly, "selfsubjectrulesreviews", ""),
		Row[authorizationv1.SubjectAccessReview](createOnly, "subjectaccessreviews", "")),
	GroupVersion("autoscaling", "v2",
		Row[autoscalingv2.HorizontalPodAutoscaler](Namespaced|inAll|Counted, "horizontalpodautoscalers hpa", "status")),
	GroupVersion("autoscaling", "v1",
		Row[autoscalingv1.HorizontalPodAutoscaler](Namespaced|inAll|Counted, "horizontalpodautoscalers hpa", "status").
			storedIn("autoscaling", converting[autoscalingv1.HorizontalPodAutoscaler, autoscalingv2.HorizontalPodAutoscaler]())),
	GroupVersion("batch", "v1",
		Row[batchv1.CronJob](Namespaced|inAll|Counted, "cronjobs cj", "status"),
		Row[batchv1.Job](Namespaced|inAll|Counted, "jobs", "status")),
	GroupVersion("batch", "v1beta1",
		Row[batchv1beta1.CronJob](Namespaced|inAll|Counted, "cronjobs cj", "status").
			storedIn("batch", converting[batchv1beta1.CronJob, batchv1.CronJob]())),
	GroupVersion("certificates.k8s.io", "v1",
		Row[certificatesv1.CertificateSigningRequest](0, "certificatesigningrequests csr", "approval status"),
		Row[certificatesv1.ClusterTrustBundle](0, "clustertrustbundles", ""),
		Row[certificatesv1.PodCertificateRequest](Namespaced, "podcertificaterequests", "status")),
	GroupVersion("networking.k8s.io", "v1",
		Row[networkingv1.IngressClass](Counted, "ingressclasses", ""),
		Row[networkingv1.Ingress](Namespaced|Counted, "ingresses ing", "status"),
		Row[networkingv1.IPAddress](0, "ipaddresses ip", ""),
		Row[networkingv1.NetworkPolicy](Namespaced|Counted, "networkpolicies netpol", ""),
		Row[networkingv1.ServiceCIDR](0, "servicecidrs", "status")),
	GroupVersion("policy", "v1",
		Row[policyv1.PodDisruptionBudget](Namespaced|Counted, "poddisruptionbudgets pdb", "status")),
	GroupVersion("policy", "v1beta1",
		Row[policyv1beta1.PodDisruptionBudget](Namespaced|Counted, "poddisruptionbudgets pdb", "status").
			storedIn("policy", converting[policyv1beta1.PodDisruptionBudget, policyv1.PodDisruptionBudget]())),
	GroupVersion("rbac.authorization.k8s.io", "v1",
		Row[rbacv1.ClusterRoleBinding](0, "clusterrolebindings", ""),
		Row[rbacv1.ClusterRole](0, "clusterroles", ""),
		Row[rbacv1.RoleBinding](Namespaced, "rolebindings", ""),
		Row[rbacv1.Role](Namespaced, "roles", "")),
	GroupVersion("storage.k8s.io", "v1",
		Row[storagev1.CSIDriver](0, "csidrivers", ""),
		Row[storagev1.CSINode](0, "csinodes", "status"),
		Row[storagev1.CSIStorageCapacity](Namespaced, "csistoragecapacities", ""),
		Row[storagev1.StorageClass](0, "storageclasses sc", ""),
		Row[storagev1.VolumeAttachment](0, "volumeattachments", "status"),
		Row[storagev1.VolumeAttributesClass](0, "volumeattributesclasses vac", "")),
	GroupVersion("admissionregistration.k8s.io", "v1",
		Row[admissionregistrationv1.MutatingAdmissionPolicy](InExtensions|Counted, "mutatingadmissionpolicies", ""),
		Row[admissionregistrationv1.MutatingAdmissionPolicyBinding](InExtensions|Counted, "mutatingadmissionpolicybindings", ""),
		Row[admissionregistrationv1.MutatingWebhookConfiguration](InExtensions|Counted, "mutatingwebhookconfigurations", ""),
		Row[admissionregistrationv1.ValidatingAdmissionPolicy](InExtensions|Counted, "validatingadmissionpolicies", "status"),
		Row[admissionregistrationv1.ValidatingAdmissionPolicyBinding](InExtensions|Counted, "validatingadmissionpolicybindings", ""),
		Row[admissionregistrationv1.ValidatingWebhookConfiguration](InExtensions|Counted, "validatingwebhookconfigurations", "")),
	GroupVersion("scheduling.k8s.io", "v1",
		Row[schedulingv1.PriorityClass](Counted, "priorityclasses pc", "")),
	GroupVersion("coordination.k8s.io", "v1",
		Row[coordinationv1.Lease](Namespaced, "leases", "")),
	GroupVersion("node.k8s.io", "v1",
		Row[nodev1.RuntimeClass](0, "runtimeclasses", "")),
	GroupVersion("discovery.k8s.io", "v1",
		Row[discoveryv1.EndpointSlice](Namespaced|Counted, "endpointslices", "")),
	GroupVersion("resource.k8s.io", "v1",
		Row[resourcev1.DeviceClass](Counted, "deviceclasses", ""),
		Row[resourcev1.DeviceTaintRule](Counted, "devicetaintrules", "status"),
		Row[resourcev1.ResourceClaim](Namespaced, "resourceclaims", "status"),
		Row[resourcev1.ResourceClaimTemplate](Namespaced, "resourceclaimtemplates", ""),
		Row[resourcev1.ResourceSlice](Counted, "resourceslices", "")),
	GroupVersion("flowcontrol.apiserver.k8s.io", "v1",
		Row[flowcontrolv1.FlowSchema](Counted, "flowschemas", "status"),
		Row[flowcontrolv1.PriorityLevelConfiguration](Counted, "prioritylevelconfigurations", "status")),
	GroupVersion("flowcontrol.apiserver.k8s.io", "v1beta3",
		Row[flowcontrolv1beta3.FlowSchema](Counted, "flowschemas", "status").
			storedIn("flowcontrol.apiserver.k8s.io", converting[flowcontrolv1beta3.FlowSchema, flowcontrolv1.FlowSchema]()),
		Row[flowcontrolv1beta3.PriorityLevelConfiguration](Counted, "prioritylevelconfigurations", "status").
			storedIn("flowcontrol.apiserver.k8s.io", converting[flowcontrolv1beta3.PriorityLevelConfiguration, flowcontrolv1.PriorityLevelConfiguration]())),
	GroupVersion("storagemigration.k8s.io", "v1",
		Row[storagemigrationv1.StorageVersionMigration](0, "storageversionmigrations", "status")),
)

// groupOrder is kube-apiserver's order of groups in discovery; groups that are not named come after it, by name.
var groupOrder = []string{"", "apiregistration.k8s.io", "apps", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io", "autoscaling", "batch",
	"certificates.k8s.io", "networking.k8s.io", "policy", "rbac.authorization.k8s.io", "storage.k8s.io", "admissionregistration.k8s.io",
	"apiextensions.k8s.io", "scheduling.k8s.io", "coordination.k8s.io", "node.k8s.io", "discovery.k8s.io", "resource.k8s.io",
	"flowcontrol.apiserver.k8s.io", "storagemigration.k8s.io"}

// SubresourceBodies are the subresources whose body is not the parent itself. A kind that starts with * takes the parent's kind in its
// place, as in PodProxyOptions.
var SubresourceBodies = map[string]Subresource{
	"attach":      {Version: "v1", Kind: "*AttachOptions", Verbs: []string{"create", "get"}},
	"binding":     {Version: "v1", Kind: "Binding", Verbs: []string{"create"}},
	"eviction":    {Group: "policy", Version: "v1", Kind: "Eviction", Verbs: []string{"create"}},
	"exec":        {Version: "v1", Kind: "*ExecOptions", Verbs: []string{"create", "get"}},
	"portforward": {Version: "v1", Kind: "*PortForwardOptions", Verbs: []string{"create", "get"}},
	"proxy":       {Version: "v1", Kind: "*ProxyOptions", Verbs: []string{"create", "delete", "get", "patch", "update"}},
	"scale":       {Group: "autoscaling", Version: "v1", Kind: "Scale", Verbs: []string{"get", "patch", "update"}},
	"token":       {Group: "authentication.k8s.io", Version: "v1", Kind: "TokenRequest", Verbs: []string{"create"}},
}

// SubresourceTypes are the Go types of those bodies that are objects.
var SubresourceTypes = map[string]reflect.Type{
	"Binding":      reflect.TypeFor[corev1.Binding](),
	"Eviction":     reflect.TypeFor[policyv1.Eviction](),
	"Scale":        reflect.TypeFor[autoscalingv1.Scale](),
	"TokenRequest": reflect.TypeFor[authenticationv1.TokenRequest](),
}

// An Object is a built-in Go type of k8s.io/api or an *unstructured.Unstructured.
type Object interface {
	metav1.Object
	runtime.Object
}

// A Resource is one row of the table: one resource at one served version. Immutable once in a registry.
type Resource struct {
	Group, Version   string        // as served; the core group is ""
	Kind             string        // of one object
	ListKind         string        // of a collection
	Plural, Singular string        // the plural stands in paths
	ShortNames       []string      // for kubectl: po
	Categories       []string      // for kubectl: all
	Namespaced       bool          // objects lie in namespaces
	Verbs            []string      // create delete deletecollection get list patch update watch
	Subresources     []Subresource // in the order of discovery
	StorageGroup     string        // the group in the object's key: both groups of Event show one object
	GoType           reflect.Type  // struct type of the served version; nil for a custom resource
	Conversion       *Conversion   // nil: the served version is the storage version
	Generation       bool          // metadata.generation counts changes outside metadata and status
	Virtual          bool          // nothing is stored: a review, answered at once
	Prefix           string        // `"kind":"Pod","APIVersion":"v1",` what reading puts before the stored members
	Base             string        // `//pods/` what all keys of the resource start with
	Deprecation      *Deprecation  // nil: not deprecated

	// Schema returns a custom resource's OpenAPI v3 schema when a client asks for it; nil: any object. SchemaTag changes with it.
	Schema    func() (json.RawMessage, error)
	SchemaTag string

	Custom *CustomStrategy // nil for the rows of the table
}

// CustomStrategy is where a type that a definition made, and the type of definitions itself, goes its own way on the walk of a request. Whoever
// makes the row sets it; a nil function goes the common way. old is nil for a create; sub is "" or "status".
type CustomStrategy struct {
	Defaults  func(obj Object) error                                                 // fills in what a client left out
	Prepare   func(obj, old Object, sub string) Object                               // what is to be stored: without what this way may not change
	Validate  func(ctx context.Context, obj, old Object, sub string) field.ErrorList // metadata included
	Warnings  func(obj, old Object) []string                                         // for the Warning header
	Deleting  func(obj Object)                                                       // marks an object whose deletion begins
	Committed func(ctx context.Context) error                                        // after a write, before its answer

	StorageVersion string          // of custom resources, as all that follows
	Definition     string          // the key of what makes the type: without it nothing is created
	Terminating    bool            // the definition is being deleted
	Over           <-chan struct{} // closed when the definition was changed, or went: watches end
	Deprecation    string          // the warning of a deprecated version
	// Objects are stored in the storage version, pruned and with its defaults, by the schema of their day.
	Shape        func(*unstructured.Unstructured) (unknown []error, err error)        // a body: prune, coerce, default
	ShapeApplied func(*unstructured.Unstructured) error                               // the result of an apply, whose nulls stay
	Settled      func(stored []byte) (bool, error)                                    // needs no complete; an error: is of another version
	Complete     func(*unstructured.Unstructured) error                               // stored object, as of today's schema
	ToStorage    func(*unstructured.Unstructured) (*unstructured.Unstructured, error) // nil: as it is
	Columns      func() []metav1.TableColumnDefinition                                // nil: name and age
	Cells        func(obj Object, now time.Time) []any                                // one row of them
	Scale        func(u *unstructured.Unstructured, set *int32) (Scalable, error)     // set, when not nil, changes the count
	Kept         func() *sync.Map                                                     // what is made of the schema, by its maker's key, as long as that is kept
	Unmarked     string                                                               // version of the stored objects that do not name theirs
	Webhook      *WebhookConversion                                                   // nil: all versions show the same fields
	Verbatim     *Resource                                                            // the row for those who change metadata alone; see AsStored
	Selectable   []string                                                             // fields that may be selected by, as spec.color
}

// A WebhookConversion is how objects of a type get from one version to another when a program outside knows how. Docs are stored JSON,
// and replaced by what the row's version makes of them, in one call for all that need it; errors are Statuses.
type WebhookConversion struct {
	Read  func(ctx context.Context, docs [][]byte) error // for answers: GET, LIST and what a write returns
	Watch func(ctx context.Context, docs [][]byte) error // Read for events: who follows the same ones shares the calls
	// To returns an object of one version in another, pruned by that one's schema; the object itself if it is of that version.
	To func(ctx context.Context, u *unstructured.Unstructured, version string) (*unstructured.Unstructured, error)
}

// A Scalable is the replica count that a Scale shows; path says where it is in a custom resource.
type Scalable struct {
	Replicas *int32 // spec.replicas; nil: not set
	Status   int32  // status.replicas
	Selector string // as text
	Path     string // as .spec.replicas
}

// A Subresource is /status, /scale, /binding, ...; Group and version are empty when they are the parent's.
type Subresource struct {
	Name                 string   // as in the path
	Group, Version, Kind string   // of its body
	Verbs                []string // as discovery tells them
}

// A Deprecation is what the Go type's lifecycle methods say. Versions are {major, minor}; removed is {0, 0} when none is planned.
type Deprecation struct {
	Deprecated, Removed                            [2]int // Kubernetes' minor versions in which it is
	ReplacementGroup, ReplacementVersion, Replaced string // Replaced is the kind; "" without a replacement
}

// KubernetesVersion is the version of Kubernetes whose rules and types are linked into the server. go.mod requires the same one.
const (
	KubernetesVersion = "v1.37.2"
	kubernetesMinor   = 37
)

// Gone says that kube-apiserver of that version has the type no more.
func (d *Deprecation) Gone() bool {
	return d != nil && d.Removed[0] == 1 && d.Removed[1] <= kubernetesMinor
}

// A Conversion is between a served version and the storage version. Bodies are decoded into wire; in and out may be nil.
type Conversion struct {
	wire, stored reflect.Type
	in, Out      func(Object) Object // served to stored, and back
}

// A Trait is what a row of the table says in a word.
type Trait uint

const (
	Namespaced   Trait = 1 << iota
	Counted            // metadata.generation is kept
	inAll              // in the category "all"
	InExtensions       // in the category "api-extensions"
	createOnly         // virtual: a question, answered at once
	readOnly           // virtual: an empty list
	oneByOne           // no deletecollection
)

// Row is one line of the table. What T tells is read off T. It is apart from rowOf because a generic function is compiled once for each
// T, and this one has seventy.
func Row[T any](traits Trait, names, subresources string) *Resource {
	return rowOf(reflect.TypeFor[T](), traits, names, subresources)
}

func rowOf(t reflect.Type, traits Trait, names, subresources string) *Resource {
	words := strings.Fields(names)
	res := &Resource{
		Kind: t.Name(), Plural: words[0], Singular: strings.ToLower(t.Name()), ShortNames: words[1:], GoType: t,
		Namespaced: traits&Namespaced != 0, Generation: traits&Counted != 0, Virtual: traits&(createOnly|readOnly) != 0,
		Verbs: verbsOf(traits), Deprecation: lifecycleOf(reflect.New(t).Interface()),
	}
	if traits&inAll != 0 {
		res.Categories = []string{"all"}
	}
	if traits&InExtensions != 0 {
		res.Categories = []string{"api-extensions"}
	}
	for _, name := range strings.Fields(subresources) {
		res.Subresources = append(res.Subresources, SubresourceOf(name, res.Kind))
	}
	return res
}

// verbsOf are the verbs of a type of such traits, in the order of discovery.
func verbsOf(traits Trait) []string {
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

// SubresourceOf is the subresource of a name as the table has it: its own kind of body, or else the parent's.
func SubresourceOf(name, parentKind string) Subresource {
	sub, other := SubresourceBodies[name]
	if !other {
		sub = Subresource{Kind: parentKind, Verbs: []string{"get", "patch", "update"}}
	}
	switch name {
	case "log":
		sub.Verbs = []string{"get"}
	case "finalize":
		sub.Verbs = []string{"update"}
	}
	sub.Name = name
	if rest, ok := strings.CutPrefix(sub.Kind, "*"); ok {
		sub.Kind = parentKind + rest
		sub.Group, sub.Version = "", ""
	}
	return sub
}

// lifecycleOf reads the methods that k8s.io/api gives a type which is on its way out.
func lifecycleOf(goType any) *Deprecation {
	old, ok := goType.(interface{ APILifecycleDeprecated() (int, int) })
	if !ok {
		return nil
	}
	d := &Deprecation{}
	d.Deprecated[0], d.Deprecated[1] = old.APILifecycleDeprecated()
	if end, ok := goType.(interface{ APILifecycleRemoved() (int, int) }); ok {
		d.Removed[0], d.Removed[1] = end.APILifecycleRemoved()
	}
	if next, ok := goType.(interface {
		APILifecycleReplacement() schema.GroupVersionKind
	}); ok {
		gvk := next.APILifecycleReplacement()
		d.ReplacementGroup, d.ReplacementVersion, d.Replaced = gvk.Group, gvk.Version, gvk.Kind
	}
	return d
}

// storedIn says that a row's objects live under another group or in another version.
func (res *Resource) storedIn(group string, c *Conversion) *Resource {
	res.StorageGroup, res.Conversion = group, c
	return res
}

// GroupVersion writes group and version into rows and returns them: a piece of the table.
func GroupVersion(group, version string, rows ...*Resource) []*Resource {
	for _, res := range rows {
		if res.Conversion == nil {
			res.StorageGroup = group
		}
		res.Group, res.Version = group, version
		for i := range res.Subresources {
			if sub := &res.Subresources[i]; sub.Version == "" {
				sub.Group, sub.Version = group, version
			}
		}
		res.derive()
	}
	return rows
}

// derive fills in what follows from the rest, once.
func (res *Resource) derive() {
	if res.Prefix != "" {
		return
	}
	res.ListKind = cmp.Or(res.ListKind, res.Kind+"List")
	res.Prefix = `"kind":"` + res.Kind + `","apiVersion":"` + res.APIVersion() + `",`
	if res.GoType == nil { // the order in which Kubernetes writes what is no struct
		res.Prefix = `"apiVersion":"` + res.APIVersion() + `","kind":"` + res.Kind + `",`
	}
	res.Base = keyBase(res.StorageGroup, res.Plural)
}

func keyBase(group, plural string) string { return "/" + group + "/" + plural + "/" }

// APIVersion is "v1" or "apps/v1".
func (res *Resource) APIVersion() string { return GroupVersionString(res.Group, res.Version) }

// GroupVersionString is group/version, and the version alone in the core group.
func GroupVersionString(group, version string) string {
	if group == "" {
		return version
	}
	return group + "/" + version
}

// GroupKind is the served kind.
func (res *Resource) GroupKind() schema.GroupKind {
	return schema.GroupKind{Group: res.Group, Kind: res.Kind}
}

// GroupResource is the plural name in its group, as errors name it.
func (res *Resource) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: res.Group, Resource: res.Plural}
}

// GroupVersionKind is the served kind at its version.
func (res *Resource) GroupVersionKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: res.Group, Version: res.Version, Kind: res.Kind}
}

// Allows tells whether the resource has a verb.
func (res *Resource) Allows(verb string) bool { return slices.Contains(res.Verbs, verb) }

// Subresource finds a subresource by name; nil when there is none.
func (res *Resource) Subresource(name string) *Subresource {
	for i := range res.Subresources {
		if res.Subresources[i].Name == name {
			return &res.Subresources[i]
		}
	}
	return nil
}

// Key is the store's key of one object: /group/resource/namespace/name (namespace "" when cluster-scoped).
func (res *Resource) Key(namespace, name string) string { return res.Base + namespace + "/" + name }

// Scope is the namespace in which an object lies that a request names. Kubernetes counts a Namespace as being in itself, for authorization; its
// key says otherwise.
func (res *Resource) Scope(namespace string) string {
	if !res.Namespaced {
		return ""
	}
	return namespace
}

// KeyPrefix is the range of a namespace ("": of the whole resource).
func (res *Resource) KeyPrefix(namespace string) string {
	if namespace == "" {
		return res.Base
	}
	return res.Base + namespace + "/"
}

// etcdFolders are those of the built-in types that do not lie under their plural names.
var etcdFolders = map[string]string{
	"//endpoints/":                         "services/endpoints",
	"//nodes/":                             "minions",
	"//rangeallocations/":                  "ranges",
	"//replicationcontrollers/":            "controllers",
	"//services/":                          "services/specs",
	"/networking.k8s.io/ingresses/":        "ingress",
	"/apiregistration.k8s.io/apiservices/": "apiregistration.k8s.io/apiservices",
	"/apiextensions.k8s.io/customresourcedefinitions/": "apiextensions.k8s.io/customresourcedefinitions",
}

// EtcdFolder is where kube-apiserver keeps a type's objects in etcd, below its prefix.
func (res *Resource) EtcdFolder() string {
	switch folder := etcdFolders[res.Base]; {
	case folder != "":
		return folder
	case res.GoType == nil:
		return res.Group + "/" + res.Plural
	}
	return res.Plural
}

// SplitKey takes a key apart: base + namespace + "/" + name is the key again. ok is false for what key never returns.
func SplitKey(key string) (base, namespace, name string, ok bool) {
	parts := strings.Split(key, "/")
	if len(parts) != 5 || parts[0] != "" || parts[2] == "" || parts[4] == "" {
		return "", "", "", false
	}
	return key[:len(parts[1])+len(parts[2])+3], parts[3], parts[4], true
}

// A Registry is the set of resources that are served. Lookups are safe beside changes (custom resources come and go).
type Registry struct {
	Current atomic.Pointer[Catalog] // replaced as a whole
	builtin []*Resource
	mu      sync.Mutex // held while a new catalog is made
}

// A Catalog is one state of the registry, never changed once it is current.
type Catalog struct {
	byPath   map[resourcePath]*Resource
	Sorted   []*Resource // by group, version and plural, in the order of discovery
	Unserved []*Resource // storage versions of definitions that serve none: what was stored of them is there, and goes with them
	memo     sync.Map    // what is derived from this state, by name; see remember

	Replaced chan struct{} // closed when another state is current
}

type resourcePath struct{ group, version, plural string }

// NewRegistry serves these built-in types (see [Served]); of none those that are on by default.
func NewRegistry(builtin ...*Resource) *Registry {
	if len(builtin) == 0 {
		builtin = Builtins
	}
	reg := &Registry{builtin: builtin}
	reg.ReplaceCustom(nil)
	return reg
}

// Anew is a registry with the same built-in types, and nothing else yet.
func (reg *Registry) Anew() *Registry { return NewRegistry(reg.builtin...) }

// ReplaceCustom makes rows the resources that are served beside the built-in ones. The rows belong to the registry from then on. A row
// at a path that is taken is dropped: the built-in types cannot be shadowed. So is a custom resource among their keys. unserved is only noted.
func (reg *Registry) ReplaceCustom(rows []*Resource, unserved ...*Resource) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	c := &Catalog{byPath: make(map[resourcePath]*Resource, len(reg.builtin)+len(rows)), Unserved: unserved, Replaced: make(chan struct{})}
	typed := make(map[string]bool, len(reg.builtin)+1) // what the keys of objects with a Go type begin with
	for _, res := range slices.Concat(reg.builtin, rows) {
		res.derive()
		typed[res.Base] = typed[res.Base] || res.GoType != nil
		path := resourcePath{res.Group, res.Version, res.Plural}
		if c.byPath[path] == nil && (res.GoType != nil || !typed[res.Base]) {
			c.byPath[path] = res
			c.Sorted = append(c.Sorted, res)
		}
	}
	slices.SortStableFunc(c.Sorted, compareRows)
	if before := reg.Current.Swap(c); before != nil {
		close(before.Replaced)
	}
}

// compareRows is discovery's order: groups as groupOrder has them, then versions from the most stable and newest down, then names.
func compareRows(a, b *Resource) int {
	return cmp.Or(
		cmp.Compare(groupRank(a.Group), groupRank(b.Group)),
		cmp.Compare(a.Group, b.Group),
		version.CompareKubeAwareVersionStrings(b.Version, a.Version),
		cmp.Compare(a.Plural, b.Plural))
}

func groupRank(group string) int {
	if rank := slices.Index(groupOrder, group); rank >= 0 {
		return rank
	}
	return len(groupOrder)
}

// Lookup finds a resource by group, version and plural name; nil when it is not served.
func (reg *Registry) Lookup(group, version, plural string) *Resource {
	return reg.Current.Load().byPath[resourcePath{group, version, plural}]
}

// All returns every served resource in discovery order: the preferred version of a group first. Not to be changed.
func (reg *Registry) All() []*Resource { return reg.Current.Load().Sorted }

// Remember returns what build made of this catalog the first time, under name. Two callers at once may both build; one result stays.
func (c *Catalog) Remember(name string, build func(*Catalog) []byte) []byte {
	if doc, ok := c.memo.Load(name); ok {
		return doc.([]byte)
	}
	doc, _ := c.memo.LoadOrStore(name, build(c))
	return doc.([]byte)
}

// GroupVersions cuts the sorted rows into those of each group version.
func (c *Catalog) GroupVersions() (all [][]*Resource) {
	for rest := c.Sorted; len(rest) > 0; {
		n := slices.IndexFunc(rest, func(res *Resource) bool { return res.Group != rest[0].Group || res.Version != rest[0].Version })
		if n < 0 {
			n = len(rest)
		}
		all = append(all, rest[:n])
		rest = rest[n:]
	}
	return all
}

// RowsOf are the rows of one group version; nil when it is not served.
func (c *Catalog) RowsOf(group, version string) []*Resource {
	for _, gv := range c.GroupVersions() {
		if gv[0].Group == group && gv[0].Version == version {
			return gv
		}
	}
	return nil
}

// InProtobuf says that objects of the resource can be sent as protobuf.
func (res *Resource) InProtobuf() bool {
	return res.GoType != nil && reflect.PointerTo(res.GoType).Implements(reflect.TypeFor[protobuf.Message]())
}

// StoresAsIs says that a row serves the storage version: what it reads and writes again is not the poorer for it.
func (res *Resource) StoresAsIs() bool {
	return res.Conversion == nil && (res.Custom == nil || res.Custom.ToStorage == nil)
}

// AsStored is the row by which the server itself deletes objects and changes their metadata: it shows each in the version that it is
// stored in, and so needs no conversion webhook. For most types it is the row itself.
func (res *Resource) AsStored() *Resource {
	if c := res.Custom; c != nil && c.Verbatim != nil {
		return c.Verbatim
	}
	return res
}

// IsVerbatim says that a row is what AsStored returns for another one.
func (res *Resource) IsVerbatim() bool { return res.Custom != nil && res.Custom.Verbatim == res }

// Converts says that objects of the row may have to be converted by a webhook before they are shown.
func (res *Resource) Converts() bool {
	return res.Custom != nil && res.Custom.Webhook != nil && res.Custom.Verbatim != res
}

// StoredType is the Go type of the objects in the server's hands; nil for custom resources.
func (res *Resource) StoredType() reflect.Type {
	if res.Conversion != nil {
		return res.Conversion.stored
	}
	return res.GoType
}

// NewObject returns an empty object of the storage version.
func (res *Resource) NewObject() Object {
	t := res.StoredType()
	if t == nil {
		u := &unstructured.Unstructured{Object: map[string]any{}}
		u.SetGroupVersionKind(res.GroupVersionKind())
		return u
	}
	return newOf(t)
}

// newOf is a new object of a struct type.
func newOf(t reflect.Type) Object { return reflect.New(t).Interface().(Object) }

// PatchSchema is a value of the served version for strategic merge patches; nil for custom resources, which have none.
func (res *Resource) PatchSchema() any {
	if res.GoType == nil {
		return nil
	}
	return reflect.Zero(res.GoType).Interface()
}

// NamespacedName returns the namespace and name of an object's key, /group/resource/namespace/name.
func NamespacedName(key string) (namespace, name string) {
	slash := strings.LastIndexByte(key, '/')
	rest := key[:slash]
	return rest[strings.LastIndexByte(rest, '/')+1:], key[slash+1:]
}
