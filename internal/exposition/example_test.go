package exposition_test

import (
	"fmt"

	"apilet/internal/exposition"
)

// A client may invent names without end. The first few are labels, and all others are one.
func ExampleBounded() {
	names := exposition.Bounded[string]{Max: 2}
	for _, name := range []string{"kubectl", "helm", "x-1", "kubectl", "x-2"} {
		label := name
		if !names.Admits(name) {
			label = "other"
		}
		fmt.Println(name, "is counted as", label)
	}
	// Output:
	// kubectl is counted as kubectl
	// helm is counted as helm
	// x-1 is counted as other
	// kubectl is counted as kubectl
	// x-2 is counted as other
}

// A family is made and registered in one line.
func ExampleRegistry() {
	r := exposition.NewRegistry()
	calls := r.Counters("apilet_calls_total", "Calls, by name.", []string{"name"})
	calls.WithLabelValues("scrub").Add(2)
	families, err := r.Gather()
	fmt.Println(families[0].GetName(), families[0].GetMetric()[0].GetCounter().GetValue(), err)
	// Output:
	// apilet_calls_total 2 <nil>
}
