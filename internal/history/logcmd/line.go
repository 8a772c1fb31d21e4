package logcmd

// This file prints changes and findings:
//
//	2026-11-23T10:00:00.123Z  1234  patch   Deployment shop/web  night-saver  .spec.replicas 3 → 1 | status: .observedGeneration 2 → 3
//
// Paths that have been added are prefixed with a plus sign, and paths that have been removed with a
// minus sign. Changes of the status follow the bar.

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"apilet/internal/changes"
	"apilet/internal/findings"
	"apilet/internal/request"
)

const (
	shownChanges = 8  // maximum number of changes in a line
	shownRunes   = 80 // maximum length of a value
)

// A printer writes text with terminal control characters escaped, and optionally in color.
type printer struct {
	w      *bufio.Writer
	colors bool
}

// Colors, as SGR parameters.
const (
	dim, red, green, yellow, magenta, cyan = "2", "31", "32", "33", "35", "36"
)

func (p *printer) color(code, text string) string {
	if !p.colors || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// end flushes the output. A walk that found enough, an interrupt (^C) and a reader that closed the
// pipe are not errors.
func (p *printer) end(ctx context.Context, err error) error {
	if errors.Is(err, errEnough) || ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil
	}
	if failed := p.w.Flush(); err == nil {
		err = failed
	}
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) {
		return nil
	}
	return err
}

func (p *printer) change(c *change, format string) error {
	var err error
	switch format {
	case "json":
		err = p.json(c)
	case "yaml":
		err = p.yaml(c)
	case "diff":
		err = p.diff(c)
	default:
		_, err = p.w.WriteString(p.line(c) + "\n")
	}
	return err
}

func (p *printer) json(value any) error {
	line, ok := value.([]byte)
	if c, isChange := value.(*change); isChange && c.raw != nil {
		line, ok = c.raw, true
	}
	if !ok {
		var err error
		if line, err = json.Marshal(value); err != nil {
			return err
		}
	}
	_, err := p.w.WriteString(plain(string(line)) + "\n")
	return err
}

func (p *printer) yaml(value any) error {
	line, err := json.Marshal(value)
	if err != nil {
		return err
	}
	text, err := changes.Options{}.YAML(line)
	if err != nil {
		return err
	}
	_, err = p.w.WriteString("---\n" + plainLines(text))
	return err
}

// diff writes the line of the change, followed by the full diff.
func (p *printer) diff(c *change) error {
	rules := changes.Options{Secret: c.Group == "" && c.Resource == "secrets"}
	name := c.Kind + " " + nameOf(c.Namespace, c.Name)
	text, err := rules.Diff(c.Old, c.New, name, fmt.Sprintf("%s at %d", name, c.Revision))
	if err != nil {
		return err
	}
	c.Changes, c.More = nil, 0
	if _, err := p.w.WriteString(p.line(c) + "\n"); err != nil {
		return err
	}
	return p.diffText(text)
}

// diffText writes a unified diff, with colors.
func (p *printer) diffText(text string) error {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		code := ""
		switch {
		case strings.HasPrefix(line, "---"), strings.HasPrefix(line, "+++"):
			code = "1"
		case strings.HasPrefix(line, "@@"):
			code = cyan
		case strings.HasPrefix(line, "-"):
			code = red
		case strings.HasPrefix(line, "+"):
			code = green
		}
		if line = plainLines(line); code != "" {
			line = p.color(code, line)
		}
		if _, err := p.w.WriteString(line + "\n"); err != nil {
			return err
		}
	}
	return nil
}

// line formats a change as one line.
func (p *printer) line(c *change) string {
	verb, code := c.Verb, yellow
	switch c.Type {
	case "ADDED":
		code = green
	case "DELETED":
		code = red
	}
	if verb == "" {
		verb = map[string]string{"ADDED": "added", "MODIFIED": "changed", "DELETED": "deleted"}[c.Type]
	}
	at := c.Time
	if at == "" {
		at = "(time unknown)"
	}
	kind := c.Kind
	if kind == "" {
		kind = c.Resource
	}
	if c.Sub != "" {
		kind += "/" + c.Sub
	}
	return fmt.Sprintf("%s  %6d  %s  %s  %s  %s", p.color(dim, pad(plain(at), 24)), c.Revision, p.color(code, pad(plain(verb), 7)),
		plain(kind+" "+nameOf(c.Namespace, c.Name)), p.color(dim, c.client()), p.changes(c))
}

// pad pads text to width runes. The text must not contain color codes.
func pad(text string, width int) string {
	if n := utf8.RuneCountInString(text); n < width {
		return text + strings.Repeat(" ", width-n)
	}
	return text
}

// client returns the program and the user. If the server runs without authentication, all requests
// have the same user, so it is omitted.
func (c *change) client() string {
	w := findings.Client{User: c.User, Agent: c.Agent, Manager: c.Manager}
	switch {
	case w == findings.Client{}:
		return "(unknown)"
	case w.User == request.UserUnsecured && (w.Agent != "" || w.Manager != ""):
		w.User = ""
	}
	return plain(w.String())
}

// changes returns a description of all changes, with changes of the status at the end.
func (p *printer) changes(c *change) string {
	var parts, status []string
	switch c.Type {
	case "ADDED":
		parts = append(parts, "created")
	case "DELETED":
		parts = append(parts, "deleted")
	}
	more := c.More
	for i := range c.Changes {
		if i >= shownChanges {
			more += len(c.Changes) - i
			break
		}
		if rest, ok := strings.CutPrefix(c.Changes[i].Path, ".status"); ok && (rest == "" || strings.ContainsAny(rest[:1], ".[")) {
			status = append(status, p.one(rest, magenta, &c.Changes[i]))
		} else {
			parts = append(parts, p.one(c.Changes[i].Path, cyan, &c.Changes[i]))
		}
	}
	text := strings.Join(parts, ", ")
	if len(status) > 0 {
		if text != "" {
			text += " | "
		}
		text += "status: " + strings.Join(status, ", ")
	}
	if more > 0 {
		text += fmt.Sprintf(" … and %d more", more)
	}
	return text
}

// one formats a changed path with its old and new value.
func (p *printer) one(path, code string, c *changes.Change) string {
	mark, values := "", value(c.Old)+" → "+value(c.New)
	switch {
	case c.Old == nil && c.New == nil:
		values = "changed"
	case c.Old == nil:
		mark, values = "+", value(c.New)
	case c.New == nil:
		mark, values = "-", value(c.Old)
	case string(c.Old) == string(c.New): // the values are masked or were truncated
		values = value(c.New) + " changed"
	}
	return p.color(code, mark+plain(path)) + " " + values
}

// value formats a value, cut to shownRunes.
func value(raw json.RawMessage) string {
	var text bytes.Buffer
	if json.Compact(&text, raw) != nil {
		return "?"
	}
	runes := []rune(plain(text.String()))
	if len(runes) > shownRunes {
		return string(runes[:shownRunes]) + "…"
	}
	return string(runes)
}

func nameOf(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// plain replaces characters that are not printable by JSON escapes. Some of them are interpreted as
// commands by terminals, while others can reverse the direction of the text.
func plain(text string) string { return escaped(text, "") }

// plainLines is like plain, but keeps line breaks and tabs.
func plainLines(text string) string { return escaped(text, "\n\t") }

func escaped(text, kept string) string {
	odd := func(r rune) bool { return !unicode.IsPrint(r) && !strings.ContainsRune(kept, r) }
	if strings.IndexFunc(text, odd) < 0 && utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		switch {
		case !odd(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := (r-0x10000)>>10+0xd800, (r-0x10000)&0x3ff+0xdc00
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// finding prints a finding. Package findings defines the kinds.
func (p *printer) finding(f *findings.Finding, format string) error {
	switch format {
	case "json":
		return p.json(f)
	case "yaml":
		return p.yaml(f)
	}
	state, code := "now", red
	if f.Ended != nil {
		state, code = "over", dim
	}
	seconds := max(1, f.Last.Sub(f.Since).Seconds())
	text := fmt.Sprintf("%s  %s  %s\n      %d times since %s, %.1f a second", p.color(code, pad(state, 4)), p.color(yellow, pad(plain(f.Kind), 8)), plain(f.String()),
		f.Times, f.Since.Format("2006-01-02T15:04:05Z"), float64(f.Times)/seconds)
	if len(f.Revisions) > 0 {
		text += "; revisions " + strings.Trim(fmt.Sprint(f.Revisions), "[]")
	}
	_, err := p.w.WriteString(text + "\n")
	return err
}
