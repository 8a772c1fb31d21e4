package kinds_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"apilet/internal/apitest/kubetest"
	"apilet/internal/kinds/defaults"
	"apilet/internal/scheme"
)

// TestDefaultsForgetNothing: what another server has stored goes through defaults when it is read from etcd, so that whatever these left out would be lost
// with the next write. Every field that is set is there afterwards, but for stringData, which is no field of what is stored.
func TestDefaultsForgetNothing(t *testing.T) {
	t.Parallel()
	for _, row := range scheme.Builtins {
		if row.Virtual {
			continue
		}
		obj := kubetest.Filled(row.GoType)
		before := tree(t, obj)
		defaults.Set(obj)
		for _, path := range lost("", before, tree(t, obj)) {
			if path != ".stringData" {
				t.Errorf("%s %s: %s is forgotten", row.APIVersion(), row.Kind, path)
			}
		}
	}
}

func tree(t *testing.T, obj any) (doc any) {
	t.Helper()
	text, err := json.Marshal(obj)
	if err == nil {
		err = json.Unmarshal(text, &doc)
	}
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// lost are the paths of one document that another does not have.
func lost(at string, before, after any) (paths []string) {
	switch before := before.(type) {
	case map[string]any:
		now, _ := after.(map[string]any)
		for name, value := range before {
			if _, ok := now[name]; !ok {
				paths = append(paths, at+"."+name)
				continue
			}
			paths = append(paths, lost(at+"."+name, value, now[name])...)
		}
	case []any:
		now, _ := after.([]any)
		if len(now) < len(before) {
			return []string{at}
		}
		for i, value := range before {
			paths = append(paths, lost(fmt.Sprintf("%s[%d]", at, i), value, now[i])...)
		}
	}
	return paths
}
