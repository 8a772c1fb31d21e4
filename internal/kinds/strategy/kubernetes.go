package strategy

// This file imports strategies from k8s.io/kubernetes/pkg/registry. Only packages that add little
// to the server are imported (see the package documentation).

import (
	"context"
	"reflect"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"apilet/internal/scheme/internalversion"
)

// ImportedStrategy is a strategy imported from k8s.io/kubernetes/pkg/registry. Its methods take
// internal types.
type ImportedStrategy struct {
	Object Strategy
	Status rest.RESTUpdateStrategy // nil for types without a status subresource
}

// A Strategy also configures declarative validation.
type Strategy interface {
	rest.RESTCreateUpdateStrategy
	rest.DeclarativeValidationStrategy
}

// ImportedStrategies returns the imported strategies by internal type.
var ImportedStrategies = sync.OnceValue(func() map[reflect.Type]ImportedStrategy {
	all := map[reflect.Type]ImportedStrategy{}
	for goType, row := range byType {
		if row.imported != nil {
			obj := reflect.New(goType.Elem()).Interface().(runtime.Object)
			all[reflect.TypeOf(internalversion.From(obj))] = *row.imported
		}
	}
	return all
})

// imported returns the row of the table in table.go for type T. object is a strategy imported from
// Kubernetes, and status is the strategy of the status subresource, or nil if there is none.
func imported[T runtime.Object](object Strategy, status rest.RESTUpdateStrategy) *strategy {
	row := &strategy{
		goType:              reflect.TypeFor[T](),
		imported:            &ImportedStrategy{object, status},
		allowCreateOnUpdate: object.AllowCreateOnUpdate(context.Background()),
		create:              internal(object.PrepareForCreate),
		updates:             updates{"": internalUpdate(object.PrepareForUpdate)},
	}
	if status != nil {
		row.updates["status"] = internalUpdate(status.PrepareForUpdate)
	}
	return row
}

// returning makes a DELETE respond with the deleted object.
func (s *strategy) returning() *strategy {
	s.returnsDeleted = true
	return s
}

// keeping refuses the deletion of the objects with the given names.
func (s *strategy) keeping(whyNot string, names ...string) *strategy {
	s.protectedError, s.protected = whyNot, names
	return s
}

// unless skips the preparation, and thus the conversion, of objects that would not be changed.
func (s *strategy) unless(unaffected func(obj runtime.Object) bool) *strategy {
	create, update := s.create, s.updates[""]
	s.create = func(ctx context.Context, obj runtime.Object) {
		if !unaffected(obj) {
			create(ctx, obj)
		}
	}
	s.updates[""] = func(ctx context.Context, obj, old runtime.Object) {
		if !unaffected(obj) {
			update(ctx, obj, old)
		}
	}
	return s
}

// usesNoElection reports whether a Lease has no field of coordinated leader election. The strategy
// changes only those.
func usesNoElection(obj runtime.Object) bool {
	spec := &obj.(*coordinationv1.Lease).Spec
	return spec.Strategy == nil && spec.PreferredHolder == nil
}
