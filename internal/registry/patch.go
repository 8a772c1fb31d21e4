package registry

// This file computes the new object for a PATCH. A patch is applied to the document that a GET
// would return. A server-side apply is merged into the object field by field. update.go does the
// rest.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"apilet/internal/apierror"
	"apilet/internal/fieldmanager"
	"apilet/internal/patch"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// Patch handles a PATCH. The new object is computed by patched or applied. The remaining steps are
// the same as for a PUT.
func (wr *Writer) Patch(w http.ResponseWriter, r *http.Request, clientReq *request.Request, res *scheme.Resource) error {
	v, err := response.NewView(r, clientReq, res)
	if err != nil {
		return err
	}
	p, err := wr.readPatch(w, r, clientReq, res)
	if err != nil {
		return err
	}
	ctx := r.Context()
	rec, created, err := wr.Modify(ctx, p.target, p.opts, func(old scheme.Object, rec *store.Record) (scheme.Object, error) {
		if p.kind == patch.ApplyPatch {
			return p.applied(ctx, old)
		}
		return p.patched(ctx, rec)
	})
	if err != nil {
		return err
	}
	return v.Respond(w, r, statusFor(created), &rec)
}

// A patchRequest contains the body, the target and the options of a PATCH request.
type patchRequest struct {
	wr     *Writer
	target Target
	opts   Options
	kind   patch.Kind
	body   []byte
}

func (wr *Writer) readPatch(w http.ResponseWriter, r *http.Request, clientReq *request.Request, res *scheme.Resource) (*patchRequest, error) {
	kind, err := patch.KindOf(r.Header.Get("Content-Type"), res.GoType != nil)
	if err != nil {
		return nil, err
	}
	body, err := readBody(w, r)
	if err != nil {
		return nil, err
	}
	opts, err := parseWriteOptions(r, clientReq, "PatchOptions", types.PatchType(kind))
	if err != nil {
		return nil, err
	}
	if err := patch.CheckSyntax(kind, body); err != nil {
		return nil, err
	}
	notePatch(clientReq, body)
	p := &patchRequest{wr: wr, target: targetOf(clientReq, res), opts: opts, kind: kind, body: body}
	p.opts.applied = kind == patch.ApplyPatch
	clientReq.IsApply = p.opts.applied
	p.target.Upsert = kind == patch.ApplyPatch && p.target.Subresource == ""
	return p, nil
}

// patched applies a patch to the object's document in the version of the request.
func (p *patchRequest) patched(ctx context.Context, rec *store.Record) (scheme.Object, error) {
	res := p.target.Resource
	whole := response.View{Res: res}
	doc, err := whole.AppendObject(nil, rec)
	if err != nil {
		return nil, err
	}
	if schema := res.PatchSchema(); patch.IsStrategic(p.kind, schema) && res.AcceptsTyped() {
		return p.patchedTyped(ctx, doc, schema)
	}
	doc, strict, err := patch.Apply(p.kind, doc, p.body, res.PatchSchema())
	if err != nil {
		return nil, err
	}
	obj, unknown, err := decodePatched(res, doc)
	var other *scheme.MismatchError
	switch {
	case errors.As(err, &other) && other.Object != nil:
		obj = other.Object
	case apierrors.IsRequestEntityTooLargeError(err):
		return nil, err
	case err != nil:
		return nil, patch.Invalid(p.kind, p.body, doc, err)
	}
	if err := p.checkStrictness(ctx, doc, append(strict, unknown...)); err != nil {
		return nil, err
	}
	if obj == nil {
		return nil, p.target.nameless()
	}
	if err := p.target.check(obj); err != nil || other == nil {
		return obj, err
	}
	return p.target.renamed(other.Object, doc, rec)
}

// patchedTyped applies a strategic merge patch. The result is a typed object, so there is no need
// to encode and decode it again.
func (p *patchRequest) patchedTyped(ctx context.Context, doc []byte, schema any) (scheme.Object, error) {
	typed, strict, err := patch.Strategic(doc, p.body, schema)
	if err != nil {
		return nil, err
	}
	obj, err := p.target.Resource.Typed(typed.(scheme.Object))
	// kube-apiserver cannot convert it to its internal form either, and returns the bare error
	if err != nil {
		return nil, apierror.InternalWithoutReason(err.Error())
	}
	if err := p.checkStrictness(ctx, nil, strict); err != nil {
		return nil, err
	}
	return obj, p.target.check(obj)
}

// decodePatched decodes a patched document. If there is no version in the document, kube-apiserver
// decodes it as an internal object, which has different field names. In this case all fields are
// unknown, and obj is nil.
func decodePatched(res *scheme.Resource, doc []byte) (obj scheme.Object, unknown []error, err error) {
	gvk, err := scheme.InterpretKind(doc)
	if err != nil || !gvk.GroupVersion().Empty() || res.GoType == nil {
		return res.Decode(doc, "application/json", "")
	}
	return nil, unknownFields(doc), nil
}

// unknownFields returns errors for the fields of a document that Kubernetes' internal form of an
// object does not have. In the internal form the fields of metadata are at the top level, and all
// other fields have other names.
func unknownFields(doc []byte) (unknown []error) {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(doc, &members) // the document has been decoded before
	for _, name := range slices.Sorted(maps.Keys(members)) {
		_, ofMeta := reflect.TypeFor[metav1.ObjectMeta]().FieldByNameFunc(func(field string) bool { return strings.EqualFold(field, name) })
		if !ofMeta && name != "kind" && name != "apiVersion" {
			unknown = append(unknown, fmt.Errorf("unknown field %q", name))
		}
	}
	return unknown
}

// checkStrictness handles unknown and duplicate fields according to the request's field validation.
func (p *patchRequest) checkStrictness(ctx context.Context, doc []byte, strict []error) error {
	if len(strict) > 0 && p.opts.validation == metav1.FieldValidationStrict {
		return patch.Invalid(p.kind, p.body, doc, runtime.NewStrictDecodingError(apierror.Truncate(strict)))
	}
	return checkStrictness(ctx, p.target.Resource, p.opts.validation, strict)
}

// renamed handles a write that changes the kind or the apiVersion of a custom resource. A write to
// its status restores them. For other writes they are immutable, and the error refers to the new
// kind. If the object does not have an apiVersion, the status code is 500, as in kube-apiserver.
// The error message includes doc.
func (t *Target) renamed(u *unstructured.Unstructured, doc []byte, rec *store.Record) (scheme.Object, error) {
	res, gvk := t.Resource, u.GroupVersionKind()
	u.SetGroupVersionKind(res.GroupVersionKind())
	switch err := checkRevision(res, u, rec.Rev); {
	case err != nil:
		return nil, err
	case gvk.GroupVersion().Empty():
		return nil, apierrors.NewInternalError(runtime.NewMissingVersionErr(string(doc)))
	case t.Subresource == "status":
		return u, nil
	}
	var errs field.ErrorList
	if gvk.Kind != res.Kind {
		errs = append(errs, field.Invalid(field.NewPath("kind"), gvk.Kind, "must be "+res.Kind))
	}
	if version := gvk.GroupVersion().String(); version != res.APIVersion() {
		errs = append(errs, field.Invalid(field.NewPath("apiVersion"), version, "must be "+res.APIVersion()))
	}
	return nil, apierror.Invalid(gvk.GroupKind(), u.GetName(), errs)
}

// applied merges a server-side apply into the object. old is nil if the object does not exist. The
// object is converted to the version of the request, merged and completed in that version, and then
// converted to the stored version.
func (p *patchRequest) applied(ctx context.Context, old scheme.Object) (scheme.Object, error) {
	res := p.target.Resource
	live := old
	if old != nil {
		live = res.ConvertOut(old.DeepCopyObject().(scheme.Object))
		live.GetObjectKind().SetGroupVersionKind(res.GroupVersionKind())
	}
	applier := fieldmanager.Applier{Manager: p.opts.Manager, Subresource: p.target.Subresource, Force: p.opts.force}
	merged, strict, err := p.wr.FieldManager(res).Apply(live, p.body, applier)
	if err != nil {
		return nil, err
	}
	if len(strict) > 0 && p.opts.validation == metav1.FieldValidationStrict {
		return nil, fieldmanager.InvalidApply(strict)
	}
	if err := checkStrictness(ctx, res, p.opts.validation, strict); err != nil {
		return nil, err
	}
	if !p.wr.ManagedFields {
		merged.SetManagedFields(nil)
	}
	if err := scheme.CheckDerivedAnnotations(merged); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if err := p.completeMerged(merged); err != nil {
		return nil, err
	}
	obj := res.ConvertIn(merged)
	return obj, p.target.check(obj)
}

// completeMerged completes a merged custom resource in the same way as decoding completes a body.
func (p *patchRequest) completeMerged(merged scheme.Object) error {
	res := p.target.Resource
	if u, ok := merged.(*unstructured.Unstructured); ok && res.Custom != nil {
		if err := res.Custom.ShapeApplied(u); apierrors.IsRequestEntityTooLargeError(err) {
			return err
		} else if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		return nil
	}
	return nil
}
