package changes

// This file writes two versions of an object as a unified diff of YAML, as `kubectl diff` shows it. The lines' difference is found by Myers'
// algorithm (An O(ND) Difference Algorithm and Its Variations, 1986) with a bound on D: beyond it what lies between the equal lines at both
// ends is shown as removed and added as a whole.

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

const (
	contextLines = 3
	editsMax     = 500  // D of Myers; its memory is the square of that
	indentsMax   = 40   // levels of YAML; what lies deeper is JSON on one line, or else the indents would be the square of the document
	keyBytesMax  = 1000 // of a key that stands before its colon; YAML ends at 1,024
)

// YAML is an object as YAML, without managedFields and what is masked.
func (r Rules) YAML(doc []byte) (string, error) {
	n, _, err := r.redacted(doc, nil, "managedFields")
	if err != nil {
		return "", err
	}
	return n.yaml(), nil
}

// Diff is the unified diff of two versions of an object, either of which may be empty; "" when nothing is told that changed. from and to name
// the versions.
func (r Rules) Diff(old, new []byte, from, to string) (string, error) {
	a, b, err := r.redacted(old, new, "managedFields", "resourceVersion", "generation")
	if err != nil {
		return "", err
	}
	return unified(splitLines(a.yaml()), splitLines(b.yaml()), from, to), nil
}

// ---- YAML

// yaml is "" of no node. Strings that are not plainly strings stand in quotes, with what a terminal might obey escaped.
func (n *node) yaml() string {
	if n == nil {
		return ""
	}
	var out strings.Builder
	n.write(&out, 0)
	return out.String()
}

// write writes an object or list, line by line.
func (n *node) write(out *strings.Builder, level int) {
	for i, item := range n.items {
		if n.kind == '{' {
			indent(out, level)
			key := scalar(n.keys[i])
			if len(key) > keyBytesMax {
				out.WriteString("? " + key + "\n")
				indent(out, level)
				key = ""
			}
			out.WriteString(key + ":")
			item.writeMember(out, level)
		} else {
			item.writeItem(out, level)
		}
	}
	if len(n.items) == 0 && level == 0 {
		out.WriteString("{}\n")
	}
}

// splits says that a node takes lines of its own.
func (n *node) splits(level int) bool { return len(n.items) > 0 && level < indentsMax }

func (n *node) writeMember(out *strings.Builder, level int) {
	switch {
	case n.splits(level) && n.kind == '[':
		out.WriteString("\n")
		n.write(out, level)
	case n.splits(level):
		out.WriteString("\n")
		n.write(out, level+1)
	default:
		out.WriteString(" ")
		n.writeValue(out, level+1)
	}
}

// writeItem writes an item of a list behind its dash; the lines that follow stand two further in.
func (n *node) writeItem(out *strings.Builder, level int) {
	indent(out, level)
	out.WriteString("- ")
	if !n.splits(level) {
		n.writeValue(out, level+1)
		return
	}
	var lines strings.Builder
	n.write(&lines, level+1)
	out.WriteString(strings.TrimLeft(lines.String(), " "))
}

func indent(out *strings.Builder, level int) {
	for range level {
		out.WriteString("  ")
	}
}

// writeValue writes what takes one line, or a text of several as a block.
func (n *node) writeValue(out *strings.Builder, level int) {
	if n.kind != '"' && n.kind != '*' {
		out.Write(n.append(nil))
		out.WriteString("\n")
		return
	}
	if !isBlock(n.text) {
		out.WriteString(scalar(n.text) + "\n")
		return
	}
	text, ends := strings.CutSuffix(n.text, "\n")
	out.WriteString("|")
	if !ends {
		out.WriteString("-")
	}
	out.WriteString("\n")
	for line := range strings.SplitSeq(text, "\n") {
		if line != "" {
			indent(out, level)
		}
		out.WriteString(line + "\n")
	}
}

// isBlock says that a text is of several lines that need no escapes.
func isBlock(text string) bool {
	if !strings.Contains(text, "\n") || strings.HasSuffix(text, "\n\n") || strings.ContainsAny(text[:1], " \t\n") || strings.TrimSpace(text) == "" {
		return false
	}
	return strings.IndexFunc(text, func(r rune) bool {
		return r != '\n' && r != '\t' && !unicode.IsPrint(r) || r == unicode.ReplacementChar
	}) < 0
}

// scalar is a string of one line: plain only where no reader of YAML takes it for anything else.
func scalar(text string) string {
	odd := func(r rune) bool {
		return r < 128 && !isPlainByte(byte(r), " _-./:@+,=") || r >= 128 && !unicode.IsLetter(r)
	}
	first := strings.IndexByte("0123456789+-.:@,= ", (text + " ")[0]) < 0
	switch strings.ToLower(text) {
	case "true", "false", "yes", "no", "on", "off", "y", "n", "null":
		first = false
	}
	if !first || strings.IndexFunc(text, odd) >= 0 || strings.Contains(text, ": ") || strings.HasSuffix(text, ":") || strings.HasSuffix(text, " ") {
		return strconv.Quote(text)
	}
	return text
}

// ---- The difference of two texts

func splitLines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// An edit takes lines of one text to those of another: the equal ones before it, then what goes and what comes.
type edit struct{ a, b, removed, added int }

// unified writes hunks with three lines around each.
func unified(a, b []string, from, to string) string {
	edits := difference(a, b)
	if len(edits) == 0 {
		return ""
	}
	var out strings.Builder
	fmt.Fprintf(&out, "--- %s\n+++ %s\n", from, to)
	for first := 0; first < len(edits); {
		last := first
		for last+1 < len(edits) && edits[last+1].a-(edits[last].a+edits[last].removed) <= 2*contextLines {
			last++
		}
		writeHunk(&out, a, b, edits[first:last+1])
		first = last + 1
	}
	return out.String()
}

func writeHunk(out *strings.Builder, a, b []string, edits []edit) {
	first, last := edits[0], edits[len(edits)-1]
	before := min(contextLines, first.a)
	endA := min(len(a), last.a+last.removed+contextLines)
	endB := last.b + last.added + endA - (last.a + last.removed)
	fmt.Fprintf(out, "@@ -%s +%s @@\n", lineRange(first.a-before, endA), lineRange(first.b-before, endB))
	at := first.a - before
	for _, e := range edits {
		writeLines(out, " ", a[at:e.a])
		writeLines(out, "-", a[e.a:e.a+e.removed])
		writeLines(out, "+", b[e.b:e.b+e.added])
		at = e.a + e.removed
	}
	writeLines(out, " ", a[at:endA])
}

// lineRange is first line and number of lines; of no line it names the one before.
func lineRange(begin, end int) string {
	lines := end - begin
	if lines > 0 {
		begin++
	}
	return fmt.Sprintf("%d,%d", begin, lines)
}

func writeLines(out *strings.Builder, mark string, lines []string) {
	for _, line := range lines {
		out.WriteString(mark + line + "\n")
	}
}

// difference is the shortest list of edits that makes b of a, if that is not too long.
func difference(a, b []string) []edit {
	begin, endA, endB := 0, len(a), len(b)
	for begin < endA && begin < endB && a[begin] == b[begin] {
		begin++
	}
	for endA > begin && endB > begin && a[endA-1] == b[endB-1] {
		endA, endB = endA-1, endB-1
	}
	if begin == endA && begin == endB {
		return nil
	}
	if begin == endA || begin == endB {
		return []edit{{begin, begin, endA - begin, endB - begin}}
	}
	steps, found := myers(numbered(a[begin:endA], b[begin:endB]))
	if !found {
		return []edit{{begin, begin, endA - begin, endB - begin}}
	}
	return joined(steps, begin)
}

// numbered gives equal lines equal numbers: they are compared often.
func numbered(a, b []string) (x, y []int) {
	numbers := map[string]int{}
	number := func(lines []string) []int {
		list := make([]int, len(lines))
		for i, line := range lines {
			n, known := numbers[line]
			if !known {
				n = len(numbers)
				numbers[line] = n
			}
			list[i] = n
		}
		return list
	}
	return number(a), number(b)
}

// A move is one line that goes (of a, at x) or comes (of b, at y).
type move struct {
	x, y  int
	comes bool
}

// myers finds the moves from the end to the beginning: furthest[k] is how far a way with d moves gets on the diagonal k = x-y, and its past
// is kept for each d.
func myers(a, b []int) (moves []move, found bool) {
	var past [][]int32
	furthest := make([]int32, 2*editsMax+3)
	at := func(k int) int { return k + editsMax + 1 }
	for d := 0; d <= editsMax; d++ {
		past = append(past, append([]int32(nil), furthest[at(-d)-1:at(d)+2]...))
		for k := -d; k <= d; k += 2 {
			x := int(furthest[at(k-1)]) + 1
			if k == -d || k != d && furthest[at(k-1)] < furthest[at(k+1)] {
				x = int(furthest[at(k+1)])
			}
			if d == 0 {
				x = 0
			}
			y := x - k
			for x < len(a) && y < len(b) && a[x] == b[y] {
				x, y = x+1, y+1
			}
			furthest[at(k)] = int32(x)
			if x >= len(a) && y >= len(b) {
				return wayBack(past, len(a), len(b)), true
			}
		}
	}
	return nil, false
}

func wayBack(past [][]int32, x, y int) (moves []move) {
	for d := len(past) - 1; d > 0; d-- {
		before := func(k int) int { return int(past[d][k+d+1]) } // with d-1 moves
		k := x - y
		comes := k == -d || k != d && before(k-1) < before(k+1)
		if comes {
			k++
		} else {
			k--
		}
		x = before(k)
		y = x - k
		moves = append(moves, move{x, y, comes})
	}
	return moves
}

// joined makes edits of moves that touch each other.
func joined(moves []move, begin int) (edits []edit) {
	for i := len(moves) - 1; i >= 0; i-- {
		m := moves[i]
		x, y := begin+m.x, begin+m.y
		if n := len(edits); n == 0 || edits[n-1].a+edits[n-1].removed != x || edits[n-1].b+edits[n-1].added != y {
			edits = append(edits, edit{a: x, b: y})
		}
		if m.comes {
			edits[len(edits)-1].added++
		} else {
			edits[len(edits)-1].removed++
		}
	}
	return edits
}
