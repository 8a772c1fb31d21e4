package validation

// This file limits the unified diffs in errors. The time to compute one can grow with the product
// of the two numbers of lines.

import (
	"bytes"
	"encoding/json"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/diff"

	"apilet/internal/scheme/internalversion"
)

const (
	maxDiffLines  = 5000 // of each side
	maxDiffBytes  = 64 << 10
	tooLongToShow = "(the difference is too long to show)"
)

// Diff returns a unified diff between the internal forms of two objects of the same type, as
// displayed by kube-apiserver.
func Diff(old, obj runtime.Object) string {
	a, b := internalversion.From(old), internalversion.From(obj)
	if lines(a) > maxDiffLines || lines(b) > maxDiffLines {
		return tooLongToShow
	}
	if text := diff.Diff(a, b); len(text) <= maxDiffBytes {
		return text
	}
	return tooLongToShow
}

// lines returns the number of lines of v as indented JSON.
func lines(v any) int {
	text, _ := json.MarshalIndent(v, "", " ") // internal types can always be encoded
	return bytes.Count(text, []byte("\n")) + 1
}
