package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// maxRun is the value of -test.timeout. If a fault causes the tests to hang, it is killed by the
// timeout.
const maxRun = 10 * time.Minute

// A runner builds and runs the tests.
type runner struct {
	root, work string
	tests      string // if not empty, it replaces the tests of all entries
	faults     []*fault

	killed, survived int
	cpu              time.Duration // of all commands, with their children
}

// run returns the number of bad faults and packages.
func (r *runner) run() (bad int) {
	for _, of := range r.packages() {
		sound, err := r.checkSound(of)
		if err != nil {
			fmt.Printf("%-9s %s: the tests fail without a fault: %v\n", "bad", of[0].dir, err)
			bad += len(of)
			continue
		}
		for _, f := range of {
			before := r.cpu
			verdict, by, err := r.try(f, sound)
			if err != nil {
				bad++
				verdict, by = "bad", err.Error()
			}
			fmt.Printf("%-9s %s  %s  %.1f s\n", verdict, f.name, by, (r.cpu - before).Seconds())
		}
	}
	return bad
}

// packages groups the faults by the test binary that runs.
func (r *runner) packages() (groups [][]*fault) {
	key := func(f *fault) string { return f.dir + " " + strings.Join(f.flags, " ") }
	sorted := slices.Clone(r.faults)
	slices.SortStableFunc(sorted, func(a, b *fault) int { return cmp.Compare(key(a), key(b)) })
	for _, f := range sorted {
		if last := len(groups) - 1; last >= 0 && key(groups[last][0]) == key(f) {
			groups[last] = append(groups[last], f)
		} else {
			groups = append(groups, []*fault{f})
		}
	}
	return groups
}

// A testBinary contains the tests of a package.
type testBinary struct {
	path string
	deps []string // directories of its packages
}

// checkSound builds and runs the tests of a group without a fault, because a fault is not detected
// by tests that always fail.
func (r *runner) checkSound(of []*fault) (sound *testBinary, err error) {
	sound = &testBinary{path: filepath.Join(r.work, "sound.test")}
	deps, err := r.command(r.root, nil, "go", "list", "-test", "-deps", "-f", "{{.Dir}}", of[0].dir)
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, deps)
	}
	sound.deps = strings.Split(string(deps), "\n")
	if err := r.build(of[0], "", sound.path); err != nil {
		return nil, err
	}
	var all []string
	for _, f := range of {
		all = append(all, r.testsOf(f))
	}
	slices.Sort(all)
	if output, err := r.execute(of[0], sound.path, "", strings.Join(slices.Compact(all), "|")); err != nil {
		return nil, fmt.Errorf("%s: %w", failedTest(output), err)
	}
	return sound, nil
}

func (r *runner) testsOf(f *fault) string { return cmp.Or(r.tests, f.tests) }

// try plants a fault. by is the name of the first test that fails.
func (r *runner) try(f *fault, sound *testBinary) (verdict, by string, err error) {
	source, err := os.ReadFile(filepath.Join(r.root, f.file))
	if err != nil {
		return "", "", err
	}
	faulty, err := f.plant(string(source))
	if err != nil {
		return "", "", err
	}
	overlay, err := r.writeOverlay(f.file, faulty)
	if err != nil {
		return "", "", err
	}
	// enough if the tests run the program, which they build with the overlay
	binary := sound.path
	if slices.Contains(sound.deps, filepath.Dir(filepath.Join(r.root, f.file))) {
		binary = filepath.Join(r.work, "faulty.test")
		if err := r.build(f, overlay, binary); err != nil {
			return "", "", err
		}
	}
	output, err := r.execute(f, binary, overlay, r.testsOf(f))
	var failed *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &failed):
		return "", "", err
	case err != nil && f.equivalent != "":
		return "", "", fmt.Errorf("%s notices the fault, which is said to be equivalent", failedTest(output))
	case err != nil:
		r.killed++
		return "killed", failedTest(output), nil
	case f.equivalent != "":
		r.survived++
		return "equal", f.equivalent, nil
	case bytes.Contains(output, []byte("no tests to run")):
		return "", "", fmt.Errorf("%s has no test that matches %s", f.dir, r.testsOf(f))
	}
	return "", "", fmt.Errorf("survived %s %s", f.dir, r.testsOf(f))
}

// writeOverlay writes an overlay file that replaces the text of a source file. It returns the path.
func (r *runner) writeOverlay(file, text string) (string, error) {
	faulty, overlay := filepath.Join(r.work, "faulty.go"), filepath.Join(r.work, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(r.root, file): faulty}})
	return overlay, errors.Join(err, os.WriteFile(faulty, []byte(text), 0o600), os.WriteFile(overlay, replace, 0o600))
}

// build builds the package's test binary.
func (r *runner) build(f *fault, overlay, binary string) error {
	args := append([]string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-o", binary}, f.flags...)
	if output, err := r.command(r.root, goFlags(overlay), "go", append(args, f.dir)...); err != nil {
		return fmt.Errorf("does not build: %w\n%s", err, output)
	}
	return nil
}

// execute runs a test binary in the directory of the package, like go test.
func (r *runner) execute(f *fault, binary, overlay, tests string) ([]byte, error) {
	return r.command(filepath.Join(r.root, f.dir), goFlags(overlay), binary, "-test.failfast", "-test.short", "-test.timeout="+maxRun.String(), "-test.run="+tests)
}

// goFlags returns an environment in which go commands use the overlay file. It returns nil if there
// is no overlay.
func goFlags(overlay string) []string {
	if overlay == "" {
		return nil
	}
	return append(os.Environ(), strings.TrimSpace("GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+overlay))
}

func (r *runner) command(dir string, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, env
	output, err := cmd.CombinedOutput()
	if state := cmd.ProcessState; state != nil {
		r.cpu += state.UserTime() + state.SystemTime()
	}
	return output, err
}

var failure = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)|^(panic: .*|fatal error: .*|WARNING: DATA RACE)`)

// failedTest returns the name of the first test that failed, or the reason why the process died.
func failedTest(output []byte) string {
	found := failure.FindSubmatch(output)
	if found == nil {
		return "exit without a failed test"
	}
	return cmp.Or(string(found[1]), string(found[2]))
}
