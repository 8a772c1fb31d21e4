package registry

// This file reads what a write asks for: the body, the query parameters, and the object that they bring.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"
	"sigs.k8s.io/yaml"

	"apilet/internal/admission"
	"apilet/internal/apierror"
	"apilet/internal/fieldmanager"
	"apilet/internal/kinds/strategy"
	"apilet/internal/kinds/warnings"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/shares"
)

// receive reads the object that a POST or PUT brings, and how its sender wants to be answered. kind is that of the write's options.
func receive(w http.ResponseWriter, r *http.Request, rec *request.Request, res *scheme.Resource, kind string) (v *response.View, obj scheme.Object, opts Options, err error) {
	if v, err = response.NewView(r, rec, res); err != nil {
		return nil, nil, opts, err
	}
	body, err := readBody(w, r)
	if err != nil {
		return nil, nil, opts, err
	}
	if opts, err = parseWriteOptions(r, rec, kind, ""); err != nil {
		return nil, nil, opts, err
	}
	obj, err = decodeBody(r.Context(), res, "", body, r.Header.Get("Content-Type"), opts)
	if err != nil {
		return nil, nil, opts, err
	}
	noteBody(rec, res, "", obj)
	return v, obj, opts, nil
}

// decodeBody decodes a body and reports its unknown and duplicate fields, also if the body is then refused for its apiVersion. A custom resource may
// have another kind than res: see checkKind.
func decodeBody(ctx context.Context, res *scheme.Resource, sub string, body []byte, contentType string, opts Options) (scheme.Object, error) {
	obj, strict, err := res.Decode(body, contentType, sub)
	var mismatch *scheme.MismatchError
	switch {
	case err == nil:
		if len(strict) > 0 && opts.validation == metav1.FieldValidationStrict {
			return nil, res.StrictError(sub, strict)
		}
		return obj, checkStrictness(ctx, res, opts.validation, strict)
	case !errors.As(err, &mismatch):
		return nil, err
	case opts.validation == metav1.FieldValidationStrict:
		err = mismatch.StrictError(strict)
		strict = nil
	}
	if err := checkStrictness(ctx, res, opts.validation, strict); err != nil {
		return nil, err
	}
	if u := mismatch.Object; err == error(mismatch) && u != nil && u.GetAPIVersion() == res.APIVersion() {
		return u, nil
	}
	return nil, err
}

// checkKind returns the 422 for a custom resource that names another kind. kube-apiserver counts that among the mistakes in an object.
func checkKind(res *scheme.Resource, obj scheme.Object) error {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok || u.GetKind() == res.Kind {
		return nil
	}
	at := field.NewPath("kind")
	return apierror.Invalid(u.GroupVersionKind().GroupKind(), u.GetName(), field.ErrorList{field.Invalid(at, u.GetKind(), "must be "+res.Kind)})
}

// noteBody keeps what a body calls its object, and for an audit policy that wants it the object as kube-apiserver has it at that moment: decoded, and
// with its defaults.
func noteBody(rec *request.Request, res *scheme.Resource, sub string, obj scheme.Object) {
	rec.NoteBody(obj)
	if !rec.Audited.WantsSent() {
		return
	}
	want, shown := res.BodyOf(sub), obj.DeepCopyObject().(scheme.Object)
	if res.Custom == nil || want.Kind == res.Kind {
		_ = FillDefaults(res, shown) // what is wrong with it is told further on
	}
	if want.Kind == res.Kind {
		shown = res.ConvertOut(shown)
	}
	if want.Wire != nil {
		shown.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Group: want.Group, Version: want.Version, Kind: want.Kind})
	}
	rec.Audited.Sent, _ = json.Marshal(shown) // what has been decoded can be encoded
}

// noteDeleteOptions keeps the options that a body brought, for an audit policy that wants them.
func noteDeleteOptions(rec *request.Request, options *metav1.DeleteOptions, apiVersion string) {
	if rec.Audited.WantsSent() {
		shown := *options
		shown.TypeMeta = metav1.TypeMeta{Kind: "DeleteOptions", APIVersion: cmp.Or(apiVersion, "meta.k8s.io/__internal")}
		rec.Audited.Sent, _ = json.Marshal(&shown)
	}
}

// notePatch keeps a patch for an audit policy that wants it. One in YAML becomes JSON.
func notePatch(rec *request.Request, patch []byte) {
	if !rec.Audited.WantsSent() {
		return
	}
	if !json.Valid(patch) {
		patch, _ = yaml.YAMLToJSON(patch)
	}
	rec.Audited.Sent = patch
}

// Options are the query parameters of a write, and its request.
type Options struct {
	rec        *request.Request // nil for the server's own writes; Insert and Modify take it from the context
	dryRun     bool
	Manager    string // fieldManager, or the first word of the user agent
	asked      string // fieldManager as sent
	validation string // FieldValidation: Ignore, Warn (also ""), Strict
	force      bool
	applied    bool // the object comes out of an apply: its managedFields are written already
	Trusted    bool // the server writes what no user may: of the rules, only those of metadata are asked
}

// parseWriteOptions reads and checks them; kind is CreateOptions, UpdateOptions or PatchOptions.
func parseWriteOptions(r *http.Request, rec *request.Request, kind string, patchType types.PatchType) (Options, error) {
	o := Options{rec: rec, Manager: fieldmanager.ManagerOf("", r.UserAgent())}
	if r.URL.RawQuery == "" && patchType != types.ApplyPatchType {
		return o, nil
	}
	var options metav1.PatchOptions // the other kinds have no force, and else the same
	query := r.URL.Query()
	if err := metav1.Convert_url_Values_To_v1_PatchOptions(&query, &options, nil); err != nil {
		return o, apierrors.NewBadRequest(err.Error())
	}
	o.force = options.Force != nil && *options.Force
	var errs field.ErrorList
	if kind == "PatchOptions" {
		errs = metavalidation.ValidatePatchOptions(&options, patchType)
	} else {
		create := metav1.CreateOptions{DryRun: options.DryRun, FieldManager: options.FieldManager, FieldValidation: options.FieldValidation}
		errs = metavalidation.ValidateCreateOptions(&create)
	}
	if len(errs) > 0 {
		return o, apierror.Invalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
	}
	o.dryRun, o.validation = len(options.DryRun) > 0, options.FieldValidation
	if o.asked = options.FieldManager; o.asked != "" {
		o.Manager, rec.Manager = o.asked, o.asked
	}
	return o, nil
}

// creation is a create as plug-ins are told of it.
func (o *Options) creation(res *scheme.Resource, sub string, obj scheme.Object) admission.Attributes {
	return admission.Attributes{Resource: res, Subresource: sub, Operation: admission.OpCreate, Manager: o.asked, FieldValidation: o.validation,
		DryRun: o.dryRun, Object: obj, Request: o.rec}
}

// change is an update as plug-ins are told of it.
func (o *Options) change(res *scheme.Resource, sub string, obj, old scheme.Object) admission.Attributes {
	return admission.Attributes{Resource: res, Subresource: sub, Operation: admission.OpUpdate, Manager: o.asked, FieldValidation: o.validation,
		DryRun: o.dryRun, Object: obj, Old: old, Request: o.rec}
}

// A Target is one object, or one part of it, that a request changes.
type Target struct {
	Resource        *scheme.Resource // the type, at the version of the request
	Namespace, Name string           // "" for a type without namespaces
	Subresource     string           // "", status, ephemeralcontainers, resize, approval, finalize
	Upsert          bool             // an object that does not exist is created
}

func targetOf(rec *request.Request, res *scheme.Resource) Target {
	return Target{Resource: res, Namespace: res.Scope(rec.Info.Namespace), Name: rec.Info.Name, Subresource: rec.Info.Subresource}
}

// check compares an object's name and namespace with the URL's.
func (t *Target) check(obj scheme.Object) error {
	if err := matchNamespace(obj, t.Namespace); err != nil {
		return err
	}
	switch name := obj.GetName(); {
	case name == "":
		return t.nameless()
	case name != t.Name:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", name, t.Name))
	}
	return nil
}

func (t *Target) nameless() error {
	return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: name must be provided", t.Name))
}

// readBody reads a request body of at most maxBody bytes. What a client says of its length is not believed before it comes: a thousand
// clients that promise three megabytes each, and send nothing, are to cost nothing.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > maxBody {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
	}
	if n := r.ContentLength; n > 0 && n <= promisedMax { // net/http hands out no more than was announced
		body := make([]byte, n)
		if _, err := io.ReadFull(r.Body, body); err != nil {
			return nil, unreadableBody(err)
		}
		return body, nil
	}
	var buf bytes.Buffer
	if r.ContentLength > 0 {
		buf.Grow(promisedMax + bytes.MinRead)
	}
	_, err := buf.ReadFrom(&weighedBody{from: http.MaxBytesReader(w, r.Body, maxBody), hold: func(n int) error { return shares.Hold(r.Context(), w, n) },
		promised: int(r.ContentLength)})
	shares.Settle(w)
	var tooLarge *http.MaxBytesError
	var busy *apierrors.StatusError
	switch {
	case errors.As(err, &busy), errors.Is(err, context.DeadlineExceeded):
		return nil, err
	case errors.As(err, &tooLarge):
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
	case err != nil:
		return nil, unreadableBody(err)
	}
	return buf.Bytes(), nil
}

// A weighedBody holds what the whole body takes as soon as a part of it has come that is large.
type weighedBody struct {
	from     io.Reader
	hold     func(bytes int) error
	promised int // its length, -1 when that is unknown
	read     int
}

func (b *weighedBody) Read(p []byte) (int, error) {
	if b.read > shares.Large/2 {
		if b.promised < 0 {
			b.promised = maxBody
		}
		if err := b.hold(b.promised); err != nil {
			return 0, err
		}
	}
	n, err := b.from.Read(p)
	b.read += n
	return n, err
}

func unreadableBody(err error) error {
	return apierrors.NewBadRequest("the request body could not be read: " + err.Error())
}

// checkStrictness turns unknown and duplicate fields into warnings, or into an error when the client asked for that.
func checkStrictness(ctx context.Context, res *scheme.Resource, directive string, strict []error) error {
	switch {
	case len(strict) == 0 || directive == metav1.FieldValidationIgnore:
		return nil
	case directive == metav1.FieldValidationStrict:
		return res.StrictError("", strict)
	}
	for _, text := range apierror.StrictWarnings(strict) {
		warning.AddWarning(ctx, "", text)
	}
	return nil
}

// readDeleteOptions reads the options of a DELETE from its body, or from the query when there is none.
func readDeleteOptions(w http.ResponseWriter, r *http.Request, rec *request.Request, res *scheme.Resource) (*metav1.DeleteOptions, error) {
	body, err := readBody(w, r)
	if err != nil {
		return nil, err
	}
	options := &metav1.DeleteOptions{}
	if len(body) > 0 {
		options, err = scheme.DecodeDeleteOptions(body, r.Header.Get("Content-Type"))
	} else if r.URL.RawQuery != "" {
		query := r.URL.Query()
		if err := metav1.Convert_url_Values_To_v1_DeleteOptions(&query, options, nil); err != nil { // uid and resourceVersion are preconditions
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	if err != nil {
		return nil, err
	}
	if len(body) > 0 {
		noteDeleteOptions(rec, options, "")
	}
	if len(body) > 0 && len(options.DryRun) == 0 && r.URL.Query().Has("dryRun") {
		warning.AddWarning(r.Context(), "", "the query's dryRun does not count: the request has a body, whose options hold, and it deletes")
	}
	if strategy.OrphansByDefault(res) && res.Group == "batch" && res.Plural == "jobs" && options.PropagationPolicy == nil && options.OrphanDependents == nil {
		warning.AddWarning(r.Context(), "", warnings.JobDeletionWarning)
	}
	options.IgnoreStoreReadErrorWithClusterBreakingPotential = nil // in alpha, and off
	if errs := metavalidation.ValidateDeleteOptions(options); len(errs) > 0 {
		return nil, apierror.Invalid(schema.GroupKind{Group: metav1.GroupName, Kind: "DeleteOptions"}, "", errs)
	}
	return options, nil
}
