package history_test

import (
	"fmt"
	"net/http/httptest"

	"github.com/tidwall/gjson"

	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/selector"
)

// Terms of one label become one, and stored labels are read as they lie.
func Example_labels() {
	parsed, _ := selector.ParseLabels("app=web,tier in (a,b),tier in (b,c),!canary")
	requirements, _ := parsed.Requirements()
	asked := selector.NewLabels(requirements)
	for _, stored := range []string{`{"app":"web","tier":"b","rack":"7"}`, `{"app":"web","tier":"a"}`, `{"app":"web","tier":"b","canary":""}`} {
		fmt.Println(stored, asked.Match(gjson.Parse(stored)))
	}
	// Output:
	// {"app":"web","tier":"b","rack":"7"} true
	// {"app":"web","tier":"a"} false
	// {"app":"web","tier":"b","canary":""} false
}

// Both selectors of a list, for one collection. A field that a type cannot be selected by is a 400.
func Example_terms() {
	pods := scheme.NewRegistry().Lookup("", "v1", "pods")
	info := request.Parse(httptest.NewRequest("GET", "/api/v1/namespaces/shop/pods", nil))
	terms, err := selector.Parse("app=web", "spec.nodeName=n1")
	if err != nil {
		fmt.Println(err)
		return
	}
	matcher, err := terms.Compile(pods, &info)
	fmt.Println(matcher.Prefix, err)
	fmt.Println(matcher.Matches("//pods/shop/a", []byte(`{"metadata":{"labels":{"app":"web"}},"spec":{"nodeName":"n1"}}`)))
	fmt.Println(matcher.Matches("//pods/shop/b", []byte(`{"metadata":{"labels":{"app":"web"}},"spec":{"nodeName":"n2"}}`)))

	terms, _ = selector.Parse("", "spec.color=red")
	_, err = terms.Compile(pods, &info)
	fmt.Println(err)
	// Output:
	// //pods/shop/ <nil>
	// true
	// false
	// field label not supported: spec.color
}
