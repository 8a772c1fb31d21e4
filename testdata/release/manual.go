package main

// This file generates the man pages from the program's help, and calls the program for the
// completions. The help is generated from the program's table of commands, so that neither can
// contain flags that do not exist.

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// manual contains the documentation files of the program.
type manual struct {
	pages       []file // apilet.1, apilet-backup.1, ...
	completions []file // apilet.bash, _apilet, apilet.fish
}

// A helpText is the parsed output of `apilet help`.
type helpText struct {
	about    string // description
	usage    []string
	commands [][2]string // name and description
	notes    []string    // paragraphs in between
	groups   []flagGroup
}

// A flagGroup contains flags with a title.
type flagGroup struct {
	title string
	flags [][2]string // flag and description
}

// writeManual generates the manual from the program's output.
func (r *release) writeManual(ctx context.Context) error {
	native, err := r.native(ctx)
	if err != nil {
		return err
	}
	ask := func(args ...string) (string, error) { return output(exec.CommandContext(ctx, native.path, args...)) }
	text, err := ask("help")
	if err != nil {
		return err
	}
	r.manual = &manual{}
	top := parseHelp(text)
	r.manual.pages = append(r.manual.pages, r.page("apilet", top))
	for _, c := range top.commands {
		if c[0] == "(none)" {
			continue
		}
		if text, err = ask("help", c[0]); err != nil {
			return err
		}
		r.manual.pages = append(r.manual.pages, r.page("apilet-"+c[0], parseHelp(text)))
	}
	for shell, name := range map[string]string{"bash": "apilet.bash", "zsh": "_apilet", "fish": "apilet.fish"} {
		if text, err = ask("completion", shell); err != nil {
			return err
		}
		r.manual.completions = append(r.manual.completions, file{name: name, mode: 0o644, content: []byte(text + "\n")})
	}
	sortFiles(r.manual.completions)
	return nil
}

// parseHelp parses a help text. The text is divided into paragraphs. Some of them have a title that
// ends with a colon.
func parseHelp(text string) (h helpText) {
	paragraphs := strings.Split(text, "\n\n")
	h.about = paragraphs[0]
	for _, p := range paragraphs[1:] {
		title, body, found := strings.Cut(p, ":\n")
		switch {
		case !found || strings.Contains(title, "\n"):
			h.notes = append(h.notes, p)
		case title == "Usage":
			h.usage = strings.Split(body, "\n")
		case title == "Commands":
			for line := range strings.Lines(body) {
				name, what, _ := strings.Cut(strings.TrimSpace(line), " ")
				h.commands = append(h.commands, [2]string{name, strings.TrimSpace(what)})
			}
		default:
			h.groups = append(h.groups, flagGroup{title, parseFlags(body)})
		}
	}
	return h
}

// parseFlags parses the flags and the indented descriptions.
func parseFlags(body string) (flags [][2]string) {
	for line := range strings.Lines(body) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "  -") {
			flags = append(flags, [2]string{strings.TrimSpace(line)})
		} else if last := len(flags) - 1; last >= 0 {
			flags[last][1] = strings.TrimSpace(flags[last][1] + " " + strings.TrimSpace(line))
		}
	}
	return flags
}

// page formats a help text as a man page.
func (r *release) page(name string, h helpText) file {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line(`.\" made of what the program's help says`)
	line(`.TH %s 1 "%s" "apilet %s" "User Commands"`, roff(strings.ToUpper(name)), r.date.Format(time.DateOnly), roff(r.version))
	about := strings.TrimSuffix(h.about, ".")
	if _, what, found := strings.Cut(about, ": "); found {
		about = what
	} else {
		about = strings.TrimPrefix(about, "Apilet is ")
	}
	line(".SH NAME\n%s \\- %s", roff(name), roff(about))
	line(".SH SYNOPSIS")
	for i, usage := range h.usage {
		if i > 0 {
			line(".br")
		}
		words := strings.Fields(usage)
		line(`\fB%s\fR %s`, roff(words[0]), roff(strings.Join(words[1:], " ")))
	}
	if len(h.notes) > 0 {
		line(".SH DESCRIPTION")
		for _, note := range h.notes {
			line(".PP\n%s", roff(note))
		}
	}
	if len(h.commands) > 0 {
		line(".SH COMMANDS")
		for _, c := range h.commands {
			line(".TP\n\\fB%s\\fR\n%s", roff(c[0]), roff(c[1]))
		}
	}
	for i, group := range h.groups {
		if i == 0 {
			line(".SH OPTIONS")
		}
		line(".SS %s", roff(group.title))
		for _, flag := range group.flags {
			word, value, _ := strings.Cut(flag[0], " ")
			line(".TP\n\\fB%s\\fR \\fI%s\\fR\n%s", roff(word), roff(value), roff(flag[1]))
		}
	}
	line(".SH SEE ALSO\n%s", seeAlso(name, h))
	return file{name: name + ".1", mode: 0o644, content: []byte(b.String())}
}

func seeAlso(name string, h helpText) string {
	if name != "apilet" {
		return ".BR apilet (1)"
	}
	var pages []string
	for _, c := range h.commands {
		if c[0] != "(none)" {
			pages = append(pages, ".BR "+roff("apilet-"+c[0])+" (1)")
		}
	}
	return strings.Join(pages, ",\n")
}

// roff escapes a text for troff.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "`", `\(ga`, "\n", " ").Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}
