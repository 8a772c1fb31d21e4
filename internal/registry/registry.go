// Package registry answers the writes: create, update, patch, delete, delete of a collection, and the subresources that are small programs
// of their own. Each is the same walk, or a part of it:
//
//	what is asked ──▶ read ──▶ change ──▶ complete ──▶ check ──▶ encode ──▶ commit ──▶ 2xx, durable
//	                   ▲                                           │
//	                   └───────────── newer version ◀──────────────┘
//
// All its steps, in their order; a test records the calls and compares them with this table. The verbs are c create, u update, p patch, a apply,
// s a PUT of the status, x a PUT of the scale, d delete. Files are of this package, or under internal/.
//
//	STEP                           WRITTEN IN                 VERBS           MAY REFUSE
//	receive                        options.go                 c u . . s . .
//	response.NewView               response/respond.go        c u p a s x d   406 400: not in that form
//	readPatch                      patch.go                   . . p a . . .   415 400: not such a patch
//	readScale                      subresource.go             . . . . . x .   415: not such a patch
//	readDeleteOptions              options.go                 . . . . . . d   400 422
//	readBody                       options.go                 c u p a s x d   413 400: too long, or cut off
//	parseWriteOptions              options.go                 c u p a s x .   400 422
//	res.Decode(body)               scheme/codec.go            c u . . s x .   415 400: not such an object
//	warnings.DropDuplicateOwners   kinds/warnings/warnings.go c u . . s . .
//	strategy.WipeSystemFields      kinds/strategy/metadata.go c . . . . . .
//	refuseEnding                   create.go                  c . . . . . .   403: the type is being deleted
//	refuseEarly                    namespaces.go              c . . . . . .   404 403: no namespace, or one that is being deleted
//	Store.Get(key)                 store/read.go              . u p a s x d   404
//	checkPreconditions             deleting.go                . . . . . . d   409: another uid or resourceVersion
//	response.Convert               response/respond.go        . u p a s x d   500: a conversion webhook
//	mend                           registry.go                . u p a s x d   500: it cannot be decoded
//	change                         update.go                  . u p a s x .   as the next seven, which are inside
//	replaced                       update.go                  . u . . s . .   409: another uid
//	patched                        patch.go                   . . p . . . .   400 422: the patch does not fit
//	applied                        patch.go                   . . . a . . .   409: fields of others
//	req.after                      subresource.go             . . . . . x .   as the three before
//	req.admitted                   subresource.go             . . . . . x .   as Admission.Admit, of the Scale
//	applyScale                     subresource.go             . . . . . x .   422: a negative count
//	req.validated                  subresource.go             . . . . . x .   as Admission.Validate, of the Scale
//	checkRevision                  update.go                  . u p a s x .   409: a newer version; 422: none is named
//	FillDefaults                   registry.go                c u p a s x .   413: defaults of a custom resource
//	recordOwners                   fields.go                  c u p a s x .
//	Admission.Admit                admission/chain.go         c u p a s x .   403 and what webhooks say; 500: they do not answer
//	strategy.ValidateDelete        kinds/strategy/strategy.go . . . . . . d   403: what has to stay
//	Admission.Decide               admission/chain.go         . . . . . . d   as Admission.Admit and Admission.Validate
//	warnings.DropAdmittedDuplicates kinds/warnings/warnings.go c u p a s x .
//	strategy.FillSystemFields      kinds/strategy/metadata.go c . . . . . .
//	strategy.NameNew               kinds/strategy/metadata.go c . . . . . .
//	prepareNew                     create.go                  c . . . . . .
//	prepare                        update.go                  . u p a s x .
//	markDeleting                   deleting.go                . . . . . . d
//	checkAndCommit                 commit.go                  c u p a s x .   504: the time is over
//	Allocator.Assign               allocator/alloc.go         c u p a . x .   422: families, an address or a port of another Service
//	validate                       commit.go                  c u p a s x .   422: the rules of the type
//	checkGrant                     registry.go                c u p a s x .   403: more rights than the writer has
//	checkParams                    params.go                  c u p a s x .   422: params that the writer may not read
//	warnAbout                      registry.go                c u p a s x .
//	Admission.Validate             admission/chain.go         c u p a s x .   403 422 and what webhooks say
//	Quotas.Charge                  admission/quota/quota.go   c u p a s x .   403: a quota is full
//	strategy.Canonicalize          kinds/strategy/strategy.go c . . . . . .
//	encode                         commit.go                  c u p a s x .   500: a conversion webhook
//	checkSize                      commit.go                  c u p a s x .   413
//	checkUnwritten                 commit.go                  c u p a s x .   400: a create that names a resourceVersion
//	given.Claim                    allocator/alloc.go         c u p a s x .   409: another server was faster
//	commit                         commit.go                  c u p a s x d
//	takeTurn                       order.go                   c u p a s x d   504: the time is over
//	Store.Commit                   store/write.go             c u p a s x d   409 404 403: the store's preconditions; 500: no room
//	follow                         commit.go                  c u p a s x d
//	Respond                        response/respond.go        c u p a s x .
//	respondDeleted                 delete.go                  . . . . . . d
//
// A create whose name is generated, or whose address another server claims, goes back to strategy.NameNew; the others, when somebody was
// faster, to Store.Get. Of a dry run nothing comes behind checkSize; of a write that changes nothing, nothing behind encode. An update or an
// apply of what is not there is a create from strategy.WipeSystemFields on. A deletion that something holds back writes its marks by encode,
// checkSize and commit; what else a deletion may do, and a binding and an eviction, stand in delete.go and subresource.go.
//
//	wr := &registry.Writer{Store: st, Types: reg, Auth: authenticator, Allocator: alloc, Admission: chain, Validating: true, ...}
//	err := wr.Create(w, r, rec, res)                              // a handler: POST to res's collection
//	rec, err := wr.Insert(ctx, res, obj, registry.Options{})      // the server's own writes take the same walk
//
// The walk is that of k8s.io/apiserver/pkg/registry/generic/registry/store.go and pkg/endpoints/handlers. What it asks on its way are
// packages of their own: patch and fieldmanager compute, defaults fills in, strategy knows where types part ways, admission asks webhooks,
// validation refuses, warnings remarks, allocator gives Services their addresses.
//
// This file is what all writes have in common: the [Writer], and what is read before a change. The verbs stand in files of their own:
// options.go (what a write asks for), create.go, update.go, patch.go, fields.go (whose fields they are), commit.go (the second half of all of
// them), delete.go with deleting.go, and subresource.go.
//
// Invariants: nothing is locked while a request thinks: a change that meets a newer version than it was computed from is computed again,
// unless the client named the version that it meant, so nothing is lost; a write is answered when it is durable; nothing is stored that
// cannot be read back; a write that fails has changed nothing.
package registry

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/tidwall/gjson"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/warning"

	"apilet/internal/admission"
	"apilet/internal/admission/quota"
	"apilet/internal/allocator"
	"apilet/internal/auth"
	"apilet/internal/fieldmanager"
	"apilet/internal/kinds/defaults"
	"apilet/internal/kinds/warnings"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
	"apilet/internal/unreadable"
)

const (
	MaxStored     = 9 << 20  // bytes of an object's JSON: six for each of the 1.5 MiB that etcd takes, as many as a character in JSON has at most
	maxBody       = 3 << 20  // bytes of a request body, as kube-apiserver's
	promisedMax   = 32 << 10 // bytes of room made for a body before it comes
	generateTries = 8        // names tried for one generateName
	maxName       = 1024     // bytes of a name
	DeleteWorkers = 16       // objects of a collection that are written at once

	ownUser = "system:apiserver" // who writes what no request asked for
)

// Writer answers the requests that change objects.
type Writer struct {
	Store      *store.Store         // that it commits to
	Types      *scheme.Registry     // for kinds that are named in objects
	Auth       *auth.Authenticator  // decides on roles, bindings, approvals and tokens
	Allocator  *allocator.Allocator // gives Services their addresses and ports
	locks      keyLocks
	Admission  *admission.Chain                      // is asked twice: to change, then to validate
	Quotas     *quota.Quotas                         // are charged last, and told of each commit; nil: no ResourceQuota holds
	Committed  []func(res *scheme.Resource)          // bring what is read from a resource's objects up to date, before the write is answered
	Policy     func(res *scheme.Resource, rev int64) // does so for what roles allow; nil when nothing is enforced
	Unreadable *unreadable.Unreadables               // notes what cannot be decoded

	NamespaceCreated     func(namespace string) // what follows the creation of a namespace, before it is answered
	ProvisionsNamespaces bool                   // a plug-in makes the namespace of a new object, where it is missing
	namespaces           knownNamespaces

	Validating    bool              // --validate: built-in objects are validated by their types' rules; metadata always is
	ManagedFields bool              // --managed-fields
	Tracked       fieldmanager.Ways // which way the fields of writes went
	managers      sync.Map          // *resource (or "scale") to its *ownership, made at the first write
}

// Read decodes a record. One that nobody can decode is noted.
func (wr *Writer) Read(res *scheme.Resource, rec *store.Record) (scheme.Object, error) {
	obj, err := res.DecodeStored(rec.JSON)
	if errors.Is(err, scheme.ErrUnreadable) {
		wr.Unreadable.Note(rec, err)
	}
	return obj, err
}

// Hopeless says that an object is damaged, or cannot be decoded or decrypted: to try again is of no use, and the log has been told. Who works in the background
// leaves it alone, and goes on with the others.
func Hopeless(err error) bool {
	return errors.Is(err, scheme.ErrUnreadable) || errors.Is(err, store.ErrDamaged) || errors.Is(err, store.ErrSealed)
}

// mend is read for those who are about to write: an object of which nothing but its managedFields cannot be read goes on without them.
func (wr *Writer) mend(res *scheme.Resource, rec *store.Record) (scheme.Object, error) {
	obj, err := wr.Read(res, rec)
	if errors.Is(err, scheme.ErrUnreadable) {
		rec.JSON = scheme.WithoutOwners(rec.JSON)
		obj, err = res.DecodeStored(rec.JSON)
	}
	return obj, err
}

// FillDefaults fills in what a client left out. A custom resource has its defaults since it was decoded, unless it was applied. err is a 413: they
// would make it too long.
func FillDefaults(res *scheme.Resource, obj scheme.Object) error {
	switch {
	case res.Custom == nil:
		defaults.Set(obj)
	case res.Custom.Defaults != nil:
		return res.Custom.Defaults(obj)
	}
	return nil
}

// matchNamespace fills in the namespace of the URL, or refuses an object that names another one.
func matchNamespace(obj scheme.Object, namespace string) error {
	if own := obj.GetNamespace(); own != "" && namespace != "" && own != namespace {
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	obj.SetNamespace(namespace)
	return nil
}

// NamespaceKey is the store's key of a Namespace.
func NamespaceKey(name string) string { return "//namespaces//" + name }

// checkGrant refuses a role or binding that gives more than its writer has. The server's own writes have no request.
func (wr *Writer) checkGrant(rec *request.Request, res *scheme.Resource, obj, old scheme.Object) error {
	if res.Group != rbacv1.GroupName || rec == nil || !wr.Auth.Enforcing() {
		return nil
	}
	return wr.Auth.MayGrant(rec, obj, old)
}

// warnAbout adds the warnings about a valid object to the response. Kubernetes' functions for built-in
// types expect objects that are valid.
func (wr *Writer) warnAbout(ctx context.Context, p *plan) {
	if p.Resource.Custom == nil && !wr.Validating {
		return
	}
	var old runtime.Object // a nil object must be a nil runtime.Object
	if p.old != nil {
		old = p.old
	}
	var texts []string
	switch p.Subresource {
	case "":
		texts = warnings.ForObject(ctx, p.obj, old)
		if custom := p.Resource.Custom; custom != nil && custom.Warnings != nil {
			texts = append(texts, custom.Warnings(p.obj, p.old)...)
		}
	case "status":
		texts = warnings.ForStatus(ctx, p.obj, old)
	}
	for _, text := range texts {
		warning.AddWarning(ctx, "", text)
	}
}

// Author returns the author of a change that is made with ctx. The store calls it for changes without an author.
func Author(ctx context.Context) store.Author { return authorOf(request.From(ctx)) }

// authorOf returns the author of a request's changes. The server's own changes have no request.
func authorOf(rec *request.Request) store.Author {
	if rec == nil {
		return store.Author{User: ownUser, Agent: "apilet"}
	}
	a := store.Author{User: rec.User.Name, Agent: rec.Agent, Verb: rec.Info.Verb, Subresource: rec.Info.Subresource, Manager: rec.Manager}
	if rec.Applies {
		a.Verb = "apply"
	}
	return a
}

// splice puts a revision where EncodeStored left room for it.
func splice(json []byte, revAt int, rev int64) []byte {
	return store.AppendRevision(make([]byte, 0, len(json)+20), json, revAt, rev)
}

// Tombstone is the change that deletes a record: its last state stays, for watchers, under the revision of the deletion. Of a document that is none
// it is the name.
func Tombstone(rec *store.Record) store.Change {
	if gjson.GetBytes(rec.JSON, "metadata.resourceVersion").Type != gjson.String {
		namespace, name := scheme.NamespacedName(rec.Key)
		rec = &store.Record{Key: rec.Key, Rev: rec.Rev, JSON: fmt.Appendf(nil, `{"metadata":{"name":%q,"namespace":%q,"resourceVersion":""}}`, name, namespace)}
	}
	json, revAt := scheme.WithoutRevision(rec.JSON)
	return store.Change{Op: store.OpDelete, Key: rec.Key, Expect: rec.Rev, JSON: json, RevAt: revAt}
}

type knownNamespaces struct {
	mu    sync.RWMutex // guards names
	names map[string]struct{}
}
