package main

// These tests use the command line as people and shells do.

import (
	"flag"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"apilet/internal/apitest"
)

func TestHelpShowsCommandsFirstAndEachItsOwnFlags(t *testing.T) {
	t.Parallel()
	ask := func(args ...string) string {
		var out, errs strings.Builder
		if code := program().Run(args, &out, &errs); code != 0 || errs.Len() > 0 {
			t.Errorf("%q: %d %s", args, code, errs.String())
		}
		return out.String()
	}
	help := ask("help")
	if help != ask("--help") || help != ask("-h") {
		t.Error("help, --help and -h differ")
	}
	order := []string{"\nUsage:\n", "\nCommands:\n", "  backup ", "  completion ", "\nThe data:\n", "  --data FILE\n", "\nLogs:\n", "  -v LEVEL\n"}
	for i, at := 0, 0; i < len(order); i++ {
		next := strings.Index(help[at:], order[i])
		if next < 0 {
			t.Fatalf("%q is missing, or too early, in\n%s", order[i], help)
		}
		at += next
	}
	_, flags := newConfig(io.Discard)
	all := 0
	flags.VisitAll(func(*flag.Flag) { all++ })
	if got := strings.Count(help, "\n  -"); got != all || flags.Lookup("data") == nil {
		t.Errorf("%d flags in the help, of %d", got, all)
	}
	for _, row := range program().Commands()[1:] {
		own := ask(row.Name, "--help")
		if own != ask("help", row.Name) || !strings.HasPrefix(own, "apilet "+row.Name+": ") || strings.Contains(own, "--listen") {
			t.Errorf("help of %s:\n%s", row.Name, own)
		}
	}
	if got := ask("backup", "--help"); strings.Count(got, "\n  --") != 5 {
		t.Errorf("backup has other flags:\n%s", got)
	}
	if got := ask("--version"); !regexp.MustCompile(`^apilet \S+\n(commit .*\n)?built by go1.* for \w+/\w+.*\ndata file format 2\nKubernetes v1\.\d+\.\d+\S*\n$`).MatchString(got) || got != ask("version") {
		t.Errorf("the versions are %q", got)
	}
}

func TestMisusedCommandLineIsOneLineAndCode2(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"check --listen :80":      "unknown flag: --listen: `apilet check --help`",
		"defrag --kubeconfig x":   "unknown flag: --kubeconfig: `apilet defrag --help`",
		"version --data x":        "unknown flag: --data",
		"--server http://x":       "unknown flag: --server: `apilet --help`",
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
		var out, errs strings.Builder
		code := program().Run(strings.Fields(args), &out, &errs)
		if code != 2 || !strings.Contains(errs.String(), want) || strings.Count(errs.String(), "\n") != 1 || out.Len() > 0 {
			t.Errorf("%s: code %d, %q%q", args, code, out.String(), errs.String())
		}
	}
}

func TestCompletionKnowsCommandsAndTheirFlags(t *testing.T) {
	t.Parallel()
	completion := func(shell string) string {
		var script, errs strings.Builder
		if code := program().Run([]string{"completion", shell}, &script, &errs); code != 0 {
			t.Fatal(shell, code, errs.String())
		}
		return script.String()
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script := completion(shell)
		for _, row := range program().Commands() {
			f := flag.NewFlagSet("", flag.ContinueOnError)
			for _, group := range row.Groups {
				group.Define(f)
			}
			f.VisitAll(func(f *flag.Flag) {
				if !strings.Contains(script, f.Name) {
					t.Errorf("%s lacks %s --%s", shell, row.Name, f.Name)
				}
			})
			if !strings.Contains(script, row.Name) {
				t.Errorf("%s lacks %s", shell, row.Name)
			}
		}
		path, err := exec.LookPath(shell)
		if err != nil {
			continue // this shell is not here to read it
		}
		if out, err := exec.Command(path, "-n", apitest.TempFile(t, "script", script)).CombinedOutput(); err != nil {
			t.Errorf("%s cannot read its script: %s", shell, out)
		}
	}
}
