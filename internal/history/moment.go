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

// A Moment identifies a point in time by a revision or by a time.
type Moment struct {
	Rev  int64     // if 0, Time applies
	Time time.Time // has millisecond precision
	text string    // as written by the client
}

// ParseMoment parses a revision (812), a time in RFC 3339, with or without a fraction
// (2026-11-23T05:00:00Z), or a duration before now (-90s).
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
	return m, apierrors.NewBadRequest(fmt.Sprintf("%q is not a moment: use a revision (812), a time (2026-11-23T05:00:00Z) or a relative time (-90s)", shown))
}

// PathAt is the prefix of paths for reading the past state of the API: /at/MOMENT/api/v1/pods.
const PathAt = "/at/"

// SplitMoment splits the moment off the URL of a request. ok is false if the path has no such
// prefix. The moment is not validated.
func SplitMoment(u *url.URL) (moment string, rest *url.URL, ok bool) {
	tail, ok := strings.CutPrefix(u.Path, PathAt)
	if !ok {
		return "", nil, false
	}
	stripped := *u
	if u.RawPath != "" { // split the escaped path, because the moment may contain an escaped slash
		raw, path, _ := strings.Cut(strings.TrimPrefix(u.RawPath, PathAt), "/")
		moment, _ = url.PathUnescape(raw) // u.Path was unescaped in the same way
		stripped.RawPath = "/" + path
		stripped.Path, _ = url.PathUnescape(stripped.RawPath)
		return moment, &stripped, strings.HasPrefix(u.RawPath, PathAt)
	}
	moment, path, _ := strings.Cut(tail, "/")
	stripped.Path = "/" + path
	return moment, &stripped, true
}

// Moments is used to find the revision that was current at a given moment.
type Moments struct {
	Store       *store.Store       // holds the history
	Maintenance *store.Maintenance // maps times to revisions
}

// RevisionAt returns the current revision at the given moment and the corresponding time. If the
// moment is a revision, the returned time is the time of its commit, or zero if unknown. RevisionAt
// returns a 410 that names the oldest available revision if the moment is compacted, and a 400 if
// it is in the future.
func (ms Moments) RevisionAt(m Moment, now time.Time) (rev int64, then time.Time, err error) {
	if m.Rev > 0 {
		switch {
		case m.Rev > ms.Store.Revision():
			return 0, then, apierrors.NewBadRequest(fmt.Sprintf("revision %d is in the future", m.Rev))
		case m.Rev < ms.Store.Compacted():
			return 0, then, ms.compacted("revision " + m.text)
		}
		return m.Rev, ms.Store.TimeOf(m.Rev), nil
	}
	if m.Time.After(now.Add(time.Second)) { // tolerates small differences between clocks
		return 0, then, apierrors.NewBadRequest(m.text + " is in the future")
	}
	rev, err = ms.Maintenance.RevisionAt(m.Time)
	if errors.Is(err, store.ErrCompacted) {
		return 0, then, ms.compacted(m.text)
	}
	return rev, m.Time, err
}

// Resolve parses the given moment and returns the revision that was current at that time. It
// returns the same errors as ParseMoment and RevisionAt.
func (ms Moments) Resolve(text string) (rev int64, err error) {
	now := ms.Store.Now()
	m, err := ParseMoment(text, now)
	if err != nil {
		return 0, err
	}
	if rev, _, err = ms.RevisionAt(m, now); err == nil && rev == 0 {
		err = apierrors.NewBadRequest("there is no history before " + m.text)
	}
	return rev, err
}

// compacted returns the error for moments that have been compacted.
func (ms Moments) compacted(what string) error {
	oldest, since := ms.Maintenance.Oldest()
	at := ""
	if !since.IsZero() {
		at = " of " + formatTime(since)
	}
	return apierrors.NewResourceExpired(fmt.Sprintf("%s is compacted: the oldest moment that can be asked is revision %d%s (--history says how far back that is)", what, oldest, at))
}

func formatTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }
