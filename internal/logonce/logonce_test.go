package logonce

import (
	"errors"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/store"
)

func TestTroublesAreToldOnce(t *testing.T) {
	t.Parallel()
	var log apitest.Log
	tr := New(zerolog.New(&log))
	for _, err := range []error{nil, store.ErrDiskFull, store.ErrDiskFull, store.ErrFileLost, nil, nil, store.ErrDiskFull} {
		tr.ReportWrite(err)
	}
	var got []string
	for line := range strings.Lines(log.String()) {
		got = append(got, gjson.Get(line, "level").String()+" "+gjson.Get(line, "what").String())
	}
	want := "error writing (full disk), info writing (full disk), error writing (lost data file), info writing (lost data file), error writing (full disk)"
	if strings.Join(got, ", ") != want {
		t.Errorf("got %q", got)
	}
}

// Names come and go: one that is over makes room for another.
func TestTroublesHaveABound(t *testing.T) {
	t.Parallel()
	var log apitest.Log
	tr := New(zerolog.New(&log))
	cause := errors.New("no")
	for i := range maxFailures {
		tr.Report(strings.Repeat("x", i), cause)
	}
	for range 3 { // there is no room for these failures, so they are logged once and together
		tr.Report("one more", cause)
		tr.Report("and one", cause)
	}
	tr.Report("one more", nil) // this failure was not stored
	tr.Report("x", nil)
	tr.Report("another", cause)
	tr.Report("another", errors.New("still no"))
	tr.Report("one more", cause)
	if lines := strings.Count(log.String(), "\n"); lines != maxFailures+4 || len(tr.now) != maxFailures {
		t.Errorf("%d lines, %d troubles", lines, len(tr.now))
	}
	var nobody *Log
	nobody.Report("x", cause) // a nil Log does nothing
}
