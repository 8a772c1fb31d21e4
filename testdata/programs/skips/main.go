// Skips reads what `go test -json` prints and prints it as go test would, and in the end it names each test that has left itself out for a reason
// that nobody has written down: a test that skips where the feature is gone that it tests would stay green for ever.
//
//	go test -json ./... | go run ./testdata/programs/skips .ci/skips
//
// The file has a regular expression a line, matched against "NAME: WORDS", what the test says when it skips; # begins a comment. Exit code 1
// says that there was such a skip; what go test came to is for the shell (pipefail).
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

// An event is a line of `go test -json`; the fields are go doc test2json's.
type event struct {
	Action, Package, Test, Output string
}

// A test is one of a package; that without a name stands for what no test has printed.
type test struct{ pkg, name string }

// report prints what go test prints without -v, and says whether all skips are known.
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
			_, _ = out.Write(line) // of the go command itself
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
		case ev.Action == "fail": // the process has ended in the middle of these
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

// printPlain leaves out what go test says with -v alone.
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

// words are what a test has said, in one line.
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
