package matching_test

import (
	"context"
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"apilet/internal/cel/matching"
)

// All conditions must be true. One that is false decides, even where another one fails.
func ExampleSet_Match() {
	conditions := &matching.Set{Conditions: []admissionv1.MatchCondition{
		{Name: "labelled", Expression: "has(object.metadata.labels)"},
		{Name: "not-by-nodes", Expression: `!("system:nodes" in request.userInfo.groups)`},
	}}
	request := map[string]any{"userInfo": map[string]any{"groups": []any{"dev"}}}
	for _, metadata := range []map[string]any{{"labels": map[string]any{"app": "web"}}, {}} {
		object := map[string]any{"metadata": metadata}
		wanted, err := conditions.Match(context.Background(), map[string]any{"object": object, "oldObject": nil, "request": request, "authorizer": nil})
		fmt.Println(wanted, err)
	}
	// Output:
	// true <nil>
	// false <nil>
}
