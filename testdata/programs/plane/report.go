package main

// This file takes a sample every second and writes the report.

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// A second is a sample.
type second struct {
	at     time.Duration // since the start of the run
	counts counts
	used   []usage // usage of the server including etcd, then usage of the other programs
	file   int64   // size of the data file, or 0 if it is not used
}

func (r *run) sample(ctx context.Context) {
	begin := time.Now()
	for tick := time.NewTicker(time.Second); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
		s := second{at: time.Since(begin), counts: r.seen.counts(), used: []usage{use(r.server)}}
		for _, p := range r.others {
			s.used = append(s.used, use([]*program{p}))
		}
		if info, err := os.Stat(r.file("apilet.db")); err == nil {
			s.file = info.Size()
		}
		r.seconds = append(r.seconds, s)
	}
}

// printTable prints the results of all runs, with one column per run.
func printTable(w io.Writer, runs []*run) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name string, figure func(*run) string) {
		fmt.Fprint(table, name)
		for _, r := range runs {
			fmt.Fprint(table, "\t", figure(r))
		}
		fmt.Fprintln(table)
	}
	s := runs[0].settings
	line(fmt.Sprintf("%d nodes, %d Pods", s.nodes, s.pods), func(r *run) string { return r.name })
	for i, p := range runs[0].parts {
		if p.name == "kubelets' watches" && s.kubelets == 0 {
			continue
		}
		line(p.name, func(r *run) string {
			q := r.parts[i]
			return fmt.Sprintf("%.0f s, CPU %.1f s, disk %.1f MB", q.took.Seconds(), q.used.cpu.Seconds(), float64(q.used.written)/1e6)
		})
	}
	line("server, whole run", func(r *run) string { return r.last(0) })
	for i, p := range runs[0].others {
		line(p.name, func(r *run) string { return r.last(i + 1) })
	}
	if s.kubelets > 0 {
		line("kubelets' watches open at the end", func(r *run) string { return fmt.Sprint(r.watchers) })
	}
	for _, l := range levels {
		line(fmt.Sprintf("%s (99 of 100 ≤ %.0f s)", l.name, l.bound), func(r *run) string { return quantiles(r.calls.durations[l.name]) })
	}
	line("429, conflicts", func(r *run) string {
		return fmt.Sprintf("%.0f, %.0f of %.0f writes", r.calls.busy, r.calls.conflicts, r.calls.writes)
	})
	for i, when := range []string{"while all are made", "at rest"} {
		line("from creation to Running, "+when, func(r *run) string { return durations(r.seen.starts[i]) })
		line("a write's answer, "+when, func(r *run) string { return durations(r.seen.writes[i]) })
		line("a write's event, "+when, func(r *run) string { return durations(r.seen.delays[i]) })
	}
	line("requests a second at rest", func(r *run) string {
		took := r.part("at rest").took.Seconds()
		return fmt.Sprintf("%.0f, of which writes %.0f; CPU %.1f %% of a core", r.atRest.all/took, r.atRest.writes/took, 100*r.part("at rest").used.cpu.Seconds()/took)
	})
	line("memory and file at rest, first and last minute", (*run).drift)
	table.Flush()
}

func (r *run) part(name string) part {
	at := slices.IndexFunc(r.parts, func(p part) bool { return p.name == name })
	return r.parts[at]
}

// last returns the resources used by a program. The memory is the maximum.
func (r *run) last(program int) string {
	var most, anon usage
	for _, s := range r.seconds {
		if u := s.used[program]; u.cpu > most.cpu {
			most = u
		}
		anon.anon = max(anon.anon, s.used[program].anon)
	}
	return fmt.Sprintf("CPU %.1f s, %.0f MiB at most, disk %.1f MB", most.cpu.Seconds(), float64(anon.anon)/(1<<20), float64(most.written)/1e6)
}

// drift returns the mean memory and the file's size in the first and in the last minute of the
// rest.
func (r *run) drift() string {
	end := time.Duration(0) // of the rest
	for _, p := range r.parts[:len(r.parts)-1] {
		end += p.took
	}
	begin := end - r.part("at rest").took
	mean := func(from, to time.Duration) (memory float64, file int64) {
		n := 0.0
		for _, s := range r.seconds {
			if s.at >= from && s.at < to {
				memory, n, file = memory+float64(s.used[0].anon), n+1, s.file
			}
		}
		return memory / n / (1 << 20), file
	}
	memory, file := mean(begin, begin+time.Minute)
	memory2, file2 := mean(end-time.Minute, end)
	return fmt.Sprintf("%.0f → %.0f MiB, %.1f → %.1f MB", memory, memory2, float64(file)/1e6, float64(file2)/1e6)
}

func quantiles(h histogram) string {
	p50, p99 := h.quantile(0.5), h.quantile(0.99)
	if math.IsNaN(p50) {
		return "none"
	}
	return fmt.Sprintf("p50 ≤ %.0f ms, p99 ≤ %.0f ms (%.0f)", 1000*p50, 1000*p99, h[math.Inf(1)])
}

func durations(all []time.Duration) string {
	if len(all) == 0 {
		return "none"
	}
	sorted := slices.Sorted(slices.Values(all))
	at := func(q float64) float64 { return float64(sorted[int(q*float64(len(sorted)-1))].Microseconds()) / 1000 }
	return fmt.Sprintf("p50 %.1f ms, p99 %.1f ms (%d)", at(0.5), at(0.99), len(sorted))
}

func writeSeconds(path string, runs []*run) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := csv.NewWriter(f)
	_ = w.Write([]string{"on", "second", "nodes ready", "pods", "scheduled", "running", "server CPU s", "anon MiB", "written MB", "file MB",
		"kube-controller-manager CPU s", "kube-scheduler CPU s", "kwok CPU s"})
	for _, r := range runs {
		for _, s := range r.seconds {
			fields := []string{filepath.Base(r.name), fmt.Sprintf("%.0f", s.at.Seconds()), fmt.Sprint(s.counts.ready), fmt.Sprint(s.counts.pods),
				fmt.Sprint(s.counts.scheduled), fmt.Sprint(s.counts.running), fmt.Sprintf("%.2f", s.used[0].cpu.Seconds()),
				fmt.Sprintf("%.1f", float64(s.used[0].anon)/(1<<20)), fmt.Sprintf("%.1f", float64(s.used[0].written)/1e6), fmt.Sprintf("%.1f", float64(s.file)/1e6)}
			for _, u := range s.used[1:] {
				fields = append(fields, fmt.Sprintf("%.2f", u.cpu.Seconds()))
			}
			_ = w.Write(fields)
		}
	}
	w.Flush()
	return w.Error()
}

// writePicture draws the number of running Pods and each server's processor time over time.
func writePicture(path string, runs []*run) error {
	const width, height, left = 720, 200, 60
	colours := []string{"#1f6feb", "#d1481e", "#2da44e", "#8250df"}
	longest, most, pods := 1.0, 1.0, float64(runs[0].pods)
	for _, r := range runs {
		last := r.seconds[len(r.seconds)-1]
		longest, most = max(longest, last.at.Seconds()), max(most, last.used[0].cpu.Seconds())
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", left+width+20, 2*height+110)
	fmt.Fprintln(&b, `<rect width="100%" height="100%" fill="white"/>`)
	panel := func(top int, title string, limit float64, figure func(second) float64) {
		fmt.Fprintf(&b, `<text x="%d" y="%d" font-weight="bold">%s</text>`+"\n", left, top-8, title)
		fmt.Fprintf(&b, `<path d="M%d %d v%d h%d" fill="none" stroke="#888"/>`+"\n", left, top, height, width)
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%.0f</text>`+"\n", left-6, top+10, limit)
		for i, r := range runs {
			fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="2" points="`, colours[i%len(colours)])
			for _, s := range r.seconds {
				fmt.Fprintf(&b, "%.1f,%.1f ", left+s.at.Seconds()/longest*width, float64(top)+height*(1-figure(s)/limit))
			}
			fmt.Fprintln(&b, `"/>`)
		}
	}
	panel(30, "Pods Running", pods, func(s second) float64 { return float64(s.counts.running) })
	panel(30+height+40, "seconds of a processor that the server has used, with its etcd", most, func(s second) float64 { return s.used[0].cpu.Seconds() })
	for i, r := range runs {
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="%s">%s</text>`+"\n", left+180*i, 2*height+100, colours[i%len(colours)], r.name)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%.0f s</text>`+"\n</svg>\n", left+width, 2*height+86, longest)
	return os.WriteFile(path, []byte(b.String()), 0o644)
}
