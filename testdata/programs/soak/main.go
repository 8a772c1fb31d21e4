// Soak works two servers for an hour or a night, and says whether anything grew, was lost, was skipped or was told twice:
//
//	go run ./testdata/programs/soak                            # an hour on a server built from here
//	go run ./testdata/programs/soak -for 8h -binary ./apilet -dir /var/tmp/soak
//
// One server is restarted every few minutes, by SIGTERM and SIGKILL in turn, in the midst of writes. The other is left alone, so that what
// a restart would sweep away can pile up. Both get the same mix (work.go): writes of ConfigMaps, Pods and custom resources whose number
// is bounded, lists of every sort, watches that read well, slowly, or hang up (watch.go), namespaces and definitions that come and go,
// Events that expire, backups, and a compaction every few seconds. A row a minute tells what each server holds.
//
// It ends with 1 if memory, goroutines, descriptors or the file grew (the median of the last quarter against that of the second), if an
// acknowledged write was missing, if a watch skipped or repeated, if an answer was not what it should be, or if `apilet check` complains.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"
)

var (
	binary  = flag.String("binary", "", "the apilet `file` to work; without it one is built")
	folder  = flag.String("dir", "", "`folder` for the data files; without it a temporary one")
	length  = flag.Duration("for", time.Hour, "how long to go on")
	row     = flag.Duration("row", time.Minute, "time between rows of the table")
	restart = flag.Duration("restart", 3*time.Minute, "time between restarts of the one server")
	rate    = flag.Int("rate", 15, "requests a second to each server, watches not counted")
	compact = flag.Duration("compaction-interval", 15*time.Second, "the servers' --compaction-interval")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
	fmt.Println("nothing grew, nothing was lost")
}

func run(ctx context.Context, out io.Writer) error {
	dir := *folder
	if dir == "" {
		temp, err := os.MkdirTemp("", "soak")
		if err != nil {
			return err
		}
		defer os.RemoveAll(temp)
		dir = temp
	}
	if *binary == "" {
		*binary = filepath.Join(dir, "apilet")
		build := exec.CommandContext(ctx, "go", "build", "-o", *binary, "apilet")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("building the server: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, *length)
	defer cancel()
	subjects := []*subject{newSubject("shaken", dir, *restart), newSubject("calm", dir, 0)}
	table := &table{out: out, began: time.Now()}
	errs := make([]error, len(subjects))
	var all sync.WaitGroup
	for i, s := range subjects {
		all.Go(func() { errs[i] = s.live(ctx) })
	}
	all.Go(func() { table.fill(ctx, subjects) })
	all.Wait()
	for i, s := range subjects {
		errs[i] = errors.Join(errs[i], s.verdict(out))
	}
	return errors.Join(errs...)
}

// ---- The table ----

// A sample is what a server holds at one moment.
type sample struct {
	memory     float64 // RssAnon, bytes
	goroutines float64
	files      float64 // open descriptors
	size       float64 // of the data file, bytes
	used       float64 // pages of it that are not free, bytes
}

// A table prints a row for each server, and keeps the samples for the verdict.
type table struct {
	out   io.Writer
	began time.Time
}

const samplesPerRow = 6

// fill samples and prints until ctx ends.
func (t *table) fill(ctx context.Context, subjects []*subject) {
	fmt.Fprintf(t.out, "%8s %-7s %8s %11s %6s %8s %8s %9s %8s %7s %9s %8s %7s %7s %7s %6s\n", "time", "server", "anon MiB", "goroutines",
		"files", "file MiB", "used MiB", "requests", "written", "listed", "events", "expired", "starts", "cut off", "errors", "cpu %")
	ticker := time.NewTicker(*row / samplesPerRow)
	defer ticker.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, s := range subjects {
			now, ok := s.sample()
			if !ok { // it is just being restarted
				continue
			}
			s.samples = append(s.samples, now)
			if n%samplesPerRow == 0 {
				t.print(s, now)
			}
		}
	}
}

func (t *table) print(s *subject, now sample) {
	c := &s.counts
	fmt.Fprintf(t.out, "%8s %-7s %8.1f %11.0f %6.0f %8.1f %8.2f %9d %8d %7d %9d %8d %7d %7d %7d %6.1f\n",
		time.Since(t.began).Round(time.Second), s.name, now.memory/(1<<20), now.goroutines, now.files, now.size/(1<<20), now.used/(1<<20),
		c.requests.Load(), c.written.Load(), c.listed.Load(), c.events.Load(), c.expired.Load(), c.starts.Load(), c.cutOff.Load(), s.faults(),
		s.processor())
}

// ---- The verdict ----

// settled is the least length of a run whose growth is judged: a server that has just begun grows.
const settled = 20 * time.Minute

// A bound says how much a quantity may differ between the second and the last quarter of a run.
type bound struct {
	title  string
	of     func(sample) float64
	factor float64
	slack  float64
}

var bounds = []bound{
	{"anonymous memory", func(s sample) float64 { return s.memory }, 1.15, 2 << 20},
	{"goroutines", func(s sample) float64 { return s.goroutines }, 1.2, 10},
	{"open files", func(s sample) float64 { return s.files }, 1.2, 5},
	{"the data file", func(s sample) float64 { return s.size }, 1.25, 1 << 20},
	{"its used pages", func(s sample) float64 { return s.used }, 1.15, 256 << 10},
}

// growth compares the medians of the second and the last quarter.
func growth(samples []sample, b bound) (before, after float64, grown bool) {
	quarter := len(samples) / 4
	if quarter == 0 {
		return 0, 0, false
	}
	before, after = median(samples[quarter:2*quarter], b.of), median(samples[len(samples)-quarter:], b.of)
	return before, after, after > before*b.factor+b.slack
}

func median(samples []sample, of func(sample) float64) float64 {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = of(s)
	}
	slices.Sort(values)
	return values[len(values)/2]
}
