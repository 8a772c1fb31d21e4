package e2e

// This file compares the table in docs/compatibility.md with the flags. Each flag of kube-apiserver
// must be in the table exactly once. It must be in the first part if apilet has a flag with the
// same name.

import (
	"regexp"
	"strings"
	"testing"

	"apilet/internal/apitest"
	"apilet/internal/envtest"
)

func TestEachOfKubeAPIServersFlagsIsInTheTable(t *testing.T) {
	t.Parallel()
	own := ownFlags()
	var help strings.Builder
	envtest.PrintAPIServerHelp(&help, own)
	_, table, ok := strings.Cut(string(apitest.ReadFile(t, "../../docs/compatibility.md")), "\n## kube-apiserver's flags\n")
	if !ok {
		t.Fatal("../../docs/compatibility.md has no such section")
	}
	table, _, _ = strings.Cut(table, "\n## ")
	same, others, ok := strings.Cut(table, "| **Another name** |")
	if !ok {
		t.Fatal("the table has no row for other names")
	}
	first := regexp.MustCompile("(?m)^\\| (`[^|]*)\\|")
	patterns := func(rows string) (found []*regexp.Regexp) {
		for _, row := range first.FindAllStringSubmatch(rows, -1) {
			for _, name := range strings.Fields(strings.ReplaceAll(row[1], "`", " ")) {
				found = append(found, regexp.MustCompile("^"+strings.ReplaceAll(regexp.QuoteMeta(name), `\*`, ".*")+"$"))
			}
		}
		return found
	}
	used := map[string]bool{}
	count := func(list []*regexp.Regexp, name string) (n int) {
		for _, pattern := range list {
			if pattern.MatchString(name) {
				used[pattern.String()] = true
				n++
			}
		}
		return n
	}
	sameNames, otherNames := patterns(same), patterns(others)
	flags := regexp.MustCompile(`(?m)^ +--([a-z0-9-]+)$`).FindAllStringSubmatch(help.String(), -1)
	if len(flags) < 150 {
		t.Fatalf("kube-apiserver has only %d flags", len(flags))
	}
	for _, found := range flags {
		name := found[1]
		there, elsewhere := count(sameNames, name), count(otherNames, name)
		switch has := own.Lookup(name) != nil; {
		case there+elsewhere != 1:
			t.Errorf("the table contains --%s %d times, want once", name, there+elsewhere)
		case has && there == 0:
			t.Errorf("apilet has --%s, but the table has it under another name", name)
		case !has && there > 0:
			t.Errorf("the table has --%s under the same name, but apilet does not have it", name)
		}
	}
	for _, pattern := range append(sameNames, otherNames...) {
		if !used[pattern.String()] {
			t.Errorf("kube-apiserver has no flag %s", pattern)
		}
	}
}
