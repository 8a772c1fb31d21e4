// Package registry answers the writes: create, update, patch, delete, delete of a collection, and the subresources that are small programs
// of their own. Each is the same walk: read the body, decode it into its type, prepare it (what the server alone decides about: uid, times,
// generation, status), judge it, and hand the store one change with a precondition.
//
//	body ──▶ decode ──▶ prepare ──▶ default ──▶ validate ──▶ encode ──▶ commit ──▶ 2xx, durable
//	                       ▲                                              │
//	                       └───────────────── newer version ◀─────────────┘
//
//	wr := &registry.Writer{Store: st, Types: reg, Auth: authenticator, Allocator: alloc, Admission: chain, Validating: true, ...}
//	err := wr.Create(w, r, res)                                   // a handler: POST to res's collection
//	rec, err := wr.Insert(ctx, res, obj, registry.Options{})      // the server's own writes take the same walk
//
// The walk is that of k8s.io/apiserver/pkg/registry/generic/registry/store.go and pkg/endpoints/handlers. What it asks on its way are
// packages of their own: patch and fieldmanager compute, defaults fills in, strategy knows where types part ways, admission asks webhooks,
// validation refuses, warnings remarks, allocator gives Services their addresses.
//
// Invariants: nothing is locked while a request thinks: a change that meets a newer version than it was computed from is computed again,
// unless the client named the version that it meant, so nothing is lost; a write is answered when it is durable; nothing is stored that
// cannot be read back; a write that fails has changed nothing.
package registry

// This file is the walk itself: Writer, the options of a write, and the handlers of POST, PUT, PATCH and DELETE, in the order in which a
// write meets their parts.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"

	"apilet/internal/admission"
	"apilet/internal/admission/quota"
	"apilet/internal/auth"
	"apilet/internal/registry/allocator"
	"apilet/internal/registry/defaults"
	"apilet/internal/registry/fieldmanager"
	"apilet/internal/registry/patch"
	"apilet/internal/registry/strategy"
	"apilet/internal/registry/validation"
	"apilet/internal/registry/warnings"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/store"
	"apilet/internal/unreadable"
)

const (
	maxBody       = 3 << 20  // bytes of a request body, as kube-apiserver's
	promisedMax   = 32 << 10 // bytes of room made for a body before it comes
	generateTries = 8        // names tried for one generateName
	maxName       = 1024     // bytes of a name
	DeleteWorkers = 16       // objects of a collection that are written at once
)

// Writer answers the requests that change objects.
type Writer struct {
	Store      *store.Store
	Types      *scheme.Registry
	Auth       *auth.Authenticator
	Allocator  *allocator.Allocator
	locks      keyLocks
	Admission  *admission.Chain
	Quotas     *quota.Quotas                         // are charged last, and told of each commit; nil: no ResourceQuota holds
	Committed  []func(res *scheme.Resource)          // bring what is read from a resource's objects up to date, before the write is answered
	Policy     func(res *scheme.Resource, rev int64) // does so for what roles allow; nil when nothing is enforced
	Unreadable *unreadable.Unreadables

	NamespaceCreated func(namespace string) // what follows the creation of a namespace, before it is answered

	Validating    bool     // --validate: built-in objects are judged by their types' rules; metadata always is
	ManagedFields bool     // --managed-fields
	managers      sync.Map // *resource (or "scale") to its *ownership, made at the first write
}

// ---- What a write asks for ----

// Options are the query parameters of a write.
type Options struct {
	dryRun     bool
	Manager    string // fieldManager, or the first word of the user agent
	asked      string // fieldManager as sent
	validation string // FieldValidation: Ignore, Warn (also ""), Strict
	force      bool
	applied    bool // the object comes out of an apply: its managedFields are written already
	Trusted    bool // the server writes what no user may: of the rules, only those of metadata are asked
}

// parseWriteOptions reads and checks them; kind is CreateOptions, UpdateOptions or PatchOptions.
func parseWriteOptions(r *http.Request, kind string, patchType types.PatchType) (Options, error) {
	o := Options{Manager: fieldmanager.ManagerOf("", r.UserAgent())}
	if r.URL.RawQuery == "" && patchType != types.ApplyPatchType {
		return o, nil
	}
	query := r.URL.Query()
	options := metav1.PatchOptions{DryRun: query["dryRun"], FieldManager: query.Get("fieldManager"), FieldValidation: query.Get("fieldValidation")}
	if query.Has("force") {
		force := request.Truth(query, "force")
		options.Force, o.force = &force, force
	}
	var errs field.ErrorList
	if kind == "PatchOptions" {
		errs = metavalidation.ValidatePatchOptions(&options, patchType)
	} else {
		create := metav1.CreateOptions{DryRun: options.DryRun, FieldManager: options.FieldManager, FieldValidation: options.FieldValidation}
		errs = metavalidation.ValidateCreateOptions(&create)
	}
	if len(errs) > 0 {
		return o, scheme.Invalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
	}
	o.dryRun, o.validation = len(options.DryRun) > 0, options.FieldValidation
	if o.asked = options.FieldManager; o.asked != "" {
		o.Manager = o.asked
	}
	return o, nil
}

// creation is a create as plug-ins are told of it.
func (o *Options) creation(res *scheme.Resource, sub string, obj scheme.Object) admission.Attributes {
	return admission.Attributes{Resource: res, Subresource: sub, Operation: admission.OpCreate, Manager: o.asked, FieldValidation: o.validation,
		DryRun: o.dryRun, Object: obj}
}

// change is an update as plug-ins are told of it.
func (o *Options) change(res *scheme.Resource, sub string, obj, old scheme.Object) admission.Attributes {
	return admission.Attributes{Resource: res, Subresource: sub, Operation: admission.OpUpdate, Manager: o.asked, FieldValidation: o.validation,
		DryRun: o.dryRun, Object: obj, Old: old}
}

// readBody reads a request body of at most maxBody bytes. What a client says of its length is not believed before it comes: a thousand
// clients that promise three megabytes each, and send nothing, are to cost nothing.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > maxBody {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
	}
	var buf bytes.Buffer
	if r.ContentLength > 0 {
		buf.Grow(int(min(r.ContentLength, promisedMax)) + bytes.MinRead)
	}
	_, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
	case err != nil:
		return nil, apierrors.NewBadRequest("the request body could not be read: " + err.Error())
	}
	return buf.Bytes(), nil
}

// checkStrictness turns unknown and duplicate fields into warnings, or into an error when the client asked for that.
func checkStrictness(ctx context.Context, res *scheme.Resource, directive string, strict []error) error {
	switch {
	case len(strict) == 0 || directive == metav1.FieldValidationIgnore:
		return nil
	case directive == metav1.FieldValidationStrict:
		return res.StrictError("", strict)
	}
	for _, text := range scheme.StrictWarnings(strict) {
		warning.AddWarning(ctx, "", text)
	}
	return nil
}

// matchNamespace fills in the namespace of the URL, or refuses an object that names another one.
func matchNamespace(obj scheme.Object, namespace string) error {
	if own := obj.GetNamespace(); own != "" && namespace != "" && own != namespace {
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	obj.SetNamespace(namespace)
	return nil
}

// ---- Create ----

// receive reads the object that a POST or PUT brings, and how its sender wants to be answered. kind is that of the write's options.
func receive(w http.ResponseWriter, r *http.Request, res *scheme.Resource, kind string) (v *response.View, obj scheme.Object, opts Options, err error) {
	if v, err = response.NewView(r, res); err != nil {
		return nil, nil, opts, err
	}
	body, err := readBody(w, r)
	if err != nil {
		return nil, nil, opts, err
	}
	if opts, err = parseWriteOptions(r, kind, ""); err != nil {
		return nil, nil, opts, err
	}
	obj, strict, err := res.Decode(body, r.Header.Get("Content-Type"), "")
	if err != nil {
		return nil, nil, opts, err
	}
	if err := checkStrictness(r.Context(), res, opts.validation, strict); err != nil {
		return nil, nil, opts, err
	}
	request.From(r.Context()).NoteBody(obj)
	return v, obj, opts, nil
}

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
	if err := admit(res); err != nil {
		return store.Record{}, err
	}
	FillDefaults(res, obj)
	if err := wr.recordOwners(res, nil, obj, opts, ""); err != nil {
		return store.Record{}, err
	}
	obj, err := wr.admitted(ctx, res, obj, opts)
	if err != nil {
		return store.Record{}, err
	}
	strategy.FillSystemFields(obj)
	if res.Generation {
		obj.SetGeneration(1)
	}
	obj = prepareNew(res, obj)
	if rec := request.From(ctx); rec != nil {
		strategy.NameRequester(obj, &rec.User)
	}
	warning.AddWarning(ctx, "", warnings.DropDuplicateOwners(obj, ""))
	generated := obj.GetName() == "" && obj.GetGenerateName() != ""
	for try := 1; ; try++ {
		if generated {
			strategy.NameNew(obj)
		}
		if err := wr.Auth.Accounts.FillSecret(obj); err != nil {
			return store.Record{}, err
		}
		rec, err := wr.insertOnce(ctx, res, obj, opts)
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

// admit asks a type whether objects of it may be created now.
func admit(res *scheme.Resource) error {
	if res.Custom == nil || res.Custom.Admit == nil {
		return nil
	}
	return res.Custom.Admit()
}

// FillDefaults fills in what a client left out. A custom resource has its defaults since it was decoded.
func FillDefaults(res *scheme.Resource, obj scheme.Object) {
	switch {
	case res.Custom == nil:
		defaults.Set(obj)
	case res.Custom.Defaults != nil:
		res.Custom.Defaults(obj)
	}
}

// prepareNew gives a new object its initial status, and what else the server decides.
func prepareNew(res *scheme.Resource, obj scheme.Object) scheme.Object {
	if res.Custom != nil {
		return res.Custom.Prepare(obj, nil, "")
	}
	strategy.PrepareForCreate(obj)
	return obj
}

// insertOnce judges, encodes and commits an object under its present name.
func (wr *Writer) insertOnce(ctx context.Context, res *scheme.Resource, obj scheme.Object, opts Options) (store.Record, error) {
	if svc, ok := obj.(*corev1.Service); ok {
		release, err := wr.Allocator.Assign(svc, nil, opts.dryRun)
		if err != nil {
			return store.Record{}, err
		}
		defer release()
	}
	if errs := wr.validateNew(ctx, res, obj, opts); len(errs) > 0 {
		if err := wr.checkNamespace(res, obj); err != nil {
			return store.Record{}, err
		}
		return store.Record{}, scheme.Invalid(res.GroupKind(), obj.GetName(), errs)
	}
	if err := wr.checkGrant(ctx, res, obj, nil); err != nil {
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
	json, revAt, err := res.EncodeStored(obj)
	if err != nil {
		return store.Record{}, err
	}
	c := store.Change{Op: store.OpCreate, Key: res.Key(obj.GetNamespace(), obj.GetName()), JSON: json, RevAt: revAt}
	if res.Namespaced {
		c.Parent = NamespaceKey(obj.GetNamespace())
	}
	if opts.dryRun {
		return wr.pretendCreate(res, obj, c)
	}
	if err := wr.checkUnwritten(res, obj); err != nil {
		return store.Record{}, err
	}
	rec, err := wr.commit(ctx, res, c)
	if name, founds := strings.CutPrefix(c.Key, NamespaceKey("")); founds && err == nil && wr.NamespaceCreated != nil {
		wr.NamespaceCreated(name)
	}
	return rec, err
}

// checkUnwritten refuses a new object that names the revision of an old one. It comes as late as that of kube-apiserver, at the edge of
// the store, so that a dry run, which ends before, takes every resourceVersion. What is no number is none.
func (wr *Writer) checkUnwritten(res *scheme.Resource, obj scheme.Object) error {
	if n, err := strconv.ParseUint(obj.GetResourceVersion(), 10, 64); err != nil || n == 0 {
		return nil
	}
	if err := wr.checkNamespace(res, obj); err != nil {
		return err
	}
	return apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
}

// validateNew judges a create.
func (wr *Writer) validateNew(ctx context.Context, res *scheme.Resource, obj scheme.Object, opts Options) field.ErrorList {
	switch {
	case res.Custom != nil:
		return res.Custom.Validate(ctx, obj, nil, "")
	case !wr.Validating || opts.Trusted:
		return validateMeta(res, obj)
	}
	return append(validateMeta(res, obj), validation.ValidateCreate(obj)...)
}

// warnAbout tells the client what is odd about a valid object.
func warnAbout(ctx context.Context, res *scheme.Resource, obj, old scheme.Object) {
	var before runtime.Object // a nil object must be a nil runtime.Object
	if old != nil {
		before = old
	}
	texts := warnings.ForObject(obj, before)
	if res.Custom != nil && res.Custom.Warnings != nil {
		texts = append(texts, res.Custom.Warnings(obj, old)...)
	}
	for _, text := range texts {
		warning.AddWarning(ctx, "", text)
	}
}

// commit stores one change of an object, and waits for what follows from it before anybody hears of it.
func (wr *Writer) commit(ctx context.Context, res *scheme.Resource, c store.Change) (store.Record, error) {
	rec, err := wr.Store.Commit(ctx, c)
	if err == nil {
		wr.Quotas.Committed(res, &rec)
		for _, follow := range wr.Committed {
			follow(res)
		}
		if wr.Policy != nil {
			wr.Policy(res, rec.Rev)
		}
	}
	if err == nil && res.Custom != nil && res.Custom.Committed != nil {
		err = res.Custom.Committed(context.WithoutCancel(ctx)) // what is stored has to be followed, whoever waits
	}
	return rec, err
}

// checkGrant refuses a role or binding that gives more than its writer has. The server's own writes have no request.
func (wr *Writer) checkGrant(ctx context.Context, res *scheme.Resource, obj, old scheme.Object) error {
	rec := request.From(ctx)
	if res.Group != rbacv1.GroupName || rec == nil || !wr.Auth.Enforcing() {
		return nil
	}
	return wr.Auth.MayGrant(rec, obj, old)
}

// validateMeta judges the metadata of a new object.
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

// NamespaceKey is the store's key of a Namespace.
func NamespaceKey(name string) string { return "//namespaces//" + name }

// checkNamespace says whether objects may be created in the object's namespace. The store checks it again, in the same transaction
// as the create; asking here first gives the better of two errors, and dry runs their answer.
func (wr *Writer) checkNamespace(res *scheme.Resource, obj scheme.Object) error {
	if !res.Namespaced {
		return nil
	}
	rec, err := wr.Store.Get(NamespaceKey(obj.GetNamespace()))
	switch {
	case errors.Is(err, store.ErrNotFound):
		return store.ErrParentMissing
	case err == nil && rec.Deleting:
		return store.ErrParentDeleting
	}
	return err
}

// pretendCreate answers a create's dry run.
func (wr *Writer) pretendCreate(res *scheme.Resource, obj scheme.Object, c store.Change) (store.Record, error) {
	if err := wr.checkNamespace(res, obj); err != nil {
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
	switch {
	case err == nil:
		return nil
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

// ---- Update and patch ----

// A ChangeFunc is a revision-to-be: given the object as it is (nil: it does not exist), it returns what it shall become.
type ChangeFunc func(old scheme.Object, rec *store.Record) (scheme.Object, error)

// A Target is one object, or one part of it, that a request changes.
type Target struct {
	Resource        *scheme.Resource
	Namespace, Name string
	Subresource     string // "", status, ephemeralcontainers, resize, approval, finalize
	Upsert          bool   // an object that does not exist is created
}

func targetOf(r *http.Request, res *scheme.Resource) Target {
	info := &request.From(r.Context()).Info
	return Target{Resource: res, Namespace: scheme.ScopeOf(res, info), Name: info.Name, Subresource: info.Subresource}
}

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
	uid := sent.GetUID()
	rec, created, err := wr.Modify(ctx, t, opts, func(old scheme.Object, _ *store.Record) (scheme.Object, error) {
		if old != nil && uid != "" && uid != old.GetUID() {
			return nil, apierrors.NewConflict(res.GroupResource(), t.Name, fmt.Errorf(
				"Precondition failed: UID in precondition: %v, UID in object meta: %v", uid, old.GetUID()))
		}
		return sent.DeepCopyObject().(scheme.Object), nil
	})
	if err != nil {
		return err
	}
	return v.Respond(w, r, statusFor(created), &rec)
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

// Patch answers a PATCH.
func (wr *Writer) Patch(w http.ResponseWriter, r *http.Request, res *scheme.Resource) error {
	v, err := response.NewView(r, res)
	if err != nil {
		return err
	}
	kind, err := patch.KindOf(r.Header.Get("Content-Type"), res.GoType != nil)
	if err != nil {
		return err
	}
	body, err := readBody(w, r)
	if err != nil {
		return err
	}
	opts, err := parseWriteOptions(r, "PatchOptions", types.PatchType(kind))
	if err != nil {
		return err
	}
	ctx, t := r.Context(), targetOf(r, res)
	t.Upsert = kind == patch.ApplyPatch && t.Subresource == ""
	opts.applied = kind == patch.ApplyPatch
	rec, created, err := wr.Modify(ctx, t, opts, func(old scheme.Object, rec *store.Record) (scheme.Object, error) {
		if kind == patch.ApplyPatch {
			return wr.applied(ctx, t, opts, body, old)
		}
		return wr.patched(ctx, t, opts, patchRequest{kind, body}, rec)
	})
	if err != nil {
		return err
	}
	return v.Respond(w, r, statusFor(created), &rec)
}

type patchRequest struct {
	kind patch.Kind
	body []byte
}

// patched applies a patch to the object's document, as the version of the request shows it.
func (wr *Writer) patched(ctx context.Context, t Target, opts Options, p patchRequest, rec *store.Record) (scheme.Object, error) {
	whole := response.View{Res: t.Resource}
	doc, err := whole.Object(nil, rec)
	if err != nil {
		return nil, err
	}
	doc, strict, err := patch.Apply(p.kind, doc, p.body, t.Resource.PatchSchema())
	if err != nil {
		return nil, err
	}
	if !gjson.GetBytes(doc, "apiVersion").Exists() {
		return nil, t.nameless()
	}
	obj, unknown, err := t.Resource.Decode(doc, "application/json", "")
	if err != nil {
		return nil, patch.Invalid(p.kind, p.body, doc, err)
	}
	if strict = append(strict, unknown...); len(strict) > 0 && opts.validation == metav1.FieldValidationStrict {
		return nil, patch.Invalid(p.kind, p.body, doc, runtime.NewStrictDecodingError(scheme.Fewer(strict)))
	}
	if err := checkStrictness(ctx, t.Resource, opts.validation, strict); err != nil {
		return nil, err
	}
	return obj, t.check(obj)
}

// applied merges what a server-side apply wants into the object, in the version of the request; old is nil when there is none.
func (wr *Writer) applied(ctx context.Context, t Target, opts Options, body []byte, old scheme.Object) (scheme.Object, error) {
	live := old
	if old != nil {
		live = t.Resource.ConvertOut(old.DeepCopyObject().(scheme.Object))
		live.GetObjectKind().SetGroupVersionKind(t.Resource.GroupVersionKind())
	}
	merged, strict, err := wr.FieldManager(t.Resource).Apply(live, body, fieldmanager.Applier{Manager: opts.Manager, Subresource: t.Subresource, Force: opts.force})
	if err != nil {
		return nil, err
	}
	if len(strict) > 0 && opts.validation == metav1.FieldValidationStrict {
		return nil, fieldmanager.InvalidApply(strict)
	}
	if err := checkStrictness(ctx, t.Resource, opts.validation, strict); err != nil {
		return nil, err
	}
	if !wr.ManagedFields {
		merged.SetManagedFields(nil)
	}
	if u, ok := merged.(*unstructured.Unstructured); ok && t.Resource.Custom != nil {
		if _, err := t.Resource.Custom.Shape(u); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	obj := t.Resource.ConvertIn(merged)
	return obj, t.check(obj)
}

// FieldManager is the bookkeeping of managedFields for a resource.
func (wr *Writer) FieldManager(res *scheme.Resource) *fieldmanager.Manager {
	if c := res.Custom; c != nil && c.Keep != nil {
		return c.Keep(func() any { return wr.newFieldManager(res) }).(*fieldmanager.Manager)
	}
	if known, ok := wr.managers.Load(res); ok {
		return known.(*fieldmanager.Manager)
	}
	known, _ := wr.managers.LoadOrStore(res, wr.newFieldManager(res))
	return known.(*fieldmanager.Manager)
}

func (wr *Writer) newFieldManager(res *scheme.Resource) *fieldmanager.Manager {
	o := &fieldmanager.Manager{Kind: res.GroupVersionKind(), GoType: res.BodyOf("").Wire, Status: res.Subresource("status") != nil}
	o.Defaults = func(obj runtime.Object) { FillDefaults(res, obj.(scheme.Object)) }
	if res.Schema != nil {
		if own, err := res.Schema(); err == nil {
			_ = json.Unmarshal(own, &o.Schema) // without a schema, maps are merged and lists are not
		}
	}
	for _, other := range wr.Types.All() {
		if other.KeyPrefix("") == res.KeyPrefix("") && other != res {
			o.Versions = append(o.Versions, other.APIVersion())
		}
	}
	return o
}

// recordOwners writes into obj's managedFields which fields this write sets. old is nil for a create.
func (wr *Writer) recordOwners(res *scheme.Resource, old, obj scheme.Object, opts Options, sub string) error {
	if !wr.ManagedFields {
		obj.SetManagedFields(nil)
		return nil
	}
	if opts.applied {
		return nil
	}
	before, after := old, res.ConvertOut(obj)
	if old != nil {
		before = res.ConvertOut(old)
		before.GetObjectKind().SetGroupVersionKind(res.GroupVersionKind())
	}
	if err := wr.FieldManager(res).Update(before, after, opts.Manager, sub); err != nil {
		return err
	}
	obj.SetManagedFields(after.GetManagedFields())
	if res.GoType != nil { // typed objects in hand carry no kind
		for _, o := range []scheme.Object{obj, old} {
			if o != nil {
				o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
			}
		}
	}
	return nil
}

// Modify changes an object: read, compute, commit if nobody was faster, else again. A PUT that names a resourceVersion fails in the
// second round by itself. Rounds after the first wait in a queue of the key, so that many patches of one object take turns.
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
		switch {
		case errors.Is(err, store.ErrNotFound) && t.Upsert:
			rec, err = wr.upsert(ctx, t, opts, change)
			created = true
		case err != nil:
			return rec, false, response.StoreError(err, t.Resource, t.Name)
		default:
			created = false
			rec, err = wr.modifyOnce(ctx, t, opts, change, rec)
		}
		if lost := errors.Is(err, store.ErrConflict) || created && apierrors.IsAlreadyExists(err); !lost {
			return rec, created, response.StoreError(err, t.Resource, t.Name)
		}
	}
}

// upsert creates the object that a PUT or an apply names, for whoever may create it. Who names a uid or a revision means an object that
// is gone. (kube-apiserver does not look at the revision.)
func (wr *Writer) upsert(ctx context.Context, t Target, opts Options, change ChangeFunc) (store.Record, error) {
	obj, err := change(nil, nil)
	if err != nil {
		return store.Record{}, err
	}
	conflict := func(format string) error {
		return apierrors.NewConflict(t.Resource.GroupResource(), t.Name, fmt.Errorf(format, obj.GetUID()))
	}
	switch named, err := namedRevision(obj); {
	case err != nil && !opts.dryRun:
		return store.Record{}, err
	case obj.GetUID() != "" && opts.applied:
		return store.Record{}, conflict("uid mismatch: the provided object specified uid %s, and no existing object was found")
	case obj.GetUID() != "":
		return store.Record{}, conflict("Precondition failed: UID in precondition: %v, UID in object meta: ")
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

// modifyOnce is one round of modify.
func (wr *Writer) modifyOnce(ctx context.Context, t Target, opts Options, change ChangeFunc, rec store.Record) (store.Record, error) {
	old, err := wr.mend(t.Resource, &rec)
	if err != nil {
		return rec, err
	}
	obj, err := change(old, &rec)
	if err != nil {
		return rec, err
	}
	if err := checkRevision(t.Resource, obj, rec.Rev); err != nil {
		return rec, err
	}
	if t.Subresource != "status" {
		FillDefaults(t.Resource, obj)
	} else {
		defaults.DefaultStatus(obj)
	}
	if err := wr.recordOwners(t.Resource, old, obj, opts, t.Subresource); err != nil {
		return rec, err
	}
	if obj, err = wr.Admission.Admit(ctx, opts.change(t.Resource, t.Subresource, obj, old)); err != nil {
		return rec, err
	}
	obj = t.prepare(obj, old)
	warning.AddWarning(ctx, "", warnings.DropDuplicateOwners(obj, ""))
	if svc, ok := obj.(*corev1.Service); ok && t.Subresource == "" {
		release, err := wr.Allocator.Assign(svc, old.(*corev1.Service), opts.dryRun)
		if err != nil {
			return rec, err
		}
		defer release()
	}
	if errs := wr.validateChanged(ctx, &t, opts, obj, old); len(errs) > 0 {
		return rec, scheme.Invalid(t.Resource.GroupKind(), t.Name, errs)
	}
	if err := wr.checkGrant(ctx, t.Resource, obj, old); err != nil {
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
	return wr.store(ctx, t.Resource, obj, rec, opts.dryRun)
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

// validateChanged judges an update: metadata by its own rules and by those of what may change, then the type's rules.
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

// anyName accepts the name of an object that exists: its name was judged when it was created.
func anyName(string, bool) []string { return nil }

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

// store commits what an object became: nothing when that is what it was, a deletion when its last finalizer went.
func (wr *Writer) store(ctx context.Context, res *scheme.Resource, obj scheme.Object, rec store.Record, dryRun bool) (store.Record, error) {
	json, revAt, err := res.EncodeStored(obj)
	if err != nil {
		return rec, err
	}
	if bytes.Equal(splice(json, revAt, rec.Rev), rec.JSON) {
		return rec, nil
	}
	if mayGo(obj) && rec.Deleting {
		return wr.finish(ctx, res, rec, finished{json: json, revAt: revAt, dryRun: dryRun})
	}
	c := store.Change{Op: store.OpUpdate, Key: rec.Key, Expect: rec.Rev, JSON: json, RevAt: revAt, Deleting: obj.GetDeletionTimestamp() != nil}
	if dryRun {
		return store.Record{Key: rec.Key, Rev: rec.Rev, JSON: splice(json, revAt, rec.Rev)}, nil
	}
	return wr.commit(ctx, res, c)
}

// splice puts a revision where encodeStored left room for it.
func splice(json []byte, revAt int, rev int64) []byte {
	out := append(make([]byte, 0, len(json)+20), json[:revAt]...)
	return append(strconv.AppendInt(out, rev, 10), json[revAt:]...)
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
	return last, err
}

// finished is an object that nothing holds back any more, as encodeStored wrote it.
type finished struct {
	json   []byte
	revAt  int
	dryRun bool
}

// Tombstone is the change that deletes a record: its last state stays, for watchers, under the revision of the deletion.
func Tombstone(rec *store.Record) store.Change {
	at := gjson.GetBytes(rec.JSON, "metadata.resourceVersion")
	json := append(make([]byte, 0, len(rec.JSON)), rec.JSON[:at.Index+1]...)
	json = append(json, rec.JSON[at.Index+len(at.Raw)-1:]...)
	return store.Change{Op: store.OpDelete, Key: rec.Key, Expect: rec.Rev, JSON: json, RevAt: at.Index + 1}
}

// ---- Delete ----

// Remove answers a DELETE of one object.
func (wr *Writer) Remove(w http.ResponseWriter, r *http.Request, res *scheme.Resource) error {
	v, err := response.NewView(r, res)
	if err != nil {
		return err
	}
	options, err := readDeleteOptions(w, r, res)
	if err != nil {
		return err
	}
	info := &request.From(r.Context()).Info
	rec, gone, err := wr.Delete(r.Context(), res, scheme.ScopeOf(res, info), info.Name, options)
	if err != nil {
		return err
	}
	if gone && res.Readable(rec.JSON) != nil {
		return respondDeleted(w, r, res, &rec, info.Name)
	}
	code := http.StatusOK
	if !gone && options.OrphanDependents != nil && !*options.OrphanDependents {
		code = http.StatusAccepted
	}
	if !gone || strategy.ReturnsDeleted(res) {
		return v.Respond(w, r, code, &rec)
	}
	return respondDeleted(w, r, res, &rec, info.Name)
}

// respondDeleted answers a DELETE that removed the object with a Status.
func respondDeleted(w http.ResponseWriter, r *http.Request, res *scheme.Resource, rec *store.Record, name string) error {
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: name, Group: res.Group, Kind: res.Plural,
			UID: types.UID(gjson.GetBytes(rec.JSON, "metadata.uid").String())},
	}
	request.From(r.Context()).Answered = &status
	return response.WriteObject(w, r, http.StatusOK, &status)
}

// readDeleteOptions reads the options of a DELETE from its body, or from the query when there is none.
func readDeleteOptions(w http.ResponseWriter, r *http.Request, res *scheme.Resource) (*metav1.DeleteOptions, error) {
	body, err := readBody(w, r)
	if err != nil {
		return nil, err
	}
	options := &metav1.DeleteOptions{}
	if len(body) > 0 {
		options, err = scheme.DecodeDeleteOptions(body, r.Header.Get("Content-Type"))
	} else if r.URL.RawQuery != "" {
		err = queryDeleteOptions(r.URL.Query(), options)
	}
	if err != nil {
		return nil, err
	}
	if strategy.OrphansByDefault(res) && res.Group == "batch" && options.PropagationPolicy == nil && options.OrphanDependents == nil {
		warning.AddWarning(r.Context(), "", warnings.JobDeletionWarning)
	}
	options.IgnoreStoreReadErrorWithClusterBreakingPotential = nil // in alpha, and off
	if errs := metavalidation.ValidateDeleteOptions(options); len(errs) > 0 {
		return nil, scheme.Invalid(schema.GroupKind{Group: metav1.GroupName, Kind: "DeleteOptions"}, "", errs)
	}
	return options, nil
}

// Delete removes an object, or marks it as deleting when something holds it back. gone says which.
func (wr *Writer) Delete(ctx context.Context, res *scheme.Resource, namespace, name string, options *metav1.DeleteOptions) (rec store.Record, gone bool, err error) {
	key := res.Key(namespace, name)
	for {
		if err := ctx.Err(); err != nil {
			return store.Record{}, false, apierrors.NewTimeoutError("request did not complete within the allotted time", 0)
		}
		if rec, err = wr.Store.Get(key); err == nil {
			rec, gone, err = wr.deleteOnce(ctx, res, rec, options)
		}
		if !errors.Is(err, store.ErrConflict) {
			return rec, gone, response.StoreError(err, res, name)
		}
	}
}

// deleteOnce is one attempt: store.ErrConflict when somebody was faster.
func (wr *Writer) deleteOnce(ctx context.Context, res *scheme.Resource, rec store.Record, options *metav1.DeleteOptions) (store.Record, bool, error) {
	if err := checkPreconditions(res, &rec, options); err != nil {
		return rec, false, err
	}
	obj, err := wr.mend(res, &rec)
	if errors.Is(err, scheme.ErrUnreadable) {
		return wr.clearAway(ctx, res, rec, len(options.DryRun) > 0)
	}
	if err != nil {
		return rec, false, err
	}
	if err := strategy.ValidateDelete(res, obj.GetName()); err != nil {
		return rec, false, err
	}
	a := admission.Attributes{Resource: res, Operation: admission.OpDelete, DryRun: len(options.DryRun) > 0, Deleting: options, Old: obj}
	if _, err := wr.Admission.Decide(ctx, a); err != nil {
		return rec, false, err
	}
	before := obj.DeepCopyObject().(scheme.Object)
	if begins := obj.GetDeletionTimestamp() == nil; begins && res.Custom != nil && res.Custom.Deleting != nil {
		res.Custom.Deleting(obj)
	} else {
		markDeleting(res, obj, options, time.Now())
	}
	if strategy.Graceful(obj) {
		return wr.deleteGracefully(ctx, res, obj, before, rec, options)
	}
	if !mayGo(obj) {
		obj.SetResourceVersion("")
		marked, err := wr.mark(ctx, res, obj, before, rec, len(options.DryRun) > 0)
		return marked, false, err
	}
	if len(options.DryRun) > 0 {
		return rec, true, nil
	}
	rec, err = wr.commit(ctx, res, Tombstone(&rec))
	return rec, true, err
}

// deleteGracefully marks an object whose deletion somebody else may have to finish, and finishes it at once where there is nothing to
// wait for. Watchers see both steps, as with the real server.
func (wr *Writer) deleteGracefully(ctx context.Context, res *scheme.Resource, obj, before scheme.Object, rec store.Record, options *metav1.DeleteOptions) (store.Record, bool, error) {
	if dryRun, done := len(options.DryRun) > 0, mayGo(obj); dryRun || !done {
		marked, err := wr.mark(ctx, res, obj, before, rec, dryRun)
		return marked, done, err
	}
	obj.SetResourceVersion(before.GetResourceVersion())
	if !apiequality.Semantic.DeepEqual(obj, before) {
		stored, revAt, err := res.EncodeStored(obj)
		if err != nil {
			return rec, false, err
		}
		rec, err = wr.commit(ctx, res, store.Change{Op: store.OpUpdate, Key: rec.Key, Expect: rec.Rev, JSON: stored, RevAt: revAt, Deleting: true})
		if err != nil {
			return rec, false, err
		}
	}
	rec, err := wr.commit(ctx, res, Tombstone(&rec))
	return rec, true, err
}

// mark stores the deletion marks of an object that something holds back, if they are new.
func (wr *Writer) mark(ctx context.Context, res *scheme.Resource, obj, before scheme.Object, rec store.Record, dryRun bool) (store.Record, error) {
	obj.SetResourceVersion(before.GetResourceVersion())
	if apiequality.Semantic.DeepEqual(obj, before) {
		return rec, nil
	}
	return wr.store(ctx, res, obj, rec, dryRun)
}

// Read decodes a record. One that nobody can decode is noted.
func (wr *Writer) Read(res *scheme.Resource, rec *store.Record) (scheme.Object, error) {
	obj, err := res.DecodeStored(rec.JSON)
	if errors.Is(err, scheme.ErrUnreadable) {
		wr.Unreadable.Note(rec, err)
	}
	return obj, err
}

// mend is read for those who are about to write: an object of which nothing but its managedFields cannot be read goes on without them.
func (wr *Writer) mend(res *scheme.Resource, rec *store.Record) (scheme.Object, error) {
	obj, err := wr.Read(res, rec)
	if errors.Is(err, scheme.ErrUnreadable) {
		rec.JSON = scheme.WithoutOwners(rec.JSON)
		obj, err = res.DecodeStored(rec.JSON)
	}
	return obj, err
}

// clearAway deletes an object that cannot be read, and asks neither finalizers nor webhooks, which would have to be shown what nobody can
// decode. What holds other objects is marked as deleting until those are gone, if somebody sees to that.
func (wr *Writer) clearAway(ctx context.Context, res *scheme.Resource, rec store.Record, dryRun bool) (store.Record, bool, error) {
	_, name := scheme.NamespacedName(rec.Key)
	if err := strategy.ValidateDelete(res, name); err != nil {
		return rec, false, err
	}
	inside := unreadable.ContentOf(wr.Types, res, name)
	full := inside.Any(wr.Store)
	switch {
	case dryRun:
		return rec, !full, nil
	case full && inside.Served && rec.Deleting:
		return rec, false, nil
	case full && inside.Served:
		rec, err := wr.commit(ctx, res, unreadable.MarkedRaw(&rec, time.Now()))
		return rec, false, err
	case full:
		if err := wr.removeContent(ctx, res, inside.Prefixes); err != nil {
			return rec, false, err
		}
	}
	rec, err := wr.commit(ctx, res, Tombstone(&rec))
	return rec, true, err
}

// removeContent deletes all in some ranges: objects of a type that is not served, since its definition cannot be read.
func (wr *Writer) removeContent(ctx context.Context, res *scheme.Resource, prefixes []string) error {
	c := &store.Chunk{}
	for _, prefix := range prefixes {
		for at := (store.Span{Prefix: prefix}); ; at.Rev, at.Start = c.Rev, c.Next {
			if err := wr.Store.Chunk(at, c); err != nil {
				return err
			}
			if err := Parallel(c.Records, DeleteWorkers, func(rec store.Record) error {
				_, err := wr.Store.Commit(ctx, Tombstone(&rec))
				if errors.Is(err, store.ErrNotFound) {
					return nil
				}
				return err
			}); err != nil || c.Next == "" {
				return err
			}
		}
	}
	return nil
}

// ---- Delete of a collection ----

// RemoveEach reads a DELETE of a collection, and returns what is to be done to each chunk of the LIST that finds its objects. It is not
// atomic, as the real one is not: what was deleted before an error stays deleted.
func (wr *Writer) RemoveEach(w http.ResponseWriter, r *http.Request, res *scheme.Resource) (func(context.Context, []*store.Record) error, error) {
	options, err := readDeleteOptions(w, r, res)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, found []*store.Record) error {
		return Parallel(found, DeleteWorkers, func(rec *store.Record) error {
			namespace, name := scheme.NamespacedName(rec.Key)
			_, _, err := wr.Delete(ctx, res, namespace, name, options)
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	}, nil
}
