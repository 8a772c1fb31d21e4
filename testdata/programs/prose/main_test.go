package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestConstructionsAreFound(t *testing.T) {
	t.Parallel()
	for text, bad := range map[string]bool{
		"Get returns what is stored.":                         true,
		"Whoever writes waits.":                               true,
		"It is for who asks.":                                 true,
		"It tells whether\nthe object is there.":              true,
		"A revision, or one that is newer.":                   true,
		"The scheduler is told of it.":                        true,
		"The result, if there is none.":                       true,
		"It returns both. Of two equal ones the first counts": true,
		"the log; nil: the default":                           true,
		"The server stops at once.":                           true,
		"What does it do? It stops.":                          false,
		"An author, who has no rights, gets a 403.":           false,
		"The message is `at once` or \"what is it\".":         false,
		"It has none of these.":                               false,
		"```\nwhat is it.\n```":                               false,
	} {
		var found []string
		for _, p := range paragraphs("a.md", text) {
			found = append(found, p.search("a.md", nil)...)
		}
		if (len(found) > 0) != bad {
			t.Errorf("%q: %q", text, found)
		}
	}
}

func TestOnlyChangedLinesAreChecked(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git on this machine")
	}
	dir := t.TempDir()
	git := func(args ...string) {
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_DIR="+filepath.Join(dir, ".git")) // a hook sets its own
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if found := check(dir, nil); found != nil {
		t.Error("without a repository: ", found)
	}
	git("init", "-q", "-b", "main")
	write("a.go", "package a\n\n// F returns what is stored.\nfunc F() {}\n")
	git("add", ".")
	git("commit", "-q", "-m", "first")
	git("checkout", "-q", "-b", "other")
	write("a.go", "package a\n\n// F returns what is stored.\nfunc F() {}\n\nvar s = \"what is it\" "+"// what it says\n")
	write("b.md", "One line.\nIt is shown what\nis stored.\n")
	found := check(dir, nil)
	if len(found) != 2 || found[0][:7] != "a.go:6:" || found[1][:7] != "b.md:2:" {
		t.Errorf("%q", found)
	}
}
