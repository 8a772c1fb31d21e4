// Seats runs workloads on a simulated machine, at loads from half its capacity to ten times its
// capacity, and prints the throughput and the latency of a light request: with the best fixed
// number of seats, which it searches for, with the number that --max-requests-inflight=auto finds,
// and with kube-apiserver's 600.
//
//	go run ./testdata/programs/seats                        # the table
//	go run ./testdata/programs/seats -only lists -trace 2   # every quarter of a second at twice the capacity
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"apilet/internal/flowcontrol/autoseats/simulated"
)

func main() {
	only := flag.String("only", "", "a `word` of the workloads to play")
	trace := flag.Float64("trace", 0, "print the ticks at this load")
	flag.Parse()
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "workload\tload\tbest\tlight p99\tauto\tgoodput\tlight p99\t600: goodput\tlight p99")
	for _, w := range simulated.Workloads() {
		if !strings.Contains(w.Name, *only) {
			continue
		}
		if *trace > 0 {
			w.Setup.EveryTick = func(at float64, seats int, m *simulated.Machine) {
				st := m.State()
				fmt.Printf("%5.2f seats=%d inuse=%.1f G=%.2f e=%.2f f=%.2f delay=%v commit=%v/%v probes=%d wait=%d\n", at, seats, st.InUse, st.Goodput, st.Efficiency, st.Headroom, st.RunDelay, st.Commit, st.IdleCommit, st.Probes, len(m.Waiting))
			}
			r := w.At(*trace, 0, 1)
			fmt.Printf("%+v\n", r)
			continue
		}
		for _, load := range simulated.Loads {
			n, best := w.Best(load, 1)
			auto, many := w.At(load, 0, 1), w.At(load, 600, 1)
			fmt.Fprintf(table, "%s\t%.1f\t%d\t%.1f ms\t%.0f\t%.0f %%\t%.1f ms\t%.0f %%\t%.1f ms\n", w.Name, load, n, best.LightP99.Seconds()*1000,
				auto.Seats, 100*auto.Goodput/best.Goodput, auto.LightP99.Seconds()*1000, 100*many.Goodput/best.Goodput, many.LightP99.Seconds()*1000)
		}
	}
	table.Flush()
}
