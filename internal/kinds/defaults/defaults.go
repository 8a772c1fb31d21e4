// Package defaults fills in what a built-in object has without asking for it.
//
//	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "nginx"}}}}
//	defaults.Set(pod) // restartPolicy Always, dnsPolicy ClusterFirst, imagePullPolicy Always (no tag means latest), ...
//
// [Set] takes whatever is read, from a client or from the store, so that a typed client never meets a nil where kube-apiserver has a value.
// The rules are those of k8s.io/kubernetes, pkg/apis/GROUP/VERSION/defaults.go, and of the conversions that fill in what an older version had no
// field for; each function here is the SetDefaults_Type of that name.
//
// Two helpers make most of it a table: Or(&field, value) fills a zero value, OrNew(&field, value) a nil pointer. A rule that depends on
// another field stands after the rule of that field, in the order in which Kubernetes' generated code calls them.
//
// Invariants: Set changes no field that has a value, reads nothing but the object, and doing it twice changes nothing.
package defaults

import (
	"encoding/json"
	"reflect"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	batchv1beta1 "k8s.io/api/batch/v1beta1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	flowcontrolv1beta3 "k8s.io/api/flowcontrol/v1beta3"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	quantities "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"apilet/internal/kinds/internalversion"
	"apilet/internal/scheme"
)

// Set fills in what kube-apiserver fills in for the built-in types: fields that typed clients read without a nil check.
// Kinds without a line here have no defaults.
func Set(obj runtime.Object) {
	switch o := obj.(type) {
	case *corev1.Pod:
		defaultPod(o)
	case *corev1.PodTemplate:
		defaultTemplate(&o.Template)
	case *corev1.ReplicationController:
		defaultReplicationController(o)
	case *appsv1.Deployment:
		defaultDeployment(o)
	case *appsv1.ReplicaSet:
		OrNew(&o.Spec.Replicas, 1)
		defaultTemplate(&o.Spec.Template)
	case *appsv1.StatefulSet:
		defaultStatefulSet(o)
	case *appsv1.DaemonSet:
		defaultDaemonSet(o)
	case *batchv1.Job:
		defaultJobSpec(&o.Spec)
		defaultJob(o)
	case *batchv1.CronJob:
		defaultCronJob(o)
	case *corev1.Service:
		defaultService(o)
	case *discoveryv1.EndpointSlice:
		for i := range o.Ports {
			OrNew(&o.Ports[i].Name, "")
			OrNew(&o.Ports[i].Protocol, corev1.ProtocolTCP)
		}
	case *networkingv1.NetworkPolicy:
		defaultNetworkPolicy(o)
	case *networkingv1.IngressClass:
		if o.Spec.Parameters != nil {
			OrNew(&o.Spec.Parameters.Scope, networkingv1.IngressClassParametersReferenceScopeCluster)
		}
	case *autoscalingv1.HorizontalPodAutoscaler:
		OrNew(&o.Spec.MinReplicas, 1)
		if o.Annotations["autoscaling.alpha.kubernetes.io/metrics"] == "" { // v2 metrics that v1 has no field for
			OrNew(&o.Spec.TargetCPUUtilizationPercentage, 80)
		}
	case *autoscalingv2.HorizontalPodAutoscaler:
		defaultAutoscaler(o)
	case *apiregistrationv1.APIService:
		defaultAPIService(o)
	default:
		defaultCluster(obj)
		defaultPolicy(obj)
		defaultDeprecated(obj)
	}
}

// ZeroShares is how v1beta3, whose shares are no pointer, tells a zero that is meant from one left out.
const ZeroShares = flowcontrolv1beta3.PriorityLevelPreserveZeroConcurrencySharesKey

// successors are the stable kinds of deprecated versions that look the same on the wire.
var successors = map[reflect.Type]func() runtime.Object{
	reflect.TypeFor[*batchv1beta1.CronJob]():                          func() runtime.Object { return &batchv1.CronJob{} },
	reflect.TypeFor[*policyv1beta1.PodDisruptionBudget]():             func() runtime.Object { return &policyv1.PodDisruptionBudget{} },
	reflect.TypeFor[*flowcontrolv1beta3.FlowSchema]():                 func() runtime.Object { return &flowcontrolv1.FlowSchema{} },
	reflect.TypeFor[*flowcontrolv1beta3.PriorityLevelConfiguration](): func() runtime.Object { return &flowcontrolv1.PriorityLevelConfiguration{} },
}

// StableForm is an object of a deprecated version as the kind that followed it; any other object is its own stable form.
func StableForm(obj runtime.Object) runtime.Object {
	successor := successors[reflect.TypeOf(obj)]
	if successor == nil {
		return obj
	}
	stable := successor()
	rewrite(obj, stable)
	if level, ok := stable.(*flowcontrolv1.PriorityLevelConfiguration); ok {
		limited, meant := level.Spec.Limited, metav1.HasAnnotation(level.ObjectMeta, ZeroShares)
		delete(level.Annotations, ZeroShares)
		if limited != nil && *limited.NominalConcurrencyShares == 0 && !meant {
			limited.NominalConcurrencyShares = nil
		}
	}
	return stable
}

// rewrite makes one object what another is on the wire.
func rewrite(from, to runtime.Object) {
	reflect.ValueOf(to).Elem().SetZero()
	text, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(text, to)
	}
	if err != nil {
		panic(err) // the types are Kubernetes' own and alike
	}
}

func defaultDeprecated(obj runtime.Object) {
	stable := StableForm(obj)
	if stable == obj {
		return
	}
	Set(stable)
	if level, ok := stable.(*flowcontrolv1.PriorityLevelConfiguration); ok && level.Spec.Limited != nil && *level.Spec.Limited.NominalConcurrencyShares == 0 {
		metav1.SetMetaDataAnnotation(&level.ObjectMeta, ZeroShares, "")
	}
	rewrite(stable, obj)
}

// defaultCluster is for the small kinds of core, storage and scheduling.
func defaultCluster(obj runtime.Object) {
	switch o := obj.(type) {
	case *corev1.Secret:
		Or(&o.Type, corev1.SecretTypeOpaque)
		mergeStringData(o)
	case *corev1.ConfigMap:
		fillNulls(o.BinaryData)
	case *corev1.Namespace:
		Or(&o.Status.Phase, corev1.NamespaceActive)
		if o.Name != "" { // a generated name is labelled by strategy.NameNew
			LabelNamespace(o)
		}
	case *corev1.Node:
		defaultNode(o)
	case *corev1.Endpoints:
		for i := range o.Subsets {
			for j := range o.Subsets[i].Ports {
				Or(&o.Subsets[i].Ports[j].Protocol, corev1.ProtocolTCP)
			}
		}
	case *corev1.PersistentVolume:
		defaultPersistentVolume(o)
	case *corev1.PersistentVolumeClaim:
		defaultClaim(o)
	case *corev1.LimitRange:
		for i := range o.Spec.Limits {
			defaultLimits(&o.Spec.Limits[i])
		}
	case *corev1.ResourceQuota:
		roundQuantities(o.Spec.Hard, o.Status.Hard, o.Status.Used)
	case *storagev1.StorageClass:
		OrNew(&o.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)
		OrNew(&o.VolumeBindingMode, storagev1.VolumeBindingImmediate)
	case *storagev1.CSIDriver:
		defaultCSIDriver(&o.Spec)
	case *storagev1.VolumeAttachment:
		if pv := o.Spec.Source.InlineVolumeSpec; pv != nil {
			defaultVolumeSpec(pv)
		}
	case *schedulingv1.PriorityClass:
		OrNew(&o.PreemptionPolicy, corev1.PreemptLowerPriority)
	case *resourcev1.ResourceClaim:
		defaultDevices(&o.Spec.Devices)
	case *resourcev1.ResourceClaimTemplate:
		defaultDevices(&o.Spec.Spec.Devices)
	case *resourcev1.DeviceTaintRule, *certificatesv1.PodCertificateRequest:
		internalversion.Default(o)
	}
}

// defaultPolicy is for the kinds that tell the API server what to do.
func defaultPolicy(obj runtime.Object) {
	switch o := obj.(type) {
	case *rbacv1.RoleBinding:
		Or(&o.RoleRef.APIGroup, rbacv1.GroupName)
		defaultSubjects(o.Subjects)
	case *rbacv1.ClusterRoleBinding:
		Or(&o.RoleRef.APIGroup, rbacv1.GroupName)
		defaultSubjects(o.Subjects)
	case *admissionv1.ValidatingWebhookConfiguration:
		for i := range o.Webhooks {
			defaultValidatingWebhook(&o.Webhooks[i])
		}
	case *admissionv1.MutatingWebhookConfiguration:
		for i := range o.Webhooks {
			defaultMutatingWebhook(&o.Webhooks[i])
		}
	case *admissionv1.ValidatingAdmissionPolicy:
		OrNew(&o.Spec.FailurePolicy, admissionv1.Fail)
		defaultMatchResources(o.Spec.MatchConstraints)
	case *admissionv1.ValidatingAdmissionPolicyBinding:
		defaultMatchResources(o.Spec.MatchResources)
	case *admissionv1.MutatingAdmissionPolicy:
		OrNew(&o.Spec.FailurePolicy, admissionv1.Fail)
		defaultMatchResources(o.Spec.MatchConstraints)
	case *admissionv1.MutatingAdmissionPolicyBinding:
		defaultMatchResources(o.Spec.MatchResources)
	case *flowcontrolv1.FlowSchema:
		Or(&o.Spec.MatchingPrecedence, 1000)
	case *flowcontrolv1.PriorityLevelConfiguration:
		defaultPriorityLevel(&o.Spec)
	}
}

// Or fills a zero value.
func Or[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// OrNew fills a nil pointer.
func OrNew[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

// DropEmptyLists makes the empty lists nil that a type encodes even if they are empty. Kubernetes stores protobuf, which has no empty lists, and
// therefore returns null. The writer owns the field all the same, so that this comes after the managedFields are written.
func DropEmptyLists(obj runtime.Object) {
	switch o := obj.(type) {
	case *corev1.LimitRange:
		dropEmpty(&o.Spec.Limits)
	case *corev1.Node:
		for i := range o.Status.Images {
			dropEmpty(&o.Status.Images[i].Names)
		}
	case *autoscalingv2.HorizontalPodAutoscaler:
		dropEmpty(&o.Status.CurrentMetrics)
	case *discoveryv1.EndpointSlice:
		dropEmpty(&o.Endpoints)
		dropEmpty(&o.Ports)
	case *rbacv1.Role:
		dropEmpty(&o.Rules)
	case *rbacv1.ClusterRole:
		dropEmpty(&o.Rules)
	case *storagev1.CSINode:
		dropEmpty(&o.Spec.Drivers)
		for i := range o.Spec.Drivers {
			dropEmpty(&o.Spec.Drivers[i].TopologyKeys)
		}
	}
}

func dropEmpty[T any](list *[]T) {
	if len(*list) == 0 {
		*list = nil
	}
}

// ---- pods ----

// defaultPod has more than a template gets: a template must not change when the server's version does.
func defaultPod(pod *corev1.Pod) {
	defaultPodSpec(&pod.Spec)
	for i := range pod.Spec.InitContainers {
		requestLimits(&pod.Spec.InitContainers[i].Resources)
	}
	for i := range pod.Spec.Containers {
		requestLimits(&pod.Spec.Containers[i].Resources)
	}
	if pod.Spec.Resources != nil {
		defaultPodLimits(&pod.Spec)
		defaultPodRequests(&pod.Spec)
	}
	OrNew(&pod.Spec.EnableServiceLinks, corev1.DefaultEnableServiceLinks)
	if pod.Spec.HostNetwork {
		openHostPorts(pod.Spec.InitContainers)
		openHostPorts(pod.Spec.Containers)
	}
	if grace := pod.Spec.TerminationGracePeriodSeconds; grace != nil && *grace < 0 {
		*grace = 1
	}
	dropInitAnnotations(&pod.ObjectMeta)
	defaultPodIPs(&pod.Status)
}

// DefaultStatus fills in what a client left out of a status.
func DefaultStatus(obj scheme.Object) {
	switch o := obj.(type) {
	case *corev1.Pod:
		dropInitAnnotations(&o.ObjectMeta)
		defaultPodIPs(&o.Status)
		for _, list := range [...][]corev1.ContainerStatus{o.Status.ContainerStatuses, o.Status.InitContainerStatuses, o.Status.EphemeralContainerStatuses} {
			defaultContainerStatuses(list)
		}
	case *corev1.Node:
		defaultNode(o)
	case *corev1.Namespace:
		Or(&o.Status.Phase, corev1.NamespaceActive)
		LabelNamespace(o)
	case *corev1.PersistentVolume:
		Or(&o.Status.Phase, corev1.VolumePending)
	case *corev1.PersistentVolumeClaim:
		Or(&o.Status.Phase, corev1.ClaimPending)
		roundQuantities(o.Status.Capacity, o.Status.AllocatedResources)
	case *corev1.ResourceQuota:
		roundQuantities(o.Status.Hard, o.Status.Used)
	case *corev1.Service:
		if o.Spec.Type == corev1.ServiceTypeLoadBalancer { // as the request has it
			defaultBalancerModes(o)
		}
	}
}

func defaultContainerStatuses(list []corev1.ContainerStatus) {
	for i := range list {
		roundQuantities(list[i].AllocatedResources)
		if r := list[i].Resources; r != nil {
			roundQuantities(r.Limits, r.Requests)
		}
	}
}

// defaultPodIPs makes the first of a pod's addresses the same in the old field and in the new one; the old one wins.
func defaultPodIPs(status *corev1.PodStatus) {
	switch ips := status.PodIPs; {
	case status.PodIP == "" && len(ips) > 0:
		status.PodIP = ips[0].IP
	case status.PodIP != "" && (len(ips) == 0 || ips[0].IP != status.PodIP):
		status.PodIPs = []corev1.PodIP{{IP: status.PodIP}}
	}
}

func defaultTemplate(template *corev1.PodTemplateSpec) {
	dropInitAnnotations(&template.ObjectMeta)
	defaultPodSpec(&template.Spec)
}

// dropInitAnnotations removes what init containers were called before they had a field.
func dropInitAnnotations(meta *metav1.ObjectMeta) {
	if len(meta.Annotations) == 0 {
		return
	}
	for _, stage := range [...]string{"alpha", "beta"} {
		delete(meta.Annotations, "pod."+stage+".kubernetes.io/init-containers")
		delete(meta.Annotations, "pod."+stage+".kubernetes.io/init-container-statuses")
	}
}

func defaultPodSpec(spec *corev1.PodSpec) {
	Or(&spec.DNSPolicy, corev1.DNSClusterFirst)
	Or(&spec.RestartPolicy, corev1.RestartPolicyAlways)
	Or(&spec.SchedulerName, corev1.DefaultSchedulerName)
	OrNew(&spec.SecurityContext, corev1.PodSecurityContext{})
	OrNew(&spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	Or(&spec.ServiceAccountName, spec.DeprecatedServiceAccount)
	spec.DeprecatedServiceAccount = spec.ServiceAccountName
	roundQuantities(spec.Overhead)
	if spec.Resources != nil {
		roundQuantities(spec.Resources.Limits, spec.Resources.Requests)
	}
	for i := range spec.Volumes {
		defaultVolume(&spec.Volumes[i])
	}
	for i := range spec.InitContainers {
		defaultContainer(&spec.InitContainers[i])
	}
	for i := range spec.Containers {
		defaultContainer(&spec.Containers[i])
	}
	for i := range spec.EphemeralContainers {
		defaultContainer((*corev1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
}

func defaultContainer(c *corev1.Container) {
	Or(&c.ImagePullPolicy, pullPolicy(c.Image))
	Or(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	Or(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	for i := range c.Ports {
		Or(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil {
			defaultFieldRef(from.FieldRef)
			if from.FileKeyRef != nil {
				OrNew(&from.FileKeyRef.Optional, false)
			}
		}
	}
	roundQuantities(c.Resources.Limits, c.Resources.Requests)
	for _, probe := range [...]*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if probe != nil {
			defaultProbe(probe)
		}
	}
	if c.Lifecycle != nil {
		for _, handler := range [...]*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if handler != nil {
				defaultHTTPGet(handler.HTTPGet)
			}
		}
	}
}

func defaultProbe(probe *corev1.Probe) {
	Or(&probe.TimeoutSeconds, 1)
	Or(&probe.PeriodSeconds, 10)
	Or(&probe.SuccessThreshold, 1)
	Or(&probe.FailureThreshold, 3)
	defaultHTTPGet(probe.HTTPGet)
	if probe.GRPC != nil {
		OrNew(&probe.GRPC.Service, "")
	}
}

func defaultHTTPGet(get *corev1.HTTPGetAction) {
	if get != nil {
		Or(&get.Path, "/")
		Or(&get.Scheme, corev1.URISchemeHTTP)
	}
}

func defaultFieldRef(ref *corev1.ObjectFieldSelector) {
	if ref != nil {
		Or(&ref.APIVersion, "v1")
	}
}

// pullPolicy of an image: what may change under its tag is pulled always.
func pullPolicy(image string) corev1.PullPolicy {
	if imageTag(image) == "latest" {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

// imageTag is "latest" for a well-formed image without tag and digest, "" for one that cannot be read: its refusal is not ours.
func imageTag(image string) string {
	name, _, digested := strings.Cut(image, "@")
	tag := ""
	if colon := strings.LastIndexByte(name, ':'); colon > strings.LastIndexByte(name, '/') {
		name, tag = name[:colon], name[colon+1:]
		if tag == "" {
			return ""
		}
	}
	if domain, path, ok := strings.Cut(name, "/"); ok && (strings.ContainsAny(domain, ".:") || domain == "localhost" || domain != strings.ToLower(domain)) {
		name = path
	}
	readable := name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("._-/", r)
	})
	switch {
	case !readable:
		return ""
	case tag == "" && !digested:
		return "latest"
	}
	return tag
}

// requestLimits makes a limit without a request its own request.
func requestLimits(r *corev1.ResourceRequirements) {
	if r.Limits == nil {
		return
	}
	if r.Requests == nil {
		r.Requests = make(corev1.ResourceList, len(r.Limits))
	}
	fillQuantities(r.Requests, r.Limits)
}

// fillQuantities copies what only from has.
func fillQuantities(to, from corev1.ResourceList) {
	for name, quantity := range from {
		if _, ok := to[name]; !ok {
			to[name] = quantity.DeepCopy()
		}
	}
}

// roundQuantities rounds up to thousandths, the finest that Kubernetes keeps.
func roundQuantities(lists ...corev1.ResourceList) {
	for _, list := range lists {
		for name, quantity := range list {
			if !quantity.RoundUp(quantities.Milli) {
				list[name] = quantity
			}
		}
	}
}

func openHostPorts(containers []corev1.Container) {
	for i := range containers {
		for j := range containers[i].Ports {
			Or(&containers[i].Ports[j].HostPort, containers[i].Ports[j].ContainerPort)
		}
	}
}

// defaultPodLimits gives a pod with resources of its own the huge pages that its containers limit.
func defaultPodLimits(spec *corev1.PodSpec) {
	own := spec.Resources
	if len(own.Limits) == 0 && len(own.Requests) == 0 {
		return
	}
	for name, sum := range SumContainers(spec, func(r *corev1.ResourceRequirements) corev1.ResourceList { return r.Limits }) {
		_, requested := own.Requests[name]
		if !requested && strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			if own.Limits == nil {
				own.Limits = corev1.ResourceList{}
			}
			fillQuantities(own.Limits, corev1.ResourceList{name: sum})
		}
	}
}

// defaultPodRequests gives a pod with limits of its own what its containers request, or else those limits.
func defaultPodRequests(spec *corev1.PodSpec) {
	own := spec.Resources
	if len(own.Limits) == 0 {
		return
	}
	if own.Requests == nil {
		own.Requests = corev1.ResourceList{}
	}
	for name, sum := range SumContainers(spec, func(r *corev1.ResourceRequirements) corev1.ResourceList { return r.Requests }) {
		if name == corev1.ResourceCPU || name == corev1.ResourceMemory {
			fillQuantities(own.Requests, corev1.ResourceList{name: sum})
		}
	}
	for name, limit := range own.Limits {
		if IsPodLevelResource(name) {
			fillQuantities(own.Requests, corev1.ResourceList{name: limit})
		}
	}
	if len(own.Requests) == 0 {
		own.Requests = nil
	}
}

// IsPodLevelResource says that a pod may ask for a resource as a whole: cpu, memory, huge pages.
func IsPodLevelResource(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// SumContainers is the most that a pod's containers use at one time: each init container runs alone but for the sidecars started
// before it, the others run together with all sidecars.
func SumContainers(spec *corev1.PodSpec, pick func(*corev1.ResourceRequirements) corev1.ResourceList) corev1.ResourceList {
	sum, sidecars, peak := corev1.ResourceList{}, corev1.ResourceList{}, corev1.ResourceList{}
	for i := range spec.Containers {
		AddQuantities(sum, pick(&spec.Containers[i].Resources))
	}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		now := pick(&c.Resources)
		if IsSidecar(c) {
			AddQuantities(sum, now)
			AddQuantities(sidecars, now)
			now = sidecars
		} else {
			now = now.DeepCopy()
			if now == nil {
				continue
			}
			AddQuantities(now, sidecars)
		}
		maxQuantities(peak, now)
	}
	maxQuantities(sum, peak)
	return sum
}

// IsSidecar says that an init container runs as long as the pod: its restartPolicy is Always.
func IsSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// AddQuantities adds more to what to has, resource by resource.
func AddQuantities(to, more corev1.ResourceList) {
	for name, quantity := range more {
		sum := quantity.DeepCopy()
		if old, ok := to[name]; ok {
			sum.Add(old)
		}
		to[name] = sum
	}
}

func maxQuantities(to, other corev1.ResourceList) {
	for name, quantity := range other {
		if old, ok := to[name]; !ok || quantity.Cmp(old) > 0 {
			to[name] = quantity.DeepCopy()
		}
	}
}

// ---- volumes ----

func defaultVolume(v *corev1.Volume) {
	if v.VolumeSource == (corev1.VolumeSource{}) {
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	switch {
	case v.ConfigMap != nil:
		OrNew(&v.ConfigMap.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode)
	case v.Secret != nil:
		OrNew(&v.Secret.DefaultMode, corev1.SecretVolumeSourceDefaultMode)
	case v.HostPath != nil:
		OrNew(&v.HostPath.Type, corev1.HostPathUnset)
	case v.Image != nil:
		Or(&v.Image.PullPolicy, pullPolicy(v.Image.Reference))
	case v.Ephemeral != nil:
		if v.Ephemeral.VolumeClaimTemplate != nil {
			defaultClaimSpec(&v.Ephemeral.VolumeClaimTemplate.Spec)
		}
	case v.Projected != nil:
		OrNew(&v.Projected.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)
		for i := range v.Projected.Sources {
			defaultProjection(&v.Projected.Sources[i])
		}
	case v.DownwardAPI != nil:
		OrNew(&v.DownwardAPI.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
		for i := range v.DownwardAPI.Items {
			defaultFieldRef(v.DownwardAPI.Items[i].FieldRef)
		}
	case v.ISCSI != nil:
		Or(&v.ISCSI.ISCSIInterface, "default")
	case v.AzureDisk != nil:
		defaultAzureDisk(v.AzureDisk)
	case v.RBD != nil:
		defaultRBD(&v.RBD.RBDPool, &v.RBD.RadosUser, &v.RBD.Keyring)
	case v.ScaleIO != nil:
		Or(&v.ScaleIO.StorageMode, "ThinProvisioned")
		Or(&v.ScaleIO.FSType, "xfs")
	}
}

func defaultProjection(p *corev1.VolumeProjection) {
	if p.ServiceAccountToken != nil {
		OrNew(&p.ServiceAccountToken.ExpirationSeconds, 3600)
	}
	if p.DownwardAPI != nil {
		for i := range p.DownwardAPI.Items {
			defaultFieldRef(p.DownwardAPI.Items[i].FieldRef)
		}
	}
}

func defaultAzureDisk(disk *corev1.AzureDiskVolumeSource) {
	OrNew(&disk.CachingMode, corev1.AzureDataDiskCachingReadWrite)
	OrNew(&disk.Kind, corev1.AzureSharedBlobDisk)
	OrNew(&disk.FSType, "ext4")
	OrNew(&disk.ReadOnly, false)
}

func defaultRBD(pool, user, keyring *string) {
	Or(pool, "rbd")
	Or(user, "admin")
	Or(keyring, "/etc/ceph/keyring")
}

func defaultPersistentVolume(pv *corev1.PersistentVolume) {
	Or(&pv.Status.Phase, corev1.VolumePending)
	Or(&pv.Spec.PersistentVolumeReclaimPolicy, corev1.PersistentVolumeReclaimRetain)
	OrNew(&pv.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	defaultVolumeSpec(&pv.Spec)
}

func defaultVolumeSpec(spec *corev1.PersistentVolumeSpec) {
	roundQuantities(spec.Capacity)
	switch {
	case spec.HostPath != nil:
		OrNew(&spec.HostPath.Type, corev1.HostPathUnset)
	case spec.ISCSI != nil:
		Or(&spec.ISCSI.ISCSIInterface, "default")
	case spec.AzureDisk != nil:
		defaultAzureDisk(spec.AzureDisk)
	case spec.RBD != nil:
		defaultRBD(&spec.RBD.RBDPool, &spec.RBD.RadosUser, &spec.RBD.Keyring)
	case spec.ScaleIO != nil:
		Or(&spec.ScaleIO.StorageMode, "ThinProvisioned")
		Or(&spec.ScaleIO.FSType, "xfs")
	}
}

func defaultClaim(claim *corev1.PersistentVolumeClaim) {
	Or(&claim.Status.Phase, corev1.ClaimPending)
	roundQuantities(claim.Status.Capacity, claim.Status.AllocatedResources)
	defaultClaimSpec(&claim.Spec)
}

func defaultClaimSpec(spec *corev1.PersistentVolumeClaimSpec) {
	OrNew(&spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	roundQuantities(spec.Resources.Limits, spec.Resources.Requests)
}

func defaultCSIDriver(spec *storagev1.CSIDriverSpec) {
	OrNew(&spec.AttachRequired, true)
	OrNew(&spec.PodInfoOnMount, false)
	OrNew(&spec.StorageCapacity, false)
	OrNew(&spec.RequiresRepublish, false)
	OrNew(&spec.SELinuxMount, false)
	OrNew(&spec.PreventPodSchedulingIfMissing, false)
	OrNew(&spec.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	if len(spec.VolumeLifecycleModes) == 0 {
		spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
}

// ---- workloads ----

func defaultReplicationController(rc *corev1.ReplicationController) {
	OrNew(&rc.Spec.Replicas, 1)
	if rc.Spec.Template == nil {
		return
	}
	if labels := rc.Spec.Template.Labels; labels != nil {
		if len(rc.Spec.Selector) == 0 {
			rc.Spec.Selector = copyLabels(labels)
		}
		if len(rc.Labels) == 0 {
			rc.Labels = copyLabels(labels)
		}
	}
	defaultTemplate(rc.Spec.Template)
}

func copyLabels(from map[string]string) map[string]string {
	to := make(map[string]string, len(from))
	for key, value := range from {
		to[key] = value
	}
	return to
}

func defaultDeployment(d *appsv1.Deployment) {
	OrNew(&d.Spec.Replicas, 1)
	OrNew(&d.Spec.RevisionHistoryLimit, 10)
	OrNew(&d.Spec.ProgressDeadlineSeconds, 600)
	Or(&d.Spec.Strategy.Type, appsv1.RollingUpdateDeploymentStrategyType)
	if d.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		OrNew(&d.Spec.Strategy.RollingUpdate, appsv1.RollingUpdateDeployment{})
		OrNew(&d.Spec.Strategy.RollingUpdate.MaxUnavailable, intstr.FromString("25%"))
		OrNew(&d.Spec.Strategy.RollingUpdate.MaxSurge, intstr.FromString("25%"))
	}
	defaultTemplate(&d.Spec.Template)
}

func defaultDaemonSet(ds *appsv1.DaemonSet) {
	OrNew(&ds.Spec.RevisionHistoryLimit, 10)
	Or(&ds.Spec.UpdateStrategy.Type, appsv1.RollingUpdateDaemonSetStrategyType)
	if ds.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		OrNew(&ds.Spec.UpdateStrategy.RollingUpdate, appsv1.RollingUpdateDaemonSet{})
		OrNew(&ds.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
		OrNew(&ds.Spec.UpdateStrategy.RollingUpdate.MaxSurge, intstr.FromInt32(0))
	}
	defaultTemplate(&ds.Spec.Template)
}

func defaultStatefulSet(ss *appsv1.StatefulSet) {
	OrNew(&ss.Spec.Replicas, 1)
	OrNew(&ss.Spec.RevisionHistoryLimit, 10)
	Or(&ss.Spec.PodManagementPolicy, appsv1.OrderedReadyPodManagement)
	if ss.Spec.UpdateStrategy.Type == "" {
		ss.Spec.UpdateStrategy.Type = appsv1.RollingUpdateStatefulSetStrategyType
		OrNew(&ss.Spec.UpdateStrategy.RollingUpdate, appsv1.RollingUpdateStatefulSetStrategy{})
	}
	if rolling := ss.Spec.UpdateStrategy.RollingUpdate; rolling != nil && ss.Spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType {
		OrNew(&rolling.Partition, 0)
		OrNew(&rolling.MaxUnavailable, intstr.FromInt32(1))
	}
	OrNew(&ss.Spec.PersistentVolumeClaimRetentionPolicy, appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{})
	Or(&ss.Spec.PersistentVolumeClaimRetentionPolicy.WhenDeleted, appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	Or(&ss.Spec.PersistentVolumeClaimRetentionPolicy.WhenScaled, appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	for i := range ss.Spec.VolumeClaimTemplates {
		claim := &ss.Spec.VolumeClaimTemplates[i]
		claim.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"}
		defaultClaim(claim)
	}
	defaultTemplate(&ss.Spec.Template)
}

// defaultJob is what a Job has and the template of a CronJob has not.
func defaultJob(job *batchv1.Job) {
	spec := &job.Spec
	if spec.Completions == nil && spec.Parallelism == nil {
		OrNew(&spec.Completions, 1)
	}
	OrNew(&spec.Parallelism, 1)
	if spec.BackoffLimitPerIndex != nil {
		OrNew(&spec.BackoffLimit, 1<<31-1)
	}
	OrNew(&spec.BackoffLimit, 6)
	OrNew(&spec.CompletionMode, batchv1.NonIndexedCompletion)
	OrNew(&spec.Suspend, false)
	if spec.PodFailurePolicy != nil {
		OrNew(&spec.PodReplacementPolicy, batchv1.Failed)
	}
	OrNew(&spec.PodReplacementPolicy, batchv1.TerminatingOrFailed)
	OrNew(&spec.ManualSelector, false)
	if labels := spec.Template.Labels; labels != nil && len(job.Labels) == 0 {
		job.Labels = labels // the same map: what generateSelector adds for the pods the Job carries too, as in Kubernetes
	}
}

func defaultJobSpec(spec *batchv1.JobSpec) {
	if spec.PodFailurePolicy != nil {
		for i := range spec.PodFailurePolicy.Rules {
			for j := range spec.PodFailurePolicy.Rules[i].OnPodConditions {
				Or(&spec.PodFailurePolicy.Rules[i].OnPodConditions[j].Status, corev1.ConditionTrue)
			}
		}
	}
	defaultTemplate(&spec.Template)
}

func defaultCronJob(cron *batchv1.CronJob) {
	Or(&cron.Spec.ConcurrencyPolicy, batchv1.AllowConcurrent)
	OrNew(&cron.Spec.Suspend, false)
	OrNew(&cron.Spec.SuccessfulJobsHistoryLimit, 3)
	OrNew(&cron.Spec.FailedJobsHistoryLimit, 1)
	defaultJobSpec(&cron.Spec.JobTemplate.Spec)
}

func defaultAutoscaler(hpa *autoscalingv2.HorizontalPodAutoscaler) {
	OrNew(&hpa.Spec.MinReplicas, 1)
	if len(hpa.Spec.Metrics) == 0 {
		eighty := int32(80)
		target := autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &eighty}
		hpa.Spec.Metrics = []autoscalingv2.MetricSpec{{
			Type:     autoscalingv2.ResourceMetricSourceType,
			Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU, Target: target},
		}}
	}
	if behavior := hpa.Spec.Behavior; behavior != nil {
		defaultScaling(&behavior.ScaleUp, []autoscalingv2.HPAScalingPolicy{
			{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 15},
			{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15},
		})
		OrNew(&behavior.ScaleUp.StabilizationWindowSeconds, 0)
		defaultScaling(&behavior.ScaleDown, []autoscalingv2.HPAScalingPolicy{
			{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15},
		})
	}
}

func defaultScaling(rules **autoscalingv2.HPAScalingRules, policies []autoscalingv2.HPAScalingPolicy) {
	OrNew(rules, autoscalingv2.HPAScalingRules{})
	OrNew(&(*rules).SelectPolicy, autoscalingv2.MaxChangePolicySelect)
	if (*rules).Policies == nil {
		(*rules).Policies = policies
	}
}

// ---- network ----

func defaultService(svc *corev1.Service) {
	spec := &svc.Spec
	Or(&spec.Type, corev1.ServiceTypeClusterIP)
	Or(&spec.SessionAffinity, corev1.ServiceAffinityNone)
	switch affinity := spec.SessionAffinityConfig; {
	case spec.SessionAffinity == corev1.ServiceAffinityNone:
		spec.SessionAffinityConfig = nil
	case spec.SessionAffinity != corev1.ServiceAffinityClientIP:
	case affinity == nil || affinity.ClientIP == nil || affinity.ClientIP.TimeoutSeconds == nil:
		timeout := corev1.DefaultClientIPServiceAffinitySeconds
		spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
	}
	for i := range spec.Ports {
		port := &spec.Ports[i]
		Or(&port.Protocol, corev1.ProtocolTCP)
		if port.TargetPort == intstr.FromInt32(0) || port.TargetPort == intstr.FromString("") {
			port.TargetPort = intstr.FromInt32(port.Port)
		}
	}
	if IsExternallyReachable(svc) {
		Or(&spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	}
	if NeedsClusterIP(svc) {
		OrNew(&spec.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster)
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer {
		OrNew(&spec.AllocateLoadBalancerNodePorts, true)
		defaultBalancerModes(svc)
	}
}

func defaultBalancerModes(svc *corev1.Service) {
	for i := range svc.Status.LoadBalancer.Ingress {
		if ingress := &svc.Status.LoadBalancer.Ingress[i]; ingress.IP != "" {
			OrNew(&ingress.IPMode, corev1.LoadBalancerIPModeVIP)
		}
	}
}

// IsExternallyReachable says that a Service is reached from outside of the cluster.
func IsExternallyReachable(svc *corev1.Service) bool {
	switch svc.Spec.Type {
	case corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		return true
	}
	return svc.Spec.Type == corev1.ServiceTypeClusterIP && len(svc.Spec.ExternalIPs) > 0
}

// NeedsClusterIP says that a Service's type has a cluster IP, be it None.
func NeedsClusterIP(svc *corev1.Service) bool {
	switch svc.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		return true
	}
	return false
}

func defaultNetworkPolicy(policy *networkingv1.NetworkPolicy) {
	if len(policy.Spec.PolicyTypes) == 0 {
		policy.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(policy.Spec.Egress) > 0 {
			policy.Spec.PolicyTypes = append(policy.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
	for i := range policy.Spec.Ingress {
		defaultPolicyPorts(policy.Spec.Ingress[i].Ports)
	}
	for i := range policy.Spec.Egress {
		defaultPolicyPorts(policy.Spec.Egress[i].Ports)
	}
}

func defaultPolicyPorts(ports []networkingv1.NetworkPolicyPort) {
	for i := range ports {
		OrNew(&ports[i].Protocol, corev1.ProtocolTCP)
	}
}

// ---- small kinds ----

// mergeStringData moves a Secret's write-only stringData over its data.
func mergeStringData(s *corev1.Secret) {
	if len(s.StringData) > 0 && s.Data == nil {
		s.Data = make(map[string][]byte, len(s.StringData))
	}
	for key, value := range s.StringData {
		s.Data[key] = []byte(value)
	}
	s.StringData = nil
	fillNulls(s.Data)
}

// fillNulls makes null values empty ones, which is what kube-apiserver shows: in protobuf, its form in etcd, the two are one.
func fillNulls(data map[string][]byte) {
	for key, value := range data {
		if value == nil {
			data[key] = []byte{}
		}
	}
}

// LabelNamespace gives a Namespace the label kubernetes.io/metadata.name, which is its name whatever it was.
func LabelNamespace(ns *corev1.Namespace) {
	if ns.Labels == nil {
		ns.Labels = map[string]string{}
	}
	ns.Labels[corev1.LabelMetadataName] = ns.Name
}

// defaultNode also keeps the singular podCIDR and the first of podCIDRs the same; where they differ the singular counts.
func defaultNode(node *corev1.Node) {
	roundQuantities(node.Status.Capacity, node.Status.Allocatable)
	if node.Status.Allocatable == nil && node.Status.Capacity != nil {
		node.Status.Allocatable = node.Status.Capacity.DeepCopy()
	}
	spec := &node.Spec
	switch {
	case spec.PodCIDR != "" && (len(spec.PodCIDRs) == 0 || spec.PodCIDRs[0] != spec.PodCIDR):
		spec.PodCIDRs = []string{spec.PodCIDR}
	case len(spec.PodCIDRs) > 0:
		spec.PodCIDR = spec.PodCIDRs[0]
	}
}

// defaultLimits: a container's default limit is its maximum; its default request is that limit, else its minimum.
func defaultLimits(item *corev1.LimitRangeItem) {
	if item.Type == corev1.LimitTypeContainer {
		if item.Default == nil {
			item.Default = corev1.ResourceList{}
		}
		if item.DefaultRequest == nil {
			item.DefaultRequest = corev1.ResourceList{}
		}
		fillQuantities(item.Default, item.Max)
		fillQuantities(item.DefaultRequest, item.Default)
		fillQuantities(item.DefaultRequest, item.Min)
	}
	roundQuantities(item.Max, item.Min, item.Default, item.DefaultRequest, item.MaxLimitRequestRatio)
}

func defaultSubjects(subjects []rbacv1.Subject) {
	for i := range subjects {
		if kind := subjects[i].Kind; kind == rbacv1.UserKind || kind == rbacv1.GroupKind {
			Or(&subjects[i].APIGroup, rbacv1.GroupName)
		}
	}
}

func defaultDevices(claim *resourcev1.DeviceClaim) {
	for i := range claim.Requests {
		if exactly := claim.Requests[i].Exactly; exactly != nil {
			defaultDeviceRequest(&exactly.AllocationMode, &exactly.Count, exactly.Tolerations)
		}
		for j := range claim.Requests[i].FirstAvailable {
			sub := &claim.Requests[i].FirstAvailable[j]
			defaultDeviceRequest(&sub.AllocationMode, &sub.Count, sub.Tolerations)
		}
	}
}

func defaultDeviceRequest(mode *resourcev1.DeviceAllocationMode, count *int64, tolerations []resourcev1.DeviceToleration) {
	Or(mode, resourcev1.DeviceAllocationModeExactCount)
	if *mode == resourcev1.DeviceAllocationModeExactCount {
		Or(count, 1)
	}
	for i := range tolerations {
		Or(&tolerations[i].Operator, resourcev1.DeviceTolerationOpEqual)
	}
}

func defaultValidatingWebhook(hook *admissionv1.ValidatingWebhook) {
	OrNew(&hook.FailurePolicy, admissionv1.Fail)
	OrNew(&hook.MatchPolicy, admissionv1.Equivalent)
	OrNew(&hook.NamespaceSelector, metav1.LabelSelector{})
	OrNew(&hook.ObjectSelector, metav1.LabelSelector{})
	OrNew(&hook.TimeoutSeconds, 10)
	defaultHookTarget(&hook.ClientConfig, hook.Rules)
}

func defaultMutatingWebhook(hook *admissionv1.MutatingWebhook) {
	OrNew(&hook.FailurePolicy, admissionv1.Fail)
	OrNew(&hook.MatchPolicy, admissionv1.Equivalent)
	OrNew(&hook.NamespaceSelector, metav1.LabelSelector{})
	OrNew(&hook.ObjectSelector, metav1.LabelSelector{})
	OrNew(&hook.TimeoutSeconds, 10)
	OrNew(&hook.ReinvocationPolicy, admissionv1.NeverReinvocationPolicy)
	defaultHookTarget(&hook.ClientConfig, hook.Rules)
}

func defaultHookTarget(client *admissionv1.WebhookClientConfig, rules []admissionv1.RuleWithOperations) {
	if client.Service != nil {
		OrNew(&client.Service.Port, 443)
	}
	for i := range rules {
		OrNew(&rules[i].Scope, admissionv1.AllScopes)
	}
}

func defaultMatchResources(match *admissionv1.MatchResources) {
	if match == nil {
		return
	}
	OrNew(&match.MatchPolicy, admissionv1.Equivalent)
	OrNew(&match.NamespaceSelector, metav1.LabelSelector{})
	OrNew(&match.ObjectSelector, metav1.LabelSelector{})
	for _, rules := range [...][]admissionv1.NamedRuleWithOperations{match.ResourceRules, match.ExcludeResourceRules} {
		for i := range rules {
			OrNew(&rules[i].Scope, admissionv1.AllScopes)
		}
	}
}

func defaultPriorityLevel(spec *flowcontrolv1.PriorityLevelConfigurationSpec) {
	if exempt := spec.Exempt; exempt != nil {
		OrNew(&exempt.NominalConcurrencyShares, 0)
		OrNew(&exempt.LendablePercent, 0)
	}
	if limited := spec.Limited; limited != nil {
		OrNew(&limited.NominalConcurrencyShares, 30)
		OrNew(&limited.LendablePercent, 0)
		if queuing := limited.LimitResponse.Queuing; queuing != nil {
			Or(&queuing.HandSize, 8)
			Or(&queuing.Queues, 64)
			Or(&queuing.QueueLengthLimit, 50)
		}
	}
}

func defaultAPIService(o *apiregistrationv1.APIService) {
	if service := o.Spec.Service; service != nil && service.Port == nil {
		port := int32(443)
		service.Port = &port
	}
}
