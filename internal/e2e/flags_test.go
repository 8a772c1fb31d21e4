package e2e

// This file compares docs/differences.md with the flags: each of kube-apiserver's stands in its table, once, and under the same name where apilet has it.

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
	_, table, ok := strings.Cut(string(apitest.ReadFile(t, "../../docs/differences.md")), "\n## kube-apiserver's flags\n")
	if !ok {
		t.Fatal("../../docs/differences.md has no such section")
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
		t.Fatalf("kube-apiserver has %d flags?", len(flags))
	}
	for _, found := range flags {
		name := found[1]
		there, elsewhere := count(sameNames, name), count(otherNames, name)
		switch has := own.Lookup(name) != nil; {
		case there+elsewhere != 1:
			t.Errorf("--%s stands %d times in the table, want once", name, there+elsewhere)
		case has && there == 0:
			t.Errorf("--%s is apilet's, too, and does not stand among those of the same name", name)
		case !has && there > 0:
			t.Errorf("--%s stands among those of the same name, and apilet does not have it", name)
		}
	}
	for _, pattern := range append(sameNames, otherNames...) {
		if !used[pattern.String()] {
			t.Errorf("%s is no flag of kube-apiserver", pattern)
		}
	}
}
