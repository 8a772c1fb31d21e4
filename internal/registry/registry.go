// Package registry answers the writes: create, update, patch, delete, delete of a collection, and the subresources that are small programs
// of their own. Each is the same walk: read the body, decode it into its type, prepare it (what the server alone decides about: uid, times,
// generation, status), validate it, and hand the store one change with a precondition.
//
//	body ──▶ decode ──▶ prepare ──▶ default ──▶ validate ──▶ encode ──▶ commit ──▶ 2xx, durable
//	                       ▲                                              │
//	                       └───────────────── newer version ◀─────────────┘
//
//	wr := &registry.Writer{Store: st, Types: reg, Auth: authenticator, Allocator: alloc, Admission: chain, Validating: true, ...}
//	err := wr.Create(w, r, res)                                   // a handler: POST to res's collection
//	rec, err := wr.Insert(ctx, res, obj, registry.Options{})      // the server's own writes take the same walk
//
// The walk is that of k8s.io/apiserver/pkg/registry/generic/registry/store.go and pkg/endpoints/handlers. What it asks on its way are
// packages of their own: patch and fieldmanager compute, defaults fills in, strategy knows where types part ways, admission asks webhooks,
// validation refuses, warnings remarks, allocator gives Services their addresses.
//
// Invariants: nothing is locked while a request thinks: a change that meets a newer version than it was computed from is computed again,
// unless the client named the version that it meant, so nothing is lost; a write is answered when it is durable; nothing is stored that
// cannot be read back; a write that fails has changed nothing.
package registry

// This file is what all writes have in common: the Writer, what is read before a change, and the commit behind it. The verbs stand in
// files of their own: options.go (what a write asks for), create.go, update.go, patch.go, fields.go (whose fields they are), delete.go with
// deleting.go, and subresource.go.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tidwall/gjson"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/warning"

	"apilet/internal/admission"
	"apilet/internal/admission/quota"
	"apilet/internal/auth"
	"apilet/internal/registry/allocator"
	"apilet/internal/registry/defaults"
	"apilet/internal/registry/fieldmanager"
	"apilet/internal/registry/warnings"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
	"apilet/internal/unreadable"
)

const (
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

// Hopeless says that an object is damaged or cannot be decoded: to try again is of no use, and the log has been told. Who works in the background
// leaves it alone, and goes on with the others.
func Hopeless(err error) bool {
	return errors.Is(err, scheme.ErrUnreadable) || errors.Is(err, store.ErrDamaged)
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
func (wr *Writer) checkGrant(ctx context.Context, res *scheme.Resource, obj, old scheme.Object) error {
	rec := request.From(ctx)
	if res.Group != rbacv1.GroupName || rec == nil || !wr.Auth.Enforcing() {
		return nil
	}
	return wr.Auth.MayGrant(rec, obj, old)
}

// warnAbout tells the client what is odd about a valid object.
func warnAbout(ctx context.Context, res *scheme.Resource, obj, old scheme.Object) {
	var before runtime.Object // a nil object must be a nil runtime.Object
	if old != nil {
		before = old
	}
	texts := warnings.ForObject(obj, before)
	if res.Custom != nil && res.Custom.Warnings != nil {
		texts = append(texts, res.Custom.Warnings(obj, old)...)
	}
	for _, text := range texts {
		warning.AddWarning(ctx, "", text)
	}
}

// Author says whose change one is that is made with a context: its request's, or the server's own. Store.Commit asks it for every change.
func Author(ctx context.Context) store.Author {
	rec := request.From(ctx)
	if rec == nil {
		return store.Author{User: ownUser, Agent: "apilet"}
	}
	a := store.Author{User: rec.User.Name, Agent: rec.Agent, Verb: rec.Info.Verb, Subresource: rec.Info.Subresource, Manager: rec.Manager}
	if rec.Applies {
		a.Verb = "apply"
	}
	return a
}

// commit stores one change of an object, and waits for what follows from it before anybody hears of it.
func (wr *Writer) commit(ctx context.Context, res *scheme.Resource, c store.Change) (store.Record, error) {
	if err := takeTurn(ctx, &c); err != nil {
		return store.Record{}, err
	}
	began := time.Now()
	rec, err := wr.Store.Commit(ctx, c)
	request.From(ctx).NoteCommit(began)
	if err == nil {
		note := request.Write{Key: c.Key, Old: c.Expect, New: rec.Rev}
		if c.Op == store.OpDelete {
			note.New = 0
			wr.Allocator.Freed(ctx, c.Key, c.JSON, nil)
		}
		request.From(ctx).NoteWrite(note)
		wr.follow(res, &rec)
	}
	if err == nil && res.Custom != nil && res.Custom.Committed != nil {
		err = res.Custom.Committed(context.WithoutCancel(ctx)) // what is stored has to be followed, whoever waits
	}
	return rec, err
}

func (wr *Writer) follow(res *scheme.Resource, rec *store.Record) {
	wr.namespaces.forget(rec.Key)
	wr.Quotas.Committed(res, rec)
	for _, follow := range wr.Committed {
		follow(res)
	}
	if wr.Policy != nil {
		wr.Policy(res, rec.Rev)
	}
}

// splice puts a revision where encodeStored left room for it.
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
