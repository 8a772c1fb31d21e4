package flowcontrol_test

import (
	"context"
	"fmt"
	"time"

	"apilet/internal/flowcontrol"
)

// Dispatch runs the request in the caller's goroutine once it has its seats. The ticket contains
// the level.
func Example() {
	d := flowcontrol.NewDispatcher(600, time.Minute)
	objects := flowcontrol.WithMandatory(flowcontrol.SuggestedObjects())
	d.Configure(objects.Schemas, objects.Levels)
	for _, digest := range []flowcontrol.Digest{
		{User: "admin", Groups: []string{"system:masters"}, ResourceRequest: true, Verb: "list", Resource: "pods", Version: "v1"},
		{User: "system:node:n1", Groups: []string{"system:nodes"}, ResourceRequest: true, Verb: "update", Group: "coordination.k8s.io", Version: "v1",
			Resource: "leases", Namespace: "kube-node-lease"},
		{User: "alice", Groups: []string{"system:authenticated"}, ResourceRequest: true, Verb: "list", Resource: "pods", Version: "v1"},
	} {
		digest.Received = time.Now()
		err := d.Dispatch(context.Background(), &digest, flowcontrol.Estimate{InitialSeats: 1}, func(t *flowcontrol.Ticket) {
			fmt.Println(digest.User, "runs at", t.Schema.Level.Name)
		})
		if err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// admin runs at exempt
	// system:node:n1 runs at node-high
	// alice runs at global-default
}

// The seats are divided by the shares of the levels. The number of nominal seats is determined by
// the shares of the level.
func ExampleDispatcher_State() {
	d := flowcontrol.NewDispatcher(600, time.Minute)
	objects := flowcontrol.WithMandatory(flowcontrol.SuggestedObjects())
	d.Configure(objects.Schemas, objects.Levels)
	for _, level := range d.State().Levels {
		fmt.Println(level.Name, level.Nominal)
	}
	// Unordered output:
	// catch-all 13
	// exempt 0
	// global-default 49
	// leader-election 25
	// node-high 98
	// system 74
	// workload-high 98
	// workload-low 245
}

// If two servers disagree about a condition, each of them updates it no more than six times per
// minute.
func ExamplePacer() {
	var p flowcontrol.Pacer
	now, written := time.Date(2026, time.November, 1, 12, 0, 0, 0, time.UTC), 0
	for i := range 60 {
		if p.Allow("workload-low", now.Add(time.Duration(i)*time.Second)) {
			written++
		}
	}
	fmt.Println(written, p.Allow("workload-low", now.Add(2*time.Minute)))
	// Output:
	// 6 true
}

// A schema that refers to a missing level gets a condition.
func ExampleDanglingConditions() {
	objects := flowcontrol.MandatoryObjects()
	objects.Schemas[0].Spec.PriorityLevelConfiguration.Name = "nowhere"
	for name, condition := range flowcontrol.DanglingConditions(objects, time.Now()) {
		fmt.Println(name, condition.Type, condition.Status)
	}
	// Unordered output:
	// exempt Dangling True
	// catch-all Dangling False
}
