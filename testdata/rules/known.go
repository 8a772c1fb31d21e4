package rules

// This file lists the differences from kube-apiserver that are intended. Each has a row in
// docs/compatibility.md.

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// A knownDifference contains a pattern for a difference, the reason, and the beginning of its row
// in the document.
type knownDifference struct {
	pattern *regexp.Regexp // of the kind, operation and text
	reason  string
	row     string
}

var known = []knownDifference{
	{regexp.MustCompile(`: (refused by apilet alone|only apilet): metadata\.name: FieldValueTooLong: `),
		"a name is part of a key of the store", "object name of more than 1,024 bytes"},
	{regexp.MustCompile(` create by update: (refused by apilet alone|only apilet): Conflict: `),
		"the client has seen an object that is gone", "PUT or apply with the resourceVersion of a deleted object"},
	{regexp.MustCompile(` create by update: metadata\.deletion(Timestamp|GracePeriodSeconds): apilet "nothing"`),
		"an object that is created is not being deleted", "PUT or apply that creates an object with a deletionTimestamp"},
	{regexp.MustCompile(`^HorizontalPodAutoscaler .*: metadata\.generation: `),
		"defaults that the annotation of autoscaling/v1 omits are no change", "HorizontalPodAutoscaler in autoscaling/v1 whose annotation"},
	{regexp.MustCompile(`^APIService .*: status\.conditions`),
		"the work of a controller of kube-apiserver", "removal of the Service of an APIService"},
	{regexp.MustCompile(`: only (apilet|Kubernetes): .*json: cannot unmarshal .* of type .*(v1|v1beta1|v1beta2|v1alpha1)\.`),
		"versions share Go types", "malformed JSON in a version that is off by default"},
	{regexp.MustCompile(`^MutatingAdmissionPolicy .*: only (apilet|Kubernetes): patch: .*cannot convert `),
		"versions share Go types", "malformed JSON in a version that is off by default"},
	{regexp.MustCompile(`^Service .* of status: spec\.internalTrafficPolicy: apilet "nothing"`),
		"kube-apiserver stores the field and hides it, but for the response to a status", "ExternalName Service with an earlier internalTrafficPolicy"},
	{regexp.MustCompile(`^Service create: only apilet: AlreadyExists|^Service create: only Kubernetes: spec\.clusterIPs: .* already allocated`),
		"a Service keeps its address if its create is repeated", "Service with its own IPAddress"},
}

// isKnown reports whether a difference is intended.
func isKnown(difference string) bool {
	for _, k := range known {
		if k.pattern.MatchString(difference) {
			return true
		}
	}
	return false
}

// checkKnown fails the test if a row of the document is missing.
func checkKnown(t *testing.T) {
	text, err := os.ReadFile("../../docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range known {
		if !strings.Contains(string(text), "\n| "+k.row) {
			t.Errorf("docs/compatibility.md has no row %q (%s)", k.row, k.reason)
		}
	}
}
