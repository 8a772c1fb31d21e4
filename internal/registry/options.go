package registry

// This file reads the body and the query parameters of write requests.

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
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/warning"
	"sigs.k8s.io/yaml"

	"apilet/internal/admission"
	"apilet/internal/apierror"
	"apilet/internal/fieldmanager"
	"apilet/internal/kinds/strategy"
	"apilet/internal/kinds/warnings"
	"apilet/internal/limits"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
)

// receive reads the object of a POST or PUT and the requested form of the response. kind is the
// kind of the write's options.
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

// decodeBody decodes a body. It reports unknown and duplicate fields even if it rejects the body
// because of its apiVersion. The kind of a custom resource may differ from res; see checkKind.
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

// checkKind returns a 422 error for a custom resource of another kind. kube-apiserver treats a
// wrong kind as a validation error.
func checkKind(res *scheme.Resource, obj scheme.Object) error {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok || u.GetKind() == res.Kind {
		return nil
	}
	at := field.NewPath("kind")
	return apierror.Invalid(u.GroupVersionKind().GroupKind(), u.GetName(), field.ErrorList{field.Invalid(at, u.GetKind(), "must be "+res.Kind)})
}

// noteBody records the name of the object in the body. If the audit policy requires request bodies,
// it also records the object as kube-apiserver does at this stage, decoded and with defaults.
func noteBody(rec *request.Request, res *scheme.Resource, sub string, obj scheme.Object) {
	rec.RecordBody(obj)
	if !rec.AuditData.RecordsRequest() {
		return
	}
	want, shown := res.ExpectedBody(sub), obj.DeepCopyObject().(scheme.Object)
	if res.Custom == nil || want.Kind == res.Kind {
		_ = FillDefaults(res, shown) // errors are reported later
	}
	if want.Kind == res.Kind {
		shown = res.ConvertOut(shown)
	}
	if want.Wire != nil {
		shown.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Group: want.Group, Version: want.Version, Kind: want.Kind})
	}
	rec.AuditData.RequestObject, _ = json.Marshal(shown) // a decoded object can always be encoded
}

// noteDeleteOptions records the options in a body if the audit policy requires request bodies.
func noteDeleteOptions(rec *request.Request, options *metav1.DeleteOptions, apiVersion string) {
	if rec.AuditData.RecordsRequest() {
		shown := *options
		shown.TypeMeta = metav1.TypeMeta{Kind: "DeleteOptions", APIVersion: cmp.Or(apiVersion, "meta.k8s.io/__internal")}
		rec.AuditData.RequestObject, _ = json.Marshal(&shown)
	}
}

// notePatch records a patch as JSON if the audit policy requires request bodies.
func notePatch(rec *request.Request, patch []byte) {
	if !rec.AuditData.RecordsRequest() {
		return
	}
	if !json.Valid(patch) {
		patch, _ = yaml.YAMLToJSON(patch)
	}
	rec.AuditData.RequestObject = patch
}

// Options contains the query parameters of a write request.
type Options struct {
	// nil for writes by the server itself; set from the context by Insert and Modify
	rec              *request.Request
	dryRun           bool
	Manager          string // the query parameter fieldManager, or the first word of the user agent
	requestedManager string // the query parameter fieldManager
	validation       string // one of the FieldValidation directives Ignore, Warn (also "") and Strict
	force            bool
	// reports whether the object is the result of an apply, which has already set managedFields
	applied bool
	// the request is from the server itself, so only metadata is validated
	Trusted bool
}

// parseWriteOptions reads and validates the options. kind is CreateOptions, UpdateOptions or
// PatchOptions.
func parseWriteOptions(r *http.Request, rec *request.Request, kind string, patchType types.PatchType) (Options, error) {
	o := Options{rec: rec, Manager: fieldmanager.ManagerName("", r.UserAgent())}
	if r.URL.RawQuery == "" && patchType != types.ApplyPatchType {
		return o, nil
	}
	var options metav1.PatchOptions // the other kinds have the same fields except for force
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
	if o.requestedManager = options.FieldManager; o.requestedManager != "" {
		o.Manager, rec.Manager = o.requestedManager, o.requestedManager
	}
	return o, nil
}

// creation returns the attributes of a create for the plug-ins.
func (o *Options) creation(res *scheme.Resource, sub string, obj scheme.Object) admission.Attributes {
	return admission.Attributes{Resource: res, Subresource: sub, Operation: admission.OpCreate, Manager: o.requestedManager, FieldValidation: o.validation,
		DryRun: o.dryRun, Object: obj, Request: o.rec}
}

// change returns the attributes of an update for the plug-ins.
func (o *Options) change(res *scheme.Resource, sub string, obj, old scheme.Object) admission.Attributes {
	return admission.Attributes{Resource: res, Subresource: sub, Operation: admission.OpUpdate, Manager: o.requestedManager, FieldValidation: o.validation,
		DryRun: o.dryRun, Object: obj, Old: old, Request: o.rec}
}

// A Target identifies an object or a subresource that is to be modified.
type Target struct {
	Resource        *scheme.Resource // the type in the version of the request
	Namespace, Name string           // empty for a cluster-scoped type
	Subresource     string           // "", status, ephemeralcontainers, resize, approval, finalize
	Upsert          bool             // whether to create the object if it does not exist
}

func targetOf(rec *request.Request, res *scheme.Resource) Target {
	return Target{Resource: res, Namespace: res.Scope(rec.Info.Namespace), Name: rec.Info.Name, Subresource: rec.Info.Subresource}
}

// check compares the name and the namespace of an object with the URL.
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

// readBody reads a request body of at most maxBody bytes. It does not trust the length that the
// client announces. A thousand clients that announce three megabytes each and send nothing must not
// consume memory.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > maxBody {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
	}
	// net/http returns at most the announced number of bytes
	if n := r.ContentLength; n > 0 && n <= maxInitialBuffer {
		body := make([]byte, n)
		if _, err := io.ReadFull(r.Body, body); err != nil {
			return nil, unreadableBody(err)
		}
		return body, nil
	}
	var buf bytes.Buffer
	if r.ContentLength > 0 {
		buf.Grow(maxInitialBuffer + bytes.MinRead)
	}
	_, err := buf.ReadFrom(&meteredBody{from: http.MaxBytesReader(w, r.Body, maxBody), reserve: func(n int) error { return limits.Reserve(r.Context(), w, n) },
		contentLength: int(r.ContentLength)})
	limits.MarkBodyReceived(w)
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

// A meteredBody reserves memory for the whole body as soon as a large part of it has arrived.
type meteredBody struct {
	from          io.Reader
	reserve       func(bytes int) error
	contentLength int // announced length, or -1 if it is unknown
	read          int
}

func (b *meteredBody) Read(p []byte) (int, error) {
	if b.read > limits.Large/2 {
		if b.contentLength < 0 {
			b.contentLength = maxBody
		}
		if err := b.reserve(b.contentLength); err != nil {
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

// checkStrictness converts unknown and duplicate fields to warnings, or to an error if the client
// requests strict validation.
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

// readDeleteOptions reads the options of a DELETE from its body, or from the query if the body is
// empty.
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
		// uid and resourceVersion are read as preconditions
		if err := metav1.Convert_url_Values_To_v1_DeleteOptions(&query, options, nil); err != nil {
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
	if !utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion) {
		options.IgnoreStoreReadErrorWithClusterBreakingPotential = nil
	}
	if errs := metavalidation.ValidateDeleteOptions(options); len(errs) > 0 {
		return nil, apierror.Invalid(schema.GroupKind{Group: metav1.GroupName, Kind: "DeleteOptions"}, "", errs)
	}
	return options, nil
}
