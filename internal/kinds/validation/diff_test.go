package validation

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDifference: the field names are those of the internal type, which embeds its metadata.
func TestDifference(t *testing.T) {
	claim := corev1.PersistentVolumeClaim{TypeMeta: metav1.TypeMeta{Kind: "PersistentVolumeClaim"}, ObjectMeta: metav1.ObjectMeta{Name: "c", Labels: map[string]string{"a": "b"}}}
	other := *claim.DeepCopy()
	other.Labels["a"] = "c"
	got := Diff(&claim, &other)
	const want = `@@ -1,7 +1,7 @@
 {
  "name": "c",
  "labels": {
-  "a": "b"
+  "a": "c"
  },
  "Spec": {
   "AccessModes": null,
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestDifferenceIsBounded(t *testing.T) {
	pod := func(words int, word string) *corev1.Pod {
		var c corev1.Container
		for i := range words {
			c.Command = append(c.Command, fmt.Sprint(word, i))
		}
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{c}}}
	}
	if got := Diff(pod(1000, "a"), pod(1000, "b")); strings.Count(got, "\n") < 2000 {
		t.Errorf("a diff of 2,000 lines: %d lines", strings.Count(got, "\n"))
	}
	for _, changed := range [][2]*corev1.Pod{
		{pod(maxDiffLines, "a"), pod(10, "b")},
		{pod(10, "a"), pod(maxDiffLines, "b")},
		{pod(1, strings.Repeat("a", maxDiffBytes)), pod(1, "b")},
	} {
		if got := Diff(changed[0], changed[1]); got != tooLongToShow {
			t.Errorf("got %d bytes, want %q", len(got), tooLongToShow)
		}
	}
}
