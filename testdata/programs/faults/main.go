// Faults checks the quality of the tests. It changes the source code and fails if the change is not
// detected by a test.
//
//	go run ./testdata/programs/faults                 # all faults of testdata/faults/table.txt
//	go run ./testdata/programs/faults -run '^store-'  # some of them
//
// The working tree is not changed: the compiler reads the faulty file through `go test -overlay`. A
// fault is killed if the tests of its entry fail. If a package does not compile with a fault, that
// is an error, because it proves nothing about the tests. An entry that is marked as equivalent
// must survive.
//
// The exit code is 1 if a fault survives, an equivalent fault is killed, an entry does not match
// the source, or the tests fail without a fault.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

const tableFile = "testdata/faults/table.txt"

func main() {
	only := flag.String("run", "", "plant only the faults whose name matches this `regexp`")
	tests := flag.String("tests", "", "run the tests that match this `regexp` instead of those that the table names")
	flag.Parse()
	if err := check(*only, *tests); err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

// check plants the selected faults and prints a line for each.
func check(only, tests string) error {
	selected, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(tableFile)
	if err != nil {
		return err
	}
	faults, err := parseTable(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", tableFile, err)
	}
	root, err := filepath.Abs(".")
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "faults")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	r := &runner{root: root, work: work, tests: tests}
	for _, f := range faults {
		if selected.MatchString(f.name) {
			r.faults = append(r.faults, f)
		}
	}
	bad := r.run()
	fmt.Printf("%d faults, %d killed, %d equivalent, %d bad; %.0f s of processor time\n", len(r.faults), r.killed, r.survived, bad, r.cpu.Round(time.Second).Seconds())
	if bad > 0 {
		return fmt.Errorf("%d of %d faults are bad", bad, len(r.faults))
	}
	return nil
}
