package strategy

import (
	"reflect"
	"testing"

	"apilet/internal/scheme"
)

// TestEveryRowIsOfAResource: a row whose key nobody has, or whose functions take another type, would go unnoticed.
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
		functions := row.create != nil || row.update != nil || row.status != nil || row.subresources != nil || row.requested != nil ||
			row.named != nil || row.counted != nil || row.grace != nil || row.terminating != nil || row.full != nil
		if functions != (row.goType != nil) {
			t.Errorf("%s has functions (%v) and a type (%v)", key, functions, row.goType)
		}
	}
}
