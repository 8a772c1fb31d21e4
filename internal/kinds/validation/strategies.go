package validation

// This file has the rules of the strategies that are imported from k8s.io/kubernetes/pkg/registry.
// functions.go has the others. It also replaces the strategies that run declarative validation, because
// k8s.io/apiserver then compares each error with each other, and an object of 3 MB has room for a
// hundred thousand errors.

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	imported "apilet/internal/kinds/strategy"
)

// A strategy is the part of rest.RESTCreateUpdateStrategy that validates.
type strategy interface {
	statusStrategy
	Validate(ctx context.Context, obj runtime.Object) field.ErrorList
}

// A statusStrategy validates updates of /status.
type statusStrategy interface {
	ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList
}

// strategyRules returns the rules of the imported strategies.
func strategyRules() map[reflect.Type]*rules {
	all := map[reflect.Type]*rules{}
	for internalType, s := range imported.ImportedStrategies() {
		all[internalType] = fromStrategy(s.Object, s.Status)
	}
	return all
}

// fromStrategy returns the rules of a strategy. status is nil for types without a status subresource.
func fromStrategy(s strategy, status statusStrategy) *rules {
	r := &rules{create: s.Validate, updates: map[string]updateFunc{"": s.ValidateUpdate}}
	if status != nil {
		r.updates["status"] = status.ValidateUpdate
	}
	return r
}
