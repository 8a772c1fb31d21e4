package deprecations_test

import (
	"fmt"
	"time"

	"apilet/internal/deprecations"
)

// A tracker counts who uses what. The newest use comes first.
func ExampleTracker() {
	tracker, now := deprecations.NewTracker(), time.Date(2026, time.November, 1, 12, 0, 0, 0, time.UTC)
	old := deprecations.Use{User: "alice", Agent: "helm/v3", Verb: "create", Group: "autoscaling", Version: "v2beta2", Resource: "horizontalpodautoscalers"}
	tracker.Record(old, now)
	tracker.Record(old, now.Add(time.Minute))
	for _, usage := range tracker.List(10) {
		fmt.Println(usage.User, usage.Agent, usage.Verb, usage.Version, usage.Resource, usage.Count)
	}
	// Output:
	// alice helm/v3 create v2beta2 horizontalpodautoscalers 2
}
