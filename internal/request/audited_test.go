package request

import (
	"net/http"
	"testing"
)

// Answers that are kept for audit events have a bound, each and together, and give back what they took.
func TestKeptAnswersHaveABound(t *testing.T) {
	t.Parallel()
	var room Room
	part := make([]byte, 1<<20)
	answers := make([]*Audited, 20)
	for i := range answers {
		answers[i] = &Audited{Level: "RequestResponse", Room: &room}
		for range 9 {
			answers[i].Keep(http.Header{}, part)
		}
		if used := room.used.Load(); used > roomFor {
			t.Fatalf("%d bytes are kept", used)
		}
	}
	kept := 0
	for _, a := range answers {
		if !a.TooLong {
			kept++
		}
		if a.TooLong != (a.Answer == nil) {
			t.Errorf("too long: %v, and %d bytes", a.TooLong, len(a.Answer))
		}
		a.GiveBack()
	}
	if used := room.used.Load(); used != 0 || kept != 7 {
		t.Errorf("%d answers are kept, and at the end %d bytes", kept, used)
	}
	long := &Audited{Room: &room}
	for range 11 {
		long.Keep(http.Header{}, part)
	}
	if !long.TooLong || room.used.Load() != 0 {
		t.Errorf("an answer of 11 MiB: %v, %d bytes", long.TooLong, room.used.Load())
	}
}
