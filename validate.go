package main

import (
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateCreate and validateUpdate return what is wrong with an object, metadata excluded, in Kubernetes' words.
func validateCreate(obj runtime.Object) field.ErrorList      { return nil }
func validateUpdate(obj, old runtime.Object) field.ErrorList { return nil }

// nameRule returns the rule for names of a kind.
func nameRule(res *resource) func(name string, prefix bool) []string {
	return validation.NameIsDNSSubdomain
}
