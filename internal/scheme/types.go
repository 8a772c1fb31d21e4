package scheme

// This file contains the table of the served types, and derives the names, keys, subresources and
// verbs from the rows.
//
// A row describes a resource at a served version. The table omits everything that the Go type of
// k8s.io/api declares: kind, singular name, lifecycle, JSON and protobuf encoding. In memory, the
// object is of the *storage* version and the kind and apiVersion are empty. Only unstructured
// custom resources contain both. The object is converted to and from a served version only at the edges:
//
//	body ──decode──▶ served type ──conversion.in──▶ object ──EncodeStored──▶ {"metadata":{…},…}        in the store
//	response ◀──prefix + served JSON ◀──conversion.out── object ◀──DecodeStored── {"metadata":{…},…}
//
// Nearly every row serves the storage version itself. In this case no conversion is necessary,
// and the stored bytes are appended to the prefix.
//
// The codec is in codec.go. The conversions between versions with different fields are in
// convert.go.

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

// Builtins is the table, sorted by group version in discovery order (see groupOrder). A row
// contains the traits, the plural name with the short names, and the subresources.
var Builtins = slices.Concat(
	GroupVersion("", "v1",
		Row[corev1.Binding](Namespaced|createOnly, "bindings", ""),
		Row[corev1.ComponentStatus](readOnly, "componentstatuses cs", ""),
		Row[corev1.ConfigMap](Namespaced, "configmaps cm", ""),
		Row[corev1.Endpoints](Namespaced, "endpoints ep", ""),
		Row[corev1.Event](Namespaced, "events ev", ""),
		Row[corev1.LimitRange](Namespaced, "limitranges limits", ""),
		Row[corev1.Namespace](noDeleteCollection, "namespaces ns", "finalize status"),
		Row[corev1.Node](0, "nodes no", "proxy status"),
		Row[corev1.PersistentVolumeClaim](Namespaced, "persistentvolumeclaims pvc", "status"),
		Row[corev1.PersistentVolume](0, "persistentvolumes pv", "status"),
		Row[corev1.Pod](Namespaced|inAll|HasGeneration, "pods po",
			"attach binding ephemeralcontainers eviction exec log portforward proxy resize status"),
		Row[corev1.PodTemplate](Namespaced|HasGeneration, "podtemplates", ""),
		Row[corev1.ReplicationController](Namespaced|inAll|HasGeneration, "replicationcontrollers rc", "scale status"),
		Row[corev1.ResourceQuota](Namespaced, "resourcequotas quota", "status"),
		Row[corev1.Secret](Namespaced, "secrets", ""),
		Row[corev1.ServiceAccount](Namespaced, "serviceaccounts sa", "token"),
		Row[corev1.Service](Namespaced|inAll, "services svc", "proxy status")),
	GroupVersion(apiregistrationv1.GroupName, "v1",
		Row[apiregistrationv1.APIService](InExtensions, "apiservices", "status")),
	GroupVersion("apps", "v1",
		Row[appsv1.ControllerRevision](Namespaced, "controllerrevisions", ""),
		Row[appsv1.DaemonSet](Namespaced|inAll|HasGeneration, "daemonsets ds", "status"),
		Row[appsv1.Deployment](Namespaced|inAll|HasGeneration, "deployments deploy", "scale status"),
		Row[appsv1.ReplicaSet](Namespaced|inAll|HasGeneration, "replicasets rs", "scale status"),
		Row[appsv1.StatefulSet](Namespaced|inAll|HasGeneration, "statefulsets sts", "scale status")),
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
		Row[autoscalingv2.HorizontalPodAutoscaler](Namespaced|inAll|HasGeneration, "horizontalpodautoscalers hpa", "status")),
	GroupVersion("autoscaling", "v1",
		Row[autoscalingv1.HorizontalPodAutoscaler](Namespaced|inAll|HasGeneration, "horizontalpodautoscalers hpa", "status").
			storedIn("autoscaling", converting[autoscalingv1.HorizontalPodAutoscaler, autoscalingv2.HorizontalPodAutoscaler]())),
	GroupVersion("batch", "v1",
		Row[batchv1.CronJob](Namespaced|inAll|HasGeneration, "cronjobs cj", "status"),
		Row[batchv1.Job](Namespaced|inAll|HasGeneration, "jobs", "status")),
	GroupVersion("batch", "v1beta1",
		Row[batchv1beta1.CronJob](Namespaced|inAll|HasGeneration, "cronjobs cj", "status").
			storedIn("batch", converting[batchv1beta1.CronJob, batchv1.CronJob]())),
	GroupVersion("certificates.k8s.io", "v1",
		Row[certificatesv1.CertificateSigningRequest](0, "certificatesigningrequests csr", "approval status"),
		Row[certificatesv1.ClusterTrustBundle](0, "clustertrustbundles", ""),
		Row[certificatesv1.PodCertificateRequest](Namespaced, "podcertificaterequests", "status")),
	GroupVersion("networking.k8s.io", "v1",
		Row[networkingv1.IngressClass](HasGeneration, "ingressclasses", ""),
		Row[networkingv1.Ingress](Namespaced|HasGeneration, "ingresses ing", "status"),
		Row[networkingv1.IPAddress](0, "ipaddresses ip", ""),
		Row[networkingv1.NetworkPolicy](Namespaced|HasGeneration, "networkpolicies netpol", ""),
		Row[networkingv1.ServiceCIDR](0, "servicecidrs", "status")),
	GroupVersion("policy", "v1",
		Row[policyv1.PodDisruptionBudget](Namespaced|HasGeneration, "poddisruptionbudgets pdb", "status")),
	GroupVersion("policy", "v1beta1",
		Row[policyv1beta1.PodDisruptionBudget](Namespaced|HasGeneration, "poddisruptionbudgets pdb", "status").
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
		Row[admissionregistrationv1.MutatingAdmissionPolicy](InExtensions|HasGeneration, "mutatingadmissionpolicies", ""),
		Row[admissionregistrationv1.MutatingAdmissionPolicyBinding](InExtensions|HasGeneration, "mutatingadmissionpolicybindings", ""),
		Row[admissionregistrationv1.MutatingWebhookConfiguration](InExtensions|HasGeneration, "mutatingwebhookconfigurations", ""),
		Row[admissionregistrationv1.ValidatingAdmissionPolicy](InExtensions|HasGeneration, "validatingadmissionpolicies", "status"),
		Row[admissionregistrationv1.ValidatingAdmissionPolicyBinding](InExtensions|HasGeneration, "validatingadmissionpolicybindings", ""),
		Row[admissionregistrationv1.ValidatingWebhookConfiguration](InExtensions|HasGeneration, "validatingwebhookconfigurations", "")),
	GroupVersion("scheduling.k8s.io", "v1",
		Row[schedulingv1.PriorityClass](HasGeneration, "priorityclasses pc", "")),
	GroupVersion("coordination.k8s.io", "v1",
		Row[coordinationv1.Lease](Namespaced, "leases", "")),
	GroupVersion("node.k8s.io", "v1",
		Row[nodev1.RuntimeClass](0, "runtimeclasses", "")),
	GroupVersion("discovery.k8s.io", "v1",
		Row[discoveryv1.EndpointSlice](Namespaced|HasGeneration, "endpointslices", "")),
	GroupVersion("resource.k8s.io", "v1",
		Row[resourcev1.DeviceClass](HasGeneration, "deviceclasses", ""),
		Row[resourcev1.DeviceTaintRule](HasGeneration, "devicetaintrules", "status"),
		Row[resourcev1.ResourceClaim](Namespaced, "resourceclaims", "status"),
		Row[resourcev1.ResourceClaimTemplate](Namespaced, "resourceclaimtemplates", ""),
		Row[resourcev1.ResourceSlice](HasGeneration, "resourceslices", "")),
	GroupVersion("flowcontrol.apiserver.k8s.io", "v1",
		Row[flowcontrolv1.FlowSchema](HasGeneration, "flowschemas", "status"),
		Row[flowcontrolv1.PriorityLevelConfiguration](HasGeneration, "prioritylevelconfigurations", "status")),
	GroupVersion("flowcontrol.apiserver.k8s.io", "v1beta3",
		Row[flowcontrolv1beta3.FlowSchema](HasGeneration, "flowschemas", "status").
			storedIn("flowcontrol.apiserver.k8s.io", converting[flowcontrolv1beta3.FlowSchema, flowcontrolv1.FlowSchema]()),
		Row[flowcontrolv1beta3.PriorityLevelConfiguration](HasGeneration, "prioritylevelconfigurations", "status").
			storedIn("flowcontrol.apiserver.k8s.io", converting[flowcontrolv1beta3.PriorityLevelConfiguration, flowcontrolv1.PriorityLevelConfiguration]())),
	GroupVersion("storagemigration.k8s.io", "v1",
		Row[storagemigrationv1.StorageVersionMigration](0, "storageversionmigrations", "status")),
)

// groupOrder is kube-apiserver's order of groups in discovery. Groups that are not listed follow,
// sorted by name.
var groupOrder = []string{"", "apiregistration.k8s.io", "apps", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io", "autoscaling", "batch",
	"certificates.k8s.io", "networking.k8s.io", "policy", "rbac.authorization.k8s.io", "storage.k8s.io", "admissionregistration.k8s.io",
	"apiextensions.k8s.io", "scheduling.k8s.io", "coordination.k8s.io", "node.k8s.io", "discovery.k8s.io", "resource.k8s.io",
	"flowcontrol.apiserver.k8s.io", "storagemigration.k8s.io"}

// SubresourceBodies maps the subresources whose body is not the parent object. If the kind starts
// with *, the kind of the parent is added, as in PodProxyOptions.
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

// SubresourceTypes contains the Go types if the body is an object.
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

// A Resource describes a resource at a served version, and is a row of the table. It must not be
// modified after it is added to a registry.
type Resource struct {
	Group, Version   string        // the served group and version; the core group is ""
	Kind             string        // kind of a single object
	ListKind         string        // kind of a list
	Plural, Singular string        // the plural name appears in paths
	ShortNames       []string      // for kubectl, as in po
	Categories       []string      // for kubectl, as in all
	Namespaced       bool          // objects belong to namespaces
	Verbs            []string      // create delete deletecollection get list patch update watch
	Subresources     []Subresource // in discovery order
	StorageGroup     string        // the group in the key, which is the same for both groups of Event
	GoType           reflect.Type  // struct type of the served version; nil for a custom resource
	Conversion       *Conversion   // nil if the served version is the storage version
	Generation       bool          // metadata.generation counts changes outside metadata and status
	Virtual          bool          // the objects are not stored, as for a review
	Prefix           string        // `"kind":"Pod","apiVersion":"v1",` precedes the stored members in responses
	Base             string        // `//pods/` is the common prefix of the resource's keys
	Deprecation      *Deprecation  // nil if the type is not deprecated
	Introduced       int           // minor version of Kubernetes that introduced the type; 0 for custom resources

	// Schema returns the OpenAPI v3 schema of a custom resource. nil means that any object is
	// valid. SchemaTag changes with the schema.
	Schema    func() (json.RawMessage, error)
	SchemaTag string

	Custom *CustomStrategy // nil for built-in types
}

// CustomStrategy is the part of request handling that is specific to custom resources and to
// CustomResourceDefinitions. The functions are set by the package that creates the row. If a
// function is nil, the default behavior applies. old is nil for a create; sub is "" or "status".
type CustomStrategy struct {
	Defaults func(obj Object) error // sets the default values of omitted fields
	// returns the object to store and ignores fields that this request may not change
	Prepare func(obj, old Object, sub string) Object
	// validates the object, including its metadata
	Validate     func(ctx context.Context, obj, old Object, sub string) field.ErrorList
	Warnings     func(obj, old Object) []string  // returns the texts of Warning headers
	MarkDeleting func(obj Object)                // marks an object when its deletion begins
	OnCommit     func(ctx context.Context) error // called after the object is written

	// The following fields are only set for custom resources.

	StorageVersion string          // version in which objects are stored
	Definition     string          // key of the definition; creates fail if it is missing
	Terminating    bool            // the definition is being deleted
	Replaced       <-chan struct{} // closed when the definition is changed or deleted, which ends watches
	Deprecation    string          // warning of a deprecated version
	// Objects are stored in the storage version, pruned and with default values. The schema at
	// the time of the write is used.
	Shape func(*unstructured.Unstructured) (unknown []error, err error)
	// the same for the result of an apply, except that nulls are not removed
	ShapeApplied func(*unstructured.Unstructured) error
	// reports whether Complete is not necessary, or returns an error for another version
	IsComplete func(stored []byte) (bool, error)
	Complete   func(*unstructured.Unstructured) error // updates a stored object to the current schema
	// converts to the storage version; nil if no conversion is needed
	ToStorage func(*unstructured.Unstructured) (*unstructured.Unstructured, error)
	Columns   func() []metav1.TableColumnDefinition // nil for the columns name and age
	Cells     func(obj Object, now time.Time) []any // returns the cells of one row
	// if set is not nil, Scale changes the replica count
	Scale func(u *unstructured.Unstructured, set *int32) (Scalable, error)
	// a cache for values that are computed from the schema
	Cache           func() *sync.Map
	ImplicitVersion string             // version of the stored objects that do not name their version
	Webhook         *WebhookConversion // nil if all versions have the same fields
	Verbatim        *Resource          // row for requests that change only metadata; see AsStored
	Selectable      []string           // fields for field selectors, as in spec.color
}

// A WebhookConversion converts objects between versions by a webhook. Read and Watch convert
// stored JSON to the version of the row and replace the documents in place, with a single call of
// the webhook. Errors are Statuses.
type WebhookConversion struct {
	Read func(ctx context.Context, docs [][]byte) error // for responses to GET, LIST and writes
	// the same for events, which are shared between watches
	Watch func(ctx context.Context, docs [][]byte) error
	// To converts an object to a version and prunes it by the schema of that version. If the
	// object already has that version, it is returned unchanged.
	To func(ctx context.Context, u *unstructured.Unstructured, version string) (*unstructured.Unstructured, error)
}

// A Scalable contains the fields of a Scale.
type Scalable struct {
	Replicas *int32 // spec.replicas, or nil if it is not set
	Status   int32  // status.replicas
	Selector string // the selector as a string
	Path     string // location of the count, as in .spec.replicas
}

// A Subresource is /status, /scale, /binding and so on. Its group and version default to the
// parent's.
type Subresource struct {
	Name                 string   // last segment of the path
	Group, Version, Kind string   // type of the body
	Verbs                []string // the verbs in discovery
}

// A Deprecation is the lifecycle that the methods of the Go type declare. Versions are {major,
// minor}. Removed is {0, 0} if no removal is planned.
type Deprecation struct {
	// the Kubernetes versions that deprecated and removed the type
	Deprecated, Removed [2]int
	// Replaced is the kind, or "" if there is no replacement
	ReplacementGroup, ReplacementVersion, Replaced string
}

// KubernetesVersion is the version of Kubernetes whose rules and types are linked into the
// server. go.mod requires the same version.
const (
	KubernetesVersion = "v1.37.2"
	kubernetesMinor   = 37
)

// MinorVersion returns the major and minor version of Kubernetes that the server implements.
func MinorVersion() [2]int { return [2]int{1, kubernetesMinor} }

// IsRemoved reports whether the type is not served by kube-apiserver any more.
func (d *Deprecation) IsRemoved() bool { return d.removedIn(kubernetesMinor) }

// removedIn reports whether a minor version of kube-apiserver does not serve the type any more.
func (d *Deprecation) removedIn(minor int) bool {
	return d != nil && d.Removed[0] == 1 && d.Removed[1] <= minor
}

// A Conversion converts between a served version and the storage version. Bodies are decoded into
// wire. in and Out may be nil.
type Conversion struct {
	wire, stored reflect.Type
	in, Out      func(Object) Object // in converts from served to stored, Out back
}

// A Trait is a property of the row.
type Trait uint

const (
	Namespaced         Trait = 1 << iota
	HasGeneration            // metadata.generation is maintained
	inAll                    // is in the category "all"
	InExtensions             // is in the category "api-extensions"
	createOnly               // virtual: a review that can only be created
	readOnly                 // virtual: the list is always empty
	noDeleteCollection       // lacks the verb deletecollection
)

// Row returns one row of the table for the Go type T. It only calls rowOf, because the compiler
// instantiates a generic function for each of the seventy types.
func Row[T any](traits Trait, names, subresources string) *Resource {
	return rowOf(reflect.TypeFor[T](), traits, names, subresources)
}

func rowOf(t reflect.Type, traits Trait, names, subresources string) *Resource {
	words := strings.Fields(names)
	res := &Resource{
		Kind: t.Name(), Plural: words[0], Singular: strings.ToLower(t.Name()), ShortNames: words[1:], GoType: t,
		Namespaced: traits&Namespaced != 0, Generation: traits&HasGeneration != 0, Virtual: traits&(createOnly|readOnly) != 0,
		Verbs: verbsOf(traits), Deprecation: lifecycleOf(reflect.New(t).Interface()), Introduced: introducedIn(reflect.New(t).Interface()),
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

// verbsOf returns the verbs in discovery order.
func verbsOf(traits Trait) []string {
	switch {
	case traits&createOnly != 0:
		return []string{"create"}
	case traits&readOnly != 0:
		return []string{"get", "list"}
	case traits&noDeleteCollection != 0:
		return []string{"create", "delete", "get", "list", "patch", "update", "watch"}
	}
	return []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
}

// SubresourceOf returns the subresource of that name. If it is not in SubresourceBodies, the body
// is the parent object.
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

// lifecycleOf reads the lifecycle methods that k8s.io/api generates for deprecated types.
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

// introducedIn returns the minor version that introduced a type, or 0 if the type does not declare
// it.
func introducedIn(goType any) int {
	if dated, ok := goType.(interface{ APILifecycleIntroduced() (int, int) }); ok {
		_, minor := dated.APILifecycleIntroduced()
		return minor
	}
	return 0
}

// storedIn declares that the row's objects are stored in another group or version.
func (res *Resource) storedIn(group string, c *Conversion) *Resource {
	res.StorageGroup, res.Conversion = group, c
	return res
}

// GroupVersion sets the group and version of the rows and returns them as a part of the table.
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

// derive computes the remaining fields once.
func (res *Resource) derive() {
	if res.Prefix != "" {
		return
	}
	res.ListKind = cmp.Or(res.ListKind, res.Kind+"List")
	res.Prefix = `"kind":"` + res.Kind + `","apiVersion":"` + res.APIVersion() + `",`
	if res.GoType == nil { // Kubernetes encodes unstructured objects in this order
		res.Prefix = `"apiVersion":"` + res.APIVersion() + `","kind":"` + res.Kind + `",`
	}
	res.Base = keyBase(res.StorageGroup, res.Plural)
}

func keyBase(group, plural string) string { return "/" + group + "/" + plural + "/" }

// APIVersion returns the group version, as in "v1" or "apps/v1".
func (res *Resource) APIVersion() string { return GroupVersionString(res.Group, res.Version) }

// GroupVersionString returns group/version, or only the version for the core group.
func GroupVersionString(group, version string) string {
	if group == "" {
		return version
	}
	return group + "/" + version
}

// GroupKind returns the served kind.
func (res *Resource) GroupKind() schema.GroupKind {
	return schema.GroupKind{Group: res.Group, Kind: res.Kind}
}

// GroupResource returns the group and the plural name, which errors contain.
func (res *Resource) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: res.Group, Resource: res.Plural}
}

// GroupVersionKind returns the served kind with the version.
func (res *Resource) GroupVersionKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: res.Group, Version: res.Version, Kind: res.Kind}
}

// Allows reports whether the resource has the verb.
func (res *Resource) Allows(verb string) bool { return slices.Contains(res.Verbs, verb) }

// Subresource returns the subresource of that name, or nil if it does not exist.
func (res *Resource) Subresource(name string) *Subresource {
	for i := range res.Subresources {
		if res.Subresources[i].Name == name {
			return &res.Subresources[i]
		}
	}
	return nil
}

// Key returns the key of an object, /group/resource/namespace/name. The namespace is "" if the
// resource is cluster-scoped.
func (res *Resource) Key(namespace, name string) string { return res.Base + namespace + "/" + name }

// Scope returns the namespace in an object's key, given the namespace of the request. They are
// different for a Namespace. The namespace of the request is used for authorization, but it is
// not part of the key.
func (res *Resource) Scope(namespace string) string {
	if !res.Namespaced {
		return ""
	}
	return namespace
}

// KeyPrefix returns the common prefix of the keys in a namespace, or of all keys if namespace is
// "".
func (res *Resource) KeyPrefix(namespace string) string {
	if namespace == "" {
		return res.Base
	}
	return res.Base + namespace + "/"
}

// etcdFolders maps the built-in types whose folder in etcd is not their plural name.
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

// EtcdFolder returns the folder in etcd, relative to kube-apiserver's prefix, that holds the
// type's objects.
func (res *Resource) EtcdFolder() string {
	switch folder := etcdFolders[res.Base]; {
	case folder != "":
		return folder
	case res.GoType == nil:
		return res.Group + "/" + res.Plural
	}
	return res.Plural
}

// SplitKey splits a key: base + namespace + "/" + name is the key again. ok is false for strings
// that Key never returns.
func SplitKey(key string) (base, namespace, name string, ok bool) {
	parts := strings.Split(key, "/")
	if len(parts) != 5 || parts[0] != "" || parts[2] == "" || parts[4] == "" {
		return "", "", "", false
	}
	return key[:len(parts[1])+len(parts[2])+3], parts[3], parts[4], true
}

// A Registry is the set of served resources. It is safe for concurrent use: lookups may run while
// custom resources are added and removed.
type Registry struct {
	Current atomic.Pointer[Catalog] // replaced as a whole
	builtin []*Resource
	mu      sync.Mutex // held while ReplaceCustom builds a catalog
}

// A Catalog is a state of the registry. It is immutable once it is current.
type Catalog struct {
	byPath map[resourcePath]*Resource
	Sorted []*Resource // by group, version and plural, in discovery order
	// storage versions of CRDs without served versions, because there may still be objects
	Unserved []*Resource
	memo     sync.Map // values derived from this state, by name; see GetOrBuild

	Replaced chan struct{} // closed when another catalog becomes current
}

type resourcePath struct{ group, version, plural string }

// NewRegistry returns a registry that serves the given built-in types (see [Served]), or those
// that are on by default if there are no arguments.
func NewRegistry(builtin ...*Resource) *Registry {
	if len(builtin) == 0 {
		builtin = Builtins
	}
	reg := &Registry{builtin: builtin}
	reg.ReplaceCustom(nil)
	return reg
}

// WithoutCustom returns a registry with the same built-in types and without custom resources.
func (reg *Registry) WithoutCustom() *Registry { return NewRegistry(reg.builtin...) }

// ReplaceCustom replaces all resources that are served in addition to the built-in ones. The
// registry owns the rows afterwards. A row is dropped if its path is already taken, because
// custom resources must not shadow built-in types. A custom resource is also dropped if its keys
// belong to a built-in type. unserved is only recorded in the catalog.
func (reg *Registry) ReplaceCustom(rows []*Resource, unserved ...*Resource) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	c := &Catalog{byPath: make(map[resourcePath]*Resource, len(reg.builtin)+len(rows)), Unserved: unserved, Replaced: make(chan struct{})}
	// whether a prefix of the keys is used by a type with a Go type
	typed := make(map[string]bool, len(reg.builtin)+1)
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

// compareRows sorts in discovery order: by groupOrder, then versions from the most stable and
// newest to the oldest, then by plural name.
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

// Lookup returns the resource with that group, version and plural name, or nil if it is not
// served.
func (reg *Registry) Lookup(group, version, plural string) *Resource {
	return reg.Current.Load().byPath[resourcePath{group, version, plural}]
}

// Stable returns the row of a built-in type at version v1, even if it is not served because the
// server emulates an earlier version of Kubernetes. The store may contain objects of the type.
func Stable(group, plural string) *Resource {
	i := slices.IndexFunc(Builtins, func(res *Resource) bool { return res.Group == group && res.Version == "v1" && res.Plural == plural })
	return Builtins[i]
}

// All returns every served resource in discovery order: the preferred version of a group first.
// The caller must not modify the slice.
func (reg *Registry) All() []*Resource { return reg.Current.Load().Sorted }

// GetOrBuild returns the result of build for this catalog and caches it under name. Concurrent
// callers may each call build; all receive the same result.
func (c *Catalog) GetOrBuild(name string, build func(*Catalog) []byte) []byte {
	if doc, ok := c.memo.Load(name); ok {
		return doc.([]byte)
	}
	doc, _ := c.memo.LoadOrStore(name, build(c))
	return doc.([]byte)
}

// GroupVersions splits the sorted rows by group version.
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

// RowsOf returns the rows of the group version, or nil if it is not served.
func (c *Catalog) RowsOf(group, version string) []*Resource {
	for _, gv := range c.GroupVersions() {
		if gv[0].Group == group && gv[0].Version == version {
			return gv
		}
	}
	return nil
}

// SupportsProtobuf reports whether objects of the resource can be sent as protobuf.
func (res *Resource) SupportsProtobuf() bool {
	return res.GoType != nil && reflect.PointerTo(res.GoType).Implements(reflect.TypeFor[protobuf.Message]())
}

// ServesStorageVersion reports whether the row serves the storage version, so that reading an
// object and writing it back loses no field.
func (res *Resource) ServesStorageVersion() bool {
	return res.Conversion == nil && (res.Custom == nil || res.Custom.ToStorage == nil)
}

// AsStored returns the row that is used if the server itself deletes objects or changes the
// metadata. It serves each object in its stored version and so never calls a conversion webhook.
// Most types return themselves.
func (res *Resource) AsStored() *Resource {
	if c := res.Custom; c != nil && c.Verbatim != nil {
		return c.Verbatim
	}
	return res
}

// IsVerbatim reports whether AsStored returns this row for another row.
func (res *Resource) IsVerbatim() bool { return res.Custom != nil && res.Custom.Verbatim == res }

// NeedsConversion reports whether a webhook may be called to convert the objects.
func (res *Resource) NeedsConversion() bool {
	return res.Custom != nil && res.Custom.Webhook != nil && res.Custom.Verbatim != res
}

// StoredType returns the Go type of objects in memory, or nil for custom resources.
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

// newOf returns a new object of a struct type.
func newOf(t reflect.Type) Object { return reflect.New(t).Interface().(Object) }

// PatchSchema returns a value of the served version for strategic merge patches, or nil for
// custom resources, which do not support them.
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
