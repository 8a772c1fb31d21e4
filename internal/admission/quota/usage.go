package quota

// This file measures how much of each resource name an object uses. The rules match the evaluators
// in Kubernetes (k8s.io/kubernetes, pkg/quota/v1/evaluator/core):
//
//	objects                  names                                                                   scopes
//	-------                  -----                                                                   ------
//	all but Events           count/RESOURCE[.GROUP]                                                  none
//	pods                     pods, cpu, memory, ephemeral-storage (each also as requests.X and       Terminating, BestEffort, their
//	                         limits.X), [requests.]hugepages-SIZE, requests.DOMAIN/EXTENDED          opposites, PriorityClass,
//	                                                                                                 CrossNamespacePodAffinity
//	services                 services, services.nodeports, services.loadbalancers                    none
//	persistentvolumeclaims   persistentvolumeclaims, requests.storage,                               VolumeAttributesClass
//	                         and CLASS.storageclass.storage.k8s.io/ before either
//	resourceclaims           CLASS.deviceclass.resource.k8s.io/devices                               none
//	four more of core        secrets, configmaps, replicationcontrollers, resourcequotas             none
//
// If a quota has a scope that is not supported for a type, it does not limit objects of that type.
// Pods that have terminated or exceeded their grace period do not use any compute resources. It
// counts only for count/pods.

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"
	podresources "k8s.io/component-helpers/resource"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"

	"apilet/internal/scheme"
)

const (
	podBase   = "//pods/"
	quotaBase = "//resourcequotas/"
	eventBase = "//events/"

	classSuffix   = ".storageclass.storage.k8s.io/"
	requestPrefix = corev1.DefaultResourceRequestsPrefix
)

// A measure computes the usage of objects of a given type. The zero value counts the objects only.
type measure struct {
	// names reports whether the measure computes a resource, except for count/RESOURCE and alias.
	names func(corev1.ResourceName) bool
	// If not empty, alias also counts the objects, like count/RESOURCE.
	alias corev1.ResourceName
	// usage returns the usage of an object; nil means that objects are only counted.
	usage func(scheme.Object, time.Time) usage
	// inScope reports whether an object is in a scope; nil means that the type has no scopes.
	inScope func(scheme.Object, *requirement, time.Time) bool
}

// measures contains the types with more names than count/RESOURCE, by key prefix.
var measures = map[string]*measure{
	podBase:                            {names: isPodName, usage: podUsage, inScope: podInScope},
	"//services/":                      {names: isServiceName, alias: corev1.ResourceServices, usage: serviceUsage},
	"//persistentvolumeclaims/":        {names: isClaimName, alias: corev1.ResourcePersistentVolumeClaims, usage: claimUsage, inScope: claimInScope},
	"/resource.k8s.io/resourceclaims/": {names: isDeviceName, usage: deviceUsage},
	"//secrets/":                       {alias: corev1.ResourceSecrets},
	"//configmaps/":                    {alias: corev1.ResourceConfigMaps},
	"//replicationcontrollers/":        {alias: corev1.ResourceReplicationControllers},
	quotaBase:                          {alias: corev1.ResourceQuotas},
}

// ---- Quantities by name ----

// A usage maps names to quantities. It owns the quantities.
type usage map[corev1.ResourceName]resource.Quantity

func (u usage) set(name corev1.ResourceName, q resource.Quantity) { u[name] = q }

func (u usage) count(name corev1.ResourceName, n int64) {
	u[name] = *resource.NewQuantity(n, resource.DecimalSI)
}

// add adds more to u. Names that u lacks are added.
func (u usage) add(more usage) {
	for name, q := range more {
		sum, ok := u[name]
		if !ok {
			u[name] = q.DeepCopy()
			continue
		}
		sum.Add(q)
		u[name] = sum
	}
}

// subtract subtracts less from u. Names whose quantity becomes zero remain.
func (u usage) subtract(less usage) {
	for name, q := range less {
		rest := u[name]
		rest.Sub(q)
		u[name] = rest
	}
}

// growth returns the difference between u and before for all names that have grown. Names that did
// not grow are omitted.
func (u usage) growth(before usage) usage {
	grown := usage{}
	for name, q := range u {
		q = q.DeepCopy()
		q.Sub(before[name])
		if q.Sign() > 0 {
			grown[name] = q
		}
	}
	return grown
}

func (u usage) equal(v usage) bool {
	if len(u) != len(v) {
		return false
	}
	for name, q := range u {
		if other, ok := v[name]; !ok || q.Cmp(other) != 0 {
			return false
		}
	}
	return true
}

// of returns the part of u with the given names.
func (u usage) of(names []corev1.ResourceName) usage {
	part := make(usage, len(names))
	for _, name := range names {
		if q, ok := u[name]; ok {
			part[name] = q
		}
	}
	return part
}

func (u usage) list() corev1.ResourceList {
	list := make(corev1.ResourceList, len(u))
	for name, q := range u {
		list[name] = q.DeepCopy()
	}
	return list
}

// String formats u like "cpu=2,memory=1Gi".
func (u usage) String() string {
	parts := make([]string, 0, len(u))
	for name, q := range u {
		parts = append(parts, string(name)+"="+q.String())
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

// ---- Counting ----

// countName returns the name that limits the number of objects of a type.
func countName(group, plural string) corev1.ResourceName {
	if group == "" {
		return corev1.ResourceName("count/" + plural)
	}
	return corev1.ResourceName("count/" + plural + "." + group)
}

// baseOf returns the prefix that the keys of all objects of a type share, such as "//pods/" for
// "//pods/default/a".
func baseOf(key string) string {
	if len(key) == 0 {
		return ""
	}
	group := strings.IndexByte(key[1:], '/') + 2
	return key[:group+strings.IndexByte(key[group:], '/')+1]
}

// ---- Pods ----

var podNames = []corev1.ResourceName{corev1.ResourcePods, corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
	corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsEphemeralStorage,
	corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage}

// requiredNames must be specified by each container of a pod if a quota limits them. A comment in
// kube-apiserver regrets this rule.
var requiredNames = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory,
	corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory}

func isPodName(name corev1.ResourceName) bool {
	rest, requested := strings.CutPrefix(string(name), requestPrefix)
	return slices.Contains(podNames, name) || strings.HasPrefix(rest, corev1.ResourceHugePagesPrefix) ||
		requested && (!isNative(string(name)) || strings.HasPrefix(rest, resourcev1.ResourceDeviceClassPrefix))
}

// isNative reports whether a resource is defined by Kubernetes, and not by an extension.
func isNative(name string) bool {
	return !strings.Contains(name, "/") || strings.Contains(name, corev1.ResourceDefaultNamespacePrefix)
}

// isExtended reports whether name is an extended resource that a container may request.
func isExtended(name string) bool {
	if strings.HasPrefix(name, resourcev1.ResourceDeviceClassPrefix) {
		return true
	}
	return !isNative(name) && !strings.HasPrefix(name, requestPrefix) && len(validation.IsQualifiedName(requestPrefix+name)) == 0
}

// podUsage returns the usage of a pod at the given time.
func podUsage(obj scheme.Object, now time.Time) usage {
	pod := obj.(*corev1.Pod)
	if isOver(pod, now) {
		return usage{}
	}
	opts := podresources.PodResourcesOptions{UseStatusResources: true}
	return computeUsage(podresources.PodRequests(pod, opts), podresources.PodLimits(pod, opts))
}

// computeUsage converts requests and limits to the names that quotas use.
func computeUsage(requests, limits corev1.ResourceList) usage {
	u := usage{}
	u.count(corev1.ResourcePods, 1)
	for _, name := range [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if q, ok := requests[name]; ok {
			u.set(name, q)
			u.set(requestPrefix+name, q)
		}
		if q, ok := limits[name]; ok {
			u.set("limits."+name, q)
		}
	}
	for name, q := range requests {
		huge := strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
		if huge {
			u.set(name, q)
		}
		if huge || isExtended(string(name)) {
			u.set(requestPrefix+name, q)
		}
	}
	return u
}

// isOver reports whether a pod has terminated or has exceeded its grace period. A pod on a lost
// node should not use up the quota.
func isOver(pod *corev1.Pod, now time.Time) bool {
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return true
	}
	lapse := graceEnd(pod)
	return !lapse.IsZero() && now.After(lapse)
}

// graceEnd returns the end of the grace period of a pod that is being deleted. From then on the pod
// does not count. graceEnd returns the zero time for other pods.
func graceEnd(pod *corev1.Pod) time.Time {
	if pod.DeletionTimestamp == nil || pod.DeletionGracePeriodSeconds == nil {
		return time.Time{}
	}
	return pod.DeletionTimestamp.Add(time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second)
}

// missing returns the containers that do not specify the names required by a quota, such as "cpu
// for: a,b; memory for: b". It returns "" if there are none.
func missing(pod *corev1.Pod, names []corev1.ResourceName) string {
	if podresources.IsPodLevelResourcesSet(pod) {
		return ""
	}
	var parts []string
	for _, name := range requiredNames {
		if !slices.Contains(names, name) {
			continue
		}
		var lacking []string
		for _, containers := range [...][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
			for i := range containers {
				if !specifies(&containers[i].Resources, name) {
					lacking = append(lacking, containers[i].Name)
				}
			}
		}
		if len(lacking) > 0 {
			slices.Sort(lacking)
			parts = append(parts, string(name)+" for: "+strings.Join(slices.Compact(lacking), ","))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, "; ")
}

func specifies(r *corev1.ResourceRequirements, name corev1.ResourceName) bool {
	list := r.Requests
	if limit, ok := strings.CutPrefix(string(name), "limits."); ok {
		list, name = r.Limits, corev1.ResourceName(limit)
	}
	_, ok := list[corev1.ResourceName(strings.TrimPrefix(string(name), requestPrefix))]
	return ok
}

func podInScope(obj scheme.Object, r *requirement, _ time.Time) bool {
	pod := obj.(*corev1.Pod)
	switch r.scope {
	case corev1.ResourceQuotaScopeTerminating:
		return isTerminating(pod)
	case corev1.ResourceQuotaScopeNotTerminating:
		return !isTerminating(pod)
	case corev1.ResourceQuotaScopeBestEffort:
		return isBestEffort(pod)
	case corev1.ResourceQuotaScopeNotBestEffort:
		return !isBestEffort(pod)
	case corev1.ResourceQuotaScopePriorityClass:
		return r.matches(pod.Spec.PriorityClassName)
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return selectsOtherNamespaces(pod)
	}
	return false
}

// isTerminating reports whether the pod is in the scope Terminating, i.e. has a deadline.
func isTerminating(pod *corev1.Pod) bool {
	return pod.Spec.ActiveDeadlineSeconds != nil && *pod.Spec.ActiveDeadlineSeconds >= 0
}

func isBestEffort(pod *corev1.Pod) bool {
	return qos.GetPodQOS(pod) == corev1.PodQOSBestEffort
}

// selectsOtherNamespaces reports whether the affinity of a pod selects pods of other namespaces.
func selectsOtherNamespaces(pod *corev1.Pod) bool {
	abroad := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) bool {
		names := func(t *corev1.PodAffinityTerm) bool { return len(t.Namespaces) != 0 || t.NamespaceSelector != nil }
		return slices.ContainsFunc(required, func(t corev1.PodAffinityTerm) bool { return names(&t) }) ||
			slices.ContainsFunc(preferred, func(t corev1.WeightedPodAffinityTerm) bool { return names(&t.PodAffinityTerm) })
	}
	a := pod.Spec.Affinity
	if a == nil {
		return false
	}
	return a.PodAffinity != nil && abroad(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution) ||
		a.PodAntiAffinity != nil && abroad(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
}

// ---- Services ----

func isServiceName(name corev1.ResourceName) bool {
	return name == corev1.ResourceServicesNodePorts || name == corev1.ResourceServicesLoadBalancers
}

// serviceUsage measures the spec of a Service. The ports may not have been allocated yet when the
// Service is charged.
func serviceUsage(obj scheme.Object, _ time.Time) usage {
	spec := &obj.(*corev1.Service).Spec
	u, ports := usage{}, int64(0)
	switch spec.Type {
	case corev1.ServiceTypeNodePort:
		ports = int64(len(spec.Ports))
	case corev1.ServiceTypeLoadBalancer:
		u.count(corev1.ResourceServicesLoadBalancers, 1)
		given := spec.AllocateLoadBalancerNodePorts == nil || *spec.AllocateLoadBalancerNodePorts
		for i := range spec.Ports {
			if given || spec.Ports[i].NodePort != 0 {
				ports++
			}
		}
	}
	u.count(corev1.ResourceServicesNodePorts, ports)
	return u
}

// ---- Claims ----

func isClaimName(name corev1.ResourceName) bool {
	at := strings.LastIndex(string(name), classSuffix)
	if at >= 0 {
		name = name[at+len(classSuffix):]
	}
	return name == corev1.ResourceRequestsStorage || at >= 0 && name == corev1.ResourcePersistentVolumeClaims
}

func claimUsage(obj scheme.Object, _ time.Time) usage {
	pvc := obj.(*corev1.PersistentVolumeClaim)
	u, class := usage{}, pvc.Annotations[corev1.BetaStorageClassAnnotation]
	if _, old := pvc.Annotations[corev1.BetaStorageClassAnnotation]; !old && pvc.Spec.StorageClassName != nil {
		class = *pvc.Spec.StorageClassName
	}
	prefix := corev1.ResourceName(class + classSuffix)
	if class != "" {
		u.count(prefix+corev1.ResourcePersistentVolumeClaims, 1)
	}
	if size, ok := pvc.Spec.Resources.Requests[corev1.ResourceStorage]; ok {
		if allocated, ok := pvc.Status.AllocatedResources[corev1.ResourceStorage]; ok && allocated.Cmp(size) > 0 {
			size = allocated // the volume is larger if an expansion has failed
		}
		size = size.DeepCopy()
		size.RoundUp(0)
		u.set(corev1.ResourceRequestsStorage, size)
		if class != "" {
			u.set(prefix+corev1.ResourceRequestsStorage, size)
		}
	}
	return u
}

// claimInScope checks the current, the requested and the target class of a claim.
func claimInScope(obj scheme.Object, r *requirement, _ time.Time) bool {
	if r.scope != corev1.ResourceQuotaScopeVolumeAttributesClass {
		return false
	}
	pvc := obj.(*corev1.PersistentVolumeClaim)
	var names []string
	for _, name := range [...]*string{pvc.Spec.VolumeAttributesClassName, pvc.Status.CurrentVolumeAttributesClassName} {
		if name != nil && *name != "" {
			names = append(names, *name)
		}
	}
	if m := pvc.Status.ModifyVolumeStatus; m != nil && m.TargetVolumeAttributesClassName != "" {
		names = append(names, m.TargetVolumeAttributesClassName)
	}
	if len(names) == 0 {
		return r.matches("")
	}
	return slices.ContainsFunc(names, r.matches)
}

// ---- Devices ----

func isDeviceName(name corev1.ResourceName) bool {
	return strings.HasSuffix(string(name), corev1.ResourceClaimsPerClass)
}

// deviceUsage returns the number of devices that may be allocated for a claim, by class. For
// alternatives, it uses the largest number for each class.
func deviceUsage(obj scheme.Object, _ time.Time) usage {
	devices := func(mode resourcev1.DeviceAllocationMode, count int64) int64 {
		switch mode {
		case resourcev1.DeviceAllocationModeExactCount:
			return count
		case resourcev1.DeviceAllocationModeAll:
			return resourcev1.AllocationResultsMaxSize
		}
		return 0
	}
	taken := map[string]int64{}
	for _, request := range obj.(*resourcev1.ResourceClaim).Spec.Devices.Requests {
		dearest := map[string]int64{}
		for _, sub := range request.FirstAvailable {
			dearest[sub.DeviceClassName] = max(dearest[sub.DeviceClassName], devices(sub.AllocationMode, sub.Count))
		}
		if exact := request.Exactly; exact != nil && len(request.FirstAvailable) == 0 {
			dearest[exact.DeviceClassName] = devices(exact.AllocationMode, exact.Count)
		}
		for class, n := range dearest {
			taken[class] += n
		}
	}
	u := usage{}
	for class, n := range taken {
		u.count(corev1.ResourceName(class+corev1.ResourceClaimsPerClass), n)
	}
	return u
}

// ---- Scopes ----

// requirement represents a scope of a quota, from either scopes or scopeSelector.
type requirement struct {
	scope    corev1.ResourceQuotaScope
	exists   bool            // the class must be set, with any name
	selector labels.Selector // selects class names; nil matches none
}

func requirementsOf(spec *corev1.ResourceQuotaSpec) (all []requirement) {
	for _, scope := range spec.Scopes {
		all = append(all, requirement{scope: scope, exists: true})
	}
	if spec.ScopeSelector == nil {
		return all
	}
	for _, e := range spec.ScopeSelector.MatchExpressions {
		r := requirement{scope: e.ScopeName, exists: e.Operator == corev1.ScopeSelectorOpExists}
		operator := map[corev1.ScopeSelectorOperator]selection.Operator{corev1.ScopeSelectorOpIn: selection.In, corev1.ScopeSelectorOpNotIn: selection.NotIn,
			corev1.ScopeSelectorOpExists: selection.Exists, corev1.ScopeSelectorOpDoesNotExist: selection.DoesNotExist}[e.Operator]
		if label, err := labels.NewRequirement(string(e.ScopeName), operator, e.Values); err == nil {
			r.selector = labels.NewSelector().Add(*label)
		}
		all = append(all, r)
	}
	return all
}

// matches reports whether the name of a class meets the requirement. The name is empty if the
// object does not have a class.
func (r *requirement) matches(name string) bool {
	if r.exists {
		return name != ""
	}
	set := labels.Set{}
	if name != "" {
		set[string(r.scope)] = name
	}
	return r.selector != nil && r.selector.Matches(set)
}
