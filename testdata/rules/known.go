package rules

// This file lists the differences from kube-apiserver that are intended. Each has a paragraph in
// docs/differences.md.

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// A knownDifference is a kind of difference, its reason, and the beginning of its paragraph in the document.
type knownDifference struct {
	pattern   *regexp.Regexp // of the kind, operation and text
	reason    string
	paragraph string
}

var known = []knownDifference{
	{regexp.MustCompile(`: (refused by apilet alone|only apilet): metadata\.name: FieldValueTooLong: `),
		"a name is part of a key of the store", "A name of more than 1,024 bytes"},
	{regexp.MustCompile(` create by update: (refused by apilet alone|only apilet): Conflict: `),
		"the client has seen an object that is gone", "A PUT (of a type that can be created by one, such as Lease)"},
	{regexp.MustCompile(` create by update: metadata\.deletion(Timestamp|GracePeriodSeconds): apilet "nothing"`),
		"an object that is created is not being deleted", "A PUT or apply that creates an object"},
	{regexp.MustCompile(`^HorizontalPodAutoscaler .*: metadata\.generation: `),
		"defaults that the annotation of autoscaling/v1 omits are no change", "A write of a HorizontalPodAutoscaler in autoscaling/v1"},
	{regexp.MustCompile(`^APIService .*: status\.conditions`),
		"the work of a controller of kube-apiserver", "A PUT or PATCH that removes the Service"},
	{regexp.MustCompile(`: only (apilet|Kubernetes): .*json: cannot unmarshal .* of type .*(v1|v1beta1|v1beta2|v1alpha1)\.`),
		"versions share Go types", "Versions that are off by default"},
	{regexp.MustCompile(`^MutatingAdmissionPolicy .*: only (apilet|Kubernetes): patch: .*cannot convert `),
		"versions share Go types", "Versions that are off by default"},
	{regexp.MustCompile(`^Service .* of status: spec\.internalTrafficPolicy: apilet "nothing"`),
		"kube-apiserver stores the field and hides it, but for the response to a status", "An ExternalName Service has no internalTrafficPolicy"},
	{regexp.MustCompile(`^Service create: only apilet: AlreadyExists|^Service create: only Kubernetes: spec\.clusterIPs: .* already allocated`),
		"a Service keeps its address if its create is repeated", "An IPAddress that a Service is given"},
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

// checkKnown fails the test if a paragraph of the document is missing.
func checkKnown(t *testing.T) {
	text, err := os.ReadFile("../../docs/differences.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range known {
		if !strings.Contains(string(text), k.paragraph) {
			t.Errorf("docs/differences.md has no paragraph %q (%s)", k.paragraph, k.reason)
		}
	}
}
