package e2e

// These tests use the command line like users and shells.

import (
	"flag"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"apilet/internal/apitest"
)

func TestHelpShowsCommandsFirstAndEachItsOwnFlags(t *testing.T) {
	t.Parallel()
	ask := func(args ...string) string {
		r := runAs(t, "apilet", args...)
		if r.code != 0 || r.errs != "" {
			t.Errorf("%q: %d %s", args, r.code, r.errs)
		}
		return r.out
	}
	help := ask("help")
	if help != ask("--help") || help != ask("-h") {
		t.Error("help, --help and -h differ")
	}
	order := []string{"\nUsage:\n", "\nCommands:\n", "  backup ", "  completion ", "\nStorage:\n", "  --data FILE\n", "\nLogging:\n", "  -v LEVEL\n"}
	for i, at := 0, 0; i < len(order); i++ {
		next := strings.Index(help[at:], order[i])
		if next < 0 {
			t.Fatalf("%q is missing, or too early, in\n%s", order[i], help)
		}
		at += next
	}
	flags := ownFlags()
	all := 0
	flags.VisitAll(func(*flag.Flag) { all++ })
	if got := strings.Count(help, "\n  -"); got != all || flags.Lookup("data") == nil {
		t.Errorf("%d flags in the help, of %d", got, all)
	}
	for _, name := range commandNames(t, help) {
		own := ask(name, "--help")
		if own != ask("help", name) || !strings.HasPrefix(own, "apilet "+name+": ") || strings.Contains(own, "--listen") {
			t.Errorf("help of %s:\n%s", name, own)
		}
	}
	if got := ask("backup", "--help"); strings.Count(got, "\n  --") != 5 {
		t.Errorf("backup has other flags:\n%s", got)
	}
	if got := ask("--version"); !regexp.MustCompile(`^apilet \S+\n(commit .*\n)?built by go1.* for \w+/\w+.*\ndata file format 2\nKubernetes v1\.\d+\.\d+\S*\n$`).MatchString(got) || got != ask("version") {
		t.Errorf("the versions are %q", got)
	}
}

// commandNames returns the commands in the help text.
func commandNames(t *testing.T, help string) (names []string) {
	t.Helper()
	_, list, _ := strings.Cut(help, "\nCommands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	for line := range strings.Lines(list) {
		if name := strings.Fields(line)[0]; name != "(none)" {
			names = append(names, name)
		}
	}
	if len(names) < 8 {
		t.Errorf("the commands are %v", names)
	}
	return names
}

func TestMisusedCommandLineIsOneLineAndCode2(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"check --listen :80":      "unknown flag: --listen: see `apilet check --help`",
		"defrag --kubeconfig x":   "unknown flag: --kubeconfig: see `apilet defrag --help`",
		"version --data x":        "unknown flag: --data",
		"--server http://x":       "unknown flag: --server: see `apilet --help`",
		"--token-file x":          "unknown flag: --token-file",
		"check a.db":              `unexpected argument "a.db"`,
		"--ephemeral check":       `unexpected argument "check"`,
		"backup":                  "usage: apilet backup [FLAGS] DEST",
		"completion":              "usage: apilet completion bash|zsh|fish",
		"bogus":                   `unknown command "bogus"`,
		"--v many":                `invalid value "many" for flag --v`,
		"--listen":                "flag needs an argument: --listen",
		"backup --certificate x ": "unknown flag: --certificate",
	} {
		r := runAs(t, "apilet", strings.Fields(args)...)
		if r.code != 2 || !strings.Contains(r.errs, want) || strings.Count(r.errs, "\n") != 1 || r.out != "" {
			t.Errorf("%s: code %d, %q%q", args, r.code, r.out, r.errs)
		}
	}
}

func TestCompletionKnowsCommandsAndTheirFlags(t *testing.T) {
	t.Parallel()
	completion := func(shell string) string {
		return command(t, "completion", shell)
	}
	words := commandNames(t, command(t, "help"))
	for _, name := range words {
		for _, flag := range regexp.MustCompile(`(?m)^  --([\w-]+)`).FindAllStringSubmatch(command(t, "help", name), -1) {
			words = append(words, flag[1])
		}
	}
	ownFlags().VisitAll(func(f *flag.Flag) { words = append(words, f.Name) })
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script := completion(shell)
		for _, word := range words {
			if !strings.Contains(script, word) {
				t.Errorf("%s lacks %s", shell, word)
			}
		}
		path, err := exec.LookPath(shell)
		if err != nil {
			continue // this shell is not installed
		}
		if out, err := exec.Command(path, "-n", apitest.TempFile(t, "script", script)).CombinedOutput(); err != nil {
			t.Errorf("%s cannot read its script: %s", shell, out)
		}
	}
}
