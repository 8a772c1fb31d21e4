package auth

// This file validates access reviews. It returns the same errors as kube-apiserver, in the same
// order. Authenticator.Review evaluates valid reviews.

import (
	"fmt"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"apilet/internal/apierror"
	"apilet/internal/selector"
)

func invalidReview(errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierror.Invalid(schema.GroupKind{Group: authorizationv1.GroupName}, "", errs) // kube-apiserver also omits the kind
}

func validateReviewMeta(meta metav1.ObjectMeta, namespace, want string) field.ErrorList {
	bare := meta
	bare.ManagedFields = nil
	if apiequality.Semantic.DeepEqual(metav1.ObjectMeta{Namespace: namespace}, bare) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata"), meta, want)}
}

// printedPath is used to print non-resource attributes in the same way as kube-apiserver.
type printedPath struct{ Path, Verb string }

func printPath(at *authorizationv1.NonResourceAttributes) any {
	if at == nil {
		return nil
	}
	return printedPath(*at)
}

func validateAccess(spec authorizationv1.SubjectAccessReviewSpec) (errs field.ErrorList) {
	path := field.NewPath("spec")
	if (spec.ResourceAttributes == nil) == (spec.NonResourceAttributes == nil) {
		errs = append(errs, field.Invalid(path, printPath(spec.NonResourceAttributes), "exactly one of nonResourceAttributes or resourceAttributes must be specified"))
	}
	return append(errs, validateSelectors(spec.ResourceAttributes, path.Child("resourceAttributes"))...)
}

func validateSubject(spec authorizationv1.SubjectAccessReviewSpec) field.ErrorList {
	errs := validateAccess(spec)
	if spec.User != "" || len(spec.Groups) > 0 {
		return errs
	}
	nobody := field.Invalid(field.NewPath("spec", "user"), spec.User, "at least one of user or group must be specified")
	after := 0 // insert it before the errors about selectors
	if (spec.ResourceAttributes == nil) == (spec.NonResourceAttributes == nil) {
		after = 1
	}
	return slices.Insert(errs, after, nobody)
}

func validateLocal(obj *authorizationv1.LocalSubjectAccessReview, namespace string) error {
	path := field.NewPath("spec")
	errs := append(validateSubject(obj.Spec), validateReviewMeta(obj.ObjectMeta, obj.Namespace, "must be empty except for namespace")...)
	if at := obj.Spec.ResourceAttributes; at != nil && at.Namespace != obj.Namespace {
		errs = append(errs, field.Invalid(path.Child("resourceAttributes", "namespace"), at.Namespace, "must match metadata.namespace"))
	}
	if at := obj.Spec.NonResourceAttributes; at != nil {
		errs = append(errs, field.Invalid(path.Child("nonResourceAttributes"), printPath(at), "disallowed on this kind of request"))
	}
	if err := invalidReview(errs); err != nil {
		return err
	}
	if namespace != obj.Namespace {
		return apierrors.NewBadRequest("spec.resourceAttributes.namespace must match namespace: " + namespace)
	}
	return nil
}

func validateSelectors(at *authorizationv1.ResourceAttributes, path *field.Path) (errs field.ErrorList) {
	if at == nil {
		return nil
	}
	if s, p := at.FieldSelector, path.Child("fieldSelector"); s != nil {
		errs = append(errs, validateSelectorForm(s.RawSelector, len(s.Requirements), p)...)
		for i, req := range s.Requirements {
			errs = append(errs, metav1validation.ValidateFieldSelectorRequirement(req,
				metav1validation.FieldSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}, p.Child("requirements").Index(i))...)
		}
	}
	if s, p := at.LabelSelector, path.Child("labelSelector"); s != nil {
		errs = append(errs, validateSelectorForm(s.RawSelector, len(s.Requirements), p)...)
		for i, req := range s.Requirements {
			errs = append(errs, metav1validation.ValidateLabelSelectorRequirement(req,
				metav1validation.LabelSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}, p.Child("requirements").Index(i))...)
		}
	}
	return errs
}

func validateSelectorForm(raw string, requirements int, path *field.Path) field.ErrorList {
	switch {
	case raw != "" && requirements > 0:
		return field.ErrorList{field.Invalid(path.Child("rawSelector"), raw, "may not specified at the same time as requirements")}
	case raw == "" && requirements == 0:
		return field.ErrorList{field.Required(path.Child("requirements"), fmt.Sprintf("when %s is specified, requirements or rawSelector is required", path))}
	}
	return nil
}

// selectorProblem returns an error message if a selector cannot be parsed. The messages have no
// other effect, because selectors are not used by roles.
func selectorProblem(at *authorizationv1.ResourceAttributes) (unread []string) {
	note := func(which string, good, bad int) {
		if bad > 0 && good > 0 {
			which += " partially"
		}
		if bad > 0 {
			unread = append(unread, "spec.resourceAttributes."+which+" ignored due to parse error")
		}
	}
	if s := at.FieldSelector; s != nil {
		good, bad := count(s.Requirements, func(req metav1.FieldSelectorRequirement) bool {
			return len(req.Values) == 1 && (req.Operator == metav1.FieldSelectorOpIn || req.Operator == metav1.FieldSelectorOpNotIn)
		})
		if _, err := fields.ParseSelector(s.RawSelector); err != nil {
			bad++
		}
		note("fieldSelector", good, bad)
	}
	if s := at.LabelSelector; s != nil {
		good, bad := count(s.Requirements, func(req metav1.LabelSelectorRequirement) bool {
			_, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{req}})
			return err == nil
		})
		if _, err := selector.ParseLabels(s.RawSelector); err != nil {
			bad++
		}
		note("labelSelector", good, bad)
	}
	return unread
}

// fieldSelector returns the field selector of an access review. If a requirement cannot be parsed,
// it is omitted, so the question is about more objects.
func fieldSelector(at *authorizationv1.ResourceAttributes) string {
	if at.FieldSelector == nil {
		return ""
	}
	if raw := at.FieldSelector.RawSelector; raw != "" {
		return raw
	}
	var terms []fields.Selector
	for _, req := range at.FieldSelector.Requirements {
		switch {
		case len(req.Values) != 1:
		case req.Operator == metav1.FieldSelectorOpIn:
			terms = append(terms, fields.OneTermEqualSelector(req.Key, req.Values[0]))
		case req.Operator == metav1.FieldSelectorOpNotIn:
			terms = append(terms, fields.OneTermNotEqualSelector(req.Key, req.Values[0]))
		}
	}
	return fields.AndSelectors(terms...).String()
}

func count[T any](list []T, fits func(T) bool) (good, bad int) {
	for _, item := range list {
		if fits(item) {
			good++
		} else {
			bad++
		}
	}
	return good, bad
}
