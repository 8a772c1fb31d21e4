// This file answers the reads of objects one by one and in lists. It implements two design documents: "Allow clients to retrieve
// consistent API lists in chunks" (limit and continue) and "Consistent Resource Version Semantics for List" (resourceVersionMatch).
// A list names one revision, and the store can show any revision that is not compacted yet, so both come down to choosing where a
// LIST reads: at which revision, and from which key on. That choice is the table below (RV is resourceVersion, N a revision that
// exists, F one that does not yet; "now" is the newest revision at the first read):
//
//	continue  RV      match         limit   reads
//	--------  ------  ------------  ------  -------------------------------------------------------------
//	-         "", 0   -             any     now
//	-         0, N    NotOlderThan  any     now (the only copy is the newest one)
//	-         N       -             none    now: a plain RV is a lower bound
//	-         N       -             n       exactly N: the legacy rule, paging pins the revision
//	-         N       Exact         any     exactly N, or 410 Expired once N is compacted
//	-         F       any           any     504 Timeout at once, cause ResourceVersionTooLarge
//	-         0       Exact         any     422
//	-         ""      any           any     422: a match needs an RV
//	token     "", 0   -             any     at the token's revision, from the token's key on
//	token     N       -             any     400: the token names the revision
//	token     any     any           any     422
//
// A LIST is never held in memory: chunks are copied out of short read transactions and sent on, at one revision throughout. What has
// to be known before the first byte (the continue token of a limited list) is found first.
package main

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/tidwall/gjson"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	listvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

const (
	listBuffer    = 1 << 20   // bytes of encoded items that a limited list collects before it looks for its end
	gzipThreshold = 128 << 10 // bytes from which compression pays
)

// reads answers GET, LIST and WATCH.
type reads struct {
	st           *store
	tokens       *tokenCodec
	chunking     bool          // the feature gate APIListChunking
	minTimeout   time.Duration // a watch without timeoutSeconds lives between one and two of these
	bookmarks    time.Duration // between two bookmarks of a watch
	patience     time.Duration // with a watcher that takes nothing
	shuttingDown <-chan struct{}

	// turns bounds how many lists read and encode at the same moment, to half of the processors: the others wait, off the run queue, for a
	// chunk's time, and a write never has to stand behind all of them. Sending is not bounded.
	turns chan struct{}
}

// ---- GET ----

// get answers one object. resourceVersion is a lower bound here, and the newest version satisfies every bound that exists.
func (rd *reads) get(w http.ResponseWriter, r *http.Request, res *resource) error {
	v, err := newView(r, res)
	if err != nil {
		return err
	}
	query := r.URL.Query()
	if _, err := rd.lowerBound(query.Get("resourceVersion"), ""); err != nil {
		return err
	}
	if truth(query, "export") {
		return apierrors.NewBadRequest("the export parameter, deprecated since v1.14, is no longer supported")
	}
	info := requestFrom(r.Context()).info
	rec, err := rd.st.get(res.key(scopeOf(res, &info), info.name))
	if err != nil {
		return storeError(err, res, info.name)
	}
	return v.respond(w, r, http.StatusOK, &rec)
}

// scopeOf is the namespace in which a request's objects lie. Kubernetes counts a Namespace as being in itself, for authorization; its key
// says otherwise.
func scopeOf(res *resource, info *requestInfo) string {
	if !res.namespaced {
		return ""
	}
	return info.namespace
}

// lowerBound parses a resourceVersion ("" is 0) and refuses one that has not happened yet. what names the failing part of a message.
func (rd *reads) lowerBound(rv, what string) (int64, error) {
	if rv == "" || rv == "0" {
		return 0, nil
	}
	n, err := strconv.ParseUint(rv, 10, 64)
	if err != nil {
		return 0, apierrors.NewBadRequest(what + field.Invalid(field.NewPath("resourceVersion"), rv, err.Error()).Error())
	}
	if current := rd.st.revision(); n > uint64(current) {
		return 0, tooLarge(rv, current)
	}
	return int64(n), nil
}

// tooLarge is the answer to a revision of the future. The real server waits for it for three seconds; here no other server can
// be ahead, so the answer comes at once, and without Retry-After, which would make client-go try ten times.
func tooLarge(rv string, current int64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %s, current: %d", rv, current), 0)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
	return err
}

// storeError turns the store's sentinels into the Status that clients know. Other errors pass unchanged.
func storeError(err error, res *resource, name string) error {
	gr := res.groupResource()
	switch {
	case errors.Is(err, errNotFound):
		return apierrors.NewNotFound(gr, name)
	case errors.Is(err, errExists):
		return apierrors.NewAlreadyExists(gr, name)
	case errors.Is(err, errDeleting):
		exists := apierrors.NewAlreadyExists(gr, name)
		exists.ErrStatus.Message = "object is being deleted: " + exists.ErrStatus.Message
		return exists
	case errors.Is(err, errConflict):
		return apierrors.NewConflict(gr, name, errors.New("the object has been modified; please apply your changes to the latest version and try again"))
	case errors.Is(err, errCompacted):
		return apierrors.NewResourceExpired("The resourceVersion for the provided list is too old.")
	case errors.Is(err, errDiskFull), errors.Is(err, errQuota), errors.Is(err, errFileLost):
		return apierrors.NewInternalError(err)
	}
	return err
}

// virtual answers for a resource of which nothing is stored: an empty list, and no object by any name.
func (rd *reads) virtual(w http.ResponseWriter, r *http.Request, res *resource) error {
	if name := requestFrom(r.Context()).info.name; name != "" {
		return apierrors.NewNotFound(res.groupResource(), name)
	}
	v, err := newView(r, res)
	if err != nil {
		return err
	}
	l := &lister{v: v, done: true}
	return l.send(r.Context(), w, r, listMeta{rev: rd.st.revision()})
}

// ---- LIST ----

// A query is what a LIST or WATCH asks for, parsed and checked.
type query struct {
	internalversion.ListOptions
	match matcher
}

// parseQuery reads the parameters of a LIST, WATCH or DELETE of a collection. Like kube-apiserver it takes the first of repeated
// parameters and ignores unknown ones.
func parseQuery(values url.Values, res *resource, info *requestInfo) (*query, error) {
	q := &query{}
	number := func(name string) (int64, error) {
		if !values.Has(name) {
			return 0, nil
		}
		n, err := strconv.ParseInt(values.Get(name), 10, 64)
		if err != nil {
			return 0, apierrors.NewBadRequest(err.Error())
		}
		return n, nil
	}
	var err error
	if q.Limit, err = number("limit"); err != nil {
		return nil, err
	}
	seconds, err := number("timeoutSeconds")
	if err != nil {
		return nil, err
	}
	if values.Get("timeoutSeconds") != "" {
		q.TimeoutSeconds = &seconds
	}
	q.Limit = max(q.Limit, 0)
	q.Continue = values.Get("continue")
	q.ResourceVersion = values.Get("resourceVersion")
	q.ResourceVersionMatch = metav1.ResourceVersionMatch(values.Get("resourceVersionMatch"))
	q.Watch = info.verb == "watch"
	q.AllowWatchBookmarks = truth(values, "allowWatchBookmarks")
	if values.Has("sendInitialEvents") {
		yes := truth(values, "sendInitialEvents")
		q.SendInitialEvents = &yes
	}
	if q.match, err = newMatcher(res, info, values.Get("labelSelector"), values.Get("fieldSelector")); err != nil {
		return nil, err
	}
	if errs := listvalidation.ValidateListOptions(&q.ListOptions, true); len(errs) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	return q, nil
}

// truth reads a boolean parameter as Kubernetes does: present means true unless it says 0 or false.
func truth(values url.Values, name string) bool {
	if !values.Has(name) {
		return false
	}
	text := values.Get(name)
	return text != "0" && !strings.EqualFold(text, "false")
}

// A position is where a LIST reads next.
type position struct {
	rev       int64  // 0 is "now"
	start     string // the first key, "" for the beginning
	remaining int64  // objects from start on, -1 when nobody has counted them
	token     *continueToken
}

// locate is the decision table at the top of this file.
func (rd *reads) locate(q *query) (position, error) {
	if q.Continue != "" {
		return rd.resume(q)
	}
	pos := position{remaining: -1}
	bound, err := rd.lowerBound(q.ResourceVersion, "invalid resource version: ")
	if err != nil {
		return pos, err
	}
	exact := q.ResourceVersionMatch == metav1.ResourceVersionMatchExact
	if legacy := q.ResourceVersionMatch == "" && q.Limit > 0; exact || legacy {
		pos.rev = bound
	}
	return pos, nil
}

// resume continues a list where its token says.
func (rd *reads) resume(q *query) (position, error) {
	if q.ResourceVersion != "" && q.ResourceVersion != "0" {
		return position{}, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
	}
	token, err := rd.tokens.open(q.Continue, &q.match)
	if err != nil {
		return position{}, err
	}
	pos := position{rev: token.rev, start: q.match.prefix + token.start, remaining: token.remaining, token: token}
	if token.rev != 0 && (token.lineage != lineageMark(rd.st) || token.rev < rd.st.compacted()) {
		return pos, rd.expired(&q.match, token)
	}
	return pos, nil
}

// expired is the 410 that offers a way on: a token for the same key at whatever revision is the newest then.
func (rd *reads) expired(m *matcher, token *continueToken) error {
	err := apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. " +
		"You can start a new list without the continue parameter, or use the continue token in this response to retrieve the " +
		"remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, " +
		"modified, or deleted between the time the first chunk was returned and now may show up in the list.")
	err.ErrStatus.Continue = rd.tokens.seal(continueToken{start: token.start, remaining: -1, lineage: lineageMark(rd.st)}, m)
	return err
}

// list answers a collection. What is small is answered whole, the rest is streamed.
func (rd *reads) list(w http.ResponseWriter, r *http.Request, res *resource) error {
	return rd.listAnd(w, r, res, nil)
}

// listAnd is list with something done to the objects of each chunk before they are shown: DELETE of a collection.
func (rd *reads) listAnd(w http.ResponseWriter, r *http.Request, res *resource, do func(context.Context, []*record) error) error {
	v, err := newView(r, res)
	if err != nil {
		return err
	}
	q, err := parseQuery(r.URL.Query(), res, &requestFrom(r.Context()).info)
	if err != nil {
		return err
	}
	if !rd.chunking {
		q.Limit, q.Continue = 0, ""
	}
	pos, err := rd.locate(q)
	if err != nil {
		return err
	}
	if err := v.media.fits(res, true); err != nil {
		return err
	}
	l := newLister(rd, v, q, pos)
	l.do = do
	defer l.release()
	if err := l.collect(r.Context(), l.room()); err != nil {
		return rd.listError(err, q, pos, res)
	}
	rest, meta := l, listMeta{rev: l.rev}
	if q.Limit > 0 {
		if rest, meta, err = rd.limitedMeta(r.Context(), l); err != nil {
			return rd.listError(err, q, pos, res)
		}
	}
	l.setAside()
	defer rest.setAside()
	return rest.send(r.Context(), w, r, meta)
}

// listError is storeError with the 410 of a continued list told apart.
func (rd *reads) listError(err error, q *query, pos position, res *resource) error {
	if errors.Is(err, errCompacted) && pos.token != nil {
		return rd.expired(&q.match, pos.token)
	}
	return storeError(err, res, "")
}

// limitedMeta finds what a limited list says in its metadata: the token of the next chunk and how many objects are left. The lister
// that it returns has the rest of the page before it.
func (rd *reads) limitedMeta(ctx context.Context, l *lister) (rest *lister, meta listMeta, err error) {
	meta.rev = l.rev
	rest, err = l.findEnd(ctx)
	if err != nil || l.end == "" {
		return rest, meta, err
	}
	token := continueToken{rev: l.rev, start: strings.TrimPrefix(l.end, l.q.match.prefix), remaining: -1, lineage: lineageMark(rd.st)}
	if l.q.match.everything() {
		left, err := l.left()
		if err != nil {
			return rest, meta, err
		}
		token.remaining, meta.remaining = left, &left
	}
	meta.cont = rd.tokens.seal(token, &l.q.match)
	return rest, meta, nil
}

// A lister walks the objects of one LIST at one revision.
type lister struct {
	st    *store
	turns chan struct{}
	v     *view
	q     *query
	pos   position
	chunk *chunk

	rev   int64     // the list's revision, known after the first chunk
	next  string    // where the next chunk starts
	done  bool      // the range, or the limit, is exhausted
	last  string    // the last key taken
	taken int64     // objects taken so far
	end   string    // where the next page starts, "" when this page is the last; known once done or after findEnd
	found []*record // the objects of the present chunk
	do    func(context.Context, []*record) error
	items []byte // encoded items that were not sent yet
	bare  bool   // nothing has been encoded yet: no separator before the next item
}

var (
	chunkPool = sync.Pool{New: func() any { return new(chunk) }}
	itemsPool = sync.Pool{New: func() any { return new([]byte) }}
)

func newLister(rd *reads, v *view, q *query, pos position) *lister {
	items := *itemsPool.Get().(*[]byte)
	return &lister{st: rd.st, turns: rd.turns, v: v, q: q, pos: pos, items: items[:0], rev: pos.rev, next: pos.start, bare: true}
}

// release gives the buffers back. What one huge object made larger than a list needs is left to the garbage collector.
func (l *lister) release() {
	l.setAside()
	if cap(l.items) <= 4*listBuffer {
		items := l.items
		itemsPool.Put(&items)
	}
}

// setAside gives the chunk back while the client is waited for: what was found in it is encoded, and the next is read into another.
func (l *lister) setAside() {
	if l.chunk == nil {
		return
	}
	chunkPool.Put(l.chunk)
	l.chunk, l.found = nil, nil
}

// room is how much is collected before the head is sent. A limited list needs to know its end by then; another one only whether it is
// small enough to be sent whole.
func (l *lister) room() int {
	if l.q.Limit > 0 {
		return listBuffer
	}
	return gzipThreshold
}

// collect appends encoded items until room bytes are used or the page is complete.
func (l *lister) collect(ctx context.Context, room int) error {
	for !l.done && len(l.items) < room {
		if err := l.advance(ctx); err != nil {
			return err
		}
	}
	return nil
}

// advance reads and encodes one chunk, in its turn.
func (l *lister) advance(ctx context.Context) error {
	if l.do != nil { // it waits for commits: others need not wait for it
		if err := l.step(ctx); err != nil {
			return err
		}
		if err := l.do(ctx, l.found); err != nil {
			return err
		}
		return l.encode()
	}
	l.turns <- struct{}{}
	defer func() { <-l.turns }()
	if err := l.step(ctx); err != nil {
		return err
	}
	return l.encode()
}

func (l *lister) encode() (err error) {
	for _, rec := range l.found {
		if !l.bare {
			l.items = append(l.items, l.v.separator()...)
		}
		l.bare = false
		if l.items, err = l.v.item(l.items, rec); err != nil {
			return err
		}
	}
	return nil
}

// step reads one chunk and finds its matching objects, up to the limit. One object more than the limit is looked for: whether it
// exists decides whether there is a next page. The next page starts right behind the last key taken, so that a list that goes on at a
// newer revision shows what was created in between.
func (l *lister) step(ctx context.Context) error {
	l.found = l.found[:0]
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.chunk == nil {
		l.chunk = chunkPool.Get().(*chunk)
	}
	s := span{prefix: l.q.match.span, start: l.next, rev: l.rev}
	if l.q.Limit > 0 && l.q.match.everything() {
		s.items = int(min(l.q.Limit-l.taken+1, 500))
	}
	if err := l.st.chunk(s, l.chunk); err != nil {
		return err
	}
	l.rev, l.next = l.chunk.rev, l.chunk.next
	l.done = l.next == ""
	for i := range l.chunk.records {
		rec := &l.chunk.records[i]
		if !l.q.match.object(rec.key, rec.json) {
			continue
		}
		if l.q.Limit > 0 && l.taken == l.q.Limit {
			l.done, l.end = true, l.last+"\x00"
			return nil
		}
		l.taken, l.last = l.taken+1, rec.key
		l.found = append(l.found, rec)
	}
	return nil
}

// findEnd walks to the end of the page without encoding what did not fit into the buffer: how many objects the page has and where the
// next one starts is needed before the first byte. It returns the lister as it stood, to send the rest.
func (l *lister) findEnd(ctx context.Context) (*lister, error) {
	if l.done {
		return l, nil
	}
	rest := *l
	rest.chunk, rest.found = nil, nil
	for !l.done {
		if err := l.step(ctx); err != nil {
			return &rest, err
		}
	}
	return &rest, nil
}

// left counts the objects behind this page: from what the token says, from the store's counters, else by a walk over keys.
func (l *lister) left() (int64, error) {
	if l.pos.remaining >= 0 {
		return l.pos.remaining - l.taken, nil
	}
	if total, _, rev := l.st.count(l.q.match.prefix); rev == l.rev && l.pos.token == nil {
		return total - l.taken, nil
	}
	return l.st.countAt(l.q.match.prefix, l.end, l.rev)
}

// send writes the list: head, what was collected, what is left to read, tail.
func (l *lister) send(ctx context.Context, w http.ResponseWriter, r *http.Request, meta listMeta) error {
	head, tail := l.v.listHead(nil, meta), l.v.listTail(meta)
	if l.done && l.taken == 0 && l.v.media.as == "PartialObjectMetadataList" {
		head, tail = bytes.TrimSuffix(head, []byte("[")), []byte("null}\n") // what the real server's encoder makes of no items
	}
	w.Header().Set("Content-Type", l.v.contentType())
	w.Header().Set("Cache-Control", "no-cache, private")
	if l.done && l.v.media.format == jsonFormat && (l.v.media.pretty || wantsPretty(r)) {
		writeJSON(w, r, http.StatusOK, bytes.TrimSuffix(slices.Concat(head, l.items, tail), []byte("\n")))
		return nil
	}
	if l.done {
		return sendWhole(w, r, head, l.items, tail)
	}
	out, finish := compress(w, r, listBuffer)
	defer finish()
	if _, err := out.Write(head); err != nil {
		return errAborted
	}
	for {
		l.setAside()
		if _, err := out.Write(l.items); err != nil {
			return errAborted
		}
		if l.done {
			break
		}
		l.items = l.items[:0]
		if err := l.collect(ctx, 1); err != nil {
			return errAborted // the head is out, and a short list must not look whole
		}
	}
	_, err := out.Write(tail)
	return err
}

// sendWhole answers with parts that are complete in memory.
func sendWhole(w http.ResponseWriter, r *http.Request, parts ...[]byte) error {
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	if !compresses(r, size) {
		w.Header().Set("Content-Length", strconv.Itoa(size))
	}
	out, finish := compress(w, r, size)
	defer finish()
	for _, part := range parts {
		if _, err := out.Write(part); err != nil {
			return errAborted
		}
	}
	return nil
}

// errAborted says that a response broke after its head was sent: the connection is closed, so that nobody takes the rest for whole.
var errAborted = errors.New("response aborted")

// compresses says whether a response of about size bytes is worth gzip: the client wants it and is not on this host.
func compresses(r *http.Request, size int) bool {
	if size < gzipThreshold || !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		return false
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	ip := net.ParseIP(host)
	return ip == nil || !ip.IsLoopback()
}

var gzipPool = sync.Pool{New: func() any { z, _ := gzip.NewWriterLevel(nil, 1); return z }}

// compress returns where to write a response of about size bytes, and what to call at its end.
func compress(w http.ResponseWriter, r *http.Request, size int) (out io.Writer, finish func()) {
	if !compresses(r, size) {
		return w, func() {}
	}
	w.Header().Set("Content-Encoding", "gzip")
	w.Header().Add("Vary", "Accept-Encoding")
	z := gzipPool.Get().(*gzip.Writer)
	z.Reset(w)
	return z, func() { _ = z.Close(); gzipPool.Put(z) }
}

// ---- What a response shows of an object ----

// listMeta is the metadata of a list; remaining is nil when it is not told.
type listMeta struct {
	rev       int64
	cont      string
	remaining *int64
}

// A view is how one response shows objects: whole, as the rows of a Table, or as their metadata alone; in JSON or YAML.
type view struct {
	res     *resource
	media   mediaType
	include string // includeObject of a Table: None, Metadata or Object
	now     time.Time
	mute    bool // a Table watch has told its columns already
}

// newView negotiates how a request's answer looks.
func newView(r *http.Request, res *resource) (*view, error) {
	media, err := negotiate(r.Header.Get("Accept"), "Table", "PartialObjectMetadata", "PartialObjectMetadataList")
	if err != nil {
		return nil, err
	}
	v := &view{res: res, media: media}
	if media.as == "Table" {
		v.now, v.include = time.Now(), "Metadata"
		if include := r.URL.Query().Get("includeObject"); include != "" {
			v.include = include
		}
		if v.include != "None" && v.include != "Metadata" && v.include != "Object" {
			return nil, apierrors.NewBadRequest(fmt.Sprintf(
				"Unable to convert to Table as requested: includeObject: Invalid value: %q: must be 'Metadata', 'Object', 'None', or empty", v.include))
		}
	}
	return v, nil
}

func (v *view) contentType() string {
	if v.media.format == yamlFormat {
		return "application/yaml"
	}
	return "application/json"
}

// respond answers with one object.
func (v *view) respond(w http.ResponseWriter, r *http.Request, code int, rec *record) error {
	if err := v.media.fits(v.res, false); err != nil {
		return err
	}
	body, err := v.object(nil, rec)
	if err != nil {
		return err
	}
	writeJSON(w, r, code, body)
	return nil
}

// object appends one object that stands alone: the answer to a GET or a write, or the object of a watch event. Always JSON.
func (v *view) object(dst []byte, rec *record) ([]byte, error) {
	switch v.media.as {
	case "Table":
		dst = v.tableHead(dst, listMeta{rev: rec.rev})
		dst, err := v.row(dst, rec)
		return append(dst, "]}"...), err
	case "PartialObjectMetadata":
		return v.metadata(dst, rec.json), nil
	}
	json, err := v.res.served(rec.json)
	dst = append(append(dst, '{'), v.res.prefix...)
	return append(dst, json[1:]...), err
}

// item appends one object as an item of a list. Items of built-in types carry no kind, as typed encoders leave it out.
func (v *view) item(dst []byte, rec *record) ([]byte, error) {
	if v.media.format == yamlFormat {
		return v.yamlItem(dst, rec)
	}
	switch v.media.as {
	case "Table":
		return v.row(dst, rec)
	case "PartialObjectMetadataList":
		return v.metadata(dst, rec.json), nil
	}
	json, err := v.res.served(rec.json)
	if v.res.goType != nil {
		return append(dst, json...), err
	}
	dst = append(append(dst, '{'), v.res.prefix...)
	return append(dst, json[1:]...), err
}

// metadata appends a PartialObjectMetadata.
func (v *view) metadata(dst, json []byte) []byte {
	dst = append(dst, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/`...)
	dst = append(append(dst, v.media.version...), `","metadata":`...)
	return append(append(dst, gjson.GetBytes(json, "metadata").Raw...), '}')
}

// row appends one row of a Table.
func (v *view) row(dst []byte, rec *record) ([]byte, error) {
	obj, err := v.res.decodeServed(rec.json)
	if err != nil {
		return dst, err
	}
	cells, err := json.Marshal(cellsOf(v.res, obj, v.now))
	if err != nil {
		return dst, err
	}
	dst = append(append(dst, `{"cells":`...), cells...)
	if conditions := rowConditionsOf(obj); conditions != nil {
		text, _ := json.Marshal(conditions)
		dst = append(append(dst, `,"conditions":`...), text...)
	}
	dst = append(dst, `,"object":`...)
	switch v.include {
	case "None":
		dst = append(dst, "null"...)
	case "Metadata":
		dst = v.metadata(dst, rec.json)
	default:
		whole := view{res: v.res}
		if dst, err = whole.object(dst, rec); err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

// listHead appends what stands before the items.
func (v *view) listHead(dst []byte, meta listMeta) []byte {
	if v.media.format == yamlFormat {
		return append(append(append(dst, "apiVersion: "...), v.listVersion()...), "\nitems:\n"...)
	}
	if v.media.as == "Table" {
		return v.tableHead(dst, meta)
	}
	dst = append(append(dst, `{"kind":"`...), v.listKind()...)
	dst = append(append(dst, `","apiVersion":"`...), v.listVersion()...)
	dst = append(dst, `","metadata":`...)
	dst = v.listMeta(dst, meta)
	return append(dst, `,"items":[`...)
}

func (v *view) tableHead(dst []byte, meta listMeta) []byte {
	dst = append(append(dst, `{"kind":"Table","apiVersion":"meta.k8s.io/`...), v.media.version...)
	dst = append(dst, `","metadata":`...)
	dst = v.listMeta(dst, meta)
	columns := []byte("null")
	if !v.mute {
		columns, _ = json.Marshal(columnsOf(v.res))
	}
	dst = append(append(dst, `,"columnDefinitions":`...), columns...)
	return append(dst, `,"rows":[`...)
}

func (v *view) listMeta(dst []byte, meta listMeta) []byte {
	dst = append(dst, `{"resourceVersion":"`...)
	dst = append(strconv.AppendInt(dst, meta.rev, 10), '"')
	if meta.cont != "" || v.res.goType == nil && v.media.as == "" {
		dst = append(append(append(dst, `,"continue":"`...), meta.cont...), '"')
	}
	if meta.remaining != nil {
		dst = strconv.AppendInt(append(dst, `,"remainingItemCount":`...), *meta.remaining, 10)
	}
	return append(dst, '}')
}

// listTail is what stands behind the items.
func (v *view) listTail(meta listMeta) []byte {
	if v.media.format != yamlFormat {
		return []byte("]}\n")
	}
	tail, _ := yaml.JSONToYAML(append(append([]byte(`{"kind":"`+v.listKind()+`","metadata":`), v.listMeta(nil, meta)...), '}'))
	return tail
}

func (v *view) separator() string {
	if v.media.format == yamlFormat {
		return ""
	}
	return ","
}

func (v *view) listKind() string {
	if v.media.as != "" {
		return v.media.as
	}
	return v.res.listKind
}

func (v *view) listVersion() string {
	if v.media.as != "" {
		return "meta.k8s.io/" + v.media.version
	}
	return v.res.apiVersion()
}

// yamlItem appends an item of a YAML list: the item's own document, indented behind a dash.
func (v *view) yamlItem(dst []byte, rec *record) ([]byte, error) {
	plain := *v
	plain.media.format = jsonFormat
	item, err := plain.item(nil, rec)
	if err != nil {
		return dst, err
	}
	text, err := yaml.JSONToYAML(item)
	if err != nil {
		return dst, err
	}
	text = bytes.ReplaceAll(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"), []byte("\n  "))
	return append(append(append(dst, "- "...), text...), '\n'), nil
}

// ---- Selectors ----

// A matcher decides which objects a LIST or WATCH shows. It reads the stored bytes; nothing is decoded.
type matcher struct {
	prefix    string // the key range of the resource or namespace
	span      string // the part of it that can match: one key when a selector names it
	namespace string // the collection's, "" for all
	labels    labels.Requirements
	fields    []fieldTerm
	selectors string // both selectors as text: continue tokens are bound to them
}

type fieldTerm struct {
	path   string // of gjson; "" when the term reads the key
	key    func(namespace, name string) string
	fixed  func(gjson.Result) string
	value  string
	negate bool
}

func newMatcher(res *resource, info *requestInfo, labelText, fieldText string) (matcher, error) {
	m := matcher{namespace: scopeOf(res, info)}
	m.prefix = res.keyPrefix(m.namespace)
	m.span = m.prefix
	if labelText != "" {
		selector, err := labels.Parse(labelText)
		if err != nil {
			return m, apierrors.NewBadRequest(err.Error())
		}
		m.labels, _ = selector.Requirements()
	}
	if fieldText != "" {
		selector, err := fields.ParseSelector(fieldText)
		if err != nil {
			return m, apierrors.NewBadRequest(err.Error())
		}
		if err := m.addFields(res, selector.Requirements()); err != nil {
			return m, apierrors.NewBadRequest(err.Error())
		}
	}
	if labelText != "" || fieldText != "" {
		m.selectors = labelText + "\x00" + fieldText
	}
	return m, nil
}

// everything says that no selector narrows the collection.
func (m *matcher) everything() bool { return len(m.labels) == 0 && len(m.fields) == 0 }

func (m *matcher) addFields(res *resource, terms fields.Requirements) error {
	for _, term := range terms {
		t, err := fieldTermFor(res, term.Field)
		if err != nil {
			return err
		}
		t.value, t.negate = term.Value, term.Operator == selection.NotEquals
		m.fields = append(m.fields, t)
		if name := term.Field == "metadata.name"; name && !t.negate && (m.namespace != "" || !res.namespaced) && term.Value != "" {
			m.span = res.key(m.namespace, term.Value)
		}
	}
	return nil
}

// object says whether the object with this key and JSON is shown.
func (m *matcher) object(key string, json []byte) bool {
	if !strings.HasPrefix(key, m.span) {
		return false
	}
	for i := range m.fields {
		if !m.fields[i].matches(key, json) {
			return false
		}
	}
	if len(m.labels) == 0 {
		return true
	}
	set := jsonLabels(gjson.GetBytes(json, "metadata.labels"))
	for i := range m.labels {
		if !m.labels[i].Matches(set) {
			return false
		}
	}
	return true
}

func (t *fieldTerm) matches(key string, json []byte) bool {
	var value string
	switch {
	case t.key != nil:
		namespace, name := namespacedName(key)
		value = t.key(namespace, name)
	case t.fixed != nil:
		value = t.fixed(gjson.ParseBytes(json))
	default:
		value = gjson.GetBytes(json, t.path).String()
	}
	return (value == t.value) != t.negate
}

// namespacedName returns the namespace and name of an object's key, /group/resource/namespace/name.
func namespacedName(key string) (namespace, name string) {
	slash := strings.LastIndexByte(key, '/')
	rest := key[:slash]
	return rest[strings.LastIndexByte(rest, '/')+1:], key[slash+1:]
}

// jsonLabels reads labels out of the stored bytes. Label names have dots, so they never become part of a gjson path.
type jsonLabels gjson.Result

func (l jsonLabels) Lookup(name string) (value string, exists bool) {
	gjson.Result(l).ForEach(func(k, v gjson.Result) bool {
		if k.String() == name {
			value, exists = v.String(), true
		}
		return !exists
	})
	return value, exists
}

func (l jsonLabels) Has(name string) bool   { _, ok := l.Lookup(name); return ok }
func (l jsonLabels) Get(name string) string { v, _ := l.Lookup(name); return v }

// selectableFields are the fields, beside metadata.name and metadata.namespace, that kube-apiserver selects by. A field that typed
// JSON omits when it is empty is named with its text for that case ("status.replicas|0").
var selectableFields = map[string][]string{
	"/pods": {"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork|false",
		"status.phase", "status.podIP", "status.nominatedNodeName"},
	"/events": {"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
		"involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason", "reportingComponent",
		"source", "type"},
	"/nodes":                  {"spec.unschedulable|false"},
	"/replicationcontrollers": {"status.replicas|0"},
	"/namespaces":             {"status.phase"},
	"/secrets":                {"type"},
	"/services":               {"spec.clusterIP", "spec.type"},
	"apps/replicasets":        {"status.replicas|0"},
	"batch/jobs":              {"status.successful|0"},
	"certificates.k8s.io/certificatesigningrequests": {"spec.signerName"},
	"resource.k8s.io/resourceslices":                 {"spec.nodeName", "spec.driver"},
}

// strictFields are the kinds whose unknown fields kube-apiserver refuses in words of their own.
var strictFields = map[string]string{
	"batch/jobs":                     "field label %q not supported for Job",
	"resource.k8s.io/resourceslices": "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: %s",
}

// fieldTermFor finds how a field is read, or says that it is not selectable.
func fieldTermFor(res *resource, name string) (fieldTerm, error) {
	id := res.storageGroup + "/" + res.plural
	switch name {
	case "metadata.name":
		return fieldTerm{key: func(_, name string) string { return name }}, nil
	case "metadata.namespace":
		if res.namespaced || selectableFields[id] == nil {
			return fieldTerm{key: func(namespace, _ string) string { return namespace }}, nil
		}
	case "spec.host":
		if id == "/pods" {
			return fieldTermFor(res, "spec.nodeName")
		}
	}
	if res.custom != nil && slices.Contains(res.custom.selectable, name) {
		return customTerm(res, name), nil
	}
	for _, known := range selectableFields[id] {
		path, empty, _ := strings.Cut(known, "|")
		if path == name || res.group == "events.k8s.io" && eventField(name) == path {
			return pathTerm(path, empty), nil
		}
	}
	if format, ok := strictFields[id]; ok {
		return fieldTerm{}, fmt.Errorf(format, name)
	}
	if selectableFields[id] != nil || res.goType == nil {
		return fieldTerm{}, fmt.Errorf("field label not supported: %s", name)
	}
	return fieldTerm{}, fmt.Errorf("%q is not a known field selector: only \"metadata.name\", \"metadata.namespace\"", name)
}

// customTerm reads a field of a custom resource as it is served: a default may have been added since it was stored.
func customTerm(res *resource, name string) fieldTerm {
	var path strings.Builder
	for i, step := range strings.Split(name, ".") {
		if i > 0 {
			path.WriteByte('.')
		}
		path.WriteString(gjson.Escape(step))
	}
	return fieldTerm{fixed: func(obj gjson.Result) string {
		members, err := res.served([]byte(obj.Raw))
		if err != nil {
			return ""
		}
		return gjson.GetBytes(members, path.String()).String()
	}}
}

func pathTerm(path, empty string) fieldTerm {
	switch path {
	case "source": // an Event's source is the component that sent it, by the old field or the new
		return fieldTerm{fixed: func(event gjson.Result) string {
			if source := event.Get("source.component").String(); source != "" {
				return source
			}
			return event.Get("reportingComponent").String()
		}}
	case "status.podIP":
		path = "status.podIPs.0.ip"
	}
	if empty == "" {
		return fieldTerm{path: path}
	}
	return fieldTerm{fixed: func(obj gjson.Result) string {
		if text := obj.Get(path).String(); text != "" {
			return text
		}
		return empty
	}}
}

// eventField translates a field of events.k8s.io's Event to the core Event that is stored.
func eventField(name string) string {
	switch {
	case strings.HasPrefix(name, "regarding."):
		return "involvedObject." + strings.TrimPrefix(name, "regarding.")
	case name == "reportingController":
		return "reportingComponent"
	}
	return name
}

// ---- Continue tokens ----

// A continue token is opaque to clients, but not to readers of this file:
//
//	OFFSET  SIZE  MEANING
//	0       1     version, 1
//	1       4     key id
//	5       16    tag: HMAC-SHA-256 of everything below and of the list's identity, truncated
//	21      -     AES-CTR ciphertext (the tag is its IV) of: lineage u32, revision varint, remaining varint, start key
//
// The tag as IV makes a synthetic IV: equal lists give equal tokens, and no nonce has to be kept apart. The list's identity (its key
// prefix and its selectors) goes into the tag alone, so that a token opens for the list that it came from and for no other. The start
// key, which may name an object that the client may not see, is readable to nobody else. base64 is the strict URL-safe kind without
// padding: one token has one spelling.
type continueToken struct {
	rev       int64  // 0: at whatever revision is newest, the way on after an expired token
	start     string // relative to the list's prefix
	remaining int64  // objects from start on, -1 when unknown
	lineage   uint32
}

const (
	tokenVersion = 1
	tokenHeader  = 1 + 4 + 16
	maxToken     = 4096 // characters; a key is at most half of that
)

// lineageMark is what a token keeps of the file's lineage.
func lineageMark(st *store) uint32 {
	id := st.lineage()
	return binary.BigEndian.Uint32(id[:])
}

// A tokenCodec seals and opens continue tokens. The first key seals, every key opens: that is how keys are rotated.
type tokenCodec struct{ keys []tokenKey }

type tokenKey struct {
	id    [4]byte
	mac   []byte
	block cipher.Block
}

// newTokenCodec derives a signing and an encryption key from each secret. There is at least one secret, of 32 bytes or more.
func newTokenCodec(secrets [][]byte) *tokenCodec {
	c := &tokenCodec{}
	for _, secret := range secrets {
		derive := func(purpose string) []byte {
			mac := hmac.New(sha256.New, secret)
			mac.Write([]byte("apilet continue token " + purpose))
			return mac.Sum(nil)
		}
		block, err := aes.NewCipher(derive("encryption"))
		if err != nil {
			panic(err) // a SHA-256 sum is a valid AES-256 key
		}
		key := tokenKey{mac: derive("signature"), block: block}
		copy(key.id[:], derive("id"))
		c.keys = append(c.keys, key)
	}
	return c
}

// tag signs a plaintext for one list.
func (k *tokenKey) tag(plain []byte, m *matcher) []byte {
	mac := hmac.New(sha256.New, k.mac)
	var length [8]byte
	for _, part := range []string{m.prefix, m.selectors} {
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		mac.Write(length[:])
		mac.Write([]byte(part))
	}
	mac.Write(plain)
	return mac.Sum(nil)[:16]
}

// seal writes a token for the list that m selects.
func (c *tokenCodec) seal(t continueToken, m *matcher) string {
	k := &c.keys[0]
	plain := binary.BigEndian.AppendUint32(nil, t.lineage)
	plain = binary.AppendVarint(binary.AppendVarint(plain, t.rev), t.remaining)
	plain = append(plain, t.start...)
	tag := k.tag(plain, m)
	cipher.NewCTR(k.block, tag).XORKeyStream(plain, plain)
	out := append(append([]byte{tokenVersion}, k.id[:]...), tag...)
	return base64.RawURLEncoding.EncodeToString(append(out, plain...))
}

// open reads a token back. Whatever is wrong with it, the answer is the same 400 and says nothing about why.
func (c *tokenCodec) open(text string, m *matcher) (*continueToken, error) {
	bad := apierrors.NewBadRequest("invalid continue token: continue key is not valid")
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	lines := strings.ContainsAny(text, "\r\n") // which the decoder skips
	if err != nil || lines || len(text) > maxToken || len(raw) < tokenHeader || raw[0] != tokenVersion {
		return nil, bad
	}
	for i := range c.keys {
		k := &c.keys[i]
		if !bytes.Equal(raw[1:5], k.id[:]) {
			continue
		}
		plain := make([]byte, len(raw)-tokenHeader)
		cipher.NewCTR(k.block, raw[5:tokenHeader]).XORKeyStream(plain, raw[tokenHeader:])
		if !hmac.Equal(k.tag(plain, m), raw[5:tokenHeader]) {
			return nil, bad
		}
		if t, ok := parseToken(plain); ok {
			return t, nil
		}
	}
	return nil, bad
}

func parseToken(plain []byte) (*continueToken, bool) {
	if len(plain) < 4 {
		return nil, false
	}
	t := &continueToken{lineage: binary.BigEndian.Uint32(plain)}
	plain = plain[4:]
	var n, m int
	if t.rev, n = binary.Varint(plain); n <= 0 || t.rev < 0 {
		return nil, false
	}
	if t.remaining, m = binary.Varint(plain[n:]); m <= 0 {
		return nil, false
	}
	t.start = string(plain[n+m:])
	return t, true
}
