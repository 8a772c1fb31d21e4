package validation

// This file: which rules a kind has (ValidateCreate, ValidateUpdate and ValidateStatusUpdate), and the rules of the small ones; those that
// run pods, store or connect something have files of their own. Kubernetes forgives an update what the old object already had wrong; so do
// we for addresses and endpoints, which older versions took more freely, and not for the rest, since nothing here was stored unchecked.

import (
	"encoding/json"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	quantities "k8s.io/apimachinery/pkg/api/resource"
	metavalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"apilet/internal/kinds/defaults"
)

// ValidateCreate returns what is wrong with a new object, metadata excluded, in Kubernetes' words.
func ValidateCreate(obj runtime.Object) field.ErrorList { return validate(obj, nil) }

// ValidateUpdate returns what is wrong with an object that is to follow old.
func ValidateUpdate(obj, old runtime.Object) field.ErrorList { return validate(obj, old) }

// ValidateStatusUpdate returns what is wrong with a status that is to follow that of old.
func ValidateStatusUpdate(obj, old runtime.Object) field.ErrorList {
	k := kindChecker{&Checker{}}
	k.status(defaults.StableForm(obj), defaults.StableForm(old))
	return k.Errs
}

// ValidateFinalizers returns what is wrong with the finalizers of a built-in object.
func ValidateFinalizers(names []string, p *field.Path) field.ErrorList {
	k := kindChecker{&Checker{}}
	for i, name := range names {
		k.standardFinalizer(p.Index(i), name) // the rule for all metadata says the rest
	}
	return k.Errs
}

func validate(obj, old runtime.Object) field.ErrorList {
	k := kindChecker{&Checker{}}
	obj, old = defaults.StableForm(obj), defaults.StableForm(old)
	if !k.workload(obj, old) && !k.storage(obj, old) && !k.network(obj, old) && !k.devices(obj, old) {
		k.other(obj, old)
	}
	return k.Errs
}

// NameRule is the format of a kind's metadata.name; prefix says that it is a generateName. Kinds without a line have DNS subdomains.
func NameRule(goType reflect.Type) metavalidation.ValidateNameFunc {
	switch goType {
	case reflect.TypeFor[corev1.Namespace](), reflect.TypeFor[corev1.Service](), reflect.TypeFor[appsv1.StatefulSet]():
		return metavalidation.NameIsDNSLabel
	case reflect.TypeFor[networkingv1.IPAddress]():
		return func(name string, _ bool) (messages []string) {
			for _, err := range validation.IsValidIP(nil, name) {
				messages = append(messages, err.Detail)
			}
			return messages
		}
	case reflect.TypeFor[rbacv1.Role](), reflect.TypeFor[rbacv1.RoleBinding](), reflect.TypeFor[rbacv1.ClusterRole](),
		reflect.TypeFor[rbacv1.ClusterRoleBinding](), reflect.TypeFor[certificatesv1.CertificateSigningRequest](),
		reflect.TypeFor[policyv1.PodDisruptionBudget](), reflect.TypeFor[corev1.Event](), reflect.TypeFor[apiregistrationv1.APIService]():
		return func(name string, _ bool) []string { return isPathSegment(name) }
	}
	return metavalidation.NameIsDNSSubdomain
}

// A kindChecker knows which rules a kind has.
type kindChecker struct{ *Checker }

// workload is false when obj is none.
func (k kindChecker) workload(obj, old runtime.Object) bool {
	c := workloadChecker{k.Checker}
	switch o := obj.(type) {
	case *corev1.Pod:
		if before := was[corev1.Pod](old); before != nil {
			updatePod(k.Checker, o, before)
		} else {
			createPod(k.Checker, o)
		}
	case *corev1.PodTemplate:
		podTemplate(k.Checker, field.NewPath("template"), &o.Template)
	case *corev1.ReplicationController:
		c.replicationController(o)
	case *appsv1.Deployment:
		c.deployment(o, was[appsv1.Deployment](old))
	case *appsv1.ReplicaSet:
		c.replicaSet(o, was[appsv1.ReplicaSet](old))
	case *appsv1.StatefulSet:
		c.statefulSet(o, was[appsv1.StatefulSet](old))
	case *appsv1.DaemonSet:
		c.daemonSet(o, was[appsv1.DaemonSet](old))
	case *appsv1.ControllerRevision:
		c.controllerRevision(o, was[appsv1.ControllerRevision](old))
	case *batchv1.Job:
		c.job(o, was[batchv1.Job](old))
	case *batchv1.CronJob:
		c.cronJob(o, was[batchv1.CronJob](old))
	case *autoscalingv1.HorizontalPodAutoscaler:
		c.oldAutoscaler(o, was[autoscalingv1.HorizontalPodAutoscaler](old))
	case *autoscalingv2.HorizontalPodAutoscaler:
		c.autoscaler(o, was[autoscalingv2.HorizontalPodAutoscaler](old))
	case *policyv1.PodDisruptionBudget:
		c.disruptionBudget(o)
	default:
		return false
	}
	return true
}

// storage is false when obj has nothing to do with it.
func (k kindChecker) storage(obj, old runtime.Object) bool {
	c := volumeChecker{Checker: k.Checker}
	switch o := obj.(type) {
	case *corev1.PersistentVolume:
		if before := was[corev1.PersistentVolume](old); before != nil {
			c.volumeSpec(field.NewPath("spec"), o.Name, &o.Spec)
			c.updateVolume(o, before) // which looks at all of it again, as in Kubernetes
		} else {
			c.volumeSpec(field.NewPath("spec"), o.Name, &o.Spec)
		}
		c.mountOptions(o)
	case *corev1.PersistentVolumeClaim:
		if before := was[corev1.PersistentVolumeClaim](old); before != nil {
			c.updateClaim(o, before)
		} else {
			c.claimSpec(field.NewPath("spec"), &o.Spec)
		}
	case *storagev1.StorageClass:
		c.storageClass(o, was[storagev1.StorageClass](old))
	case *storagev1.CSIDriver:
		c.csiDriver(o, was[storagev1.CSIDriver](old))
	case *storagev1.CSINode:
		c.csiNode(o, was[storagev1.CSINode](old))
	case *storagev1.VolumeAttachment:
		c.attachment(o, was[storagev1.VolumeAttachment](old))
	case *storagev1.CSIStorageCapacity:
		c.storageCapacity(o, was[storagev1.CSIStorageCapacity](old))
	case *storagev1.VolumeAttributesClass:
		c.attributesClass(o, was[storagev1.VolumeAttributesClass](old))
	default:
		return false
	}
	return true
}

// network is false when obj has nothing to do with it.
func (k kindChecker) network(obj, old runtime.Object) bool {
	c := networkChecker{k.Checker}
	switch o := obj.(type) {
	case *corev1.Service:
		c.service(o, was[corev1.Service](old))
	case *corev1.Endpoints:
		if before := was[corev1.Endpoints](old); before == nil || !equality.Semantic.DeepEqual(o.Subsets, before.Subsets) {
			c.endpoints(o)
		}
	case *discoveryv1.EndpointSlice:
		c.endpointSlice(o, was[discoveryv1.EndpointSlice](old))
	case *networkingv1.Ingress:
		c.ingress(o, old == nil)
	case *networkingv1.IngressClass:
		c.ingressClass(o, was[networkingv1.IngressClass](old))
	case *networkingv1.NetworkPolicy:
		c.networkPolicy(o, was[networkingv1.NetworkPolicy](old))
	case *networkingv1.IPAddress:
		c.address(o, was[networkingv1.IPAddress](old))
	case *networkingv1.ServiceCIDR:
		c.serviceRange(o, was[networkingv1.ServiceCIDR](old))
	default:
		return false
	}
	return true
}

func (k kindChecker) other(obj, old runtime.Object) {
	switch o := obj.(type) {
	case *corev1.ConfigMap:
		k.configMap(o, was[corev1.ConfigMap](old))
	case *corev1.Secret:
		k.secret(o, was[corev1.Secret](old))
	case *corev1.Namespace:
		for _, name := range o.Spec.Finalizers {
			k.finalizer(field.NewPath("spec", "finalizers"), string(name))
		}
	case *corev1.Node:
		k.node(o, was[corev1.Node](old))
	case *corev1.LimitRange:
		k.limitRange(o)
	case *corev1.ResourceQuota:
		k.resourceQuota(o, was[corev1.ResourceQuota](old))
	case *corev1.Event:
		k.event(eventOf(o), "reportingComponent")
	case *eventsv1.Event:
		k.newEvent(o, was[eventsv1.Event](old))
	case *coordinationv1.Lease:
		k.lease(&o.Spec)
	case *schedulingv1.PriorityClass:
		k.priorityClass(o, was[schedulingv1.PriorityClass](old))
	case *nodev1.RuntimeClass:
		k.runtimeClass(o, was[nodev1.RuntimeClass](old))
	case *certificatesv1.CertificateSigningRequest:
		k.signingRequest(o)
	case *apiregistrationv1.APIService:
		apiServiceChecker{k.Checker}.apiService(o)
	default:
		policyChecker{k.Checker}.policy(obj, old)
	}
}

// status is for the kinds whose status has rules.
func (k kindChecker) status(obj, old runtime.Object) {
	c := statusChecker{k.Checker}
	switch o := obj.(type) {
	case *corev1.Pod:
		keepPodAnnotations(k.Checker, o, was[corev1.Pod](old))
		c.pod(o, was[corev1.Pod](old))
	case *appsv1.Deployment:
		c.deployment(&o.Status, &was[appsv1.Deployment](old).Status)
	case *appsv1.ReplicaSet:
		c.replicaSet(&o.Status)
	case *appsv1.StatefulSet:
		c.statefulSet(&o.Status, &was[appsv1.StatefulSet](old).Status)
	case *appsv1.DaemonSet:
		c.daemonSet(&o.Status, &was[appsv1.DaemonSet](old).Status)
	case *corev1.ReplicationController:
		c.replicationController(&o.Status)
	case *batchv1.Job:
		c.job(o, was[batchv1.Job](old))
	case *policyv1.PodDisruptionBudget:
		c.disruptionBudget(&o.Status)
	case *autoscalingv1.HorizontalPodAutoscaler:
		c.counts(field.NewPath("status"), "currentReplicas", o.Status.CurrentReplicas, "desiredReplicas", o.Status.DesiredReplicas)
	case *autoscalingv2.HorizontalPodAutoscaler:
		c.counts(field.NewPath("status"), "currentReplicas", o.Status.CurrentReplicas, "desiredReplicas", o.Status.DesiredReplicas)
	case *corev1.Service:
		networkChecker{k.Checker}.loadBalancer(&o.Status.LoadBalancer, o.Spec.Type)
	case *networkingv1.Ingress:
		networkChecker{k.Checker}.ingressStatus(&o.Status.LoadBalancer)
	case *corev1.Namespace:
		c.namespace(o)
	case *corev1.Node:
		k.nodeUpdate(o, was[corev1.Node](old))
	case *corev1.ResourceQuota:
		k.quotaAmounts(field.NewPath("status", "hard"), o.Status.Hard)
		k.quotaAmounts(field.NewPath("status", "used"), o.Status.Used)
	case *corev1.PersistentVolumeClaim:
		c.claim(&o.Status)
	case *apiregistrationv1.APIService:
		apiServiceChecker{k.Checker}.status(&o.Status)
	case *resourcev1.ResourceClaim:
		deviceChecker{volumeChecker{Checker: k.Checker}}.allocation(o, was[resourcev1.ResourceClaim](old))
	}
}

// ---- core ----

const secretSize = 1 << 20 // of a ConfigMap too

func (k kindChecker) configMap(cm, old *corev1.ConfigMap) {
	if old != nil && old.Immutable != nil && *old.Immutable {
		const why = "field is immutable when `immutable` is set"
		k.Forbid(field.NewPath("immutable"), "", cm.Immutable == nil || !*cm.Immutable, why)
		k.Forbid(field.NewPath("data"), "", !equality.Semantic.DeepEqual(cm.Data, old.Data), why)
		k.Forbid(field.NewPath("binaryData"), "", !equality.Semantic.DeepEqual(cm.BinaryData, old.BinaryData), why)
	}
	size := 0
	for _, key := range sortedKeys(cm.Data) {
		k.dataKey("data", key)
		if _, both := cm.BinaryData[key]; both {
			k.Invalid(field.NewPath("data").Key(key), "", key, "duplicate of key present in binaryData")
		}
		size += len(cm.Data[key])
	}
	for _, key := range sortedKeys(cm.BinaryData) {
		k.dataKey("binaryData", key)
		size += len(cm.BinaryData[key])
	}
	if size > secretSize {
		k.Add(field.TooLong(field.NewPath(""), "", secretSize))
	}
}

func (k kindChecker) dataKey(member, key string) {
	for _, message := range isConfigKey(key) {
		k.Invalid(field.NewPath(member).Key(key), "", key, message)
	}
}

func (k kindChecker) secret(s, old *corev1.Secret) {
	p := field.NewPath("data")
	if old != nil {
		k.Same(field.NewPath("type"), "", s.Type, old.Type)
		if old.Immutable != nil && *old.Immutable {
			const why = "field is immutable when `immutable` is set"
			k.Forbid(field.NewPath("immutable"), "", s.Immutable == nil || !*s.Immutable, why)
			k.Forbid(p, "", !equality.Semantic.DeepEqual(s.Data, old.Data), why)
		}
	}
	size := 0
	for _, key := range sortedKeys(s.Data) {
		k.dataKey("data", key)
		size += len(s.Data[key])
	}
	if size > secretSize {
		k.Add(field.TooLong(p, "", secretSize))
	}
	k.secretType(p, s)
}

// secretType: some types have members that they need.
func (k kindChecker) secretType(p *field.Path, s *corev1.Secret) {
	needs := func(key string) bool {
		_, ok := s.Data[key]
		k.Need(p.Key(key), "", ok, "")
		return ok
	}
	object := func(key string) {
		if !needs(key) {
			return
		}
		if err := json.Unmarshal(s.Data[key], &map[string]any{}); err != nil {
			k.Invalid(p.Key(key), "", "<secret contents redacted>", err.Error())
		}
	}
	switch s.Type {
	case corev1.SecretTypeServiceAccountToken:
		k.Need(field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey), "", s.Annotations[corev1.ServiceAccountNameKey] != "", "")
	case corev1.SecretTypeDockercfg:
		object(corev1.DockerConfigKey)
	case corev1.SecretTypeDockerConfigJson:
		object(corev1.DockerConfigJsonKey)
	case corev1.SecretTypeBasicAuth:
		if _, password := s.Data[corev1.BasicAuthPasswordKey]; !password {
			if _, user := s.Data[corev1.BasicAuthUsernameKey]; !user {
				needs(corev1.BasicAuthUsernameKey)
				needs(corev1.BasicAuthPasswordKey)
			}
		}
	case corev1.SecretTypeSSHAuth:
		k.Need(p.Key(corev1.SSHAuthPrivateKey), "", len(s.Data[corev1.SSHAuthPrivateKey]) > 0, "")
	case corev1.SecretTypeTLS:
		needs(corev1.TLSCertKey)
		needs(corev1.TLSPrivateKeyKey)
	}
}

// finalizer is a qualified name, or one of Kubernetes' own.
func (k kindChecker) finalizer(p *field.Path, name string) {
	k.Words(p, "", name, isQualifiedName)
	k.standardFinalizer(p, name)
}

func (k kindChecker) standardFinalizer(p *field.Path, name string) {
	if !strings.Contains(name, "/") && name != string(corev1.FinalizerKubernetes) && name != metav1.FinalizerOrphanDependents && name != metav1.FinalizerDeleteDependents {
		k.Invalid(p, "", name, "name is neither a standard finalizer name nor is it fully qualified")
	}
}

// node: an update is looked at as a new object first, as in Kubernetes.
func (k kindChecker) node(node, old *corev1.Node) {
	p := field.NewPath("spec")
	k.nodeAnnotations(node)
	placementChecker{k.Checker}.taints(field.NewPath("metadata", "taints"), node.Spec.Taints)
	k.nodeResources(node)
	for i, cidr := range node.Spec.PodCIDRs {
		k.cidr(p.Child("podCIDRs").Index(i), "", cidr, nil)
	}
	for i, cidr := range node.Spec.PodCIDRs {
		if _, _, err := net.ParseCIDR(cidr); err != nil && len(node.Spec.PodCIDRs) > 1 {
			k.Add(field.InternalError(p.Child("podCIDRs"), fmt.Errorf("invalid PodCIDRs. failed to check with dual stack with error:invalid CIDR[%d]: <nil> (%w)", i, err)))
			break
		}
	}
	if !dualStack(node.Spec.PodCIDRs) {
		k.Invalid(p, "podCIDRs", node.Spec.PodCIDRs, "may specify no more than one CIDR for each IP family")
	}
	if old != nil {
		k.nodeUpdate(node, old)
	}
}

const (
	taintsAnnotation    = "scheduler.alpha.kubernetes.io/taints" // where taints were before they had a field
	avoidPodsAnnotation = corev1.PreferAvoidPodsAnnotationKey
)

func (k kindChecker) nodeAnnotations(node *corev1.Node) {
	p := field.NewPath("metadata", "annotations")
	if text := node.Annotations[taintsAnnotation]; text != "" {
		var taints []corev1.Taint
		if err := json.Unmarshal([]byte(text), &taints); err != nil {
			k.Invalid(p, "", taintsAnnotation, err.Error())
		} else {
			placementChecker{k.Checker}.taints(p.Child(taintsAnnotation), taints)
		}
	}
	if text := node.Annotations[avoidPodsAnnotation]; text != "" {
		var avoid corev1.AvoidPods
		if err := json.Unmarshal([]byte(text), &avoid); err != nil {
			k.Invalid(p, "AvoidPods", avoidPodsAnnotation, err.Error())
		}
		for i, entry := range avoid.PreferAvoidPods {
			signature, controller := p.Child(avoidPodsAnnotation).Index(i).Child("PodSignature"), entry.PodSignature.PodController
			if controller == nil {
				k.Required(signature, "", "")
			} else if controller.Controller == nil || !*controller.Controller {
				k.Invalid(signature.Child("PodController"), "Controller", false, "must point to a controller")
			}
		}
	}
}

// nodeUpdate is for updates of a node and of its status.
func (k kindChecker) nodeUpdate(node, old *corev1.Node) {
	k.nodeAnnotations(node)
	k.nodeResources(node)
	k.nodeKeeps(field.NewPath("spec"), node, old)
	placementChecker{k.Checker}.taints(field.NewPath("metadata", "taints"), node.Spec.Taints)
}

func (k kindChecker) nodeResources(node *corev1.Node) {
	for _, list := range [...]struct {
		name      string
		resources corev1.ResourceList
	}{{"capacity", node.Status.Capacity}, {"allocatable", node.Status.Allocatable}} {
		for _, name := range sortedKeys(list.resources) {
			k.quantity(field.NewPath("status", list.name, string(name)), string(name), list.resources[name])
		}
	}
}

func (k kindChecker) nodeKeeps(p *field.Path, node, old *corev1.Node) {
	addresses := map[corev1.NodeAddress]bool{}
	for i, address := range node.Status.Addresses {
		if addresses[address] {
			k.Add(field.Duplicate(field.NewPath("status", "addresses").Index(i), goForm(address)))
		}
		addresses[address] = true
	}
	cidrs := old.Spec.PodCIDRs
	k.Forbid(p, "podCIDRs", len(cidrs) > 0 && !slices.Equal(cidrs, node.Spec.PodCIDRs), `node updates may not change podCIDR except from "" to valid`)
	k.Forbid(p, "providerID", old.Spec.ProviderID != "" && old.Spec.ProviderID != node.Spec.ProviderID, `node updates may not change providerID except from "" to valid`)
	k.Forbid(p, "externalID", node.Spec.DoNotUseExternalID != old.Spec.DoNotUseExternalID, "may not be updated")
}

func (k kindChecker) limitRange(limits *corev1.LimitRange) {
	kinds := set{}
	for i := range limits.Spec.Limits {
		item, p := &limits.Spec.Limits[i], field.NewPath("spec", "limits").Index(i)
		before := len(k.Errs)
		if k.Words(p, "type", string(item.Type), isQualifiedName); len(k.Errs) == before && !strings.Contains(string(item.Type), "/") &&
			!slices.Contains([]corev1.LimitType{"Pod", "Container", "PersistentVolumeClaim"}, item.Type) {
			k.Invalid(p, "type", item.Type, "must be a standard limit type or fully qualified")
		}
		k.unique(p, "type", kinds, string(item.Type))
		k.limitNames(p, item)
		all := set{}
		for _, list := range [...]corev1.ResourceList{item.Max, item.Min, item.Default, item.DefaultRequest, item.MaxLimitRequestRatio} {
			for name := range list {
				all[string(name)] = true
			}
		}
		for _, name := range sortedKeys(all) {
			k.limitOrder(p, item, corev1.ResourceName(name))
			k.limitRatio(p, item, corev1.ResourceName(name))
		}
	}
}

func (k kindChecker) limitNames(p *field.Path, item *corev1.LimitRangeItem) {
	names := func(member string, list corev1.ResourceList) {
		for _, name := range sortedKeys(list) {
			if lp := p.Child(member).Key(string(name)); item.Type == corev1.LimitTypePod || item.Type == corev1.LimitTypeContainer {
				k.containerResource(lp, string(name))
			} else {
				k.resourceName(lp, string(name))
			}
		}
	}
	names("max", item.Max)
	names("min", item.Min)
	if item.Type == corev1.LimitTypePod {
		k.Forbid(p, "default", len(item.Default) > 0, "may not be specified when `type` is 'Pod'")
		k.Forbid(p, "defaultRequest", len(item.DefaultRequest) > 0, "may not be specified when `type` is 'Pod'")
	} else {
		names("default", item.Default)
		names("defaultRequest", item.DefaultRequest)
	}
	if item.Type == corev1.LimitTypePersistentVolumeClaim {
		_, least := item.Min[corev1.ResourceStorage]
		_, most := item.Max[corev1.ResourceStorage]
		k.Need(p, "limits", least || most, "either minimum or maximum storage value is required, but neither was provided")
	}
	names("maxLimitRequestRatio", item.MaxLimitRequestRatio)
}

// limitOrder: min <= defaultRequest <= default <= max, where they are given.
func (k kindChecker) limitOrder(p *field.Path, item *corev1.LimitRangeItem, name corev1.ResourceName) {
	type named struct {
		list  corev1.ResourceList
		words string
	}
	byType := item.Type != corev1.LimitTypePod // a Pod has no defaults
	least, most := named{item.Min, "min value"}, named{item.Max, "max value"}
	request, limit := named{item.DefaultRequest, "default request value"}, named{item.Default, "default value"}
	check := func(low, high named, member string, blame named) {
		a, low1 := low.list[name]
		b, high1 := high.list[name]
		if low1 && high1 && a.Cmp(b) > 0 {
			k.Invalid(p.Child(member).Key(string(name)), "", blame.list[name], fmt.Sprintf("%s %s is greater than %s %s", low.words, a.String(), high.words, b.String()))
		}
	}
	check(least, most, "min", least)
	if byType {
		check(least, request, "defaultRequest", request)
		check(request, most, "defaultRequest", request)
		check(request, named{item.Default, "default limit value"}, "defaultRequest", request)
		check(least, limit, "default", least)
		check(limit, most, "default", most)
	}
}

func (k kindChecker) limitRatio(p *field.Path, item *corev1.LimitRangeItem, name corev1.ResourceName) {
	ratio, ok := item.MaxLimitRequestRatio[name]
	least, hasLeast := item.Min[name]
	most, hasMost := item.Max[name]
	rp := p.Child("maxLimitRequestRatio").Key(string(name))
	if ok && ratio.Cmp(*quantities.NewQuantity(1, quantities.DecimalSI)) < 0 {
		k.Invalid(rp, "", ratio, fmt.Sprintf("ratio %s is less than 1", ratio.String()))
	}
	if highest := most.AsApproximateFloat64() / least.AsApproximateFloat64(); ok && hasLeast && hasMost && ratio.AsApproximateFloat64() > highest {
		k.Invalid(rp, "", ratio, fmt.Sprintf("ratio %s is greater than max/min = %f", ratio.String(), highest))
	}
	limit, hasLimit := item.Default[name]
	request, hasRequest := item.DefaultRequest[name]
	if !mayOvercommit(string(name)) && hasLimit && hasRequest && limit.Cmp(request) != 0 {
		k.Invalid(p.Child("defaultRequest").Key(string(name)), "", request,
			fmt.Sprintf("default value %s must equal to defaultRequest value %s in %s", limit.String(), request.String(), name))
	}
}

var (
	podQuota    = []string{"pods", "cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"}
	quotaScopes = map[corev1.ResourceQuotaScope][]string{ // and what each can limit
		corev1.ResourceQuotaScopeTerminating: podQuota, corev1.ResourceQuotaScopeNotTerminating: podQuota,
		corev1.ResourceQuotaScopeBestEffort: {"pods"}, corev1.ResourceQuotaScopeNotBestEffort: podQuota,
		corev1.ResourceQuotaScopePriorityClass: podQuota, corev1.ResourceQuotaScopeCrossNamespacePodAffinity: podQuota,
		corev1.ResourceQuotaScopeVolumeAttributesClass: {"persistentvolumeclaims", "requests.storage"},
	}
)

func (k kindChecker) resourceQuota(quota, old *corev1.ResourceQuota) {
	p, spec := field.NewPath("spec"), &quota.Spec
	k.quotaAmounts(p.Child("hard"), spec.Hard)
	seen := map[corev1.ResourceQuotaScope]bool{}
	for _, scope := range spec.Scopes {
		if quotaScopes[scope] == nil {
			k.Invalid(p, "scopes", spec.Scopes, "unsupported scope")
		}
		if !seen[scope] { // again it is as wrong as before
			k.scopeFits(p.Child("scopes"), scope, spec, spec.Scopes)
		}
		seen[scope] = true
	}
	k.scopesAgree(p.Child("scopes"), spec.Scopes, spec.Scopes)
	if spec.ScopeSelector != nil {
		k.scopeSelector(p.Child("scopeSelector", "matchExpressions"), spec)
	}
	if old == nil {
		return
	}
	now, before := slices.Clone(spec.Scopes), slices.Clone(old.Spec.Scopes)
	slices.Sort(now)
	slices.Sort(before)
	if !slices.Equal(now, before) {
		k.Invalid(p, "scopes", spec.Scopes, "field is immutable")
	}
}

func (k kindChecker) quotaAmounts(p *field.Path, amounts corev1.ResourceList) {
	for _, name := range sortedKeys(amounts) {
		k.quotaResource(p.Key(string(name)), string(name))
		k.quantity(p.Key(string(name)), string(name), amounts[name])
	}
}

func (k kindChecker) scopeFits(p *field.Path, scope corev1.ResourceQuotaScope, spec *corev1.ResourceQuotaSpec, blame any) {
	limited := quotaScopes[scope]
	for _, name := range sortedKeys(spec.Hard) {
		if limited != nil && isQuotaResource(string(name)) && !slices.Contains(limited, string(name)) {
			k.Invalid(p, "", blame, "unsupported scope applied to resource")
		}
	}
}

func (k kindChecker) scopesAgree(p *field.Path, scopes, blame []corev1.ResourceQuotaScope) {
	for _, pair := range [...][2]corev1.ResourceQuotaScope{{"BestEffort", "NotBestEffort"}, {"Terminating", "NotTerminating"}} {
		if slices.Contains(scopes, pair[0]) && slices.Contains(scopes, pair[1]) {
			k.Invalid(p, "", blame, "conflicting scopes")
		}
	}
}

func (k kindChecker) scopeSelector(p *field.Path, spec *corev1.ResourceQuotaSpec) {
	var scopes []corev1.ResourceQuotaScope
	seen := map[corev1.ResourceQuotaScope]bool{}
	for _, requirement := range spec.ScopeSelector.MatchExpressions {
		scope, operator := requirement.ScopeName, requirement.Operator
		scopes = append(scopes, scope)
		if quotaScopes[scope] == nil {
			k.Invalid(p, "scopeName", scope, "unsupported scope")
		}
		if !seen[scope] {
			k.scopeFits(p, scope, spec, spec.ScopeSelector)
		}
		seen[scope] = true
		valued := scope == corev1.ResourceQuotaScopePriorityClass || scope == corev1.ResourceQuotaScopeVolumeAttributesClass
		if quotaScopes[scope] != nil && !valued && operator != corev1.ScopeSelectorOpExists {
			k.Invalid(p, "operator", operator, "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, "+
				"ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity")
		}
		switch operator {
		case corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn:
			k.Need(p, "values", len(requirement.Values) > 0, "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector")
		case corev1.ScopeSelectorOpExists, corev1.ScopeSelectorOpDoesNotExist:
			if len(requirement.Values) > 0 {
				k.Invalid(p, "values", requirement.Values, "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector")
			}
		default:
			k.Invalid(p, "operator", operator, "not a valid selector operator")
		}
	}
	k.scopesAgree(p, scopes, spec.Scopes)
}

// ---- events ----

// An anyEvent is what the rules look at in an Event of either group; the names of the core group are used in paths.
type anyEvent struct {
	namespace, involved, controller, instance, action, reason, message string
	time                                                               metav1.MicroTime
}

func eventOf(e *corev1.Event) *anyEvent {
	return &anyEvent{
		namespace: e.Namespace, involved: e.InvolvedObject.Namespace, controller: e.ReportingController, instance: e.ReportingInstance,
		action: e.Action, reason: e.Reason, message: e.Message, time: e.EventTime,
	}
}

// event is what every Event must be; controllerField is its name in the request's version.
func (k kindChecker) event(e *anyEvent, controllerField string) {
	p := func(name string) *field.Path { return field.NewPath(name) }
	const elsewhere = "does not match event.namespace"
	if e.time.IsZero() {
		if e.involved != e.namespace && (e.involved != "" || e.namespace != metav1.NamespaceDefault) {
			k.Invalid(p("involvedObject"), "namespace", e.involved, elsewhere)
		}
	} else {
		if e.involved == "" && e.namespace != metav1.NamespaceDefault && e.namespace != metav1.NamespaceSystem {
			k.Invalid(p("involvedObject"), "namespace", e.involved, elsewhere)
		}
		k.Need(p(controllerField), "", e.controller != "", "")
		k.Words(p(controllerField), "", e.controller, isQualifiedName)
		for _, text := range [...]struct {
			name, value string
			most        int
		}{{"reportingInstance", e.instance, 128}, {"action", e.action, 128}, {"reason", e.reason, 128}, {"message", e.message, 1024}} {
			k.Need(p(text.name), "", text.value != "" || text.name == "message", "")
			if len(text.value) > text.most {
				k.Invalid(p(text.name), "", "", fmt.Sprintf("can have at most %d characters", text.most))
			}
		}
	}
	k.Words(p("namespace"), "", e.namespace, isSubdomain)
}

// newEvent is stricter, but for a series hardly anything may change.
func (k kindChecker) newEvent(e, old *eventsv1.Event) {
	p := func(name string) *field.Path { return field.NewPath(name) }
	k.event(&anyEvent{
		namespace: e.Namespace, involved: e.Regarding.Namespace, controller: e.ReportingController, instance: e.ReportingInstance,
		action: e.Action, reason: e.Reason, message: e.Note, time: e.EventTime,
	}, "reportingController")
	if series := e.Series; series != nil && (old == nil || !equality.Semantic.DeepEqual(series, old.Series)) {
		if series.Count < 2 {
			k.Invalid(p("series.count"), "", "", "should be at least 2")
		}
		k.Need(p("series.lastObservedTime"), "", !series.LastObservedTime.IsZero(), "")
	}
	if old == nil {
		k.Need(p("eventTime"), "", !e.EventTime.IsZero(), "")
		if e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning {
			k.Invalid(p("type"), "", "", "has invalid value: "+e.Type)
		}
		unset := func(name string, set bool) {
			if set {
				k.Invalid(p(name), "", "", "needs to be unset")
			}
		}
		unset("firstTimestamp", !e.DeprecatedFirstTimestamp.IsZero())
		unset("lastTimestamp", !e.DeprecatedLastTimestamp.IsZero())
		unset("count", e.DeprecatedCount != 0)
		unset("source", e.DeprecatedSource != (corev1.EventSource{}))
		return
	}
	k.Same(p("involvedObject"), "", e.Regarding, old.Regarding)
	k.Same(p("reason"), "", e.Reason, old.Reason)
	k.Same(p("message"), "", e.Note, old.Note)
	k.Same(p("source"), "", e.DeprecatedSource, old.DeprecatedSource)
	k.Same(p("firstTimestamp"), "", e.DeprecatedFirstTimestamp, old.DeprecatedFirstTimestamp)
	k.Same(p("lastTimestamp"), "", e.DeprecatedLastTimestamp, old.DeprecatedLastTimestamp)
	k.Same(p("count"), "", e.DeprecatedCount, old.DeprecatedCount)
	k.Same(p("reason"), "", e.Reason, old.Reason)
	k.Same(p("type"), "", e.Type, old.Type)
	if !e.EventTime.Truncate(time.Microsecond).Equal(old.EventTime.Truncate(time.Microsecond)) {
		k.Same(p("eventTime"), "", e.EventTime, old.EventTime)
	}
	k.Same(p("action"), "", e.Action, old.Action)
	k.Same(p("related"), "", e.Related, old.Related)
	k.Same(p("reportingController"), "", e.ReportingController, old.ReportingController)
	k.Same(p("reportingInstance"), "", e.ReportingInstance, old.ReportingInstance)
}

// ---- small groups ----

func (k kindChecker) lease(spec *coordinationv1.LeaseSpec) {
	p := field.NewPath("spec")
	if seconds := spec.LeaseDurationSeconds; seconds != nil {
		k.aboveZero(p, "leaseDurationSeconds", int64(*seconds))
	}
	nonNegativeRef(k.Checker, p, "leaseTransitions", spec.LeaseTransitions)
	if strategy := spec.Strategy; strategy != nil && strings.Contains(string(*strategy), "/") {
		k.Words(p, "strategy.strategy", string(*strategy), isQualifiedName)
	} else if strategy != nil {
		k.OneOf(p, "strategy.strategy", string(*strategy), []string{"OldestEmulationVersion"})
	}
	preferred := spec.PreferredHolder != nil && *spec.PreferredHolder != ""
	k.Forbid(p, "preferredHolder", preferred && (spec.Strategy == nil || *spec.Strategy == ""), "may only be specified if `strategy` is defined")
}

func (k kindChecker) priorityClass(class, old *schedulingv1.PriorityClass) {
	value := field.NewPath("value")
	if old != nil {
		k.Forbid(value, "", class.Value != old.Value, "may not be changed in an update.")
		k.Same(field.NewPath("preemptionPolicy"), "", class.PreemptionPolicy, old.PreemptionPolicy)
		return
	}
	const most = 1_000_000_000
	known := map[string]int32{"system-cluster-critical": 2 * most, "system-node-critical": 2*most + 1000}
	if reserved := strings.HasPrefix(class.Name, "system-"); !reserved {
		k.Forbid(value, "", class.Value > most, fmt.Sprintf("maximum allowed value of a user defined priority is %d", most))
	} else if want, ok := known[class.Name]; !ok || class.Value != want || class.GlobalDefault {
		why := fmt.Sprintf("%v is not a known system priority class", class.Name)
		if ok && class.Value != want {
			why = fmt.Sprintf("value of %v PriorityClass must be %v", class.Name, want)
		} else if ok {
			why = fmt.Sprintf("globalDefault of %v PriorityClass must be false", class.Name)
		}
		k.Forbid(field.NewPath("metadata", "name"), "", true, "priority class names with 'system-' prefix are reserved for system use only. error: "+why)
	}
	if class.PreemptionPolicy != nil {
		k.Known(field.NewPath("preemptionPolicy"), "", string(*class.PreemptionPolicy), preemptionPolicies)
	}
}

func (k kindChecker) runtimeClass(class, old *nodev1.RuntimeClass) {
	handler := field.NewPath("handler")
	defer func() { // last, as in Kubernetes
		if old != nil {
			k.Same(handler, "", class.Handler, old.Handler)
		}
	}()
	k.Name(handler, "", class.Handler, isLabel)
	if class.Overhead != nil {
		overheadOfPod(k.Checker, field.NewPath("overhead"), class.Overhead.PodFixed)
	}
	if class.Scheduling == nil {
		return
	}
	p := field.NewPath("scheduling")
	k.labels(p, "nodeSelector", class.Scheduling.NodeSelector)
	placementChecker{k.Checker}.tolerations(p.Child("tolerations"), class.Scheduling.Tolerations)
	seen := map[corev1.Toleration]bool{}
	for i, toleration := range class.Scheduling.Tolerations {
		key := withoutSeconds(toleration)
		if seen[key] {
			k.Add(field.Duplicate(p.Child("tolerations").Index(i), goForm(toleration)))
		}
		seen[key] = true
	}
}

var keyUsages = []string{
	"any", "cert sign", "client auth", "code signing", "content commitment", "crl sign", "data encipherment", "decipher only", "digital signature",
	"email protection", "encipher only", "ipsec end system", "ipsec tunnel", "ipsec user", "key agreement", "key encipherment", "microsoft sgc",
	"netscape sgc", "ocsp signing", "s/mime", "server auth", "signing", "timestamping",
}

func (k kindChecker) signingRequest(csr *certificatesv1.CertificateSigningRequest) {
	p, spec := field.NewPath("spec"), &csr.Spec
	if err := checkRequest(spec.Request); err != nil {
		k.Invalid(p, "request", spec.Request, err.Error())
	}
	k.Need(p, "usages", len(spec.Usages) > 0, "")
	for i, usage := range spec.Usages {
		k.OneOf(p.Child("usages").Index(i), "", string(usage), keyUsages)
	}
	seen := set{}
	for i, usage := range spec.Usages {
		k.unique(p.Child("usages").Index(i), "", seen, string(usage))
	}
	if spec.SignerName == "kubernetes.io/legacy-unknown" {
		k.Invalid(p, "signerName", spec.SignerName, "the legacy signerName is not allowed via this API version")
	} else {
		volumeChecker{Checker: k.Checker}.signerName(p.Child("signerName"), spec.SignerName)
	}
	if seconds := spec.ExpirationSeconds; seconds != nil && *seconds < 600 {
		k.Invalid(p, "expirationSeconds", *seconds, "may not specify a duration less than 600 seconds (10 minutes)")
	}
}

func checkRequest(request []byte) error {
	parsed, err := ParseSigningRequest(request)
	if err != nil {
		return err
	}
	return parsed.CheckSignature()
}
