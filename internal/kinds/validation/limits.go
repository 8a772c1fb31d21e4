package validation

// This file rejects objects that would take too long to validate with Kubernetes' rules, such as
// long lists that are compared element by element, and updates that would produce a unified diff
// of thousands of lines.

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/storage"
	"k8s.io/utils/ptr"

	"apilet/internal/bounded"
	"apilet/internal/scheme/internalversion"
)

const (
	maxQuadratic   = 100  // maximum length of a list if its elements are compared with each other
	maxTolerations = 1000 // comparing two tolerations is cheap
)

// exceedsLimit returns an error for an internal object that must not be passed to Kubernetes'
// rules. old is nil for a create.
func exceedsLimit(sub string, obj, old runtime.Object) *field.Error {
	if spec := internalversion.PodSpecOf(obj); spec != nil {
		if err := pageSizesExceedLimit(spec); err != nil {
			return err
		}
	}
	switch obj := obj.(type) {
	case *storage.StorageClass:
		return tooMany(obj.AllowedTopologies, maxQuadratic, field.NewPath("allowedTopologies"))
	case *storage.CSINode:
		return tooMany(obj.Spec.Drivers, maxQuadratic, field.NewPath("spec", "drivers"))
	case *core.ResourceQuota:
		return scopesExceedLimit(&obj.Spec)
	case *core.Pod:
		if err := tooMany(obj.Spec.Tolerations, maxTolerations, field.NewPath("spec", "tolerations")); err != nil || old == nil {
			return err
		}
		return podDiffExceedsLimit(sub, &obj.Spec, &old.(*core.Pod).Spec)
	case *core.PersistentVolumeClaim:
		if old != nil {
			return diffExceedsLimit(field.NewPath("spec"), obj.Spec, old.(*core.PersistentVolumeClaim).Spec)
		}
	case *core.PersistentVolume:
		if old != nil {
			return diffExceedsLimit(field.NewPath("spec", "persistentvolumesource"), obj.Spec.PersistentVolumeSource, old.(*core.PersistentVolume).Spec.PersistentVolumeSource)
		}
	case *certificates.CertificateSigningRequest:
		if old != nil {
			return diffExceedsLimit(field.NewPath("status", "conditions"), obj.Status.Conditions, old.(*certificates.CertificateSigningRequest).Status.Conditions)
		}
	}
	return nil
}

func tooMany[T any](list []T, limit int, path *field.Path) *field.Error {
	if len(list) <= limit {
		return nil
	}
	return field.TooMany(path, len(list), limit)
}

// scopesExceedLimit limits the number of scopes in a quota, because each of them is compared with
// every resource.
func scopesExceedLimit(spec *core.ResourceQuotaSpec) *field.Error {
	if err := tooMany(spec.Scopes, maxQuadratic, field.NewPath("spec", "scopes")); err != nil || spec.ScopeSelector == nil {
		return err
	}
	return tooMany(spec.ScopeSelector.MatchExpressions, maxQuadratic, field.NewPath("spec", "scopeSelector", "matchExpressions"))
}

// diffExceedsLimit returns an error if a value has changed that is too long for a diff.
func diffExceedsLimit(path *field.Path, value, old any) *field.Error {
	if equality.Semantic.DeepEqual(value, old) || lines(value) <= maxDiffLines && lines(old) <= maxDiffLines {
		return nil
	}
	return field.Forbidden(path, "the value is too long to be changed "+tooLongToShow)
}

// podDiffExceedsLimit refuses a change that Kubernetes also refuses, if the specs are too long for
// a diff. Kubernetes compares ephemeral containers in another subresource than the rest of the
// spec.
func podDiffExceedsLimit(sub string, spec, old *core.PodSpec) *field.Error {
	if equality.Semantic.DeepEqual(spec, old) || lines(spec) <= maxDiffLines && lines(old) <= maxDiffLines {
		return nil
	}
	switch sub {
	case "":
		if !equality.Semantic.DeepEqual(withoutMutable(spec, old), withoutMutable(old, old)) {
			return field.Forbidden(field.NewPath("spec"), "pod updates may not change this field "+tooLongToShow)
		}
	case "ephemeralcontainers":
		before := map[string]*core.EphemeralContainer{}
		for i := range old.EphemeralContainers {
			before[old.EphemeralContainers[i].Name] = &old.EphemeralContainers[i]
		}
		for i := range spec.EphemeralContainers {
			c := &spec.EphemeralContainers[i]
			if o := before[c.Name]; o != nil && !equality.Semantic.DeepEqual(c, o) {
				return field.Forbidden(field.NewPath("spec", "ephemeralContainers"), "existing ephemeral containers may not be changed "+tooLongToShow)
			}
		}
	}
	return nil
}

// withoutMutable returns a copy of the Pod spec without the fields that can be changed by an
// update.
func withoutMutable(spec, old *core.PodSpec) *core.PodSpec {
	s := *spec
	s.Containers, s.InitContainers = withoutImages(s.Containers), withoutImages(s.InitContainers)
	s.ActiveDeadlineSeconds, s.SchedulingGates, s.Tolerations = nil, nil, nil
	if ptr.Deref(old.TerminationGracePeriodSeconds, 0) < 0 && ptr.Deref(s.TerminationGracePeriodSeconds, 0) == 1 {
		s.TerminationGracePeriodSeconds = old.TerminationGracePeriodSeconds
	}
	if len(old.SchedulingGates) > 0 {
		s.NodeSelector = nil
		a := ptr.Deref(s.Affinity, core.Affinity{})
		a.NodeAffinity = nil
		s.Affinity = &a
	}
	return &s
}

func withoutImages(list []core.Container) []core.Container {
	list = slices.Clone(list)
	for i := range list {
		list[i].Image = ""
	}
	return list
}

// pageSizesExceedLimit checks the quantities in the names of resources such as hugepages-2Mi.
// Kubernetes' rules parse them, which can take hours if the exponent is large.
func pageSizesExceedLimit(spec *core.PodSpec) (err *field.Error) {
	check := func(list core.ResourceList) {
		for name := range list {
			size, isPages := strings.CutPrefix(string(name), core.ResourceHugePagesPrefix)
			if isPages && bounded.CheckQuantity(size) != nil {
				err = field.Invalid(field.NewPath("spec"), string(name), bounded.ErrQuantityRange.Error())
			}
		}
	}
	check(spec.Overhead)
	if spec.Resources != nil {
		check(spec.Resources.Limits)
		check(spec.Resources.Requests)
	}
	podutil.VisitContainers(spec, podutil.AllContainers, func(c *core.Container, _ podutil.ContainerType) bool {
		check(c.Resources.Limits)
		check(c.Resources.Requests)
		return err == nil
	})
	return err
}
