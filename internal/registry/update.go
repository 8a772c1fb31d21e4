package registry

// This file is the way of an object that is there: a PUT, and whatever else changes it, through Modify. What a PATCH wants is computed in
// patch.go; from there on it goes this way.

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

// Update answers a PUT.
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

// replaced is what a PUT wants: the object that was sent, unless it means another one of the same name.
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

// otherUID is the conflict with another object of the same name, or with none, in the words of kube-apiserver's store.
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

// A ChangeFunc is a revision-to-be: given the object as it is (nil: it does not exist), it returns what it shall become.
type ChangeFunc func(old scheme.Object, rec *store.Record) (scheme.Object, error)

// Modify changes an object: read, compute, validate and commit if nobody was faster, else again. A PUT that names a resourceVersion fails
// in the second round by itself. Rounds after the first wait in a queue of the key, so that many patches of one object take turns.
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

// stale tells whether an answer was made of a version, by its revision (0: of none), that was not the newest any more. A commit has found out,
// and one whose outcome is not known must not be made again; an answer without one, in a replica, has to ask.
func (wr *Writer) stale(ctx context.Context, key string, rev int64, committed bool) (bool, error) {
	if committed {
		return false, nil
	}
	return wr.Store.Changed(ctx, key, rev)
}

// upsert creates the object that a PUT or an apply names, for whoever may create it. Who names a uid or a revision means an object that
// is gone. (kube-apiserver does not look at the revision.)
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
	if t.Resource.Converts() { // what is stored stays in hand: a write may turn out to change nothing of it
		converted := rec
		shown = &converted
	}
	if err := response.Convert(ctx, t.Resource, shown); err != nil {
		return rec, err
	}
	old, err := wr.mend(t.Resource, shown)
	if err != nil {
		return rec, err
	}
	if t.Resource.Custom == nil { // JSON omits some default values, and an earlier version may have had fewer
		defaults.Set(old)
	}
	obj, err := change(old, shown)
	if err := cmp.Or(err, ctx.Err()); err != nil { // a patch may have taken all of the time
		return rec, err
	}
	asked := opts.change(t.Resource, t.Subresource, obj, old)
	if obj, err = wr.compute(ctx, &t, opts, asked, rec.Rev); err != nil {
		return rec, err
	}
	return wr.checkAndCommit(ctx, &plan{Target: t, opts: opts, asked: asked, obj: obj, old: old, rec: rec})
}

// compute returns the object to be stored for a change. It sets defaults and field owners, calls the mutating plug-ins and webhooks, and takes the
// fields that the request may not write from asked.Old, the object at revision rev.
func (wr *Writer) compute(ctx context.Context, t *Target, opts Options, asked admission.Attributes, rev int64) (scheme.Object, error) {
	obj, old := asked.Object, asked.Old
	if err := checkRevision(t.Resource, obj, rev); err != nil {
		return nil, err
	}
	if err := FillDefaults(t.Resource, obj); err != nil {
		return nil, err
	}
	if err := wr.recordOwners(t.Resource, old, obj, opts, t.Subresource); err != nil {
		return nil, err
	}
	obj, err := wr.Admission.Admit(ctx, asked)
	if err != nil {
		return nil, err
	}
	warning.AddWarning(ctx, "", warnings.DropAdmittedDuplicates(obj))
	return prepare(ctx, t, obj, old), nil
}

// checkRevision compares the resourceVersion that a client names with the stored one. None means any, for the types that allow it.
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

// namedRevision parses the resourceVersion of a body; 0 is none.
func namedRevision(obj scheme.Object) (uint64, error) {
	rv := obj.GetResourceVersion()
	if rv == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(rv, 10, 64)
	if err != nil {
		return 0, apierror.Unexplained(err.Error())
	}
	return n, nil
}

// prepare restores the fields of obj that the request cannot change, and increments its generation if the change counts.
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
	fieldmanager.KeepTimes(old, obj)
	return obj
}

// sameSpec reports whether two objects are equal in the fields that metadata.generation counts. The status of a custom resource counts
// if the resource has no status subresource. If it has one, the old and new status are equal here.
func sameSpec(a, b scheme.Object) bool {
	if ua, ok := a.(*unstructured.Unstructured); ok {
		return apiequality.Semantic.DeepEqual(specOf(ua), specOf(b.(*unstructured.Unstructured)))
	}
	return strategy.SameSpec(a, b)
}

// specOf is a custom resource without apiVersion, kind and metadata.
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
