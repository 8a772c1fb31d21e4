// This file answers the writes: create, update, patch, delete, and delete of a collection. Each is the same walk: read the body,
// decode it into its type, prepare it (what the server alone decides about: uid, times, generation, status), judge it, and hand the
// store one change with a precondition. A change that meets a newer version than it was computed from is computed again, unless the
// client named the version that it meant; so nothing is locked while a request thinks, and nothing is lost.
//
//	body ──▶ decode ──▶ prepare ──▶ default ──▶ validate ──▶ encode ──▶ commit ──▶ 2xx, durable
//	                       ▲                                              │
//	                       └───────────────── newer version ◀─────────────┘
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxBody       = 3 << 20  // bytes of a request body, as kube-apiserver's
	promisedMax   = 32 << 10 // bytes of room made for a body before it comes
	generateTries = 8        // names tried for one generateName
	maxName       = 1024     // bytes of a name
	deleteWorkers = 16       // objects of a collection that are written at once
)

// writes answers the requests that change objects.
type writes struct {
	st     *store
	reg    *registry
	rd     *reads
	auth   *authenticator
	alloc  *allocator
	queues keyQueues
	hooks  *webhooks

	validating bool     // --validate: built-in objects are judged by their types' rules; metadata always is
	managed    bool     // --managed-fields
	ledgers    sync.Map // *resource (or "scale") to its *ownership, made at the first write
}

// ---- What a write asks for ----

// writeOptions are the query parameters of a write.
type writeOptions struct {
	dryRun     bool
	manager    string // fieldManager, or the first word of the user agent
	asked      string // fieldManager as sent
	validation string // fieldValidation: Ignore, Warn (also ""), Strict
	force      bool
	applied    bool // the object comes out of an apply: its managedFields are written already
}

// parseWriteOptions reads and checks them; kind is CreateOptions, UpdateOptions or PatchOptions.
func parseWriteOptions(r *http.Request, kind string, patchType types.PatchType) (writeOptions, error) {
	o := writeOptions{manager: managerOf("", r.UserAgent())}
	if r.URL.RawQuery == "" && patchType != types.ApplyPatchType {
		return o, nil
	}
	query := r.URL.Query()
	options := metav1.PatchOptions{DryRun: query["dryRun"], FieldManager: query.Get("fieldManager"), FieldValidation: query.Get("fieldValidation")}
	if query.Has("force") {
		force := truth(query, "force")
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
		return o, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
	}
	o.dryRun, o.validation = len(options.DryRun) > 0, options.FieldValidation
	if o.asked = options.FieldManager; o.asked != "" {
		o.manager = o.asked
	}
	return o, nil
}

// admission is the write as webhooks are told of it.
func (o *writeOptions) admission(res *resource, sub, operation string) admission {
	return admission{res: res, sub: sub, operation: operation, manager: o.asked, fieldValidation: o.validation, dryRun: o.dryRun}
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

// judgeStrictness turns unknown and duplicate fields into warnings, or into an error when the client asked for that.
func judgeStrictness(ctx context.Context, res *resource, directive string, strict []error) error {
	switch {
	case len(strict) == 0 || directive == metav1.FieldValidationIgnore:
		return nil
	case directive == metav1.FieldValidationStrict:
		return res.strictError("", strict)
	}
	for _, text := range strictWarnings(strict) {
		addWarning(ctx, text)
	}
	return nil
}

// matchNamespace fills in the namespace of the URL, or refuses an object that names another one.
func matchNamespace(obj object, namespace string) error {
	if own := obj.GetNamespace(); own != "" && namespace != "" && own != namespace {
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	obj.SetNamespace(namespace)
	return nil
}

// ---- Create ----

// receive reads the object that a POST or PUT brings, and how its sender wants to be answered. kind is that of the write's options.
func receive(w http.ResponseWriter, r *http.Request, res *resource, kind string) (v *view, obj object, opts writeOptions, err error) {
	if v, err = newView(r, res); err != nil {
		return nil, nil, opts, err
	}
	body, err := readBody(w, r)
	if err != nil {
		return nil, nil, opts, err
	}
	if opts, err = parseWriteOptions(r, kind, ""); err != nil {
		return nil, nil, opts, err
	}
	obj, strict, err := res.decode(body, r.Header.Get("Content-Type"), "")
	if err != nil {
		return nil, nil, opts, err
	}
	if err := judgeStrictness(r.Context(), res, opts.validation, strict); err != nil {
		return nil, nil, opts, err
	}
	requestFrom(r.Context()).noteBody(obj)
	return v, obj, opts, nil
}

// create answers a POST to a collection.
func (wr *writes) create(w http.ResponseWriter, r *http.Request, res *resource) error {
	v, obj, opts, err := receive(w, r, res, "CreateOptions")
	if err != nil {
		return err
	}
	ctx := r.Context()
	if err := matchNamespace(obj, scopeOf(res, &requestFrom(ctx).info)); err != nil {
		return err
	}
	if res.virtual {
		return wr.answerReview(w, r, res, obj, opts)
	}
	stored, err := wr.insert(ctx, res, obj, opts)
	if err != nil {
		return err
	}
	return v.respond(w, r, http.StatusCreated, &stored)
}

// answerReview answers an object that is a question: nothing is stored.
func (wr *writes) answerReview(w http.ResponseWriter, r *http.Request, res *resource, obj object, opts writeOptions) error {
	obj, err := wr.hooks.decide(r.Context(), opts.admission(res, "", opHookCreate), obj)
	if err != nil {
		return err
	}
	if err := wr.auth.review(r.Context(), obj); err != nil {
		return err
	}
	obj.GetObjectKind().SetGroupVersionKind(res.groupVersionKind())
	body, err := json.Marshal(obj)
	if err != nil {
		return err
	}
	writeJSON(w, r, http.StatusCreated, body)
	return nil
}

// insert makes a new object of what a client sent.
func (wr *writes) insert(ctx context.Context, res *resource, obj object, opts writeOptions) (record, error) {
	if rv := obj.GetResourceVersion(); rv != "" {
		if n, err := strconv.ParseUint(rv, 10, 64); err == nil && n != 0 {
			return record{}, apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
		}
	}
	wipeSystemFields(obj)
	if err := admit(res); err != nil {
		return record{}, err
	}
	fillDefaults(res, obj)
	if err := wr.recordOwners(res, nil, obj, opts, ""); err != nil {
		return record{}, err
	}
	obj, err := wr.mutated(ctx, res, obj, opts)
	if err != nil {
		return record{}, err
	}
	fillSystemFields(obj)
	if res.generation {
		obj.SetGeneration(1)
	}
	obj = prepareNew(res, obj)
	if err := wr.complete(ctx, res, obj); err != nil {
		return record{}, wr.createError(err, res, obj)
	}
	addWarning(ctx, dropDuplicateOwners(obj, ""))
	generated := obj.GetName() == "" && obj.GetGenerateName() != ""
	for try := 1; ; try++ {
		if generated {
			obj.SetName(generateName(obj.GetGenerateName()))
		}
		if err := wr.auth.accounts.fillSecret(obj); err != nil {
			return record{}, err
		}
		rec, err := wr.insertOnce(ctx, res, obj, opts)
		if !errors.Is(err, errExists) {
			return rec, wr.createError(err, res, obj)
		}
		if !generated || try == generateTries {
			return rec, nameConflict(res, obj, err)
		}
	}
}

// mutated lets webhooks change a new object. Before they are asked its namespace has to be there, and its classes have their say: what
// the webhooks change, they say again.
func (wr *writes) mutated(ctx context.Context, res *resource, obj object, opts writeOptions) (object, error) {
	if !wr.hooks.active() {
		return obj, nil
	}
	namespace := obj.GetNamespace()
	if err := wr.checkNamespace(res, obj); err != nil {
		return nil, wr.createError(err, res, obj)
	}
	if pod, ok := obj.(*corev1.Pod); ok {
		addDefaultTolerations(pod)
	}
	if err := wr.complete(ctx, res, obj); err != nil {
		return nil, wr.createError(err, res, obj)
	}
	obj, err := wr.hooks.mutate(ctx, opts.admission(res, "", opHookCreate), obj, nil)
	if err == nil && res.namespaced {
		err = matchNamespace(obj, namespace)
	}
	return obj, err
}

// admit asks a type whether objects of it may be created now.
func admit(res *resource) error {
	if res.custom == nil || res.custom.admit == nil {
		return nil
	}
	return res.custom.admit()
}

// fillDefaults fills in what a client left out. A custom resource has its defaults since it was decoded.
func fillDefaults(res *resource, obj object) {
	switch {
	case res.custom == nil:
		setDefaults(obj)
	case res.custom.defaults != nil:
		res.custom.defaults(obj)
	}
}

// prepareNew gives a new object its initial status, and what else the server decides.
func prepareNew(res *resource, obj object) object {
	if res.custom != nil {
		return res.custom.prepare(obj, nil, "")
	}
	prepareCreate(obj)
	return obj
}

// complete fills in what other stored objects, or the request, say of a new one. A missing namespace is the better of two errors.
func (wr *writes) complete(ctx context.Context, res *resource, obj object) error {
	if rec := requestFrom(ctx); rec != nil {
		nameRequester(obj, &rec.user)
	}
	err := classes{wr.st}.complete(obj)
	if err == nil {
		return nil
	}
	if missing := wr.checkNamespace(res, obj); missing != nil {
		return missing
	}
	return refusedByClass(err, res, obj)
}

// insertOnce judges, encodes and commits an object under its present name.
func (wr *writes) insertOnce(ctx context.Context, res *resource, obj object, opts writeOptions) (record, error) {
	if svc, ok := obj.(*corev1.Service); ok {
		release, err := wr.alloc.assign(svc, nil)
		if err != nil {
			return record{}, err
		}
		defer release()
	}
	if errs := wr.validateNew(ctx, res, obj); len(errs) > 0 {
		if err := wr.checkNamespace(res, obj); err != nil {
			return record{}, err
		}
		return record{}, apierrors.NewInvalid(res.groupKind(), obj.GetName(), errs)
	}
	if err := wr.checkGrant(ctx, res, obj, nil); err != nil {
		return record{}, err
	}
	warnAbout(ctx, res, obj, nil)
	if err := wr.hooks.validate(ctx, opts.admission(res, "", opHookCreate), obj, nil); err != nil {
		return record{}, err
	}
	json, revAt, err := res.encodeStored(obj)
	if err != nil {
		return record{}, err
	}
	c := change{op: opCreate, key: res.key(obj.GetNamespace(), obj.GetName()), json: json, revAt: revAt}
	if res.namespaced {
		c.parent = namespaceKey(obj.GetNamespace())
	}
	if opts.dryRun {
		return wr.pretendCreate(res, obj, c)
	}
	return wr.commit(ctx, res, c)
}

// validateNew judges a create.
func (wr *writes) validateNew(ctx context.Context, res *resource, obj object) field.ErrorList {
	switch {
	case res.custom != nil:
		return res.custom.validate(ctx, obj, nil, "")
	case !wr.validating:
		return validateMeta(res, obj)
	}
	return append(validateMeta(res, obj), validateCreate(obj)...)
}

// warnAbout tells the client what is odd about a valid object.
func warnAbout(ctx context.Context, res *resource, obj, old object) {
	var before runtime.Object // a nil object must be a nil runtime.Object
	if old != nil {
		before = old
	}
	texts := objectWarnings(obj, before)
	if res.custom != nil && res.custom.warnings != nil {
		texts = append(texts, res.custom.warnings(obj, old)...)
	}
	for _, text := range texts {
		addWarning(ctx, text)
	}
}

// commit stores one change of an object, and waits for what follows from it before anybody hears of it.
func (wr *writes) commit(ctx context.Context, res *resource, c change) (record, error) {
	rec, err := wr.st.commit(ctx, c)
	if err == nil {
		wr.hooks.committed(res)
	}
	if err == nil && res.custom != nil && res.custom.committed != nil {
		err = res.custom.committed(context.WithoutCancel(ctx)) // what is stored has to be followed, whoever waits
	}
	return rec, err
}

// checkGrant refuses a role or binding that gives more than its writer has. The server's own writes have no request.
func (wr *writes) checkGrant(ctx context.Context, res *resource, obj, old object) error {
	rec := requestFrom(ctx)
	if res.group != rbacv1.GroupName || rec == nil || !wr.auth.enforcing() {
		return nil
	}
	return wr.auth.mayGrant(rec, obj, old)
}

// validateMeta judges the metadata of a new object.
func validateMeta(res *resource, obj object) field.ErrorList {
	at := field.NewPath("metadata")
	errs := validation.ValidateObjectMetaAccessor(obj, res.namespaced, nameRule(res.storedType()), at)
	if len(obj.GetName()) > maxName { // of a kind whose names have no rule: it still has to fit into a key
		errs = append(errs, field.TooLong(at.Child("name"), "", maxName))
	}
	if res.goType != nil {
		errs = append(errs, validateFinalizers(obj.GetFinalizers(), at.Child("finalizers"))...)
	}
	return errs
}

// namespaceKey is the store's key of a Namespace.
func namespaceKey(name string) string { return "//namespaces//" + name }

// checkNamespace says whether objects may be created in the object's namespace. The store checks it again, in the same transaction
// as the create; asking here first gives the better of two errors, and dry runs their answer.
func (wr *writes) checkNamespace(res *resource, obj object) error {
	if !res.namespaced {
		return nil
	}
	rec, err := wr.st.get(namespaceKey(obj.GetNamespace()))
	switch {
	case errors.Is(err, errNotFound):
		return errParentMissing
	case err == nil && rec.deleting:
		return errParentDeleting
	}
	return err
}

// pretendCreate answers a create's dry run.
func (wr *writes) pretendCreate(res *resource, obj object, c change) (record, error) {
	if err := wr.checkNamespace(res, obj); err != nil {
		return record{}, err
	}
	switch rec, err := wr.st.get(c.key); {
	case err == nil && rec.deleting:
		return record{}, errDeleting
	case err == nil:
		return record{}, errExists
	case !errors.Is(err, errNotFound):
		return record{}, err
	}
	return record{key: c.key, json: withoutRevision(c.json)}, nil
}

// withoutRevision drops the empty resourceVersion of an object that was never stored.
func withoutRevision(json []byte) []byte {
	return bytes.Replace(json, []byte(`"resourceVersion":"",`), nil, 1)
}

// createError words the store's refusals of a create.
func (wr *writes) createError(err error, res *resource, obj object) error {
	namespace := obj.GetNamespace()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errParentMissing):
		return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, namespace)
	case errors.Is(err, errParentDeleting):
		forbidden := apierrors.NewForbidden(res.groupResource(), askedName(obj),
			fmt.Errorf("unable to create new content in namespace %s because it is being terminated", namespace))
		forbidden.ErrStatus.Details.Causes = []metav1.StatusCause{{
			Type:    "NamespaceTerminating",
			Message: fmt.Sprintf("namespace %s is being terminated", namespace),
			Field:   "metadata.namespace",
		}}
		return forbidden
	}
	return storeError(err, res, obj.GetName())
}

// nameConflict words a create whose name is taken. With a generateName the server was asked for a name and found none.
func nameConflict(res *resource, obj object, err error) error {
	if obj.GetGenerateName() == "" {
		return storeError(err, res, obj.GetName())
	}
	return apierrors.NewGenerateNameConflict(res.groupResource(), obj.GetName(), 1)
}

// ---- Update and patch ----

// A revision-to-be: given the object as it is (nil: it does not exist), a change function returns what it shall become.
type changeFunc func(old object, rec *record) (object, error)

// A target is one object, or one part of it, that a request changes.
type target struct {
	res             *resource
	namespace, name string
	sub             string // "", status, ephemeralcontainers, resize, approval, finalize
	upsert          bool   // an object that does not exist is created
}

func targetOf(r *http.Request, res *resource) target {
	info := &requestFrom(r.Context()).info
	return target{res: res, namespace: scopeOf(res, info), name: info.name, sub: info.subresource}
}

// update answers a PUT.
func (wr *writes) update(w http.ResponseWriter, r *http.Request, res *resource) error {
	v, sent, opts, err := receive(w, r, res, "UpdateOptions")
	if err != nil {
		return err
	}
	ctx, t := r.Context(), targetOf(r, res)
	if err := t.check(sent); err != nil {
		return err
	}
	t.upsert = upserts(res) && t.sub == ""
	uid := sent.GetUID()
	rec, created, err := wr.modify(ctx, t, opts, func(old object, _ *record) (object, error) {
		if old != nil && uid != "" && uid != old.GetUID() {
			return nil, apierrors.NewConflict(res.groupResource(), t.name, fmt.Errorf(
				"Precondition failed: UID in precondition: %v, UID in object meta: %v", uid, old.GetUID()))
		}
		return sent.DeepCopyObject().(object), nil
	})
	if err != nil {
		return err
	}
	return v.respond(w, r, statusFor(created), &rec)
}

func statusFor(created bool) int {
	if created {
		return http.StatusCreated
	}
	return http.StatusOK
}

// check compares an object's name and namespace with the URL's.
func (t *target) check(obj object) error {
	switch name := obj.GetName(); {
	case name == "":
		return t.nameless()
	case name != t.name:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", name, t.name))
	}
	return matchNamespace(obj, t.namespace)
}

func (t *target) nameless() error {
	return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: name must be provided", t.name))
}

// patch answers a PATCH.
func (wr *writes) patch(w http.ResponseWriter, r *http.Request, res *resource) error {
	v, err := newView(r, res)
	if err != nil {
		return err
	}
	kind, err := patchKindOf(r.Header.Get("Content-Type"), res.goType != nil)
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
	t.upsert = kind == applyPatch && t.sub == ""
	opts.applied = kind == applyPatch
	rec, created, err := wr.modify(ctx, t, opts, func(old object, rec *record) (object, error) {
		if kind == applyPatch {
			return wr.applied(ctx, t, opts, body, old)
		}
		return wr.patched(ctx, t, opts, patchRequest{kind, body}, rec)
	})
	if err != nil {
		return err
	}
	return v.respond(w, r, statusFor(created), &rec)
}

type patchRequest struct {
	kind patchKind
	body []byte
}

// patched applies a patch to the object's document, as the version of the request shows it.
func (wr *writes) patched(ctx context.Context, t target, opts writeOptions, p patchRequest, rec *record) (object, error) {
	whole := view{res: t.res}
	doc, err := whole.object(nil, rec)
	if err != nil {
		return nil, err
	}
	doc, strict, err := patch(p.kind, doc, p.body, t.res.patchSchema())
	if err != nil {
		return nil, err
	}
	if !gjson.GetBytes(doc, "apiVersion").Exists() {
		return nil, t.nameless()
	}
	obj, unknown, err := t.res.decode(doc, "application/json", "")
	if err != nil {
		return nil, invalidPatch(p.kind, p.body, doc, err)
	}
	if strict = append(strict, unknown...); len(strict) > 0 && opts.validation == metav1.FieldValidationStrict {
		return nil, invalidPatch(p.kind, p.body, doc, runtime.NewStrictDecodingError(strict))
	}
	if err := judgeStrictness(ctx, t.res, opts.validation, strict); err != nil {
		return nil, err
	}
	return obj, t.check(obj)
}

// applied merges what a server-side apply wants into the object, in the version of the request; old is nil when there is none.
func (wr *writes) applied(ctx context.Context, t target, opts writeOptions, body []byte, old object) (object, error) {
	live := old
	if old != nil {
		live = t.res.convertOut(old.DeepCopyObject().(object))
		live.GetObjectKind().SetGroupVersionKind(t.res.groupVersionKind())
	}
	merged, strict, err := wr.ledger(t.res).apply(live, body, applier{manager: opts.manager, subresource: t.sub, force: opts.force})
	if err != nil {
		return nil, err
	}
	if len(strict) > 0 && opts.validation == metav1.FieldValidationStrict {
		return nil, invalidApply(strict)
	}
	if err := judgeStrictness(ctx, t.res, opts.validation, strict); err != nil {
		return nil, err
	}
	if !wr.managed {
		merged.SetManagedFields(nil)
	}
	if u, ok := merged.(*unstructured.Unstructured); ok && t.res.custom != nil {
		if _, err := t.res.custom.shape(u); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	obj := t.res.convertIn(merged)
	return obj, t.check(obj)
}

// ledger is the bookkeeping of managedFields for a resource.
func (wr *writes) ledger(res *resource) *ownership {
	if c := res.custom; c != nil && c.keep != nil {
		return c.keep(func() any { return wr.newLedger(res) }).(*ownership)
	}
	if known, ok := wr.ledgers.Load(res); ok {
		return known.(*ownership)
	}
	known, _ := wr.ledgers.LoadOrStore(res, wr.newLedger(res))
	return known.(*ownership)
}

func (wr *writes) newLedger(res *resource) *ownership {
	o := &ownership{kind: res.groupVersionKind(), goType: res.goType, status: res.subresource("status") != nil}
	o.defaults = func(obj runtime.Object) { fillDefaults(res, obj.(object)) }
	if res.schema != nil {
		if own, err := res.schema(); err == nil {
			_ = json.Unmarshal(own, &o.schema) // without a schema, maps are merged and lists are not
		}
	}
	for _, other := range wr.reg.all() {
		if other.keyPrefix("") == res.keyPrefix("") && other != res {
			o.versions = append(o.versions, other.apiVersion())
		}
	}
	return o
}

// recordOwners writes into obj's managedFields which fields this write sets. old is nil for a create.
func (wr *writes) recordOwners(res *resource, old, obj object, opts writeOptions, sub string) error {
	if !wr.managed {
		obj.SetManagedFields(nil)
		return nil
	}
	if opts.applied {
		return nil
	}
	before, after := old, res.convertOut(obj)
	if old != nil {
		before = res.convertOut(old)
		before.GetObjectKind().SetGroupVersionKind(res.groupVersionKind())
	}
	if err := wr.ledger(res).update(before, after, opts.manager, sub); err != nil {
		return err
	}
	obj.SetManagedFields(after.GetManagedFields())
	if res.goType != nil { // typed objects in hand carry no kind
		for _, o := range []object{obj, old} {
			if o != nil {
				o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
			}
		}
	}
	return nil
}

// modify changes an object: read, compute, commit if nobody was faster, else again. A PUT that names a resourceVersion fails in the
// second round by itself. Rounds after the first wait in a queue of the key, so that many patches of one object take turns.
func (wr *writes) modify(ctx context.Context, t target, opts writeOptions, change changeFunc) (rec record, created bool, err error) {
	key := t.res.key(t.namespace, t.name)
	for round := 0; ; round++ {
		if round == 1 {
			leave, err := wr.queues.enter(ctx, key)
			if err != nil {
				return record{}, false, err
			}
			defer leave()
		}
		if err := ctx.Err(); err != nil {
			return record{}, false, apierrors.NewTimeoutError("request did not complete within the allotted time", 0)
		}
		rec, err = wr.st.get(key)
		switch {
		case errors.Is(err, errNotFound) && t.upsert:
			rec, err = wr.upsert(ctx, t, opts, change)
			created = true
		case err != nil:
			return rec, false, storeError(err, t.res, t.name)
		default:
			created = false
			rec, err = wr.modifyOnce(ctx, t, opts, change, rec)
		}
		if lost := errors.Is(err, errConflict) || created && apierrors.IsAlreadyExists(err); !lost {
			return rec, created, storeError(err, t.res, t.name)
		}
	}
}

// upsert creates the object that a PUT or an apply names.
func (wr *writes) upsert(ctx context.Context, t target, opts writeOptions, change changeFunc) (record, error) {
	obj, err := change(nil, nil)
	if err != nil {
		return record{}, err
	}
	if uid := obj.GetUID(); uid != "" && opts.applied {
		return record{}, apierrors.NewConflict(t.res.groupResource(), t.name,
			fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", uid))
	}
	obj.SetResourceVersion("")
	return wr.insert(ctx, t.res, obj, opts)
}

// modifyOnce is one round of modify.
func (wr *writes) modifyOnce(ctx context.Context, t target, opts writeOptions, change changeFunc, rec record) (record, error) {
	old, err := t.res.decodeStored(rec.json)
	if err != nil {
		return rec, err
	}
	obj, err := change(old, &rec)
	if err != nil {
		return rec, err
	}
	if err := checkRevision(t.res, obj, rec.rev); err != nil {
		return rec, err
	}
	if t.sub != "status" {
		fillDefaults(t.res, obj)
	}
	if err := wr.recordOwners(t.res, old, obj, opts, t.sub); err != nil {
		return rec, err
	}
	if obj, err = wr.hooks.mutate(ctx, opts.admission(t.res, t.sub, opHookUpdate), obj, old); err != nil {
		return rec, err
	}
	obj = t.prepare(obj, old)
	addWarning(ctx, dropDuplicateOwners(obj, ""))
	if svc, ok := obj.(*corev1.Service); ok && t.sub == "" {
		release, err := wr.alloc.assign(svc, old.(*corev1.Service))
		if err != nil {
			return rec, err
		}
		defer release()
	}
	if errs := wr.validateChanged(ctx, &t, obj, old); len(errs) > 0 {
		return rec, apierrors.NewInvalid(t.res.groupKind(), t.name, errs)
	}
	if err := wr.checkGrant(ctx, t.res, obj, old); err != nil {
		return rec, err
	}
	if class, ok := obj.(*schedulingv1.PriorityClass); ok {
		if err := (classes{wr.st}).onlyDefault(class); err != nil {
			return rec, refusedByClass(err, t.res, obj)
		}
	}
	if t.sub == "" {
		warnAbout(ctx, t.res, obj, old)
	}
	if err := wr.hooks.validate(ctx, opts.admission(t.res, t.sub, opHookUpdate), obj, old); err != nil {
		return rec, err
	}
	return wr.store(ctx, t.res, obj, rec, opts.dryRun)
}

// checkRevision compares the resourceVersion that a client names with the stored one. None means any, for the types that allow it.
func checkRevision(res *resource, obj object, rev int64) error {
	rv := obj.GetResourceVersion()
	if rv == "" || rv == "0" {
		if unconditional(res) {
			return nil
		}
		at := field.NewPath("metadata").Child("resourceVersion")
		return apierrors.NewInvalid(schema.GroupKind{Group: res.group, Kind: res.plural}, obj.GetName(),
			field.ErrorList{field.Invalid(at, 0, "must be specified for an update")})
	}
	n, err := strconv.ParseUint(rv, 10, 64)
	if err != nil {
		return apierrors.NewBadRequest(field.Invalid(field.NewPath("metadata", "resourceVersion"), rv, err.Error()).Error())
	}
	if n != uint64(rev) {
		return storeError(errConflict, res, obj.GetName())
	}
	return nil
}

// prepare takes from obj what the request may write and the rest from old.
func (t *target) prepare(obj, old object) object {
	switch {
	case t.res.custom != nil:
		obj = t.res.custom.prepare(obj, old, t.sub)
	case t.sub == "":
		prepareUpdate(obj, old)
	case t.sub == "status":
		prepareStatusUpdate(obj, old)
	default:
		obj = restrict(t.sub, obj, old)
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
	if t.res.generation && t.sub != "status" && t.sub != "binding" && !sameSpec(obj, old) {
		obj.SetGeneration(old.GetGeneration() + 1)
	}
	keepTimes(old, obj)
	return obj
}

// validateChanged judges an update: metadata by its own rules and by those of what may change, then the type's rules.
func (wr *writes) validateChanged(ctx context.Context, t *target, obj, old object) field.ErrorList {
	at := field.NewPath("metadata")
	errs := validation.ValidateObjectMetaAccessorUpdate(obj, old, at)
	errs = append(errs, validation.ValidateObjectMetaAccessor(obj, t.res.namespaced, anyName, at)...)
	if t.res.goType != nil && t.res.custom == nil {
		errs = append(errs, validateFinalizers(obj.GetFinalizers(), at.Child("finalizers"))...)
	}
	switch {
	case t.res.custom != nil:
		errs = append(errs, t.res.custom.validate(ctx, obj, old, t.sub)...)
	case !wr.validating:
	case t.sub == "":
		errs = append(errs, validateUpdate(obj, old)...)
	case t.sub == "status":
		errs = append(errs, validateStatusUpdate(obj, old)...)
		errs = append(errs, validatePart(t.sub, obj, old)...)
	case t.sub == "finalize":
		errs = append(errs, validateFinalizers(namespaceFinalizers(obj), field.NewPath("spec", "finalizers"))...)
	default:
		errs = append(errs, validatePart(t.sub, obj, old)...)
	}
	return distinct(errs)
}

// distinct drops repeated errors: two of the judges above may find the same mistake. (kube-apiserver then names it twice.)
func distinct(errs field.ErrorList) (out field.ErrorList) {
	for _, err := range errs {
		same := func(other *field.Error) bool { return other.Error() == err.Error() }
		if !slices.ContainsFunc(out, same) {
			out = append(out, err)
		}
	}
	return out
}

// anyName accepts the name of an object that exists: its name was judged when it was created.
func anyName(string, bool) []string { return nil }

// sameSpec compares two objects apart from metadata and status: what metadata.generation counts. The status of a custom resource that
// has no such subresource is a field like any other; of one that has it, old and new status are equal here.
func sameSpec(a, b object) bool {
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
func (wr *writes) store(ctx context.Context, res *resource, obj object, rec record, dryRun bool) (record, error) {
	json, revAt, err := res.encodeStored(obj)
	if err != nil {
		return rec, err
	}
	if bytes.Equal(splice(json, revAt, rec.rev), rec.json) {
		return rec, nil
	}
	if mayGo(obj) && rec.deleting {
		return wr.finish(ctx, res, rec, finished{json: json, revAt: revAt, dryRun: dryRun})
	}
	c := change{op: opUpdate, key: rec.key, expect: rec.rev, json: json, revAt: revAt, deleting: obj.GetDeletionTimestamp() != nil}
	if dryRun {
		return record{key: rec.key, rev: rec.rev, json: splice(json, revAt, rec.rev)}, nil
	}
	return wr.commit(ctx, res, c)
}

// splice puts a revision where encodeStored left room for it.
func splice(json []byte, revAt int, rev int64) []byte {
	out := append(make([]byte, 0, len(json)+20), json[:revAt]...)
	return append(strconv.AppendInt(out, rev, 10), json[revAt:]...)
}

// mayGo says that nothing holds an object back that is being deleted: no finalizer, and no grace period that runs.
func mayGo(obj object) bool {
	grace := obj.GetDeletionGracePeriodSeconds()
	return obj.GetDeletionTimestamp() != nil && len(obj.GetFinalizers()) == 0 && (grace == nil || *grace == 0) && !holdsContent(obj)
}

// finish deletes an object whose last finalizer was removed. The answer shows it once more, without it and at its old revision.
func (wr *writes) finish(ctx context.Context, res *resource, rec record, f finished) (record, error) {
	last := record{key: rec.key, rev: rec.rev, json: splice(f.json, f.revAt, rec.rev)}
	if f.dryRun {
		return last, nil
	}
	_, err := wr.commit(ctx, res, tombstone(&rec))
	return last, err
}

// finished is an object that nothing holds back any more, as encodeStored wrote it.
type finished struct {
	json   []byte
	revAt  int
	dryRun bool
}

// tombstone is the change that deletes a record: its last state stays, for watchers, under the revision of the deletion.
func tombstone(rec *record) change {
	at := gjson.GetBytes(rec.json, "metadata.resourceVersion")
	json := append(make([]byte, 0, len(rec.json)), rec.json[:at.Index+1]...)
	json = append(json, rec.json[at.Index+len(at.Raw)-1:]...)
	return change{op: opDelete, key: rec.key, expect: rec.rev, json: json, revAt: at.Index + 1}
}

// ---- Delete ----

// remove answers a DELETE of one object.
func (wr *writes) remove(w http.ResponseWriter, r *http.Request, res *resource) error {
	v, err := newView(r, res)
	if err != nil {
		return err
	}
	options, err := readDeleteOptions(w, r, res)
	if err != nil {
		return err
	}
	info := &requestFrom(r.Context()).info
	rec, gone, err := wr.delete(r.Context(), res, scopeOf(res, info), info.name, options)
	if err != nil {
		return err
	}
	code := http.StatusOK
	if !gone && options.OrphanDependents != nil && !*options.OrphanDependents {
		code = http.StatusAccepted
	}
	if !gone || returnsDeleted(res) {
		return v.respond(w, r, code, &rec)
	}
	return respondDeleted(w, r, res, &rec, info.name)
}

// respondDeleted answers a DELETE that removed the object with a Status.
func respondDeleted(w http.ResponseWriter, r *http.Request, res *resource, rec *record, name string) error {
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: name, Group: res.group, Kind: res.plural,
			UID: types.UID(gjson.GetBytes(rec.json, "metadata.uid").String())},
	}
	body, err := json.Marshal(&status)
	if err != nil {
		return err
	}
	requestFrom(r.Context()).answered = &status
	writeJSON(w, r, http.StatusOK, body)
	return nil
}

// readDeleteOptions reads the options of a DELETE from its body, or from the query when there is none.
func readDeleteOptions(w http.ResponseWriter, r *http.Request, res *resource) (*metav1.DeleteOptions, error) {
	body, err := readBody(w, r)
	if err != nil {
		return nil, err
	}
	options := &metav1.DeleteOptions{}
	if len(body) > 0 {
		options, err = decodeDeleteOptions(body, r.Header.Get("Content-Type"))
	} else if r.URL.RawQuery != "" {
		err = queryDeleteOptions(r.URL.Query(), options)
	}
	if err != nil {
		return nil, err
	}
	if orphansByDefault(res) && res.group == "batch" && options.PropagationPolicy == nil && options.OrphanDependents == nil {
		addWarning(r.Context(), jobDeletionWarning)
	}
	if errs := metavalidation.ValidateDeleteOptions(options); len(errs) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "DeleteOptions"}, "", errs)
	}
	return options, nil
}

// queryDeleteOptions reads DeleteOptions from query parameters. uid and resourceVersion act as preconditions.
func queryDeleteOptions(query url.Values, options *metav1.DeleteOptions) error {
	options.DryRun = query["dryRun"]
	if text := query.Get("gracePeriodSeconds"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		options.GracePeriodSeconds = &n
	}
	if query.Has("orphanDependents") {
		orphan := truth(query, "orphanDependents")
		options.OrphanDependents = &orphan
	}
	if policy := metav1.DeletionPropagation(query.Get("propagationPolicy")); policy != "" {
		options.PropagationPolicy = &policy
	}
	if uid, rv := types.UID(query.Get("uid")), query.Get("resourceVersion"); uid != "" || rv != "" {
		options.Preconditions = &metav1.Preconditions{}
		if uid != "" {
			options.Preconditions.UID = &uid
		}
		if rv != "" {
			options.Preconditions.ResourceVersion = &rv
		}
	}
	return nil
}

// delete removes an object, or marks it as deleting when something holds it back. gone says which.
func (wr *writes) delete(ctx context.Context, res *resource, namespace, name string, options *metav1.DeleteOptions) (rec record, gone bool, err error) {
	key := res.key(namespace, name)
	for {
		if err := ctx.Err(); err != nil {
			return record{}, false, apierrors.NewTimeoutError("request did not complete within the allotted time", 0)
		}
		if rec, err = wr.st.get(key); err == nil {
			rec, gone, err = wr.deleteOnce(ctx, res, rec, options)
		}
		if !errors.Is(err, errConflict) {
			return rec, gone, storeError(err, res, name)
		}
	}
}

// deleteOnce is one attempt: errConflict when somebody was faster.
func (wr *writes) deleteOnce(ctx context.Context, res *resource, rec record, options *metav1.DeleteOptions) (record, bool, error) {
	obj, err := res.decodeStored(rec.json)
	if err != nil {
		return rec, false, err
	}
	if err := checkPreconditions(res, obj, options); err != nil {
		return rec, false, err
	}
	if err := protect(res, obj.GetName()); err != nil {
		return rec, false, err
	}
	a := admission{res: res, operation: opHookDelete, dryRun: len(options.DryRun) > 0, deleting: options}
	if err := wr.hooks.decideDeletion(ctx, a, obj); err != nil {
		return rec, false, err
	}
	before := obj.DeepCopyObject().(object)
	if begins := obj.GetDeletionTimestamp() == nil; begins && res.custom != nil && res.custom.deleting != nil {
		res.custom.deleting(obj)
	} else {
		markDeleting(res, obj, options, time.Now())
	}
	if graceful(obj) {
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
	rec, err = wr.commit(ctx, res, tombstone(&rec))
	return rec, true, err
}

// deleteGracefully marks an object whose deletion somebody else may have to finish, and finishes it at once where there is nothing to
// wait for. Watchers see both steps, as with the real server.
func (wr *writes) deleteGracefully(ctx context.Context, res *resource, obj, before object, rec record, options *metav1.DeleteOptions) (record, bool, error) {
	if dryRun, done := len(options.DryRun) > 0, mayGo(obj); dryRun || !done {
		marked, err := wr.mark(ctx, res, obj, before, rec, dryRun)
		return marked, done, err
	}
	obj.SetResourceVersion(before.GetResourceVersion())
	if !apiequality.Semantic.DeepEqual(obj, before) {
		stored, revAt, err := res.encodeStored(obj)
		if err != nil {
			return rec, false, err
		}
		rec, err = wr.commit(ctx, res, change{op: opUpdate, key: rec.key, expect: rec.rev, json: stored, revAt: revAt, deleting: true})
		if err != nil {
			return rec, false, err
		}
	}
	rec, err := wr.commit(ctx, res, tombstone(&rec))
	return rec, true, err
}

// mark stores the deletion marks of an object that something holds back, if they are new.
func (wr *writes) mark(ctx context.Context, res *resource, obj, before object, rec record, dryRun bool) (record, error) {
	obj.SetResourceVersion(before.GetResourceVersion())
	if apiequality.Semantic.DeepEqual(obj, before) {
		return rec, nil
	}
	return wr.store(ctx, res, obj, rec, dryRun)
}

// checkPreconditions compares what a DELETE expects with what is stored.
func checkPreconditions(res *resource, obj object, options *metav1.DeleteOptions) error {
	p := options.Preconditions
	if p == nil {
		return nil
	}
	conflict := func(what string, want, have any, hint string) error {
		return apierrors.NewConflict(schema.GroupResource{Group: res.group, Resource: res.kind}, obj.GetName(), fmt.Errorf(
			"the %s in the precondition (%v) does not match the %s in record (%v). The object might have been %s", what, want, what, have, hint))
	}
	if p.UID != nil && *p.UID != obj.GetUID() {
		return conflict("UID", *p.UID, obj.GetUID(), "deleted and then recreated")
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != obj.GetResourceVersion() {
		return conflict("ResourceVersion", *p.ResourceVersion, obj.GetResourceVersion(), "modified")
	}
	return nil
}

// markDeleting writes on an object what its deletion asks for: the finalizers of the propagation policy, the time, the grace period.
func markDeleting(res *resource, obj object, options *metav1.DeleteOptions, now time.Time) {
	obj.SetFinalizers(policyFinalizers(obj.GetFinalizers(), options, orphansByDefault(res)))
	grace := gracePeriod(obj, options)
	if obj.GetDeletionTimestamp() != nil {
		shortenGrace(obj, grace, now)
		return
	}
	if obj.GetGeneration() > 0 {
		obj.SetGeneration(obj.GetGeneration() + 1)
	}
	at := metav1.NewTime(now.Add(time.Duration(grace) * time.Second)).Rfc3339Copy()
	obj.SetDeletionTimestamp(&at)
	if setTerminating(obj) {
		return
	}
	obj.SetDeletionGracePeriodSeconds(&grace)
}

// shortenGrace moves the end of a running grace period forward, never back.
func shortenGrace(obj object, grace int64, now time.Time) {
	running := obj.GetDeletionGracePeriodSeconds()
	if running == nil || grace >= *running {
		return
	}
	at := obj.GetDeletionTimestamp().Add(time.Duration(grace-*running) * time.Second)
	if at.Before(now) {
		at = now
		if grace != 0 {
			grace = 1
		}
	}
	stamp := metav1.NewTime(at).Rfc3339Copy()
	obj.SetDeletionTimestamp(&stamp)
	obj.SetDeletionGracePeriodSeconds(&grace)
}

// policyFinalizers adds or removes the two finalizers that the garbage collector works off.
func policyFinalizers(have []string, options *metav1.DeleteOptions, orphanByDefault bool) []string {
	orphan, foreground := slices.Contains(have, metav1.FinalizerOrphanDependents), slices.Contains(have, metav1.FinalizerDeleteDependents)
	switch {
	case options.OrphanDependents != nil:
		orphan, foreground = *options.OrphanDependents, foreground && !*options.OrphanDependents
	case options.PropagationPolicy != nil:
		orphan = *options.PropagationPolicy == metav1.DeletePropagationOrphan
		foreground = *options.PropagationPolicy == metav1.DeletePropagationForeground
	case !orphan && !foreground:
		orphan = orphanByDefault
	}
	var out []string
	for _, name := range have {
		if name != metav1.FinalizerOrphanDependents && name != metav1.FinalizerDeleteDependents {
			out = append(out, name)
		}
	}
	if orphan {
		out = append(out, metav1.FinalizerOrphanDependents)
	}
	if foreground {
		out = append(out, metav1.FinalizerDeleteDependents)
	}
	return out
}

// ---- Delete of a collection ----

// removeAll answers a DELETE of a collection: a LIST whose objects are deleted as they are listed. It is not atomic, as the real one
// is not: what was deleted before an error stays deleted.
func (wr *writes) removeAll(w http.ResponseWriter, r *http.Request, res *resource) error {
	options, err := readDeleteOptions(w, r, res)
	if err != nil {
		return err
	}
	return wr.rd.listAnd(w, r, res, func(ctx context.Context, found []*record) error {
		return parallel(found, deleteWorkers, func(rec *record) error {
			namespace, name := namespacedName(rec.key)
			_, _, err := wr.delete(ctx, res, namespace, name, options)
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	})
}
