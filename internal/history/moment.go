package history

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"apilet/internal/store"
)

// A Moment is what somebody names to say when: a revision, or a time.
type Moment struct {
	Rev  int64     // 0: Time says it
	Time time.Time // to the millisecond
	text string    // as it was named
}

// ParseMoment reads 812 (a revision), 2026-11-23T05:00:00Z (RFC 3339, with a fraction or without) or -90s (so long before now).
func ParseMoment(text string, now time.Time) (Moment, error) {
	m := Moment{text: text}
	var err error
	switch {
	case text != "" && strings.Trim(text, "0123456789") == "":
		if m.Rev, err = strconv.ParseInt(text, 10, 64); err == nil && m.Rev > 0 {
			return m, nil
		}
	case strings.HasPrefix(text, "-"):
		if ago, err := time.ParseDuration(text); err == nil {
			m.Time = now.Add(ago)
			return m, nil
		}
	default:
		if m.Time, err = time.Parse(time.RFC3339, text); err == nil {
			return m, nil
		}
	}
	shown := text
	if len(shown) > 64 {
		shown = shown[:64] + "..."
	}
	return m, apierrors.NewBadRequest(fmt.Sprintf("%q is no moment: name a revision (812), a time (2026-11-23T05:00:00Z), or how long ago (-90s)", shown))
}

// PathThen is what stands before a path that is to be read as it was: /at/MOMENT/api/v1/pods.
const PathThen = "/at/"

// Then takes the moment off a request's URL; ok is false where there is none. The moment is what it says, whatever that is.
func Then(u *url.URL) (moment string, rest *url.URL, ok bool) {
	tail, ok := strings.CutPrefix(u.Path, PathThen)
	if !ok {
		return "", nil, false
	}
	stripped := *u
	if u.RawPath != "" { // the segments are cut before they are unescaped
		raw, path, _ := strings.Cut(strings.TrimPrefix(u.RawPath, PathThen), "/")
		moment, _ = url.PathUnescape(raw) // as u.Path was
		stripped.RawPath = "/" + path
		stripped.Path, _ = url.PathUnescape(stripped.RawPath)
		return moment, &stripped, strings.HasPrefix(u.RawPath, PathThen)
	}
	moment, path, _ := strings.Cut(tail, "/")
	stripped.Path = "/" + path
	return moment, &stripped, true
}

// Moments finds what was current at a moment.
type Moments struct {
	Store       *store.Store       // whose history it is
	Maintenance *store.Maintenance // knows when revisions were written
}

// At is the revision that was current at a moment, and the moment as a time, where that is known: of a revision it is when it was written. A
// Status 410 names the oldest that can be asked when it is compacted, a 400 says that it is in the future.
func (ms Moments) At(m Moment, now time.Time) (rev int64, then time.Time, err error) {
	if m.Rev > 0 {
		switch {
		case m.Rev > ms.Store.Revision():
			return 0, then, apierrors.NewBadRequest(fmt.Sprintf("revision %d is in the future", m.Rev))
		case m.Rev < ms.Store.Compacted():
			return 0, then, ms.compacted("revision " + m.text)
		}
		return m.Rev, ms.Store.TimeOf(m.Rev), nil
	}
	if m.Time.After(now.Add(time.Second)) { // of clocks that differ a little
		return 0, then, apierrors.NewBadRequest(m.text + " is in the future")
	}
	rev, err = ms.Maintenance.RevisionAt(m.Time)
	if errors.Is(err, store.ErrCompacted) {
		return 0, then, ms.compacted(m.text)
	}
	return rev, m.Time, err
}

// Named is the revision that was current at a moment, as it is named by who asks. Its errors are those of ParseMoment and At.
func (ms Moments) Named(text string) (rev int64, err error) {
	now := ms.Store.Now()
	m, err := ParseMoment(text, now)
	if err != nil {
		return 0, err
	}
	if rev, _, err = ms.At(m, now); err == nil && rev == 0 {
		err = apierrors.NewBadRequest("nothing was there yet at " + m.text)
	}
	return rev, err
}

// compacted is the 410 of what is too long ago.
func (ms Moments) compacted(what string) error {
	oldest, since := ms.Maintenance.Oldest()
	at := ""
	if !since.IsZero() {
		at = " of " + formatTime(since)
	}
	return apierrors.NewResourceExpired(fmt.Sprintf("%s is compacted: the oldest moment that can be asked is revision %d%s (--history says how far back that is)", what, oldest, at))
}

func formatTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }
