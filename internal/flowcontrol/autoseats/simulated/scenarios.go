package simulated

import "slices"

// A Workload is a mix of requests on a machine, and how many of them a second are all that it can do.
type Workload struct {
	Name     string
	Setup    Setup
	Capacity float64
}

// Workloads are what the controller is tried on.
func Workloads() []Workload {
	base := Setup{Cores: 2, Commit: 0.003, PerWrite: 0.00003, Crowding: 0.002, Light: 40}
	with := func(s Setup, kinds ...Kind) Setup {
		s.Kinds = kinds
		return s
	}
	lists := Kind{Name: "lists", Share: 1, Processor: 0.020, Scatter: 0.5, Seats: 1}
	wide := Kind{Name: "wide lists", Share: 1, Processor: 0.020, Scatter: 0.2, Seats: 4, Door: true}
	writes := Kind{Name: "creates", Share: 1, Processor: 0.0005, Scatter: 0.3, Commits: true, Seats: 1}
	gets := Kind{Name: "gets", Share: 1, Processor: 0.0002, Scatter: 1, Seats: 1}
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
		{"lists", with(base, lists), 100},
		{"lists on four cores", with(four, lists), 200},
		{"lists, one at a time", with(doors, wide), 50},
		{"creates", with(base, writes), 3800},
		{"creates, a slow disk", with(slow, writes), 3800},
		{"gets", with(base, gets), 9500},
		{"creates and lists", with(base, part(writes, 0.95), part(lists, 0.05)), 1350},
		{"creates that a webhook delays", with(base, part(hooked, 0.5), part(gets, 0.5)), 1800},
	}
}

// Loads are parts of the capacity.
var Loads = []float64{0.5, 0.8, 1, 2, 5, 10}

// statics are the settings among which the best is searched for.
var statics = []int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 400, 600}

// At plays a workload at a load, with so many seats (0: the controller's choice).
func (w Workload) At(load float64, seats int, seed uint64) Result {
	s := w.Setup
	s.Seconds, s.From, s.Static, s.Seed = 15, 5, seats, seed
	s.Changes = []Change{{Rate: load * w.Capacity}}
	return Run(s)
}

// Best is the static setting with which most is done; among equals (to a hundredth) the smallest.
func (w Workload) Best(load float64, seed uint64) (seats int, best Result) {
	results := make([]Result, len(statics))
	for i, n := range statics {
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
			return statics[i], r
		}
	}
	return 0, top
}
