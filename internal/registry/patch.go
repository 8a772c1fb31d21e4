package registry

// This file computes what a PATCH makes of an object: a patch is applied to the document that a GET would show, a server-side apply is merged
// into the object field by field. update.go does the rest.

import (
	"context"
	"net/http"

	"github.com/tidwall/gjson"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"apilet/internal/registry/fieldmanager"
	"apilet/internal/registry/patch"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// Patch answers a PATCH. What it makes of the object is computed by patched or applied; the rest of the way is that of a PUT.
func (wr *Writer) Patch(w http.ResponseWriter, r *http.Request, res *scheme.Resource) error {
	v, err := response.NewView(r, res)
	if err != nil {
		return err
	}
	p, err := wr.readPatch(w, r, res)
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

// A patchRequest is a PATCH's body, what it is meant for and how it is to be read.
type patchRequest struct {
	wr     *Writer
	target Target
	opts   Options
	kind   patch.Kind
	body   []byte
}

func (wr *Writer) readPatch(w http.ResponseWriter, r *http.Request, res *scheme.Resource) (*patchRequest, error) {
	kind, err := patch.KindOf(r.Header.Get("Content-Type"), res.GoType != nil)
	if err != nil {
		return nil, err
	}
	body, err := readBody(w, r)
	if err != nil {
		return nil, err
	}
	opts, err := parseWriteOptions(r, "PatchOptions", types.PatchType(kind))
	if err != nil {
		return nil, err
	}
	p := &patchRequest{wr: wr, target: targetOf(r, res), opts: opts, kind: kind, body: body}
	p.opts.applied = kind == patch.ApplyPatch
	request.From(r.Context()).Applies = p.opts.applied
	p.target.Upsert = kind == patch.ApplyPatch && p.target.Subresource == ""
	return p, nil
}

// patched applies a patch to the object's document, as the version of the request shows it.
func (p *patchRequest) patched(ctx context.Context, rec *store.Record) (scheme.Object, error) {
	res := p.target.Resource
	whole := response.View{Res: res}
	doc, err := whole.Object(nil, rec)
	if err != nil {
		return nil, err
	}
	doc, strict, err := patch.Apply(p.kind, doc, p.body, res.PatchSchema())
	if err != nil {
		return nil, err
	}
	if !gjson.GetBytes(doc, "apiVersion").Exists() {
		return nil, p.target.nameless()
	}
	obj, unknown, err := res.Decode(doc, "application/json", "")
	if apierrors.IsRequestEntityTooLargeError(err) {
		return nil, err
	}
	if err != nil {
		return nil, patch.Invalid(p.kind, p.body, doc, err)
	}
	if strict = append(strict, unknown...); len(strict) > 0 && p.opts.validation == metav1.FieldValidationStrict {
		return nil, patch.Invalid(p.kind, p.body, doc, runtime.NewStrictDecodingError(scheme.Fewer(strict)))
	}
	if err := checkStrictness(ctx, res, p.opts.validation, strict); err != nil {
		return nil, err
	}
	return obj, p.target.check(obj)
}

// applied merges what a server-side apply wants into the object; old is nil when there is none. All of it happens in the version of the
// request: the object is shown in it, merged, completed, and only then turned into what is stored.
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
	if err := p.completeMerged(merged); err != nil {
		return nil, err
	}
	obj := res.ConvertIn(merged)
	return obj, p.target.check(obj)
}

// completeMerged does for the outcome of a merge what decoding does for a body: a custom resource is brought into shape. Defaults are
// filled in here only where compute does not: those of a version that is not the stored one, and those of spec on the way to a status.
func (p *patchRequest) completeMerged(merged scheme.Object) error {
	res := p.target.Resource
	if u, ok := merged.(*unstructured.Unstructured); ok && res.Custom != nil {
		if _, err := res.Custom.Shape(u); apierrors.IsRequestEntityTooLargeError(err) {
			return err
		} else if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		return nil
	}
	if res.Conversion != nil || p.target.Subresource == "status" {
		return FillDefaults(res, merged)
	}
	return nil
}
