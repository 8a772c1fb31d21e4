package matching_test

import (
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/cel/matching"
)

// The rows of the essay's table: which rules ask about the creation of the pod web/a.
func ExampleMatchesRule() {
	target := &matching.Target{Version: "v1", Resource: "pods", Operation: "CREATE", Namespace: "web"}
	cluster := admissionv1.ClusterScope
	for _, c := range []struct {
		resource string
		scope    *admissionv1.ScopeType
	}{{"pods", nil}, {"*", nil}, {"*/*", nil}, {"pods/status", nil}, {"pods", &cluster}} {
		rule := &admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{"CREATE"},
			Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{c.resource}, Scope: c.scope},
		}
		fmt.Printf("%-12s scope=%v %v\n", c.resource, c.scope != nil, matching.MatchesRule(rule, target))
	}
	// Output:
	// pods         scope=false true
	// *            scope=false true
	// */*          scope=false true
	// pods/status  scope=false false
	// pods         scope=true false
}

// An absent selector selects everything, an empty one too; one with a label that nobody has selects nothing.
func ExampleParseSelector() {
	for _, asked := range []*metav1.LabelSelector{nil, {}, {MatchLabels: map[string]string{"env": "test"}}} {
		selector, err := matching.ParseSelector(asked)
		fmt.Println(selector.Empty(), err)
	}
	// Output:
	// true <nil>
	// true <nil>
	// false <nil>
}
