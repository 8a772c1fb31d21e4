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
	"cmp"
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
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	listvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/features"
	kubestorage "k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/warning"

	"apilet/internal/apierror"
	"apilet/internal/auth"
	"apilet/internal/discovery"
	"apilet/internal/history"
	"apilet/internal/registry"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/routing"
	"apilet/internal/scheme"
	"apilet/internal/selector"
	"apilet/internal/shares"
	"apilet/internal/store"
	"apilet/internal/unreadable"
)

const (
	revisionPatience = 3 * time.Second // with a revision that another server has seen

	listBuffer = 1 << 20 // bytes of encoded items that a limited list collects before it looks for its end
)

// reads answers GET and LIST.
type reads struct {
	st     *store.Store
	tokens *tokenCodec
	lost   *unreadable.Unreadables // nil of the past, which nobody can mend

	// readSlots bounds how many lists read and encode at the same moment, to half of the processors: the others wait, off the run queue, for a
	// chunk's time, and a write never has to stand behind all of them. Sending is not bounded.
	readSlots chan struct{}

	podsByNode *store.Index // nil of the past

	storage func() error // why what holds the objects does not answer, nil while it does; nil of the past

	at   int64         // all is read as it was at this revision; 0: as it is
	past history.Reach // who may see what of the past
}

// asOf answers as it was at a revision.
func (rd *reads) asOf(rev int64) *reads {
	then := *rd
	then.at, then.lost, then.podsByNode, then.storage = rev, nil, nil, nil
	return &then
}

// ---- GET ----

// get answers one object. resourceVersion is a lower bound here, and the newest version satisfies every bound that exists.
func (rd *reads) get(w http.ResponseWriter, r *http.Request, asked *request.Request, res *scheme.Resource) error {
	v, err := response.NewView(r, asked, res)
	if err != nil {
		return err
	}
	query := r.URL.Query()
	if _, err := rd.lowerBound(r.Context(), query.Get("resourceVersion"), ""); err != nil {
		return err
	}
	var export bool
	exports := query["export"]
	if _ = runtime.Convert_Slice_string_To_bool(&exports, &export, nil); export {
		return apierrors.NewBadRequest("the export parameter, deprecated since v1.14, is no longer supported")
	}
	info := &asked.Info
	key := res.Key(res.Scope(info.Namespace), info.Name)
	rec, err := rd.whole(r.Context(), w, key, func(stored int) int { return v.Weight(r, stored) })
	if err == nil {
		if err = res.Readable(rec.JSON); err != nil {
			rd.lost.Note(&rec, err)
		}
	}
	if err != nil {
		return response.StoreError(err, res, info.Name)
	}
	return v.Respond(w, r, http.StatusOK, &rec)
}

// newest is an object as it is, or was then.
func (rd *reads) newest(key string) (store.Record, error) {
	if rd.at != 0 {
		return rd.st.GetAt(key, rd.at)
	}
	return rd.st.Get(key)
}

// whole is newest for an answer that weighs what weigh makes of its size. What may be large is read when there is room for it.
func (rd *reads) whole(ctx context.Context, w http.ResponseWriter, key string, weigh func(stored int) int) (store.Record, error) {
	if rd.at == 0 {
		rec, size, err := rd.st.GetUpTo(key, shares.Large/4)
		if err != nil || size <= shares.Large/4 {
			return rec, err
		}
		if err := shares.Hold(ctx, w, weigh(size)); err != nil {
			return rec, err
		}
	}
	rec, err := rd.newest(key)
	if n := weigh(len(rec.JSON)); err == nil && !shares.Fits(ctx, w, n) { // of the past, or larger by now
		rec = store.Record{} // who waits holds nothing
		if err := shares.Hold(ctx, w, n); err != nil {
			return rec, err
		}
		return rd.newest(key)
	}
	return rec, err
}

// visibleSince returns the first revision at which the user may see the requested objects. See history.Reach.
func (rd *reads) visibleSince(ctx context.Context, res *scheme.Resource) (int64, error) {
	rec := request.From(ctx)
	return rd.past.Since(rec.User, rec.Info, res.Key(res.Scope(rec.Info.Namespace), rec.Info.Name))
}

// hides reports whether the user may not see the requested objects as they were at revision rev.
func (rd *reads) hides(ctx context.Context, res *scheme.Resource, rev int64) (bool, error) {
	since, err := rd.visibleSince(ctx, res)
	return rev < since, err
}

// warnOfHidden tells apart what is hidden from what was not there.
func warnOfHidden(ctx context.Context, rev int64) {
	warning.AddWarning(ctx, "", fmt.Sprintf("what is asked for begins after revision %d: what had its name before, or its namespace's, is not shown", rev))
}

// begun answers 404 for one object of the past that is hidden.
func (rd *reads) begun(ctx context.Context, rec *request.Request, res *scheme.Resource) error {
	info := &rec.Info
	if rd.at == 0 || !info.Form.Named {
		return nil
	}
	hidden, err := rd.hides(ctx, res, rd.at)
	if err != nil || !hidden {
		return err
	}
	warnOfHidden(ctx, rd.at)
	return apierrors.NewNotFound(res.GroupResource(), info.Name)
}

// lowerBound parses a resourceVersion, and waits until the store shows it: for what is newest now if there is none, for nothing if it is 0. A
// revision that does not come is refused. what names the failing part of a message.
func (rd *reads) lowerBound(ctx context.Context, rv, what string) (int64, error) {
	switch {
	case rv == "" && rd.at == 0:
		_, err := rd.st.Current(ctx)
		return 0, err
	case rv == "", rv == "0":
		return 0, nil
	}
	n, err := strconv.ParseUint(rv, 10, 64)
	if err != nil {
		text := field.Invalid(field.NewPath("resourceVersion"), rv, err.Error()).Error()
		if what == "" {
			return 0, apierror.Unexplained(text)
		}
		return 0, apierrors.NewBadRequest(what + text)
	}
	if rd.at != 0 && n > uint64(rd.at) {
		return 0, rd.tooLarge(rv)
	}
	if n <= uint64(rd.st.Revision()) {
		return int64(n), nil
	}
	if err := rd.st.Upcoming(ctx, n, revisionPatience); err != nil {
		return 0, rd.tooLarge(rv)
	}
	return int64(n), nil
}

// tooLarge is the answer to a revision of the future. As kube-apiserver a replica waits for it for three seconds and says when to ask again.
// Where the file is all that there is no other server can be ahead, so the answer comes at once, and without Retry-After: client-go would ask ten
// times before it lists anew.
func (rd *reads) tooLarge(rv string) error {
	current, retry := cmp.Or(rd.at, rd.st.Revision()), 0
	if rd.at == 0 && rd.st.Shared() {
		retry = 1
	}
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %s, current: %d", rv, current), retry)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
	return err
}

// storageComponent is what kube-apiserver calls its etcd among the components that it watches over.
const storageComponent = "etcd-0"

// components answers GET and LIST of componentstatuses, of which nothing is stored. What holds the objects is the one component that a server knows
// of; kube-apiserver also asks for a scheduler and a controller manager on its own machine.
func (rd *reads) components(w http.ResponseWriter, r *http.Request, asked *request.Request, res *scheme.Resource) error {
	info := &asked.Info
	v, err := response.NewView(r, asked, res)
	if err != nil {
		return err
	}
	if rd.storage == nil && !info.Form.Named {
		return sendNothing(w, r, v, rd.at)
	}
	if info.Form.Named {
		if info.Name != storageComponent || rd.storage == nil {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "componentstatus"}, info.Name)
		}
		rec, err := rd.storageStatus(res)
		if err != nil {
			return err
		}
		return v.Respond(w, r, http.StatusOK, rec)
	}
	q, err := parseQuery(res, info)
	if err != nil {
		return err
	}
	if err := v.Media.Check(res, true); err != nil {
		return err
	}
	rec, err := rd.storageStatus(res)
	if err != nil {
		return err
	}
	l := &lister{v: v, walk: walk{done: true}, bare: true}
	if q.match.Matches(rec.Key, rec.JSON) {
		if l.items, err = v.Item(nil, rec); err != nil {
			return err
		}
		l.bare = false
	}
	return l.send(r.Context(), w, r, response.ListMeta{})
}

// storageStatus says how what holds the objects is.
func (rd *reads) storageStatus(res *scheme.Resource) (*store.Record, error) {
	condition := corev1.ComponentCondition{Type: corev1.ComponentHealthy, Status: corev1.ConditionTrue, Message: "ok"}
	if err := rd.storage(); err != nil {
		condition.Status, condition.Message, condition.Error = corev1.ConditionFalse, "", err.Error()
	}
	body, err := json.Marshal(&corev1.ComponentStatus{ObjectMeta: metav1.ObjectMeta{Name: storageComponent}, Conditions: []corev1.ComponentCondition{condition}})
	return &store.Record{Key: res.Key("", storageComponent), JSON: body}, err
}

// sendNothing answers with an empty list.
func sendNothing(w http.ResponseWriter, r *http.Request, v *response.View, rev int64) error {
	l := &lister{v: v, walk: walk{done: true}}
	return l.send(r.Context(), w, r, response.ListMeta{Rev: rev})
}

// ---- LIST ----

// A query is what a LIST or WATCH asks for, parsed and checked.
type query struct {
	internalversion.ListOptions
	match selector.Matcher
}

// parseQuery checks what a LIST, WATCH or DELETE of a collection asks for, and makes its selectors ready.
func parseQuery(res *scheme.Resource, info *request.Info) (*query, error) {
	options, err := info.ListOptions()
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	q := &query{ListOptions: internalversion.ListOptions{Watch: info.Verb == "watch", AllowWatchBookmarks: options.AllowWatchBookmarks,
		ResourceVersion: options.ResourceVersion, ResourceVersionMatch: options.ResourceVersionMatch, TimeoutSeconds: options.TimeoutSeconds,
		Limit: max(options.Limit, 0), Continue: options.Continue, SendInitialEvents: options.SendInitialEvents}}
	terms, err := selector.Read(options.LabelSelector, options.FieldSelector)
	if err != nil {
		return nil, err
	}
	checked := q.ListOptions
	internalversion.SetListOptionsDefaults(&checked, true)
	if errs := listvalidation.ValidateListOptions(&checked, utilfeature.DefaultFeatureGate.Enabled(features.WatchList)); len(errs) > 0 {
		return nil, apierror.Invalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	q.match, err = terms.For(res, info)
	return q, err
}

// A position is where a LIST reads next.
type position struct {
	rev       int64  // 0 is "now"
	start     string // the first key, "" for the beginning
	remaining int64  // objects from start on, -1 when nobody has counted them
	token     *continueToken
}

// locate is the decision table at the top of this file.
func (rd *reads) locate(ctx context.Context, q *query) (position, error) {
	if q.Continue != "" {
		return rd.resume(ctx, q)
	}
	pos := position{rev: rd.at, remaining: -1}
	bound, err := rd.lowerBound(ctx, q.ResourceVersion, "invalid resource version: ")
	if err != nil {
		return pos, err
	}
	exact := q.ResourceVersionMatch == metav1.ResourceVersionMatchExact
	if legacy := q.ResourceVersionMatch == "" && q.Limit > 0; exact || legacy {
		pos.rev = cmp.Or(bound, rd.at)
	}
	return pos, nil
}

// resume continues a list where its token says.
func (rd *reads) resume(ctx context.Context, q *query) (position, error) {
	token, err := rd.tokens.open(q.Continue, &q.match)
	if err != nil {
		return position{}, err
	}
	if q.ResourceVersion != "" && q.ResourceVersion != "0" {
		return position{}, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
	}
	if token.rev == 0 && rd.at != 0 {
		token.rev, token.lineage = rd.at, lineageMark(rd.st)
	}
	if token.rev == 0 { // "now", as without a token
		if _, err := rd.st.Current(ctx); err != nil {
			return position{}, err
		}
	} else if token.lineage == lineageMark(rd.st) && rd.st.Upcoming(ctx, uint64(token.rev), revisionPatience) != nil { // another server was ahead
		return position{}, rd.tooLarge(strconv.FormatInt(token.rev, 10))
	}
	pos := position{rev: token.rev, start: q.match.Prefix + token.start, remaining: token.remaining, token: token}
	if token.rev != 0 && (token.lineage != lineageMark(rd.st) || token.rev < rd.st.Compacted()) {
		return pos, rd.expired(&q.match, token)
	}
	return pos, nil
}

// expired is the 410 that offers a way on: a token for the same key at whatever revision is the newest then.
func (rd *reads) expired(m *selector.Matcher, token *continueToken) error {
	err := apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. " +
		"You can start a new list without the continue parameter, or use the continue token in this response to retrieve the " +
		"remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, " +
		"modified, or deleted between the time the first chunk was returned and now may show up in the list.")
	err.ErrStatus.Continue = rd.tokens.seal(continueToken{start: token.start, remaining: -1, lineage: lineageMark(rd.st)}, m)
	return err
}

// list answers a collection. What is small is answered whole, the rest is streamed.
func (rd *reads) list(w http.ResponseWriter, r *http.Request, asked *request.Request, res *scheme.Resource) error {
	return rd.listAnd(w, r, asked, res, nil)
}

// listAnd is list with something done to the objects of each chunk before they are shown: DELETE of a collection.
func (rd *reads) listAnd(w http.ResponseWriter, r *http.Request, asked *request.Request, res *scheme.Resource, do func(context.Context, []*store.Record) error) error {
	v, err := response.NewView(r, asked, res)
	if err != nil {
		return err
	}
	q, err := parseQuery(res, &asked.Info)
	if err != nil {
		return err
	}
	pos, err := rd.locate(r.Context(), q)
	if err != nil {
		return err
	}
	if err := v.Media.Check(res, true); err != nil {
		return err
	}
	if pos.rev != 0 {
		switch hidden, err := rd.hides(r.Context(), res, pos.rev); {
		case err != nil:
			return err
		case hidden:
			warnOfHidden(r.Context(), pos.rev)
			return sendNothing(w, r, v, pos.rev)
		}
	}
	l := newLister(rd, v, q, pos)
	l.do, l.w = do, w
	if do == nil {
		l.keys, l.rev = rd.keysOf(r.Context(), &q.match, l.rev)
	}
	defer l.release()
	_, stored, _ := rd.st.Count(q.match.Prefix)
	if l.weight = int(min(stored, int64(l.room()+shares.Large))); l.weight > shares.Large {
		if err := shares.Hold(r.Context(), w, l.weight); err != nil {
			return err
		}
	}
	if err := l.collect(r.Context(), l.room()); err != nil {
		return rd.listError(err, q, pos, res)
	}
	rest, meta := l, response.ListMeta{Rev: l.rev}
	switch {
	case q.Limit > 0:
		rest, meta, err = rd.limitedMeta(r.Context(), l)
	case v.Measured():
		rest, err = l.findEnd(r.Context())
	}
	if err != nil {
		return rd.listError(err, q, pos, res)
	}
	l.setAside()
	defer rest.setAside()
	return rest.send(r.Context(), w, r, meta)
}

// keysOf narrows the Pods of a node, for which each kubelet asks, to their keys at a revision; 0 is the newest, which is then returned. nil: all are
// looked at.
func (rd *reads) keysOf(ctx context.Context, m *selector.Matcher, rev int64) (keys []string, at int64) {
	_, field, node := m.Demands()
	if rd.podsByNode == nil || field != podNode || node == "" || !strings.HasPrefix(m.Span, podKeys) {
		return nil, rev
	}
	if at = rev; at == 0 {
		at = rd.st.Revision()
	}
	keys, ok := rd.podsByNode.Keys(ctx, node, at)
	if !ok {
		return nil, rev
	}
	return keys, at
}

// podKeys and podNode are what an index is for.
const podKeys, podNode = "//pods/", "spec.nodeName"

// listError is response.StoreError with the 410 of a continued list told apart.
func (rd *reads) listError(err error, q *query, pos position, res *scheme.Resource) error {
	if errors.Is(err, store.ErrCompacted) && pos.token != nil {
		return rd.expired(&q.match, pos.token)
	}
	return response.StoreError(err, res, "")
}

// limitedMeta finds what a limited list says in its metadata: the token of the next chunk and how many objects are left. The lister
// that it returns has the rest of the page before it.
func (rd *reads) limitedMeta(ctx context.Context, l *lister) (rest *lister, meta response.ListMeta, err error) {
	meta.Rev = l.rev
	rest, err = l.findEnd(ctx)
	if err != nil || l.end == "" {
		return rest, meta, err
	}
	token := continueToken{rev: l.rev, start: strings.TrimPrefix(l.end, l.q.match.Prefix), remaining: -1, lineage: lineageMark(rd.st)}
	if l.q.match.Everything() {
		left, err := l.left()
		if err != nil {
			return rest, meta, err
		}
		token.remaining, meta.Remaining = left, &left
	}
	meta.Cont = rd.tokens.seal(token, &l.q.match)
	return rest, meta, nil
}

// A lister walks the objects of one LIST at one revision.
type lister struct {
	rd  *reads
	v   *response.View
	q   *query
	pos position
	walk
	do func(context.Context, []*store.Record) error

	items []byte // encoded items that were not sent yet
	bare  bool   // nothing has been encoded yet: no separator before the next item
	ahead int64  // bytes of the items that are still to be encoded, where that is measured

	w      http.ResponseWriter // whose request holds what the list takes
	weight int                 // that it takes, in bytes, without large objects
	heavy  int                 // with those of the present chunk

	uncounted bool // only where the page ends is of interest, not what its objects say
}

// A walk is how far a lister is.
type walk struct {
	chunk *store.Chunk
	found []*store.Record // the objects of the present chunk
	rev   int64           // the list's revision, known after the first chunk
	keys  []string        // nil: all in the span are looked at
	next  string          // where the next chunk starts
	done  bool            // the range, or the limit, is exhausted
	last  string          // the last key taken
	taken int64           // objects taken so far
	end   string          // where the next page starts, "" when this page is the last; known once done or after findEnd
}

// errHeavy is for a chunk that has to be read again when there is room for it.
var errHeavy = errors.New("no room for large objects")

var (
	itemsPool = sync.Pool{New: func() any { return new([]byte) }}
)

func newLister(rd *reads, v *response.View, q *query, pos position) *lister {
	items := *itemsPool.Get().(*[]byte)
	return &lister{rd: rd, v: v, q: q, pos: pos, items: items[:0], walk: walk{rev: pos.rev, next: pos.start}, bare: true}
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
	store.ChunkPool.Put(l.chunk)
	l.chunk, l.found = nil, nil
}

// room is how much is collected before the head is sent. A limited list needs to know its end by then, and one whose length comes first
// that; another one only whether it is small enough to be sent whole.
func (l *lister) room() int {
	if l.q.Limit > 0 || l.v.Measured() {
		return listBuffer
	}
	return response.GzipThreshold
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

// advance reads and encodes one chunk, in its turn. A list that waits for commits or for a conversion webhook holds no slot meanwhile.
func (l *lister) advance(ctx context.Context) error {
	return l.inTurn(ctx, func() error {
		if err := l.step(ctx); err != nil {
			return err
		}
		if l.do != nil {
			if err := l.do(ctx, append(l.found, l.damaged()...)); err != nil {
				return err
			}
		}
		return l.encode(ctx)
	})
}

// inTurn reads a chunk when it is its turn, and again if that has large objects for which there was no room.
func (l *lister) inTurn(ctx context.Context, read func() error) error {
	for {
		err := l.oneTurn(ctx, read)
		if !errors.Is(err, errHeavy) {
			return err
		}
		l.setAside()
		if err := shares.Hold(ctx, l.w, l.heavy); err != nil {
			return err
		}
	}
}

func (l *lister) oneTurn(ctx context.Context, read func() error) error {
	if l.do != nil || l.v.Res.Converts() {
		return read()
	}
	select {
	case l.rd.readSlots <- struct{}{}:
		defer func() { <-l.rd.readSlots }()
		return read()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// encode appends what was found. An object that cannot be read is left out, and the others are served.
func (l *lister) encode(ctx context.Context) error {
	for _, rec := range l.found {
		if err := ctx.Err(); err != nil {
			return err
		}
		if l.rd.lost.Has(rec) {
			continue
		}
		before, bare := len(l.items), l.bare
		if !bare {
			l.items = append(l.items, l.v.Separator()...)
		}
		items, err := l.v.Item(l.items, rec)
		if l.items, l.bare = items, false; err == nil {
			continue
		}
		if !errors.Is(err, scheme.ErrUnreadable) {
			return err
		}
		l.rd.lost.Note(rec, err)
		l.items, l.bare = l.items[:before], bare
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
		l.chunk = store.ChunkPool.Get().(*store.Chunk)
	}
	s := store.Span{Prefix: l.q.match.Span, Start: l.next, Rev: l.rev, Sound: l.do != nil, Keys: l.keys}
	if l.q.Limit > 0 && l.q.match.Everything() {
		s.Items = int(min(l.q.Limit-l.taken+1, 500))
	}
	if err := l.rd.st.Chunk(s, l.chunk); err != nil {
		return err
	}
	if len(l.chunk.Sealed) > 0 { // what is to be done to all is done to none of these
		return l.chunk.Sealed[0].Err
	}
	if n := heavy(l.chunk.Records); n > 0 {
		if l.heavy = l.weight + n; !shares.Fits(ctx, l.w, l.heavy) {
			return errHeavy
		}
	}
	l.rev, l.next = l.chunk.Rev, l.chunk.Next
	l.done = l.next == ""
	if err := l.convert(ctx); err != nil {
		return err
	}
	for i := range l.chunk.Records {
		if err := ctx.Err(); err != nil {
			return err // the chunk's objects may be megabytes each
		}
		rec := &l.chunk.Records[i]
		if !l.q.match.Matches(rec.Key, rec.JSON) || l.do == nil && l.rd.lost.Has(rec) {
			continue
		}
		if l.q.Limit > 0 && l.taken == l.q.Limit {
			l.done, l.end = true, l.last+"\x00"
			return nil
		}
		l.taken, l.last = l.taken+1, rec.Key
		l.found = append(l.found, rec)
	}
	return nil
}

// damaged are the chunk's objects of which nothing but the key can be read, for a DELETE of all that there is: whether a selector matches them
// nobody knows.
func (l *lister) damaged() (records []*store.Record) {
	if !l.q.match.Everything() || l.q.Limit > 0 {
		return nil
	}
	for _, key := range l.chunk.Damaged {
		records = append(records, &store.Record{Key: key})
	}
	return records
}

// heavy is what the large objects of a chunk take, here and in the answer; 0 where there are none.
func heavy(records []store.Record) (n int) {
	for i := range records {
		if size := len(records[i].JSON); size > shares.Large {
			n += 2 * size
		}
	}
	return n
}

// convert has a webhook convert the chunk, if the type has one: all that may be shown at once, and before selectors look at it.
func (l *lister) convert(ctx context.Context) error {
	if !l.v.Res.Converts() || l.uncounted && l.q.match.Everything() {
		return nil
	}
	var records []*store.Record
	for i := range l.chunk.Records {
		full := l.q.Limit > 0 && l.q.match.Everything() && l.taken+int64(len(records)) >= l.q.Limit
		if rec := &l.chunk.Records[i]; !full && !l.rd.lost.Has(rec) {
			records = append(records, rec)
		}
	}
	return response.Convert(ctx, l.v.Res, records...)
}

// findEnd walks to the end of the page without keeping what did not fit into the buffer: how many objects the page has, where the next one
// starts, and perhaps how long it is, is needed before the first byte. It returns the lister as it stood, to send the rest.
func (l *lister) findEnd(ctx context.Context) (*lister, error) {
	if l.done {
		return l, nil
	}
	rest := *l
	rest.chunk, rest.found = nil, nil
	l.uncounted = !l.v.Measured()
	for !l.done {
		if err := l.survey(ctx); err != nil {
			return &rest, err
		}
	}
	rest.ahead = l.ahead
	return &rest, nil
}

// survey reads a chunk, and measures it where the length comes first. That takes as long as encoding it does, and waits for its turn.
func (l *lister) survey(ctx context.Context) error {
	if !l.v.Measured() {
		return l.inTurn(ctx, func() error { return l.step(ctx) })
	}
	return l.inTurn(ctx, func() error {
		if err := l.step(ctx); err != nil {
			return err
		}
		return l.measure()
	})
}

// measure adds up what the chunk's objects will take.
func (l *lister) measure() error {
	scratch := itemsPool.Get().(*[]byte)
	defer itemsPool.Put(scratch)
	for _, rec := range l.found {
		item, err := l.v.SealedItem((*scratch)[:0], rec)
		switch {
		case err == nil:
			l.ahead += int64(len(item))
		case errors.Is(err, scheme.ErrUnreadable):
			l.rd.lost.Note(rec, err)
		default:
			return err
		}
		*scratch = item[:0]
	}
	return nil
}

// left counts the objects behind this page: from what the token says, from the store's counters, else by a walk over keys.
func (l *lister) left() (int64, error) {
	if l.pos.remaining >= 0 {
		return l.pos.remaining - l.taken, nil
	}
	if total, _, rev := l.rd.st.Count(l.q.match.Prefix); rev == l.rev && l.pos.token == nil {
		return total - l.taken, nil
	}
	return l.rd.st.CountAt(l.q.match.Prefix, l.end, l.rev)
}

// send writes the list: head, what was collected, what is left to read, tail.
func (l *lister) send(ctx context.Context, w http.ResponseWriter, r *http.Request, meta response.ListMeta) error {
	promised := int64(len(l.items)) + l.ahead
	head, tail, err := l.ends(meta, promised)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", l.v.ContentType())
	w.Header().Set("Cache-Control", "no-cache, private")
	if l.done && l.v.Media.Format == scheme.JSONFormat && (l.v.Media.Pretty || response.WantsPretty(r)) {
		shares.Insist(ctx, w, l.v.Weight(r, len(l.items)))
		response.WriteJSON(w, r, http.StatusOK, bytes.TrimSuffix(slices.Concat(head, l.items, tail), []byte("\n")))
		return nil
	}
	if l.done {
		l.slim()
		l.items = append(l.items, tail...) // one write less than by itself
		return sendWhole(w, r, head, l.items)
	}
	if l.v.Measured() && !response.Compresses(r, listBuffer) {
		w.Header().Set("Content-Length", strconv.FormatInt(int64(len(head)+len(tail))+promised, 10))
	}
	out, finish := response.Compress(w, r, listBuffer)
	defer finish()
	if _, err := out.Write(head); err != nil {
		return response.ErrAborted
	}
	for {
		l.setAside()
		if promised -= int64(len(l.items)); l.done {
			break
		}
		if _, err := out.Write(l.items); err != nil {
			return response.ErrAborted
		}
		if l.items = l.items[:0]; cap(l.items) > 2*listBuffer { // for a large object
			l.items = nil
		}
		if err := l.collect(ctx, 1); err != nil {
			return response.ErrAborted // the head is out, and a short list must not look whole
		}
	}
	if l.v.Measured() && promised != 0 {
		return response.ErrAborted // the length that stands in the head is not this list's
	}
	l.items = append(l.items, tail...)
	_, err = out.Write(l.items)
	return err
}

// slim changes a buffer that other lists have made wide for one that fits: nobody has asked for room for it.
func (l *lister) slim() {
	if cap(l.items) <= shares.Large || cap(l.items) <= 2*len(l.items) {
		return
	}
	wide := l.items
	l.items = append(make([]byte, 0, len(wide)+512), wide...)
	itemsPool.Put(&wide)
}

// ends are what stands before and behind the items, of which there are so many bytes.
func (l *lister) ends(meta response.ListMeta, items int64) (head, tail []byte, err error) {
	if l.v.Measured() {
		return l.v.SealedEnds(meta, items)
	}
	head, tail = l.v.ListHead(nil, meta), l.v.ListTail(meta)
	if l.done && l.bare {
		head, tail = l.v.WithoutItems(head, tail)
	}
	return head, tail, nil
}

// sendWhole answers with parts that are complete in memory.
func sendWhole(w http.ResponseWriter, r *http.Request, parts ...[]byte) error {
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	if !response.Compresses(r, size) {
		w.Header().Set("Content-Length", strconv.Itoa(size))
	}
	out, finish := response.Compress(w, r, size)
	defer finish()
	for _, part := range parts {
		if _, err := out.Write(part); err != nil {
			return response.ErrAborted
		}
	}
	return nil
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
func lineageMark(st *store.Store) uint32 {
	id := st.Lineage()
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
func (k *tokenKey) tag(plain []byte, m *selector.Matcher) []byte {
	mac := hmac.New(sha256.New, k.mac)
	var length [8]byte
	for _, part := range []string{m.Prefix, m.Selectors} {
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		mac.Write(length[:])
		mac.Write([]byte(part))
	}
	mac.Write(plain)
	return mac.Sum(nil)[:16]
}

// seal writes a token for the list that m selects.
func (c *tokenCodec) seal(t continueToken, m *selector.Matcher) string {
	k := &c.keys[0]
	plain := binary.BigEndian.AppendUint32(nil, t.lineage)
	plain = binary.AppendVarint(binary.AppendVarint(plain, t.rev), t.remaining)
	plain = append(plain, t.start...)
	tag := k.tag(plain, m)
	cipher.NewCTR(k.block, tag).XORKeyStream(plain, plain)
	out := append(append([]byte{tokenVersion}, k.id[:]...), tag...)
	return base64.RawURLEncoding.EncodeToString(append(out, plain...))
}

// open reads a token back. What was never one of ours is told as kube-apiserver would; of a token of ours that is not whole, or belongs to another
// list, the 400 says nothing about why.
func (c *tokenCodec) open(text string, m *selector.Matcher) (*continueToken, error) {
	const invalid = "invalid continue token: continue key is not valid"
	bad := apierrors.NewBadRequest(invalid)
	if len(text) > maxToken || strings.ContainsAny(text, "\r\n") { // lines the decoder would skip
		return nil, bad
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(raw) == 0 || raw[0] != tokenVersion {
		return nil, foreignToken(text)
	}
	if len(raw) < tokenHeader || base64.RawURLEncoding.EncodeToString(raw) != text {
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

// foreignToken is the answer to what another server may have made. A kube-apiserver may serve the same etcd behind the same balancer, and its client,
// who has done nothing wrong, begins anew upon a 410, as with any token that has expired; a 400 it would take for the end.
func foreignToken(text string) error {
	if _, _, err := kubestorage.DecodeContinue(text, "/"); err != nil {
		return apierrors.NewBadRequest("invalid continue token: " + err.Error())
	}
	return apierrors.NewResourceExpired("The provided continue parameter is a kube-apiserver's and leads nowhere here: start a new list without the continue parameter.")
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

// ---- The API of one moment ----

const lateAnswer = 5 * time.Second // for a refusal to be written once the time of its request is over

// A readAPI is what is served at one moment, for reading.
type readAPI struct {
	types      *scheme.Registry
	rd         *reads
	auth       *auth.Authenticator
	deprecated *deprecatedVersions
	log        zerolog.Logger
}

func (ra *readAPI) serveDiscovery(w http.ResponseWriter, r *http.Request) {
	discovery.ServeDiscovery(ra.types, w, r)
}

func (ra *readAPI) serveOpenAPI(w http.ResponseWriter, r *http.Request) {
	discovery.ServeOpenAPI(ra.types, "", w, r)
}

func (ra *readAPI) serveSwagger(w http.ResponseWriter, r *http.Request) {
	discovery.ServeSwagger(ra.types, nil, w, r)
}

// serveAPI answers everything below /api/ and /apis/.
func (ra *readAPI) serveAPI(w http.ResponseWriter, r *http.Request) {
	rec := request.From(r.Context())
	res, err := ra.typeOf(w, r, rec)
	if res != nil && err == nil {
		err = ra.serveResource(w, r, rec, res)
	}
	ra.end(w, r, err)
}

// typeOf is the type that a request is for, once it is known that it has such a path and method. It is nil where the request is for none and has been
// answered.
func (ra *readAPI) typeOf(w http.ResponseWriter, r *http.Request, rec *request.Request) (*scheme.Resource, error) {
	info := &rec.Info
	if !info.ResourceRequest {
		ra.serveDiscovery(w, r)
		return nil, nil
	}
	if legacy := info.APIPrefix == "api"; legacy != (info.Group == "") { // /apis//v1/pods
		http.NotFound(w, r)
		return nil, nil
	}
	res := ra.types.Lookup(info.Group, info.Version, info.Resource)
	if res == nil {
		discovery.ServeUnknown(ra.types, w, r, info.Group)
		return nil, nil
	}
	if res.GoType == nil && !routing.HasPath(res, info) {
		http.NotFound(w, r)
		return nil, nil
	}
	routed := routing.Routed(res, info, r.Method)
	if routed != nil && res.Custom == nil {
		return nil, routed
	}
	if problems := path.IsValidPathSegmentName(info.Name); info.Form.Named && len(problems) > 0 {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("Name parameter invalid: %q: %s", info.Name, strings.Join(problems, ";")))
	}
	return res, cmp.Or(ra.deprecated.note(r, rec, res), routed) // of a custom resource's version also where it has no such part
}

// end is the end of a request that was answered, or is to be by an error.
func (ra *readAPI) end(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, response.ErrAborted) {
		panic(http.ErrAbortHandler)
	}
	if err != nil {
		ra.fail(w, r, err)
	}
}

// fail answers with an error, and logs the ones that are nobody's fault but ours. A request that ran out
// of time is not.
func (ra *readAPI) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil { // a computation may have gone on for longer than the connection was to be written to
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(lateAnswer))
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
	}
	if unexpected := response.Refuse(w, r, err); unexpected != nil {
		ra.log.Error().Err(unexpected).Str("path", r.URL.Path).Str("id", request.From(r.Context()).ID).Msg("internal error")
	}
}

// serveResource answers a read of a resource that is served.
func (ra *readAPI) serveResource(w http.ResponseWriter, r *http.Request, rec *request.Request, res *scheme.Resource) error {
	info := &rec.Info
	if err := ra.rd.begun(r.Context(), rec, res); err != nil {
		return err
	}
	if info.Subresource != "" {
		return ra.serveSubresource(w, r, rec, res)
	}
	switch {
	case info.Verb != "get" && info.Verb != "list":
		return apierror.MethodNotAllowed()
	case res.Virtual:
		return ra.rd.components(w, r, rec, res)
	case info.Verb == "get":
		return ra.rd.get(w, r, rec, res)
	}
	return ra.rd.list(w, r, rec, res)
}

// serveSubresource answers a read of a part of an object.
func (ra *readAPI) serveSubresource(w http.ResponseWriter, r *http.Request, rec *request.Request, res *scheme.Resource) error {
	info := &rec.Info
	if err := routing.HasVerb(res, info); err != nil {
		return err
	}
	switch {
	case request.Connects(info.Subresource):
		return apierrors.NewBadRequest("the past has no Pods to connect to: ask without /at/")
	case info.Verb != "get":
		return apierror.MethodNotAllowed()
	case info.Subresource == "scale":
		return registry.ShowScale(ra.rd.newest, w, r, rec, res)
	}
	return ra.rd.get(w, r, rec, res)
}
