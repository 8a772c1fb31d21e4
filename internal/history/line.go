package history

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"apilet/internal/changes"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// A Line is what is told of one change. What is not known, or is none, is left out.
type Line struct {
	Revision    int64  `json:"revision"`
	Time        string `json:"time,omitempty"` // RFC 3339, with milliseconds
	Verb        string `json:"verb,omitempty"` // create update patch apply delete deletecollection
	Subresource string `json:"subresource,omitempty"`
	Type        string `json:"type"` // ADDED MODIFIED DELETED
	Group       string `json:"group"`
	Version     string `json:"version,omitempty"` // in which it is stored
	Resource    string `json:"resource"`
	Kind        string `json:"kind,omitempty"`
	Namespace   string `json:"namespace,omitempty"`
	Name        string `json:"name"`
	UID         string `json:"uid,omitempty"`
	User        string `json:"user,omitempty"`
	Agent       string `json:"agent,omitempty"`
	Manager     string `json:"manager,omitempty"` // of fields

	Changes []changes.Change `json:"changes,omitempty"`
	More    int              `json:"more,omitempty"` // changes that are not told
	Old     json.RawMessage  `json:"old,omitempty"`
	New     json.RawMessage  `json:"new,omitempty"`
}

// line tells an event. What cannot be read has no changes.
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
	rules := changes.Rules{Secret: base == secrets}
	line.Changes, line.More, _ = rules.Between(old, is)
	if s.objects {
		line.Old, line.New, _ = rules.Redacted(old, is)
	}
	return line
}

// secrets is what the keys of Secrets begin with.
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

// managerOf is the field manager: what the request named, or the first word of its user agent.
func managerOf(a store.Author) string {
	if a.Manager != "" {
		return a.Manager
	}
	manager, _, _ := strings.Cut(a.Agent, "/")
	return manager
}

// wanted tells whether a change is by whom it is asked for.
func (q *query) wanted(a store.Author) bool {
	return q.by == "" || strings.Contains(a.User, q.by) || strings.Contains(a.Agent, q.by) || strings.Contains(managerOf(a), q.by)
}

// groupResource takes /GROUP/RESOURCE/ apart.
func groupResource(base string) (group, resource string) {
	group, resource, _ = strings.Cut(strings.Trim(base[1:], "/"), "/")
	if strings.HasPrefix(base, "//") {
		return "", group
	}
	return group, resource
}

// typesByBase are the types in whose version objects are stored.
func (l *Log) typesByBase() map[string]*scheme.Resource {
	types := map[string]*scheme.Resource{}
	for _, res := range l.Types.All() {
		stored := res.Conversion == nil && (res.Custom == nil || res.GoType != nil || res.Version == res.Custom.StorageVersion)
		if !res.Virtual && (stored || types[res.Base] == nil) {
			types[res.Base] = res
		}
	}
	return types
}
