package simulated

import "slices"

// A Workload is a mix of requests on a machine. Its capacity is the maximum throughput of the
// machine.
type Workload struct {
	Name     string  // name in the output
	Setup    Setup   // the machine and its requests
	Capacity float64 // requests per second
	Statics  []int   // candidates for the best static setting; nil uses the default list
}

// Hooked is the name of the workload in which creates wait for a webhook.
const Hooked = "creates that a webhook delays"

// Workloads returns the workloads for tests of the controller.
func Workloads() []Workload {
	base := Setup{Cores: 2, Commit: 0.003, PerWrite: 0.00003, Crowding: 0.002, Light: 40}
	with := func(s Setup, kinds ...Kind) Setup {
		s.Kinds = kinds
		return s
	}
	lists := Kind{Name: "lists", Share: 1, Processor: 0.020, Scatter: 0.5, Seats: 1}
	wide := Kind{Name: "wide lists", Share: 1, Processor: 0.020, Scatter: 0.2, Seats: 4, Door: true}
	writes := Kind{Name: "creates", Share: 1, Processor: 0.0005, Scatter: 0.3, Commits: true, Seats: 1}
	gets := Kind{Name: "gets", Share: 1, Processor: 0.0005, Scatter: 1, Seats: 1}
	hooked := Kind{Name: "hooked", Share: 1, Processor: 0.002, Scatter: 0.3, Commits: true, Elsewhere: 0.3, Seats: 1}
	doors, slow := base, base
	doors.Doors = 1
	slow.Commit, slow.PerWrite = 0.020, 0.0001
	part := func(k Kind, share float64) Kind {
		k.Share = share
		return k
	}
	four := base
	four.Cores = 4
	return []Workload{
		{Name: "lists", Setup: with(base, lists), Capacity: 100},
		{Name: "lists on four cores", Setup: with(four, lists), Capacity: 200},
		{Name: "lists, one at a time", Setup: with(doors, wide), Capacity: 50},
		{Name: "creates", Setup: with(base, writes), Capacity: 3800},
		{Name: "creates, a slow disk", Setup: with(slow, writes), Capacity: 3800},
		{Name: "gets", Setup: with(base, gets), Capacity: 3900},
		{Name: "creates and lists", Setup: with(base, part(writes, 0.95), part(lists, 0.05)), Capacity: 1350},
		{Name: Hooked, Setup: with(base, part(hooked, 0.5), part(gets, 0.5)), Capacity: 1500},
	}
}

// Loads contains the tested loads, relative to the capacity.
var Loads = []float64{0.5, 0.8, 1, 2, 5, 10}

// statics contains the default candidates for the best static setting.
var statics = []int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 400, 600}

// At simulates a workload at a load with a fixed number of seats, or with the controller if seats
// is 0.
func (w Workload) At(load float64, seats int, seed uint64) Result {
	s := w.Setup
	s.Seconds, s.From, s.Static, s.Seed = 17, 5, seats, seed
	s.Changes = []Change{{Rate: load * w.Capacity}}
	return Run(s)
}

// Best returns the static setting with the highest goodput. If several settings are within one
// percent of the maximum, it returns the smallest.
func (w Workload) Best(load float64, seed uint64) (seats int, best Result) {
	tried := w.Statics
	if tried == nil {
		tried = statics
	}
	results := make([]Result, len(tried))
	for i, n := range tried {
		results[i] = w.At(load, n, seed)
	}
	top := slices.MaxFunc(results, func(a, b Result) int {
		if a.Goodput < b.Goodput {
			return -1
		}
		return 1
	})
	for i, r := range results {
		if r.Goodput >= 0.99*top.Goodput {
			r.Goodput = top.Goodput
			return tried[i], r
		}
	}
	return 0, top
}
