package registry

// This file is the way of a new object: POST, and a PUT or an apply to a name that nobody has.

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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"

	"apilet/internal/admission/quota"
	"apilet/internal/registry/allocator"
	"apilet/internal/registry/strategy"
	"apilet/internal/registry/validation"
	"apilet/internal/registry/warnings"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// Create answers a POST to a collection.
func (wr *Writer) Create(w http.ResponseWriter, r *http.Request, res *scheme.Resource) error {
	v, obj, opts, err := receive(w, r, res, "CreateOptions")
	if err != nil {
		return err
	}
	ctx := r.Context()
	if err := matchNamespace(obj, scheme.ScopeOf(res, &request.From(ctx).Info)); err != nil {
		return err
	}
	if res.Virtual {
		return wr.answerReview(w, r, v, obj, opts)
	}
	stored, err := wr.Insert(ctx, res, obj, opts)
	if err != nil {
		return err
	}
	return v.Respond(w, r, http.StatusCreated, &stored)
}

// answerReview answers an object that is a question: nothing is stored.
func (wr *Writer) answerReview(w http.ResponseWriter, r *http.Request, v *response.View, obj scheme.Object, opts Options) error {
	obj, err := wr.Admission.Decide(r.Context(), opts.creation(v.Res, "", obj))
	if err != nil {
		return err
	}
	if err := wr.Auth.Review(r.Context(), obj); err != nil {
		return err
	}
	body, err := json.Marshal(obj)
	if err != nil {
		return err
	}
	return v.Respond(w, r, http.StatusCreated, &store.Record{JSON: body})
}

// Insert makes a new object of what a client sent.
func (wr *Writer) Insert(ctx context.Context, res *scheme.Resource, obj scheme.Object, opts Options) (store.Record, error) {
	strategy.WipeSystemFields(obj)
	if err := refuseEnding(res, obj); err != nil {
		return store.Record{}, err
	}
	if err := wr.refuseEarly(ctx, res, obj); err != nil {
		return store.Record{}, wr.createError(err, res, obj)
	}
	if err := FillDefaults(res, obj); err != nil {
		return store.Record{}, err
	}
	if err := wr.recordOwners(res, nil, obj, opts, ""); err != nil {
		return store.Record{}, err
	}
	obj, err := wr.admitted(ctx, res, obj, opts)
	if err != nil {
		return store.Record{}, err
	}
	strategy.FillSystemFields(obj, wr.Store.Now())
	if res.Generation {
		obj.SetGeneration(1)
	}
	for _, text := range strategy.AppArmorTexts(obj) {
		warning.AddWarning(ctx, "", text)
	}
	obj = prepareNew(res, obj)
	if rec := request.From(ctx); rec != nil {
		strategy.NameRequester(obj, &rec.User)
	}
	warning.AddWarning(ctx, "", warnings.DropDuplicateOwners(obj))
	generated := obj.GetName() == "" && obj.GetGenerateName() != ""
	for try := 1; ; try++ {
		if generated {
			strategy.NameNew(obj)
		}
		rec, err := wr.insertOnce(ctx, res, obj, opts)
		if errors.Is(err, allocator.ErrLost) && ctx.Err() == nil {
			continue
		}
		if !errors.Is(err, store.ErrExists) {
			return rec, wr.createError(err, res, obj)
		}
		if !generated || try == generateTries {
			return rec, nameConflict(res, obj, err)
		}
	}
}

// admitted lets the plug-ins change a new object, but for its namespace.
func (wr *Writer) admitted(ctx context.Context, res *scheme.Resource, obj scheme.Object, opts Options) (scheme.Object, error) {
	namespace := obj.GetNamespace()
	admitted, err := wr.Admission.Admit(ctx, opts.creation(res, "", obj))
	if err != nil {
		return nil, wr.createError(err, res, obj)
	}
	if res.Namespaced {
		err = matchNamespace(admitted, namespace)
	}
	return admitted, err
}

// refuseEnding refuses a new object of a type that is being deleted, as far as the row knows. The commit looks again, in its transaction: the
// last objects go, then the definition, and nothing may come in between, however long a create has been on its way.
func refuseEnding(res *scheme.Resource, obj scheme.Object) error {
	if res.Custom == nil || !res.Custom.Terminating {
		return nil
	}
	return typeEnding(res, obj)
}

func typeEnding(res *scheme.Resource, obj scheme.Object) error {
	return apierrors.NewForbidden(res.GroupResource(), obj.GetName(), errors.New("create not allowed while custom resource definition is terminating"))
}

// prepareNew gives a new object its initial status, and what else the server decides.
func prepareNew(res *scheme.Resource, obj scheme.Object) scheme.Object {
	if res.Custom != nil {
		return res.Custom.Prepare(obj, nil, "")
	}
	strategy.PrepareForCreate(obj)
	return obj
}

// insertOnce validates, encodes and commits an object under its present name.
func (wr *Writer) insertOnce(ctx context.Context, res *scheme.Resource, obj scheme.Object, opts Options) (rec store.Record, err error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	given, err := wr.Allocator.Assign(obj, nil, opts.dryRun)
	if err != nil {
		return store.Record{}, err
	}
	defer func() { given.Done(ctx, err) }()
	if errs := wr.validateNew(ctx, res, obj, opts); len(errs) > 0 {
		if err := wr.checkNamespace(ctx, res, obj); err != nil {
			return store.Record{}, err
		}
		return store.Record{}, scheme.Invalid(res.GroupKind(), obj.GetName(), errs)
	}
	if err := cmp.Or(wr.checkGrant(ctx, res, obj, nil), wr.checkParams(ctx, res, obj, nil)); err != nil {
		return store.Record{}, err
	}
	warnAbout(ctx, res, obj, nil)
	if err := wr.Admission.Validate(ctx, opts.creation(res, "", obj)); err != nil {
		return store.Record{}, err
	}
	held, err := wr.Quotas.Charge(ctx, quota.Write{Resource: res, Object: obj, DryRun: opts.dryRun})
	if err != nil {
		return store.Record{}, err
	}
	defer held.Release()
	strategy.Canonicalize(obj)
	json, revAt, err := encode(ctx, res, obj)
	if err := cmp.Or(err, ctx.Err()); err != nil { // nothing is stored for a client that has been told, or has left
		return store.Record{}, err
	}
	if err := checkSize(json, nil); err != nil {
		return store.Record{}, err
	}
	c := store.Change{Op: store.OpCreate, Key: res.Key(obj.GetNamespace(), obj.GetName()), JSON: json, RevAt: revAt, With: wr.accompany(held)}
	if res.Namespaced {
		c.Parent = NamespaceKey(obj.GetNamespace())
	}
	if res.Custom != nil {
		c.Type = res.Custom.Definition
	}
	if opts.dryRun {
		return wr.pretendCreate(ctx, res, obj, c)
	}
	if err := wr.checkUnwritten(ctx, res, obj); err != nil {
		return store.Record{}, err
	}
	if err := given.Claim(ctx); err != nil {
		return store.Record{}, err
	}
	rec, err = wr.commit(ctx, res, c)
	if name, founds := strings.CutPrefix(c.Key, NamespaceKey("")); founds && err == nil && wr.NamespaceCreated != nil {
		wr.NamespaceCreated(name)
	}
	return rec, err
}

// encode is what the store keeps of an object.
func encode(ctx context.Context, res *scheme.Resource, obj scheme.Object) (json []byte, revAt int, err error) {
	if res.Converts() {
		if obj, err = res.Custom.Webhook.To(ctx, obj.(*unstructured.Unstructured), res.Custom.StorageVersion); err != nil {
			return nil, 0, err
		}
	}
	return res.EncodeStored(obj)
}

// checkSize refuses what patches and defaults have made of bodies that were short enough. What an earlier server let grow may still shrink, and an
// object that is being deleted has twice the room: who takes a finalizer off is noted in managedFields.
func checkSize(json []byte, old *store.Record) error {
	most := scheme.MaxStored
	if old != nil && old.Deleting {
		most = 2 * scheme.MaxStored
	}
	if len(json) <= most || old != nil && len(json) <= len(old.JSON) {
		return nil
	}
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the object would have %d bytes, limit is %d", len(json), most))
}

// checkUnwritten refuses a new object that names the revision of an old one. It comes as late as that of kube-apiserver, at the edge of
// the store, so that a dry run, which ends before, takes every resourceVersion. What is no number is none.
func (wr *Writer) checkUnwritten(ctx context.Context, res *scheme.Resource, obj scheme.Object) error {
	named := obj.GetResourceVersion()
	if named == "" {
		return nil
	}
	if n, err := strconv.ParseUint(named, 10, 64); err != nil || n == 0 {
		return nil
	}
	if err := wr.checkNamespace(ctx, res, obj); err != nil {
		return err
	}
	return apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
}

// validateNew checks a create.
func (wr *Writer) validateNew(ctx context.Context, res *scheme.Resource, obj scheme.Object, opts Options) field.ErrorList {
	switch {
	case res.Custom != nil:
		return res.Custom.Validate(ctx, obj, nil, "")
	case !wr.Validating || opts.Trusted:
		return validateMeta(res, obj)
	}
	return append(validateMeta(res, obj), validation.ValidateCreate(obj)...)
}

// validateMeta checks the metadata of a new object.
func validateMeta(res *scheme.Resource, obj scheme.Object) field.ErrorList {
	at := field.NewPath("metadata")
	errs := apivalidation.ValidateObjectMetaAccessor(obj, res.Namespaced, validation.NameRule(res.StoredType()), at)
	if len(obj.GetName()) > maxName { // of a kind whose names have no rule: it still has to fit into a key
		errs = append(errs, field.TooLong(at.Child("name"), "", maxName))
	}
	if res.GoType != nil {
		errs = append(errs, validation.ValidateFinalizers(obj.GetFinalizers(), at.Child("finalizers"))...)
	}
	return errs
}

// pretendCreate answers a create's dry run.
func (wr *Writer) pretendCreate(ctx context.Context, res *scheme.Resource, obj scheme.Object, c store.Change) (store.Record, error) {
	if err := wr.checkNamespace(ctx, res, obj); err != nil {
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
	return store.Record{Key: c.Key, JSON: withRevisionSent(c, obj.GetResourceVersion())}, nil
}

// withRevisionSent is an object that was never stored with the resourceVersion that its client gave it.
func withRevisionSent(c store.Change, rv string) []byte {
	if rv == "" {
		return withoutRevision(c.JSON)
	}
	quoted, _ := json.Marshal(rv) // a string always can
	return slices.Concat(c.JSON[:c.RevAt], quoted[1:len(quoted)-1], c.JSON[c.RevAt:])
}

// withoutRevision drops the empty resourceVersion of an object that was never stored.
func withoutRevision(json []byte) []byte {
	return bytes.Replace(json, []byte(`"resourceVersion":"",`), nil, 1)
}

// createError words the store's refusals of a create.
func (wr *Writer) createError(err error, res *scheme.Resource, obj scheme.Object) error {
	namespace := obj.GetNamespace()
	if errors.Is(err, store.ErrParentMissing) || errors.Is(err, store.ErrParentDeleting) {
		wr.namespaces.forget(NamespaceKey(namespace))
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrTypeEnding):
		return typeEnding(res, obj)
	case errors.Is(err, store.ErrParentMissing):
		return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, namespace)
	case errors.Is(err, store.ErrParentDeleting):
		forbidden := apierrors.NewForbidden(res.GroupResource(), cmp.Or(obj.GetName(), obj.GetGenerateName()),
			fmt.Errorf("unable to create new content in namespace %s because it is being terminated", namespace))
		forbidden.ErrStatus.Details.Causes = []metav1.StatusCause{{
			Type:    "NamespaceTerminating",
			Message: fmt.Sprintf("namespace %s is being terminated", namespace),
			Field:   "metadata.namespace",
		}}
		return forbidden
	}
	return response.StoreError(err, res, obj.GetName())
}

// nameConflict words a create whose name is taken. With a generateName the server was asked for a name and found none.
func nameConflict(res *scheme.Resource, obj scheme.Object, err error) error {
	if obj.GetGenerateName() == "" {
		return response.StoreError(err, res, obj.GetName())
	}
	return apierrors.NewGenerateNameConflict(res.GroupResource(), obj.GetName(), 1)
}
