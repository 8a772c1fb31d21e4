package strategy

// This file is the table: one row a resource that does anything differently from all others. A resource without a row, a custom resource
// among them, takes the common way throughout. What a row says has Kubernetes' words for it where there are any: the methods of
// rest.RESTCreateStrategy, RESTUpdateStrategy and RESTDeleteStrategy, and Store.ReturnDeletedObject.
//
// A row is found by its resource (strategyFor) before an object is in hand, and by the object's Go type (of) after: both are one look into a map.

import (
	"reflect"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"apilet/internal/kinds/defaults"
	"apilet/internal/request"
	"apilet/internal/scheme"
)

// A strategy is where one resource parts ways. A nil function goes the common way.
type strategy struct {
	allowCreateOnUpdate bool     // a PUT to a name that does not exist creates the object
	conditionalUpdate   bool     // an update has to name a resourceVersion
	returnsDeleted      bool     // a DELETE answers with the object that is gone
	orphansByDefault    bool     // dependents stay when a DELETE says nothing of them
	undeletable         []string // names that every cluster has to keep
	whyNot              string   // what is said to those who delete them

	goType       reflect.Type             // pointer to the struct type that the functions take; nil for a row without
	create       func(obj runtime.Object) // nil: the status becomes empty
	update       func(obj, old runtime.Object)
	status       func(obj, old runtime.Object)
	subresources map[string]func(sent, out runtime.Object) // writes into out, a copy of what is stored, what may be written
	requested    func(obj runtime.Object, by *request.User)
	canonicalize func(obj runtime.Object)                                      // completes what validation has seen without it
	named        func(obj runtime.Object, before string)                       // follows a generated name; before is the name until then
	counted      func(obj runtime.Object) map[string]string                    // metadata that a generation counts
	grace        func(obj runtime.Object, options *metav1.DeleteOptions) int64 // seconds; the deletion is marked first
	terminating  func(obj runtime.Object)                                      // marks it in place of a grace period
	full         func(obj runtime.Object) bool                                 // something in it has to go first
}

// strategyFor returns the row of a resource.
func strategyFor(res *scheme.Resource) *strategy {
	if row := table[res.Base]; row != nil {
		return row
	}
	return &common
}

// of returns the row of an object's type.
func of(obj runtime.Object) *strategy {
	if row := byType[reflect.TypeOf(obj)]; row != nil {
		return row
	}
	return &common
}

// common is the way of all resources without a row.
var common strategy

// table has the rows by what the keys of their resource start with.
var table = map[string]*strategy{
	"//endpoints/":              {allowCreateOnUpdate: true},
	"//events/":                 {allowCreateOnUpdate: true},
	"//limitranges/":            {allowCreateOnUpdate: true},
	"//podtemplates/":           {returnsDeleted: true},
	"//resourcequotas/":         {returnsDeleted: true},
	"//replicationcontrollers/": {orphansByDefault: true},
	"//namespaces/": {returnsDeleted: true, goType: reflect.TypeFor[*corev1.Namespace](),
		undeletable: []string{"default", "kube-system", "kube-public"}, whyNot: "this namespace may not be deleted",
		create: one(createNamespace), update: two(updateNamespace), named: func(obj runtime.Object, _ string) { defaults.LabelNamespace(obj.(*corev1.Namespace)) },
		subresources: map[string]func(sent, out runtime.Object){"finalize": two(finalize)},
		terminating:  one(terminateNamespace), full: namespaceFull},
	"//nodes/":             {goType: reflect.TypeFor[*corev1.Node](), create: one(createNode)},
	"//persistentvolumes/": {returnsDeleted: true, goType: reflect.TypeFor[*corev1.PersistentVolume](), create: one(createVolume), status: two(updateVolumeStatus)},
	"//persistentvolumeclaims/": {returnsDeleted: true, goType: reflect.TypeFor[*corev1.PersistentVolumeClaim](),
		create: one(createClaim), update: two(updateClaim)},
	"//pods/": {returnsDeleted: true, goType: reflect.TypeFor[*corev1.Pod](), create: one(preparePod), status: two(updatePodStatus),
		subresources: map[string]func(sent, out runtime.Object){"ephemeralcontainers": two(addEphemeralContainers), "resize": two(resize)},
		grace:        podGrace},
	"//serviceaccounts/": {returnsDeleted: true, goType: reflect.TypeFor[*corev1.ServiceAccount](), create: one(nameSecretsOnly),
		update: func(obj, _ runtime.Object) { nameSecretsOnly(obj.(*corev1.ServiceAccount)) }},
	"//services/": {allowCreateOnUpdate: true, returnsDeleted: true, goType: reflect.TypeFor[*corev1.Service](),
		create: one(createService), update: two(updateService)},

	"/apps/daemonsets/": {goType: reflect.TypeFor[*appsv1.DaemonSet](), create: one(createDaemonSet), update: two(countTemplate), status: two(countTemplate)},
	"/apps/deployments/": {goType: reflect.TypeFor[*appsv1.Deployment](), status: two(updateDeploymentStatus),
		counted: func(obj runtime.Object) map[string]string { return obj.(*appsv1.Deployment).Annotations }},
	"/batch/jobs/": {orphansByDefault: true, goType: reflect.TypeFor[*batchv1.Job](), create: one(createJob), named: renameJob,
		canonicalize: one(labelJob)},
	"/certificates.k8s.io/certificatesigningrequests/": {goType: reflect.TypeFor[*certificatesv1.CertificateSigningRequest](),
		create: one(createSigningRequest), update: two(updateSigningRequest), status: two(updateSigningRequestStatus),
		subresources: map[string]func(sent, out runtime.Object){"approval": two(approve)},
		requested: func(obj runtime.Object, by *request.User) {
			nameRequester(obj.(*certificatesv1.CertificateSigningRequest), by)
		}},
	"/certificates.k8s.io/clustertrustbundles/":    {conditionalUpdate: true},
	"/certificates.k8s.io/podcertificaterequests/": {conditionalUpdate: true},
	"/coordination.k8s.io/leases/": {allowCreateOnUpdate: true, conditionalUpdate: true, goType: reflect.TypeFor[*coordinationv1.Lease](),
		create: one(createLease), update: two(updateLease)},
	"/discovery.k8s.io/endpointslices/": {goType: reflect.TypeFor[*discoveryv1.EndpointSlice](),
		counted: func(obj runtime.Object) map[string]string { return obj.(*discoveryv1.EndpointSlice).Labels }},
	"/flowcontrol.apiserver.k8s.io/flowschemas/":                 {goType: reflect.TypeFor[*flowcontrolv1.FlowSchema](), status: statusAlone},
	"/flowcontrol.apiserver.k8s.io/prioritylevelconfigurations/": {goType: reflect.TypeFor[*flowcontrolv1.PriorityLevelConfiguration](), status: statusAlone},
	"/node.k8s.io/runtimeclasses/":                               {allowCreateOnUpdate: true, conditionalUpdate: true},
	"/policy/poddisruptionbudgets/":                              {conditionalUpdate: true},
	PriorityClasses:                                              {undeletable: []string{SystemNodeCritical, SystemClusterCritical}, whyNot: "this is a system priority class and cannot be deleted"},

	"/rbac.authorization.k8s.io/clusterrolebindings/": {allowCreateOnUpdate: true},
	"/rbac.authorization.k8s.io/clusterroles/":        {allowCreateOnUpdate: true},
	"/rbac.authorization.k8s.io/rolebindings/":        {allowCreateOnUpdate: true},
	"/rbac.authorization.k8s.io/roles/":               {allowCreateOnUpdate: true},

	"/resource.k8s.io/deviceclasses/":          {returnsDeleted: true},
	"/resource.k8s.io/devicetaintrules/":       {conditionalUpdate: true, returnsDeleted: true, goType: reflect.TypeFor[*resourcev1.DeviceTaintRule](), update: two(updateTaintRule)},
	"/resource.k8s.io/resourceclaims/":         {returnsDeleted: true},
	"/resource.k8s.io/resourceclaimtemplates/": {returnsDeleted: true},
	"/resource.k8s.io/resourceslices/":         {returnsDeleted: true},

	"/storage.k8s.io/csidrivers/":              {conditionalUpdate: true, returnsDeleted: true},
	"/storage.k8s.io/csinodes/":                {conditionalUpdate: true, returnsDeleted: true},
	"/storage.k8s.io/csistoragecapacities/":    {conditionalUpdate: true},
	"/storage.k8s.io/storageclasses/":          {returnsDeleted: true},
	"/storage.k8s.io/volumeattachments/":       {conditionalUpdate: true, returnsDeleted: true},
	"/storage.k8s.io/volumeattributesclasses/": {returnsDeleted: true},

	"/storagemigration.k8s.io/storageversionmigrations/": {conditionalUpdate: true},

	"/admissionregistration.k8s.io/mutatingadmissionpolicies/":         {conditionalUpdate: true},
	"/admissionregistration.k8s.io/mutatingadmissionpolicybindings/":   {conditionalUpdate: true},
	"/admissionregistration.k8s.io/mutatingwebhookconfigurations/":     {conditionalUpdate: true},
	"/admissionregistration.k8s.io/validatingadmissionpolicies/":       {conditionalUpdate: true},
	"/admissionregistration.k8s.io/validatingadmissionpolicybindings/": {conditionalUpdate: true},
	"/admissionregistration.k8s.io/validatingwebhookconfigurations/":   {conditionalUpdate: true},
	"/apiextensions.k8s.io/customresourcedefinitions/":                 {conditionalUpdate: true},
	"/apiregistration.k8s.io/apiservices/": {conditionalUpdate: true, goType: reflect.TypeFor[*apiregistrationv1.APIService](),
		create: one(createAPIService), update: two(updateAPIService), status: two(updateAPIServiceStatus)},
}

// byType has the rows with functions by the Go type that these take.
var byType = func() map[reflect.Type]*strategy {
	rows := map[reflect.Type]*strategy{}
	for _, row := range table {
		if row.goType != nil {
			rows[row.goType] = row
		}
	}
	return rows
}()

// one is a function of one type's objects as one of any.
func one[T runtime.Object](f func(T)) func(runtime.Object) {
	return func(obj runtime.Object) { f(obj.(T)) }
}

func two[T runtime.Object](f func(obj, old T)) func(obj, old runtime.Object) {
	return func(obj, old runtime.Object) { f(obj.(T), old.(T)) }
}

// PriorityClasses is what the keys of PriorityClasses start with; the name follows.
const PriorityClasses = "/scheduling.k8s.io/priorityclasses/"

// The PriorityClasses that every cluster has.
const (
	SystemNodeCritical    = "system-node-critical"
	SystemClusterCritical = "system-cluster-critical"
)
