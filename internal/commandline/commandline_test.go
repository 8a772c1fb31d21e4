package commandline

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os/exec"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"apilet/internal/apitest"
)

// tool is a program with three commands: it serves, checks, or copies.
func tool() *Program {
	group := func(names ...string) []FlagGroup {
		return []FlagGroup{{"Flags", func(f *flag.FlagSet) {
			for _, name := range names {
				f.String(name, "", "a `word`")
			}
		}}}
	}
	say := func(what string) func(Call) error {
		return func(c Call) error { _, err := fmt.Fprint(c.Out, what, c.Args); return err }
	}
	return &Program{Name: "tool", Description: "A tool.", Version: func(w io.Writer) error { _, err := io.WriteString(w, "tool 1"); return err },
		Commands: func() []Command {
			return []Command{
				{ArgCounts: []int{0}, Groups: group("data", "listen"), Description: "serve", Run: say("served")},
				{Name: "check", ArgCounts: []int{0, 1}, Groups: group("data"), Description: "look", Run: say("checked")},
				{Name: "copy", ArgCounts: []int{1}, Args: "DEST", Groups: group("key"), Description: "copy", Run: func(Call) error { return errors.New("no room") }},
			}
		}}
}

func TestACommandLineIsOneRowOfTheTable(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                       "0 served[]",
		"--data x --listen y":    "0 served[]",
		"check -data x a":        "0 checked[a]",
		"check a --data x":       "0 checked[a]",
		"check -- --data":        "0 checked[--data]",
		"check -1":               "0 checked[-1]",
		"copy there":             "1 tool: no room\n",
		"copy":                   "2 tool: usage: tool copy [FLAGS] DEST",
		"copy a b":               "2 tool: unexpected argument \"b\"",
		"check --listen x":       "2 tool: unknown flag: --listen: see `tool check --help`\n",
		"--key x":                "2 tool: unknown flag: --key: see `tool --help`\n",
		"--data":                 "2 tool: flag needs an argument: --data",
		"jump":                   "2 tool: unknown command \"jump\": `tool help` lists the commands\n",
		"--version":              "0 tool 1",
		"check --version":        "0 tool 1",
		"completion tcsh":        "1 tool: no completion for \"tcsh\"",
		"help jump":              "1 tool: ",
		"help copy":              "0 tool copy: copy",
		"copy --help":            "0 tool copy: copy",
		"check --help something": "0 tool check: look",
	} {
		var both strings.Builder
		code := tool().Run(strings.Fields(args), &both, &both)
		if got := fmt.Sprint(code, " ", both.String()); !strings.HasPrefix(got, want) {
			t.Errorf("tool %s: %q, want %q", args, got, want)
		}
	}
}

func TestBashCompletes(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	var script strings.Builder
	if code := tool().Run([]string{"completion", "bash"}, &script, &script); code != 0 {
		t.Fatal(code, script.String())
	}
	for line, want := range map[string]string{
		"ch":             "check",
		"copy --k":       "--key",
		"check --":       "--data --version --help",
		"completion ":    "bash zsh fish",
		"--data x --lis": "--listen",
		"help co":        "copy completion",
		"check che":      "",
	} {
		words := strings.Split("tool "+line, " ")
		command := fmt.Sprintf("source %s; COMP_WORDS=(%s); COMP_CWORD=%d; _tool; echo ${COMPREPLY[@]}", apitest.TempFile(t, "c", script.String()),
			"'"+strings.Join(words, "' '")+"'", len(words)-1)
		out, err := exec.Command(bash, "-c", command).CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%q: got %q, want %q (%v)", line, got, want, err)
		}
	}
}

// TestFlagsAndArgumentsComeInAnyOrder: but behind -- all are arguments, and so is what begins like a negative number.
func TestFlagsAndArgumentsComeInAnyOrder(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"do a b":              "[a b]  false",
		"do -n x a b":         "[a b] x false",
		"do a -n x b -A":      "[a b] x true",
		"do a b --n=x":        "[a b] x false",
		"do -5m now":          "[-5m now]  false",
		"do a -n -5m":         "[a] -5m false",
		"do -A=false a":       "[a]  false",
		"do -- -A --n":        "[-A --n]  false",
		"do a -- -n":          "[a -n]  false",
		"do -":                "[-]  false",
		"do a -n":             "flag needs an argument: --n",
		"do a --m x":          "unknown flag: --m",
		"do a b c":            `unexpected argument "c"`,
		"do -A=maybe":         "invalid boolean value",
		"do a --help":         "do: test",
		"do a --version":      "the version",
		"do -n --version":     "[] --version false",
		"do ---":              "bad flag syntax",
		"do -=":               "bad flag syntax",
		"do a -n x -n y -A a": "[a a] y true",
	} {
		var out strings.Builder
		p := Program{Name: "p", Version: func(w io.Writer) error { return errors.New("the version") }, Commands: func() []Command {
			name, all := "", false
			return []Command{{}, {Name: "do", ArgCounts: []int{0, 1, 2}, Description: "test", Groups: []FlagGroup{{Title: "Flags", Define: func(f *flag.FlagSet) {
				f.StringVar(&name, "n", "", "a name")
				f.BoolVar(&all, "A", false, "all")
			}}}, Run: func(c Call) error {
				_, err := fmt.Fprint(c.Out, c.Args, " ", name, " ", all)
				return err
			}}}
		}}
		p.Run(strings.Fields(args), &out, &out)
		if got := out.String(); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
}

// A letter has one dash and a word two, in the help and in completion. A choice of words is shown as it has to be written.
func TestFlagsAreShownAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	p := Program{Name: "p", Commands: func() []Command {
		return []Command{{}, {Name: "do", Groups: []FlagGroup{{Define: func(f *flag.FlagSet) {
			f.Bool("A", false, "short for --all")
			f.Bool("all", false, "all")
			f.String("kind", "lease", "`lease|none`: who does it")
			f.String("file", "", "a `file` of it")
		}}}}}
	}}
	for command, wants := range map[string][]string{
		"do --help":       {"\n  -A\n", "\n  --all\n", "\n  --kind lease|none\n", "\n  --file FILE\n"},
		"completion bash": {`"-A --all --file --kind`},
		"completion zsh":  {"'-A:short", "'--all:all'"},
		"completion fish": {" -s A -d", " -l all -d"},
	} {
		var out strings.Builder
		p.Run(strings.Fields(command), &out, &out)
		for _, want := range wants {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: no %q in\n%s", command, want, out.String())
			}
		}
	}
}

// A number where a time is wanted is what comes from other programs' flags.
func TestWrongValuesAreToldWhatIsWanted(t *testing.T) {
	t.Parallel()
	f := flag.NewFlagSet("tool", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Duration("min-request-timeout", time.Second, "")
	f.Int64("quota", 0, "")
	f.Func("odd", "", func(string) error { return errors.New("odd: parse error") })
	for arg, want := range map[string]string{
		"--min-request-timeout=1800": `invalid value "1800" for flag --min-request-timeout: must be a duration with a unit, such as 90s, 5m or 2h`,
		"--quota=1G -2":              `invalid value "1G -2" for flag --quota: must be an integer`,
		"--odd=1":                    `invalid value "1" for flag --odd: odd: parse error`,
	} {
		if got := plainFlagError(f, f.Parse([]string{arg})); got != want {
			t.Errorf("%s: %s, want %s", arg, got, want)
		}
	}
}

func TestVersionSaysWhatTheBuildKnows(t *testing.T) {
	t.Parallel()
	setting := func(pairs ...string) (all []debug.BuildSetting) {
		for i := 0; i < len(pairs); i += 2 {
			all = append(all, debug.BuildSetting{Key: pairs[i], Value: pairs[i+1]})
		}
		return append(all, debug.BuildSetting{Key: "GOOS", Value: "linux"}, debug.BuildSetting{Key: "GOARCH", Value: "arm"})
	}
	committed := setting("vcs.revision", "c0ffee", "vcs.time", "2026-11-26T14:07:36Z", "vcs.modified", "false", "-tags", "noetcd")
	for version, c := range map[string]struct {
		settings []debug.BuildSetting
		want     string
	}{
		"v1.2.3":  {committed, "tool v1.2.3\ncommit c0ffee of 2026-11-26T14:07:36Z\nbuilt by go1.26 for linux/arm with -tags noetcd\n"},
		"(devel)": {committed[:2], "tool c0ffee\ncommit c0ffee of 2026-11-26T14:07:36Z\nbuilt by go1.26 for /\n"},
		"":        {setting("vcs.modified", "true"), "tool (devel)\nbuilt by go1.26 for linux/arm\n"},
		"v0": {setting("vcs.revision", "c0ffee", "vcs.time", "today", "vcs.modified", "true"),
			"tool v0\ncommit c0ffee of today, with uncommitted changes\nbuilt by go1.26 for linux/arm\n"},
	} {
		got := buildOf(&debug.BuildInfo{GoVersion: "go1.26", Main: debug.Module{Version: version}, Settings: c.settings}).Lines("tool")
		if got != c.want {
			t.Errorf("%s: %s, want %s", version, got, c.want)
		}
	}
}
