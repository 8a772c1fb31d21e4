package plugins

// This file applies classes to new objects. The class is named by the object, or is marked as the
// default. This is the only step of a write that sets fields based on other objects:
//
//	new object              class          named by            gets                                      missing class
//	Pod                     PriorityClass  priorityClassName   priority, preemptionPolicy                403
//	Pod                     RuntimeClass   runtimeClassName    overhead, node selector, tolerations      403
//	PersistentVolumeClaim   StorageClass   storageClassName    the name of the default, if it has none   accepted
//	Ingress                 IngressClass   ingressClassName    the name of the default, if it has none   accepted
//
// These are four plug-ins: Priority, RuntimeClass, DefaultStorageClass and DefaultIngressClass.
// The classes are read from the store for each create. They are not cached, because there are only
// a few of them and a cache might be outdated. As in kube-apiserver, no owner is set in
// managedFields for these fields.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	"apilet/internal/admission"
	"apilet/internal/kinds/strategy"
	"apilet/internal/store"
)

const (
	runtimeClasses = "/node.k8s.io/runtimeclasses/"
	storageClasses = "/storage.k8s.io/storageclasses/"
	ingressClasses = "/networking.k8s.io/ingressclasses/"
)

// classes reads the stored classes.
type classes struct{ store *store.Store }

// admitPriority implements Priority for pods. It sets the priority of a pod from the class.
func (c classes) admitPriority(ctx context.Context, a *admission.Attributes) error {
	pod := a.Object.(*corev1.Pod)
	if a.Operation == admission.OpCreate {
		return forbidRefusals(a, c.prioritize(ctx, &pod.Spec))
	}
	before := &a.Old.(*corev1.Pod).Spec
	if pod.Spec.Priority == nil {
		pod.Spec.Priority = before.Priority
	}
	if pod.Spec.PreemptionPolicy == nil {
		pod.Spec.PreemptionPolicy = before.PreemptionPolicy
	}
	return nil
}

// validatePriority implements Priority for PriorityClasses. Only one class may be the default.
func (c classes) validatePriority(_ context.Context, a *admission.Attributes) error {
	return forbidRefusals(a, c.onlyDefault(a.Object.(*schedulingv1.PriorityClass)))
}

// admitRuntime implements RuntimeClass. It sets the overhead and the scheduling constraints of a
// pod.
func (c classes) admitRuntime(ctx context.Context, a *admission.Attributes) error {
	return forbidRefusals(a, c.applyRuntimeClass(ctx, &a.Object.(*corev1.Pod).Spec))
}

// validateRuntime checks that the overhead of a pod matches its class. kube-apiserver checks this
// after the pod has been validated, so that warnings are sent even if the request is rejected.
func (c classes) validateRuntime(ctx context.Context, a *admission.Attributes) error {
	spec := &a.Object.(*corev1.Pod).Spec
	if spec.Overhead == nil {
		return nil
	}
	class, err := c.runtimeOf(ctx, spec)
	switch {
	case err != nil:
	case class.Overhead == nil:
		err = refusal("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
	case !equality.Semantic.DeepEqual(class.Overhead.PodFixed, spec.Overhead):
		err = refusal(otherOverhead)
	}
	return forbidRefusals(a, err)
}

// admitStorage implements DefaultStorageClass.
func (c classes) admitStorage(_ context.Context, a *admission.Attributes) error {
	claim := a.Object.(*corev1.PersistentVolumeClaim)
	if claim.Spec.StorageClassName != nil || claim.Annotations[corev1.BetaStorageClassAnnotation] != "" {
		return nil
	}
	return c.setDefaultClass(&claim.Spec.StorageClassName, storageClasses,
		"storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")
}

// admitIngress implements DefaultIngressClass.
func (c classes) admitIngress(_ context.Context, a *admission.Attributes) error {
	ingress := a.Object.(*networkingv1.Ingress)
	if _, old := ingress.Annotations["kubernetes.io/ingress.class"]; ingress.Spec.IngressClassName != nil || old {
		return nil
	}
	return c.setDefaultClass(&ingress.Spec.IngressClassName, ingressClasses, networkingv1.AnnotationIsDefaultIngressClass)
}

// A refusal is the reason for which a plug-in rejects a write. The client gets a 403.
type refusal string

func (r refusal) Error() string { return string(r) }

func refusef(format string, args ...any) error { return refusal(fmt.Sprintf(format, args...)) }

// forbidRefusals converts a refusal to a 403. It returns other errors unchanged.
func forbidRefusals(a *admission.Attributes, err error) error {
	if errors.As(err, new(refusal)) {
		return a.Forbidden(err)
	}
	return err
}

// find reads the newest version of a class and reports whether it exists. It may have just been
// created by another server.
func (c classes) find(ctx context.Context, prefix, name string, into any) (bool, error) {
	rec, err := c.store.GetNewest(ctx, prefix+"/"+name)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err == nil {
		if err = json.Unmarshal(rec.JSON, into); err != nil {
			err = refusef("class %s is stored and cannot be read: %v", name, err)
		}
	}
	return err == nil, err
}

// each calls see for all classes with the given prefix, sorted by name.
func (c classes) each(prefix string, see func(class gjson.Result)) error {
	for rec, err := range c.store.All(store.Span{Prefix: prefix, SkipDamaged: true}) {
		if err != nil {
			return err
		}
		see(gjson.ParseBytes(rec.JSON))
	}
	return nil
}

// ---- Priority ----

// prioritize sets the priority of a pod from the class. The pod may specify only the same values.
func (c classes) prioritize(ctx context.Context, spec *corev1.PodSpec) error {
	class, err := c.priorityOf(ctx, spec.PriorityClassName)
	if err != nil {
		return err
	}
	spec.PriorityClassName = class.Name
	if own := spec.Priority; own != nil && *own != class.Value {
		return refusef("the integer value of priority (%d) must not be provided in pod spec; "+
			"priority admission controller computed %d from the given PriorityClass name", *own, class.Value)
	}
	spec.Priority = &class.Value
	if class.PreemptionPolicy == nil {
		return nil
	}
	if own := spec.PreemptionPolicy; own != nil && *own != *class.PreemptionPolicy {
		return refusef("the string value of PreemptionPolicy (%s) must not be provided in pod spec; "+
			"priority admission controller computed %s from the given PriorityClass name", *own, *class.PreemptionPolicy)
	}
	spec.PreemptionPolicy = class.PreemptionPolicy
	return nil
}

// priorityOf returns the named class, or the default if name is "". If there is no default, or if
// it cannot be decoded, the priority is 0.
func (c classes) priorityOf(ctx context.Context, name string) (*schedulingv1.PriorityClass, error) {
	asked := name != ""
	if !asked {
		var err error
		if name, err = c.defaultPriority(); err != nil {
			return nil, err
		}
	}
	class := noPriority()
	if name == "" {
		return class, nil
	}
	found, err := c.find(ctx, strategy.PriorityClasses, name, class)
	switch {
	case err != nil && !asked && errors.As(err, new(refusal)):
		return noPriority(), nil
	case !found && err == nil:
		err = refusef("no PriorityClass with name %s was found", name)
	}
	return class, err
}

func noPriority() *schedulingv1.PriorityClass {
	return &schedulingv1.PriorityClass{PreemptionPolicy: ptr.To(corev1.PreemptLowerPriority)}
}

// defaultPriority returns the name of the default class. If there are several, it returns the
// class with the lowest value.
func (c classes) defaultPriority() (name string, err error) {
	var lowest int64
	err = c.each(strategy.PriorityClasses, func(class gjson.Result) {
		if value := class.Get("value").Int(); class.Get("globalDefault").Bool() && (name == "" || value < lowest) {
			name, lowest = class.Get("metadata.name").String(), value
		}
	})
	return name, err
}

// onlyDefault returns an error if another class is already the default.
func (c classes) onlyDefault(class *schedulingv1.PriorityClass) error {
	if !class.GlobalDefault {
		return nil
	}
	name, err := c.defaultPriority()
	if err != nil || name == "" || name == class.Name {
		return err
	}
	return refusef("PriorityClass %s is already marked as default. Only one default can exist", name)
}

// ---- Runtime ----

const otherOverhead = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"

// applyRuntimeClass adds the overhead and the scheduling constraints of the runtime class to a pod.
func (c classes) applyRuntimeClass(ctx context.Context, spec *corev1.PodSpec) error {
	class, err := c.runtimeOf(ctx, spec)
	if err != nil {
		return err
	}
	if class.Overhead != nil {
		if len(spec.Overhead) > 0 && !equality.Semantic.DeepEqual(class.Overhead.PodFixed, spec.Overhead) {
			return refusal(otherOverhead)
		}
		spec.Overhead = class.Overhead.PodFixed
	}
	if class.Scheduling == nil {
		return nil
	}
	return applyScheduling(spec, class.Scheduling)
}

// runtimeOf returns the runtime class of a pod, or an empty class if the pod names none.
func (c classes) runtimeOf(ctx context.Context, spec *corev1.PodSpec) (*nodev1.RuntimeClass, error) {
	class := &nodev1.RuntimeClass{}
	if spec.RuntimeClassName == nil {
		return class, nil
	}
	found, err := c.find(ctx, runtimeClasses, *spec.RuntimeClassName, class)
	if err == nil && !found {
		err = refusef("pod rejected: RuntimeClass %q not found", *spec.RuntimeClassName)
	}
	return class, err
}

func applyScheduling(spec *corev1.PodSpec, where *nodev1.Scheduling) error {
	for key, value := range where.NodeSelector {
		if own, both := spec.NodeSelector[key]; both && own != value {
			return refusef("conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; pod.spec.nodeSelector[%s] = %s", key, value, key, own)
		}
		if spec.NodeSelector == nil {
			spec.NodeSelector = map[string]string{}
		}
		spec.NodeSelector[key] = value
	}
	for _, toleration := range where.Tolerations {
		addToleration(spec, toleration)
	}
	return nil
}

// addToleration adds a toleration unless the pod already has it. kube-apiserver also removes
// tolerations that are covered by a wider one.
func addToleration(spec *corev1.PodSpec, toleration corev1.Toleration) {
	for i := range spec.Tolerations {
		if equality.Semantic.DeepEqual(spec.Tolerations[i], toleration) {
			return
		}
	}
	spec.Tolerations = append(spec.Tolerations, toleration)
}

// ---- Defaults marked by an annotation ----

// setDefaultClass sets the field to the name of the default class. If there are several, the newest
// wins, and the first by name among equally new ones.
func (c classes) setDefaultClass(field **string, prefix string, marks ...string) error {
	var name, since string
	err := c.each(prefix, func(class gjson.Result) {
		annotations := class.Get("metadata.annotations").Map()
		for _, mark := range marks {
			if at := class.Get("metadata.creationTimestamp").String(); annotations[mark].String() == "true" && at > since {
				name, since = class.Get("metadata.name").String(), at
			}
		}
	})
	if name != "" {
		*field = &name
	}
	return err
}
