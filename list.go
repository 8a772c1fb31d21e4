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
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
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

	"apilet/internal/apierror"
	"apilet/internal/auth"
	"apilet/internal/continuetoken"
	"apilet/internal/discovery"
	"apilet/internal/health"
	"apilet/internal/history"
	"apilet/internal/registry"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/routing"
	"apilet/internal/scan"
	"apilet/internal/scheme"
	"apilet/internal/selector"
	"apilet/internal/store"
)

// revisionPatience limits the wait for a revision that another server has already seen.
const revisionPatience = 3 * time.Second

// A readHandler handles GET and LIST, of the present or as of an earlier revision.
type readHandler struct {
	*scan.Source
	tokens  *continuetoken.Codec
	storage func() error       // returns why the storage is unavailable, if it is; nil when reading the past
	past    history.Visibility // decides which revisions a user may see
}

// asOf returns a copy of rd that reads at revision rev.
func (rd *readHandler) asOf(rev int64) *readHandler {
	then := *rd
	then.Source, then.storage = rd.Source.AsOf(rev), nil
	return &then
}

// ---- GET ----

// get returns one object. resourceVersion is a lower bound, so the newest version is always valid.
func (rd *readHandler) get(w http.ResponseWriter, r *http.Request, req *request.Request, res *scheme.Resource) error {
	v, err := response.NewView(r, req, res)
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
	info := &req.Info
	key := res.Key(res.Scope(info.Namespace), info.Name)
	rec, err := rd.Get(r.Context(), w, key, func(stored int) int { return v.EstimateSize(r, stored) })
	if err == nil {
		if err = res.CheckReadable(rec.JSON); err != nil {
			rd.Corrupt.Add(&rec, err)
		}
	}
	if err != nil {
		return response.StoreError(err, res, info.Name)
	}
	return v.Respond(w, r, http.StatusOK, &rec)
}

// lowerBound parses a resourceVersion and waits until the store has reached it. If rv is empty, it
// waits for the newest revision; if rv is 0, it does not wait. It returns an error if the revision
// does not arrive. what is a prefix of the error message.
func (rd *readHandler) lowerBound(ctx context.Context, rv, what string) (int64, error) {
	switch {
	case rv == "" && rd.At == 0:
		_, err := rd.Store.Current(ctx)
		return 0, err
	case rv == "", rv == "0":
		return 0, nil
	}
	n, err := strconv.ParseUint(rv, 10, 64)
	if err != nil {
		text := field.Invalid(field.NewPath("resourceVersion"), rv, err.Error()).Error()
		if what == "" {
			return 0, apierror.InternalWithoutReason(text)
		}
		return 0, apierrors.NewBadRequest(what + text)
	}
	if rd.At != 0 && n > uint64(rd.At) {
		return 0, rd.tooLarge(rv)
	}
	if n <= uint64(rd.Store.Revision()) {
		return int64(n), nil
	}
	if err := rd.Store.WaitUpcoming(ctx, n, revisionPatience); err != nil {
		return 0, rd.tooLarge(rv)
	}
	return int64(n), nil
}

// tooLarge returns the error for a future revision. With a data file no other server can be ahead.
// The error then has no Retry-After, because client-go would retry ten times before it lists again.
func (rd *readHandler) tooLarge(rv string) error {
	current, retry := cmp.Or(rd.At, rd.Store.Revision()), 0
	if rd.At == 0 && rd.Store.Shared() {
		retry = 1
	}
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %s, current: %d", rv, current), retry)
	cause := metav1.StatusCause{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}
	err.ErrStatus.Details.Causes = []metav1.StatusCause{cause}
	return err
}

// components handles GET and LIST of componentstatuses, which are not stored.
func (rd *readHandler) components(w http.ResponseWriter, r *http.Request, req *request.Request,
	res *scheme.Resource) error {
	if req.Info.Form.Named {
		return health.ServeComponent(w, r, req, res, rd.storage)
	}
	q, err := parseQuery(res, &req.Info)
	if err != nil {
		return err
	}
	return health.ListComponents(w, r, req, res, rd.storage, &q.match, rd.At)
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
	q := &query{ListOptions: internalversion.ListOptions{
		ResourceVersion: options.ResourceVersion, ResourceVersionMatch: options.ResourceVersionMatch,
		Limit: max(options.Limit, 0), Continue: options.Continue, Watch: info.Verb == "watch",
		AllowWatchBookmarks: options.AllowWatchBookmarks, SendInitialEvents: options.SendInitialEvents,
		TimeoutSeconds: options.TimeoutSeconds,
	}}
	terms, err := selector.Parse(options.LabelSelector, options.FieldSelector)
	if err != nil {
		return nil, err
	}
	checked := q.ListOptions
	internalversion.SetListOptionsDefaults(&checked, true)
	if errs := listvalidation.ValidateListOptions(&checked,
		utilfeature.DefaultFeatureGate.Enabled(features.WatchList)); len(errs) > 0 {
		return nil, apierror.Invalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	q.match, err = terms.Compile(res, info)
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
func (rd *readHandler) locate(ctx context.Context, q *query) (position, error) {
	if q.Continue != "" {
		return rd.resume(ctx, q)
	}
	pos := position{rev: rd.At, remaining: -1}
	bound, err := rd.lowerBound(ctx, q.ResourceVersion, "invalid resource version: ")
	if err != nil {
		return pos, err
	}
	exact := q.ResourceVersionMatch == metav1.ResourceVersionMatchExact
	if legacy := q.ResourceVersionMatch == "" && q.Limit > 0; exact || legacy {
		pos.rev = cmp.Or(bound, rd.At)
	}
	return pos, nil
}

// resume returns the position in the continue token.
func (rd *readHandler) resume(ctx context.Context, q *query) (position, error) {
	token, err := rd.tokens.Open(q.Continue, &q.match)
	if err != nil {
		return position{}, err
	}
	if q.ResourceVersion != "" && q.ResourceVersion != "0" {
		return position{}, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
	}
	if token.Rev == 0 && rd.At != 0 {
		token.Rev, token.Lineage = rd.At, continuetoken.LineageOf(rd.Store)
	}
	ours := token.Lineage == continuetoken.LineageOf(rd.Store)
	if token.Rev == 0 { // the newest revision, as without a token
		if _, err := rd.Store.Current(ctx); err != nil {
			return position{}, err
		}
		// Another server on the same cluster may be ahead.
	} else if ours && rd.Store.WaitUpcoming(ctx, uint64(token.Rev), revisionPatience) != nil {
		return position{}, rd.tooLarge(strconv.FormatInt(token.Rev, 10))
	}
	pos := position{rev: token.Rev, start: q.match.Prefix + token.Start, remaining: token.Remaining, token: token}
	if token.Rev != 0 && (!ours || token.Rev < rd.Store.Compacted()) {
		return pos, rd.expired(&q.match, token)
	}
	return pos, nil
}

// expired returns a 410 with a new token. With it the client can continue from the same key at the
// newest revision.
func (rd *readHandler) expired(m *selector.Matcher, token *continuetoken.Token) error {
	err := apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list " +
		"result. You can start a new list without the continue parameter, or use the continue token in this response " +
		"to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent " +
		"list - objects that were created, modified, or deleted between the time the first chunk was returned and " +
		"now may show up in the list.")
	next := continuetoken.Token{Start: token.Start, Remaining: -1, Lineage: continuetoken.LineageOf(rd.Store)}
	err.ErrStatus.Continue = rd.tokens.Seal(next, m)
	return err
}

// list handles a LIST. If each is not nil, list calls it with the objects of each chunk before
// sending them. DELETE of a collection uses it to delete the objects.
func (rd *readHandler) list(w http.ResponseWriter, r *http.Request, req *request.Request, res *scheme.Resource,
	each eachFunc) error {
	v, err := response.NewView(r, req, res)
	if err != nil {
		return err
	}
	q, err := parseQuery(res, &req.Info)
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
	l := &lister{rd: rd, v: v, q: q, pos: pos, each: each, out: v.NewListWriter(), scan: rd.NewScan(w, res),
		walk: walk{rev: pos.rev, next: pos.start}}
	defer l.out.Release()
	defer l.release()
	if pos.rev != 0 {
		switch hidden, err := rd.past.Hides(r.Context(), res, pos.rev); {
		case err != nil:
			return err
		case hidden:
			return l.out.Whole(w, r, response.ListMeta{Rev: pos.rev})
		}
	}
	meta, err := l.start(r.Context())
	if err != nil {
		if errors.Is(err, store.ErrCompacted) && pos.token != nil {
			return rd.expired(&q.match, pos.token)
		}
		return response.StoreError(err, res, "")
	}
	return l.send(w, r, meta)
}

// A lister reads and sends the objects of a LIST. It reads all of them at the same revision.
type lister struct {
	rd   *readHandler
	v    *response.View
	q    *query
	pos  position
	keys []string // the keys to read, from an index; nil means all
	each eachFunc
	scan *scan.Scan
	out  *response.ListWriter
	walk
}

// An eachFunc is called with the objects of each chunk of a list.
type eachFunc func(context.Context, []*store.Record) error

// A walk stores how far a lister has read.
type walk struct {
	found []*store.Record // the matching objects of the current chunk
	rev   int64           // the revision of the list, known after the first chunk
	next  string          // the first key of the next chunk
	done  bool            // no more objects belong to this page
	last  string          // the last key of the page so far
	count int64           // number of objects in the page so far
	// end is the first key of the next page, or "" if this is the last page. It is known once done
	// is true.
	end string
}

// start reads the beginning of the list, and everything that its head depends on: the revision,
// the end of a limited page, and the length in a format that has a length prefix.
func (l *lister) start(ctx context.Context) (meta response.ListMeta, err error) {
	if l.scan.NoSlot = l.scan.NoSlot || l.each != nil; l.each == nil {
		l.keys, l.rev = l.rd.Keys(ctx, &l.q.match, l.rev)
	}
	room := l.out.Room(l.q.Limit > 0)
	if err = l.scan.Reserve(ctx, l.q.match.Prefix, room); err != nil {
		return meta, err
	}
	if err = l.collect(ctx, room); err != nil {
		return meta, err
	}
	meta.Rev = l.rev
	switch {
	case l.q.Limit > 0:
		err = l.limit(ctx, &meta)
	case l.v.HasListLength():
		_, err = l.findEnd(ctx)
	}
	l.release()
	return meta, err
}

// release drops the current chunk, whose objects are already encoded.
func (l *lister) release() {
	l.scan.Release()
	l.found = nil
}

// limit completes the metadata of a limited list: the token of the next page and the number of
// remaining objects.
func (l *lister) limit(ctx context.Context, meta *response.ListMeta) error {
	page, err := l.findEnd(ctx)
	if err != nil || page.end == "" {
		return err
	}
	st, m := l.rd.Store, &l.q.match
	token := continuetoken.Token{Rev: l.rev, Start: strings.TrimPrefix(page.end, m.Prefix), Remaining: -1,
		Lineage: continuetoken.LineageOf(st)}
	if m.MatchesAll() {
		left, err := l.remaining(&page)
		if err != nil {
			return err
		}
		token.Remaining, meta.Remaining = left, &left
	}
	meta.Cont = l.rd.tokens.Seal(token, m)
	return nil
}

// remaining returns the number of objects after this page. It uses the token or the counters of the
// store if possible, and counts the keys otherwise.
func (l *lister) remaining(page *walk) (int64, error) {
	if l.pos.remaining >= 0 {
		return l.pos.remaining - page.count, nil
	}
	st, prefix := l.rd.Store, l.q.match.Prefix
	if total, _, rev := st.Count(prefix); rev == l.rev && l.pos.token == nil {
		return total - page.count, nil
	}
	return st.CountAt(prefix, page.end, l.rev)
}

// collect adds items until they have room bytes or the page is complete.
func (l *lister) collect(ctx context.Context, room int) error {
	for !l.done && l.out.Len() < room {
		err := l.scan.Read(ctx, l.span(), func(c *store.Chunk) error {
			if err := l.step(ctx, c, true); err != nil {
				return err
			}
			if l.each != nil {
				if err := l.each(ctx, append(l.found, l.damaged(c)...)); err != nil {
					return err
				}
			}
			return l.forFound(ctx, l.out.Add)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// findEnd walks to the end of the page and returns the walk at that point. It discards the objects
// that do not fit into the buffer, and l reads them again later.
func (l *lister) findEnd(ctx context.Context) (page walk, err error) {
	resume := l.walk
	defer func() { l.walk = resume }()
	measured := l.v.HasListLength()
	for !l.done && err == nil {
		err = l.scan.Read(ctx, l.span(), func(c *store.Chunk) error {
			if err := l.step(ctx, c, measured); err != nil || !measured {
				return err
			}
			return l.forFound(ctx, l.out.Measure)
		})
	}
	return l.walk, err
}

// span returns the keys of the next chunk.
func (l *lister) span() store.Span {
	m := &l.q.match
	s := store.Span{Prefix: m.Span, Start: l.next, Rev: l.rev, SkipDamaged: l.each != nil, Keys: l.keys}
	if l.q.Limit > 0 && m.MatchesAll() {
		s.Items = int(min(l.q.Limit-l.count+1, 500))
	}
	return s
}

// step finds the matching objects of a chunk, up to the limit. It reads one object beyond the limit
// to find out whether there is a next page. The next page starts directly after the last key of
// this page. If the list continues at a newer revision, it therefore shows objects that were
// created in between. If shown is false, only the end of the page matters.
func (l *lister) step(ctx context.Context, c *store.Chunk, shown bool) error {
	m, most := &l.q.match, len(c.Records)
	if l.q.Limit > 0 && m.MatchesAll() {
		most = int(min(int64(most), l.q.Limit-l.count))
	}
	if shown || !m.MatchesAll() {
		if err := l.rd.Convert(ctx, l.v.Res, c.Records, most); err != nil {
			return err
		}
	}
	l.found, l.rev, l.next, l.done = l.found[:0], c.Rev, c.Next, c.Next == ""
	for i := range c.Records {
		if err := ctx.Err(); err != nil {
			return err // the objects may be large
		}
		rec := &c.Records[i]
		if !m.Matches(rec.Key, rec.JSON) || l.each == nil && l.rd.Corrupt.Has(rec) {
			continue
		}
		if l.q.Limit > 0 && l.count == l.q.Limit {
			l.done, l.end = true, l.last+"\x00"
			return nil
		}
		l.count, l.last = l.count+1, rec.Key
		l.found = append(l.found, rec)
	}
	return nil
}

// forFound calls add with the objects that step has found. It omits objects that cannot be decoded.
func (l *lister) forFound(ctx context.Context, add func(*store.Record) error) error {
	for _, rec := range l.found {
		if err := ctx.Err(); err != nil {
			return err
		}
		if l.rd.Corrupt.Has(rec) {
			continue
		}
		switch err := add(rec); {
		case errors.Is(err, scheme.ErrUnreadable):
			l.rd.Corrupt.Add(rec, err)
		case err != nil:
			return err
		}
	}
	return nil
}

// damaged returns records with only a key for the damaged objects of the chunk. It returns nothing
// unless all objects are deleted, because a selector cannot be applied to a damaged object.
func (l *lister) damaged(c *store.Chunk) (records []*store.Record) {
	if !l.q.match.MatchesAll() || l.q.Limit > 0 {
		return nil
	}
	for _, key := range c.Damaged {
		records = append(records, &store.Record{Key: key})
	}
	return records
}

// send writes the list. A list that is not complete is sent in parts.
func (l *lister) send(w http.ResponseWriter, r *http.Request, meta response.ListMeta) error {
	if l.done {
		return l.out.Whole(w, r, meta)
	}
	if err := l.out.Begin(w, r, meta); err != nil {
		return err
	}
	defer l.out.Close()
	for !l.done {
		l.release()
		if err := l.out.Flush(); err != nil {
			return err
		}
		if err := l.collect(r.Context(), 1); err != nil {
			return response.ErrAborted // the client must not take a partial list for a complete one
		}
	}
	return l.out.End()
}

// ---- The API of one moment ----

// A readAPI serves reads at one moment.
type readAPI struct {
	types      *scheme.Registry
	rd         *readHandler
	auth       *auth.Authenticator
	deprecated *deprecatedVersions
	log        zerolog.Logger
}

// serveAPI handles all requests below /api/ and /apis/.
func (ra *readAPI) serveAPI(w http.ResponseWriter, r *http.Request) {
	rec := request.From(r.Context())
	res, err := ra.typeOf(w, r, rec)
	if res != nil && err == nil {
		err = ra.serveResource(w, r, rec, res)
	}
	ra.finish(w, r, err)
}

// typeOf returns the type of the requested resource, after checking the path and the method. It
// returns nil if it has sent a response itself.
func (ra *readAPI) typeOf(w http.ResponseWriter, r *http.Request, rec *request.Request) (*scheme.Resource, error) {
	info := &rec.Info
	if !info.ResourceRequest {
		discovery.ServeDiscovery(ra.types, w, r)
		return nil, nil
	}
	if legacy := info.APIPrefix == "api"; legacy != (info.Group == "") { // such as /apis//v1/pods
		http.NotFound(w, r)
		return nil, nil
	}
	res := ra.types.Lookup(info.Group, info.Version, info.Resource)
	if res == nil {
		discovery.ServeNotFound(ra.types, w, r, info.Group)
		return nil, nil
	}
	if res.GoType == nil && !routing.HasPath(res, info) {
		http.NotFound(w, r)
		return nil, nil
	}
	routed := routing.CheckRoute(res, info, r.Method)
	if routed != nil && res.Custom == nil {
		return nil, routed
	}
	if problems := path.IsValidPathSegmentName(info.Name); info.Form.Named && len(problems) > 0 {
		text := fmt.Sprintf("Name parameter invalid: %q: %s", info.Name, strings.Join(problems, ";"))
		return nil, apierrors.NewBadRequest(text)
	}
	// A deprecated custom version warns even if the subresource does not exist.
	return res, cmp.Or(ra.deprecated.note(r, rec, res), routed)
}

// finish sends err to the client, if it is not nil.
func (ra *readAPI) finish(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, response.ErrAborted) {
		panic(http.ErrAbortHandler)
	}
	if err != nil {
		ra.fail(w, r, err)
	}
}

// fail sends an error to the client and logs unexpected errors.
func (ra *readAPI) fail(w http.ResponseWriter, r *http.Request, err error) {
	response.Fail(w, r, err, ra.log)
}

// serveResource handles a read of a known resource.
func (ra *readAPI) serveResource(w http.ResponseWriter, r *http.Request, rec *request.Request,
	res *scheme.Resource) error {
	info := &rec.Info
	if err := ra.rd.past.Check(r.Context(), res, ra.rd.At); err != nil {
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
	return ra.rd.list(w, r, rec, res, nil)
}

// serveSubresource handles a read of a subresource.
func (ra *readAPI) serveSubresource(w http.ResponseWriter, r *http.Request, rec *request.Request,
	res *scheme.Resource) error {
	info := &rec.Info
	if err := routing.CheckVerb(res, info); err != nil {
		return err
	}
	switch {
	case request.IsConnect(info.Subresource):
		return apierrors.NewBadRequest("the past has no Pods to connect to: ask without /at/")
	case info.Verb != "get":
		return apierror.MethodNotAllowed()
	case info.Subresource == "scale":
		return registry.ShowScale(ra.rd.Newest, w, r, rec, res)
	}
	return ra.rd.get(w, r, rec, res)
}
