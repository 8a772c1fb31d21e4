package apitest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
)

// Expect compares two values as they are printed, so that 5 is what a JSON number of 5 is.
func Expect(t testing.TB, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Nearly says whether got is within a share of want.
func Nearly(got, want, margin float64) bool { return math.Abs(got-want) <= margin*math.Abs(want) }

// FirstDifference is the neighbourhood of the first line in which two texts differ.
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

// Numbered is format, which has one verb, written for 0 up to n-1.
func Numbered(n int, format string) string {
	var out strings.Builder
	for i := range n {
		fmt.Fprintf(&out, format, i)
	}
	return out.String()
}

// AuditIDs returns the ids of the events in an audit log, each of whose lines must be whole.
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
