package main

// This file: which rules a kind has, and the rules of the small ones; those that run pods, store or connect
// something have files of their own.
//
// validateCreate, validateUpdate and validateStatusUpdate return everything that is wrong with an object at once, in kube-apiserver's
// order and words; the caller checks metadata (with nameRule) and makes a 422 of the list. A Service with a bad port, for example:
//
//	spec.ports[0].port: Invalid value: 99999: must be between 1 and 65535, inclusive
//
// Objects come defaulted and prepared. Kubernetes forgives an update what the old object already had wrong; so do we for addresses and
// endpoints, which older versions took more freely, and not for the rest, since nothing here was stored unchecked.

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	quantities "k8s.io/apimachinery/pkg/api/resource"
	metavalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateCreate returns what is wrong with a new object, metadata excluded, in Kubernetes' words.
func validateCreate(obj runtime.Object) field.ErrorList { return validate(obj, nil) }

// validateUpdate returns what is wrong with an object that is to follow old.
func validateUpdate(obj, old runtime.Object) field.ErrorList { return validate(obj, old) }

// validateStatusUpdate returns what is wrong with a status that is to follow that of old.
func validateStatusUpdate(obj, old runtime.Object) field.ErrorList {
	k := kindChecker{&checker{}}
	k.status(obj, old)
	return k.errs
}

func validate(obj, old runtime.Object) field.ErrorList {
	k := kindChecker{&checker{}}
	if !k.workload(obj, old) && !k.storage(obj, old) && !k.network(obj, old) {
		k.other(obj, old)
	}
	return k.errs
}

// nameRule is the format of a kind's metadata.name; prefix says that it is a generateName. Kinds without a line have DNS subdomains.
func nameRule(goType reflect.Type) metavalidation.ValidateNameFunc {
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
		reflect.TypeFor[policyv1.PodDisruptionBudget](), reflect.TypeFor[corev1.Event]():
		return func(name string, _ bool) []string { return isPathSegment(name) }
	}
	return metavalidation.NameIsDNSSubdomain
}

// A kindChecker knows which rules a kind has.
type kindChecker struct{ *checker }

// was is the old object with its type, nil when there is none.
func was[T any](old runtime.Object) *T {
	o, _ := any(old).(*T)
	return o
}

// workload is false when obj is none.
func (k kindChecker) workload(obj, old runtime.Object) bool {
	c := workloadChecker{k.checker}
	switch o := obj.(type) {
	case *corev1.Pod:
		if before := was[corev1.Pod](old); before != nil {
			updatePod(k.checker, o, before)
		} else {
			createPod(k.checker, o)
		}
	case *corev1.PodTemplate:
		podTemplate(k.checker, field.NewPath("template"), &o.Template)
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
	c := volumeChecker{checker: k.checker}
	switch o := obj.(type) {
	case *corev1.PersistentVolume:
		if before := was[corev1.PersistentVolume](old); before != nil {
			c.volumeSpec(field.NewPath("spec"), o.Name, &o.Spec)
			c.updateVolume(o, before) // which looks at all of it again, as in Kubernetes
		} else {
			c.volumeSpec(field.NewPath("spec"), o.Name, &o.Spec)
		}
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
	c := networkChecker{k.checker}
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
	default:
		k.policy(obj, old)
	}
}

// policy is for the kinds that tell the API server what to do.
func (k kindChecker) policy(obj, old runtime.Object) {
	switch o := obj.(type) {
	case *rbacv1.Role:
		k.rules(o.Rules, true)
	case *rbacv1.ClusterRole:
		k.rules(o.Rules, false)
		k.aggregation(o.AggregationRule)
	case *rbacv1.RoleBinding:
		k.binding(&o.RoleRef, o.Subjects, []string{"Role", "ClusterRole"})
		if before := was[rbacv1.RoleBinding](old); before != nil && before.RoleRef != o.RoleRef {
			k.invalid(field.NewPath("roleRef"), "", o.RoleRef, "cannot change roleRef")
		}
	case *rbacv1.ClusterRoleBinding:
		k.binding(&o.RoleRef, o.Subjects, []string{"ClusterRole"})
		if before := was[rbacv1.ClusterRoleBinding](old); before != nil && before.RoleRef != o.RoleRef {
			k.invalid(field.NewPath("roleRef"), "", o.RoleRef, "cannot change roleRef")
		}
	case *admissionv1.ValidatingWebhookConfiguration:
		k.webhooks(validatingHooks(o))
	case *admissionv1.MutatingWebhookConfiguration:
		k.webhooks(mutatingHooks(o))
	case *flowcontrolv1.FlowSchema:
		k.flowSchema(o)
	case *flowcontrolv1.PriorityLevelConfiguration:
		k.priorityLevel(o)
	}
}

// status is for the kinds whose status has rules.
func (k kindChecker) status(obj, old runtime.Object) {
	c := workloadChecker{k.checker}
	switch o := obj.(type) {
	case *corev1.Pod:
		updatePodStatus(k.checker, o, was[corev1.Pod](old))
	case *appsv1.Deployment:
		c.deploymentStatus(&o.Status, &was[appsv1.Deployment](old).Status)
	case *appsv1.ReplicaSet:
		c.replicaSetStatus(&o.Status)
	case *appsv1.StatefulSet:
		c.statefulSetStatus(&o.Status, &was[appsv1.StatefulSet](old).Status)
	case *appsv1.DaemonSet:
		c.daemonSetStatus(&o.Status, &was[appsv1.DaemonSet](old).Status)
	case *corev1.ReplicationController:
		c.replicationControllerStatus(&o.Status)
	case *batchv1.Job:
		c.jobStatus(o, was[batchv1.Job](old))
	case *policyv1.PodDisruptionBudget:
		c.disruptionBudgetStatus(&o.Status)
	case *autoscalingv1.HorizontalPodAutoscaler:
		c.counts(field.NewPath("status"), "currentReplicas", o.Status.CurrentReplicas, "desiredReplicas", o.Status.DesiredReplicas)
	case *autoscalingv2.HorizontalPodAutoscaler:
		c.counts(field.NewPath("status"), "currentReplicas", o.Status.CurrentReplicas, "desiredReplicas", o.Status.DesiredReplicas)
	case *corev1.Service:
		networkChecker{k.checker}.loadBalancer(&o.Status.LoadBalancer, o.Spec.Type)
	case *networkingv1.Ingress:
		networkChecker{k.checker}.ingressStatus(&o.Status.LoadBalancer)
	case *corev1.Namespace:
		want, when := corev1.NamespaceActive, "empty"
		if !o.DeletionTimestamp.IsZero() {
			want, when = corev1.NamespaceTerminating, "not empty"
		}
		if o.Status.Phase != want {
			k.invalid(field.NewPath("status", "Phase"), "", o.Status.Phase, fmt.Sprintf("may only be '%s' if `deletionTimestamp` is %s", want, when))
		}
	case *corev1.Node:
		k.node(o, was[corev1.Node](old))
	case *corev1.ResourceQuota:
		k.quotaAmounts(field.NewPath("status", "hard"), o.Status.Hard)
		k.quotaAmounts(field.NewPath("status", "used"), o.Status.Used)
	case *corev1.PersistentVolumeClaim:
		volumeChecker{checker: k.checker}.claimStatus(&o.Status)
	}
}

// ---- core ----

const secretSize = 1 << 20 // of a ConfigMap too

func (k kindChecker) configMap(cm, old *corev1.ConfigMap) {
	if old != nil && old.Immutable != nil && *old.Immutable {
		const why = "field is immutable when `immutable` is set"
		k.forbid(field.NewPath("immutable"), "", cm.Immutable == nil || !*cm.Immutable, why)
		k.forbid(field.NewPath("data"), "", !equality.Semantic.DeepEqual(cm.Data, old.Data), why)
		k.forbid(field.NewPath("binaryData"), "", !equality.Semantic.DeepEqual(cm.BinaryData, old.BinaryData), why)
	}
	size := 0
	for _, key := range sortedKeys(cm.Data) {
		k.dataKey("data", key)
		if _, both := cm.BinaryData[key]; both {
			k.invalid(field.NewPath("data").Key(key), "", key, "duplicate of key present in binaryData")
		}
		size += len(cm.Data[key])
	}
	for _, key := range sortedKeys(cm.BinaryData) {
		k.dataKey("binaryData", key)
		size += len(cm.BinaryData[key])
	}
	if size > secretSize {
		k.add(field.TooLong(field.NewPath(""), "", secretSize))
	}
}

func (k kindChecker) dataKey(member, key string) {
	for _, message := range isConfigKey(key) {
		k.invalid(field.NewPath(member).Key(key), "", key, message)
	}
}

func (k kindChecker) secret(s, old *corev1.Secret) {
	p := field.NewPath("data")
	if old != nil {
		k.same(field.NewPath("type"), "", s.Type, old.Type)
		if old.Immutable != nil && *old.Immutable {
			const why = "field is immutable when `immutable` is set"
			k.forbid(field.NewPath("immutable"), "", s.Immutable == nil || !*s.Immutable, why)
			k.forbid(p, "", !equality.Semantic.DeepEqual(s.Data, old.Data), why)
		}
	}
	size := 0
	for _, key := range sortedKeys(s.Data) {
		k.dataKey("data", key)
		size += len(s.Data[key])
	}
	if size > secretSize {
		k.add(field.TooLong(p, "", secretSize))
	}
	k.secretType(p, s)
}

// secretType: some types have members that they need.
func (k kindChecker) secretType(p *field.Path, s *corev1.Secret) {
	needs := func(key string) bool {
		_, ok := s.Data[key]
		k.need(p.Key(key), "", ok, "")
		return ok
	}
	object := func(key string) {
		if !needs(key) {
			return
		}
		if err := json.Unmarshal(s.Data[key], &map[string]any{}); err != nil {
			k.invalid(p.Key(key), "", "<secret contents redacted>", err.Error())
		}
	}
	switch s.Type {
	case corev1.SecretTypeServiceAccountToken:
		k.need(field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey), "", s.Annotations[corev1.ServiceAccountNameKey] != "", "")
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
		k.need(p.Key(corev1.SSHAuthPrivateKey), "", len(s.Data[corev1.SSHAuthPrivateKey]) > 0, "")
	case corev1.SecretTypeTLS:
		needs(corev1.TLSCertKey)
		needs(corev1.TLSPrivateKeyKey)
	}
}

// finalizer is a qualified name, or one of Kubernetes' own.
func (k kindChecker) finalizer(p *field.Path, name string) {
	k.words(p, "", name, isQualifiedName)
	if !strings.Contains(name, "/") && name != string(corev1.FinalizerKubernetes) && name != metav1.FinalizerOrphanDependents && name != metav1.FinalizerDeleteDependents {
		k.invalid(p, "", name, "name is neither a standard finalizer name nor is it fully qualified")
	}
}

// node: an update is looked at as a new object first, as in Kubernetes.
func (k kindChecker) node(node, old *corev1.Node) {
	p := field.NewPath("spec")
	k.taints(node.Spec.Taints)
	k.nodeResources(node)
	for i, cidr := range node.Spec.PodCIDRs {
		k.cidr(p.Child("podCIDRs").Index(i), "", cidr, nil)
	}
	for i, cidr := range node.Spec.PodCIDRs {
		if _, _, err := net.ParseCIDR(cidr); err != nil && len(node.Spec.PodCIDRs) > 1 {
			k.add(field.InternalError(p.Child("podCIDRs"), fmt.Errorf("invalid PodCIDRs. failed to check with dual stack with error:invalid CIDR[%d]: <nil> (%w)", i, err)))
			break
		}
	}
	if !dualStack(node.Spec.PodCIDRs) {
		k.invalid(p, "podCIDRs", node.Spec.PodCIDRs, "may specify no more than one CIDR for each IP family")
	}
	if old != nil {
		k.nodeResources(node)
		k.nodeKeeps(p, node, old)
		k.taints(node.Spec.Taints)
	}
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
			k.add(field.Duplicate(field.NewPath("status", "addresses").Index(i), goForm(address)))
		}
		addresses[address] = true
	}
	cidrs := old.Spec.PodCIDRs
	k.forbid(p, "podCIDRs", len(cidrs) > 0 && !slices.Equal(cidrs, node.Spec.PodCIDRs), `node updates may not change podCIDR except from "" to valid`)
	k.forbid(p, "providerID", old.Spec.ProviderID != "" && old.Spec.ProviderID != node.Spec.ProviderID, `node updates may not change providerID except from "" to valid`)
	k.forbid(p, "externalID", node.Spec.DoNotUseExternalID != old.Spec.DoNotUseExternalID, "may not be updated")
}

// taints are reported below metadata, as in Kubernetes.
func (k kindChecker) taints(taints []corev1.Taint) {
	p := field.NewPath("metadata", "taints")
	type key struct {
		name   string
		effect corev1.TaintEffect
	}
	seen := map[key]bool{}
	for i, taint := range taints {
		k.labelName(p.Index(i), "key", taint.Key)
		if messages := validation.IsValidLabelValue(taint.Value); len(messages) > 0 {
			k.invalid(p.Index(i), "value", taint.Value, strings.Join(messages, ";"))
		}
		k.known(p.Index(i), "effect", string(taint.Effect), taintEffects)
		if seen[key{taint.Key, taint.Effect}] {
			duplicate := field.Duplicate(p.Index(i), goForm(taint))
			duplicate.Detail = "taints must be unique by key and effect pair"
			k.add(duplicate)
		}
		seen[key{taint.Key, taint.Effect}] = true
	}
}

func (k kindChecker) limitRange(limits *corev1.LimitRange) {
	kinds := set{}
	for i := range limits.Spec.Limits {
		item, p := &limits.Spec.Limits[i], field.NewPath("spec", "limits").Index(i)
		before := len(k.errs)
		if k.words(p, "type", string(item.Type), isQualifiedName); len(k.errs) == before && !strings.Contains(string(item.Type), "/") &&
			!slices.Contains([]corev1.LimitType{"Pod", "Container", "PersistentVolumeClaim"}, item.Type) {
			k.invalid(p, "type", item.Type, "must be a standard limit type or fully qualified")
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
		k.forbid(p, "default", len(item.Default) > 0, "may not be specified when `type` is 'Pod'")
		k.forbid(p, "defaultRequest", len(item.DefaultRequest) > 0, "may not be specified when `type` is 'Pod'")
	} else {
		names("default", item.Default)
		names("defaultRequest", item.DefaultRequest)
	}
	if item.Type == corev1.LimitTypePersistentVolumeClaim {
		_, least := item.Min[corev1.ResourceStorage]
		_, most := item.Max[corev1.ResourceStorage]
		k.need(p, "limits", least || most, "either minimum or maximum storage value is required, but neither was provided")
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
			k.invalid(p.Child(member).Key(string(name)), "", blame.list[name], fmt.Sprintf("%s %s is greater than %s %s", low.words, a.String(), high.words, b.String()))
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
		k.invalid(rp, "", ratio, fmt.Sprintf("ratio %s is less than 1", ratio.String()))
	}
	if highest := most.AsApproximateFloat64() / least.AsApproximateFloat64(); ok && hasLeast && hasMost && ratio.AsApproximateFloat64() > highest {
		k.invalid(rp, "", ratio, fmt.Sprintf("ratio %s is greater than max/min = %f", ratio.String(), highest))
	}
	limit, hasLimit := item.Default[name]
	request, hasRequest := item.DefaultRequest[name]
	if !mayOvercommit(string(name)) && hasLimit && hasRequest && limit.Cmp(request) != 0 {
		k.invalid(p.Child("defaultRequest").Key(string(name)), "", request,
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
	for _, scope := range spec.Scopes {
		if quotaScopes[scope] == nil {
			k.invalid(p, "scopes", spec.Scopes, "unsupported scope")
		}
		k.scopeFits(p.Child("scopes"), scope, spec, spec.Scopes)
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
		k.invalid(p, "scopes", spec.Scopes, "field is immutable")
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
			k.invalid(p, "", blame, "unsupported scope applied to resource")
		}
	}
}

func (k kindChecker) scopesAgree(p *field.Path, scopes, blame []corev1.ResourceQuotaScope) {
	for _, pair := range [...][2]corev1.ResourceQuotaScope{{"BestEffort", "NotBestEffort"}, {"Terminating", "NotTerminating"}} {
		if slices.Contains(scopes, pair[0]) && slices.Contains(scopes, pair[1]) {
			k.invalid(p, "", blame, "conflicting scopes")
		}
	}
}

func (k kindChecker) scopeSelector(p *field.Path, spec *corev1.ResourceQuotaSpec) {
	var scopes []corev1.ResourceQuotaScope
	for _, requirement := range spec.ScopeSelector.MatchExpressions {
		scope, operator := requirement.ScopeName, requirement.Operator
		scopes = append(scopes, scope)
		if quotaScopes[scope] == nil {
			k.invalid(p, "scopeName", scope, "unsupported scope")
		}
		k.scopeFits(p, scope, spec, spec.ScopeSelector)
		valued := scope == corev1.ResourceQuotaScopePriorityClass || scope == corev1.ResourceQuotaScopeVolumeAttributesClass
		if quotaScopes[scope] != nil && !valued && operator != corev1.ScopeSelectorOpExists {
			k.invalid(p, "operator", operator, "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, "+
				"ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity")
		}
		switch operator {
		case corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn:
			k.need(p, "values", len(requirement.Values) > 0, "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector")
		case corev1.ScopeSelectorOpExists, corev1.ScopeSelectorOpDoesNotExist:
			if len(requirement.Values) > 0 {
				k.invalid(p, "values", requirement.Values, "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector")
			}
		default:
			k.invalid(p, "operator", operator, "not a valid selector operator")
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
			k.invalid(p("involvedObject"), "namespace", e.involved, elsewhere)
		}
	} else {
		if e.involved == "" && e.namespace != metav1.NamespaceDefault && e.namespace != metav1.NamespaceSystem {
			k.invalid(p("involvedObject"), "namespace", e.involved, elsewhere)
		}
		k.need(p(controllerField), "", e.controller != "", "")
		k.words(p(controllerField), "", e.controller, isQualifiedName)
		for _, text := range [...]struct {
			name, value string
			most        int
		}{{"reportingInstance", e.instance, 128}, {"action", e.action, 128}, {"reason", e.reason, 128}, {"message", e.message, 1024}} {
			k.need(p(text.name), "", text.value != "" || text.name == "message", "")
			if len(text.value) > text.most {
				k.invalid(p(text.name), "", "", fmt.Sprintf("can have at most %d characters", text.most))
			}
		}
	}
	k.words(p("namespace"), "", e.namespace, isSubdomain)
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
			k.invalid(p("series.count"), "", "", "should be at least 2")
		}
		k.need(p("series.lastObservedTime"), "", !series.LastObservedTime.IsZero(), "")
	}
	if old == nil {
		k.need(p("eventTime"), "", !e.EventTime.IsZero(), "")
		if e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning {
			k.invalid(p("type"), "", "", "has invalid value: "+e.Type)
		}
		unset := func(name string, set bool) {
			if set {
				k.invalid(p(name), "", "", "needs to be unset")
			}
		}
		unset("firstTimestamp", !e.DeprecatedFirstTimestamp.IsZero())
		unset("lastTimestamp", !e.DeprecatedLastTimestamp.IsZero())
		unset("count", e.DeprecatedCount != 0)
		unset("source", e.DeprecatedSource != (corev1.EventSource{}))
		return
	}
	k.same(p("involvedObject"), "", e.Regarding, old.Regarding)
	k.same(p("reason"), "", e.Reason, old.Reason)
	k.same(p("message"), "", e.Note, old.Note)
	k.same(p("source"), "", e.DeprecatedSource, old.DeprecatedSource)
	k.same(p("firstTimestamp"), "", e.DeprecatedFirstTimestamp, old.DeprecatedFirstTimestamp)
	k.same(p("lastTimestamp"), "", e.DeprecatedLastTimestamp, old.DeprecatedLastTimestamp)
	k.same(p("count"), "", e.DeprecatedCount, old.DeprecatedCount)
	k.same(p("reason"), "", e.Reason, old.Reason)
	k.same(p("type"), "", e.Type, old.Type)
	if !e.EventTime.Truncate(time.Microsecond).Equal(old.EventTime.Truncate(time.Microsecond)) {
		k.same(p("eventTime"), "", e.EventTime, old.EventTime)
	}
	k.same(p("action"), "", e.Action, old.Action)
	k.same(p("related"), "", e.Related, old.Related)
	k.same(p("reportingController"), "", e.ReportingController, old.ReportingController)
	k.same(p("reportingInstance"), "", e.ReportingInstance, old.ReportingInstance)
}

// ---- small groups ----

func (k kindChecker) lease(spec *coordinationv1.LeaseSpec) {
	p := field.NewPath("spec")
	if seconds := spec.LeaseDurationSeconds; seconds != nil {
		k.aboveZero(p, "leaseDurationSeconds", int64(*seconds))
	}
	nonNegativeRef(k.checker, p, "leaseTransitions", spec.LeaseTransitions)
	if strategy := spec.Strategy; strategy != nil && strings.Contains(string(*strategy), "/") {
		k.words(p, "strategy.strategy", string(*strategy), isQualifiedName)
	} else if strategy != nil {
		k.oneOf(p, "strategy.strategy", string(*strategy), []string{"OldestEmulationVersion"})
	}
	preferred := spec.PreferredHolder != nil && *spec.PreferredHolder != ""
	k.forbid(p, "preferredHolder", preferred && (spec.Strategy == nil || *spec.Strategy == ""), "may only be specified if `strategy` is defined")
}

func (k kindChecker) priorityClass(class, old *schedulingv1.PriorityClass) {
	value := field.NewPath("value")
	if old != nil {
		k.forbid(value, "", class.Value != old.Value, "may not be changed in an update.")
		k.same(field.NewPath("preemptionPolicy"), "", class.PreemptionPolicy, old.PreemptionPolicy)
		return
	}
	const most = 1_000_000_000
	known := map[string]int32{"system-cluster-critical": 2 * most, "system-node-critical": 2*most + 1000}
	if reserved := strings.HasPrefix(class.Name, "system-"); !reserved {
		k.forbid(value, "", class.Value > most, fmt.Sprintf("maximum allowed value of a user defined priority is %d", most))
	} else if want, ok := known[class.Name]; !ok || class.Value != want || class.GlobalDefault {
		why := fmt.Sprintf("%v is not a known system priority class", class.Name)
		if ok && class.Value != want {
			why = fmt.Sprintf("value of %v PriorityClass must be %v", class.Name, want)
		} else if ok {
			why = fmt.Sprintf("globalDefault of %v PriorityClass must be false", class.Name)
		}
		k.forbid(field.NewPath("metadata", "name"), "", true, "priority class names with 'system-' prefix are reserved for system use only. error: "+why)
	}
	if class.PreemptionPolicy != nil {
		k.known(field.NewPath("preemptionPolicy"), "", string(*class.PreemptionPolicy), preemptionPolicies)
	}
}

func (k kindChecker) runtimeClass(class, old *nodev1.RuntimeClass) {
	handler := field.NewPath("handler")
	defer func() { // last, as in Kubernetes
		if old != nil {
			k.same(handler, "", class.Handler, old.Handler)
		}
	}()
	k.name(handler, "", class.Handler, isLabel)
	if class.Overhead != nil {
		overheadOfPod(k.checker, field.NewPath("overhead"), class.Overhead.PodFixed)
	}
	if class.Scheduling == nil {
		return
	}
	p := field.NewPath("scheduling")
	k.labels(p, "nodeSelector", class.Scheduling.NodeSelector)
	tolerations(k.checker, p.Child("tolerations"), class.Scheduling.Tolerations)
	for i, toleration := range class.Scheduling.Tolerations {
		same := func(t corev1.Toleration) bool {
			t.TolerationSeconds = toleration.TolerationSeconds
			return t == toleration
		}
		if slices.ContainsFunc(class.Scheduling.Tolerations[:i], same) {
			k.add(field.Duplicate(p.Child("tolerations").Index(i), goForm(toleration)))
		}
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
		k.invalid(p, "request", spec.Request, err.Error())
	}
	k.need(p, "usages", len(spec.Usages) > 0, "")
	for i, usage := range spec.Usages {
		k.oneOf(p.Child("usages").Index(i), "", string(usage), keyUsages)
	}
	seen := set{}
	for i, usage := range spec.Usages {
		k.unique(p.Child("usages").Index(i), "", seen, string(usage))
	}
	if spec.SignerName == "kubernetes.io/legacy-unknown" {
		k.invalid(p, "signerName", spec.SignerName, "the legacy signerName is not allowed via this API version")
	} else {
		volumeChecker{checker: k.checker}.signerName(p.Child("signerName"), spec.SignerName)
	}
	if seconds := spec.ExpirationSeconds; seconds != nil && *seconds < 600 {
		k.invalid(p, "expirationSeconds", *seconds, "may not specify a duration less than 600 seconds (10 minutes)")
	}
}

func checkRequest(request []byte) error {
	block, _ := pem.Decode(request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return err
	}
	return parsed.CheckSignature()
}

// ---- RBAC ----

func (k kindChecker) rules(rules []rbacv1.PolicyRule, namespaced bool) {
	for i, rule := range rules {
		p := field.NewPath("rules").Index(i)
		k.need(p, "verbs", len(rule.Verbs) > 0, "verbs must contain at least one value")
		if urls := rule.NonResourceURLs; len(urls) > 0 {
			if namespaced {
				k.invalid(p, "nonResourceURLs", urls, "namespaced rules cannot apply to non-resource URLs")
			}
			if len(rule.APIGroups)+len(rule.Resources)+len(rule.ResourceNames) > 0 {
				k.invalid(p, "nonResourceURLs", urls, "rules cannot apply to both regular resources and non-resource URLs")
			}
			continue
		}
		k.need(p, "apiGroups", len(rule.APIGroups) > 0, "resource rules must supply at least one api group")
		k.need(p, "resources", len(rule.Resources) > 0, "resource rules must supply at least one resource")
	}
}

func (k kindChecker) aggregation(rule *rbacv1.AggregationRule) {
	if rule == nil {
		return
	}
	p := field.NewPath("aggregationRule", "clusterRoleSelectors")
	k.need(p, "", len(rule.ClusterRoleSelectors) > 0, "at least one clusterRoleSelector required if aggregationRule is non-nil")
	for i := range rule.ClusterRoleSelectors {
		k.selector(p.Index(i), "", &rule.ClusterRoleSelectors[i])
		if _, err := metav1.LabelSelectorAsSelector(&rule.ClusterRoleSelectors[i]); err != nil {
			k.invalid(p.Index(i), "", nil, "invalid label selector.")
		}
	}
}

var subjectKinds = []string{rbacv1.ServiceAccountKind, rbacv1.UserKind, rbacv1.GroupKind}

// binding: who may bind cluster roles alone must also say where a service account lives.
func (k kindChecker) binding(ref *rbacv1.RoleRef, subjects []rbacv1.Subject, kinds []string) {
	p, group := field.NewPath("roleRef"), []string{rbacv1.GroupName}
	k.oneOf(p, "apiGroup", ref.APIGroup, group)
	k.oneOf(p, "kind", ref.Kind, kinds)
	k.name(p, "name", ref.Name, isPathSegment)
	for i, subject := range subjects {
		sp := field.NewPath("subjects").Index(i)
		k.need(sp, "name", subject.Name != "", "")
		switch subject.Kind {
		case rbacv1.ServiceAccountKind:
			k.maybe(sp, "name", subject.Name, isSubdomain)
			k.oneOf(sp, "apiGroup", subject.APIGroup, []string{""})
			k.need(sp, "namespace", len(kinds) > 1 || subject.Namespace != "", "")
		case rbacv1.UserKind, rbacv1.GroupKind:
			k.oneOf(sp, "apiGroup", subject.APIGroup, group)
		default:
			k.unsupported(sp, "kind", subject.Kind, subjectKinds)
		}
	}
}

// ---- webhooks ----

var (
	failurePolicies    = []string{"Fail", "Ignore"}
	matchPolicies      = []string{"Equivalent", "Exact"}
	sideEffects        = []string{"None", "NoneOnDryRun"}
	reinvocations      = []string{"IfNeeded", "Never"}
	webhookOperations  = []string{"*", "CONNECT", "CREATE", "DELETE", "UPDATE"}
	ruleScopes         = []string{"*", "Cluster", "Namespaced"}
	reviewVersions     = []string{"v1", "v1beta1"}
	reviewVersionWords = strings.Join(reviewVersions, ", ")
)

// A webhook is a validating one, or a mutating one with a reinvocation policy.
type webhook struct {
	admissionv1.ValidatingWebhook
	reinvocation *admissionv1.ReinvocationPolicyType
}

func validatingHooks(config *admissionv1.ValidatingWebhookConfiguration) (hooks []webhook) {
	for i := range config.Webhooks {
		hooks = append(hooks, webhook{ValidatingWebhook: config.Webhooks[i]})
	}
	return hooks
}

func mutatingHooks(config *admissionv1.MutatingWebhookConfiguration) (hooks []webhook) {
	for i := range config.Webhooks {
		h := &config.Webhooks[i]
		hooks = append(hooks, webhook{admissionv1.ValidatingWebhook{
			Name: h.Name, ClientConfig: h.ClientConfig, Rules: h.Rules, FailurePolicy: h.FailurePolicy, MatchPolicy: h.MatchPolicy,
			NamespaceSelector: h.NamespaceSelector, ObjectSelector: h.ObjectSelector, SideEffects: h.SideEffects, TimeoutSeconds: h.TimeoutSeconds,
			AdmissionReviewVersions: h.AdmissionReviewVersions, MatchConditions: h.MatchConditions,
		}, h.ReinvocationPolicy})
	}
	return hooks
}

func (k kindChecker) webhooks(hooks []webhook) {
	names := set{}
	for i := range hooks {
		p := field.NewPath("webhooks").Index(i)
		k.webhook(p, &hooks[i])
		k.reviewVersions(p.Child("admissionReviewVersions"), hooks[i].AdmissionReviewVersions)
		if hooks[i].Name != "" {
			k.unique(p, "name", names, hooks[i].Name)
		}
	}
}

func (k kindChecker) webhook(p *field.Path, hook *webhook) {
	k.add(validation.IsFullyQualifiedName(p.Child("name"), hook.Name)...)
	for i := range hook.Rules {
		k.webhookRule(p.Child("rules").Index(i), &hook.Rules[i])
	}
	oneOfRef(k.checker, p, "failurePolicy", hook.FailurePolicy, failurePolicies)
	oneOfRef(k.checker, p, "matchPolicy", hook.MatchPolicy, matchPolicies)
	k.need(p, "sideEffects", hook.SideEffects != nil, "must specify one of None, NoneOnDryRun")
	oneOfRef(k.checker, p, "sideEffects", hook.SideEffects, sideEffects)
	if timeout := hook.TimeoutSeconds; timeout != nil && (*timeout < 1 || *timeout > 30) {
		k.invalid(p, "timeoutSeconds", *timeout, "the timeout value must be between 1 and 30 seconds")
	}
	k.selector(p, "namespaceSelector", hook.NamespaceSelector)
	k.selector(p, "objectSelector", hook.ObjectSelector)
	oneOfRef(k.checker, p, "reinvocationPolicy", hook.reinvocation, reinvocations)
	switch client := &hook.ClientConfig; {
	case (client.URL == nil) == (client.Service == nil):
		k.required(p, "clientConfig", "exactly one of url or service is required")
	case client.URL != nil:
		k.webhookURL(p.Child("clientConfig", "url"), *client.URL)
	default:
		k.webhookService(p.Child("clientConfig", "service"), client.Service)
	}
	k.matchConditions(p.Child("matchConditions"), hook.MatchConditions)
}

// matchConditions: their expressions are compiled where they are used.
func (k kindChecker) matchConditions(p *field.Path, conditions []admissionv1.MatchCondition) {
	if len(conditions) > 64 {
		k.add(field.TooMany(p, len(conditions), 64))
	}
	names := set{}
	for i, condition := range conditions {
		k.need(p.Index(i), "expression", strings.TrimSpace(condition.Expression) != "", "")
		k.name(p.Index(i), "name", condition.Name, isQualifiedName)
		if condition.Name != "" {
			k.unique(p.Index(i), "name", names, condition.Name)
		}
	}
}

func (k kindChecker) reviewVersions(p *field.Path, versions []string) {
	k.need(p, "", len(versions) > 0, "must specify one of "+reviewVersionWords)
	accepted := len(versions) == 0
	for i, version := range versions {
		if slices.Contains(versions[:i], version) {
			k.invalid(p.Index(i), "", version, "duplicate version")
			continue
		}
		k.words(p.Index(i), "", version, validation.IsDNS1035Label)
		accepted = accepted || slices.Contains(reviewVersions, version)
	}
	if !accepted {
		k.invalid(p, "", versions, "must include at least one of "+reviewVersionWords)
	}
}

func (k kindChecker) webhookRule(p *field.Path, rule *admissionv1.RuleWithOperations) {
	k.need(p, "operations", len(rule.Operations) > 0, "")
	if len(rule.Operations) > 1 && slices.Contains(rule.Operations, admissionv1.OperationAll) {
		k.invalid(p, "operations", rule.Operations, "if '*' is present, must not specify other operations")
	}
	for i, operation := range rule.Operations {
		k.oneOf(p.Child("operations").Index(i), "", string(operation), webhookOperations)
	}
	k.starAlone(p, "apiGroups", rule.APIGroups, "", "API groups")
	k.starAlone(p, "apiVersions", rule.APIVersions, "", "API versions")
	for i, version := range rule.APIVersions {
		k.need(p.Child("apiVersions").Index(i), "", version != "", "")
	}
	k.webhookResources(p.Child("resources"), rule.Resources)
	oneOfRef(k.checker, p, "scope", rule.Scope, ruleScopes)
}

// starAlone is for a list that may not be empty, and where * stands alone; needed says why it is needed.
func (k kindChecker) starAlone(p *field.Path, name string, list []string, needed, others string) {
	k.need(p, name, len(list) > 0, needed)
	if len(list) > 1 && slices.Contains(list, "*") {
		k.invalid(p, name, list, "if '*' is present, must not specify other "+others)
	}
}

func (k kindChecker) webhookResources(p *field.Path, resources []string) {
	k.need(p, "", len(resources) > 0, "")
	allOf, inAll := set{}, set{} // resources of which all, subresources of which everyone's are named
	plain := false
	for i, name := range resources {
		resource, sub, subresource := strings.Cut(name, "/")
		switch {
		case name == "":
			k.required(p.Index(i), "", "")
			continue
		case !subresource:
			plain = name != "*"
			continue
		}
		if allOf[resource] {
			k.invalid(p.Index(i), "", name, fmt.Sprintf("if '%s/*' is present, must not specify %s", resource, name))
		}
		if inAll[sub] {
			k.invalid(p.Index(i), "", name, fmt.Sprintf("if '*/%s' is present, must not specify %s", sub, name))
		}
		allOf[resource] = allOf[resource] || sub == "*"
		inAll[sub] = inAll[sub] || resource == "*"
	}
	if len(resources) > 1 && slices.Contains(resources, "*/*") {
		k.invalid(p, "", resources, "if '*/*' is present, must not specify other resources")
	}
	if plain && slices.Contains(resources, "*") {
		k.invalid(p, "", resources, "if '*' is present, must not specify other resources without subresources")
	}
}

func (k kindChecker) webhookURL(p *field.Path, address string) {
	const form = "; desired format: https://host[/path]"
	u, err := url.Parse(address)
	if err != nil {
		k.required(p, "", "url must be a valid URL: "+err.Error()+form)
		return
	}
	for _, part := range [...]struct {
		wrong         bool
		value, detail string
	}{
		{u.Scheme != "https", u.Scheme, "'https' is the only allowed URL scheme" + form},
		{u.Host == "", u.Host, "host must be specified" + form},
		{u.User != nil, u.User.String(), "user information is not permitted in the URL"},
		{u.Fragment != "", u.Fragment, "fragments are not permitted in the URL"},
		{u.RawQuery != "", u.RawQuery, "query parameters are not permitted in the URL"},
	} {
		if part.wrong {
			k.invalid(p, "", part.value, part.detail)
		}
	}
}

func (k kindChecker) webhookService(p *field.Path, service *admissionv1.ServiceReference) {
	// the server calls its check with name and namespace exchanged
	k.filled(p, "name", service.Namespace, "namespace", service.Name)
	if port := *service.Port; port < 1 || port > 65535 {
		k.invalid(p, "port", port, "port is not valid: "+validation.InclusiveRangeError(1, 65535))
	}
	if service.Path == nil || *service.Path == "" || *service.Path == "/" {
		return
	}
	path := *service.Path
	if path == "//" {
		k.invalid(p, "path", path, "segment[0] may not be empty")
		return
	}
	if !strings.HasPrefix(path, "/") {
		k.invalid(p, "path", path, "must start with a '/'")
	}
	for i, segment := range strings.Split(strings.TrimSuffix(path[1:], "/"), "/") {
		if segment == "" {
			k.invalid(p, "path", path, fmt.Sprintf("segment[%d] may not be empty", i))
			continue
		}
		for _, message := range isSubdomain(segment) {
			k.invalid(p, "path", path, fmt.Sprintf("segment[%d]: %s", i, message))
		}
	}
}

// ---- flow control ----

var (
	flowVerbs       = []string{"create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"}
	distinguishers  = []string{"ByNamespace", "ByUser"}
	flowSubjects    = []string{"Group", "ServiceAccount", "User"}
	levelTypes      = []string{"Exempt", "Limited"}
	limitResponses  = []string{"Queue", "Reject"}
	zeroSharesNoted = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares"
)

func (k kindChecker) flowSchema(schema *flowcontrolv1.FlowSchema) {
	p, spec := field.NewPath("spec"), &schema.Spec
	if precedence := spec.MatchingPrecedence; precedence <= 0 {
		k.invalid(p, "matchingPrecedence", precedence, "must be a positive value")
	} else if precedence > 10000 {
		k.invalid(p, "matchingPrecedence", precedence, "must not be greater than 10000")
	} else if precedence == 1 && schema.Name != "exempt" {
		k.invalid(p, "matchingPrecedence", precedence, "only the schema named 'exempt' may have matchingPrecedence 1")
	}
	if method := spec.DistinguisherMethod; method != nil && !slices.Contains(distinguishers, string(method.Type)) {
		k.unsupported(p, "distinguisherMethod.type", method, distinguishers)
	}
	level := spec.PriorityLevelConfiguration.Name
	k.need(p, "priorityLevelConfiguration.name", level != "", "must reference a priority level")
	k.maybe(p, "priorityLevelConfiguration.name", level, isSubdomain)
	for i := range spec.Rules {
		k.flowRule(p.Child("rules").Index(i), &spec.Rules[i])
	}
}

func (k kindChecker) flowRule(p *field.Path, rule *flowcontrolv1.PolicyRulesWithSubjects) {
	k.need(p, "subjects", len(rule.Subjects) > 0, "subjects must contain at least one value")
	for i := range rule.Subjects {
		k.flowSubject(p.Child("subjects").Index(i), &rule.Subjects[i])
	}
	k.need(p, "", len(rule.ResourceRules)+len(rule.NonResourceRules) > 0, "at least one of resourceRules and nonResourceRules has to be non-empty")
	for i, resource := range rule.ResourceRules {
		rp := p.Child("resourceRules").Index(i)
		k.flowVerbs(rp, resource.Verbs)
		k.starAlone(rp, "apiGroups", resource.APIGroups, "resource rules must supply at least one api group", "api groups")
		k.starAlone(rp, "resources", resource.Resources, "resource rules must supply at least one resource", "resources")
		if resource.ClusterScope && len(resource.Namespaces) == 0 {
			continue
		}
		k.starAlone(rp, "namespaces", resource.Namespaces, "resource rules that are not cluster scoped must supply at least one namespace", "namespaces")
		for j, namespace := range resource.Namespaces {
			if !slices.Contains(resource.Namespaces, "*") {
				for _, message := range isLabel(namespace) {
					k.invalid(rp.Child("namespaces").Index(j), "", namespace, "each member of this list must be '*' or a DNS-1123 label; "+message)
				}
			}
		}
	}
	for i, rest := range rule.NonResourceRules {
		rp := p.Child("nonResourceRules").Index(i)
		k.flowVerbs(rp, rest.Verbs)
		k.starAlone(rp, "nonResourceURLs", rest.NonResourceURLs, "nonResourceURLs must contain at least one value", "non-resource URLs")
		for j, path := range rest.NonResourceURLs {
			if wrong := wrongInURLPath(path); wrong != "" && !slices.Contains(rest.NonResourceURLs, "*") {
				k.invalid(rp.Child("nonResourceURLs").Index(j), "", path, wrong)
			}
		}
	}
}

func (k kindChecker) flowVerbs(p *field.Path, verbs []string) {
	k.starAlone(p, "verbs", verbs, "verbs must contain at least one value", "verbs")
	known := func(verb string) bool { return slices.Contains(flowVerbs, verb) }
	if !slices.Contains(verbs, "*") && slices.ContainsFunc(verbs, func(verb string) bool { return !known(verb) }) {
		k.unsupported(p, "verbs", verbs, flowVerbs)
	}
}

func wrongInURLPath(path string) string {
	stars := strings.Count(path, "*")
	switch {
	case path == "":
		return "must not be empty"
	case path == "/":
		return ""
	case !strings.HasPrefix(path, "/"):
		return "must start with slash"
	case strings.Contains(path, " "):
		return "must not contain white-space"
	case strings.Contains(path, "//"):
		return "must not contain double slash"
	case stars > 1 || stars == 1 && !strings.HasSuffix(path, "/*"):
		return "wildcard can only do suffix matching"
	}
	return ""
}

func (k kindChecker) flowSubject(p *field.Path, subject *flowcontrolv1.Subject) {
	if !slices.Contains(flowSubjects, string(subject.Kind)) {
		k.unsupported(p, "kind", subject.Kind, flowSubjects)
		return
	}
	members := [...]struct {
		name string
		kind flowcontrolv1.SubjectKind
		set  bool
	}{
		{"serviceAccount", flowcontrolv1.SubjectKindServiceAccount, subject.ServiceAccount != nil},
		{"user", flowcontrolv1.SubjectKindUser, subject.User != nil}, {"group", flowcontrolv1.SubjectKindGroup, subject.Group != nil},
	}
	for _, member := range members {
		if member.kind == subject.Kind {
			k.need(p, member.name, member.set, fmt.Sprintf("%s is required when subject kind is '%s'", member.name, member.kind))
		}
	}
	switch account := subject.ServiceAccount; {
	case subject.Kind == flowcontrolv1.SubjectKindServiceAccount && account != nil:
		if account.Name != "*" {
			k.name(p, "serviceAccount.name", account.Name, isSubdomain)
		}
		k.need(p, "serviceAccount.namespace", account.Namespace != "", "must specify namespace for service account")
		k.maybe(p, "serviceAccount.namespace", account.Namespace, isLabel)
	case subject.Kind == flowcontrolv1.SubjectKindUser && subject.User != nil:
		k.filled(p, "user.name", subject.User.Name)
	case subject.Kind == flowcontrolv1.SubjectKindGroup && subject.Group != nil:
		k.filled(p, "group.name", subject.Group.Name)
	}
	for _, member := range members {
		k.forbid(p, member.name, member.set && member.kind != subject.Kind, fmt.Sprintf("%s is forbidden when subject kind is not '%s'", member.name, member.kind))
	}
}

func (k kindChecker) priorityLevel(level *flowcontrolv1.PriorityLevelConfiguration) {
	p, spec := field.NewPath("spec"), &level.Spec
	_, noted := level.Annotations[zeroSharesNoted]
	k.forbid(field.NewPath("metadata", "annotations"), "", noted, "annotation '"+zeroSharesNoted+"' is forbidden")
	if (level.Name == "exempt") != (spec.Type == flowcontrolv1.PriorityLevelEnablementExempt) {
		k.invalid(p, "type", spec.Type, "must be 'Exempt' if and only if `name` is 'exempt'")
	}
	switch spec.Type {
	case flowcontrolv1.PriorityLevelEnablementExempt:
		k.forbid(p, "limited", spec.Limited != nil, "must be nil if the type is not Limited")
		if exempt := spec.Exempt; exempt != nil {
			k.shares(p.Child("exempt"), exempt.NominalConcurrencyShares, exempt.LendablePercent)
		}
	case flowcontrolv1.PriorityLevelEnablementLimited:
		k.forbid(p, "exempt", spec.Exempt != nil, "must be nil if the type is Limited")
		if spec.Limited == nil {
			k.required(p, "limited", "must not be empty when type is Limited")
			return
		}
		k.limitResponse(p.Child("limited"), spec.Limited)
	default:
		k.unsupported(p, "type", spec.Type, levelTypes)
	}
}

func (k kindChecker) shares(p *field.Path, shares, lendable *int32) {
	if *shares < 0 {
		k.invalid(p, "nominalConcurrencyShares", *shares, "must be a non-negative integer")
	}
	if *lendable < 0 || *lendable > 100 {
		k.invalid(p, "lendablePercent", *lendable, "must be between 0 and 100, inclusive")
	}
}

func (k kindChecker) limitResponse(p *field.Path, limited *flowcontrolv1.LimitedPriorityLevelConfiguration) {
	if shares := *limited.NominalConcurrencyShares; shares < 0 {
		k.invalid(p, "nominalConcurrencyShares", shares, "must be a non-negative integer")
	}
	switch response := &limited.LimitResponse; response.Type {
	case flowcontrolv1.LimitResponseTypeReject:
		k.forbid(p, "limitResponse.queuing", response.Queuing != nil, "must be nil if limited.limitResponse.type is not Limited")
	case flowcontrolv1.LimitResponseTypeQueue:
		k.need(p, "limitResponse.queuing", response.Queuing != nil, "must not be empty if limited.limitResponse.type is Limited")
		if response.Queuing != nil {
			k.queuing(p.Child("limitResponse", "queuing"), response.Queuing)
		}
	default:
		k.unsupported(p, "limitResponse.type", response.Type, limitResponses)
	}
	if lendable := *limited.LendablePercent; lendable < 0 || lendable > 100 {
		k.invalid(p, "lendablePercent", lendable, "must be between 0 and 100, inclusive")
	}
	if most := limited.BorrowingLimitPercent; most != nil && *most < 0 {
		k.invalid(p, "borrowingLimitPercent", *most, "if specified, must be a non-negative integer")
	}
}

// queuing: a hand is dealt from a 60-bit hash.
func (k kindChecker) queuing(p *field.Path, queuing *flowcontrolv1.QueuingConfiguration) {
	mustBePositive := func(name string, value int32) bool {
		if value <= 0 {
			k.invalid(p, name, value, "must be positive")
		}
		return value > 0
	}
	queues, hand := queuing.Queues, queuing.HandSize
	mustBePositive("queueLengthLimit", queuing.QueueLengthLimit)
	if mustBePositive("queues", queues) && queues > 10_000_000 {
		k.invalid(p, "queues", queues, "must not be greater than 10000000")
	}
	if !mustBePositive("handSize", hand) {
		return
	}
	if bits := int(math.Ceil(math.Log2(float64(queues)) * float64(hand))); hand > queues {
		k.invalid(p, "handSize", hand, fmt.Sprintf("should not be greater than queues (%d)", queues))
	} else if bits > 60 {
		k.invalid(p, "handSize", hand, fmt.Sprintf("required entropy bits of deckSize %d and handSize %d should not be greater than 60", queues, hand))
	}
}
