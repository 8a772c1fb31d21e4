package strategy

import (
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/randfill"

	"apilet/internal/scheme"
	"apilet/internal/scheme/internalversion"
)

// TestEveryRowIsOfAResource finds rows whose key no resource has, or whose functions take another type.
func TestEveryRowIsOfAResource(t *testing.T) {
	t.Parallel()
	stored := map[string]map[reflect.Type]bool{"/apiextensions.k8s.io/customresourcedefinitions/": {}} // made in package crd
	for _, res := range scheme.NewRegistry().All() {
		if stored[res.Base] == nil {
			stored[res.Base] = map[reflect.Type]bool{}
		}
		if goType := res.StoredType(); goType != nil {
			stored[res.Base][reflect.PointerTo(goType)] = true
		}
	}
	for key, row := range table {
		if stored[key] == nil {
			t.Errorf("no resource has the key %s", key)
		}
		if row.goType != nil && !stored[key][row.goType] {
			t.Errorf("%s: objects are no %v", key, row.goType)
		}
		functions := row.create != nil || row.updates != nil || row.canonicalize != nil || row.rename != nil ||
			row.grace != nil || row.terminating != nil || row.hasContent != nil
		if functions != (row.goType != nil) {
			t.Errorf("%s has functions (%v) and a type (%v)", key, functions, row.goType)
		}
	}
}

// TestEveryStatusIsPrepared finds types whose status a client could set by creating or updating the object.
func TestEveryStatusIsPrepared(t *testing.T) {
	t.Parallel()
	for _, res := range scheme.NewRegistry().All() {
		goType := res.StoredType()
		if goType == nil || res.Custom != nil || res.Virtual || res.Subresource("status") == nil {
			continue
		}
		row := table[res.Base]
		if row == nil || row.create == nil || row.updates[""] == nil || row.updates["status"] == nil {
			t.Errorf("%s has a status, and its row is incomplete", res.Base)
		}
	}
}

// TestFirstGeneration compares the generation of new objects with the table of package scheme.
func TestFirstGeneration(t *testing.T) {
	t.Parallel()
	for _, res := range scheme.NewRegistry().All() {
		goType := res.StoredType()
		if goType == nil || res.Custom != nil || res.Virtual {
			continue
		}
		obj := reflect.New(goType).Interface().(scheme.Object)
		internalversion.Default(obj)
		PrepareForCreate(t.Context(), obj)
		if counted := obj.GetGeneration() == 1; counted != res.Generation {
			t.Errorf("%s: a new object has generation %d", res.Base, obj.GetGeneration())
		}
	}
}

// TestImportedStrategiesDoNotCanonicalize shows that Canonicalize may ignore the imported strategies.
func TestImportedStrategiesDoNotCanonicalize(t *testing.T) {
	t.Parallel()
	for internalType, s := range ImportedStrategies() {
		obj := reflect.New(internalType.Elem()).Interface().(runtime.Object)
		randfill.NewWithSeed(1).NilChance(0).NumElements(1, 1).MaxDepth(6).Funcs(func(*runtime.Object, randfill.Continue) {}).Fill(obj)
		before := obj.DeepCopyObject()
		if s.Object.Canonicalize(obj); !equality.Semantic.DeepEqual(obj, before) {
			t.Errorf("%v changes", internalType)
		}
	}
}
