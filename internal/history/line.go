package history

import (
	"encoding/json"
	"time"

	"github.com/tidwall/gjson"

	"apilet/internal/changes"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// A Line describes one change. Fields are omitted if their value is unknown or empty.
type Line struct {
	Revision int64  `json:"revision"`
	Time     string `json:"time,omitempty"` // RFC 3339, with milliseconds
	// one of create, update, patch, apply, delete and deletecollection
	Verb        string `json:"verb,omitempty"`
	Subresource string `json:"subresource,omitempty"`
	Type        string `json:"type"` // one of ADDED, MODIFIED and DELETED
	Group       string `json:"group"`
	Version     string `json:"version,omitempty"` // the version in which the object is stored
	Resource    string `json:"resource"`
	Kind        string `json:"kind,omitempty"`
	Namespace   string `json:"namespace,omitempty"`
	Name        string `json:"name"`
	UID         string `json:"uid,omitempty"`
	User        string `json:"user,omitempty"`
	Agent       string `json:"agent,omitempty"`
	Manager     string `json:"manager,omitempty"` // the field manager

	Changes []changes.Change `json:"changes,omitempty"`
	More    int              `json:"more,omitempty"` // number of changes that are not listed
	Old     json.RawMessage  `json:"old,omitempty"`
	New     json.RawMessage  `json:"new,omitempty"`
}

// line returns the Line for an event. If an object cannot be parsed, the Line lists no changes.
func (s *stream) line(ev *store.Event) *Line {
	base, namespace, name, _ := scheme.SplitKey(ev.Key)
	author := s.log.Store.Author(ev.Author)
	line := &Line{Revision: ev.Rev, Type: typeOf(ev), Namespace: namespace, Name: name, UID: gjson.GetBytes(ev.JSON, "metadata.uid").String(),
		Verb: author.Verb, Subresource: author.Subresource, User: author.User, Agent: author.Agent, Manager: managerOf(author)}
	line.Group, line.Resource = groupResource(base)
	if ev.Time != 0 {
		line.Time = formatTime(time.UnixMilli(ev.Time))
	}
	old, is := ev.Prev, ev.JSON
	if ev.Deleted {
		is = nil
	}
	if res := s.types[base]; res != nil {
		line.Kind = res.Kind
		old, _ = res.StoredDocument(old)
		_, line.Version = res.StoredDocument(ev.JSON)
		is, _ = res.StoredDocument(is)
	}
	rules := changes.Options{Secret: base == secrets}
	line.Changes, line.More, _ = rules.Compare(old, is)
	if s.objects {
		line.Old, line.New, _ = rules.Redact(old, is)
	}
	return line
}

// secrets is the key prefix of Secrets.
const secrets = "//secrets/"

func typeOf(ev *store.Event) string {
	switch {
	case ev.Deleted:
		return "DELETED"
	case ev.CreateRev == ev.Rev:
		return "ADDED"
	}
	return "MODIFIED"
}
