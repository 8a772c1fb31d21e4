package history

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"

	"apilet/internal/scheme"
	"apilet/internal/selector"
	"apilet/internal/store"
)

const (
	limitDefault = 500
	limitMax     = 5000 // also the maximum of tail
)

// A query contains the parsed parameters of a request.
type query struct {
	after, until int64           // The range of revisions, which is unlimited if until is zero.
	limit        int64           // maximum number of lines, or zero if unlimited
	tail         int64           // if positive, return the last tail lines instead of the first
	prefix       string          // key prefix of the requested resource; store.Everything for none or several
	bases        map[string]bool // key prefixes of the requested resources, or empty for all
	without      map[string]bool // key prefixes of the excluded resources
	namespace    string
	name         string
	labels       selector.Labels
	// field selectors by key prefix, or with the key store.Everything for all types
	fields  map[string][]*selector.Field
	by      string
	follow  bool
	objects bool
	sse     bool
}

// parseQuery parses the parameters. Invalid parameters result in a 400. A compacted start revision
// results in a 410.
func (l *Log) parseQuery(r *http.Request) (*query, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	q := &query{namespace: values.Get("namespace"), name: values.Get("name"), by: values.Get("by"), bases: map[string]bool{}, without: map[string]bool{}, prefix: store.Everything,
		sse: strings.Contains(r.Header.Get("Accept"), "text/event-stream")}
	for name, to := range map[string]*bool{"follow": &q.follow, "objects": &q.objects} {
		if text := values.Get(name); text != "" {
			if *to, err = strconv.ParseBool(text); err != nil {
				return nil, apierrors.NewBadRequest(name + " is neither true nor false")
			}
		}
	}
	if err := errors.Join(q.parseLimit(values), q.parseLabels(values.Get("labelSelector"))); err != nil {
		return nil, err
	}
	for _, name := range values["resource"] {
		if name != "" {
			q.prefix = l.baseOf(name)
			q.bases[q.prefix] = true
		}
	}
	for _, name := range values["without"] {
		q.without[l.baseOf(name)] = true
	}
	if len(q.bases) > 1 {
		q.prefix = store.Everything
	}
	if q.fields, err = l.parseFields(values.Get("fieldSelector"), q.bases); err != nil {
		return nil, err
	}
	resumed := r.Header.Get("Last-Event-ID")
	if resumed != "" { // a client that resumes a broken stream has received the tail already
		q.tail = 0
	}
	return q, l.parseSpan(q, values, resumed)
}

// parseSpan sets the range of revisions. If since is older than the history, the range starts with
// the oldest kept revision. A compacted after revision is an error.
func (l *Log) parseSpan(q *query, values url.Values, lastEvent string) error {
	now, moments := l.Store.Now(), Moments{l.Store, l.Maintenance}
	oldest := l.Store.Compacted()
	q.after = oldest
	if text := values.Get("since"); text != "" {
		m, err := ParseMoment(text, now)
		if err != nil {
			return err
		}
		if m.Rev > 0 {
			return apierrors.NewBadRequest("since must be a time: use after for a revision")
		}
		switch before, err := l.Maintenance.RevisionAt(m.Time.Add(-time.Millisecond)); {
		case err == nil:
			q.after = before
		case !errors.Is(err, store.ErrCompacted):
			return err
		}
	}
	after := values.Get("after")
	if lastEvent != "" {
		after, q.after = lastEvent, oldest
	}
	if after != "" {
		rev, err := strconv.ParseInt(after, 10, 64)
		if err != nil || rev < 0 {
			return apierrors.NewBadRequest("after is not a revision")
		}
		if newest := l.Store.Revision(); rev > newest {
			return apierrors.NewBadRequest("after is in the future: the newest revision is " + strconv.FormatInt(newest, 10))
		}
		if rev < oldest && rev > 0 {
			return moments.compacted(fmt.Sprintf("revision %d", rev))
		}
		q.after = max(q.after, rev)
	}
	if text := values.Get("until"); text != "" {
		m, err := ParseMoment(text, now)
		if err != nil {
			return err
		}
		if q.follow {
			return apierrors.NewBadRequest("until and follow are mutually exclusive")
		}
		if q.until, _, err = moments.RevisionAt(m, now); err != nil {
			return err
		}
	}
	return nil
}

func (q *query) parseLimit(values url.Values) (err error) {
	if q.limit = limitDefault; q.follow || values.Get("tail") != "" {
		q.limit = 0
	}
	if values.Get("limit") != "" && values.Get("tail") != "" {
		return apierrors.NewBadRequest("limit and tail are mutually exclusive")
	}
	for name, to := range map[string]*int64{"limit": &q.limit, "tail": &q.tail} {
		text := values.Get(name)
		if text == "" {
			continue
		}
		if *to, err = strconv.ParseInt(text, 10, 64); err != nil || *to < 1 || *to > limitMax {
			return apierrors.NewBadRequest(name + " must be between 1 and " + strconv.Itoa(limitMax))
		}
	}
	return nil
}

func (q *query) parseLabels(text string) error {
	if text == "" {
		return nil
	}
	parsed, err := selector.ParseLabels(text)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	requirements, _ := parsed.Requirements()
	q.labels = selector.NewLabels(requirements)
	return nil
}

// parseFields compiles the field selector for each requested resource. If no resources are
// specified, only fields that exist for all types can be used.
func (l *Log) parseFields(text string, bases map[string]bool) (map[string][]*selector.Field, error) {
	if text == "" {
		return nil, nil
	}
	if len(bases) == 0 {
		bases = map[string]bool{store.Everything: true}
	}
	all := map[string][]*selector.Field{}
	for base := range bases {
		list, err := l.CompileFields(base, text)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		all[base] = list
	}
	return all, nil
}

// CompileFields compiles a field selector for the type with key prefix base, using the type's
// selectable fields.
func (l *Log) CompileFields(base, text string) ([]*selector.Field, error) {
	parsed, err := fields.ParseSelector(text)
	if err != nil {
		return nil, err
	}
	return l.fieldsOf(base, parsed.Requirements())
}

// fieldsOf uses the first version of the type that has all the selected fields.
func (l *Log) fieldsOf(base string, terms fields.Requirements) (list []*selector.Field, err error) {
	known := false
	for _, res := range l.Types.All() {
		if res.Base != base || res.Virtual {
			continue
		}
		if list, err = selector.NewFields(res, terms); err == nil {
			return list, nil
		}
		known = true
	}
	if known {
		return nil, err
	}
	// the type is deleted, or not in Types
	unknown := &scheme.Resource{Namespaced: true, Custom: &scheme.CustomStrategy{Selectable: l.Selectable[base]}}
	list, err = selector.NewFields(unknown, terms)
	if err != nil && base == store.Everything {
		err = fmt.Errorf("%w: without a resource only metadata.name and metadata.namespace are supported", err)
	}
	return list, err
}

// baseOf returns the key prefix of PLURAL.GROUP. The name may belong to a resource that is no
// longer served, because its history is still available.
func (l *Log) baseOf(name string) string {
	plural, group, _ := strings.Cut(name, ".")
	for _, res := range l.Types.All() {
		if res.Plural == plural && res.Group == group && !res.Virtual {
			return res.Base
		}
	}
	return "/" + group + "/" + plural + "/"
}

// matchesEvent reports whether an event matches the query. It does not check the author of the
// event and the permissions of the user.
func (q *query) matchesEvent(ev *store.Event) bool {
	return q.matchesKey(ev.Key) && (q.matches(ev.Key, ev.JSON) || ev.Prev != nil && q.matches(ev.Key, ev.Prev))
}

// matchesKey reports whether the key of an event matches the query.
func (q *query) matchesKey(key string) bool {
	base, namespace, name, ok := scheme.SplitKey(key)
	if !ok || len(q.bases) > 0 && !q.bases[base] || q.without[base] || q.namespace != "" && namespace != q.namespace || q.name != "" && name != q.name {
		return false
	}
	for _, field := range q.fieldsFor(base) {
		if field.Key != nil && !field.Matches(key, nil) {
			return false
		}
	}
	return true
}

// matches reports whether the selectors match an object before or after a change.
func (q *query) matches(key string, json []byte) bool {
	if q.fields != nil {
		base, _, _, _ := scheme.SplitKey(key)
		for _, field := range q.fieldsFor(base) {
			if !field.Matches(key, json) {
				return false
			}
		}
	}
	return len(q.labels.ByKey) == 0 || q.labels.Match(gjson.GetBytes(json, "metadata.labels"))
}

func (q *query) fieldsFor(base string) []*selector.Field {
	if list := q.fields[base]; list != nil {
		return list
	}
	return q.fields[store.Everything]
}

// matchesAuthor reports whether the author of a change matches the by parameter.
func (q *query) matchesAuthor(a store.Author) bool {
	return q.by == "" || strings.Contains(a.User, q.by) || strings.Contains(a.Agent, q.by) || strings.Contains(managerOf(a), q.by)
}

// managerOf returns the name of the field manager. If it was not specified in the request, it
// defaults to the part of the user agent before the first slash.
func managerOf(a store.Author) string {
	if a.Manager != "" {
		return a.Manager
	}
	manager, _, _ := strings.Cut(a.Agent, "/")
	return manager
}
