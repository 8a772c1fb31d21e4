package validation

// This file adds the errors of declarative validation, which Kubernetes generates from the
// comments of the types in k8s.io/api. rest.ValidateCreate and rest.ValidateUpdate of
// k8s.io/apiserver do the same, but they also compare each handwritten error with each declarative
// one, only to log differences, and an object of 3 MB has room for a hundred thousand errors.
//
// The level of a rule determines which of its errors are reported:
//
//	level     errors
//	standard  are reported; the handwritten rule is gone
//	beta      are reported instead of equal handwritten errors, unless DeclarativeValidationBeta is disabled
//	alpha     are not reported
//
// The rules apply to the version of the request, so the object is converted to it.

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/validate"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiserverfeatures "k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/component-base/featuregate"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"apilet/internal/apierror"
	"apilet/internal/scheme/internalversion"
)

// declare sets the feature gates that the declarative rules of a type depend on.
func (r *rules) declare(gates ...featuregate.Feature) *rules {
	r.config = func(context.Context, runtime.Object, runtime.Object) rest.DeclarativeValidationConfig {
		options := make(map[string]bool, len(gates))
		for _, gate := range gates {
			options[string(gate)] = enabled(gate)
		}
		return rest.DeclarativeValidationConfig{Options: options, NormalizationRules: r.paths}
	}
	return r
}

// normalize sets the rules for converting paths in the served version to those used by handwritten
// errors.
func (r *rules) normalize(paths []field.NormalizationRule) *rules {
	r.paths = paths
	return r
}

// addDeclared returns the handwritten errors errs combined with the declarative errors of the
// object. obj and old must have the type expected by the handwritten rules. old is nil for a
// create.
func (r *rules) addDeclared(ctx context.Context, sub string, errs field.ErrorList, obj, old runtime.Object) field.ErrorList {
	switch {
	case r.handwritten:
		return errs
	case r.unreported:
		return withoutRepeated(errs)
	}
	var config rest.DeclarativeValidationConfig
	if r.config != nil {
		config = r.config(ctx, obj, old)
	}
	beta := enabled(apiserverfeatures.DeclarativeValidationBeta)
	declared := validate.FilterEnforcedDeclarativeErrors(ctx, declaredErrors(ctx, sub, config.Options, obj, old), beta)
	return append(withoutCovered(withoutRepeated(errs), declared, config.NormalizationRules), declared...)
}

// declaredErrors runs the declarative rules. As in kube-apiserver, a panic is reported as an
// error.
func declaredErrors(ctx context.Context, sub string, options map[string]bool, obj, old runtime.Object) (errs field.ErrorList) {
	defer func() {
		if r := recover(); r != nil {
			errs = append(errs, field.InternalError(nil, fmt.Errorf("panic during declarative validation: %v", r)))
		}
	}()
	gv := requestVersion(ctx)
	obj = internalversion.To(gv, obj)
	var subresources []string
	if sub != "" {
		subresources = []string{sub}
	}
	if old == nil {
		return legacyscheme.Scheme.Validate(ctx, options, obj, subresources...)
	}
	return legacyscheme.Scheme.ValidateUpdate(ctx, options, obj, internalversion.To(gv, old), subresources...)
}

// withoutRepeated removes handwritten errors that have the same text as an earlier one. It stops
// if the texts do not fit in a response.
func withoutRepeated(errs field.ErrorList) field.ErrorList {
	if len(errs) < 2 {
		return errs
	}
	left, seen := apierror.NewBudget(), map[string]bool{}
	return slices.DeleteFunc(errs, func(err *field.Error) bool {
		if left.Exhausted() {
			return false
		}
		text := err.Error()
		left.Take(text)
		repeated := seen[text]
		seen[text] = true
		return repeated
	})
}

// A covering identifies the handwritten errors that are replaced by a declarative error.
type covering struct {
	kind         field.ErrorType
	path, origin string
}

// withoutCovered returns the handwritten errors that no declarative error of level beta replaces.
func withoutCovered(errs, declared field.ErrorList, paths []field.NormalizationRule) field.ErrorList {
	covered := map[covering]bool{}
	for _, err := range declared {
		if err.IsBeta() && (err.Origin != "" || err.Type != field.ErrorTypeInvalid) {
			covered[covering{err.Type, err.Field, err.Origin}] = true
			covered[covering{err.Type, normalizePath(err.Field, paths), err.Origin}] = true
		}
	}
	return slices.DeleteFunc(errs, func(err *field.Error) bool {
		return err.CoveredByDeclarative && covered[covering{err.Type, err.Field, err.Origin}]
	})
}

// normalizePath applies the first rule that changes the path.
func normalizePath(path string, rules []field.NormalizationRule) string {
	for _, rule := range rules {
		if changed := rule.Regexp.ReplaceAllString(path, rule.Replacement); changed != path {
			return changed
		}
	}
	return path
}
