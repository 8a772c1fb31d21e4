package main

import (
	"bufio"
	"errors"
	"fmt"
	"strings"
)

// A fault is one entry of the table.
type fault struct {
	name, file     string
	oldText, text  string   // text replaces oldText, which the file contains exactly once
	dir            string   // of the package whose tests run
	tests          string   // regular expression for -test.run
	flags          []string // for go test -c
	equivalent     string   // why no test can notice the fault; "" if one can
	hasOld, hasNew bool
}

// parseTable reads entries that are separated by blank lines. testdata/faults/table.txt describes their lines.
func parseTable(text string) (faults []*fault, err error) {
	var f *fault
	names := map[string]bool{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if f == nil && line != "" && line[0] != '#' {
			f = &fault{}
			faults = append(faults, f)
		}
		switch {
		case line == "" && f != nil:
			err = f.complete()
			f = nil
		case line == "" || line[0] == '#':
		default:
			err = f.parseLine(line)
		}
		if err == nil && f != nil && strings.HasPrefix(line, "fault ") {
			if names[f.name] {
				err = fmt.Errorf("a second entry %s", f.name)
			}
			names[f.name] = true
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if f != nil {
		err = f.complete()
	}
	return faults, err
}

func (f *fault) parseLine(line string) error {
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "fault":
		f.name = rest
	case "file":
		f.file = rest
	case "test":
		words := strings.Fields(rest)
		if len(words) < 2 {
			return errors.New("want: test PACKAGE REGEXP [FLAG...]")
		}
		f.dir, f.tests, f.flags = words[0], words[1], words[2:]
	case "equivalent":
		f.equivalent = rest
	case "-":
		f.oldText, f.hasOld = appendLine(f.oldText, rest, f.hasOld), true
	case "+":
		f.text, f.hasNew = appendLine(f.text, rest, f.hasNew), true
	default:
		return fmt.Errorf("a line may not start with %q", word)
	}
	return nil
}

func appendLine(text, line string, more bool) string {
	if more {
		return text + "\n" + line
	}
	return line
}

func (f *fault) complete() error {
	if f.name == "" || f.file == "" || f.dir == "" || f.oldText == "" || f.oldText == f.text {
		return fmt.Errorf("entry %q is not complete", f.name)
	}
	return nil
}

// plant returns the source with the fault.
func (f *fault) plant(source string) (string, error) {
	if n := strings.Count(source, f.oldText); n != 1 {
		return "", fmt.Errorf("%s contains the old text %d times, not once", f.file, n)
	}
	return strings.Replace(source, f.oldText, f.text, 1), nil
}
