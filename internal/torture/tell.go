package torture

import (
	"encoding/json"
	"fmt"
	"io"
	"sort"
	"strings"
	"time"
	"unicode/utf8"

	"apilet/internal/history"
)

// row formats the verdict for the table.
func (v *Verdict) row() string {
	text := fmt.Sprintf("%-9s %5.1fs  %s", v.Verdict, v.Seconds, v.What)
	for _, why := range v.Why[:min(2, len(v.Why))] {
		text += "\n                   " + oneLine(why, 130)
	}
	if more := len(v.Why) - 2; more > 0 {
		text += fmt.Sprintf("\n                   and %d more", more)
	}
	return text
}

// summary returns the last line of the output.
func (r *Report) summary() string {
	count := map[string]int{}
	for _, v := range r.Verdicts {
		count[v.Verdict]++
	}
	text := fmt.Sprintf("%d plans: %d ok, %d slower, %d wrong", len(r.Verdicts), count[OK], count[Slower], count[Wrong])
	if n := count[Depends]; n > 0 {
		text += fmt.Sprintf(", %d depend on the workload", n)
	}
	if n := count[Unreached]; n > 0 {
		text += fmt.Sprintf(", %d did not get to their point", n)
	}
	if n := r.Planned - len(r.Verdicts); n > 0 {
		text += fmt.Sprintf("; %d more were not run", n)
	}
	return text
}

// A progress periodically prints the number of finished plans and the remaining time.
type progress struct {
	out               io.Writer
	of                int // number of plans
	began, lastReport time.Time
	end               time.Time // no new plan is started after this, if not zero
	done, wrong       int
}

const progressEvery = 15 * time.Second

// note records a finished plan. It is called after each plan.
func (p *progress) note(v Verdict, now time.Time) {
	if p.done++; v.Verdict == Wrong {
		p.wrong++
	}
	if p.done == p.of || now.Sub(p.lastReport) < progressEvery {
		return
	}
	p.lastReport = now
	left := time.Duration(float64(now.Sub(p.began)) / float64(p.done) * float64(p.of-p.done))
	if !p.end.IsZero() && now.Add(left).After(p.end) {
		left = max(0, p.end.Sub(now))
	}
	fmt.Fprintf(p.out, "%d of %d plans, %d wrong, about %v left\n", p.done, p.of, p.wrong, left.Round(time.Second))
}

// ---- The report of a wrong plan

const (
	columnWidth = 72
	said        = 15 // maximum number of lines of the controller's output
)

// A story is the report of a wrong plan for developers. It contains a description of the fault, the
// list of errors, the end of the controller's output, and the timelines of this run and of a plain
// run side by side.
type story struct {
	title   string
	depends bool // depends on the workload
	why     []string
	pairs   [][2]entry
	said    string
	notes   []string // notes at the end
}

func tell(l *learned, v *Verdict, o *outcome) *story {
	return &story{title: v.What, depends: v.Verdict == Depends, why: v.Why, pairs: align(timeline(l.plain[0]), timeline(o)), said: lastLines(o.said, said)}
}

func (s *story) heading() string {
	if s.depends {
		return "What is different, which depends on the workload"
	}
	return "What is wrong"
}

// markdown returns the story for a terminal, an editor or a CI log.
func (s *story) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s:\n\n", s.title, s.heading())
	for _, why := range s.why {
		fmt.Fprintf(&b, "- %s\n", oneLine(why, 400))
	}
	fmt.Fprintf(&b, "\nWhat happened (seconds, who, what; an arrow marks the point):\n\n%s\n\n", sideBySide("normally", "here"))
	for _, pair := range s.pairs {
		b.WriteString(sideBySide(pair[0].String(), pair[1].String()) + "\n")
	}
	if s.said != "" {
		fmt.Fprintf(&b, "\nThe last that the controller said:\n\n%s\n", s.said)
	}
	for i, note := range s.notes {
		if i == 0 {
			b.WriteString("\n")
		}
		b.WriteString(note + "\n")
	}
	return b.String()
}

// An entry is a single line in a timeline. Entries are compared without their times.
type entry struct{ time, what string }

func (e entry) String() string {
	if e.what == "" {
		return ""
	}
	return e.time + " " + e.what
}

func timeline(o *outcome) []entry {
	type moment struct {
		at   time.Time
		what string
	}
	var all []moment
	for i := range o.lines {
		line := &o.lines[i]
		at, _ := time.Parse(time.RFC3339, line.Time)
		if counts(o.ignored, line.Group, line.Resource) {
			all = append(all, moment{at, whoWrote(line) + " " + line.Verb + " " + aliasOf(line) + changed(line)})
		}
	}
	for n, p := range refusedWrites(o) {
		if n < refusedMost || p.at.Before(o.pointAt) {
			all = append(all, moment{p.at, fmt.Sprintf("controller %s: %d", p.what, p.code)})
		}
	}
	if !o.pointAt.IsZero() {
		all = append(all, moment{o.pointAt, pointHere})
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].at.Before(all[j].at) })
	entries := make([]entry, len(all))
	for i, m := range all {
		entries[i] = entry{clock(o, m.at), m.what}
	}
	return entries
}

const refusedMost = 40 // maximum number of failed writes, for a controller that retries forever

// refusedWrites returns the controller's failed writes.
func refusedWrites(o *outcome) (all []passed) {
	for _, p := range o.requests {
		if p.writes && (p.code == 0 || p.code >= 300) {
			all = append(all, p)
		}
	}
	return all
}

func clock(o *outcome, at time.Time) string { return fmt.Sprintf("%6.2f", at.Sub(o.began).Seconds()) }

// changed summarizes the changes of a write.
func changed(line *history.Line) string {
	text := ""
	for _, c := range line.Changes[:min(2, len(line.Changes))] {
		text += fmt.Sprintf(" %s=%s", c.Path, oneLine(string(c.New), 24))
	}
	return timePattern.ReplaceAllString(uidPattern.ReplaceAllString(text, "(uid)"), "(time)")
}

// align returns two timelines side by side. Entries that are equal are placed on the same line
// without changing the order. It computes a longest common subsequence.
func align(a, b []entry) (pairs [][2]entry) {
	const most = 400 // maximum number of entries, since the size of the table is quadratic
	a, b = a[:min(len(a), most)], b[:min(len(b), most)]
	best := make([][]int, len(a)+1)
	for i := range best {
		best[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if best[i][j] = max(best[i+1][j], best[i][j+1]); a[i].what == b[j].what {
				best[i][j] = best[i+1][j+1] + 1
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i].what == b[j].what:
			pairs = append(pairs, [2]entry{a[i], b[j]})
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && best[i+1][j] >= best[i][j+1]:
			pairs = append(pairs, [2]entry{a[i], {}})
			i++
		default:
			pairs = append(pairs, [2]entry{{}, b[j]})
			j++
		}
	}
	return pairs
}

func sideBySide(left, right string) string {
	left = oneLineKept(left)
	return strings.TrimRight("    "+left+strings.Repeat(" ", max(0, columnWidth-utf8.RuneCountInString(left)))+" | "+oneLineKept(right), " ")
}

// oneLineKept truncates a line to the width of a column. It does not remove leading spaces.
func oneLineKept(text string) string {
	if runes := []rune(text); len(runes) > columnWidth {
		return string(runes[:columnWidth-3]) + "..."
	}
	return text
}

// lastLines returns the last n lines of the given text.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.TrimSpace(strings.Join(lines[max(0, len(lines)-n):], "\n"))
}

// ---- Output for programs

// writeJSON writes the report as JSON.
func (r *Report) writeJSON(w io.Writer) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(r)
}

// writeJUnit writes the report in JUnit's format for CI systems, with each plan as a test. It does
// not use encoding/xml, which would add 0.2 MB to the program.
func (r *Report) writeJUnit(w io.Writer) error {
	var cases strings.Builder
	skipped := 0
	for _, v := range r.Verdicts {
		fmt.Fprintf(&cases, "  <testcase name=\"%s\" classname=\"%s\" time=\"%.2f\">", xmlText(v.What), xmlText("torture."+v.Plan.Kind), v.Seconds)
		switch v.Verdict {
		case Wrong:
			fmt.Fprintf(&cases, "\n    <failure message=\"%s\">%s</failure>\n  ", xmlText(oneLine(strings.Join(v.Why, "; "), 300)), xmlText(v.story.markdown()))
		case Depends:
			skipped++
			fmt.Fprintf(&cases, "<skipped message=\"%s\"></skipped>", xmlText(oneLine("depends on the workload: "+strings.Join(v.Why, "; "), 300)))
		case Unreached:
			skipped++
			cases.WriteString("<skipped></skipped>")
		}
		cases.WriteString("</testcase>\n")
	}
	_, err := fmt.Fprintf(w, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"apilet torture\" tests=\"%d\" failures=\"%d\" skipped=\"%d\">\n%s</testsuite>\n",
		len(r.Verdicts), r.Wrong(), skipped, cases.String())
	return err
}

// xmlText escapes a text for XML 1.0, for use in attributes and between tags. Characters that XML
// does not allow become U+FFFD.
func xmlText(text string) string {
	var b strings.Builder
	for _, c := range text {
		switch {
		case c == '&', c == '<', c == '>', c == '"', c == '\'', c == '\n', c == '\r', c == '\t':
			fmt.Fprintf(&b, "&#%d;", c)
		case c < ' ', c == 0xFFFE, c == 0xFFFF:
			b.WriteRune(utf8.RuneError)
		default:
			b.WriteRune(c)
		}
	}
	return b.String()
}
