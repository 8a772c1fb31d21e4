package registry

// This file implements changes of existing objects: PUT, and all other changes through Modify.
// patch.go computes the new object of a PATCH, which then follows the same steps.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strconv"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"

	"apilet/internal/admission"
	"apilet/internal/apierror"
	"apilet/internal/fieldmanager"
	"apilet/internal/kinds/defaults"
	"apilet/internal/kinds/strategy"
	"apilet/internal/kinds/warnings"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// Update handles a PUT.
func (wr *Writer) Update(w http.ResponseWriter, r *http.Request, rec *request.Request, res *scheme.Resource) error {
	v, sent, opts, err := receive(w, r, rec, res, "UpdateOptions")
	if err != nil {
		return err
	}
	ctx, t := r.Context(), targetOf(rec, res)
	if err := t.check(sent); err != nil {
		return err
	}
	warning.AddWarning(ctx, "", warnings.DropDuplicateOwners(sent))
	t.Upsert = strategy.AllowCreateOnUpdate(res) && t.Subresource == ""
	stored, created, err := wr.Modify(ctx, t, opts, func(old scheme.Object, rec *store.Record) (scheme.Object, error) { return replaced(&t, sent, old, rec) })
	if err != nil {
		return err
	}
	return v.Respond(w, r, statusFor(created), &stored)
}

// replaced returns the object that a PUT sends. It returns a conflict if the body has another uid.
func replaced(t *Target, sent, old scheme.Object, rec *store.Record) (scheme.Object, error) {
	if uid := sent.GetUID(); old != nil && uid != "" && uid != old.GetUID() {
		return nil, t.otherUID(uid, old.GetUID())
	}
	obj := sent.DeepCopyObject().(scheme.Object)
	if checkKind(t.Resource, obj) != nil {
		return t.renamed(obj.(*unstructured.Unstructured), nil, rec)
	}
	return obj, nil
}

// otherUID returns the conflict for a wrong uid in the words of kube-apiserver's store.
func (t *Target) otherUID(wanted, have types.UID) error {
	return apierrors.NewConflict(t.Resource.GroupResource(), t.Name, fmt.Errorf("StorageError: invalid object, Code: 4, Key: /registry/%s, "+
		"ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: %v, UID in object meta: %v",
		path.Join(t.Resource.EtcdFolder(), t.Namespace, t.Name), wanted, have))
}

func statusFor(created bool) int {
	if created {
		return http.StatusCreated
	}
	return http.StatusOK
}

// A ChangeFunc computes the new version of an object. old is nil if the object does not exist.
type ChangeFunc func(old scheme.Object, rec *store.Record) (scheme.Object, error)

// Modify changes an object. It reads the object, computes and validates the change, and commits it.
// If the object has been modified in the meantime, Modify starts again. A PUT with a
// resourceVersion then fails in the second round. After the first round, a lock for the key is held
// to serialize concurrent changes to the same object.
//
//	read ──▶ change ──▶ compute ──▶ checkAndCommit
//	  ▲                                   │
//	  └────────── newer version ◀─────────┘
func (wr *Writer) Modify(ctx context.Context, t Target, opts Options, change ChangeFunc) (rec store.Record, created bool, err error) {
	key := t.Resource.Key(t.Namespace, t.Name)
	if opts.rec == nil {
		opts.rec = request.From(ctx)
	}
	for round := 0; ; round++ {
		if round == 1 {
			leave, err := wr.locks.lock(ctx, key)
			if err != nil {
				return store.Record{}, false, err
			}
			defer leave()
		}
		if err := ctx.Err(); err != nil {
			return store.Record{}, false, apierrors.NewTimeoutError("request did not complete within the allotted time", 0)
		}
		rec, err = wr.Store.Get(key)
		read := rec.Rev
		switch {
		case errors.Is(err, store.ErrNotFound) && t.Upsert:
			rec, err = wr.upsert(ctx, t, opts, change)
			created = true
		case err != nil:
		default:
			created = false
			rec, err = wr.modifyOnce(ctx, t, opts, change, rec)
		}
		if lost := errors.Is(err, store.ErrConflict) || created && apierrors.IsAlreadyExists(err); lost {
			continue
		}
		if stale, failure := wr.stale(ctx, key, read, err == nil && (created || rec.Rev != read || rec.Deleted) || errors.Is(err, store.ErrInDoubt)); failure != nil {
			err = failure
		} else if stale {
			continue
		}
		return rec, created, response.StoreError(err, t.Resource, t.Name)
	}
}

// stale reports whether the object has changed since the given revision, which is 0 if the object
// did not exist. After a commit no check is necessary, and a commit with an unknown outcome must
// not be repeated. Otherwise, a replica has to check whether its data is up to date.
func (wr *Writer) stale(ctx context.Context, key string, rev int64, committed bool) (bool, error) {
	if committed {
		return false, nil
	}
	return wr.Store.Changed(ctx, key, rev)
}

// upsert creates the object of a PUT or an apply if the user may create it. If the body contains a
// uid or a resourceVersion, it refers to a deleted object, and upsert returns an error.
// (kube-apiserver ignores the resourceVersion.)
func (wr *Writer) upsert(ctx context.Context, t Target, opts Options, change ChangeFunc) (store.Record, error) {
	obj, err := change(nil, nil)
	if err != nil {
		return store.Record{}, err
	}
	switch named, err := namedRevision(obj); {
	case err != nil && !opts.dryRun:
		return store.Record{}, err
	case obj.GetUID() != "" && opts.applied:
		return store.Record{}, apierrors.NewConflict(t.Resource.GroupResource(), t.Name, fmt.Errorf(
			"uid mismatch: the provided object specified uid %s, and no existing object was found", obj.GetUID()))
	case obj.GetUID() != "":
		return store.Record{}, t.otherUID(obj.GetUID(), "")
	case named != 0 && !opts.dryRun:
		return store.Record{}, response.StoreError(store.ErrConflict, t.Resource, t.Name)
	}
	if err := wr.Auth.MayCreate(opts.rec); err != nil {
		return store.Record{}, err
	}
	if !opts.dryRun {
		obj.SetResourceVersion("")
	}
	return wr.Insert(ctx, t.Resource, obj, opts)
}

// modifyOnce is one round of Modify.
func (wr *Writer) modifyOnce(ctx context.Context, t Target, opts Options, change ChangeFunc, rec store.Record) (store.Record, error) {
	shown := &rec
	if t.Resource.NeedsConversion() { // keep the stored form, because the write may not change it
		converted := rec
		shown = &converted
	}
	if err := response.Convert(ctx, t.Resource, shown); err != nil {
		return rec, err
	}
	old, err := wr.readForWrite(t.Resource, shown)
	if err != nil {
		return rec, err
	}
	if t.Resource.Custom == nil { // JSON omits some default values, and an earlier version may have had fewer
		defaults.Set(old)
	}
	obj, err := change(old, shown)
	// computing a patch may have exceeded the deadline
	if err := cmp.Or(err, ctx.Err()); err != nil {
		return rec, err
	}
	attributes := opts.change(t.Resource, t.Subresource, obj, old)
	if obj, err = wr.compute(ctx, &t, opts, attributes, rec.Rev); err != nil {
		return rec, err
	}
	return wr.checkAndCommit(ctx, &plan{Target: t, opts: opts, attributes: attributes, obj: obj, old: old, rec: rec})
}

// compute returns the object to be stored for a change. It sets defaults and field owners, calls
// the mutating plug-ins and webhooks, and takes the fields that the request may not write from
// attributes.Old, the object at revision rev.
func (wr *Writer) compute(ctx context.Context, t *Target, opts Options, attributes admission.Attributes, rev int64) (scheme.Object, error) {
	obj, old := attributes.Object, attributes.Old
	if err := checkRevision(t.Resource, obj, rev); err != nil {
		return nil, err
	}
	if err := FillDefaults(t.Resource, obj); err != nil {
		return nil, err
	}
	if err := wr.recordOwners(t.Resource, old, obj, opts, t.Subresource); err != nil {
		return nil, err
	}
	obj, err := wr.Admission.Admit(ctx, attributes)
	if err != nil {
		return nil, err
	}
	warning.AddWarning(ctx, "", warnings.DropAdmittedDuplicates(obj))
	return prepare(ctx, t, obj, old), nil
}

// checkRevision compares the resourceVersion of the body with the stored one. Some types accept a
// body without a resourceVersion.
func checkRevision(res *scheme.Resource, obj scheme.Object, rev int64) error {
	named, err := namedRevision(obj)
	switch {
	case err != nil:
		return err
	case named == uint64(rev) || named == 0 && strategy.AllowUnconditionalUpdate(res):
		return nil
	case named != 0:
		return response.StoreError(store.ErrConflict, res, obj.GetName())
	}
	at := field.NewPath("metadata").Child("resourceVersion")
	return apierror.Invalid(schema.GroupKind{Group: res.Group, Kind: res.Plural}, obj.GetName(),
		field.ErrorList{field.Invalid(at, 0, "must be specified for an update")})
}

// namedRevision returns the resourceVersion of the object, or 0 if it is not set.
func namedRevision(obj scheme.Object) (uint64, error) {
	rv := obj.GetResourceVersion()
	if rv == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(rv, 10, 64)
	if err != nil {
		return 0, apierror.InternalWithoutReason(err.Error())
	}
	return n, nil
}

// prepare restores the fields of obj that the request cannot change. It increments the generation
// if the spec has changed.
func prepare(ctx context.Context, t *Target, obj, old scheme.Object) scheme.Object {
	if t.Resource.Custom != nil {
		obj = t.Resource.Custom.Prepare(obj, old, t.Subresource)
		obj.SetGeneration(old.GetGeneration())
		if t.Resource.Generation && t.Subresource != "status" && !sameSpec(obj, old) {
			obj.SetGeneration(old.GetGeneration() + 1)
		}
	} else {
		obj.SetGeneration(old.GetGeneration())
		strategy.PrepareForUpdate(ctx, t.Subresource, obj, old)
	}
	if obj.GetUID() == "" {
		obj.SetUID(old.GetUID())
	}
	obj.SetCreationTimestamp(old.GetCreationTimestamp())
	if old.GetDeletionTimestamp() != nil {
		obj.SetDeletionTimestamp(old.GetDeletionTimestamp())
	}
	if old.GetDeletionGracePeriodSeconds() != nil && obj.GetDeletionGracePeriodSeconds() == nil {
		obj.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
	}
	obj.SetSelfLink("")
	obj.SetResourceVersion(old.GetResourceVersion())
	fieldmanager.RestoreTimes(old, obj)
	return obj
}

// sameSpec reports whether two objects are equal in the fields that metadata.generation counts. The
// status of a custom resource counts if the resource has no status subresource. If it has one, the
// old and new status are equal here.
func sameSpec(a, b scheme.Object) bool {
	if ua, ok := a.(*unstructured.Unstructured); ok {
		return apiequality.Semantic.DeepEqual(specOf(ua), specOf(b.(*unstructured.Unstructured)))
	}
	return strategy.SameSpec(a, b)
}

// specOf returns the fields of a custom resource other than apiVersion, kind and metadata.
func specOf(u *unstructured.Unstructured) map[string]any {
	rest := make(map[string]any, len(u.Object))
	for k, v := range u.Object {
		switch k {
		case "apiVersion", "kind", "metadata":
			continue
		}
		rest[k] = v
	}
	return rest
}
