package main

// This file is the command line: one table of commands, each with its flags in groups, from which everything else follows, what a
// command understands and refuses, its help, and the completion of shells.
//
//	apilet [FLAGS]             serves
//	apilet COMMAND [FLAGS] ... does one thing with a data file or a running server, and ends
//	apilet help [COMMAND]      commands first, then flags; COMMAND --help has that command's alone
//
// A flag belongs to the command that defines it: `apilet check --listen :80` is an error, and so is a flag that only backup has where
// nothing but serving was asked for. A mistake is told in one line that says where to look; exit code 2.

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"apilet/internal/envtest"
	"apilet/internal/gc"
)

// A commandRow is one command.
type commandRow struct {
	name   string // "" serves
	args   string // what follows the flags, as help shows it
	counts []int  // how many arguments that may be
	what   string
	words  []string // what the argument may be, for completion; nil: a file
	groups []flagGroup
	run    func(call) error
}

// A flagGroup is a part of a command's flags under a title.
type flagGroup struct {
	title  string
	define func(*config, *flag.FlagSet)
}

// A call is a command on its way: what was asked for, and where answers go.
type call struct {
	cfg         *config
	args        []string
	out, errors io.Writer
}

// commands is the table. It is a function since help, a row of it, reads it.
func commands() []commandRow {
	none, one := []int{0}, []int{1}
	dataFlag := []flagGroup{{"Flags", defineData}}
	return []commandRow{
		{"", "", none, "serve until told to stop", nil, serveFlags, func(c call) error { return c.cfg.serve(c.errors) }},
		{"backup", "DEST", one, "copy a running server's objects, or those of a file that no server has open, into a new file", nil,
			[]flagGroup{{"Flags", defineBackup}}, runBackup},
		{"check", "", none, "look at every page and object of a data file that no server has open", nil, dataFlag, runCheck},
		{"defrag", "", none, "rewrite a data file that no server has open without its free pages", nil, dataFlag, runDefrag},
		{"envtest-assets", "DIR", one, "fill a folder with what envtest looks for, and print the line that leads it there", nil, nil,
			func(c call) error { return envtest.MakeAssets(c.out, c.args) }},
		{"completion", "bash|zsh|fish", one, "print what makes a shell complete apilet's commands and flags", shells, nil,
			func(c call) error { return printCompletion(c.out, c.args[0]) }},
		{"version", "", none, "print apilet's version and that of Kubernetes", nil, nil, printVersion},
		{"help", "[COMMAND]", []int{0, 1}, "print this, or a command's help", nil, nil, printHelp},
	}
}

func findCommand(name string) *commandRow {
	rows := commands()
	i := slices.IndexFunc(rows, func(row commandRow) bool { return row.name == name })
	if i < 0 {
		return nil
	}
	return &rows[i]
}

// ---- From arguments to a command ----

// commandAs runs the program as what it was called: itself, or one of the two whose place it takes in tests.
func commandAs(program string, args []string, stdout, stderr io.Writer) int {
	var err error
	switch program {
	case "etcd":
		ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		defer cancel()
		defer outliveHangups()()
		err = envtest.ServeAsEtcd(ctx, args, stdout, stderr)
	case "kube-apiserver":
		_, own := newConfig(stderr)
		args, err = envtest.TranslateAPIServer(args, own, stderr)
		switch {
		case errors.Is(err, flag.ErrHelp):
			envtest.PrintAPIServerHelp(stdout, own)
			return 0
		case errors.Is(err, envtest.ErrShowVersion):
			fmt.Fprintln(stdout, "Kubernetes", gitVersion)
			return 0
		case err == nil:
			return command(args, stdout, stderr)
		}
	default:
		return command(args, stdout, stderr)
	}
	if err != nil {
		fmt.Fprintln(stderr, program+":", err)
		return 1
	}
	return 0
}

// command runs the program and returns its exit code: 0, 1 for an error, 2 for a misused command line.
func command(args []string, stdout, stderr io.Writer) int {
	name := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	}
	row := findCommand(name)
	if row == nil {
		fmt.Fprintf(stderr, "apilet: unknown command %q: `apilet help` lists the commands\n", name)
		return 2
	}
	cfg := &config{namespaceGrace: gc.NamespaceGrace}
	flags := row.flagSet(cfg)
	showVersion := flags.Bool("version", false, "")
	asked := flags.Parse(args)
	c := call{cfg, flags.Args(), stdout, stderr}
	var err error
	switch {
	case errors.Is(asked, flag.ErrHelp):
		err = row.help(stdout)
	case asked != nil:
		fmt.Fprintf(stderr, "apilet: %s: %s\n", plainFlagError(asked), row.whereToLook())
		return 2
	case *showVersion:
		err = printVersion(c)
	case !slices.Contains(row.counts, len(c.args)):
		fmt.Fprintf(stderr, "apilet: %s\n", row.wrongCount(c.args))
		return 2
	default:
		err = row.run(c)
	}
	if err != nil {
		fmt.Fprintln(stderr, "apilet:", err)
		return 1
	}
	return 0
}

// flagSet has the flags of one command alone.
func (row *commandRow) flagSet(c *config) *flag.FlagSet {
	f := flag.NewFlagSet(row.title(), flag.ContinueOnError)
	f.SetOutput(io.Discard)
	for _, group := range row.groups {
		group.define(c, f)
	}
	return f
}

// plainFlagError says what package flag has to say with two dashes, as the flags are written everywhere else.
func plainFlagError(err error) string {
	text := strings.Replace(err.Error(), "flag provided but not defined: -", "unknown flag: --", 1)
	return strings.NewReplacer("for flag -", "for flag --", "an argument: -", "an argument: --", " for -", " for --").Replace(text)
}

func (row *commandRow) title() string { return strings.TrimSpace("apilet " + row.name) }

func (row *commandRow) whereToLook() string {
	return "`" + row.title() + " --help` lists what it understands"
}

func (row *commandRow) wrongCount(args []string) string {
	if most := row.counts[len(row.counts)-1]; len(args) > most {
		return fmt.Sprintf("unexpected argument %q: %s", args[most], row.whereToLook())
	}
	return "usage: " + row.usage()
}

func (row *commandRow) usage() string {
	text := row.title()
	if len(row.groups) > 0 {
		text += " [FLAGS]"
	}
	return strings.TrimSpace(text + " " + row.args)
}

// outliveHangups keeps a hangup from ending the process: a terminal that is closed, or a logrotate that signals where no audit log is.
func outliveHangups() (stop func()) {
	heard := make(chan os.Signal, 1) // never read: what does not fit is dropped
	signal.Notify(heard, syscall.SIGHUP)
	return func() { signal.Stop(heard) }
}

// ---- Help ----

func printHelp(c call) error {
	name := ""
	if len(c.args) > 0 {
		name = c.args[0]
	}
	row := findCommand(name)
	if row == nil {
		return fmt.Errorf("unknown command %q: `apilet help` lists the commands", name)
	}
	return row.help(c.out)
}

// help prints what a command is for, and its flags; with the commands before them where there is none.
func (row *commandRow) help(out io.Writer) error {
	var text strings.Builder
	if row.name == "" {
		text.WriteString("Apilet is a Kubernetes-compatible API server in one program and one file.\n\nUsage:\n  apilet [FLAGS]\n  apilet COMMAND [FLAGS]\n\nCommands:\n")
		for _, row := range commands() {
			fmt.Fprintf(&text, "  %-17s %s\n", helpName(row.name), row.what)
		}
		text.WriteString("\n`apilet COMMAND --help` lists a command's flags, `apilet --version` prints the versions. What follows is for serving.\n")
	} else {
		fmt.Fprintf(&text, "%s: %s.\n\nUsage:\n  %s\n", row.title(), row.what, row.usage())
	}
	for _, group := range row.groups {
		fmt.Fprintf(&text, "\n%s:\n", group.title)
		f := flag.NewFlagSet("", flag.ContinueOnError)
		group.define(&config{}, f)
		f.VisitAll(func(f *flag.Flag) { text.WriteString(flagHelp(f)) })
	}
	_, err := io.WriteString(out, text.String())
	return err
}

func helpName(name string) string {
	if name == "" {
		return "(none)"
	}
	return name
}

func flagHelp(f *flag.Flag) string {
	value, usage := flag.UnquoteUsage(f)
	line := "  --" + f.Name
	if value != "" {
		line += " " + strings.ToUpper(value)
	}
	switch f.DefValue {
	case "", "0", "0s", "false":
	default:
		usage += " (default " + f.DefValue + ")"
	}
	return line + "\n        " + usage + "\n"
}

// printVersion prints apilet's own version and the version of Kubernetes that it answers /version with.
func printVersion(c call) error {
	_, err := fmt.Fprintf(c.out, "apilet %s\nKubernetes %s\n", ownVersion(), gitVersion)
	return err
}

// ownVersion is what the Go command has written into the program: the module's version, or the commit that it was built from.
func ownVersion() string {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown)"
	}
	if build.Main.Version != "" && build.Main.Version != "(devel)" {
		return build.Main.Version
	}
	for _, setting := range build.Settings {
		if setting.Key == "vcs.revision" {
			return setting.Value
		}
	}
	return "(devel)"
}

// ---- Completion ----

var shells = []string{"bash", "zsh", "fish"}

// printCompletion prints a shell's script. Each knows the commands, the flags of the command before the cursor, and files for the rest.
func printCompletion(out io.Writer, shell string) error {
	scripts := map[string]func() string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}
	script := scripts[shell]
	if script == nil {
		return fmt.Errorf("no completion for %q: there is one for %s", shell, strings.Join(shells, ", "))
	}
	_, err := io.WriteString(out, script())
	return err
}

// eachFlag visits a command's flags, --help last.
func (row *commandRow) eachFlag(visit func(name, usage string, takesValue bool)) {
	row.flagSet(&config{}).VisitAll(func(f *flag.Flag) {
		isSwitch, _ := f.Value.(interface{ IsBoolFlag() bool })
		_, usage := flag.UnquoteUsage(f)
		visit(f.Name, usage, isSwitch == nil || !isSwitch.IsBoolFlag())
	})
	visit("version", "print the versions", false)
	visit("help", "print the flags", false)
}

func (row *commandRow) flagWords() string {
	var words []string
	row.eachFlag(func(name, _ string, _ bool) { words = append(words, "--"+name) })
	return strings.Join(words, " ")
}

func commandNames() []string {
	var names []string
	for _, row := range commands()[1:] {
		names = append(names, row.name)
	}
	return names
}

// argumentWords are what a command's argument may be, "" when it is a file.
func (row *commandRow) argumentWords() string {
	if row.name == "help" {
		return strings.Join(commandNames(), " ")
	}
	return strings.Join(row.words, " ")
}

func bashCompletion() string {
	var cases strings.Builder
	for _, row := range commands()[1:] {
		fmt.Fprintf(&cases, "    %s) flags=%q words=%q ;;\n", row.name, row.flagWords(), row.argumentWords())
	}
	return `# completion of apilet for bash: source <(apilet completion bash)
_apilet() {
  local cur=${COMP_WORDS[COMP_CWORD]} flags words=""
  case ${COMP_WORDS[1]} in
` + cases.String() + fmt.Sprintf("    *) flags=%q ;;\n", findCommand("").flagWords()) + `  esac
  if [[ $COMP_CWORD == 1 ]]; then words="` + strings.Join(commandNames(), " ") + `"; fi
  if [[ $cur == -* ]]; then words=$flags; fi
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o default -F _apilet apilet
`
}

func zshCompletion() string {
	var text strings.Builder
	text.WriteString("#compdef apilet\n# completion of apilet for zsh: source <(apilet completion zsh), or a file _apilet in $fpath\n_apilet() {\n  local -a line commands flags choices\n  line=(\"${(@)words}\") # before anything else hides it\n  commands=(\n")
	for _, row := range commands()[1:] {
		fmt.Fprintf(&text, "    %s\n", singleQuoted(row.name+":"+strings.ReplaceAll(row.what, ":", `\:`)))
	}
	text.WriteString("  )\n  case $line[2] in\n")
	for _, row := range append(slices.Clone(commands()[1:]), *findCommand("")) {
		pattern := row.name
		if pattern == "" {
			pattern = "*"
		}
		fmt.Fprintf(&text, "    %s)\n      flags=(\n", pattern)
		row.eachFlag(func(name, usage string, _ bool) {
			fmt.Fprintf(&text, "        %s\n", singleQuoted("--"+name+":"+strings.ReplaceAll(usage, ":", `\:`)))
		})
		fmt.Fprintf(&text, "      )\n      choices=(%s) ;;\n", row.argumentWords())
	}
	text.WriteString(`  esac
  if [[ $PREFIX == -* ]]; then _describe flag flags
  elif (( CURRENT == 2 )); then _describe command commands
  elif (( $#choices )); then compadd -- $choices
  else _files
  fi
}
if [[ $funcstack[1] == _apilet ]]; then _apilet "$@"; else compdef _apilet apilet; fi
`)
	return text.String()
}

func fishCompletion() string {
	var text strings.Builder
	text.WriteString("# completion of apilet for fish: apilet completion fish | source\n")
	for _, row := range commands() {
		seen := "__fish_seen_subcommand_from " + row.name
		if row.name == "" {
			seen = "not __fish_seen_subcommand_from " + strings.Join(commandNames(), " ")
		} else {
			fmt.Fprintf(&text, "complete -c apilet -n __fish_use_subcommand -f -a %s -d %s\n", row.name, singleQuoted(row.what))
		}
		row.eachFlag(func(name, usage string, takesValue bool) {
			value := ""
			if takesValue {
				value = " -r"
			}
			fmt.Fprintf(&text, "complete -c apilet -n %s -l %s%s -d %s\n", singleQuoted(seen), name, value, singleQuoted(usage))
		})
		if words := row.argumentWords(); words != "" {
			fmt.Fprintf(&text, "complete -c apilet -n %s -f -a %s\n", singleQuoted(seen), singleQuoted(words))
		}
	}
	return text.String()
}

// singleQuoted is a text that all three shells read as it is.
func singleQuoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// ---- The commands that look at files ----
