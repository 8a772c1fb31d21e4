package logcmd

// This file implements a source that reads from a data file, which must not be in use by a server.
// It uses the same code as /debug/history to read the log. It can also list the objects at a given
// revision.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/labels"

	"apilet/internal/encryption"
	"apilet/internal/findings"
	"apilet/internal/history"
	"apilet/internal/kubeconfig"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/selector"
	"apilet/internal/store"
)

// A file is a source that reads a data file.
type file struct {
	st              *store.Store
	maintenance     *store.Maintenance
	changes         *history.Log
	answers         sync.WaitGroup // counts the goroutines that serve changes
	all             []kind
	base            map[string]*kind // the kinds by key prefix: /group/plural/
	decryptFailures decryptFailures

	selectable map[string][]string // the selectable fields of custom resources, by key prefix
}

// decryptFailures counts the records that could not be decrypted.
type decryptFailures struct {
	n     atomic.Int64
	first atomic.Pointer[error]
}

func (u *decryptFailures) note(_ string, err error) {
	u.n.Add(1)
	u.first.CompareAndSwap(nil, &err)
}

// err returns an error if any records were omitted because they could not be decrypted.
func (u *decryptFailures) err() error {
	if n := u.n.Load(); n > 0 {
		return fmt.Errorf("%d documents could not be decrypted and are omitted (set --encryption-provider-config): %w", n, *u.first.Load())
	}
	return nil
}

// openFile opens a data file. keys is the path of the encryption configuration, or "".
func openFile(path, keys string) (*file, error) {
	if _, err := os.Stat(path); err != nil { // store.Open would create the file
		return nil, err
	}
	providers, err := encryption.Open(context.Background(), encryption.Config{Path: keys, Log: zerolog.New(os.Stderr)})
	if err != nil {
		return nil, err
	}
	sealing := providers.Sealing()
	f := &file{selectable: map[string][]string{}}
	sealing.OnOpenError = f.decryptFailures.note
	st, err := store.Open(path, store.Options{Sealing: sealing})
	if err != nil {
		return nil, err
	}
	f.st = st
	if f.maintenance, err = store.NewMaintenance(st); err == nil {
		err = f.readKinds()
	}
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	f.changes = history.New(history.Config{Store: st, Maintenance: f.maintenance, Types: scheme.NewRegistry(), Selectable: f.selectable, WriteTimeout: time.Hour,
		Visibility: history.Visibility{Store: st, Authorize: func(request.User, request.Info) bool { return true }}, MayListAny: func(request.User) bool { return true },
		WriteError: func(w http.ResponseWriter, r *http.Request, err error) { _ = response.Refuse(w, r, err) }})
	return f, nil
}

func (f *file) close() error {
	f.answers.Wait()
	return errors.Join(f.decryptFailures.err(), f.st.Close())
}

func (f *file) namespace() string                     { return "" }
func (f *file) kinds(context.Context) ([]kind, error) { return f.all, nil }

func (f *file) findings(context.Context) ([]findings.Finding, error) {
	return nil, errors.New("--findings requires a running server")
}

// readKinds collects the built-in types and the types defined by stored CustomResourceDefinitions.
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
		for _, field := range spec.Get("versions.#(storage==true).selectableFields.#.jsonPath").Array() {
			f.selectable[k.base()] = append(f.selectable[k.base()], strings.TrimPrefix(field.String(), "."))
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

// each calls visit for each object that existed at the revision of the span.
func (f *file) each(span store.Span, visit func(*store.Record) error) error {
	for rec, err := range f.st.All(span) {
		if err != nil {
			return f.explain(err, span.Rev)
		}
		if err := visit(rec); err != nil {
			return err
		}
	}
	return nil
}

func (f *file) explain(err error, rev int64) error {
	if errors.Is(err, store.ErrCompacted) {
		return fmt.Errorf("revision %d is compacted: the oldest revision is %d", rev, f.st.Compacted())
	}
	if rev > f.st.Revision() {
		return fmt.Errorf("revision %d is in the future: the newest revision is %d", rev, f.st.Revision())
	}
	return err
}

// ---- Objects at a moment

func (f *file) list(ctx context.Context, at moment, k *kind, q *query, each func(object) error) error {
	wanted, err := f.filter(k, q)
	if err != nil {
		return err
	}
	rev, err := f.revisionOf(at)
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
		if q.name != "" && name != q.name || !wanted.matches(r.Key, r.JSON) {
			return nil
		}
		// the buffer of the chunk is reused before the caller reads the object
		return each(object{namespace, name, strconv.FormatInt(r.Rev, 10), bytes.Clone(r.JSON)})
	})
}

// revisionOf returns the current revision at the given moment.
func (f *file) revisionOf(at moment) (int64, error) {
	m, err := history.ParseMoment(at.String(), time.Now())
	if err != nil {
		return 0, err
	}
	rev, _, err := history.Moments{Store: f.st, Maintenance: f.maintenance}.RevisionAt(m, time.Now())
	return max(rev, 1), err
}

// ---- Changes

// log sends the request that a server would receive to a Log in this process.
func (f *file) log(ctx context.Context, q *query, each func(*change) error) error {
	if q.follow {
		return errors.New("--follow requires a running server")
	}
	asked := server{kubeconfig.NewClient(f, "http://file"), "the file"}
	return asked.log(ctx, q, func(c *change) error {
		if k := f.base["/"+c.Group+"/"+c.Resource+"/"]; k != nil && c.Kind == "" { // a custom resource
			c.Kind, c.raw = k.kind, nil
		}
		return each(c)
	})
}

// RoundTrip serves the request with the file's log.
func (f *file) RoundTrip(r *http.Request) (*http.Response, error) {
	read, write := io.Pipe()
	w := &pipe{header: http.Header{}, body: write, status: make(chan int, 1)}
	r = r.WithContext(context.WithValue(r.Context(), request.Key{}, &request.Request{}))
	f.answers.Go(func() {
		f.changes.ServeHTTP(w, r)
		w.WriteHeader(http.StatusOK)
		_ = write.Close() // closing a pipe never fails
	})
	code := <-w.status
	return &http.Response{StatusCode: code, Status: strconv.Itoa(code) + " " + http.StatusText(code), Header: w.header, Body: read, Request: r}, nil
}

// A pipe is a ResponseWriter for a client in the same process.
type pipe struct {
	header http.Header
	body   *io.PipeWriter
	status chan int // receives the status code exactly once; buffered, so sending does not block
	once   sync.Once
}

func (p *pipe) Header() http.Header { return p.header }

func (p *pipe) WriteHeader(code int) { p.once.Do(func() { p.status <- code }) }

func (p *pipe) Write(b []byte) (int, error) {
	p.WriteHeader(http.StatusOK)
	return p.body.Write(b)
}

// Flush does nothing because a pipe is not buffered.
func (p *pipe) Flush() {}

// A filter holds compiled selectors.
type filter struct {
	labels selector.Labels
	fields []*selector.Field
}

// filter compiles the selectors of the query for the given type.
func (f *file) filter(k *kind, q *query) (*filter, error) {
	wanted := &filter{}
	if q.labels != "" {
		parsed, err := labels.Parse(q.labels)
		if err != nil {
			return nil, err
		}
		requirements, _ := parsed.Requirements()
		wanted.labels = selector.NewLabels(requirements)
	}
	if q.fields == "" {
		return wanted, nil
	}
	var err error
	wanted.fields, err = f.changes.CompileFields(k.base(), q.fields)
	return wanted, err
}

func (f *filter) matches(key string, json []byte) bool {
	for _, field := range f.fields {
		if !field.Matches(key, json) {
			return false
		}
	}
	return len(f.labels.ByKey) == 0 || f.labels.Match(gjson.GetBytes(json, "metadata.labels"))
}
