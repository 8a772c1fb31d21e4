package patch_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"apilet/internal/patch"
)

const pod = `{"kind":"Pod","apiVersion":"v1","spec":{"containers":[{"name":"a","image":"x:1"},{"name":"b"}]}}`

// A merge patch replaces lists whole: container b is forgotten. A strategic merge patch knows that containers go by their names, and keeps it.
func ExampleApply() {
	body := []byte(`{"spec":{"containers":[{"name":"a","image":"x:2"}]}}`)
	for _, contentType := range []string{"application/merge-patch+json", "application/strategic-merge-patch+json"} {
		kind, err := patch.KindOf(contentType, true)
		if err != nil {
			fmt.Println(err)
		}
		result, _, err := patch.Apply(kind, []byte(pod), body, corev1.Pod{})
		fmt.Printf("%s %v\n", result, err)
	}
	// Output:
	// {"apiVersion":"v1","kind":"Pod","spec":{"containers":[{"image":"x:2","name":"a"}]}} <nil>
	// {"kind":"Pod","apiVersion":"v1","metadata":{},"spec":{"containers":[{"name":"a","image":"x:2","resources":{}},{"name":"b","resources":{}}]},"status":{}} <nil>
}

// A JSON patch is a program. A test that does not hold ends it, and nothing is changed.
func ExampleApply_test() {
	for _, image := range []string{"x:1", "x:7"} {
		body := fmt.Sprintf(`[{"op":"test","path":"/spec/containers/0/image","value":%q},{"op":"remove","path":"/spec/containers/1"}]`, image)
		result, _, err := patch.Apply(patch.JSONPatch, []byte(pod), []byte(body), corev1.Pod{})
		fmt.Printf("%s %v\n", result, err)
	}
	// Output:
	// {"apiVersion":"v1","kind":"Pod","spec":{"containers":[{"image":"x:1","name":"a"}]}} <nil>
	//  the server rejected our request due to an error in our request
}

// A type without a Go type, a custom resource, has no strategic merge patch: 415.
func ExampleKindOf() {
	_, err := patch.KindOf("application/strategic-merge-patch+json", false)
	fmt.Println(err)
	// Output:
	// the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml
}
