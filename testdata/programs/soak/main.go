// Soak runs servers under load and causes faults for an hour or longer. It reports growth, lost
// writes, and skipped or repeated events:
//
//	go run ./testdata/programs/soak                                    # an hour on servers built from here
//	go run ./testdata/programs/soak -for 2h -etcd ./etcd               # and three servers on three members of etcd
//	go run ./testdata/programs/soak -for 1m -only "full disk"          # one fault
//
// The four subjects get the same load (work.go): writes of a limited number of ConfigMaps, Pods and
// custom resources, lists, fast and slow watches (watch.go), namespaces and definitions that are
// created and deleted, Events that expire, backups, and frequent compactions. A bystander reads an
// object in a loop and measures how long the server is unavailable.
//
//	shaken   a file on a small disk, TLS: SIGTERM, SIGKILL, full disk, damaged object, lost certificate, restored backup (disk.go)
//	calm     a file: no faults, so that leaks are not hidden by restarts
//	adrift   a file: its clock is set, by minutes and by decades (drift.go)
//	spread   three servers on etcd, behind one address: etcd stopped or suspended, a member or a server killed, ... (cluster.go)
//
// It also prints a row for each fault and its effects on the clients (plan.go). The resources used
// by each subject are printed every minute.
//
// It exits with 1 if memory, goroutines, descriptors or the file grew (median of the last quarter
// of the run, compared with the second quarter), if an acknowledged write was lost, if a watch
// skipped or repeated an event, if a response was not allowed at that time, or if `apilet check`
// reports an error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
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
	binary     = flag.String("binary", "", "the apilet `file` to work; without it one is built. That of the subject whose clock is set is built in any case")
	etcdBinary = flag.String("etcd", "", "the etcd `file` that several servers share; without it there are none")
	folder     = flag.String("dir", "", "`folder` for data files and logs; without it a temporary one")
	length     = flag.Duration("for", time.Hour, "how long to go on")
	row        = flag.Duration("row", time.Minute, "time between rows of the table")
	every      = flag.Duration("every", 0, "time between the end of a trouble and the next one (default a fiftieth of -for, 1s to 2m)")
	hold       = flag.Duration("hold", 0, "how long a trouble lasts, if it is one that lasts (default as -every, at most 15s)")
	seed       = flag.Uint64("seed", 0, "decides the order of the troubles; 0 is another one each time")
	only       = flag.String("only", "", "troubles whose `name` has this in it, and no others")
	rate       = flag.Int("rate", 15, "requests a second to each subject, watches and the bystander not counted")
	compact    = flag.Duration("compaction-interval", 15*time.Second, "the servers' --compaction-interval")
)

func main() {
	flag.Parse()
	if *every == 0 {
		*every = min(max(*length/50, time.Second), 2*time.Minute)
	}
	if *hold == 0 {
		*hold = min(*every, 15*time.Second)
	}
	os.Exit(inOwnFolder())
}

// inOwnFolder runs the soak in its directory. If possible, it runs in a child process with a file
// system of its own there.
func inOwnFolder() int {
	dir := *folder
	if dir == "" {
		temp, err := os.MkdirTemp("", "soak")
		if err != nil {
			fmt.Fprintln(os.Stderr, "soak:", err)
			return 1
		}
		defer os.RemoveAll(temp)
		dir = temp
	}
	dir, err := filepath.Abs(dir)
	disk := filepath.Join(dir, "shaken", "disk")
	if err = errors.Join(err, os.MkdirAll(disk, 0o700)); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		return 1
	}
	inside, code, err := withOwnDisk(disk, append([]string{"-dir", dir}, os.Args[1:]...))
	if err != nil {
		fmt.Println("no small disk:", err)
	} else if !inside {
		return code
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, dir, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		return 1
	}
	fmt.Println("nothing grew, nothing was lost")
	return 0
}

// A course is a subject with a list of faults.
type course struct {
	*subject
	troubles []*trouble
}

func run(ctx context.Context, dir string, out io.Writer) error {
	if *binary == "" {
		*binary = filepath.Join(dir, "apilet")
		build := exec.CommandContext(ctx, "go", "build", "-o", *binary, "apilet")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("building the server: %w", err)
		}
	}
	table := &table{out: out}
	courses, err := enroll(ctx, dir, table)
	if err != nil {
		return err
	}
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	fmt.Fprintf(out, "-seed %d\n", *seed)
	table.began = time.Now()
	ctx, cancel := context.WithTimeout(ctx, *length)
	defer cancel()
	errs := make([]error, len(courses))
	var all sync.WaitGroup
	for i, c := range courses {
		all.Go(func() { errs[i] = c.live(ctx, table, c.troubles, rand.New(rand.NewPCG(*seed, uint64(i)))) })
	}
	all.Go(func() { table.fill(ctx, courses) })
	all.Wait()
	for i, c := range courses {
		errs[i] = errors.Join(errs[i], c.verdict(out))
	}
	return errors.Join(errs...)
}

// enroll returns the subjects that have faults to test. If a subject is not available, it prints
// the reason.
func enroll(ctx context.Context, dir string, out *table) (courses []course, err error) {
	add := func(s *subject, all []*trouble) {
		if all = chosen(all, *only); len(all) > 0 || *only == "" {
			courses = append(courses, course{s, all})
		}
	}
	shaken := newSubject("shaken", dir, *binary).secure()
	add(shaken, shaken.ofOneServer())
	add(newSubject("calm", dir, *binary), nil)
	adrift := newSubject("adrift", dir, filepath.Join(dir, "apilet-adrift")).secure()
	adrift.adrift()
	if all := chosen(adrift.ofTheClock(), *only); len(all) > 0 {
		if err := buildDrifting(ctx, dir, adrift.program); err != nil {
			fmt.Fprintln(out.out, "no clock can be set:", err)
		} else {
			add(adrift, all)
		}
	}
	spread := newSubject("spread", dir, *binary)
	all := chosen(spread.ofACluster(), *only)
	switch {
	case len(all) == 0:
	case *etcdBinary == "":
		fmt.Fprintln(out.out, "no -etcd: what goes wrong with etcd, and with several servers, is left out")
	default:
		if err := spread.spread(); err != nil {
			return nil, err
		}
		add(spread, all)
	}
	return courses, nil
}

// ---- The table ----

// A sample contains the resources used by a server at a certain time.
type sample struct {
	memory     float64 // RssAnon in bytes
	goroutines float64
	files      float64 // open file descriptors
	size       float64 // size of the data file in bytes
	used       float64 // size of its used pages in bytes
}

// A table prints the rows and collects the samples for the verdict.
type table struct {
	began time.Time

	mu  sync.Mutex // guards out
	out io.Writer
}

const samplesPerRow = 6

// line prints a row of the table.
func (t *table) line(s *subject, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.out, "%8s %-7s %s\n", time.Since(t.began).Round(time.Second), s.name, fmt.Sprintf(format, args...))
}

// fill takes samples and prints a row for each subject until ctx is done. It does not keep samples
// that were taken during a fault.
func (t *table) fill(ctx context.Context, courses []course) {
	t.mu.Lock()
	fmt.Fprintf(t.out, "%8s %-7s %8s %11s %6s %8s %8s %9s %8s %7s %9s %8s %7s %7s %7s %6s\n", "time", "server", "anon MiB", "goroutines",
		"files", "file MiB", "used MiB", "requests", "written", "listed", "events", "expired", "refused", "cut off", "errors", "cpu %")
	t.mu.Unlock()
	for n := 1; pause(ctx, *row/samplesPerRow); n++ {
		for _, c := range courses {
			s := c.subject
			now, ok := s.sample()
			if ok && s.leave.Load() == &s.standing {
				s.samples = append(s.samples, now)
			}
			if ok && n%samplesPerRow == 0 {
				t.print(s, now)
			}
		}
	}
}

func (t *table) print(s *subject, now sample) {
	c := &s.counts
	t.line(s, "%8.1f %11.0f %6.0f %8.1f %8.2f %9d %8d %7d %9d %8d %7d %7d %7d %6.1f",
		now.memory/(1<<20), now.goroutines, now.files, now.size/(1<<20), now.used/(1<<20), c.requests.Load(), c.written.Load(), c.listed.Load(),
		c.events.Load(), c.expired.Load(), c.refused.Load(), c.cutOff.Load(), s.faults(), s.processor())
}

// ---- The verdict ----

// settled is the minimum duration of a run whose growth is judged, because a new server always
// grows.
const settled = 20 * time.Minute

// A bound is the allowed growth of a quantity between the second and the last quarter of a run.
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
