package audit

import (
	"bytes"
	"encoding/json"
	"testing"
)

// auditIDs returns the ids of the events in a log, each of whose lines must be whole.
func auditIDs(t *testing.T, log []byte) map[string]bool {
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
