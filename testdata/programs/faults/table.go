package main

import (
	"errors"
	"fmt"
	"strings"
)

// A fault is an entry of the table.
type fault struct {
	name, file    string
	oldText, text string   // text replaces oldText, which the file contains exactly once
	dir           string   // of the package whose tests run
	tests         string   // regular expression for -test.run
	flags         []string // for go test -c
	equivalent    string   // why no test can notice the fault; "" if one can
}

// parseTable reads entries that are separated by blank lines. testdata/faults/table.txt describes
// their lines.
func parseTable(text string) (faults []*fault, err error) {
	names := map[string]bool{}
	for entry := range strings.SplitSeq(text, "\n\n") {
		f, err := parseEntry(entry)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%w in the entry:\n%s", err, entry)
		case f == nil:
			continue
		case names[f.name]:
			return nil, fmt.Errorf("%s has two entries", f.name)
		}
		names[f.name] = true
		faults = append(faults, f)
	}
	return faults, nil
}

// parseEntry returns nil if the entry has nothing but comments.
func parseEntry(entry string) (*fault, error) {
	f := &fault{}
	var oldLines, lines []string
	for line := range strings.Lines(entry) {
		line = strings.TrimSuffix(line, "\n")
		word, rest, _ := strings.Cut(line, " ")
		switch {
		case line == "" || line[0] == '#':
		case word == "fault":
			f.name = rest
		case word == "file":
			f.file = rest
		case word == "test":
			words := strings.Fields(rest)
			if len(words) < 2 {
				return nil, errors.New("want: test PACKAGE REGEXP [FLAG...]")
			}
			f.dir, f.tests, f.flags = words[0], words[1], words[2:]
		case word == "equivalent":
			f.equivalent = rest
		case word == "-":
			oldLines = append(oldLines, rest)
		case word == "+":
			lines = append(lines, rest)
		default:
			return nil, fmt.Errorf("unknown line %q", line)
		}
	}
	f.oldText, f.text = strings.Join(oldLines, "\n"), strings.Join(lines, "\n")
	switch {
	case f.name == "" && f.oldText == "":
		return nil, nil
	case f.name == "" || f.file == "" || f.dir == "" || f.oldText == f.text:
		return nil, errors.New("a line is missing")
	}
	return f, nil
}

// plant returns the source with the fault.
func (f *fault) plant(source string) (string, error) {
	if n := strings.Count(source, f.oldText); n != 1 {
		return "", fmt.Errorf("%s contains the old text %d times, not once", f.file, n)
	}
	return strings.Replace(source, f.oldText, f.text, 1), nil
}
