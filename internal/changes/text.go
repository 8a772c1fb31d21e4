package changes

// This file writes two versions of an object as a unified diff of YAML, like `kubectl diff`. It
// finds the differing lines by Myers' algorithm (An O(ND) Difference Algorithm and Its Variations,
// 1986) with a limit on D. If the limit is exceeded, everything between the common prefix and
// suffix is shown as removed and added.

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

const (
	contextLines = 3
	editsMax     = 500 // maximum D of Myers' algorithm, which needs memory proportional to its square
	// levels of indentation; deeper values are written as JSON on one line, because otherwise the
	// size of the indentation would be quadratic in the size of the document
	indentsMax  = 40
	keyBytesMax = 1000 // maximum size of a key before a colon; YAML's limit is 1,024
)

// YAML converts an object to YAML. It omits managedFields and masks secret values.
func (r Options) YAML(doc []byte) (string, error) {
	n, _, err := r.redacted(doc, nil, "managedFields")
	if err != nil {
		return "", err
	}
	return n.yaml(), nil
}

// Diff returns the unified diff of two versions of an object. Either may be empty. It returns "" if
// there is no visible difference. from and to are the names of the versions.
func (r Options) Diff(old, new []byte, from, to string) (string, error) {
	a, b, err := r.redacted(old, new, "managedFields", "resourceVersion", "generation")
	if err != nil {
		return "", err
	}
	return unified(splitLines(a.yaml()), splitLines(b.yaml()), from, to), nil
}

// ---- YAML

// yaml returns the node as YAML, or "" for nil. Strings are quoted if they could be parsed as
// another type. Control characters are always escaped.
func (n *node) yaml() string {
	if n == nil {
		return ""
	}
	var out strings.Builder
	n.write(&out, 0)
	return out.String()
}

// write writes an object or a list line by line.
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

// splits reports whether the node needs to be written on multiple lines.
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

// writeItem writes a list item after its dash. The following lines are indented by two more.
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

// writeValue writes a value on a single line unless it is a string with multiple lines, which is
// written as a block.
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

// isBlock reports whether a string has several lines and needs no escapes.
func isBlock(text string) bool {
	if !strings.Contains(text, "\n") || strings.HasSuffix(text, "\n\n") || strings.ContainsAny(text[:1], " \t\n") || strings.TrimSpace(text) == "" {
		return false
	}
	return strings.IndexFunc(text, func(r rune) bool {
		return r != '\n' && r != '\t' && !unicode.IsPrint(r) || r == unicode.ReplacementChar
	}) < 0
}

// scalar returns a string as a YAML scalar on one line. It is quoted if any YAML parser could read
// it as another type.
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

// ---- The difference between two texts

func splitLines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// An edit describes the lines of the old text to be replaced with lines of the new text.
type edit struct{ a, b, removed, added int }

// unified writes hunks with contextLines lines of context.
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

// lineRange returns the first line and the number of lines. If the range is empty, it returns the
// number of the previous line.
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

// difference returns the shortest list of edits that turns a into b. If that would take more than
// editsMax single-line edits, it returns one edit.
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

// numbered maps equal lines to equal numbers, which are faster to compare.
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

// A move is a single line that is either removed from a at position x or added from b at position
// y.
type move struct {
	x, y  int
	comes bool
}

// myers returns the moves from last to first. furthest[k] is the furthest x reached with d moves on
// diagonal k = x-y. Its state before each d is kept in past.
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
				return backtrack(past, len(a), len(b)), true
			}
		}
	}
	return nil, false
}

func backtrack(past [][]int32, x, y int) (moves []move) {
	for d := len(past) - 1; d > 0; d-- {
		before := func(k int) int { return int(past[d][k+d+1]) } // after d-1 moves
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

// joined merges adjacent moves into edits.
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
