package datafile

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Each case is a work tree with ignore files, and a path below it. If there is a git on the machine, it has to agree.
func TestIgnoredPaths(t *testing.T) {
	for _, c := range []struct {
		files   string // name, colon, patterns separated by spaces; separated by semicolons
		path    string
		ignored bool
	}{
		{"", "a.db", false},
		{".gitignore:*.db", "a.db", true},
		{".gitignore:*.db", "a.db-wal", false},
		{".gitignore:*.db", "state/deep/a.db", true},
		{".gitignore:*.db*", "a.db-wal", true},
		{".gitignore:/a.db", "a.db", true},
		{".gitignore:/a.db", "state/a.db", false},
		{".gitignore:state/a.db", "state/a.db", true},
		{".gitignore:state/a.db", "deep/state/a.db", false},
		{".gitignore:state/", "state/a.db", true},
		{".gitignore:state/", "deep/state/a.db", true},
		{".gitignore:a.db/", "a.db", false},
		{".gitignore:**/a.db", "a.db", true},
		{".gitignore:**/a.db", "x/y/a.db", true},
		{".gitignore:state/**", "state/x/a.db", true},
		{".gitignore:state/**/a.db", "state/a.db", true},
		{".gitignore:state/**/a.db", "state/x/y/a.db", true},
		{".gitignore:state/*.db", "state/x/a.db", false},
		{".gitignore:*.db !a.db", "a.db", false},
		{".gitignore:!a.db *.db", "a.db", true},
		{".gitignore:state/ !state/a.db", "state/a.db", true},
		{".gitignore:state/* !state/a.db", "state/a.db", false},
		{".gitignore:*.db;state/.gitignore:!*.db", "state/a.db", false},
		{"state/.gitignore:*.db", "state/a.db", true},
		{"state/.gitignore:*.db", "a.db", false},
		{"state/.gitignore:/a.db", "state/a.db", true},
		{".gitignore:#a.db", "a.db", false},
		{`.gitignore:\#a.db`, "#a.db", true},
		{".gitignore:[ab].db", "a.db", true},
		{".gitignore:[!a].db", "a.db", false},
		{".gitignore:[!b].db", "a.db", true},
		{".gitignore:?.db", "a.db", true},
		{".gitignore:[", "a.db", false},
		{".git/info/exclude:*.db", "a.db", true},
		{".git/info/exclude:*.db;.gitignore:!a.db", "a.db", false},
		{"HOME/.config/git/ignore:*.db", "a.db", true},
	} {
		top, home := t.TempDir(), t.TempDir()
		t.Setenv("HOME", home)
		t.Setenv("USERPROFILE", home)
		t.Setenv("XDG_CONFIG_HOME", "")
		write := func(name, content string) {
			t.Helper()
			path := filepath.Join(top, name)
			if below, ok := strings.CutPrefix(name, "HOME/"); ok {
				path = filepath.Join(home, below)
			}
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		git, err := exec.LookPath("git")
		if err == nil {
			err = exec.Command(git, "init", "-q", top).Run()
		}
		if err != nil {
			write(".git/HEAD", "")
		}
		write(c.path, "")
		for _, file := range strings.Split(c.files, ";") {
			if name, patterns, ok := strings.Cut(file, ":"); ok {
				write(name, "\n# a comment\n"+strings.ReplaceAll(patterns, " ", "\n")+"\n")
			}
		}
		tree, exposed := Committable(filepath.Join(top, c.path))
		if ignored := len(exposed) == 0; ignored != c.ignored || !ignored && filepath.Base(tree) != filepath.Base(top) {
			t.Errorf("%q with %q: %q in %q, want ignored %v", c.path, c.files, exposed, tree, c.ignored)
		}
		if err == nil {
			check := exec.Command(git, "check-ignore", "-q", "--", c.path)
			check.Dir = top
			if agrees := (check.Run() == nil) == c.ignored; !agrees {
				t.Errorf("%q with %q: git does not agree that ignored is %v", c.path, c.files, c.ignored)
			}
		}
	}
}

func TestFilesOutsideOfWorkTrees(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	if tree, exposed := Committable(path, ""); exposed != nil {
		t.Errorf("%q in %q", exposed, tree)
	}
}

// A linked work tree has a file .git, which names the folder with the exclude file.
func TestLinkedWorkTree(t *testing.T) {
	top, main := t.TempDir(), t.TempDir()
	for name, content := range map[string]string{
		filepath.Join(top, ".git"):                          "gitdir: " + filepath.Join(main, "worktrees", "x") + "\n",
		filepath.Join(main, "worktrees", "x", "commondir"):  "../..\n",
		filepath.Join(main, "info", "exclude"):              "*.db\n",
		filepath.Join(main, "worktrees", "x", "info", "no"): "",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	log := filepath.Join(top, "a.db-wal")
	if _, exposed := Committable(filepath.Join(top, "a.db"), log); !slices.Equal(exposed, []string{log}) {
		t.Errorf("%q", exposed)
	}
}
