package changes_test

import (
	"fmt"

	"apilet/internal/changes"
)

// Items of a list are told apart by their names, so a change has a path that people would write.
func ExampleOptions_Compare() {
	old := `{"metadata":{"generation":1},"spec":{"containers":[{"name":"db","image":"pg:17"},{"name":"web","image":"nginx:1"}]}}`
	new := `{"metadata":{"generation":2},"spec":{"containers":[{"name":"web","image":"nginx:2"},{"name":"db","image":"pg:17"}]}}`
	list, more, err := changes.Options{}.Compare([]byte(old), []byte(new))
	for _, change := range list {
		fmt.Println(change.Path, string(change.Old), string(change.New))
	}
	fmt.Println(more, err)
	// Output:
	// .spec.containers[name=web].image "nginx:1" "nginx:2"
	// .spec.containers ["db","web"] ["web","db"]
	// 0 <nil>
}

// Of a Secret only that it changed is told.
func ExampleOptions_Diff() {
	old, new := `{"kind":"Secret","apiVersion":"v1","data":{"password":"b2xk"}}`, `{"kind":"Secret","apiVersion":"v1","data":{"password":"bmV3"}}`
	text, err := changes.Options{}.Diff([]byte(old), []byte(new), "7", "8")
	fmt.Println(text, err)
	// Output:
	// --- 7
	// +++ 8
	// @@ -1,4 +1,4 @@
	//  apiVersion: v1
	//  data:
	// -  password: "*** (before)"
	// +  password: "*** (after)"
	//  kind: Secret
	//  <nil>
}
