package apitest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
)

// Expect compares the printed forms of two values, so that the integer 5 equals the JSON number 5.
func Expect(t testing.TB, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Nearly reports whether got differs from want by at most the fraction margin of want.
func Nearly(got, want, margin float64) bool { return math.Abs(got-want) <= margin*math.Abs(want) }

// FirstDifference returns the lines around the first difference between two texts.
func FirstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range g {
		if i >= len(w) || g[i] != w[i] {
			from := max(0, i-6)
			return strings.Join(g[from:min(len(g), i+6)], "\n") + "\nwant:\n" + strings.Join(w[min(len(w), from):min(len(w), i+6)], "\n")
		}
	}
	return "fewer lines"
}

// Numbered formats the numbers 0 to n-1 and returns the concatenated results.
func Numbered(n int, format string) string {
	var out strings.Builder
	for i := range n {
		fmt.Fprintf(&out, format, i)
	}
	return out.String()
}

// AuditIDs returns the IDs of the events in an audit log. It fails the test if a line is
// incomplete.
func AuditIDs(t testing.TB, log []byte) map[string]bool {
	t.Helper()
	ids := map[string]bool{}
	for line := range bytes.Lines(log) {
		var ev struct{ AuditID string }
		if err := json.Unmarshal(line, &ev); err != nil {
			t.Fatalf("the line %q: %v", line, err)
		}
		ids[ev.AuditID] = true
	}
	return ids
}
