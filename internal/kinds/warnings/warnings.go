// Package warnings remarks on what is odd about an object that is valid: a deprecated field, a node selector by a label that is beta, two
// environment variables of one name.
//
//	for _, text := range warnings.ForObject(obj, old) {
//		warning.AddWarning(ctx, "", text) // k8s.io/apiserver/pkg/warning: a Warning header of the answer
//	}
//
// The texts, and when they are given, are Kubernetes': pkg/api/pod/warnings.go, pkg/api/service/warnings.go, pkg/api/persistentvolume and
// its neighbours, and WarningsOnCreate and WarningsOnUpdate of the strategies in pkg/registry. KEP-1693 says why there are such warnings;
// warn.go at the top writes the header and says how much of it a response may have.
//
// How it is read: texts are collected as package validation collects errors, by one function for each kind, in Kubernetes' order. Where
// Kubernetes makes the difference, an update is told of what it made odd, and not of what was odd before.
//
// Invariants: objects come validated and defaulted; nothing is changed except by [DropDuplicateOwners] and [DropAdmittedDuplicates]; a text is cut where it
// quotes what the client has sent.
package warnings

import (
	"crypto/tls"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	batchv1beta1 "k8s.io/api/batch/v1beta1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"apilet/internal/apierror"
)

// JobDeletionWarning is for the deletion of batch/v1 Jobs without a propagation policy: that API keeps their pods, others do not.
const JobDeletionWarning = "child pods are preserved by default when jobs are deleted; " +
	"set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning"

// DropDuplicateOwners removes equal ownerReferences from the object of a request. It returns the warning about them, or "" if there were none.
func DropDuplicateOwners(obj metav1.Object) string { return dropDuplicateOwners(obj, "") }

// DropAdmittedDuplicates does the same for an object that a patch or the mutating plug-ins have made. Its warning says so.
func DropAdmittedDuplicates(obj metav1.Object) string {
	return dropDuplicateOwners(obj, " after mutating admission happens")
}

func dropDuplicateOwners(obj metav1.Object, when string) string {
	refs := obj.GetOwnerReferences()
	if len(refs) < 2 {
		return ""
	}
	var kept []metav1.OwnerReference
	var uids []string
	seen := make(map[ownerValue]bool, len(refs))
	for _, ref := range refs {
		value := valueOfOwner(ref)
		if seen[value] {
			uids = append(uids, string(ref.UID))
			continue
		}
		seen[value] = true
		kept = append(kept, ref)
	}
	if len(uids) == 0 {
		return ""
	}
	obj.SetOwnerReferences(kept)
	return fmt.Sprintf(".metadata.ownerReferences contains duplicate entries%s; API server dedups owner references in 1.20+, "+
		"and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: %s", when, strings.Join(uids, ", "))
}

// An ownerValue is a reference to an owner, to be compared.
type ownerValue struct {
	ref                metav1.OwnerReference // without its pointers
	controller, blocks string
}

func valueOfOwner(ref metav1.OwnerReference) ownerValue {
	text := func(b *bool) string {
		if b == nil {
			return ""
		}
		return strconv.FormatBool(*b)
	}
	value := ownerValue{ref, text(ref.Controller), text(ref.BlockOwnerDeletion)}
	value.ref.Controller, value.ref.BlockOwnerDeletion = nil, nil
	return value
}

// texts collects warnings about one object.
type texts []string

// at adds a warning about a field.
func (o *texts) at(p *field.Path, format string, args ...any) {
	if len(*o) < apierror.MaxErrors {
		o.say("%s: %s", p, fmt.Sprintf(format, args...))
	}
}

// say adds one; what comes late enough fits into no header.
func (o *texts) say(format string, args ...any) {
	if len(*o) >= apierror.MaxErrors {
		return
	}
	*o = append(*o, fmt.Sprintf(format, args...))
}

// ForObject returns what is odd about an object that is valid: call it after validation, with defaults filled in and
// metadata.generation counted, for the object itself and not for its subresources. old is nil for a create. Pod templates are looked
// at when they are new or the generation has changed; Pods, which change all the time, at their creation alone.
func ForObject(obj, old runtime.Object) []string {
	var o texts
	if old == nil {
		o.created(obj)
	}
	if steps, template := templateOf(obj); template != nil && templateChanged(obj, old) {
		o.podSpec(field.NewPath(steps[0], steps[1:]...), &template.Spec, &template.ObjectMeta)
	}
	o.job(obj, old)
	o.network(obj, old)
	o.storage(obj, old)
	switch obj := obj.(type) {
	case *unstructured.Unstructured:
		o.finalizers(obj, old)
	case *corev1.Secret:
		o.secret(obj)
	case *corev1.ServiceAccount:
		o.serviceAccount(obj, old)
	case *corev1.Node:
		o.node(obj)
	case *nodev1.RuntimeClass:
		o.runtimeClass(obj)
	case *storagev1.CSIDriver:
		o.driver(obj, old)
	}
	return o
}

// serviceAccount speaks once of a way to keep secrets apart that is given up.
func (o *texts) serviceAccount(obj *corev1.ServiceAccount, old runtime.Object) {
	const enforce = "kubernetes.io/enforce-mountable-secrets"
	if before, ok := old.(*corev1.ServiceAccount); ok {
		if _, known := before.Annotations[enforce]; known {
			return
		}
	}
	if _, ok := obj.Annotations[enforce]; ok {
		o.say("metadata.annotations[%s]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets", enforce)
	}
}

// driver speaks of tokens that a driver is given in the open.
func (o *texts) driver(obj *storagev1.CSIDriver, old runtime.Object) {
	if before, ok := old.(*storagev1.CSIDriver); ok && equality.Semantic.DeepEqual(before.Spec.TokenRequests, obj.Spec.TokenRequests) {
		return
	}
	if len(obj.Spec.TokenRequests) > 0 && obj.Spec.ServiceAccountTokenInSecrets == nil {
		o.say("spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes")
	}
}

// templateOf returns the pod template of the kinds that have one, and where.
func templateOf(obj runtime.Object) (steps []string, template *corev1.PodTemplateSpec) {
	switch obj := obj.(type) {
	case *corev1.PodTemplate:
		return []string{"template"}, &obj.Template
	case *corev1.ReplicationController:
		template = obj.Spec.Template
	case *appsv1.Deployment:
		template = &obj.Spec.Template
	case *appsv1.ReplicaSet:
		template = &obj.Spec.Template
	case *appsv1.StatefulSet:
		template = &obj.Spec.Template
	case *appsv1.DaemonSet:
		template = &obj.Spec.Template
	case *batchv1.Job:
		template = &obj.Spec.Template
	case *batchv1.CronJob:
		return []string{"spec", "jobTemplate", "spec", "template"}, &obj.Spec.JobTemplate.Spec.Template
	case *batchv1beta1.CronJob:
		return []string{"spec", "jobTemplate", "spec", "template"}, &obj.Spec.JobTemplate.Spec.Template
	default:
		return nil, nil
	}
	return []string{"spec", "template"}, template
}

func templateChanged(obj, old runtime.Object) bool {
	if old == nil {
		return true
	}
	if ds, ok := obj.(*appsv1.DaemonSet); ok { // it counts its templates apart
		return !equality.Semantic.DeepEqual(ds.Spec.Template, old.(*appsv1.DaemonSet).Spec.Template)
	}
	return generationOf(obj) != generationOf(old)
}

func generationOf(obj runtime.Object) int64 {
	if m, ok := obj.(metav1.Object); ok {
		return m.GetGeneration()
	}
	return 0
}

// created is what is said at an object's creation only.
func (o *texts) created(obj runtime.Object) {
	switch obj := obj.(type) {
	case *corev1.Pod:
		o.podName(obj.Name, "the Pod's hostname")
		o.podSpec(nil, &obj.Spec, &obj.ObjectMeta)
	case *appsv1.Deployment:
		o.podName(obj.Name, "Pod names and hostnames")
	case *appsv1.ReplicaSet:
		o.podName(obj.Name, "Pod names and hostnames")
	case *corev1.ReplicationController:
		o.podName(obj.Name, "Pod names and hostnames")
	case *batchv1.Job:
		o.podName(obj.Name, "Pod names and hostnames")
	case *batchv1.CronJob:
		o.podName(obj.Name, "Pod names and hostnames")
	case *batchv1beta1.CronJob:
		o.podName(obj.Name, "Pod names and hostnames")
	case *corev1.ResourceQuota:
		o.quota(obj.Spec.Hard)
	}
}

func (o *texts) podName(name, usedIn string) {
	if msgs := validation.IsDNS1123Label(name); len(msgs) > 0 {
		o.say("metadata.name: this is used in %s, which can result in surprising behavior; a DNS label is recommended: %v", usedIn, msgs)
	}
}

func (o *texts) quota(hard corev1.ResourceList) {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceStorage, corev1.ResourceEphemeralStorage} {
		requests := "requests." + name
		if _, ok := hard[requests]; !ok && (name == corev1.ResourceCPU || name == corev1.ResourceMemory) {
			requests = name // the short form of these two
		}
		request, hasRequest := hard[requests]
		limit, hasLimit := hard["limits."+name]
		if hasRequest && hasLimit && request.Cmp(limit) > 0 {
			o.say("ResourceQuota %s (%s) should be less than limits.%s (%s)", requests, request.String(), name, limit.String())
		}
	}
}

// finalizers looks at the finalizers that a custom resource has gained; built-in types refuse bad ones.
func (o *texts) finalizers(obj metav1.Object, old runtime.Object) {
	var known []string
	if m, ok := old.(metav1.Object); ok {
		known = m.GetFinalizers()
	}
	known = append(slices.Clone(known), metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents, string(corev1.FinalizerKubernetes))
	names := slices.Clone(obj.GetFinalizers())
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if strings.Contains(name, "/") || slices.Contains(known, name) {
			continue
		}
		path := ""
		if strings.Contains(name, ".") {
			path = " including a path (/)"
		}
		o.say("metadata.finalizers: %q: prefer a domain-qualified finalizer name%s to avoid accidental conflicts with other finalizer writers", name, path)
	}
}

// job looks at what Jobs and CronJobs have beside their pod template.
func (o *texts) job(obj, old runtime.Object) {
	var spec *batchv1.JobSpec
	var path *field.Path
	switch obj := obj.(type) {
	case *batchv1.Job:
		spec, path = &obj.Spec, field.NewPath("spec")
	case *batchv1.CronJob:
		spec, path = &obj.Spec.JobTemplate.Spec, field.NewPath("spec", "jobTemplate", "spec")
		if old != nil && strings.Contains(obj.Spec.Schedule, "TZ") { // a create with it is refused
			o.say("cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, " + // sic
				"see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details")
		}
	default:
		return
	}
	indexed := spec.CompletionMode != nil && *spec.CompletionMode == batchv1.IndexedCompletion
	if indexed && int32Or0(spec.Completions) > 100_000 && int32Or0(spec.Parallelism) > 10_000 && templateChanged(obj, old) {
		o.at(path, "In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, "+
			"Kubernetes might not be able to track completedIndexes when a big number of indexes fail")
	}
}

func int32Or0(n *int32) int32 {
	if n == nil {
		return 0
	}
	return *n
}

func (o *texts) secret(secret *corev1.Secret) {
	if secret.Type != corev1.SecretTypeTLS {
		return
	}
	if _, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]); err != nil {
		o.say("%v", err)
	}
}

func (o *texts) runtimeClass(class *nodev1.RuntimeClass) {
	if class.Scheduling == nil {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(class.Scheduling.NodeSelector)) {
		if msg := deprecatedNodeLabels[key]; msg != "" {
			o.at(field.NewPath("scheduling", "nodeSelector"), "%s", msg)
		}
	}
}

func (o *texts) node(node *corev1.Node) {
	if node.Spec.ConfigSource != nil {
		o.say("spec.configSource: the feature is removed")
	}
	if node.Spec.DoNotUseExternalID != "" {
		o.say("spec.externalID: this field is deprecated, and is unused by Kubernetes")
	}
	for i, cidr := range node.Spec.PodCIDRs {
		o.cidr(field.NewPath("spec", "podCIDRs").Index(i), cidr)
	}
}

// network looks at Services and the other kinds that hold addresses.
func (o *texts) network(obj, old runtime.Object) {
	switch obj := obj.(type) {
	case *corev1.Service:
		o.service(obj)
	case *networkingv1.Ingress:
		_, annotated := obj.Annotations["kubernetes.io/ingress.class"]
		if old == nil && annotated && obj.Spec.IngressClassName == nil {
			o.say("annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead")
		}
	case *networkingv1.NetworkPolicy:
		for i, rule := range obj.Spec.Ingress {
			o.peers(field.NewPath("spec", "ingress").Index(i).Child("from"), rule.From)
		}
		for i, rule := range obj.Spec.Egress {
			o.peers(field.NewPath("spec", "egress").Index(i).Child("to"), rule.To)
		}
	case *corev1.Endpoints:
		for i, subset := range obj.Subsets {
			path := field.NewPath("subsets").Index(i)
			o.endpoints(path.Child("addresses"), subset.Addresses)
			o.endpoints(path.Child("notReadyAddresses"), subset.NotReadyAddresses)
		}
	case *discoveryv1.EndpointSlice:
		if old == nil && obj.AddressType == discoveryv1.AddressTypeFQDN {
			o.say("spec.addressType: FQDN endpoints are deprecated")
		}
		for i, endpoint := range obj.Endpoints {
			o.ips(field.NewPath("endpoints").Index(i).Child("addresses"), endpoint.Addresses)
		}
	}
}

func (o *texts) peers(path *field.Path, peers []networkingv1.NetworkPolicyPeer) {
	for i, peer := range peers {
		if peer.IPBlock == nil {
			continue
		}
		block := path.Index(i).Child("ipBlock")
		o.cidr(block.Child("cidr"), peer.IPBlock.CIDR)
		for j, except := range peer.IPBlock.Except {
			o.cidr(block.Child("except").Index(j), except)
		}
	}
}

func (o *texts) endpoints(path *field.Path, addresses []corev1.EndpointAddress) {
	for i, address := range addresses {
		o.ip(path.Index(i).Child("ip"), address.IP)
	}
}

func (o *texts) service(svc *corev1.Service) {
	spec, path := &svc.Spec, field.NewPath("spec")
	if _, ok := svc.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]; ok {
		o.say("annotation %s is deprecated, please use %s instead", corev1.DeprecatedAnnotationTopologyAwareHints, corev1.AnnotationTopologyMode)
	}
	headless := spec.Type == corev1.ServiceTypeClusterIP && spec.ClusterIP == corev1.ClusterIPNone
	external := spec.Type == corev1.ServiceTypeExternalName
	if spec.ClusterIP != "" && spec.ClusterIP != corev1.ClusterIPNone {
		o.ips(path.Child("clusterIPs"), spec.ClusterIPs)
	}
	if headless {
		o.ignoredByHeadless(spec)
	}
	o.ips(path.Child("externalIPs"), spec.ExternalIPs)
	if len(spec.ExternalIPs) > 0 && !headless && !external {
		o.say("spec.externalIPs is deprecated and may no longer be implemented in some clusters")
	}
	if spec.LoadBalancerIP != "" {
		o.ip(path.Child("loadBalancerIP"), spec.LoadBalancerIP)
	}
	for i, cidr := range spec.LoadBalancerSourceRanges {
		o.cidr(path.Child("loadBalancerSourceRanges").Index(i), cidr)
	}
	if external && len(spec.ExternalIPs) > 0 {
		o.say("spec.externalIPs is ignored when spec.type is %q", corev1.ServiceTypeExternalName)
	}
	if !external && spec.ExternalName != "" {
		o.say("spec.externalName is ignored when spec.type is not %q", corev1.ServiceTypeExternalName)
	}
	if d := spec.TrafficDistribution; d != nil && *d == corev1.ServiceTrafficDistributionPreferClose {
		o.say("spec.trafficDistribution: %q is deprecated; use %q", corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone)
	}
}

func (o *texts) ignoredByHeadless(spec *corev1.ServiceSpec) {
	if spec.LoadBalancerIP != "" {
		o.say("spec.loadBalancerIP is ignored for headless services")
	}
	if len(spec.ExternalIPs) > 0 {
		o.say("spec.externalIPs is ignored for headless services")
	}
	if spec.SessionAffinity != corev1.ServiceAffinityNone && spec.SessionAffinity != "" {
		o.say("spec.SessionAffinity is ignored for headless services")
	}
}

func (o *texts) ips(path *field.Path, values []string) {
	for i, value := range values {
		o.ip(path.Index(i), value)
	}
}

// ip and cidr keep quiet about what is no address at all: validation says so where it is on.
func (o *texts) ip(path *field.Path, value string) {
	if len(validation.IsValidIPForLegacyField(path, value, false, nil)) == 0 {
		*o = append(*o, validation.GetWarningsForIP(path, value)...)
	}
}

func (o *texts) cidr(path *field.Path, value string) {
	if len(validation.IsValidCIDRForLegacyField(path, value, false, nil)) == 0 {
		*o = append(*o, validation.GetWarningsForCIDR(path, value)...)
	}
}

// storage looks at volumes, claims and classes.
func (o *texts) storage(obj, old runtime.Object) {
	switch obj := obj.(type) {
	case *corev1.PersistentVolume:
		o.persistentVolume(obj)
	case *corev1.PersistentVolumeClaim:
		o.annotation(nil, obj.Annotations, "volume.beta.kubernetes.io/storage-class", `deprecated since v1.8; use "storageClassName" attribute instead`)
		o.claim(field.NewPath("spec"), &obj.Spec)
	case *appsv1.StatefulSet:
		for i := range obj.Spec.VolumeClaimTemplates {
			path := field.NewPath("spec", "volumeClaimTemplates").Index(i)
			if old != nil {
				path = path.Child("Spec") // sic: Kubernetes names the path so for updates alone
			}
			o.claim(path, &obj.Spec.VolumeClaimTemplates[i].Spec)
		}
		if int32Or0(obj.Spec.RevisionHistoryLimit) < 0 {
			o.say("spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended")
		}
	case *storagev1.StorageClass:
		for i, term := range obj.AllowedTopologies {
			o.topology(field.NewPath("allowedTopologies").Index(i).Child("matchLabelExpressions"), term.MatchLabelExpressions)
		}
	}
}

func (o *texts) topology(path *field.Path, labels []corev1.TopologySelectorLabelRequirement) {
	for i, label := range labels {
		if msg := deprecatedNodeLabels[label.Key]; msg != "" {
			o.at(path.Index(i).Child("key"), "%s", msg)
		}
	}
}

func (o *texts) annotation(path *field.Path, annotations map[string]string, key, msg string) {
	if _, ok := annotations[key]; ok {
		o.at(path.Child("metadata", "annotations").Key(key), "%s", msg)
	}
}

func (o *texts) persistentVolume(pv *corev1.PersistentVolume) {
	spec, path := &pv.Spec, field.NewPath("spec")
	o.annotation(nil, pv.Annotations, "volume.beta.kubernetes.io/storage-class", `deprecated since v1.8; use "storageClassName" attribute instead`)
	o.annotation(nil, pv.Annotations, "volume.beta.kubernetes.io/mount-options", `deprecated since v1.31; use "mountOptions" attribute instead`)
	if spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		o.at(path.Child("persistentVolumeReclaimPolicy"), "The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.")
	}
	if spec.NodeAffinity != nil && spec.NodeAffinity.Required != nil {
		o.nodeTerms(path.Child("nodeAffinity", "required", "nodeSelectorTerms"), spec.NodeAffinity.Required.NodeSelectorTerms)
	}
	o.volumePlugins(path, []volumePlugin{
		{"cephfs", spec.CephFS != nil, cephfsGone}, {"photonPersistentDisk", spec.PhotonPersistentDisk != nil, photonGone},
		{"scaleIO", spec.ScaleIO != nil, scaleIOGone}, {"storageOS", spec.StorageOS != nil, storageOSGone},
		{"glusterfs", spec.Glusterfs != nil, glusterfsGone}, {"rbd", spec.RBD != nil, rbdGone},
	})
}

// A volumePlugin that Kubernetes no longer has, or will not have for long.
type volumePlugin struct {
	name string
	used bool
	gone string
}

const photonGone = "deprecated in v1.11, non-functional in v1.16+"

const gitRepoGone = "deprecated in v1.11, and disabled by default in v1.33+"

const scaleIOGone = "deprecated in v1.16, non-functional in v1.22+"

const storageOSGone = "deprecated in v1.22, non-functional in v1.25+" // and Flocker, Quobyte

const glusterfsGone = "deprecated in v1.25, non-functional in v1.26+"

const cephfsGone = "deprecated in v1.28, non-functional in v1.31+"

const rbdGone = cephfsGone

func (o *texts) volumePlugins(path *field.Path, plugins []volumePlugin) {
	for _, plugin := range plugins {
		if plugin.used {
			o.at(path.Child(plugin.name), "%s", plugin.gone)
		}
	}
}

func (o *texts) claim(path *field.Path, spec *corev1.PersistentVolumeClaimSpec) {
	o.wholeBytes(path.Child("resources", "requests"), spec.Resources.Requests, corev1.ResourceStorage)
	o.wholeBytes(path.Child("resources", "limits"), spec.Resources.Limits, corev1.ResourceStorage)
}

// wholeBytes looks for quantities like 100m, which people write when they mean 100M.
func (o *texts) wholeBytes(path *field.Path, resources corev1.ResourceList, names ...corev1.ResourceName) {
	for _, name := range names {
		if q, ok := resources[name]; ok && q.MilliValue()%1000 != 0 {
			o.at(path.Key(string(name)), "fractional byte value %q is invalid, must be an integer", q.String())
		}
	}
}

// podSpec looks at a pod (path nil) or a pod template (path says where it is).
func (o *texts) podSpec(path *field.Path, spec *corev1.PodSpec, meta *metav1.ObjectMeta) {
	at := path.Child("spec")
	for _, key := range slices.Sorted(maps.Keys(spec.NodeSelector)) {
		if msg := deprecatedNodeLabels[key]; msg != "" {
			o.at(at.Child("nodeSelector").Key(key), "%s", msg)
		}
	}
	o.affinity(at.Child("affinity"), spec.Affinity)
	for i, t := range spec.TopologySpreadConstraints {
		o.nodeLabel(at.Child("topologySpreadConstraints").Index(i).Child("topologyKey"), t.TopologyKey)
		o.nullSelector(at.Child("topologySpreadConstraints").Index(i), t.LabelSelector)
	}
	for _, a := range deprecatedPodAnnotations {
		o.annotation(path, meta.Annotations, a.key, a.msg)
	}
	for i := range spec.Volumes {
		o.volume(at.Child("volumes").Index(i), &spec.Volumes[i])
	}
	o.hosts(at, spec)
	o.pullSecrets(at.Child("imagePullSecrets"), spec.ImagePullSecrets)
	o.wholeBytes(at.Child("overhead"), spec.Overhead, corev1.ResourceMemory, corev1.ResourceEphemeralStorage)
	o.profiles(path, spec, meta)

	ports := portTable{seen: map[string][]portAt{}, names: map[string]*field.Path{}}
	eachContainer(at, spec, func(p *field.Path, c *corev1.Container) {
		o.wholeBytes(p.Child("resources", "limits"), c.Resources.Limits, corev1.ResourceMemory, corev1.ResourceEphemeralStorage)
		o.wholeBytes(p.Child("resources", "requests"), c.Resources.Requests, corev1.ResourceMemory, corev1.ResourceEphemeralStorage)
		o.env(p.Child("env"), c.Env)
		for i, port := range c.Ports {
			o.port(&ports, portAt{p.Child("ports").Index(i), port})
		}
	})
	if s := spec.TerminationGracePeriodSeconds; s != nil && *s < 0 && path != nil { // of a pod itself it is set to 1 without a word
		o.at(at.Child("terminationGracePeriodSeconds"), "must be >= 0; negative values are invalid and will be treated as 1")
	}
}

func eachContainer(path *field.Path, spec *corev1.PodSpec, visit func(*field.Path, *corev1.Container)) {
	for i := range spec.InitContainers {
		visit(path.Child("initContainers").Index(i), &spec.InitContainers[i])
	}
	for i := range spec.Containers {
		visit(path.Child("containers").Index(i), &spec.Containers[i])
	}
	for i := range spec.EphemeralContainers {
		c := corev1.Container(spec.EphemeralContainers[i].EphemeralContainerCommon)
		visit(path.Child("ephemeralContainers").Index(i), &c)
	}
}

var deprecatedNodeLabels = map[string]string{
	"beta.kubernetes.io/arch":                       `deprecated since v1.14; use "kubernetes.io/arch" instead`,
	"beta.kubernetes.io/os":                         `deprecated since v1.14; use "kubernetes.io/os" instead`,
	"failure-domain.beta.kubernetes.io/region":      `deprecated since v1.17; use "topology.kubernetes.io/region" instead`,
	"failure-domain.beta.kubernetes.io/zone":        `deprecated since v1.17; use "topology.kubernetes.io/zone" instead`,
	"beta.kubernetes.io/instance-type":              `deprecated since v1.17; use "node.kubernetes.io/instance-type" instead`,
	"app.kubernetes.io/created-by":                  `deprecated since v1.9`,
	"scheduler.alpha.kubernetes.io/preferAvoidPods": `deprecated since v1.22; use Taints and Tolerations instead`,
	"node-role.kubernetes.io/master":                `use "node-role.kubernetes.io/control-plane" instead`,
}

var deprecatedPodAnnotations = []struct{ key, msg string }{
	{"scheduler.alpha.kubernetes.io/critical-pod", `non-functional in v1.16+; use the "priorityClassName" field instead`},
	{"security.alpha.kubernetes.io/sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
	{"security.alpha.kubernetes.io/unsafe-sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
}

// nodeLabel is for a label's name as a value; where it is a key of the manifest, the path names it.
func (o *texts) nodeLabel(path *field.Path, label string) {
	if msg := deprecatedNodeLabels[label]; msg != "" {
		o.at(path, "%s is %s", label, msg)
	}
}

func (o *texts) nodeTerms(path *field.Path, terms []corev1.NodeSelectorTerm) {
	for i, term := range terms {
		for j, e := range term.MatchExpressions {
			o.nodeLabel(path.Index(i).Child("matchExpressions").Index(j).Child("key"), e.Key)
		}
	}
}

func (o *texts) nullSelector(path *field.Path, selector *metav1.LabelSelector) {
	if selector == nil {
		o.at(path.Child("labelSelector"), "a null labelSelector results in matching no pod")
	}
}

const requiredTerms = "requiredDuringSchedulingIgnoredDuringExecution"

const preferredTerms = "preferredDuringSchedulingIgnoredDuringExecution"

func (o *texts) affinity(path *field.Path, a *corev1.Affinity) {
	if a == nil {
		return
	}
	if node := a.NodeAffinity; node != nil {
		o.nodeAffinity(path.Child("nodeAffinity"), node)
	}
	if pod := a.PodAffinity; pod != nil {
		o.podTerms(path.Child("podAffinity"), pod.RequiredDuringSchedulingIgnoredDuringExecution, pod.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if pod := a.PodAntiAffinity; pod != nil {
		o.podTerms(path.Child("podAntiAffinity"), pod.RequiredDuringSchedulingIgnoredDuringExecution, pod.PreferredDuringSchedulingIgnoredDuringExecution)
	}
}

func (o *texts) nodeAffinity(path *field.Path, node *corev1.NodeAffinity) {
	if required := node.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		o.nodeTerms(path.Child(requiredTerms, "nodeSelectorTerms"), required.NodeSelectorTerms)
	}
	for i, term := range node.PreferredDuringSchedulingIgnoredDuringExecution {
		for j, e := range term.Preference.MatchExpressions {
			at := path.Child(preferredTerms).Index(i).Child("preference", "matchExpressions").Index(j)
			o.nodeLabel(at.Child("key"), e.Key)
			for k, value := range e.Values {
				for _, msg := range validation.IsValidLabelValue(value) { // refused in required terms
					o.at(at.Child("values").Index(k), "%s is invalid, %s", value, msg)
				}
			}
		}
	}
}

func (o *texts) podTerms(path *field.Path, required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
	for i, term := range required {
		o.nullSelector(path.Child(requiredTerms).Index(i), term.LabelSelector)
	}
	for i, term := range preferred {
		o.nullSelector(path.Child(preferredTerms).Index(i).Child("podAffinityTerm"), term.PodAffinityTerm.LabelSelector)
	}
}

func (o *texts) volume(path *field.Path, v *corev1.Volume) {
	o.volumePlugins(path, []volumePlugin{
		{"photonPersistentDisk", v.PhotonPersistentDisk != nil, photonGone}, {"gitRepo", v.GitRepo != nil, gitRepoGone},
		{"scaleIO", v.ScaleIO != nil, scaleIOGone}, {"flocker", v.Flocker != nil, storageOSGone},
		{"storageOS", v.StorageOS != nil, storageOSGone}, {"quobyte", v.Quobyte != nil, storageOSGone},
		{"glusterfs", v.Glusterfs != nil, glusterfsGone}, {"cephfs", v.CephFS != nil, cephfsGone}, {"rbd", v.RBD != nil, rbdGone},
	})
	if v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
		o.claim(path.Child("ephemeral", "volumeClaimTemplate", "spec"), &v.Ephemeral.VolumeClaimTemplate.Spec)
	}
	o.overlaps(v)
}

// hosts looks at what the pod's resolver is told.
func (o *texts) hosts(path *field.Path, spec *corev1.PodSpec) {
	seen := map[string]bool{}
	for i, alias := range spec.HostAliases {
		if seen[alias.IP] {
			o.at(path.Child("hostAliases").Index(i).Child("ip"), "duplicate ip %q", alias.IP)
		}
		seen[alias.IP] = true
		o.ip(path.Child("hostAliases").Index(i).Child("ip"), alias.IP)
	}
	if spec.DNSConfig != nil {
		o.ips(path.Child("dnsConfig", "nameservers"), spec.DNSConfig.Nameservers)
	}
}

func (o *texts) pullSecrets(path *field.Path, secrets []corev1.LocalObjectReference) {
	seen := map[string]bool{}
	for i, secret := range secrets {
		if seen[secret.Name] {
			o.at(path.Index(i).Child("name"), "duplicate name %q", secret.Name)
		}
		seen[secret.Name] = true
		if secret.Name == "" {
			o.at(path.Index(i).Child("name"), "invalid empty name %q", "")
		}
	}
}

// profiles looks for seccomp and AppArmor annotations whose field is not set.
func (o *texts) profiles(path *field.Path, spec *corev1.PodSpec, meta *metav1.ObjectMeta) {
	if len(meta.Annotations) == 0 {
		return
	}
	const seccomp = `non-functional in v1.27+; use the "seccompProfile" field instead`
	pod := spec.SecurityContext
	if pod == nil || pod.SeccompProfile == nil {
		o.annotation(path, meta.Annotations, corev1.SeccompPodAnnotationKey, seccomp)
	}
	podHasAppArmor := pod != nil && pod.AppArmorProfile != nil
	eachContainer(path.Child("spec"), spec, func(_ *field.Path, c *corev1.Container) {
		own := c.SecurityContext
		if own == nil || own.SeccompProfile == nil {
			o.annotation(path, meta.Annotations, corev1.SeccompContainerAnnotationKeyPrefix+c.Name, seccomp)
		}
		// Of pods themselves Kubernetes copies this annotation to the field, so it speaks of templates alone.
		if path != nil && !podHasAppArmor && (own == nil || own.AppArmorProfile == nil) {
			o.annotation(path, meta.Annotations, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name,
				`deprecated since v1.30; use the "appArmorProfile" field instead`)
		}
	})
}

// env looks for variables that hide an earlier one; extending it, A=$(A):more, is what people mean.
func (o *texts) env(path *field.Path, env []corev1.EnvVar) {
	seen := map[string]bool{}
	for i, v := range env {
		ref := "$(" + v.Name + ")"
		extends := v.ValueFrom == nil && v.Value != ref && strings.Contains(v.Value, ref)
		if seen[v.Name] && !extends {
			o.at(path.Index(i), "hides previous definition of %q, which may be dropped when using apply", v.Name)
		}
		seen[v.Name] = true
	}
}

// A portTable has the ports met so far, of all containers of a pod.
type portTable struct {
	seen  map[string][]portAt // by number and protocol
	names map[string]*field.Path
}

type portAt struct {
	path *field.Path
	port corev1.ContainerPort
}

// portsCompared is with how many ports of its number and protocol a port is compared: thousands of equal ones would be millions of warnings, of
// which an answer has room for a few dozen.
const portsCompared = 16

func (o *texts) port(table *portTable, p portAt) {
	if p.port.HostIP != "" && p.port.HostPort == 0 {
		o.at(p.path, "hostIP set without hostPort: %+v", p.port)
	}
	key := fmt.Sprintf("%d/%s", p.port.ContainerPort, p.port.Protocol)
	for _, other := range table.seen[key] { // few: who is in the way of all has been told of
		if how := portClash(p.port, other.port); how != "" {
			o.at(p.path, "%s port definition with %s", how, other.path)
		}
	}
	if len(table.seen[key]) < portsCompared {
		table.seen[key] = append(table.seen[key], p)
	}
	if p.port.Name == "" {
		return
	}
	if other := table.names[p.port.Name]; other != nil {
		o.at(p.path, "duplicate port name %q with %s, services and probes that select ports by name will use %s", p.port.Name, other, other)
		return
	}
	table.names[p.port.Name] = p.path
}

// portClash says how two ports of one number and protocol get into each other's way; "" when they do not.
func portClash(a, b corev1.ContainerPort) string {
	switch {
	case a.HostIP == b.HostIP && a.HostPort == b.HostPort:
		return "duplicate"
	case a.HostPort == 0 || b.HostPort == 0:
		return "overlapping"
	case a.HostPort == b.HostPort && (a.HostIP == "") != (b.HostIP == ""):
		return "dangerously ambiguous"
	}
	return ""
}

// A filePath is where a volume puts a file; source is told only where a volume has several.
type filePath struct{ path, source string }

func (f filePath) String() string {
	if f.source == "" {
		return strconv.Quote(f.path)
	}
	return fmt.Sprintf("%q (%s)", f.path, f.source)
}

// overlaps looks for files of one volume that are in the way of one another.
func (o *texts) overlaps(v *corev1.Volume) {
	switch {
	case v.ConfigMap != nil:
		o.overlapping(v.Name, fmt.Sprintf("ConfigMap %q", v.ConfigMap.Name), keyPaths("", v.ConfigMap.Items))
	case v.Secret != nil:
		o.overlapping(v.Name, fmt.Sprintf("Secret %q", v.Secret.SecretName), keyPaths("", v.Secret.Items))
	case v.DownwardAPI != nil:
		o.overlapping(v.Name, "DownwardAPI", downwardPaths("", v.DownwardAPI.Items))
	case v.Projected != nil:
		var all []filePath
		for _, source := range v.Projected.Sources {
			if source == (corev1.VolumeProjection{}) {
				o.say("volume %q (Projected) has no sources provided", v.Name)
			}
			all = append(all, projectedPaths(source)...)
		}
		o.overlapping(v.Name, "Projected", all)
	}
}

func projectedPaths(source corev1.VolumeProjection) []filePath {
	switch {
	case source.ConfigMap != nil:
		return keyPaths(fmt.Sprintf("ConfigMap %q", source.ConfigMap.Name), source.ConfigMap.Items)
	case source.Secret != nil:
		return keyPaths(fmt.Sprintf("Secret %q", source.Secret.Name), source.Secret.Items)
	case source.DownwardAPI != nil:
		return downwardPaths("DownwardAPI", source.DownwardAPI.Items)
	case source.ServiceAccountToken != nil:
		return []filePath{{source.ServiceAccountToken.Path, "ServiceAccountToken"}}
	case source.ClusterTrustBundle != nil:
		name := source.ClusterTrustBundle.Name
		if name == nil {
			name = source.ClusterTrustBundle.SignerName
		}
		if name == nil {
			name = new(string)
		}
		return []filePath{{source.ClusterTrustBundle.Path, fmt.Sprintf("ClusterTrustBundle %q", *name)}}
	case source.PodCertificate != nil:
		c := source.PodCertificate
		return []filePath{{c.CertificateChainPath, "PodCertificate chain"}, {c.KeyPath, "PodCertificate key"}, {c.CredentialBundlePath, "PodCertificate credential bundle"}}
	}
	return nil
}

func keyPaths(source string, items []corev1.KeyToPath) []filePath {
	paths := make([]filePath, 0, len(items))
	for _, item := range items {
		paths = append(paths, filePath{item.Path, source})
	}
	return paths
}

func downwardPaths(source string, items []corev1.DownwardAPIVolumeFile) []filePath {
	paths := make([]filePath, 0, len(items))
	for _, item := range items {
		paths = append(paths, filePath{item.Path, source})
	}
	return paths
}

// within tells whether a path is a folder's, or lies in it.
func within(path, folder string) bool {
	return strings.HasPrefix(path, folder) && (len(path) == len(folder) || path[len(folder)] == '/')
}

// maxComparedPaths is how many of a volume's files are compared with each other.
const maxComparedPaths = 1000

func (o *texts) overlapping(volume, kind string, paths []filePath) {
	for i := range paths[:min(len(paths), maxComparedPaths)] {
		a := &paths[i]
		if a.path = strings.TrimRight(a.path, "/"); a.path == "" {
			continue
		}
		for _, b := range paths[:i] {
			if b.path != "" && (within(a.path, b.path) || within(b.path, a.path)) {
				o.say("volume %q (%s): overlapping paths: %s with %s", volume, kind, a, b)
			}
		}
	}
}
