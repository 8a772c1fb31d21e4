package logcmd

// This file defines the types for queries, for the sources that execute them (a server or a data
// file), and for the resulting changes and objects.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"apilet/internal/changes"
	"apilet/internal/findings"
)

// A query describes the wanted changes.
type query struct {
	kinds          []kind // nil means all
	namespace      string // "" means all
	name           string
	labels, fields string
	since, until   moment
	by             string
	limit          int
	tail           int // number of changes to return from the end, or zero for all
	follow         bool
	objects        bool // include the complete objects before and after each change
}

// A source provides changes and objects. It is a server or a file.
type source interface {
	kinds(ctx context.Context) ([]kind, error)
	namespace() string // the namespace to use if the user names none
	log(ctx context.Context, q *query, each func(*change) error) error
	list(ctx context.Context, at moment, k *kind, q *query, each func(object) error) error
	findings(ctx context.Context) ([]findings.Finding, error)
	close() error
}

// errEnough stops a walk that has found all requested changes.
var errEnough = errors.New("enough")

// A moment is a revision or a time, possibly relative to now. The zero moment is unset.
type moment struct {
	revision int64
	text     string // the time in the format used by the server, or empty for a revision
	time     time.Time
}

func (m moment) isZero() bool { return m == moment{} }

// name returns the moment as shown to users.
func (m moment) name() string {
	if m.text == "-0s" {
		return "now"
	}
	return m.String()
}

// String returns the moment in the server's syntax.
func (m moment) String() string {
	if m.text != "" {
		return m.text
	}
	return strconv.FormatInt(m.revision, 10)
}

var momentForms = regexp.MustCompile(`^[0-9]{1,19}$`)

// parseMoment parses a moment such as 1234, 5m, -5m, now or 2026-11-23T10:00:00Z.
func parseMoment(text string) (moment, error) {
	if text == "" {
		return moment{}, nil
	}
	if momentForms.MatchString(text) {
		rev, err := strconv.ParseInt(text, 10, 64)
		if err != nil || rev == 0 {
			return moment{}, fmt.Errorf("%q is not a revision", text)
		}
		return moment{revision: rev}, nil
	}
	if text == "now" {
		text = "0s"
	}
	if ago, err := time.ParseDuration(strings.TrimPrefix(text, "-")); err == nil && ago >= 0 {
		return moment{text: "-" + ago.String(), time: time.Now().Add(-ago)}, nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || at.Year() < 1970 || at.Year() > 9999 {
		return moment{}, fmt.Errorf("%q is not a revision, a time (2026-11-23T10:00:00Z) or a duration (5m)", text)
	}
	return moment{text: at.UTC().Format(time.RFC3339Nano), time: at}, nil
}

// A change is a line of /debug/history.
type change struct {
	Revision  int64            `json:"revision,omitempty"`
	Time      string           `json:"time,omitempty"`
	Verb      string           `json:"verb,omitempty"`
	Type      string           `json:"type,omitempty"` // one of ADDED, MODIFIED and DELETED
	Group     string           `json:"group"`
	Version   string           `json:"version,omitempty"`
	Resource  string           `json:"resource,omitempty"`
	Sub       string           `json:"subresource,omitempty"`
	Kind      string           `json:"kind,omitempty"`
	Namespace string           `json:"namespace,omitempty"`
	Name      string           `json:"name,omitempty"`
	UID       string           `json:"uid,omitempty"`
	User      string           `json:"user,omitempty"`
	Agent     string           `json:"agent,omitempty"`
	Manager   string           `json:"manager,omitempty"`
	Changes   []changes.Change `json:"changes,omitempty"`
	More      int              `json:"more,omitempty"` // number of changes that are omitted
	Old       json.RawMessage  `json:"old,omitempty"`
	New       json.RawMessage  `json:"new,omitempty"`

	raw []byte // the line as received
}

// An object is an item of a list.
type object struct {
	namespace, name, revision string
	json                      []byte
}
