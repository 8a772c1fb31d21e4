package troubles

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
		tr.TellWriting(err)
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
	for i := range troublesMax {
		tr.Tell(strings.Repeat("x", i), cause)
	}
	for range 3 { // for which there is no room: told once, all together
		tr.Tell("one more", cause)
		tr.Tell("and one", cause)
	}
	tr.Tell("one more", nil) // which nobody knows of
	tr.Tell("x", nil)
	tr.Tell("another", cause)
	tr.Tell("another", errors.New("still no"))
	tr.Tell("one more", cause)
	if lines := strings.Count(log.String(), "\n"); lines != troublesMax+4 || len(tr.now) != troublesMax {
		t.Errorf("%d lines, %d troubles", lines, len(tr.now))
	}
	var nobody *Log
	nobody.Tell("x", cause) // who has no log tells nobody
}
