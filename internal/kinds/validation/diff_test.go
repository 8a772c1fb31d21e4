package validation

import (
	"fmt"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The diffs of Pods, claims and volumes are in the conversation diffs.txtar, as kube-apiserver gives them.
func TestDifferenceNamesInternalFields(t *testing.T) {
	at := metav1.NewTime(time.Unix(0, 0).UTC())
	condition := certificatesv1.CertificateSigningRequestCondition{Type: "Approved", Status: "True", Reason: "r", LastUpdateTime: at}
	other := condition
	other.Reason = "s"
	got := DifferenceOf([]certificatesv1.CertificateSigningRequestCondition{condition}, []certificatesv1.CertificateSigningRequestCondition{other})
	const want = `@@ -2,7 +2,7 @@
  {
   "Type": "Approved",
   "Status": "True",
-  "Reason": "r",
+  "Reason": "s",
   "Message": "",
   "LastUpdateTime": "1970-01-01T00:00:00Z",
   "LastTransitionTime": null
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// The plug-in NodeRestriction compares whole claims; their metadata has no field of its own in the internal type.
func TestDifferenceOfWholeObjects(t *testing.T) {
	claim := corev1.PersistentVolumeClaim{TypeMeta: metav1.TypeMeta{Kind: "PersistentVolumeClaim"}, ObjectMeta: metav1.ObjectMeta{Name: "c", Labels: map[string]string{"a": "b"}}}
	other := *claim.DeepCopy()
	other.Labels["a"] = "c"
	got := DifferenceOf(&claim, &other)
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

// TestDifferenceIsBounded: the time for a diff grows with the square of its lines, and its text with the values.
func TestDifferenceIsBounded(t *testing.T) {
	container := func(words int, word string) (c corev1.Container) {
		for i := range words {
			c.Command = append(c.Command, fmt.Sprint(word, i))
		}
		return c
	}
	if got := DifferenceOf(container(1000, "a"), container(1000, "b")); strings.Count(got, "\n") < 2000 {
		t.Errorf("a diff of 2,000 lines: %d lines", strings.Count(got, "\n"))
	}
	for _, changed := range [][2]corev1.Container{
		{container(maxDiffLines, "a"), container(10, "b")},
		{container(10, "a"), container(maxDiffLines, "b")},
		{container(1, strings.Repeat("a", maxDiffBytes)), container(1, "b")},
	} {
		if got := DifferenceOf(changed[0], changed[1]); got != tooLongToShow {
			t.Errorf("got %d bytes, want %q", len(got), tooLongToShow)
		}
	}
}
