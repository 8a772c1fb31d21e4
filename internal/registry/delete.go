package registry

// This file implements the deletion of objects and collections. See deleting.go for the changes to
// an object when its deletion has to wait.

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"

	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"apilet/internal/admission"
	"apilet/internal/apierror"
	"apilet/internal/corrupt"
	"apilet/internal/kinds/strategy"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// Remove handles a DELETE of one object.
func (wr *Writer) Remove(w http.ResponseWriter, r *http.Request, clientReq *request.Request, res *scheme.Resource) error {
	v, err := response.NewView(r, clientReq, res)
	if err != nil {
		return err
	}
	options, err := readDeleteOptions(w, r, clientReq, res)
	if err != nil {
		return err
	}
	info := &clientReq.Info
	if err := wr.checkUnsafe(res, res.Scope(info.Namespace), info.Name, options); err != nil {
		return err
	}
	rec, gone, err := wr.Delete(r.Context(), res, res.Scope(info.Namespace), info.Name, options)
	if err != nil {
		return err
	}
	if gone && res.CheckReadable(rec.JSON) != nil {
		return respondDeleted(w, r, clientReq, res, &rec)
	}
	code := http.StatusOK
	if !gone && options.OrphanDependents != nil && !*options.OrphanDependents {
		code = http.StatusAccepted
	}
	if !gone || strategy.ReturnsDeleted(res) {
		return v.Respond(w, r, code, &rec)
	}
	return respondDeleted(w, r, clientReq, res, &rec)
}

// checkUnsafe returns an error if the options request the deletion of an unreadable object and the
// object can be read.
func (wr *Writer) checkUnsafe(res *scheme.Resource, namespace, name string, options *metav1.DeleteOptions) error {
	if option := options.IgnoreStoreReadErrorWithClusterBreakingPotential; option == nil || !*option {
		return nil
	}
	rec, err := wr.Store.Get(res.Key(namespace, name))
	if err != nil || res.CheckReadable(rec.JSON) != nil {
		return nil // Delete reports a missing object
	}
	return apierrors.NewConflict(res.GroupResource(), name, fmt.Errorf("StorageError: invalid object, Code: 4, Key: /registry/%s, ResourceVersion: 0, "+
		"AdditionalErrorMsg: unsafe deletion is not allowed because the object is decodable from storage", path.Join(res.EtcdFolder(), namespace, name)))
}

// respondDeleted sends the Status for a DELETE that removed the object.
func respondDeleted(w http.ResponseWriter, r *http.Request, clientReq *request.Request, res *scheme.Resource, rec *store.Record) error {
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: clientReq.Info.Name, Group: res.Group, Kind: res.Plural,
			UID: types.UID(gjson.GetBytes(rec.JSON, "metadata.uid").String())},
	}
	clientReq.ResponseStatus = &status
	return response.WriteObject(w, r, http.StatusOK, &status)
}

// Delete removes an object, or marks it as deleting if it has to wait for finalizers or a grace
// period. gone reports whether the object was removed.
func (wr *Writer) Delete(ctx context.Context, res *scheme.Resource, namespace, name string, options *metav1.DeleteOptions) (rec store.Record, gone bool, err error) {
	key := res.Key(namespace, name)
	for discards := 0; ; {
		if err := ctx.Err(); err != nil {
			return store.Record{}, false, apierrors.NewTimeoutError("request did not complete within the allotted time", 0)
		}
		rec, err = wr.Store.Get(key)
		read := rec.Rev
		switch {
		case err == nil:
			rec, gone, err = wr.deleteOnce(ctx, res, rec, options)
		// the pages are inconsistent after three attempts
		case errors.Is(err, store.ErrDamaged) && discards < 3:
			discards++
			rec, gone, err = wr.removeUnreadable(ctx, res, store.Record{Key: key}, options)
		}
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if stale, failure := wr.stale(ctx, key, read, err == nil && rec.Rev != read || errors.Is(err, store.ErrInDoubt)); failure != nil {
			err = failure
		} else if stale {
			continue
		}
		return rec, gone, response.StoreError(err, res, name)
	}
}

// deleteOnce makes one attempt to delete the object. It returns store.ErrConflict if another writer
// won.
func (wr *Writer) deleteOnce(ctx context.Context, res *scheme.Resource, rec store.Record, options *metav1.DeleteOptions) (store.Record, bool, error) {
	if err := checkPreconditions(res, &rec, options); err != nil {
		return rec, false, err
	}
	shown := &rec
	if res.NeedsConversion() {
		converted := rec
		shown = &converted
	}
	if err := response.Convert(ctx, res, shown); err != nil {
		return rec, false, err
	}
	obj, err := wr.readForWrite(res, shown)
	if errors.Is(err, scheme.ErrUnreadable) {
		return wr.removeUndecodable(ctx, res, rec, len(options.DryRun) > 0)
	}
	if err != nil {
		return rec, false, err
	}
	if err := strategy.ValidateDelete(res, obj.GetName()); err != nil {
		return rec, false, err
	}
	a := admission.Attributes{Resource: res, Operation: admission.OpDelete, DryRun: len(options.DryRun) > 0, Deleting: options, Old: obj, Request: request.From(ctx)}
	if _, err := wr.Admission.Decide(ctx, a); err != nil {
		return rec, false, err
	}
	before := obj.DeepCopyObject().(scheme.Object)
	if begins := obj.GetDeletionTimestamp() == nil; begins && res.Custom != nil && res.Custom.MarkDeleting != nil {
		res.Custom.MarkDeleting(obj)
	} else {
		markDeleting(res, obj, options, wr.Store.Now())
	}
	if waits := before.GetDeletionTimestamp() == nil || runningGrace(before) > 0; waits && strategy.IsGraceful(obj) {
		return wr.deleteGracefully(ctx, res, obj, before, rec, options)
	}
	if !canRemove(obj) {
		obj.SetResourceVersion("")
		marked, err := wr.mark(ctx, res, obj, before, rec, len(options.DryRun) > 0)
		return marked, false, err
	}
	if len(options.DryRun) > 0 {
		return rec, true, nil
	}
	rec, err = wr.commit(ctx, request.From(ctx), res, Tombstone(&rec))
	return rec, true, err
}

// deleteGracefully marks an object as deleting. The deletion may have to be completed by another
// component. If there is nothing to wait for, it also removes the object. As in kube-apiserver,
// both steps are visible to watchers.
func (wr *Writer) deleteGracefully(ctx context.Context, res *scheme.Resource, obj, before scheme.Object, rec store.Record, options *metav1.DeleteOptions) (store.Record, bool, error) {
	if dryRun, done := len(options.DryRun) > 0, canRemove(obj); dryRun || !done {
		marked, err := wr.mark(ctx, res, obj, before, rec, dryRun)
		return marked, done, err
	}
	obj.SetResourceVersion(before.GetResourceVersion())
	if !apiequality.Semantic.DeepEqual(obj, before) {
		stored, revAt, err := encode(ctx, res, obj)
		if err != nil {
			return rec, false, err
		}
		rec, err = wr.commit(ctx, request.From(ctx), res, store.Change{Op: store.OpUpdate, Key: rec.Key, Expect: rec.Rev, JSON: stored, RevAt: revAt, Deleting: true})
		if err != nil {
			return rec, false, err
		}
	}
	rec, err := wr.commit(ctx, request.From(ctx), res, Tombstone(&rec))
	return rec, true, err
}

// mark updates the stored object if the deletion has changed it.
func (wr *Writer) mark(ctx context.Context, res *scheme.Resource, obj, before scheme.Object, rec store.Record, dryRun bool) (store.Record, error) {
	obj.SetResourceVersion(before.GetResourceVersion())
	if apiequality.Semantic.DeepEqual(obj, before) {
		return rec, nil
	}
	return wr.store(ctx, &plan{Target: Target{Resource: res}, opts: Options{rec: request.From(ctx), dryRun: dryRun}, obj: obj, old: before, rec: rec})
}

// removeUndecodable deletes an object that cannot be decoded, without regard to finalizers and
// webhooks, which need the decoded object. If it contains other objects, it is only marked as
// deleting until they are gone, provided that a controller can delete them.
func (wr *Writer) removeUndecodable(ctx context.Context, res *scheme.Resource, rec store.Record, dryRun bool) (store.Record, bool, error) {
	_, name := scheme.NamespacedName(rec.Key)
	if err := strategy.ValidateDelete(res, name); err != nil {
		return rec, false, err
	}
	inside := corrupt.ContentOf(wr.Types, res, name)
	full := inside.Any(wr.Store)
	mark, marks := corrupt.MarkDeletingRaw(&rec, wr.Store.Now())
	switch {
	case dryRun:
		return rec, !full, nil
	case full && inside.Served && rec.Deleting:
		return rec, false, nil
	case full && inside.Served && marks:
		rec, err := wr.commit(ctx, request.From(ctx), res, mark)
		return rec, false, err
	case full && isNamespaces(res):
		return wr.endNamespace(ctx, res, store.Change{Key: rec.Key, Expect: rec.Rev})
	case full:
		if err := wr.removeContent(ctx, res, inside.Prefixes); err != nil {
			return rec, false, err
		}
	}
	rec, err := wr.commit(ctx, request.From(ctx), res, Tombstone(&rec))
	return rec, true, err
}

// Like removeUndecodable, discard deletes an object that cannot be read. In this case the newest
// version is damaged. The uid of the object is unknown, so every precondition fails. Watchers have
// to restart (see store.Change). If a Namespace is not empty, it is replaced by a new Namespace
// that is being deleted.
func (wr *Writer) removeUnreadable(ctx context.Context, res *scheme.Resource, rec store.Record, options *metav1.DeleteOptions) (store.Record, bool, error) {
	_, name := scheme.NamespacedName(rec.Key)
	if err := errors.Join(checkPreconditions(res, &rec, options), strategy.ValidateDelete(res, name)); err != nil {
		return rec, false, err
	}
	inside := corrupt.ContentOf(wr.Types, res, name)
	switch full := inside.Any(wr.Store); {
	case len(options.DryRun) > 0: // there is no content to return
		return rec, true, nil
	case full && isNamespaces(res):
		return wr.endNamespace(ctx, res, store.Change{Key: rec.Key, Damaged: true})
	case full:
		if err := wr.removeContent(ctx, res, inside.Prefixes); err != nil {
			return rec, false, err
		}
	}
	rec, err := wr.commit(ctx, request.From(ctx), res, store.Change{Op: store.OpDelete, Key: rec.Key, Damaged: true})
	return rec, true, err
}

// endNamespace replaces an unreadable Namespace by a new one that is being deleted. The garbage
// collector then deletes its contents.
func (wr *Writer) endNamespace(ctx context.Context, res *scheme.Resource, c store.Change) (store.Record, bool, error) {
	_, name := scheme.NamespacedName(c.Key)
	began := metav1.NewTime(wr.Store.Now()).Rfc3339Copy()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: uuid.NewUUID(), CreationTimestamp: began, DeletionTimestamp: &began},
		Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}}, Status: corev1.NamespaceStatus{Phase: corev1.NamespaceTerminating}}
	strategy.LabelNamespace(ns)
	var err error
	if c.JSON, c.RevAt, err = res.EncodeStored(ns); err != nil {
		return store.Record{}, false, err
	}
	c.Op, c.Deleting = store.OpUpdate, true
	rec, err := wr.commit(ctx, request.From(ctx), res, c)
	return rec, false, err
}

// removeContent deletes all objects with the given prefixes. It is used for types that are not
// served because their definition cannot be read.
func (wr *Writer) removeContent(ctx context.Context, res *scheme.Resource, prefixes []string) error {
	for _, prefix := range prefixes {
		for c, err := range wr.Store.Chunks(store.Span{Prefix: prefix, SkipDamaged: true}) {
			if err != nil {
				return err
			}
			if len(c.Sealed) > 0 {
				return c.Sealed[0].Err
			}
			all := make([]store.Change, 0, len(c.Records)+len(c.Damaged))
			for i := range c.Records {
				all = append(all, Tombstone(&c.Records[i]))
			}
			for _, key := range c.Damaged {
				all = append(all, store.Change{Op: store.OpDelete, Key: key, Damaged: true})
			}
			if err := Parallel(all, DeleteWorkers, func(change store.Change) error {
				_, err := wr.Store.Commit(ctx, change)
				if errors.Is(err, store.ErrNotFound) {
					return nil
				}
				return err
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// RemoveCollection reads the options of a request to delete a collection. The returned function
// deletes the objects in a chunk of the LIST. As in kube-apiserver the deletion is not atomic.
// Objects that were deleted before an error stay deleted. Watchers receive the deletions in the
// order of the keys.
func (wr *Writer) RemoveCollection(w http.ResponseWriter, r *http.Request, clientReq *request.Request, res *scheme.Resource) (func(context.Context, []*store.Record) error, error) {
	options, err := readDeleteOptions(w, r, clientReq, res)
	if err != nil {
		return nil, err
	}
	if option := options.IgnoreStoreReadErrorWithClusterBreakingPotential; option != nil && *option {
		return nil, apierror.Invalid(schema.GroupKind{Group: metav1.GroupName, Kind: "DeleteOptions"}, "", field.ErrorList{
			field.Invalid(field.NewPath("ignoreStoreReadErrorWithClusterBreakingPotential"), true,
				"is not allowed with DELETECOLLECTION, try again after removing the option")})
	}
	return func(ctx context.Context, found []*store.Record) error {
		return inOrder(ctx, found, DeleteWorkers, func(ctx context.Context, rec *store.Record) error {
			namespace, name := scheme.NamespacedName(rec.Key)
			_, _, err := wr.Delete(ctx, res, namespace, name, options)
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	}, nil
}
