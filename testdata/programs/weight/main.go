// Weight prints the size of each module in the binary. It can also measure the CPU time that is
// needed to compile it.
//
//	go run ./testdata/programs/weight                       # the default build; seconds
//	go run ./testdata/programs/weight -tags grpcnotrace     # another
//	go run ./testdata/programs/weight -compile              # from an empty build cache: minutes
//	go run ./testdata/programs/weight -packages             # by packages instead of modules
//
// Bytes are those of the stripped binary. Each byte of code also includes a share of the tables in
// other sections (lines, stack maps). The last line is the size of type descriptors and strings,
// which are merged by the linker. Only one package is compiled at a time, because the CPU time
// would be higher if two processes shared a core.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

var (
	tags     = flag.String("tags", "", "build tags")
	compile  = flag.Bool("compile", false, "compile everything anew, and say what that takes")
	packages = flag.Bool("packages", false, "list packages instead of modules")
	lines    = flag.Int("lines", 25, "how many lines are printed")
)

// A weight contains the cost of a module or package.
type weight struct {
	packages int
	bytes    float64
	seconds  float64
}

func main() {
	flag.Parse()
	dir, err := os.MkdirTemp("", "weight")
	if err == nil {
		err = run(dir, os.Stdout)
		_ = os.RemoveAll(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "weight:", err)
		os.Exit(1)
	}
}

func run(dir string, out io.Writer) error {
	modules, err := modulesOfPackages()
	if err != nil {
		return err
	}
	weights, nameOf := map[string]*weight{}, func(pkg string) string { return modules[pkg] }
	if *packages {
		nameOf = func(pkg string) string { return pkg }
	}
	for pkg := range modules {
		w := weights[nameOf(pkg)]
		if w == nil {
			w = &weight{}
			weights[nameOf(pkg)] = w
		}
		w.packages++
	}
	if *compile {
		seconds, err := compileSeconds(dir)
		if err != nil {
			return err
		}
		for pkg, s := range seconds {
			if w := weights[nameOf(pkg)]; w != nil {
				w.seconds += s
			}
		}
	}
	linked, total, err := linkedBytes(dir, modules)
	if err != nil {
		return err
	}
	rest := total
	for pkg, n := range linked {
		weights[nameOf(pkg)].bytes += n
		rest -= n
	}
	return show(out, weights, rest, total)
}

func show(out io.Writer, weights map[string]*weight, rest, total float64) error {
	names := slices.SortedFunc(maps.Keys(weights), func(a, b string) int {
		return cmp.Or(cmp.Compare(weights[b].bytes, weights[a].bytes), cmp.Compare(a, b))
	})
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "seconds\tMB\tpackages\t  ")
	line := func(w weight, name string) {
		seconds := "-" // not measured
		if *compile {
			seconds = fmt.Sprintf("%.1f", w.seconds)
		}
		fmt.Fprintf(table, "%s\t%.2f\t%d\t  %s\n", seconds, w.bytes/1e6, w.packages, name)
	}
	var sum, others weight
	for i, name := range names {
		w := *weights[name]
		sum.add(w)
		if i < *lines {
			line(w, name)
		} else {
			others.add(w)
		}
	}
	line(others, "all others")
	line(weight{bytes: rest}, "descriptors of types, strings, and what else has no package's name")
	sum.bytes = total
	line(sum, "together")
	return table.Flush()
}

func (w *weight) add(o weight) {
	w.packages += o.packages
	w.bytes += o.bytes
	w.seconds += o.seconds
}

// modulesOfPackages returns the module of each package of the program.
func modulesOfPackages() (map[string]string, error) {
	list, err := goTool(nil, "list", "-tags", *tags, "-deps", "-f", `{{.ImportPath}} {{with .Module}}{{.Path}}{{else}}Go's library{{end}}`, ".")
	modules := map[string]string{}
	for line := range strings.Lines(string(list)) {
		pkg, module, _ := strings.Cut(strings.TrimSpace(line), " ")
		modules[pkg] = module
	}
	return modules, err
}

// compileSeconds compiles all packages one at a time, without a cache.
func compileSeconds(dir string) (map[string]float64, error) {
	graph := filepath.Join(dir, "graph.json")
	if _, err := goTool([]string{"GOCACHE=" + filepath.Join(dir, "cache"), "GOFLAGS=-p=1"}, "build", "-debug-actiongraph", graph, "-tags", *tags,
		"-o", os.DevNull, "."); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(graph)
	if err != nil {
		return nil, err
	}
	return secondsIn(data)
}

// secondsIn sums the times of each package in the go command's action graph. They are in
// nanoseconds.
func secondsIn(graph []byte) (map[string]float64, error) {
	var actions []struct {
		Mode, Package   string
		CmdUser, CmdSys time.Duration
	}
	err := json.Unmarshal(graph, &actions)
	seconds := map[string]float64{}
	for _, a := range actions {
		if a.Mode == "build" {
			seconds[a.Package] += (a.CmdUser + a.CmdSys).Seconds()
		}
	}
	return seconds, err
}

// linkedBytes builds the binary and returns the sum of the symbol sizes. total is the size of all
// sections that are kept in a stripped binary.
func linkedBytes(dir string, modules map[string]string) (linked map[string]float64, total float64, err error) {
	binary := filepath.Join(dir, "apilet")
	if _, err := goTool(nil, "build", "-tags", *tags, "-trimpath", "-o", binary, "."); err != nil {
		return nil, 0, err
	}
	f, err := elf.Open(binary)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	var code, tables float64
	for _, s := range f.Sections {
		if s.Flags&elf.SHF_ALLOC == 0 || s.Type == elf.SHT_NOBITS {
			continue
		}
		total += float64(s.Size)
		switch s.Name {
		case ".text":
			code = float64(s.Size)
		case ".gopclntab":
			tables += float64(s.Size)
		}
	}
	symbols, err := goTool(nil, "tool", "nm", "-size", binary)
	if err != nil {
		return nil, 0, err
	}
	found, stackMaps, err := symbolBytes(bytes.NewReader(symbols), modules)
	for pkg := range found.code {
		found.data[pkg] += found.code[pkg] * (code + tables + stackMaps) / code
	}
	return found.data, total, err
}

// symbolBytes parses the output of nm. stackMaps are the garbage collector's tables, which belong
// to all code.
func symbolBytes(nm io.Reader, modules map[string]string) (linked struct{ code, data map[string]float64 }, stackMaps float64, err error) {
	linked.code, linked.data = map[string]float64{}, map[string]float64{}
	in := bufio.NewScanner(nm)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		fields := strings.Fields(in.Text()) // address, size, kind, name
		if len(fields) < 4 {
			continue
		}
		size, err := strconv.ParseFloat(fields[1], 64)
		if err != nil {
			return linked, 0, err
		}
		if fields[3] == "go:func.*" {
			stackMaps += size
			continue
		}
		pkg := packageOf(fields[3])
		if modules[pkg] == "" || unfilled[fields[3]] {
			continue
		}
		switch fields[2] {
		case "T", "t":
			linked.code[pkg] += size
		case "D", "d", "R", "r":
			linked.data[pkg] += size
		}
	}
	return linked, stackMaps, in.Err()
}

// unfilled are symbols that nm lists as data but that occupy no space in the file.
var unfilled = map[string]bool{"crypto/internal/fips140/drbg.memory": true, "runtime.mheap_": true, "runtime.cgroupScratch": true}

// packageOf returns the import path of the symbol, which ends at the first dot after the last
// slash. Type arguments are ignored.
func packageOf(symbol string) string {
	for _, made := range []string{"type:.eq.", "type:.hash."} {
		symbol = strings.TrimPrefix(symbol, made)
	}
	path, _, _ := strings.Cut(symbol, "[")
	path, _, _ = strings.Cut(path, "(")
	slash := strings.LastIndex(path, "/") + 1
	name, _, _ := strings.Cut(path[slash:], ".")
	if path[:slash]+name == "main" {
		return "apilet"
	}
	return path[:slash] + strings.ReplaceAll(name, "%2e", ".")
}

// goTool runs the go command. It disables cgo to get the same results on all machines.
func goTool(environment []string, args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	cmd.Env, cmd.Stderr = append(append(os.Environ(), "CGO_ENABLED=0"), environment...), os.Stderr
	return cmd.Output()
}
