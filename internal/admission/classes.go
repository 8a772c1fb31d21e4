package admission

// This file: what a new object gets from the class that it names, or from the one that is marked as the default. Nowhere else on the way of
// a write do an object's fields depend on other objects:
//
//	new object              class          named by            gets                                      no such class
//	Pod                     PriorityClass  priorityClassName   priority, preemptionPolicy                403
//	Pod                     RuntimeClass   runtimeClassName    overhead, node selector, tolerations      403
//	PersistentVolumeClaim   StorageClass   storageClassName    the default's name, when it names none    taken as it is
//	Ingress                 IngressClass   ingressClassName    the default's name, when it names none    taken as it is
//
// In kube-apiserver these are admission plug-ins that nobody switches off. Classes are read at each such create: there is a handful of them,
// and what is not remembered cannot be out of date. As there, what is filled in here has no owner in managedFields.

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"apilet/internal/registry/defaults"
	"apilet/internal/registry/strategy"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	runtimeClasses = "/node.k8s.io/runtimeclasses/"
	storageClasses = "/storage.k8s.io/storageclasses/"
	ingressClasses = "/networking.k8s.io/ingressclasses/"
)

// Classes reads the classes that are stored.
type Classes struct{ Store *store.Store }

// An unclassed error says why the classes do not allow an object.
type unclassed string

func (r unclassed) Error() string { return string(r) }

func refusef(format string, args ...any) error { return unclassed(fmt.Sprintf(format, args...)) }

// Complete fills in what a new object has from its classes; its error is unclassed, or the store's.
func (c Classes) Complete(obj scheme.Object) error {
	switch o := obj.(type) {
	case *corev1.Pod:
		if err := c.prioritize(&o.Spec); err != nil {
			return err
		}
		return c.runWith(&o.Spec)
	case *corev1.PersistentVolumeClaim:
		if o.Spec.StorageClassName == nil && o.Annotations[corev1.BetaStorageClassAnnotation] == "" {
			return c.nameDefault(&o.Spec.StorageClassName, storageClasses,
				"storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")
		}
	case *networkingv1.Ingress:
		if _, old := o.Annotations["kubernetes.io/ingress.class"]; o.Spec.IngressClassName == nil && !old {
			return c.nameDefault(&o.Spec.IngressClassName, ingressClasses, networkingv1.AnnotationIsDefaultIngressClass)
		}
	case *schedulingv1.PriorityClass:
		return c.OnlyDefault(o)
	}
	return nil
}

// RefusedByClass words an error of complete for the client.
func RefusedByClass(err error, res *scheme.Resource, obj scheme.Object) error {
	if why := unclassed(""); errors.As(err, &why) {
		return apierrors.NewForbidden(res.GroupResource(), AskedName(obj), why)
	}
	return err
}

// AskedName is what a refused object goes by: its prefix, when the server would have chosen its name.
func AskedName(obj scheme.Object) string {
	if prefix := obj.GetGenerateName(); prefix != "" {
		return prefix
	}
	return obj.GetName()
}

// find reads one class; false when there is none of that name.
func (c Classes) find(prefix, name string, into any) (bool, error) {
	rec, err := c.Store.Get(prefix + "/" + name)
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

// each shows all classes of a kind, by name.
func (c Classes) each(prefix string, see func(class gjson.Result)) error {
	found := &store.Chunk{}
	for at := (store.Span{Prefix: prefix}); ; at.Rev, at.Start = found.Rev, found.Next {
		if err := c.Store.Chunk(at, found); err != nil {
			return err
		}
		for i := range found.Records {
			see(gjson.ParseBytes(found.Records[i].JSON))
		}
		if found.Next == "" {
			return nil
		}
	}
}

// ---- Priority ----

// prioritize gives a pod the priority of its class. A pod may say what it would get, and nothing else.
func (c Classes) prioritize(spec *corev1.PodSpec) error {
	class, err := c.priorityOf(spec.PriorityClassName)
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

// priorityOf finds a class by name, or the default one; without a default, or with one that cannot be read, pods have priority 0.
func (c Classes) priorityOf(name string) (*schedulingv1.PriorityClass, error) {
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
	found, err := c.find(strategy.PriorityClasses, name, class)
	switch {
	case err != nil && !asked && errors.As(err, new(unclassed)):
		return noPriority(), nil
	case !found && err == nil:
		err = refusef("no PriorityClass with name %s was found", name)
	}
	return class, err
}

func noPriority() *schedulingv1.PriorityClass {
	class := &schedulingv1.PriorityClass{}
	defaults.OrNew(&class.PreemptionPolicy, corev1.PreemptLowerPriority)
	return class
}

// defaultPriority is the name of the class for pods that name none. There should be one; of several it is the lowest.
func (c Classes) defaultPriority() (name string, err error) {
	var lowest int64
	err = c.each(strategy.PriorityClasses, func(class gjson.Result) {
		if value := class.Get("value").Int(); class.Get("globalDefault").Bool() && (name == "" || value < lowest) {
			name, lowest = class.Get("metadata.name").String(), value
		}
	})
	return name, err
}

// OnlyDefault refuses a second default.
func (c Classes) OnlyDefault(class *schedulingv1.PriorityClass) error {
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

// runWith gives a pod what its runtime costs and where it is found.
func (c Classes) runWith(spec *corev1.PodSpec) error {
	var class nodev1.RuntimeClass
	if spec.RuntimeClassName != nil {
		switch found, err := c.find(runtimeClasses, *spec.RuntimeClassName, &class); {
		case err != nil:
			return err
		case !found:
			return refusef("pod rejected: RuntimeClass %q not found", *spec.RuntimeClassName)
		}
	}
	switch {
	case class.Overhead == nil && spec.Overhead != nil:
		return unclassed("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
	case class.Overhead != nil && len(spec.Overhead) > 0 && !equality.Semantic.DeepEqual(class.Overhead.PodFixed, spec.Overhead):
		return unclassed("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
	case class.Overhead != nil:
		spec.Overhead = class.Overhead.PodFixed
	}
	if class.Scheduling == nil {
		return nil
	}
	return scheduleWith(spec, class.Scheduling)
}

func scheduleWith(spec *corev1.PodSpec, where *nodev1.Scheduling) error {
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

// addToleration leaves out one that the pod has. (kube-apiserver also drops those that a wider one covers.)
func addToleration(spec *corev1.PodSpec, toleration corev1.Toleration) {
	for i := range spec.Tolerations {
		if equality.Semantic.DeepEqual(spec.Tolerations[i], toleration) {
			return
		}
	}
	spec.Tolerations = append(spec.Tolerations, toleration)
}

// ---- Defaults that are marked by an annotation ----

// nameDefault writes the default class's name into a field: of several defaults the youngest, of two as young the first by name.
func (c Classes) nameDefault(field **string, prefix string, marks ...string) error {
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
