package main

import (
	"encoding/json"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
)

func sameJSON(t *testing.T, got, want string) {
	t.Helper()
	var g, w any
	if json.Unmarshal([]byte(got), &g) != nil || json.Unmarshal([]byte(want), &w) != nil || !equality.Semantic.DeepEqual(g, w) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
