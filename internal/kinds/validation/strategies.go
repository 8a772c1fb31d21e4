package validation

// This file contains the rules for strategies that are imported from
// k8s.io/kubernetes/pkg/registry. The other rules are in functions.go.

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	imported "apilet/internal/kinds/strategy"
)

// A strategy is the part of rest.RESTCreateUpdateStrategy that validates.
type strategy interface {
	statusStrategy
	rest.DeclarativeValidationStrategy
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

// fromStrategy returns the rules for a strategy. status is nil if the type does not have a status
// subresource.
func fromStrategy(s strategy, status statusStrategy) *rules {
	r := &rules{create: s.Validate, updates: map[string]updateFunc{"": s.ValidateUpdate}, config: s.DeclarativeValidationConfig}
	if status != nil {
		r.updates["status"] = status.ValidateUpdate
	}
	return r
}
