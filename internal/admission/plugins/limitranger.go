package plugins

// This file implements LimitRanger, which applies the LimitRanges of a namespace to its pods and
// claims. There are three types of limits:
//
//	Container                 default, defaultRequest   set in each container without a value, and recorded in an annotation
//	                          min, max, ratio           checked for each container
//	Pod                       min, max, ratio           checked for the sum of a pod's containers
//	PersistentVolumeClaim     min, max                  checked for the requests of a claim
//
// Defaults are applied first. The LimitRanges are applied in the order of their names. If several
// LimitRanges set a value, the annotation names the last one. The resulting pod is checked after
// it has been validated by the rules of its type. The resources of a pod can change later only by
// the subresource resize, which is checked as well.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"apilet/internal/admission"
	"apilet/internal/apierror"
	"apilet/internal/bounded"
	"apilet/internal/store"
)

const limitRangerAnnotation = "kubernetes.io/limit-ranger"

// limitRanger reads the stored LimitRanges.
type limitRanger struct{ store *store.Store }

// each calls see for the LimitRanges in the object's namespace, sorted by name, and stops at the
// first error. It does nothing if the object is being deleted.
func (l limitRanger) each(a *admission.Attributes, see func(limits []corev1.LimitRangeItem) error) error {
	if a.Old != nil && a.Old.GetDeletionTimestamp() != nil {
		return nil
	}
	for rec, err := range l.store.All(store.Span{Prefix: "//limitranges/" + a.Namespace() + "/"}) {
		if err != nil {
			return err
		}
		var object corev1.LimitRange
		if err := bounded.Unmarshal(rec.JSON, &object); err != nil {
			return a.Forbidden(refusef("a LimitRange is stored and cannot be read: %v", err))
		}
		if err := see(object.Spec.Limits); err != nil {
			return err
		}
	}
	return nil
}

// admit applies the defaults.
func (l limitRanger) admit(_ context.Context, a *admission.Attributes) error {
	return l.each(a, func(limits []corev1.LimitRangeItem) error {
		fillLimits(a.Object.(*corev1.Pod), limits)
		return nil
	})
}

// fillLimits applies the defaults of a LimitRange to the pod.
func fillLimits(pod *corev1.Pod, limits []corev1.LimitRangeItem) {
	defaults, requests := corev1.ResourceList{}, corev1.ResourceList{}
	for i := range limits {
		if limits[i].Type == corev1.LimitTypeContainer {
			maps.Copy(defaults, limits[i].Default)
			maps.Copy(requests, limits[i].DefaultRequest)
		}
	}
	var notes []string
	fill := func(c *corev1.Container, what string) {
		if set := fillList(&c.Resources.Requests, requests); len(set) > 0 {
			notes = append(notes, strings.Join(set, ", ")+" request for "+what+" "+c.Name)
		}
		if set := fillList(&c.Resources.Limits, defaults); len(set) > 0 {
			notes = append(notes, strings.Join(set, ", ")+" limit for "+what+" "+c.Name)
		}
	}
	for i := range pod.Spec.Containers {
		fill(&pod.Spec.Containers[i], "container")
	}
	for i := range pod.Spec.InitContainers {
		fill(&pod.Spec.InitContainers[i], "init container")
	}
	if len(notes) == 0 {
		return
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[limitRangerAnnotation] = "LimitRanger plugin set: " + strings.Join(notes, "; ")
}

// fillList adds the missing quantities and returns their names.
func fillList(list *corev1.ResourceList, from corev1.ResourceList) (set []string) {
	for name, quantity := range from {
		if _, there := (*list)[name]; there {
			continue
		}
		if *list == nil {
			*list = corev1.ResourceList{}
		}
		(*list)[name] = quantity.DeepCopy()
		set = append(set, string(name))
	}
	slices.Sort(set)
	return set
}

// validatePod checks a pod against the LimitRanges of its namespace. It returns all violations of
// the first LimitRange that the pod violates.
func (l limitRanger) validatePod(_ context.Context, a *admission.Attributes) error {
	spec := &a.Object.(*corev1.Pod).Spec
	return l.each(a, func(limits []corev1.LimitRangeItem) error {
		var errs []error
		for i := range limits {
			switch limits[i].Type {
			case corev1.LimitTypeContainer:
				for j := range spec.Containers {
					errs = append(errs, within(&limits[i], &spec.Containers[j].Resources)...)
				}
				for j := range spec.InitContainers {
					errs = append(errs, within(&limits[i], &spec.InitContainers[j].Resources)...)
				}
			case corev1.LimitTypePod:
				errs = append(errs, within(&limits[i], podResources(spec))...)
			}
		}
		return forbidden(a, errs)
	})
}

// validateClaim checks a claim against the LimitRanges of its namespace.
func (l limitRanger) validateClaim(_ context.Context, a *admission.Attributes) error {
	requests := a.Object.(*corev1.PersistentVolumeClaim).Spec.Resources.Requests
	return l.each(a, func(limits []corev1.LimitRangeItem) error {
		var errs []error
		for i := range limits {
			if limits[i].Type != corev1.LimitTypePersistentVolumeClaim {
				continue
			}
			for _, name := range slices.Sorted(maps.Keys(limits[i].Min)) {
				b := bound{string(limits[i].Type), name, limits[i].Min[name]}
				errs = append(errs, b.atLeast(&corev1.ResourceRequirements{Requests: requests}))
			}
			for _, name := range slices.Sorted(maps.Keys(limits[i].Max)) {
				b := bound{string(limits[i].Type), name, limits[i].Max[name]}
				errs = append(errs, b.requestAtMost(requests))
			}
		}
		return forbidden(a, errs)
	})
}

// forbidden returns a 403 error that contains all errors, or nil if there are none. Elements of
// errs may be nil.
func forbidden(a *admission.Attributes, errs []error) error {
	if err := apierror.Join(errs); err != nil {
		return a.Forbidden(err)
	}
	return nil
}

// within checks resources against one limit.
func within(limit *corev1.LimitRangeItem, have *corev1.ResourceRequirements) (errs []error) {
	for _, name := range slices.Sorted(maps.Keys(limit.Min)) {
		b := bound{string(limit.Type), name, limit.Min[name]}
		errs = append(errs, b.atLeast(have))
	}
	for _, name := range slices.Sorted(maps.Keys(limit.Max)) {
		b := bound{string(limit.Type), name, limit.Max[name]}
		errs = append(errs, b.atMost(have))
	}
	for _, name := range slices.Sorted(maps.Keys(limit.MaxLimitRequestRatio)) {
		b := bound{string(limit.Type), name, limit.MaxLimitRequestRatio[name]}
		errs = append(errs, b.ratio(have))
	}
	return errs
}

// bound is a value in a LimitRange for a given resource.
type bound struct {
	limitType string // the type of the limit, for messages
	name      corev1.ResourceName
	value     resource.Quantity
}

// An amount is a request or a limit to be compared with a bound.
type amount struct {
	what     string
	quantity resource.Quantity
	isSet    bool
	n        int64
}

// amounts returns the request, the limit and the bound as integers. The values are in thousandths
// if they fit, and otherwise rounded up.
func (b *bound) amounts(have *corev1.ResourceRequirements) (request, limit amount, value int64) {
	request.what, limit.what = "request", "limit"
	request.quantity, request.isSet = have.Requests[b.name]
	limit.quantity, limit.isSet = have.Limits[b.name]
	request.n, limit.n, value = request.quantity.Value(), limit.quantity.Value(), b.value.Value()
	if max(request.n, limit.n, value) <= resource.MaxMilliValue {
		request.n, limit.n, value = request.quantity.MilliValue(), limit.quantity.MilliValue(), b.value.MilliValue()
	}
	return request, limit, value
}

// check returns an error if an amount is beyond the bound. The first amount must be specified.
func (b *bound) check(which string, beyond func(n int64) bool, amounts ...amount) error {
	usage := fmt.Sprintf("%s %s usage per %s is %s", which, b.name, b.limitType, b.value.String())
	if !amounts[0].isSet {
		return refusef("%s.  No %s is specified", usage, amounts[0].what)
	}
	for i := range amounts {
		if a := &amounts[i]; a.isSet && beyond(a.n) {
			return refusef("%s, but %s is %s", usage, a.what, a.quantity.String())
		}
	}
	return nil
}

func (b *bound) atLeast(have *corev1.ResourceRequirements) error {
	request, limit, value := b.amounts(have)
	return b.check("minimum", func(n int64) bool { return n < value }, request, limit)
}

func (b *bound) atMost(have *corev1.ResourceRequirements) error {
	request, limit, value := b.amounts(have)
	return b.check("maximum", func(n int64) bool { return n > value }, limit, request)
}

// requestAtMost is like atMost, but for claims, which do not have limits.
func (b *bound) requestAtMost(requests corev1.ResourceList) error {
	request, _, value := b.amounts(&corev1.ResourceRequirements{Requests: requests})
	return b.check("maximum", func(n int64) bool { return n > value }, request)
}

// ratio returns an error if the limit exceeds the request by more than the bound's factor.
func (b *bound) ratio(have *corev1.ResourceRequirements) error {
	request, limit, _ := b.amounts(have)
	usage := fmt.Sprintf("%s max limit to request ratio per %s is %s", b.name, b.limitType, b.value.String())
	switch {
	case !request.isSet || request.n == 0:
		return refusal(usage + ", but no request is specified or request is 0")
	case !limit.isSet || limit.n == 0:
		return refusal(usage + ", but no limit is specified or limit is 0")
	}
	observed, most := float64(limit.n)/float64(request.n), float64(b.value.Value())
	scaled := observed
	if b.value.Value() <= resource.MaxMilliValue {
		scaled, most = observed*1000, float64(b.value.MilliValue())
	}
	if scaled > most {
		return refusal(fmt.Sprintf("%s, but provided ratio is %f", usage, observed))
	}
	return nil
}

// ---- Resources of a pod ----

// podResources returns the total resources of a pod. Init containers run sequentially before the
// other containers start, so only the largest one has to be counted. Restartable init containers
// keep running and are added like ordinary containers. Pod-level cpu and memory override the
// totals.
func podResources(spec *corev1.PodSpec) *corev1.ResourceRequirements {
	sum := func(of func(*corev1.ResourceRequirements) corev1.ResourceList) corev1.ResourceList {
		total, beside, peak := corev1.ResourceList{}, corev1.ResourceList{}, corev1.ResourceList{}
		for i := range spec.Containers {
			add(total, of(&spec.Containers[i].Resources))
		}
		for i := range spec.InitContainers {
			c := &spec.InitContainers[i]
			if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
				add(total, of(&c.Resources))
				add(beside, of(&c.Resources))
				takeMaximum(peak, beside)
				continue
			}
			now := beside.DeepCopy()
			add(now, of(&c.Resources))
			takeMaximum(peak, now)
		}
		takeMaximum(total, peak)
		if spec.Resources == nil {
			return total
		}
		for name, quantity := range of(spec.Resources) {
			if name == corev1.ResourceCPU || name == corev1.ResourceMemory {
				total[name] = quantity
			}
		}
		return total
	}
	return &corev1.ResourceRequirements{
		Requests: sum(func(r *corev1.ResourceRequirements) corev1.ResourceList { return r.Requests }),
		Limits:   sum(func(r *corev1.ResourceRequirements) corev1.ResourceList { return r.Limits }),
	}
}

// add adds all quantities in more to the list to.
func add(to, more corev1.ResourceList) {
	for name, quantity := range more {
		sum := quantity.DeepCopy()
		sum.Add(to[name])
		to[name] = sum
	}
}

// takeMaximum sets each quantity to the maximum of both lists.
func takeMaximum(to, other corev1.ResourceList) {
	for name, quantity := range other {
		if have, there := to[name]; !there || quantity.Cmp(have) > 0 {
			to[name] = quantity.DeepCopy()
		}
	}
}
