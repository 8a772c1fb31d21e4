// Package commandline implements a command line from a table of commands. Each command has its
// flags in groups. The parser, the help and the shell completion are derived from the table.
//
//	apilet [FLAGS]             runs the command without a name, which serves
//	apilet COMMAND [FLAGS] ... runs one command and exits
//	apilet help [COMMAND]      prints the commands and then the flags; COMMAND --help prints only the flags of that command
//
// A flag belongs to the command that defines it. Therefore `apilet check --listen :80` is an error.
// It is also an error to use a flag of the command backup without this command. An error is printed
// in one line that names the help to read, and the exit code is 2. The package adds the commands
// help, completion and version.
//
//	p := commandline.Program{Name: "apilet", Description: "...", Commands: func() []commandline.Command { ... }, Version: version}
//	os.Exit(p.Run(os.Args[1:], os.Stdout, os.Stderr))
package commandline

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// A Program is a table of commands.
type Program struct {
	Name        string // name of the program in the help
	Description string // a sentence for the beginning of the help
	// Commands returns the table. It is called for each use, because flags write into variables
	// that the Run functions read. The first command has no name.
	Commands func() []Command
	Version  func(io.Writer) error // prints the output of the command version
}

// A Command is a row of the table.
type Command struct {
	Name        string           // "" for the command that runs if no command is given
	Args        string           // description of the arguments for the help
	ArgCounts   []int            // the allowed numbers of arguments
	Description string           // a short description
	words       []string         // possible arguments for completion; if nil, the argument is a file
	Groups      []FlagGroup      // the flags
	Run         func(Call) error // runs the command; an error ends the program with exit code 1
}

// A FlagGroup is a group of flags with a title.
type FlagGroup struct {
	Title  string              // the title in the help
	Define func(*flag.FlagSet) // adds the flags to a set
}

// A Call contains the arguments and the output of a command.
type Call struct {
	Args        []string  // the arguments after the flags
	Out, Errors io.Writer // standard output and standard error
}

// commands returns the program's commands, followed by completion, version and help.
func (p *Program) commands() []*Command {
	own := []Command{
		{Name: "completion", Args: strings.Join(shells, "|"), ArgCounts: []int{1}, Description: "print a completion script for a shell", words: shells,
			Run: func(c Call) error { return p.printCompletion(c.Out, c.Args[0]) }},
		{Name: "version", ArgCounts: []int{0}, Description: "print the version, commit and data file format of " + p.Name + ", and the version of Kubernetes", Run: func(c Call) error { return p.Version(c.Out) }},
		{Name: "help", Args: "[COMMAND]", ArgCounts: []int{0, 1}, Description: "print this text, or the help of a command", Run: p.printHelp},
	}
	var rows []*Command
	for _, row := range append(p.Commands(), own...) {
		rows = append(rows, &row)
	}
	return rows
}

func (p *Program) find(name string) *Command {
	rows := p.commands()
	i := slices.IndexFunc(rows, func(row *Command) bool { return row.Name == name })
	if i < 0 {
		return nil
	}
	return rows[i]
}

// ---- From arguments to a command ----

// Run runs the command that args name. It returns the exit code: 0 for success, 1 for an error and
// 2 for an invalid command line.
func (p *Program) Run(args []string, stdout, stderr io.Writer) int {
	name := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	}
	row := p.find(name)
	if row == nil {
		fmt.Fprintf(stderr, "%s: unknown command %q: `%s help` lists the commands\n", p.Name, name, p.Name)
		return 2
	}
	flags := p.flagSet(row)
	showVersion := false
	if flags.Lookup("version") == nil { // unless the command defines its own flag with this name
		flags.BoolVar(&showVersion, "version", false, "")
	}
	plain, asked := parse(flags, args)
	c := Call{plain, stdout, stderr}
	var err error
	switch {
	case errors.Is(asked, flag.ErrHelp):
		err = p.help(row, stdout)
	case asked != nil:
		fmt.Fprintf(stderr, "%s: %s: %s\n", p.Name, plainFlagError(flags, asked), p.helpHint(row))
		return 2
	case showVersion:
		err = p.Version(c.Out)
	case !slices.Contains(row.ArgCounts, len(c.Args)):
		fmt.Fprintf(stderr, "%s: %s\n", p.Name, p.wrongCount(row, c.Args))
		return 2
	default:
		err = row.Run(c)
	}
	if err != nil {
		fmt.Fprintln(stderr, p.Name+":", err)
		return 1
	}
	return 0
}

// parse accepts flags and arguments in any order. After "--" there are only arguments. A negative
// number is also an argument, because no flag begins with a digit.
func parse(flags *flag.FlagSet, args []string) (plain []string, err error) {
	for len(args) > 0 {
		arg := args[0]
		if arg == "--" {
			return append(plain, args[1:]...), nil
		}
		if len(arg) < 2 || arg[0] != '-' || '0' <= arg[1] && arg[1] <= '9' {
			plain, args = append(plain, arg), args[1:]
			continue
		}
		n := 1
		if f := flags.Lookup(strings.TrimLeft(arg, "-")); f != nil && len(args) > 1 && takesValue(f) {
			n = 2
		}
		if err := flags.Parse(args[:n]); err != nil {
			return nil, err
		}
		args = args[n:]
	}
	return plain, nil
}

func takesValue(f *flag.Flag) bool {
	isSwitch, _ := f.Value.(interface{ IsBoolFlag() bool })
	return isSwitch == nil || !isSwitch.IsBoolFlag()
}

// flagSet returns the flags of one command.
func (p *Program) flagSet(row *Command) *flag.FlagSet {
	f := flag.NewFlagSet(p.title(row), flag.ContinueOnError)
	f.SetOutput(io.Discard)
	for _, group := range row.Groups {
		group.Define(f)
	}
	return f
}

// plainFlagError rewrites an error of package flag. It writes flags with two dashes and adds an
// explanation of the expected value.
func plainFlagError(flags *flag.FlagSet, err error) string {
	text := strings.Replace(err.Error(), "flag provided but not defined: -", "unknown flag: --", 1)
	if before, found := strings.CutSuffix(text, ": parse error"); found {
		text = before + ": " + parseError(flags.Lookup(before[strings.LastIndex(before, " -")+len(" -"):]))
	}
	return strings.NewReplacer("for flag -", "for flag --", "an argument: -", "an argument: --", " for -", " for --").Replace(text)
}

// parseError returns the reason why the value of a flag is invalid.
func parseError(f *flag.Flag) string {
	if f == nil {
		return "parse error"
	}
	value, ok := f.Value.(flag.Getter)
	if !ok {
		return "parse error"
	}
	switch value.Get().(type) {
	case time.Duration:
		return "must be a duration with a unit, such as 90s, 5m or 2h"
	case int, int64:
		return "must be an integer"
	}
	return "parse error"
}

func (p *Program) title(row *Command) string { return strings.TrimSpace(p.Name + " " + row.Name) }

func (p *Program) helpHint(row *Command) string {
	return "see `" + p.title(row) + " --help`"
}

func (p *Program) wrongCount(row *Command, args []string) string {
	if most := row.ArgCounts[len(row.ArgCounts)-1]; len(args) > most {
		return fmt.Sprintf("unexpected argument %q: %s", args[most], p.helpHint(row))
	}
	return "usage: " + p.usage(row)
}

func (p *Program) usage(row *Command) string {
	text := p.title(row)
	if len(row.Groups) > 0 {
		text += " [FLAGS]"
	}
	return strings.TrimSpace(text + " " + row.Args)
}

// ---- Help ----

func (p *Program) printHelp(c Call) error {
	name := ""
	if len(c.Args) > 0 {
		name = c.Args[0]
	}
	row := p.find(name)
	if row == nil {
		return fmt.Errorf("unknown command %q: `%s help` lists the commands", name, p.Name)
	}
	return p.help(row, c.Out)
}

// help prints the description of a command and its flags. If the command does not have a name, it
// first prints a list of all commands.
func (p *Program) help(row *Command, out io.Writer) error {
	var text strings.Builder
	if row.Name == "" {
		fmt.Fprintf(&text, "%s\n\nUsage:\n  %s [FLAGS]\n  %s COMMAND [FLAGS]\n\nCommands:\n", p.Description, p.Name, p.Name)
		for _, row := range p.commands() {
			fmt.Fprintf(&text, "  %-17s %s\n", helpName(row.Name), row.Description)
		}
		fmt.Fprintf(&text, "\n`%s COMMAND --help` lists a command's flags, `%s --version` prints the versions.", p.Name, p.Name)
		if len(row.Groups) > 0 {
			text.WriteString(" The following flags are for running the server.")
		}
		text.WriteString("\n")
	} else {
		fmt.Fprintf(&text, "%s: %s.\n\nUsage:\n  %s\n", p.title(row), row.Description, p.usage(row))
	}
	for _, group := range row.Groups {
		fmt.Fprintf(&text, "\n%s:\n", group.Title)
		f := flag.NewFlagSet("", flag.ContinueOnError)
		group.Define(f)
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
	line := "  " + dashed(f.Name)
	switch {
	case strings.Contains(value, "|"): // the possible values
		line += " " + value
	case value != "":
		line += " " + strings.ToUpper(value)
	}
	switch f.DefValue {
	case "", "0", "0s", "false":
	default:
		usage += " (default " + f.DefValue + ")"
	}
	return line + "\n        " + usage + "\n"
}

// dashed returns the usual spelling of a flag, -x or --name. The parser accepts both for any flag.
func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// ---- Completion ----

var shells = []string{"bash", "zsh", "fish"}

// printCompletion prints the completion script for a shell. The scripts complete commands, the
// flags of the current command, and files.
func (p *Program) printCompletion(out io.Writer, shell string) error {
	scripts := map[string]func() string{"bash": p.bashCompletion, "zsh": p.zshCompletion, "fish": p.fishCompletion}
	script := scripts[shell]
	if script == nil {
		return fmt.Errorf("no completion for %q: the shells are %s", shell, strings.Join(shells, ", "))
	}
	_, err := io.WriteString(out, script())
	return err
}

// eachFlag calls visit for each flag of a command. --version and --help come last.
func (p *Program) eachFlag(row *Command, visit func(name, usage string, takesValue bool)) {
	p.flagSet(row).VisitAll(func(f *flag.Flag) {
		_, usage := flag.UnquoteUsage(f)
		visit(f.Name, usage, takesValue(f))
	})
	visit("version", "print the versions", false)
	visit("help", "print the flags", false)
}

func (p *Program) flagWords(row *Command) string {
	var words []string
	p.eachFlag(row, func(name, _ string, _ bool) { words = append(words, dashed(name)) })
	return strings.Join(words, " ")
}

func (p *Program) names() []string {
	var names []string
	for _, row := range p.commands()[1:] {
		names = append(names, row.Name)
	}
	return names
}

// argumentWords returns the possible arguments of a command, or "" if the argument is a file.
func (p *Program) argumentWords(row *Command) string {
	if row.Name == "help" {
		return strings.Join(p.names(), " ")
	}
	return strings.Join(row.words, " ")
}

func (p *Program) bashCompletion() string {
	var cases strings.Builder
	for _, row := range p.commands()[1:] {
		fmt.Fprintf(&cases, "    %s) flags=%q words=%q ;;\n", row.Name, p.flagWords(row), p.argumentWords(row))
	}
	return fmt.Sprintf("# completion of %[1]s for bash: source <(%[1]s completion bash)\n_%[1]s() {\n", p.Name) + `  local cur=${COMP_WORDS[COMP_CWORD]} flags words=""
  case ${COMP_WORDS[1]} in
` + cases.String() + fmt.Sprintf("    *) flags=%q ;;\n", p.flagWords(p.find(""))) + `  esac
  if [[ $COMP_CWORD == 1 ]]; then words="` + strings.Join(p.names(), " ") + `"; fi
  if [[ $cur == -* ]]; then words=$flags; fi
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
` + fmt.Sprintf("complete -o default -F _%[1]s %[1]s\n", p.Name)
}

func (p *Program) zshCompletion() string {
	var text strings.Builder
	fmt.Fprintf(&text, "#compdef %[1]s\n# completion of %[1]s for zsh: source <(%[1]s completion zsh), or a file _%[1]s in $fpath\n_%[1]s() {\n", p.Name)
	text.WriteString("  local -a line commands flags choices\n  line=(\"${(@)words}\") # before anything else hides it\n  commands=(\n")
	for _, row := range p.commands()[1:] {
		fmt.Fprintf(&text, "    %s\n", singleQuoted(row.Name+":"+strings.ReplaceAll(row.Description, ":", `\:`)))
	}
	text.WriteString("  )\n  case $line[2] in\n")
	for _, row := range append(slices.Clone(p.commands()[1:]), p.find("")) {
		pattern := row.Name
		if pattern == "" {
			pattern = "*"
		}
		fmt.Fprintf(&text, "    %s)\n      flags=(\n", pattern)
		p.eachFlag(row, func(name, usage string, _ bool) {
			fmt.Fprintf(&text, "        %s\n", singleQuoted(dashed(name)+":"+strings.ReplaceAll(usage, ":", `\:`)))
		})
		fmt.Fprintf(&text, "      )\n      choices=(%s) ;;\n", p.argumentWords(row))
	}
	text.WriteString(`  esac
  if [[ $PREFIX == -* ]]; then _describe flag flags
  elif (( CURRENT == 2 )); then _describe command commands
  elif (( $#choices )); then compadd -- $choices
  else _files
  fi
}
`)
	fmt.Fprintf(&text, "if [[ $funcstack[1] == _%[1]s ]]; then _%[1]s \"$@\"; else compdef _%[1]s %[1]s; fi\n", p.Name)
	return text.String()
}

func (p *Program) fishCompletion() string {
	var text strings.Builder
	fmt.Fprintf(&text, "# completion of %[1]s for fish: %[1]s completion fish | source\n", p.Name)
	for _, row := range p.commands() {
		seen := "__fish_seen_subcommand_from " + row.Name
		if row.Name == "" {
			seen = "not __fish_seen_subcommand_from " + strings.Join(p.names(), " ")
		} else {
			fmt.Fprintf(&text, "complete -c %s -n __fish_use_subcommand -f -a %s -d %s\n", p.Name, row.Name, singleQuoted(row.Description))
		}
		p.eachFlag(row, func(name, usage string, takesValue bool) {
			kind, value := "-l", ""
			if len(name) == 1 {
				kind = "-s"
			}
			if takesValue {
				value = " -r"
			}
			fmt.Fprintf(&text, "complete -c %s -n %s %s %s%s -d %s\n", p.Name, singleQuoted(seen), kind, name, value, singleQuoted(usage))
		})
		if words := p.argumentWords(row); words != "" {
			fmt.Fprintf(&text, "complete -c %s -n %s -f -a %s\n", p.Name, singleQuoted(seen), singleQuoted(words))
		}
	}
	return text.String()
}

// singleQuoted quotes a text for all three shells.
func singleQuoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
