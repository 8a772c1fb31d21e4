package logcmd

// This file reads a data file that no server has open: its log of changes as a server's /debug/history tells it, and the objects of a moment.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"apilet/internal/findings"
	"apilet/internal/history/changes"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const eventsAtOnce = 256

// A file is a source.
type file struct {
	st   *store.Store
	all  []kind
	base map[string]*kind // by the beginning of their keys: /group/plural/
}

func openFile(path string) (*file, error) {
	if _, err := os.Stat(path); err != nil { // store.Open would make it
		return nil, err
	}
	st, err := store.Open(path, store.Options{})
	if err != nil {
		return nil, err
	}
	f := &file{st: st}
	if err := f.readKinds(); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return f, nil
}

func (f *file) close() error                          { return f.st.Close() }
func (f *file) namespace() string                     { return "" }
func (f *file) kinds(context.Context) ([]kind, error) { return f.all, nil }

func (f *file) findings(context.Context) ([]findings.Finding, error) {
	return nil, errors.New("--findings are what a running server has noticed: a file has none")
}

// readKinds knows the built-in types, and those whose definitions are stored.
func (f *file) readKinds() error {
	for _, res := range scheme.NewRegistry().All() {
		if !res.Virtual && res.AsStored() == res {
			f.all = append(f.all, kind{group: res.Group, version: res.Version, plural: res.Plural, singular: res.Singular, kind: res.Kind, short: res.ShortNames,
				namespaced: res.Namespaced, lists: true})
		}
	}
	err := f.each(store.Span{Prefix: "/" + apiextensions.GroupName + "/customresourcedefinitions/"}, func(r *store.Record) error {
		spec := gjson.GetBytes(r.JSON, "spec")
		names := spec.Get("names")
		k := kind{group: spec.Get("group").String(), plural: names.Get("plural").String(), singular: names.Get("singular").String(), kind: names.Get("kind").String(),
			version: spec.Get("versions.#(storage==true).name").String(), namespaced: spec.Get("scope").String() == "Namespaced", lists: true}
		for _, name := range names.Get("shortNames").Array() {
			k.short = append(k.short, name.String())
		}
		f.all = append(f.all, k)
		return nil
	})
	f.base = map[string]*kind{}
	for i := range f.all {
		f.base[f.all[i].base()] = &f.all[i]
	}
	return err
}

func (k *kind) base() string { return "/" + k.group + "/" + k.plural + "/" }

// each visits live objects, at a revision.
func (f *file) each(span store.Span, visit func(*store.Record) error) error {
	c := &store.Chunk{}
	for {
		if err := f.st.Chunk(span, c); err != nil {
			return f.explain(err, span.Rev)
		}
		for i := range c.Records {
			if err := visit(&c.Records[i]); err != nil {
				return err
			}
		}
		if c.Next == "" {
			return nil
		}
		span.Rev, span.Start = c.Rev, c.Next
	}
}

func (f *file) explain(err error, rev int64) error {
	if errors.Is(err, store.ErrCompacted) {
		return fmt.Errorf("revision %d is compacted: the oldest that is kept is %d", rev, f.st.Compacted())
	}
	if rev > f.st.Revision() {
		return fmt.Errorf("there is no revision %d yet: the newest is %d", rev, f.st.Revision())
	}
	return err
}

// ---- Objects at a moment

func (f *file) list(ctx context.Context, at moment, k *kind, q *query, each func(object) error) error {
	wanted, err := newFilter(q)
	if err != nil {
		return err
	}
	rev, err := f.revisionOf(ctx, at)
	if err != nil {
		return err
	}
	prefix := k.base()
	if k.namespaced && q.namespace != "" {
		prefix += q.namespace + "/"
	}
	return f.each(store.Span{Prefix: prefix, Rev: rev}, func(r *store.Record) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		_, namespace, name, _ := scheme.SplitKey(r.Key)
		if !wanted.matches(namespace, name, r.JSON) {
			return nil
		}
		return each(object{namespace, name, strconv.FormatInt(r.Rev, 10), r.JSON})
	})
}

// revisionOf is the newest revision that was there at a moment.
func (f *file) revisionOf(ctx context.Context, at moment) (int64, error) {
	if at.text == "" {
		if at.revision > f.st.Revision() {
			return 0, f.explain(nil, at.revision)
		}
		return at.revision, nil
	}
	limit, rev := at.time.UnixMilli(), f.st.Compacted()
	err := f.events(ctx, rev, func(e *store.Event) error {
		if e.Time > limit {
			return errEnough
		}
		rev = e.Rev
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return 0, err
	}
	return max(rev, 1), nil
}

func (f *file) events(ctx context.Context, after int64, visit func(*store.Event) error) error {
	var events []store.Event
	for {
		var err error
		last := after
		if events, after, err = f.st.Events(store.Everything, after, eventsAtOnce, events[:0]); err != nil {
			return f.explain(err, last)
		}
		for i := range events {
			if err := visit(&events[i]); err != nil {
				return err
			}
		}
		if err := ctx.Err(); err != nil || after == last || after >= f.st.Revision() {
			return err
		}
	}
}

// ---- Changes

func (f *file) log(ctx context.Context, q *query, each func(*change) error) error {
	if q.follow {
		return errors.New("--follow needs a server: a file that none has open does not change")
	}
	wanted, err := newFilter(q)
	if err != nil {
		return err
	}
	from, err := f.begin(ctx, q.since)
	if err != nil {
		return err
	}
	return f.events(ctx, from, func(e *store.Event) error {
		if !q.until.isZero() && (q.until.text == "" && e.Rev > q.until.revision || q.until.text != "" && e.Time > q.until.time.UnixMilli()) {
			return errEnough
		}
		base, namespace, name, ok := scheme.SplitKey(e.Key)
		if !ok || !wanted.asksFor(base, namespace) || !wanted.matches(namespace, name, e.JSON) && !(e.Prev != nil && wanted.matches(namespace, name, e.Prev)) {
			return nil
		}
		c := f.change(e, base, namespace, name, q.objects)
		if q.by != "" && q.by != c.User && q.by != c.Manager && q.by != programOf(c.Agent) {
			return nil
		}
		return each(c)
	})
}

// begin is the revision after which changes are wanted.
func (f *file) begin(ctx context.Context, since moment) (int64, error) {
	switch {
	case since.isZero():
		return f.st.Compacted(), nil
	case since.text == "" && since.revision < f.st.Compacted():
		return 0, f.explain(store.ErrCompacted, since.revision)
	}
	rev, err := f.revisionOf(ctx, since)
	return max(rev, f.st.Compacted()), err
}

func programOf(agent string) string {
	program, _, _ := strings.Cut(agent, "/")
	return program
}

// change is what a server would tell of an event.
func (f *file) change(e *store.Event, base, namespace, name string, objects bool) *change {
	author := f.st.Author(e.Author)
	parts := strings.Split(base, "/")
	c := &change{Revision: e.Rev, Verb: author.Verb, Type: "MODIFIED", Group: parts[1], Resource: parts[2], Sub: author.Subresource, Namespace: namespace, Name: name,
		UID: gjson.GetBytes(e.JSON, "metadata.uid").String(), User: author.User, Agent: author.Agent}
	if k := f.base[base]; k != nil {
		c.Kind, c.Version = k.kind, k.version
	}
	if e.Time != 0 {
		c.Time = time.UnixMilli(e.Time).UTC().Format("2006-01-02T15:04:05.000Z07:00")
	}
	was, is := e.Prev, e.JSON
	switch {
	case e.Deleted:
		c.Type, is = "DELETED", nil
	case e.Prev == nil:
		c.Type = "ADDED"
	}
	rules := changes.Rules{Secret: c.Group == "" && c.Resource == "secrets"}
	c.Changes, c.More, _ = rules.Between(was, is) // of what cannot be read nothing is told
	if objects {
		c.Old, c.New, _ = rules.Redacted(was, is)
	}
	return c
}

// A filter is what selectors and names ask for.
type filter struct {
	q      *query
	bases  []string
	labels labels.Selector
	fields fields.Selector
}

func newFilter(q *query) (f *filter, err error) {
	f = &filter{q: q}
	for i := range q.kinds {
		f.bases = append(f.bases, q.kinds[i].base())
	}
	if f.labels, err = labels.Parse(q.labels); err != nil {
		return nil, err
	}
	f.fields, err = fields.ParseSelector(q.fields)
	return f, err
}

func (f *filter) asksFor(base, namespace string) bool {
	switch {
	case len(f.bases) > 0 && !slices.Contains(f.bases, base):
		return false
	case f.q.namespace == "" || namespace == f.q.namespace:
		return true
	}
	return namespace == "" && len(f.bases) > 0 // a type without namespaces that was named
}

func (f *filter) matches(namespace, name string, json []byte) bool {
	if f.q.name != "" && name != f.q.name {
		return false
	}
	if !f.labels.Empty() {
		set := labels.Set{}
		gjson.GetBytes(json, "metadata.labels").ForEach(func(key, value gjson.Result) bool {
			set[key.String()] = value.String()
			return true
		})
		if !f.labels.Matches(set) {
			return false
		}
	}
	for _, r := range f.fields.Requirements() {
		value := gjson.GetBytes(json, strings.NewReplacer("*", `\*`, "?", `\?`, "#", `\#`, "|", `\|`, "@", `\@`).Replace(r.Field)).String()
		if (value == r.Value) != (r.Operator == "=" || r.Operator == "==") {
			return false
		}
	}
	return true
}
