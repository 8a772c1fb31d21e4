package request

import (
	"net/http"
	"testing"
)

// Answers that are kept for audit events have a bound, each and together, and give back what they took.
func TestKeptAnswersHaveABound(t *testing.T) {
	t.Parallel()
	var room ByteLimit
	part := make([]byte, 1<<20)
	answers := make([]*AuditData, 20)
	for i := range answers {
		answers[i] = &AuditData{Level: "RequestResponse", Limit: &room}
		for range 9 {
			answers[i].RecordResponse(http.Header{}, part)
		}
		if used := room.used.Load(); used > maxRecordedTotal {
			t.Fatalf("%d bytes are kept", used)
		}
	}
	kept := 0
	for _, a := range answers {
		if !a.TooLong {
			kept++
		}
		if a.TooLong != (a.ResponseBody == nil) {
			t.Errorf("too long: %v, and %d bytes", a.TooLong, len(a.ResponseBody))
		}
		a.ReleaseResponse()
	}
	if used := room.used.Load(); used != 0 || kept != 7 {
		t.Errorf("%d answers are kept, and at the end %d bytes", kept, used)
	}
	long := &AuditData{Limit: &room}
	for range 11 {
		long.RecordResponse(http.Header{}, part)
	}
	if !long.TooLong || room.used.Load() != 0 {
		t.Errorf("an answer of 11 MiB: %v, %d bytes", long.TooLong, room.used.Load())
	}
}
