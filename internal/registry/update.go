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
	"reflect"
	"strconv"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"

	"apilet/internal/admission/quota"
	"apilet/internal/registry/allocator"
	"apilet/internal/registry/defaults"
	"apilet/internal/registry/fieldmanager"
	"apilet/internal/registry/strategy"
	"apilet/internal/registry/validation"
	"apilet/internal/registry/warnings"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// Update answers a PUT.
func (wr *Writer) Update(w http.ResponseWriter, r *http.Request, res *scheme.Resource) error {
	v, sent, opts, err := receive(w, r, res, "UpdateOptions")
	if err != nil {
		return err
	}
	ctx, t := r.Context(), targetOf(r, res)
	if err := t.check(sent); err != nil {
		return err
	}
	t.Upsert = strategy.AllowCreateOnUpdate(res) && t.Subresource == ""
	rec, created, err := wr.Modify(ctx, t, opts, func(old scheme.Object, _ *store.Record) (scheme.Object, error) { return t.replaced(sent, old) })
	if err != nil {
		return err
	}
	return v.Respond(w, r, statusFor(created), &rec)
}

// A Target is one object, or one part of it, that a request changes.
type Target struct {
	Resource        *scheme.Resource // the type, at the version of the request
	Namespace, Name string           // "" for a type without namespaces
	Subresource     string           // "", status, ephemeralcontainers, resize, approval, finalize
	Upsert          bool             // an object that does not exist is created
}

func targetOf(r *http.Request, res *scheme.Resource) Target {
	info := &request.From(r.Context()).Info
	return Target{Resource: res, Namespace: scheme.ScopeOf(res, info), Name: info.Name, Subresource: info.Subresource}
}

// replaced is what a PUT wants: the object that was sent, unless it means another one of the same name.
func (t *Target) replaced(sent, old scheme.Object) (scheme.Object, error) {
	if uid := sent.GetUID(); old != nil && uid != "" && uid != old.GetUID() {
		return nil, t.otherUID(uid, old.GetUID())
	}
	return sent.DeepCopyObject().(scheme.Object), nil
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

// check compares an object's name and namespace with the URL's.
func (t *Target) check(obj scheme.Object) error {
	switch name := obj.GetName(); {
	case name == "":
		return t.nameless()
	case name != t.Name:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", name, t.Name))
	}
	return matchNamespace(obj, t.Namespace)
}

func (t *Target) nameless() error {
	return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: name must be provided", t.Name))
}

// A ChangeFunc is a revision-to-be: given the object as it is (nil: it does not exist), it returns what it shall become.
type ChangeFunc func(old scheme.Object, rec *store.Record) (scheme.Object, error)

// Modify changes an object: read, compute, validate and commit if nobody was faster, else again. A PUT that names a resourceVersion fails
// in the second round by itself. Rounds after the first wait in a queue of the key, so that many patches of one object take turns.
//
//	read ──▶ compute: change, default, own, admit, prepare ──▶ validateAndCommit: allocate, validate, admit, encode, commit
//	  ▲                                                                                 │
//	  └──────────────────────────────────── newer version ◀─────────────────────────────┘
func (wr *Writer) Modify(ctx context.Context, t Target, opts Options, change ChangeFunc) (rec store.Record, created bool, err error) {
	key := t.Resource.Key(t.Namespace, t.Name)
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
	if err := wr.Auth.MayCreate(ctx); err != nil {
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
	obj, err := change(old, shown)
	if err := cmp.Or(err, ctx.Err()); err != nil { // a patch may have taken all of the time
		return rec, err
	}
	if obj, err = wr.compute(ctx, &t, opts, obj, old, rec.Rev); err != nil {
		return rec, err
	}
	return wr.validateAndCommit(ctx, &t, opts, obj, old, rec)
}

// compute makes of what a change wants what is to be stored: its defaults, who owns its fields, what plug-ins and webhooks make of it,
// and what the request may not write as it is in old, the object at revision rev.
func (wr *Writer) compute(ctx context.Context, t *Target, opts Options, obj, old scheme.Object, rev int64) (scheme.Object, error) {
	if err := checkRevision(t.Resource, obj, rev); err != nil {
		return nil, err
	}
	if t.Subresource != "status" {
		if err := FillDefaults(t.Resource, obj); err != nil {
			return nil, err
		}
	} else {
		defaults.DefaultStatus(obj)
	}
	if err := wr.recordOwners(t.Resource, old, obj, opts, t.Subresource); err != nil {
		return nil, err
	}
	obj, err := wr.Admission.Admit(ctx, opts.change(t.Resource, t.Subresource, obj, old))
	if err != nil {
		return nil, err
	}
	obj = t.prepare(obj, old)
	warning.AddWarning(ctx, "", warnings.DropDuplicateOwners(obj))
	return obj, nil
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
	return scheme.Invalid(schema.GroupKind{Group: res.Group, Kind: res.Plural}, obj.GetName(),
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
		return 0, apierrors.NewBadRequest(field.Invalid(field.NewPath("metadata", "resourceVersion"), rv, err.Error()).Error())
	}
	return n, nil
}

// prepare takes from obj what the request may write and the rest from old.
func (t *Target) prepare(obj, old scheme.Object) scheme.Object {
	switch {
	case t.Resource.Custom != nil:
		obj = t.Resource.Custom.Prepare(obj, old, t.Subresource)
	case t.Subresource == "":
		strategy.PrepareForUpdate(obj, old)
	case t.Subresource == "status":
		strategy.PrepareForStatusUpdate(obj, old)
	default:
		obj = strategy.PrepareForSubresource(t.Subresource, obj, old)
	}
	obj.SetGeneration(old.GetGeneration())
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
	if t.Resource.Generation && t.Subresource != "status" && t.Subresource != "binding" && !(sameSpec(obj, old) && strategy.SameNotes(obj, old)) {
		obj.SetGeneration(old.GetGeneration() + 1)
	}
	fieldmanager.KeepTimes(old, obj)
	return obj
}

// sameSpec compares two objects apart from metadata and status: what metadata.generation counts. The status of a custom resource that
// has no such subresource is a field like any other; of one that has it, old and new status are equal here.
func sameSpec(a, b scheme.Object) bool {
	if ua, ok := a.(*unstructured.Unstructured); ok {
		return apiequality.Semantic.DeepEqual(specOf(ua), specOf(b.(*unstructured.Unstructured)))
	}
	va, vb := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	for i := range va.NumField() {
		switch va.Type().Field(i).Name {
		case "TypeMeta", "ObjectMeta", "Status":
			continue
		}
		if !apiequality.Semantic.DeepEqual(va.Field(i).Interface(), vb.Field(i).Interface()) {
			return false
		}
	}
	return true
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

// validateAndCommit stores a computed object, if its type's rules, plug-ins and validating webhooks have nothing against it. rec is what
// it was computed from: store.ErrConflict when somebody was faster.
func (wr *Writer) validateAndCommit(ctx context.Context, t *Target, opts Options, obj, old scheme.Object, rec store.Record) (_ store.Record, err error) {
	if err := ctx.Err(); err != nil {
		return rec, err
	}
	var given *allocator.Allotment
	if t.Subresource == "" {
		if given, err = wr.Allocator.Assign(obj, old, opts.dryRun); err != nil {
			return rec, err
		}
		defer func() { given.Done(ctx, err) }()
	}
	if errs := wr.validateChanged(ctx, t, opts, obj, old); len(errs) > 0 {
		return rec, scheme.Invalid(t.Resource.GroupKind(), t.Name, errs)
	}
	if err := cmp.Or(wr.checkGrant(ctx, t.Resource, obj, old), wr.checkParams(ctx, t.Resource, obj, old)); err != nil {
		return rec, err
	}
	if t.Subresource == "" {
		warnAbout(ctx, t.Resource, obj, old)
	}
	if err := wr.Admission.Validate(ctx, opts.change(t.Resource, t.Subresource, obj, old)); err != nil {
		return rec, err
	}
	held, err := wr.Quotas.Charge(ctx, quota.Write{Resource: t.Resource, Subresource: t.Subresource, Object: obj, Old: old, DryRun: opts.dryRun})
	if err != nil {
		return rec, err
	}
	defer held.Release()
	if err := given.Claim(ctx); errors.Is(err, allocator.ErrLost) {
		return rec, store.ErrConflict
	} else if err != nil {
		return rec, err
	}
	opts.with = wr.accompany(held)
	return wr.store(ctx, t.Resource, obj, rec, opts)
}

// validateChanged checks an update: metadata by its own rules and by those of what may change, then the type's rules.
func (wr *Writer) validateChanged(ctx context.Context, t *Target, opts Options, obj, old scheme.Object) field.ErrorList {
	at := field.NewPath("metadata")
	errs := apivalidation.ValidateObjectMetaAccessorUpdate(obj, old, at)
	errs = append(errs, apivalidation.ValidateObjectMetaAccessor(obj, t.Resource.Namespaced, anyName, at)...)
	if t.Resource.GoType != nil && t.Resource.Custom == nil {
		errs = append(errs, validation.ValidateFinalizers(obj.GetFinalizers(), at.Child("finalizers"))...)
	}
	switch {
	case t.Resource.Custom != nil:
		errs = append(errs, t.Resource.Custom.Validate(ctx, obj, old, t.Subresource)...)
	case !wr.Validating || opts.Trusted:
	case t.Subresource == "":
		errs = append(errs, validation.ValidateUpdate(obj, old)...)
	case t.Subresource == "status":
		errs = append(errs, validation.ValidateStatusUpdate(obj, old)...)
		errs = append(errs, validation.ValidatePart(t.Subresource, obj, old)...)
	case t.Subresource == "finalize":
		errs = append(errs, validation.ValidateFinalizers(strategy.NamespaceFinalizers(obj), field.NewPath("spec", "finalizers"))...)
	default:
		errs = append(errs, validation.ValidatePart(t.Subresource, obj, old)...)
	}
	return scheme.Distinct(errs)
}

// anyName accepts the name of an object that exists: its name was checked when it was created.
func anyName(string, bool) []string { return nil }

// store commits what an object became: nothing when that is what it was, a deletion when its last finalizer went.
func (wr *Writer) store(ctx context.Context, res *scheme.Resource, obj scheme.Object, rec store.Record, opts Options) (store.Record, error) {
	json, revAt, err := encode(ctx, res, obj)
	if err := cmp.Or(err, ctx.Err()); err != nil { // nothing is stored for a client that has been told, or has left
		return rec, err
	}
	if store.EqualAt(json, revAt, &rec) {
		if !opts.dryRun {
			request.From(ctx).NoteWrite(request.Write{Key: rec.Key, Old: rec.Rev, New: rec.Rev})
		}
		return rec, nil
	}
	if mayGo(obj) && rec.Deleting {
		return wr.finish(ctx, res, rec, finished{json: json, revAt: revAt, dryRun: opts.dryRun})
	}
	if err := checkSize(json, &rec); err != nil {
		return rec, err
	}
	c := store.Change{Op: store.OpUpdate, Key: rec.Key, Expect: rec.Rev, JSON: json, RevAt: revAt, Deleting: obj.GetDeletionTimestamp() != nil, With: opts.with}
	if opts.dryRun {
		return store.Record{Key: rec.Key, Rev: rec.Rev, JSON: splice(json, revAt, rec.Rev)}, nil
	}
	written, err := wr.commit(ctx, res, c)
	if err == nil {
		request.From(ctx).NoteWrite(request.Write{Key: rec.Key, Old: rec.Rev, New: written.Rev, Was: rec.JSON, Is: written.JSON})
		wr.Allocator.Freed(ctx, rec.Key, rec.JSON, json)
	}
	return written, err
}

// mayGo says that nothing holds an object back that is being deleted: no finalizer, and no grace period that runs.
func mayGo(obj scheme.Object) bool {
	grace := obj.GetDeletionGracePeriodSeconds()
	return obj.GetDeletionTimestamp() != nil && len(obj.GetFinalizers()) == 0 && (grace == nil || *grace == 0) && !strategy.HoldsContent(obj)
}

// finish deletes an object whose last finalizer was removed. The answer shows it once more, without it and at its old revision.
func (wr *Writer) finish(ctx context.Context, res *scheme.Resource, rec store.Record, f finished) (store.Record, error) {
	last := store.Record{Key: rec.Key, Rev: rec.Rev, JSON: splice(f.json, f.revAt, rec.Rev)}
	if f.dryRun {
		return last, nil
	}
	_, err := wr.commit(ctx, res, Tombstone(&rec))
	last.Deleted = err == nil
	return last, err
}

// finished is an object that nothing holds back any more, as encodeStored wrote it.
type finished struct {
	json   []byte
	revAt  int
	dryRun bool
}
