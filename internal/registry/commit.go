package registry

// This file implements the second half of a create and of an update. The object is computed in
// create.go or update.go. After that, it is checked, encoded and committed. The same functions are
// used if a deletion has to update an object.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"apilet/internal/admission"
	"apilet/internal/admission/quota"
	"apilet/internal/allocator"
	"apilet/internal/apierror"
	"apilet/internal/kinds/defaults"
	"apilet/internal/kinds/strategy"
	"apilet/internal/kinds/validation"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// A plan is an object to be stored.
type plan struct {
	Target
	opts        Options
	attributes  admission.Attributes // passed to the plug-ins; checkAndCommit sets its Object
	obj         scheme.Object
	old         scheme.Object         // nil for a create
	rec         store.Record          // the record from which old was decoded
	allocation  *allocator.Allocation // nil if the object needs no addresses
	reservation *quota.Reservation    // nil if no quota applies
}

// checkAndCommit stores a computed object after checking it with the rules of its type, the
// plug-ins and the validating webhooks. If another writer won, the error is store.ErrConflict,
// store.ErrExists for a create, or allocator.ErrAlreadyClaimed.
func (wr *Writer) checkAndCommit(ctx context.Context, p *plan) (_ store.Record, err error) {
	if err := ctx.Err(); err != nil {
		return p.rec, err
	}
	if p.Subresource == "" {
		if p.allocation, err = wr.Allocator.Assign(p.obj, p.old, p.opts.dryRun); err != nil {
			return p.rec, err
		}
		defer func() { p.allocation.Done(ctx, err) }()
	}
	if err := wr.validate(ctx, p); err != nil {
		return p.rec, err
	}
	if err := cmp.Or(wr.checkGrant(p.opts.rec, p.Resource, p.obj, p.old), wr.checkParams(p.opts.rec, p.Resource, p.obj, p.old)); err != nil {
		return p.rec, err
	}
	wr.warnAbout(ctx, p)
	p.attributes.Object = p.obj
	if err := wr.Admission.Validate(ctx, p.attributes); err != nil {
		return p.rec, err
	}
	p.reservation, err = wr.Quotas.Charge(ctx, quota.Write{Resource: p.Resource, Subresource: p.Subresource, Object: p.obj, Old: p.old, DryRun: p.opts.dryRun})
	if err != nil {
		return p.rec, err
	}
	defer p.reservation.Release()
	return wr.store(ctx, p)
}

// validate checks the object against the validation rules for its type. If a create in a missing
// namespace is invalid, validate reports the missing namespace, because that error is more useful.
func (wr *Writer) validate(ctx context.Context, p *plan) error {
	if p.old != nil {
		if errs := wr.validateChanged(ctx, p); len(errs) > 0 {
			return apierror.Invalid(storedKind(p.Resource), p.Name, errs)
		}
		return nil
	}
	errs := wr.validateNew(ctx, p.Resource, p.obj, p.opts)
	if len(errs) == 0 {
		return nil
	}
	return cmp.Or(wr.checkNamespace(ctx, p.Resource, p.obj), error(apierror.Invalid(storedKind(p.Resource), p.Name, errs)))
}

// storedKind returns the kind that errors name. An error of an Event in events.k8s.io names the
// core group, in which it is stored.
func storedKind(res *scheme.Resource) schema.GroupKind {
	return schema.GroupKind{Group: res.StorageGroup, Kind: res.Kind}
}

// validateNew returns the errors of a new object. The rules of a built-in type include its
// metadata. If they find nothing, the metadata is checked by the rules that hold for all types.
func (wr *Writer) validateNew(ctx context.Context, res *scheme.Resource, obj scheme.Object, opts Options) field.ErrorList {
	if res.Custom != nil {
		return res.Custom.Validate(ctx, obj, nil, "")
	}
	if wr.Validating && !opts.Trusted {
		errs := append(wr.adminAccessErrors(ctx, obj, nil, ""), validation.ValidateCreate(ctx, groupVersion(res), obj)...)
		if len(errs) > 0 {
			return errs
		}
	}
	at := field.NewPath("metadata")
	errs := apivalidation.ValidateObjectMetaAccessor(obj, res.Namespaced, pathSegmentName, at)
	if len(obj.GetName()) > maxName { // some types allow names that are longer than a key
		errs = append(errs, field.TooLong(at.Child("name"), "", maxName))
	}
	return errs
}

// validateChanged returns the errors of an update. The metadata of an APIService or a custom
// resource is validated twice, by the rules for all types and by the rules for its own type. As in
// kube-apiserver, the errors are therefore listed twice.
func (wr *Writer) validateChanged(ctx context.Context, p *plan) field.ErrorList {
	t, obj, old := &p.Target, p.obj, p.old
	at := field.NewPath("metadata")
	errs := apivalidation.ValidateObjectMetaAccessor(obj, t.Resource.Namespaced, pathSegmentName, at)
	errs = append(errs, apivalidation.ValidateObjectMetaAccessorUpdate(obj, old, at)...)
	switch {
	case t.Resource.Custom != nil:
		errs = append(errs, t.Resource.Custom.Validate(ctx, obj, old, t.Subresource)...)
	case wr.Validating && !p.opts.Trusted:
		errs = append(errs, wr.adminAccessErrors(ctx, obj, old, t.Subresource)...)
		errs = validation.ValidateUpdate(ctx, groupVersion(t.Resource), t.Subresource, obj, old, errs...)
	}
	return errs
}

func groupVersion(res *scheme.Resource) schema.GroupVersion {
	return schema.GroupVersion{Group: res.Group, Version: res.Version}
}

func pathSegmentName(name string, _ bool) []string { return content.IsPathSegmentName(name) }

// ---- Into the store ----

// store commits the object of a plan. If the object has not changed, store does nothing. The object
// is deleted if the last finalizer has been removed.
func (wr *Writer) store(ctx context.Context, p *plan) (store.Record, error) {
	if p.old == nil {
		strategy.Canonicalize(p.obj)
	}
	defaults.DropEmptyLists(p.obj)
	json, revAt, err := encode(ctx, p.Resource, p.obj)
	// do not store anything if the client has already left
	if err := cmp.Or(err, ctx.Err()); err != nil {
		return p.rec, err
	}
	if p.old != nil && !p.rec.Stale && store.EqualAt(json, revAt, &p.rec) {
		if !p.opts.dryRun {
			p.opts.rec.RecordWrite(request.Write{Key: p.rec.Key, Old: p.rec.Rev, New: p.rec.Rev})
		}
		return p.rec, nil
	}
	if p.rec.Deleting && canRemove(p.obj) {
		return wr.finish(ctx, p, splice(json, revAt, p.rec.Rev))
	}
	if err := checkSize(json, &p.rec); err != nil {
		return p.rec, err
	}
	c := wr.changeOf(p, json, revAt)
	if p.opts.dryRun {
		return wr.dryRunResult(ctx, p, c)
	}
	if err := wr.checkUnwritten(ctx, p); err != nil {
		return p.rec, err
	}
	if err := p.allocation.Claim(ctx); p.old != nil && errors.Is(err, allocator.ErrAlreadyClaimed) {
		return p.rec, store.ErrConflict
	} else if err != nil {
		return p.rec, err
	}
	written, err := wr.commit(ctx, p.opts.rec, p.Resource, c)
	if err == nil {
		wr.recordStored(ctx, p, &c, &written)
	}
	return written, err
}

// changeOf returns the change to be committed.
func (wr *Writer) changeOf(p *plan, json []byte, revAt int) store.Change {
	c := store.Change{Op: store.OpUpdate, Key: p.rec.Key, Expect: p.rec.Rev, JSON: json, RevAt: revAt, With: wr.quotaUpdates(p.reservation)}
	if p.old != nil {
		c.Deleting = p.obj.GetDeletionTimestamp() != nil
		return c
	}
	c.Op, c.Key = store.OpCreate, p.Resource.Key(p.Namespace, p.Name)
	if p.Resource.Namespaced {
		c.Parent = NamespaceKey(p.Namespace)
	}
	if p.Resource.Custom != nil {
		c.Type = p.Resource.Custom.Definition
	}
	return c
}

// recordStored records the written and the replaced versions for the request, and calls the hooks
// that follow a write.
func (wr *Writer) recordStored(ctx context.Context, p *plan, c *store.Change, written *store.Record) {
	if p.old != nil {
		p.opts.rec.RecordWrite(request.Write{Key: p.rec.Key, Old: p.rec.Rev, New: written.Rev, Before: p.rec.JSON, After: written.JSON})
		wr.Allocator.ReleaseUnused(ctx, p.rec.Key, p.rec.JSON, c.JSON)
	} else if isNamespaces(p.Resource) && wr.OnNamespaceCreated != nil {
		wr.OnNamespaceCreated(p.Name)
	}
}

// encode returns the stored form of an object.
func encode(ctx context.Context, res *scheme.Resource, obj scheme.Object) (json []byte, revAt int, err error) {
	if res.NeedsConversion() {
		if obj, err = res.Custom.Webhook.To(ctx, obj.(*unstructured.Unstructured), res.Custom.StorageVersion); err != nil {
			return nil, 0, err
		}
	}
	return res.EncodeStored(obj)
}

// checkSize rejects an object that has become too large through patches and defaults. If the object
// was already too large, it may still become smaller. The limit is doubled for an object that is
// being deleted, because the removal of a finalizer adds an entry to its managedFields.
func checkSize(json []byte, old *store.Record) error {
	most := MaxStored
	if old != nil && old.Deleting {
		most = 2 * MaxStored
	}
	if len(json) <= most || old != nil && len(json) <= len(old.JSON) {
		return nil
	}
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the object would have %d bytes, limit is %d", len(json), most))
}

// checkUnwritten rejects a new object that has a resourceVersion. This is one of the last checks,
// as in kube-apiserver. A dry run ends earlier and therefore accepts any resourceVersion. A
// resourceVersion that is not a number is ignored.
func (wr *Writer) checkUnwritten(ctx context.Context, p *plan) error {
	named := p.obj.GetResourceVersion()
	if p.old != nil || named == "" {
		return nil
	}
	if n, err := strconv.ParseUint(named, 10, 64); err != nil || n == 0 {
		return nil
	}
	if err := wr.checkNamespace(ctx, p.Resource, p.obj); err != nil {
		return err
	}
	return apierror.InternalWithoutReason("resourceVersion should not be set on objects to be created")
}

// dryRunResult returns the result of a dry run.
func (wr *Writer) dryRunResult(ctx context.Context, p *plan, c store.Change) (store.Record, error) {
	if p.old != nil {
		return store.Record{Key: c.Key, Rev: c.Expect, JSON: splice(c.JSON, c.RevAt, c.Expect)}, nil
	}
	if err := wr.checkNamespace(ctx, p.Resource, p.obj); err != nil {
		return store.Record{}, err
	}
	switch rec, err := wr.Store.Get(c.Key); {
	case err == nil && rec.Deleting:
		return store.Record{}, store.ErrDeleting
	case err == nil:
		return store.Record{}, store.ErrExists
	case !errors.Is(err, store.ErrNotFound):
		return store.Record{}, err
	}
	return store.Record{Key: c.Key, JSON: withRevisionSent(c, p.obj.GetResourceVersion())}, nil
}

// withRevisionSent returns the JSON of an object that was not stored, with the resourceVersion that
// the client sent.
func withRevisionSent(c store.Change, rv string) []byte {
	if rv == "" {
		return withoutRevision(c.JSON)
	}
	quoted, _ := json.Marshal(rv) // a string can always be encoded
	return slices.Concat(c.JSON[:c.RevAt], quoted[1:len(quoted)-1], c.JSON[c.RevAt:])
}

// withoutRevision removes the empty resourceVersion from the JSON of an object that was not stored.
func withoutRevision(json []byte) []byte {
	return bytes.Replace(json, []byte(`"resourceVersion":"",`), nil, 1)
}

// canRemove reports whether an object that is being deleted can be removed. There must not be any
// finalizers or a running grace period.
func canRemove(obj scheme.Object) bool {
	grace := obj.GetDeletionGracePeriodSeconds()
	return obj.GetDeletionTimestamp() != nil && len(obj.GetFinalizers()) == 0 && (grace == nil || *grace == 0) && !strategy.HasContent(obj)
}

// finish deletes an object whose last finalizer was removed. The response contains the object
// without the finalizer and with its old revision.
func (wr *Writer) finish(ctx context.Context, p *plan, shown []byte) (store.Record, error) {
	last := store.Record{Key: p.rec.Key, Rev: p.rec.Rev, JSON: shown}
	if p.opts.dryRun {
		return last, nil
	}
	_, err := wr.commit(ctx, p.opts.rec, p.Resource, Tombstone(&p.rec))
	last.Deleted = err == nil
	return last, err
}

// commit stores a change and calls the hooks that depend on it. The request is nil for changes made
// by the server itself.
func (wr *Writer) commit(ctx context.Context, by *request.Request, res *scheme.Resource, c store.Change) (store.Record, error) {
	if err := takeTurn(ctx, &c); err != nil {
		return store.Record{}, err
	}
	c.Author = authorOf(by)
	began := time.Now()
	rec, err := wr.Store.Commit(ctx, c)
	by.AddCommitWait(began)
	if err == nil {
		note := request.Write{Key: c.Key, Old: c.Expect, New: rec.Rev}
		if c.Op == store.OpDelete {
			note.New = 0
			wr.Allocator.ReleaseUnused(ctx, c.Key, c.JSON, nil)
		}
		by.RecordWrite(note)
		wr.follow(res, &rec)
	}
	if err == nil && res.Custom != nil && res.Custom.OnCommit != nil {
		// the definition has to follow the stored object even if the client has left
		err = res.Custom.OnCommit(context.WithoutCancel(ctx))
	}
	return rec, err
}

func (wr *Writer) follow(res *scheme.Resource, rec *store.Record) {
	wr.namespaces.forget(rec.Key)
	wr.Quotas.OnCommit(res, rec)
	wr.applyDerived(res, rec.Rev)
}

// applyDerived updates the data that is derived from a resource's objects.
func (wr *Writer) applyDerived(res *scheme.Resource, rev int64) {
	for _, follow := range wr.OnCommit {
		follow(res)
	}
	if wr.OnPolicyCommit != nil {
		wr.OnPolicyCommit(res, rev)
	}
}
