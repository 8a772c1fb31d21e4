package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const entry = `# a comment

fault lost-check
file internal/a/a.go
test ./internal/a ^TestA$ -race
- if n > 1 {
- 	return
+ if n > 2 {
+ 	return
`

func TestParseTable(t *testing.T) {
	faults, err := parseTable(entry + "\n" + strings.Replace(entry, "lost-check", "other", 1))
	if err != nil || len(faults) != 2 {
		t.Fatalf("%d faults, %v", len(faults), err)
	}
	f := faults[0]
	if f.name != "lost-check" || f.dir != "./internal/a" || f.tests != "^TestA$" || len(f.flags) != 1 || f.oldText != "if n > 1 {\n\treturn" || f.text != "if n > 2 {\n\treturn" {
		t.Errorf("got %+v", f)
	}
	for _, bad := range []string{"fault a\n", entry + "? x\n", entry + "\n" + entry, strings.Replace(entry, " ^TestA$ -race", "", 1)} {
		if _, err := parseTable(bad); err == nil {
			t.Errorf("accepted %q", bad)
		}
	}
}

func TestPlantWantsTheOldTextOnce(t *testing.T) {
	f := &fault{file: "a.go", oldText: "x > 1", text: "x > 2"}
	if got, err := f.plant("if x > 1 {}"); err != nil || got != "if x > 2 {}" {
		t.Errorf("got %q, %v", got, err)
	}
	for _, source := range []string{"", "x > 1, x > 1"} {
		if _, err := f.plant(source); err == nil {
			t.Errorf("accepted %q", source)
		}
	}
}

// TestRunFindsSurvivors plants three faults in a separate module. The tests do not detect one of
// them.
func TestRunFindsSurvivors(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":      "module example\n\ngo 1.24\n",
		"max.go":      "package example\n\nfunc larger(a, b int) int {\n\tif a > b {\n\t\treturn a\n\t}\n\treturn b\n}\n",
		"max_test.go": "package example\n\nimport \"testing\"\n\nfunc TestLarger(t *testing.T) {\n\tif larger(1, 2) != 2 {\n\t\tt.Error()\n\t}\n}\n",
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	made := func(old, text string) *fault {
		return &fault{name: old, file: "max.go", dir: ".", tests: "TestLarger", oldText: old, text: text}
	}
	equal := made("a > b", "a >= b")
	equal.equivalent = "the greater of two equal numbers is either"
	r := &runner{root: root, work: t.TempDir(), faults: []*fault{made("a > b", "a < b"), made("return b", "return 0"), made("return a", "return 0"), made("return a", "return c"), equal}}
	if bad := r.run(); bad != 2 || r.killed != 2 || r.survived != 1 {
		t.Errorf("%d bad, %d killed, %d survived; want 2, 2, 1", bad, r.killed, r.survived)
	}
}

// TestTableFitsTheSources checks that the old text of each entry is found exactly once in its file,
// and that the test exists.
func TestTableFitsTheSources(t *testing.T) {
	const root = "../../.."
	text, err := os.ReadFile(filepath.Join(root, tableFile))
	if err != nil {
		t.Fatal(err)
	}
	faults, err := parseTable(string(text))
	if err != nil || len(faults) < 50 {
		t.Fatalf("%d entries, %v", len(faults), err)
	}
	names := map[string][]string{} // of tests, by directory
	for _, f := range faults {
		source, err := os.ReadFile(filepath.Join(root, f.file))
		if err == nil {
			_, err = f.plant(string(source))
		}
		if err != nil {
			t.Errorf("%s: %v", f.name, err)
		}
		if names[f.dir] == nil {
			names[f.dir] = testsIn(t, filepath.Join(root, f.dir))
		}
		tests, err := regexp.Compile(f.tests)
		if err != nil || !slices.ContainsFunc(names[f.dir], tests.MatchString) {
			t.Errorf("%s: %s has no test %s, %v", f.name, f.dir, f.tests, err)
		}
	}
}

// testsIn returns the names of the tests and fuzz targets in a directory.
func testsIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`).FindAllSubmatch(text, -1) {
			names = append(names, string(found[1]))
		}
	}
	return names
}
