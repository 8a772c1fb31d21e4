//go:build unix

package main

import (
	"path/filepath"
	"testing"
)

func TestStoreGoesOnAfterAFullDisk(t *testing.T) {
	out, err := storeChild("limit", filepath.Join(t.TempDir(), "a.db")).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
