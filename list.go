// This file handles reads of single objects and lists. It implements two Kubernetes designs: "Allow
// clients to retrieve consistent API lists in chunks" (limit and continue) and "Consistent Resource
// Version Semantics for List" (resourceVersionMatch). A list is read at one revision, and the store
// can read any revision that is not compacted. Both designs therefore determine only the revision
// and the first key, according to the table below. RV is the resourceVersion. N is an existing
// revision, F is a future one, and "now" is the newest one at the first read.
//
//	continue  RV      match         limit   reads
//	--------  ------  ------------  ------  -------------------------------------------------------------
//	-         "", 0   -             any     now
//	-         0, N    NotOlderThan  any     now (the only copy is the newest one)
//	-         N       -             none    now: without a match, RV is a lower bound
//	-         N       -             n       exactly N: the legacy rule, paging pins the revision
//	-         N       Exact         any     exactly N, or 410 Expired once N is compacted
//	-         F       any           any     504 Timeout, cause ResourceVersionTooLarge
//	-         0       Exact         any     422
//	-         ""      set           any     422: a match needs an RV
//	token     "", 0   -             any     at the token's revision, from the token's key on
//	token     N       -             any     400: the token contains the revision
//	token     any     set           any     422
//
// A LIST is never completely in memory. Each chunk is copied in a short read transaction and then
// sent, and all chunks show the same revision. The continue token of a limited list comes before
// the items, so a limited list is searched for its end first.
package main

import (
	"bytes"
	"cmp"
	"context"
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
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/warning"

	"apilet/internal/apierror"
	"apilet/internal/auth"
	"apilet/internal/continuetoken"
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
	revisionPatience = 3 * time.Second // maximum wait for a revision that another server has seen

	// listBuffer is the number of bytes that a limited list encodes before it looks for its end.
	listBuffer = 1 << 20
)

// reads handles GET and LIST.
type reads struct {
	st     *store.Store
	tokens *continuetoken.Codec
	lost   *unreadable.Unreadables // nil when reading the past, which cannot be repaired

	// readSlots limits the number of lists that read and encode concurrently to half of the
	// processors. Other lists wait for a slot, so that writes do not have to compete with all of
	// them for the processors. Sending is not limited.
	readSlots chan struct{}

	podsByNode *store.Index // nil when reading the past

	storage func() error // returns why the storage is unavailable, if it is; nil when reading the past

	at   int64         // if not 0, reads show this revision
	past history.Reach // decides which revisions a user may see
}

// asOf returns a copy of rd that reads at revision rev.
func (rd *reads) asOf(rev int64) *reads {
	then := *rd
	then.at, then.lost, then.podsByNode, then.storage = rev, nil, nil, nil
	return &then
}

// ---- GET ----

// get returns one object. resourceVersion is a lower bound, so the newest version is always valid.
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

// newest returns the current version of the object, or its version at rd.at if that is set.
func (rd *reads) newest(key string) (store.Record, error) {
	if rd.at != 0 {
		return rd.st.GetAt(key, rd.at)
	}
	return rd.st.Get(key)
}

// whole reads an object like newest. Large objects are read only after memory was reserved. weigh
// returns the memory that a response needs for an object of a given size.
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
	if n := weigh(len(rec.JSON)); err == nil && !shares.Fits(ctx, w, n) { // the object is from the past or has grown
		rec = store.Record{} // drop the object before waiting for memory
		if err := shares.Hold(ctx, w, n); err != nil {
			return rec, err
		}
		return rd.newest(key)
	}
	return rec, err
}

// visibleSince returns the first revision at which the user may see the requested objects. See
// history.Reach.
func (rd *reads) visibleSince(ctx context.Context, res *scheme.Resource) (int64, error) {
	rec := request.From(ctx)
	return rd.past.Since(rec.User, rec.Info, res.Key(res.Scope(rec.Info.Namespace), rec.Info.Name))
}

// hides reports whether the user may not see the requested objects as they were at revision rev.
func (rd *reads) hides(ctx context.Context, res *scheme.Resource, rev int64) (bool, error) {
	since, err := rd.visibleSince(ctx, res)
	return rev < since, err
}

// warnOfHidden warns that the name may have belonged to an older object that is not shown.
func warnOfHidden(ctx context.Context, rev int64) {
	warning.AddWarning(ctx, "", fmt.Sprintf("what is asked for begins after revision %d: what had its name before, or its namespace's, is not shown", rev))
}

// begun returns a 404 if the request names an object of the past that the user may not see.
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

// lowerBound parses a resourceVersion and waits until the store has reached it. If rv is empty, it
// waits for the newest revision; if rv is 0, it does not wait. It returns an error if the revision
// does not arrive. what is a prefix of the error message.
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

// tooLarge returns the error for a future revision. Like kube-apiserver, a replica waits three
// seconds for the revision and returns an error with Retry-After. With a data file no other server
// can be ahead. In that case tooLarge omits Retry-After and lowerBound does not wait. Otherwise
// client-go would retry ten times before it lists again.
func (rd *reads) tooLarge(rv string) error {
	current, retry := cmp.Or(rd.at, rd.st.Revision()), 0
	if rd.at == 0 && rd.st.Shared() {
		retry = 1
	}
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %s, current: %d", rv, current), retry)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
	return err
}

// storageComponent is the name of etcd in kube-apiserver's list of components.
const storageComponent = "etcd-0"

// components handles GET and LIST of componentstatuses, which are not stored. The only component is
// the storage. kube-apiserver also checks a scheduler and a controller manager on its own machine.
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

// storageStatus returns the ComponentStatus of the storage.
func (rd *reads) storageStatus(res *scheme.Resource) (*store.Record, error) {
	condition := corev1.ComponentCondition{Type: corev1.ComponentHealthy, Status: corev1.ConditionTrue, Message: "ok"}
	if err := rd.storage(); err != nil {
		condition.Status, condition.Message, condition.Error = corev1.ConditionFalse, "", err.Error()
	}
	body, err := json.Marshal(&corev1.ComponentStatus{ObjectMeta: metav1.ObjectMeta{Name: storageComponent}, Conditions: []corev1.ComponentCondition{condition}})
	return &store.Record{Key: res.Key("", storageComponent), JSON: body}, err
}

// sendNothing sends an empty list.
func sendNothing(w http.ResponseWriter, r *http.Request, v *response.View, rev int64) error {
	l := &lister{v: v, walk: walk{done: true}}
	return l.send(r.Context(), w, r, response.ListMeta{Rev: rev})
}

// ---- LIST ----

// A query contains the validated parameters of a LIST or WATCH.
type query struct {
	internalversion.ListOptions
	match selector.Matcher
}

// parseQuery parses and validates the parameters of a LIST, a WATCH or a DELETE of a collection.
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

// A position is the place where a LIST continues to read.
type position struct {
	rev       int64  // 0 means the newest revision
	start     string // the first key; "" means the beginning
	remaining int64  // number of objects from start on; -1 if unknown
	token     *continuetoken.Token
}

// locate implements the decision table at the top of this file.
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

// resume returns the position in the continue token.
func (rd *reads) resume(ctx context.Context, q *query) (position, error) {
	token, err := rd.tokens.Open(q.Continue, &q.match)
	if err != nil {
		return position{}, err
	}
	if q.ResourceVersion != "" && q.ResourceVersion != "0" {
		return position{}, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
	}
	if token.Rev == 0 && rd.at != 0 {
		token.Rev, token.Lineage = rd.at, continuetoken.LineageOf(rd.st)
	}
	if token.Rev == 0 { // the newest revision, as without a token
		if _, err := rd.st.Current(ctx); err != nil {
			return position{}, err
		}
		// Another server on the same cluster may be ahead.
	} else if token.Lineage == continuetoken.LineageOf(rd.st) && rd.st.Upcoming(ctx, uint64(token.Rev), revisionPatience) != nil {
		return position{}, rd.tooLarge(strconv.FormatInt(token.Rev, 10))
	}
	pos := position{rev: token.Rev, start: q.match.Prefix + token.Start, remaining: token.Remaining, token: token}
	if token.Rev != 0 && (token.Lineage != continuetoken.LineageOf(rd.st) || token.Rev < rd.st.Compacted()) {
		return pos, rd.expired(&q.match, token)
	}
	return pos, nil
}

// expired returns a 410 with a new token. With it the client can continue from the same key at the
// newest revision.
func (rd *reads) expired(m *selector.Matcher, token *continuetoken.Token) error {
	err := apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. " +
		"You can start a new list without the continue parameter, or use the continue token in this response to retrieve the " +
		"remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, " +
		"modified, or deleted between the time the first chunk was returned and now may show up in the list.")
	err.ErrStatus.Continue = rd.tokens.Seal(continuetoken.Token{Start: token.Start, Remaining: -1, Lineage: continuetoken.LineageOf(rd.st)}, m)
	return err
}

// list handles a LIST. It sends small lists as a whole and streams the others.
func (rd *reads) list(w http.ResponseWriter, r *http.Request, asked *request.Request, res *scheme.Resource) error {
	return rd.listAnd(w, r, asked, res, nil)
}

// listAnd handles a LIST. If do is not nil, listAnd calls it with the objects of each chunk before
// sending them. It is used by DELETE of a collection.
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

// keysOf uses an index if the query selects the Pods of one node, as each kubelet does. It returns
// nil if the index cannot be used. If rev is 0, keysOf returns the newest revision as at.
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

// podKeys and podNode are the keys and the field of the index.
const podKeys, podNode = "//pods/", "spec.nodeName"

// listError is like response.StoreError, but returns the 410 for a continued list if the revision
// is compacted.
func (rd *reads) listError(err error, q *query, pos position, res *scheme.Resource) error {
	if errors.Is(err, store.ErrCompacted) && pos.token != nil {
		return rd.expired(&q.match, pos.token)
	}
	return response.StoreError(err, res, "")
}

// limitedMeta returns the metadata of a limited list: the token of the next page and the number of
// remaining objects. The returned lister sends the rest of the page.
func (rd *reads) limitedMeta(ctx context.Context, l *lister) (rest *lister, meta response.ListMeta, err error) {
	meta.Rev = l.rev
	rest, err = l.findEnd(ctx)
	if err != nil || l.end == "" {
		return rest, meta, err
	}
	token := continuetoken.Token{Rev: l.rev, Start: strings.TrimPrefix(l.end, l.q.match.Prefix), Remaining: -1, Lineage: continuetoken.LineageOf(rd.st)}
	if l.q.match.Everything() {
		left, err := l.left()
		if err != nil {
			return rest, meta, err
		}
		token.Remaining, meta.Remaining = left, &left
	}
	meta.Cont = rd.tokens.Seal(token, &l.q.match)
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
	bare  bool   // the next item is the first and needs no separator
	ahead int64  // bytes of the items that will be encoded later, if they are measured

	w      http.ResponseWriter // the memory is reserved for its request
	weight int                 // bytes that the list needs without large objects
	heavy  int                 // bytes that the list needs with the large objects of this chunk

	uncounted bool // skip the conversion, since only the end of the page matters
}

// A walk stores how far a lister has read.
type walk struct {
	chunk *store.Chunk
	found []*store.Record // the matching objects of the current chunk
	rev   int64           // the revision of the list, known after the first chunk
	keys  []string        // the keys to read; nil means all in the span
	next  string          // the first key of the next chunk
	done  bool            // no more objects belong to this page
	last  string          // the last key of the page so far
	taken int64           // number of objects in the page so far
	// end is the first key of the next page, or "" if this is the last page. It is known once done
	// is true or findEnd has returned.
	end string
}

// errHeavy is returned if there is not enough memory for the large objects of a chunk.
var errHeavy = errors.New("no room for large objects")

var (
	itemsPool = sync.Pool{New: func() any { return new([]byte) }}
)

func newLister(rd *reads, v *response.View, q *query, pos position) *lister {
	items := *itemsPool.Get().(*[]byte)
	return &lister{rd: rd, v: v, q: q, pos: pos, items: items[:0], walk: walk{rev: pos.rev, next: pos.start}, bare: true}
}

// release returns the buffers to their pools. Oversized buffers are left to the garbage collector.
func (l *lister) release() {
	l.setAside()
	if cap(l.items) <= 4*listBuffer {
		items := l.items
		itemsPool.Put(&items)
	}
}

// setAside returns the chunk to its pool before the lister waits for the client. Its objects are
// already encoded.
func (l *lister) setAside() {
	if l.chunk == nil {
		return
	}
	store.ChunkPool.Put(l.chunk)
	l.chunk, l.found = nil, nil
}

// room returns the number of bytes to collect before the head is sent. A limited list must find its
// end before that, and a list with a length prefix must find its length. Other lists only need to
// know whether they are small enough to be sent as a whole.
func (l *lister) room() int {
	if l.q.Limit > 0 || l.v.Measured() {
		return listBuffer
	}
	return response.GzipThreshold
}

// collect appends encoded items until they have room bytes or the page is complete.
func (l *lister) collect(ctx context.Context, room int) error {
	for !l.done && len(l.items) < room {
		if err := l.advance(ctx); err != nil {
			return err
		}
	}
	return nil
}

// advance reads and encodes one chunk, and calls do if it is set.
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

// inTurn calls read with a read slot. If the chunk has large objects and no memory is free, inTurn
// waits for memory and calls read again. Lists that wait for commits or for a conversion webhook
// use no slot.
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

// encode appends the objects of the chunk. It omits objects that cannot be decoded.
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

// step reads one chunk and finds the matching objects, up to the limit. It reads one object beyond
// the limit to find out whether there is a next page. The next page starts directly after the last
// key of this page. If the list continues at a newer revision, it therefore shows objects that were
// created in between.
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
	if len(l.chunk.Sealed) > 0 { // none of the objects in this chunk is deleted
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
			return err // the objects may be large
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

// damaged returns records with only a key for the damaged objects of the chunk. It returns nothing
// unless all objects are deleted, because a selector cannot be applied to a damaged object.
func (l *lister) damaged() (records []*store.Record) {
	if !l.q.match.Everything() || l.q.Limit > 0 {
		return nil
	}
	for _, key := range l.chunk.Damaged {
		records = append(records, &store.Record{Key: key})
	}
	return records
}

// heavy returns the memory that the large objects of a chunk need in the store and in the response.
func heavy(records []store.Record) (n int) {
	for i := range records {
		if size := len(records[i].JSON); size > shares.Large {
			n += 2 * size
		}
	}
	return n
}

// convert converts the objects of the chunk if the type has a conversion webhook. It runs before
// selectors are applied, and calls the webhook only once.
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

// findEnd walks to the end of the page and discards the objects that do not fit into the buffer.
// The head of the list needs the number of objects, the start of the next page, and sometimes the
// length. findEnd returns a copy of the lister from before the walk, which sends the rest of the
// page.
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

// survey reads a chunk and, if the format needs the length first, measures it. Measuring is as
// expensive as encoding, so survey needs a read slot.
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

// measure adds the encoded lengths of the chunk's objects to ahead.
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

// left returns the number of objects after this page. It uses the token or the counters of the
// store if possible, and counts the keys otherwise.
func (l *lister) left() (int64, error) {
	if l.pos.remaining >= 0 {
		return l.pos.remaining - l.taken, nil
	}
	if total, _, rev := l.rd.st.Count(l.q.match.Prefix); rev == l.rev && l.pos.token == nil {
		return total - l.taken, nil
	}
	return l.rd.st.CountAt(l.q.match.Prefix, l.end, l.rev)
}

// send writes the list: the head, the collected items, the remaining chunks and the tail.
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
		l.items = append(l.items, tail...) // saves a write
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
		if l.items = l.items[:0]; cap(l.items) > 2*listBuffer { // it was for a large object
			l.items = nil
		}
		if err := l.collect(ctx, 1); err != nil {
			return response.ErrAborted // the head is sent, and the client must not take a partial list for a complete one
		}
	}
	if l.v.Measured() && promised != 0 {
		return response.ErrAborted // the Content-Length in the head is wrong
	}
	l.items = append(l.items, tail...)
	_, err = out.Write(l.items)
	return err
}

// slim replaces an oversized buffer from the pool with a smaller one, because no memory was
// reserved for the excess.
func (l *lister) slim() {
	if cap(l.items) <= shares.Large || cap(l.items) <= 2*len(l.items) {
		return
	}
	wide := l.items
	l.items = append(make([]byte, 0, len(wide)+512), wide...)
	itemsPool.Put(&wide)
}

// ends returns the bytes that precede and follow the items. The items have the given total length.
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

// sendWhole sends a response that is completely in memory.
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

// ---- The API of one moment ----

const lateAnswer = 5 * time.Second // time to write an error after the request's deadline

// A readAPI serves reads at one moment.
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

// serveAPI handles all requests below /api/ and /apis/.
func (ra *readAPI) serveAPI(w http.ResponseWriter, r *http.Request) {
	rec := request.From(r.Context())
	res, err := ra.typeOf(w, r, rec)
	if res != nil && err == nil {
		err = ra.serveResource(w, r, rec, res)
	}
	ra.end(w, r, err)
}

// typeOf returns the type of the requested resource, after checking the path and the method. It
// returns nil if it has sent a response itself.
func (ra *readAPI) typeOf(w http.ResponseWriter, r *http.Request, rec *request.Request) (*scheme.Resource, error) {
	info := &rec.Info
	if !info.ResourceRequest {
		ra.serveDiscovery(w, r)
		return nil, nil
	}
	if legacy := info.APIPrefix == "api"; legacy != (info.Group == "") { // such as /apis//v1/pods
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
	return res, cmp.Or(ra.deprecated.note(r, rec, res), routed) // a deprecated custom version warns even if the subresource does not exist
}

// end sends err to the client, if it is not nil.
func (ra *readAPI) end(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, response.ErrAborted) {
		panic(http.ErrAbortHandler)
	}
	if err != nil {
		ra.fail(w, r, err)
	}
}

// fail sends an error to the client and logs unexpected errors. It does not log a request that ran
// out of time.
func (ra *readAPI) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil { // the write deadline may have passed during a long computation
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(lateAnswer))
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
	}
	if unexpected := response.Refuse(w, r, err); unexpected != nil {
		ra.log.Error().Err(unexpected).Str("path", r.URL.Path).Str("id", request.From(r.Context()).ID).Msg("internal error")
	}
}

// serveResource handles a read of a known resource.
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

// serveSubresource handles a read of a subresource.
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
