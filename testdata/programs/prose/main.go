// Prose refuses ten constructions that make comments and documents hard to read (docs/style.md) in
// lines that differ from the merge base with main. Text in quotes or backquotes is not checked.
//
//	go run ./testdata/programs/prose          # the base is origin/main or main
//	go run ./testdata/programs/prose HEAD~3   # another base
package main

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// constructions are the patterns to refuse, each with advice.
var constructions = []struct{ pattern, advice string }{
	{`(?i)\bwhat\b[^.?!]*([.!]|$)`, "name the thing instead of a clause with what"},
	{`(?i)\b(whoever|whomever|nobody)\b`, "name the actor"},
	{`(^Who|[.:] [Ww]ho|\b(of|for|by|to|from|and|or|but|tells?|says?|knows?) who)\b[^?]*$`, "name the actor"},
	{`(?i)\b(tells?|told|says?|said) whether\b`, "a function reports whether"},
	{`(?i)\b(one that|those (that|who|which))\b`, "repeat the noun"},
	{`(?i)\b(is|are|was|were|be|been|being) (told|asked)\b`, "programs send, receive and request"},
	{`(?i)\b(there (is|are|was|were)|is|are) none\b`, "write: does not exist, or: has no"},
	{`(^|[.!?] )Of `, "begin with the subject"},
	{`\bnil: `, "write: nil means"},
	{`(?i)\b(at once|go(es|ing)? on|in force|but for|at the most|(leave|leaves|left) out)\b`, "write: immediately, continue, in effect, except for, at most, omit"},
}

func main() {
	findings := check(".", os.Args[1:])
	for _, finding := range findings {
		fmt.Println(finding)
	}
	os.Exit(min(len(findings), 1))
}

// check returns the constructions in the changed lines of the repository in dir. It returns nothing
// if dir is no repository or has no base.
func check(dir string, base []string) (findings []string) {
	git := func(args ...string) string {
		out, _ := exec.Command("git", append([]string{"-C", dir}, args...)...).Output()
		return strings.TrimSpace(string(out))
	}
	if len(base) == 0 {
		base = []string{git("merge-base", "HEAD", "origin/main"), git("merge-base", "HEAD", "main")}
	}
	commit := cmp.Or(append(base, "")...)
	if commit == "" {
		return nil
	}
	changed := changedLines(git("diff", "-U0", "--no-color", "--no-ext-diff", "--relative", commit, "--", "*.go", "*.md"))
	for name := range strings.Lines(git("ls-files", "--others", "--exclude-standard", "--", "*.go", "*.md")) {
		changed[strings.TrimSpace(name)] = nil // the whole file
	}
	for name, lines := range changed { // nil means all lines
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			findings = append(findings, err.Error())
		}
		for _, p := range paragraphs(name, string(text)) {
			findings = append(findings, p.search(name, lines)...)
		}
	}
	slices.Sort(findings)
	return findings
}

// changedLines returns the new lines of each file in a diff without context.
func changedLines(diff string) map[string]map[int]bool {
	changed, name := map[string]map[int]bool{}, ""
	for _, line := range strings.Split(diff, "\n") {
		if file, ok := strings.CutPrefix(line, "+++ b/"); ok {
			name = file
			changed[name] = map[int]bool{}
		}
		if found := hunk.FindStringSubmatch(line); found != nil && name != "" {
			first, _ := strconv.Atoi(found[1])
			n, _ := strconv.Atoi(cmp.Or(found[2], "1"))
			for i := range n {
				changed[name][first+i] = true
			}
		}
	}
	return changed
}

// A paragraph is prose that begins on line first of a file.
type paragraph struct {
	first int
	lines []string
}

var (
	hunk     = regexp.MustCompile(`^@@ -\S+ \+(\d+)(?:,(\d+))? @@`)
	quoted   = regexp.MustCompile("`[^`]*`|\"[^\"]*\"")
	trailing = regexp.MustCompile(`\s// .*$`)
	named    = regexp.MustCompile(`^[a-z]\w* `)           // a doc comment begins with the name
	opens    = regexp.MustCompile(`^(#|\||[-*] |\d+\. )`) // a heading, a row or an item
)

// paragraphs returns the prose of a Markdown file or the comments of a Go file.
func paragraphs(name, text string) (all []paragraph) {
	fenced, joins := false, false
	for i, line := range strings.Split(text, "\n") {
		prose, whole := line, true
		if filepath.Ext(name) == ".go" {
			if prose, whole = strings.CutPrefix(strings.TrimLeft(line, "\t"), "//"); !whole {
				_, prose, _ = strings.Cut(trailing.FindString(line), "//")
			}
			if strings.HasPrefix(prose, "\t") { // an example
				prose = ""
			}
		} else if fence := strings.HasPrefix(line, "```"); fence || fenced {
			fenced, prose = fenced != fence, ""
		}
		prose = strings.TrimSpace(prose)
		if !joins && whole && filepath.Ext(name) == ".go" {
			prose = named.ReplaceAllString(prose, "")
		}
		if joins && whole && prose != "" && !opens.MatchString(prose) {
			all[len(all)-1].lines = append(all[len(all)-1].lines, prose)
		} else if prose != "" {
			all = append(all, paragraph{i + 1, []string{prose}})
		}
		joins = whole && prose != ""
	}
	return all
}

// search returns the constructions that begin on one of the lines. nil means all lines.
func (p paragraph) search(name string, lines map[int]bool) (findings []string) {
	text := quoted.ReplaceAllStringFunc(strings.Join(p.lines, " "), func(s string) string { return strings.Repeat("x", len(s)) })
	for _, c := range constructions {
		for _, at := range regexp.MustCompile(c.pattern).FindAllStringIndex(text, -1) {
			line, rest := p.first, at[0]
			for rest > len(p.lines[line-p.first]) {
				line, rest = line+1, rest-len(p.lines[line-p.first])-1
			}
			if found := text[at[0]:min(at[1], at[0]+30)]; lines == nil || lines[line] {
				findings = append(findings, fmt.Sprintf("%s:%d: %q: %s (docs/style.md)", name, line, found, c.advice))
			}
		}
	}
	return findings
}
