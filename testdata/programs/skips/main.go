// Skips reads the output of `go test -json` and prints it like go test. At the end it lists the
// tests that were skipped for an unknown reason. Otherwise a test whose required feature is missing
// could be skipped for ever without notice.
//
//	go test -json ./... | go run ./testdata/programs/skips .ci/skips
//
// Each line of the file is a regular expression that is matched against "NAME: WORDS". WORDS is the
// message of the test. Lines that start with # are comments. Exit code 1 means that there was an
// unlisted skip; the shell handles the result of go test itself (pipefail).
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go test -json ... | skips FILE")
		os.Exit(2)
	}
	file, err := os.Open(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	known, err := readKnown(file)
	if err != nil {
		fmt.Fprintln(os.Stderr, os.Args[1], err)
		os.Exit(2)
	}
	if !report(os.Stdin, os.Stdout, known) {
		os.Exit(1)
	}
}

func readKnown(in io.Reader) (known []*regexp.Regexp, err error) {
	for lines := bufio.NewScanner(in); lines.Scan(); {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		pattern, err := regexp.Compile(text)
		if err != nil {
			return nil, err
		}
		known = append(known, pattern)
	}
	return known, nil
}

// An event is a line of `go test -json`; see go doc test2json.
type event struct {
	Action, Package, Test, Output string
}

// A test identifies a test by its package and name. The name is empty for output that was not
// printed by a test.
type test struct{ pkg, name string }

// report prints the output of go test without -v. It reports whether all skips are listed.
func report(in io.Reader, out io.Writer, known []*regexp.Regexp) bool {
	printed, unknown := map[test][]string{}, []string{}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var ev event
		if json.Unmarshal(line, &ev) != nil {
			_, _ = out.Write(line) // output of the go command itself
			continue
		}
		of := test{ev.Package, ev.Test}
		switch {
		case ev.Action == "build-output", ev.Action == "output" && ev.Test == "":
			printPlain(out, ev.Output)
		case ev.Action == "output":
			printed[of] = append(printed[of], ev.Output)
		case ev.Action == "fail" && ev.Test != "":
			printAll(out, printed[of])
			delete(printed, of)
		case ev.Action == "skip" && ev.Test != "":
			if why := ev.Test + ": " + words(printed[of]); !isKnown(known, why) {
				unknown = append(unknown, ev.Package+" "+why)
			}
			delete(printed, of)
		case ev.Action == "pass":
			delete(printed, of)
		case ev.Action == "fail": // the process ended during these tests
			for unfinished := range printed {
				if unfinished.pkg == ev.Package {
					printAll(out, printed[unfinished])
					delete(printed, unfinished)
				}
			}
		}
	}
	for _, skip := range unknown {
		fmt.Fprintln(out, "left out, and .ci/skips does not know why:", skip)
	}
	return len(unknown) == 0
}

// printPlain omits lines that go test prints with -v only.
func printPlain(out io.Writer, text string) {
	if text != "PASS\n" {
		fmt.Fprint(out, text)
	}
}

func printAll(out io.Writer, texts []string) {
	for _, text := range texts {
		if !strings.HasPrefix(text, "=== ") {
			fmt.Fprint(out, text)
		}
	}
}

var place = regexp.MustCompile(`^\s*[\w.-]+\.go:\d+: `)

// words returns the message of a test as a single line.
func words(texts []string) string {
	var said []string
	for _, text := range texts {
		if !strings.HasPrefix(text, "=== ") && !strings.HasPrefix(strings.TrimSpace(text), "--- ") {
			said = append(said, strings.TrimSpace(place.ReplaceAllString(text, "")))
		}
	}
	return strings.Join(said, " ")
}

func isKnown(known []*regexp.Regexp, why string) bool {
	for _, pattern := range known {
		if pattern.MatchString(why) {
			return true
		}
	}
	return false
}
