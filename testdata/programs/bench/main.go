// Bench measures Kubernetes API servers from outside, over HTTP. If there are two servers, it
// alternates between them so that other processes affect both of them.
//
//	go run ./testdata/programs/bench apilet=http://localhost:8080
//	go run ./testdata/programs/bench -rounds 5 -svg ratios.svg \
//	    apilet=http://localhost:8080,pid=$(pgrep -x apilet) kube=https://127.0.0.1:6443,token=$TOKEN,pid=$(pgrep -x etcd)+$(pgrep -x kube-apiserver)
//
//	ETCD=etcd KUBE_APISERVER=kube-apiserver APILET=./apilet go run ./testdata/programs/bench -etcd
//
// A server is NAME=URL, followed by token= and pid= (one PID, or several joined by +) after commas.
// Certificates are not checked, so use it only for your own servers. In each round, the cases are
// run on both servers. The table contains the medians, the first server's ratio to the second, and
// the processor time that this program itself used for each counted unit, because it shares the
// processors with the servers (client.go). The program creates namespaces and deletes them when it
// is finished. The cases are described in cases.go. Wrong answers are printed and not counted.
//
// If -etcd is set, the program starts etcd and the servers. It prints several tables that are
// explained in docs/scale.md (cluster.go). The environment names the three programs.
package main

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"
)

// A result contains the values of a case for each server and round.
type result struct {
	name, unit string
	better     string // "more" or "less"
	values     [][]float64
	// microseconds of this program's processor time for each counted unit
	client [][]float64
}

func main() {
	rounds := flag.Int("rounds", 3, "how often each case runs on each server")
	length := flag.Duration("for", 2*time.Second, "how `long` one run takes")
	objects := flag.Int("objects", 5000, "how many `objects` the lists have")
	only := flag.String("only", "", "a `word` of the names of the cases to run; with -etcd also one of alone, followers, delays, file, many")
	svg := flag.String("svg", "", "a `file` for a picture of the ratios")
	onEtcd := flag.Bool("etcd", false, "start apilet and kube-apiserver on one etcd, and compare them")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var results []result
	var err error
	if *onEtcd {
		err = compareOnEtcd(ctx, *rounds, *length, *objects, *only)
	} else {
		results, err = run(ctx, flag.Args(), *rounds, *length, *objects, *only)
	}
	if err == nil && *svg != "" {
		err = os.WriteFile(*svg, []byte(picture(results)), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, rounds int, length time.Duration, objects int, only string) (results []result, err error) {
	var servers []*server
	for _, arg := range args {
		s, err := newServer(arg)
		if err != nil {
			return nil, err
		}
		servers = append(servers, s)
	}
	if len(servers) == 0 || len(servers) > 2 {
		return nil, fmt.Errorf("one server or two: NAME=URL")
	}
	for _, s := range servers {
		defer s.clean()
		if err := s.prepare(ctx, objects); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	if err := tellTLS(ctx, servers); err != nil {
		return nil, err
	}
	fmt.Printf("%-34s", "")
	for _, s := range servers {
		fmt.Printf("%16s", s.name)
	}
	fmt.Printf("%16s%20s\n", "ratio", "this client's µs")
	for _, c := range cases {
		if !strings.Contains(c.name, only) {
			continue
		}
		r := result{name: c.name, unit: c.unit, better: c.better, values: make([][]float64, len(servers)), client: make([][]float64, len(servers))}
		for range rounds {
			for i, s := range servers {
				v, own, err := c.watched(ctx, s, length)
				if err != nil {
					return nil, fmt.Errorf("%s on %s: %w", c.name, s.name, err)
				}
				r.values[i], r.client[i] = append(r.values[i], v), append(r.client[i], own)
			}
		}
		fmt.Println(r)
		results = append(results, r)
	}
	return results, nil
}

// tellTLS prints the TLS parameters of the servers. The client's costs are only comparable if they
// are equal.
func tellTLS(ctx context.Context, servers []*server) error {
	for _, s := range servers {
		c := s.newClient(ctx, 0)
		if err := c.connect(); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if secured, ok := c.conn.(*tls.Conn); ok {
			state := secured.ConnectionState()
			fmt.Printf("%s: %s, %s\n", s.name, tls.VersionName(state.Version), tls.CipherSuiteName(state.CipherSuite))
		}
		c.close()
	}
	return nil
}

// median returns the median of the values of the server with this index.
func (r result) median(i int) float64 {
	sorted := slices.Sorted(slices.Values(r.values[i]))
	return sorted[len(sorted)/2]
}

// ratio returns how much better the first server is than the second.
func (r result) ratio() float64 {
	a, b := r.median(0), r.median(1)
	if r.better == "less" {
		a, b = b, a
	}
	if b == 0 {
		return 0
	}
	return a / b
}

func (r result) String() string {
	var line strings.Builder
	fmt.Fprintf(&line, "%-34s", r.name+", "+r.unit)
	for i := range r.values {
		fmt.Fprintf(&line, "%16.4g", r.median(i))
	}
	if len(r.values) == 2 {
		fmt.Fprintf(&line, "%16.2f", r.ratio())
	} else {
		fmt.Fprintf(&line, "%16s", "")
	}
	for _, own := range r.client {
		if r.unit != "µs" && r.unit != "MiB" {
			fmt.Fprintf(&line, "%10.3g", quantile(own, 0.5))
		}
	}
	return line.String()
}

// picture draws a bar for each ratio, on a scale from 0.
func picture(results []result) string {
	const left, width, row, top = 230, 480, 22, 34
	most := 1.0
	for _, r := range results {
		if len(r.values) == 2 {
			most = max(most, r.ratio())
		}
	}
	scale := width / most
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="760" height="%d" role="img"><title>How many times better the first server is than the second</title>
<style>text{font:12px system-ui,sans-serif;fill:#24292f}.bar{fill:#0969da}.one{stroke:#57606a}.bold{font-weight:600}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.bar{fill:#1f6feb}.one{stroke:#8b949e}}</style>
<text x="20" y="20" class="bold">How many times better the first server is than the second (dashed: equal)</text>
`, top+10+row*len(results))
	for i, r := range results {
		if len(r.values) < 2 {
			continue
		}
		y, ratio := top+i*row, r.ratio()
		fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text><rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" class=\"bar\"/><text x=\"%.1f\" y=\"%d\">%.1f</text>\n",
			left-8, y+14, r.name, left, y+2, ratio*scale, row-6, left+6+ratio*scale, y+14, ratio)
	}
	fmt.Fprintf(&b, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" class=\"one\" stroke-dasharray=\"3 3\"/></svg>\n", left+scale, top-4, left+scale, top+row*len(results))
	return b.String()
}
