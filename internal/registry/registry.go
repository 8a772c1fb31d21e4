// Package registry handles write requests. It implements create, update, patch, delete,
// deletecollection, and some of the subresources. All writes use the following steps, or some of
// them:
//
//	request ──▶ read ──▶ change ──▶ complete ──▶ check ──▶ encode ──▶ commit ──▶ 2xx, durable
//	             ▲                                           │
//	             └───────────── newer version ◀──────────────┘
//
// The following table lists all steps in order. A test records the calls and compares them with the
// table. The verbs are c create, u update, p patch, a apply, s PUT of the status, x PUT of the
// scale, and d delete. The files belong to this package, or are relative to internal/.
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
//	checkTerminating               create.go                  c . . . . . .   403: the type is being deleted
//	checkNamespaceCached           namespaces.go              c . . . . . .   404 403: no namespace, or one that is being deleted
//	Store.Get(key)                 store/read.go              . u p a s x d   404
//	checkPreconditions             deleting.go                . . . . . . d   409: another uid or resourceVersion
//	response.Convert               response/respond.go        . u p a s x d   500: a conversion webhook
//	readForWrite                   registry.go                . u p a s x d   500: it cannot be decoded
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
//	strategy.GenerateName          kinds/strategy/metadata.go c . . . . . .
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
//	allocation.Claim               allocator/alloc.go         c u p a s x .   409: another server was faster
//	commit                         commit.go                  c u p a s x d
//	takeTurn                       order.go                   c u p a s x d   504: the time is over
//	Store.Commit                   store/write.go             c u p a s x d   409 404 403: the store's preconditions; 500: no room
//	follow                         commit.go                  c u p a s x d
//	Respond                        response/respond.go        c u p a s x .
//	respondDeleted                 delete.go                  . . . . . . d
//
// If a generated name already exists, or an address has been claimed by another server, a create is
// repeated from strategy.GenerateName. Other writes go back to Store.Get if another writer has
// changed the object. A dry run ends after checkSize. If nothing has changed, the write ends after
// encode. An update or an apply of a missing object continues as a create from
// strategy.WipeSystemFields on. If a deletion has to wait, it writes its marks with encode,
// checkSize and commit. delete.go and subresource.go document the other cases of deletions, and
// bindings and evictions.
//
//	wr := &registry.Writer{Store: st, Types: reg, Auth: authenticator, Allocator: alloc, Admission: chain, Validating: true, ...}
//	err := wr.Create(w, r, rec, res)                              // a handler: POST to res's collection
//	rec, err := wr.Insert(ctx, res, obj, registry.Options{})      // the server's own writes take the same walk
//
// The steps are the same as in k8s.io/apiserver/pkg/registry/generic/registry/store.go and
// pkg/endpoints/handlers. Most steps call other packages: patch and fieldmanager compute the new
// object, defaults sets default values, strategy contains the differences between types, admission
// calls webhooks, validation checks objects, warnings adds warnings, and allocator assigns the
// addresses of Services.
//
// This file contains the parts that all writes share: the [Writer], and reading before a change.
// The other files are options.go (the options of a write), create.go, update.go, patch.go,
// fields.go (field ownership), commit.go (the second half of all writes), delete.go with
// deleting.go, and subresource.go.
//
// The package maintains these invariants:
//
//   - No lock is held while a request is computed. If the stored version is newer than the version
//     that a change was computed from, the change is computed again, unless the client requires a
//     specific version. Updates are therefore never lost.
//   - The server responds to a write only after it is durable.
//   - Every stored object can be decoded again.
//   - A failed write has no effect.
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
	"apilet/internal/corrupt"
	"apilet/internal/fieldmanager"
	"apilet/internal/kinds/defaults"
	"apilet/internal/kinds/warnings"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	// limit of an object's JSON in bytes: six times the 1.5 MiB that etcd accepts, because JSON
	// needs at most six bytes per character
	MaxStored        = 9 << 20
	maxBody          = 3 << 20  // limit of a request body in bytes, as in kube-apiserver
	maxInitialBuffer = 32 << 10 // maximum buffer size that is allocated for a body before it arrives
	generateTries    = 8        // number of names tried for one generateName
	maxName          = 1024     // limit of a name in bytes
	DeleteWorkers    = 16       // maximum number of objects of a collection that are written concurrently

	ownUser = "system:apiserver" // user name of the server's own writes
)

// Writer handles the requests that change objects.
type Writer struct {
	Store     *store.Store         // where changes are committed
	Types     *scheme.Registry     // used for kinds that are named in objects
	Auth      *auth.Authenticator  // authorizes changes to roles, bindings and approvals, and issues tokens
	Allocator *allocator.Allocator // assigns addresses and ports to Services
	locks     keyLocks
	// called twice for each write, to change and to validate the object
	Admission *admission.Chain
	// charged at the end, and notified of each commit; may be nil
	Quotas *quota.Quotas
	// OnCommit functions update the data derived from a resource's objects before the server
	// responds to the write.
	OnCommit []func(res *scheme.Resource)
	// does the same for the authorization rules; nil if RBAC is not enforced
	OnPolicyCommit func(res *scheme.Resource, rev int64)
	Corrupt        *corrupt.Objects // records objects that cannot be decoded

	// called after a namespace has been created
	OnNamespaceCreated   func(namespace string)
	ProvisionsNamespaces bool // reports whether an admission plug-in creates missing namespaces
	namespaces           knownNamespaces

	// --validate: enables the validation rules of built-in types; metadata is always validated
	Validating    bool
	ManagedFields bool                  // --managed-fields
	FieldTracking fieldmanager.Counters // counts the code paths of field tracking
	// maps each *resource, or "scale", to its *fieldmanager.Manager, which is created by the first
	// write
	managers sync.Map
}

// Read decodes a record. It reports a record that cannot be decoded to wr.Corrupt.
func (wr *Writer) Read(res *scheme.Resource, rec *store.Record) (scheme.Object, error) {
	obj, err := res.DecodeStored(rec.JSON)
	if errors.Is(err, scheme.ErrUnreadable) {
		wr.Corrupt.Add(rec, err)
	}
	return obj, err
}

// IsPermanent reports whether err means that an object is damaged, or cannot be decoded or
// decrypted. Such errors are already logged, and retries do not help. Background workers skip the
// object.
func IsPermanent(err error) bool {
	return errors.Is(err, scheme.ErrUnreadable) || errors.Is(err, store.ErrDamaged) || errors.Is(err, store.ErrSealed)
}

// readForWrite is like Read, but is used before a write. If only the object's managedFields cannot
// be decoded, readForWrite drops them.
func (wr *Writer) readForWrite(res *scheme.Resource, rec *store.Record) (scheme.Object, error) {
	obj, err := wr.Read(res, rec)
	if errors.Is(err, scheme.ErrUnreadable) {
		rec.JSON = scheme.WithoutManagedFields(rec.JSON)
		obj, err = res.DecodeStored(rec.JSON)
	}
	return obj, err
}

// FillDefaults sets the default values of an object. For custom resources, this is done by the
// decoder unless the object is applied. FillDefaults returns a 413 error if the object would become
// too large.
func FillDefaults(res *scheme.Resource, obj scheme.Object) error {
	switch {
	case res.Custom == nil:
		defaults.Set(obj)
	case res.Custom.Defaults != nil:
		return res.Custom.Defaults(obj)
	}
	return nil
}

// matchNamespace sets the namespace of the URL. It returns an error if the object has a different
// namespace.
func matchNamespace(obj scheme.Object, namespace string) error {
	if own := obj.GetNamespace(); own != "" && namespace != "" && own != namespace {
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	obj.SetNamespace(namespace)
	return nil
}

// NamespaceKey returns the store's key of a Namespace.
func NamespaceKey(name string) string { return "//namespaces//" + name }

// checkGrant returns an error if a role or binding would grant permissions that the user does not
// have. The request is nil if the object is written by the server itself.
func (wr *Writer) checkGrant(rec *request.Request, res *scheme.Resource, obj, old scheme.Object) error {
	if res.Group != rbacv1.GroupName || rec == nil || !wr.Auth.EnforcesRBAC() {
		return nil
	}
	return wr.Auth.MayGrant(rec, obj, old)
}

// warnAbout adds the warnings about a valid object to the response. Kubernetes' functions for
// built-in types expect objects that are valid.
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

// Author returns the author of changes for the given context. It is called by the store if a change
// does not have an author.
func Author(ctx context.Context) store.Author { return authorOf(request.From(ctx)) }

// authorOf returns the author of a request's changes. The server's own changes have no request.
func authorOf(rec *request.Request) store.Author {
	if rec == nil {
		return store.Author{User: ownUser, Agent: "apilet"}
	}
	a := store.Author{User: rec.User.Name, Agent: rec.Agent, Verb: rec.Info.Verb, Subresource: rec.Info.Subresource, Manager: rec.Manager}
	if rec.IsApply {
		a.Verb = "apply"
	}
	return a
}

// splice returns a copy of the JSON with the revision inserted at revAt.
func splice(json []byte, revAt int, rev int64) []byte {
	return store.AppendRevision(make([]byte, 0, len(json)+20), json, revAt, rev)
}

// Tombstone returns the change that deletes a record. For watchers, it includes the last state of
// the object. If the record is not a valid document, the last state contains only the name.
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
