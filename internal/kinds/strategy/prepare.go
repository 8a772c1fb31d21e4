package strategy

// This file: what is decided once per write of a built-in object, after defaults.Set and before validation. A request may say anything
// about a status, a Job's selector or a Service's allocated ports; here it is put right. The rules are the
// PrepareForCreate and PrepareForUpdate of k8s.io/kubernetes, pkg/registry/GROUP/RESOURCE/strategy.go, named by the rows of table.go.

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"apilet/internal/kinds/defaults"
	"apilet/internal/scheme"
)

// Now is as fine as the wire format.
func Now() metav1.Time { return metav1.NewTime(time.Now().Truncate(time.Second)) }

// stampPhase says since when a volume is in its phase, unless the request says so.
func stampPhase(status, before *corev1.PersistentVolumeStatus) {
	switch stamp := status.LastPhaseTransitionTime; {
	case status.Phase == before.Phase && stamp == nil:
		status.LastPhaseTransitionTime = before.LastPhaseTransitionTime
	case status.Phase != before.Phase && (stamp == nil || stamp.Equal(before.LastPhaseTransitionTime)):
		changed := Now()
		status.LastPhaseTransitionTime = &changed
	}
}

// ---- Of single types: what their rows name ----

// createNode takes the status as it comes: the kubelet registers itself. That no node is ready at first is TaintNodesByCondition's to say.
func createNode(*corev1.Node) {}

func createNamespace(o *corev1.Namespace) {
	o.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
	if !slices.Contains(o.Spec.Finalizers, corev1.FinalizerKubernetes) {
		o.Spec.Finalizers = append(o.Spec.Finalizers, corev1.FinalizerKubernetes)
	}
	defaults.LabelNamespace(o)
}

func updateNamespace(o, old *corev1.Namespace) {
	o.Spec.Finalizers = old.Spec.Finalizers
	defaults.LabelNamespace(o)
}

func createVolume(o *corev1.PersistentVolume) {
	o.Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumePending}
	defaults.OrNew(&o.Status.LastPhaseTransitionTime, Now())
}

func updateVolumeStatus(o, old *corev1.PersistentVolume) { stampPhase(&o.Status, &old.Status) }

func createClaim(o *corev1.PersistentVolumeClaim) {
	o.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
	pairDataSources(&o.Spec)
}

func updateClaim(o, old *corev1.PersistentVolumeClaim) {
	pairDataSources(&o.Spec)
	pairDataSources(&old.Spec)
}

// updateTaintRule sets the time of a taint whose effect changes, unless the client changes the time too.
func updateTaintRule(rule, old *resourcev1.DeviceTaintRule) {
	taint, before := &rule.Spec.Taint, &old.Spec.Taint
	if taint.Effect != before.Effect && taint.TimeAdded.Equal(before.TimeAdded) {
		now := Now()
		taint.TimeAdded = &now
	}
}

func createService(o *corev1.Service) {
	o.Status = corev1.ServiceStatus{}
	prepareService(o)
}

func updateService(o, old *corev1.Service) {
	keepAllocated(&o.Spec, old)
	dropWhatTypeNeedsNot(o, old)
	prepareService(o)
}

func createDaemonSet(o *appsv1.DaemonSet) {
	o.Status = appsv1.DaemonSetStatus{}
	countTemplate(o, nil)
}

// createLease: coordinated leader election is in beta, and off.
func createLease(o *coordinationv1.Lease) { o.Spec.Strategy, o.Spec.PreferredHolder = nil, nil }

func updateLease(o, old *coordinationv1.Lease) { keepElection(&o.Spec, &old.Spec) }

func createJob(o *batchv1.Job) {
	o.Status = batchv1.JobStatus{}
	generateSelector(o)
}

func createAPIService(o *apiregistrationv1.APIService) {
	o.Status = apiregistrationv1.APIServiceStatus{}
	availability(o)
}

func updateAPIService(o, old *apiregistrationv1.APIService) {
	if !equality.Semantic.DeepEqual(o.Spec.Service, old.Spec.Service) {
		availability(o)
	}
}

func updateAPIServiceStatus(o, old *apiregistrationv1.APIService) {
	o.Labels, o.Annotations, o.Finalizers, o.OwnerReferences = old.Labels, old.Annotations, old.Finalizers, old.OwnerReferences
}

// updatePodStatus: kubelets of long ago garbled owners; the class is decided at creation.
func updatePodStatus(o, old *corev1.Pod) {
	o.OwnerReferences = old.OwnerReferences
	defaults.Or(&o.Status.QOSClass, old.Status.QOSClass)
}

// statusAlone is a type's whose metadata a write of the status leaves as it is, but for managedFields.
func statusAlone(obj, old runtime.Object) {
	o, was := obj.(metav1.Object), old.(metav1.Object)
	o.SetLabels(was.GetLabels())
	o.SetAnnotations(was.GetAnnotations())
	o.SetFinalizers(was.GetFinalizers())
	o.SetOwnerReferences(was.GetOwnerReferences())
}

func updateDeploymentStatus(o, old *appsv1.Deployment) { o.Labels = old.Labels }

// AppArmorTexts are the warnings of a new pod whose annotations name AppArmor profiles, before these are copied into the fields of its
// containers: about each that a field has to be derived from, and each that none can be derived from.
func AppArmorTexts(obj runtime.Object) (texts []string) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	eachAnnotatedProfile(pod, func(c *corev1.Container, key string, profile *corev1.AppArmorProfile) {
		if profile == nil || !ofPod(pod, profile) {
			texts = append(texts, fmt.Sprintf(`metadata.annotations[%s]: deprecated since v1.30; use the "appArmorProfile" field instead`, key))
		}
	})
	return texts
}

// copyProfiles has a new pod's fields say what its annotations of long ago say of AppArmor: kubelets and PodSecurity look at both.
func copyProfiles(pod *corev1.Pod) {
	eachAnnotatedProfile(pod, func(c *corev1.Container, _ string, profile *corev1.AppArmorProfile) {
		if profile == nil || ofPod(pod, profile) {
			return
		}
		if c.SecurityContext == nil {
			c.SecurityContext = &corev1.SecurityContext{}
		}
		c.SecurityContext.AppArmorProfile = profile
	})
}

// eachAnnotatedProfile visits the containers without a profile of their own that have an annotation; profile is nil for one that is not valid.
func eachAnnotatedProfile(pod *corev1.Pod, visit func(c *corev1.Container, key string, profile *corev1.AppArmorProfile)) {
	if len(pod.Annotations) == 0 || pod.Spec.OS != nil && pod.Spec.OS.Name == corev1.Windows {
		return
	}
	one := func(c *corev1.Container) {
		key := corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + c.Name
		annotation, found := pod.Annotations[key]
		if found && (c.SecurityContext == nil || c.SecurityContext.AppArmorProfile == nil) {
			visit(c, key, annotatedProfile(annotation))
		}
	}
	for i := range pod.Spec.InitContainers {
		one(&pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		one(&pod.Spec.Containers[i])
	}
}

// ofPod says that a profile is that of the pod, which a container need not repeat.
func ofPod(pod *corev1.Pod, profile *corev1.AppArmorProfile) bool {
	return pod.Spec.SecurityContext != nil && equality.Semantic.DeepEqual(pod.Spec.SecurityContext.AppArmorProfile, profile)
}

// annotatedProfile is what an annotation means as a field, nil for one that no field can say.
func annotatedProfile(annotation string) *corev1.AppArmorProfile {
	local, isLocal := strings.CutPrefix(annotation, corev1.DeprecatedAppArmorBetaProfileNamePrefix)
	switch {
	case annotation == corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	case annotation == corev1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	case isLocal && local != "" && local == strings.TrimSpace(local) && len(local) <= maxProfileName:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &local}
	}
	return nil
}

const maxProfileName = 4095 // letters of a file's name on Linux, without the zero

// preparePod gives a new pod its first status.
func preparePod(pod *corev1.Pod) {
	copyProfiles(pod)
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: QosClass(&pod.Spec)}
	if len(pod.Spec.SchedulingGates) > 0 {
		pod.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated,
			Message: "Scheduling is blocked due to non-empty scheduling gates", LastTransitionTime: Now(),
		}}
	}
	selectByPodLabels(pod)
}

// selectByPodLabels writes the pod's own values of matchLabelKeys into the selectors beside them.
func selectByPodLabels(pod *corev1.Pod) {
	apply := func(selector *metav1.LabelSelector, keys []string, operator metav1.LabelSelectorOperator) {
		for _, key := range keys {
			if value, ok := pod.Labels[key]; ok && selector != nil {
				requirement := metav1.LabelSelectorRequirement{Key: key, Operator: operator, Values: []string{value}}
				selector.MatchExpressions = append(selector.MatchExpressions, requirement)
			}
		}
	}
	for _, term := range podAffinityTerms(pod.Spec.Affinity) {
		apply(term.LabelSelector, term.MatchLabelKeys, metav1.LabelSelectorOpIn)
		apply(term.LabelSelector, term.MismatchLabelKeys, metav1.LabelSelectorOpNotIn)
	}
	for i := range pod.Spec.TopologySpreadConstraints {
		constraint := &pod.Spec.TopologySpreadConstraints[i]
		apply(constraint.LabelSelector, constraint.MatchLabelKeys, metav1.LabelSelectorOpIn)
	}
}

func podAffinityTerms(affinity *corev1.Affinity) (terms []*corev1.PodAffinityTerm) {
	add := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		for i := range required {
			terms = append(terms, &required[i])
		}
		for i := range preferred {
			terms = append(terms, &preferred[i].PodAffinityTerm)
		}
	}
	if affinity != nil && affinity.PodAffinity != nil {
		add(affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if affinity != nil && affinity.PodAntiAffinity != nil {
		add(affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	return terms
}

// QosClass: BestEffort asks for nothing, Guaranteed limits both CPU and memory everywhere and requests as much, the rest is Burstable.
func QosClass(spec *corev1.PodSpec) corev1.PodQOSClass {
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	guaranteed := true
	count := func(r *corev1.ResourceRequirements) {
		defaults.AddQuantities(requests, computeOnly(r.Requests))
		limited := computeOnly(r.Limits)
		defaults.AddQuantities(limits, limited)
		guaranteed = guaranteed && len(limited) == 2
	}
	if spec.Resources != nil {
		count(spec.Resources)
	} else {
		for i := range spec.Containers {
			count(&spec.Containers[i].Resources)
		}
		for i := range spec.InitContainers {
			count(&spec.InitContainers[i].Resources)
		}
	}
	for name, request := range requests {
		guaranteed = guaranteed && request.Cmp(limits[name]) == 0
	}
	switch {
	case len(requests) == 0 && len(limits) == 0:
		return corev1.PodQOSBestEffort
	case guaranteed && len(requests) == len(limits):
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

func computeOnly(list corev1.ResourceList) corev1.ResourceList {
	compute := corev1.ResourceList{}
	for _, name := range [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if quantity := list[name]; quantity.Sign() > 0 {
			compute[name] = quantity
		}
	}
	return compute
}

// pairDataSources keeps a claim's old and new way of naming a data source the same; the old one knows two kinds only.
func pairDataSources(spec *corev1.PersistentVolumeClaimSpec) {
	source, ref := spec.DataSource, spec.DataSourceRef
	switch {
	case source != nil && ref == nil:
		group := ""
		if source.APIGroup != nil {
			group = *source.APIGroup
		}
		known := group == "" && source.Kind == "PersistentVolumeClaim" || group == "snapshot.storage.k8s.io" && source.Kind == "VolumeSnapshot"
		if !known {
			spec.DataSource = nil
			return
		}
		spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: source.APIGroup, Kind: source.Kind, Name: source.Name}
	case source == nil && ref != nil && (ref.Namespace == nil || *ref.Namespace == ""):
		spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: ref.APIGroup, Kind: ref.Kind, Name: ref.Name}
	}
}

func nameSecretsOnly(account *corev1.ServiceAccount) {
	for i := range account.Secrets {
		account.Secrets[i] = corev1.ObjectReference{Name: account.Secrets[i].Name}
	}
}

// FillFolded adds the annotation that kube-apiserver makes of a field of its internal type, so that a writer who omits it owns it all the same.
func FillFolded(obj runtime.Object) {
	ds, ok := obj.(*appsv1.DaemonSet)
	if !ok || ds.Annotations[appsv1.DeprecatedTemplateGeneration] != "" {
		return
	}
	if ds.Annotations == nil {
		ds.Annotations = map[string]string{}
	}
	ds.Annotations[appsv1.DeprecatedTemplateGeneration] = "0"
}

// countTemplate keeps a DaemonSet's count of template changes in the annotation that outlived its field; old is nil at creation.
func countTemplate(ds, old *appsv1.DaemonSet) {
	count := int64(1)
	if old != nil {
		count, _ = strconv.ParseInt(old.Annotations[appsv1.DeprecatedTemplateGeneration], 10, 64)
		if !equality.Semantic.DeepEqual(ds.Spec.Template, old.Spec.Template) {
			count++
		}
	} else if given, err := strconv.ParseInt(ds.Annotations[appsv1.DeprecatedTemplateGeneration], 10, 64); err == nil && given > 1 {
		count = given
	}
	if ds.Annotations == nil {
		ds.Annotations = map[string]string{}
	}
	ds.Annotations[appsv1.DeprecatedTemplateGeneration] = strconv.FormatInt(count, 10)
}

// generateSelector makes a Job select its own pods by its uid, unless it says manualSelector. Labels that contradict are left for
// validation to refuse.
func generateSelector(job *batchv1.Job) {
	if *job.Spec.ManualSelector {
		return
	}
	if job.Spec.Template.Labels == nil {
		job.Spec.Template.Labels = map[string]string{}
	}
	own := [...][2]string{
		{"job-name", job.Name}, {batchv1.JobNameLabel, job.Name},
		{"controller-uid", string(job.UID)}, {batchv1.ControllerUidLabel, string(job.UID)},
	}
	for _, label := range own {
		if _, taken := job.Spec.Template.Labels[label[0]]; !taken {
			job.Spec.Template.Labels[label[0]] = label[1]
		}
	}
	defaults.OrNew(&job.Spec.Selector, metav1.LabelSelector{})
	if job.Spec.Selector.MatchLabels == nil {
		job.Spec.Selector.MatchLabels = map[string]string{}
	}
	if _, taken := job.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel]; !taken {
		job.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel] = string(job.UID)
	}
}

// labelJob gives a Job without labels those of its pods. Kubernetes' decoder does that as it reads what was stored: what is wrong with a
// generated label is told of the template alone.
func labelJob(job *batchv1.Job) {
	if len(job.Labels) == 0 {
		job.Labels = job.Spec.Template.Labels
	}
}

// prepareService has the list of a new Service's addresses follow the one that it names.
func prepareService(svc *corev1.Service) {
	if spec := &svc.Spec; spec.ClusterIP != "" && len(spec.ClusterIPs) == 0 {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	if !defaults.NeedsClusterIP(svc) {
		svc.Spec.InternalTrafficPolicy = nil
	}
}

// keepAllocated gives a Service back the addresses and ports that an update left out.
func keepAllocated(spec *corev1.ServiceSpec, old *corev1.Service) {
	svc := &corev1.Service{Spec: *spec}
	if defaults.NeedsClusterIP(svc) && defaults.NeedsClusterIP(old) {
		defaults.Or(&spec.ClusterIP, old.Spec.ClusterIP)
	}
	pairAddresses(spec, &old.Spec)
	if NeedsNodePort(svc) && NeedsNodePort(old) {
		keepNodePorts(spec.Ports, old.Spec.Ports)
	}
	if NeedsHealthPort(svc) && NeedsHealthPort(old) {
		defaults.Or(&spec.HealthCheckNodePort, old.Spec.HealthCheckNodePort)
	}
}

// pairAddresses has clusterIP and the list clusterIPs follow each other, where a client that knows one of them has changed that alone.
func pairAddresses(now, before *corev1.ServiceSpec) {
	asBefore := slices.Equal(now.ClusterIPs, before.ClusterIPs)
	switch {
	case now.ClusterIP == before.ClusterIP && len(now.ClusterIPs) == 0:
		now.ClusterIPs = slices.Clone(before.ClusterIPs)
	case now.ClusterIP == "" && asBefore:
		now.ClusterIPs = nil
	case now.ClusterIP != "" && now.ClusterIP != before.ClusterIP && (asBefore || len(now.ClusterIPs) == 0):
		now.ClusterIPs = []string{now.ClusterIP}
	}
}

// keepNodePorts matches ports by name; a node port that the update uses elsewhere is not given twice.
func keepNodePorts(ports, old []corev1.ServicePort) {
	used, offered := map[int32]bool{0: true}, map[string][]int32{}
	for i := range ports {
		used[ports[i].NodePort] = true
	}
	for _, before := range old {
		offered[before.Name] = append(offered[before.Name], before.NodePort)
	}
	for i := range ports {
		name := ports[i].Name
		for ports[i].NodePort == 0 && len(offered[name]) > 0 {
			if port := offered[name][0]; !used[port] {
				ports[i].NodePort, used[port] = port, true
			}
			offered[name] = offered[name][1:] // used by now, for good
		}
	}
}

// NeedsNodePort says that a Service's type has a node port for each of its ports.
func NeedsNodePort(svc *corev1.Service) bool {
	allocate := svc.Spec.AllocateLoadBalancerNodePorts
	return svc.Spec.Type == corev1.ServiceTypeNodePort || svc.Spec.Type == corev1.ServiceTypeLoadBalancer && (allocate == nil || *allocate)
}

// NeedsHealthPort says that a Service has spec.healthCheckNodePort: a LoadBalancer's with externalTrafficPolicy Local.
func NeedsHealthPort(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeLoadBalancer && svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// dropWhatTypeNeedsNot clears what the old type had and the new one has no use for, where the update did not change it.
func dropWhatTypeNeedsNot(svc, old *corev1.Service) {
	spec, before := &svc.Spec, &old.Spec
	if defaults.NeedsClusterIP(old) && !defaults.NeedsClusterIP(svc) {
		if spec.ClusterIP == before.ClusterIP && slices.Equal(spec.ClusterIPs, before.ClusterIPs) {
			spec.ClusterIP, spec.ClusterIPs = "", nil
		}
		if slices.Equal(spec.IPFamilies, before.IPFamilies) {
			spec.IPFamilies = nil
		}
		spec.IPFamilyPolicy = dropIfSame(spec.IPFamilyPolicy, before.IPFamilyPolicy)
	}
	if NeedsNodePort(old) && !NeedsNodePort(svc) && slices.EqualFunc(spec.Ports, before.Ports, func(a, b corev1.ServicePort) bool { return a.NodePort == b.NodePort }) {
		for i := range spec.Ports {
			spec.Ports[i].NodePort = 0
		}
	}
	if NeedsHealthPort(old) && !NeedsHealthPort(svc) && spec.HealthCheckNodePort == before.HealthCheckNodePort {
		spec.HealthCheckNodePort = 0
	}
	if spec.Type != corev1.ServiceTypeLoadBalancer {
		if before.Type == corev1.ServiceTypeLoadBalancer {
			spec.AllocateLoadBalancerNodePorts = dropIfSame(spec.AllocateLoadBalancerNodePorts, before.AllocateLoadBalancerNodePorts)
			spec.LoadBalancerClass = dropIfSame(spec.LoadBalancerClass, before.LoadBalancerClass)
		}
		svc.Status.LoadBalancer = corev1.LoadBalancerStatus{}
	}
	if defaults.IsExternallyReachable(old) && !defaults.IsExternallyReachable(svc) && spec.ExternalTrafficPolicy == before.ExternalTrafficPolicy {
		spec.ExternalTrafficPolicy = ""
	}
}

// dropIfSame is nil for a pointer whose value did not change.
func dropIfSame[T comparable](now, before *T) *T {
	if now != nil && before != nil && *now == *before {
		return nil
	}
	return now
}

// ---- Metadata ----

// FillSystemFields sets what only the server decides about, whatever the client or a webhook sent.
func FillSystemFields(obj scheme.Object, now time.Time) {
	WipeSystemFields(obj)
	obj.SetUID(types.UID(uuid.NewString()))
	obj.SetCreationTimestamp(metav1.NewTime(now).Rfc3339Copy())
}

// WipeSystemFields leaves the resourceVersion: whether a new object may name one is decided where it is stored.
func WipeSystemFields(obj scheme.Object) {
	obj.SetUID("")
	obj.SetCreationTimestamp(metav1.Time{})
	obj.SetDeletionTimestamp(nil)
	obj.SetDeletionGracePeriodSeconds(nil)
	obj.SetSelfLink("")
}

const generatedSuffix = 5

// generateName appends five random characters that spell no words to a prefix, cut so that the name stays a DNS label.
func generateName(prefix string) string {
	const alphabet = "bcdfghjklmnpqrstvwxz2456789"
	prefix = prefix[:min(len(prefix), 63-generatedSuffix)]
	suffix := make([]byte, generatedSuffix)
	for i := range suffix {
		suffix[i] = alphabet[rand.IntN(len(alphabet))]
	}
	return prefix + string(suffix)
}

// keepElection drops the fields of coordinated leader election, which is off, but for those that are there already.
func keepElection(spec, old *coordinationv1.LeaseSpec) {
	if old.Strategy == nil {
		spec.Strategy = nil
	}
	if old.PreferredHolder == nil {
		spec.PreferredHolder = nil
	}
}

// renameJob has the labels by which a Job finds its pods say the name that it got last.
func renameJob(obj runtime.Object, before string) {
	job := obj.(*batchv1.Job)
	for _, labels := range [...]map[string]string{job.Labels, job.Spec.Template.Labels} {
		for _, label := range [...]string{"job-name", batchv1.JobNameLabel} {
			if value, ok := labels[label]; ok && value == before {
				labels[label] = job.Name
			}
		}
	}
}

// availability writes the condition of an APIService that is served here, if it is. Whether another server answers is found out later.
func availability(o *apiregistrationv1.APIService) {
	if o.Spec.Service != nil {
		return
	}
	condition := helper.NewLocalAvailableAPIServiceCondition()
	condition.LastTransitionTime = metav1.NewTime(time.Now().Truncate(time.Second))
	helper.SetAPIServiceCondition(o, condition)
}

func addEphemeralContainers(sent, pod *corev1.Pod) {
	pod.ResourceVersion, pod.ManagedFields = sent.ResourceVersion, sent.ManagedFields
	pod.Spec.EphemeralContainers = sent.Spec.EphemeralContainers
}

// finalize takes what metadata an update may change, too.
func finalize(sent, ns *corev1.Namespace) {
	ns.ObjectMeta, ns.Spec.Finalizers = sent.ObjectMeta, sent.Spec.Finalizers
}

// resize lets pods/resize change the resources of containers. Containers that do not match are left for validation to refuse.
func resize(sent, pod *corev1.Pod) {
	pod.ResourceVersion, pod.ManagedFields = sent.ResourceVersion, sent.ManagedFields
	pod.Spec.Containers = resized(sent.Spec.Containers, pod.Spec.Containers)
	pod.Spec.InitContainers = resized(sent.Spec.InitContainers, pod.Spec.InitContainers)
}

func resized(sent, containers []corev1.Container) []corev1.Container {
	sameName := func(a, b corev1.Container) bool { return a.Name == b.Name }
	if !slices.EqualFunc(sent, containers, sameName) {
		return sent
	}
	for i := range containers {
		containers[i].Resources, containers[i].ResizePolicy = sent[i].Resources, sent[i].ResizePolicy
	}
	return containers
}

// podGrace: only a Pod on a node waits: its kubelet is to stop it and delete it again, with 0.
func podGrace(obj runtime.Object, options *metav1.DeleteOptions) int64 {
	pod := obj.(*corev1.Pod)
	if pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return 0
	}
	grace := int64(0)
	switch {
	case options.GracePeriodSeconds != nil:
		grace = *options.GracePeriodSeconds
	case pod.DeletionGracePeriodSeconds != nil:
		grace = *pod.DeletionGracePeriodSeconds
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		grace = *pod.Spec.TerminationGracePeriodSeconds
	}
	if grace < 0 {
		return 1
	}
	return grace
}

func terminateNamespace(ns *corev1.Namespace) { ns.Status.Phase = corev1.NamespaceTerminating }

// namespaceFull: spec.finalizers is removed when a namespace has been emptied.
func namespaceFull(obj runtime.Object) bool { return len(obj.(*corev1.Namespace).Spec.Finalizers) > 0 }
