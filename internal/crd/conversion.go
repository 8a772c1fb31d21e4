package crd

// This file converts objects between versions if the CRD configures a conversion
// webhook. Objects are stored in the current storage version. If the storage version changes
// later, reading the object may require a conversion. Writing it through another version always
// requires a conversion:
//
//	GET v1      {"apiVersion":"v2",…} in the store ──▶ v2's defaults ──▶ ConversionReview ──▶ original metadata ──▶ v1's schema prunes
//	PUT v1      … validated as v1 ──▶ ConversionReview ──▶ original metadata ──▶ v2's schema prunes ──▶ {"apiVersion":"v2",…}
//	LIST v1     a chunk of objects ──▶ those of other versions in one ConversionReview ──▶ selectors ──▶ items
//	WATCH v1    the same for new events; concurrent watches share one call
//
// A stored object names its version only if that differs from the version of the first objects
// (see implicitVersion), so types with a single version have no overhead. After conversion, the
// version in the stored JSON is empty, which prevents a second conversion.
//
// The webhook determines everything except for the identity of the object. In the metadata it may
// only change labels and annotations. If the response is invalid, the request fails with a 500
// and the text of kube-apiserver, and the object is not stored.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"apilet/internal/apierror"
	"apilet/internal/scheme"
	"apilet/internal/webhook"
)

const (
	conversionTimeout = 30 * time.Second // timeout of a call; the default of kube-apiserver
	// maximum bytes of stored JSON in a review, unless there is only a single object
	reviewBytes  = 1 << 20
	leastAnswer  = 16 << 20 // minimum size limit of a response in bytes
	answerFactor = 4        // the limit is at least this multiple of the request's size
	eventsKept   = 256      // maximum number of cached converted events, for all types together
	eventBytes   = 8 << 20  // maximum size of these events in bytes
)

// A converter calls the conversion webhook of a CRD. It is immutable and replaced with the CRD's
// spec.
type converter struct {
	kind    schema.GroupKind
	schemas *schemas
	known   map[string]bool // the versions of the CRD
	reviews []string        // ConversionReview versions that the webhook accepts
	target  string          // the client configuration as JSON
	timeout time.Duration   // of one call
	client  *webhook.Client
	broken  error // the error of creating client
	// now is only set in the registry of an earlier revision. It returns the current converter,
	// or nil if there is no converter. Otherwise now is nil.
	now func() *converter
}

// newConverter returns the converter of a CRD, or nil for strategy None. It reuses the client of
// before if the client configuration is the same. If services is nil, as in a registry of the
// past, the converter has no client.
func newConverter(crd *apiextensionsv1.CustomResourceDefinition, s *schemas, services *webhook.ServiceResolver, before *converter) *converter {
	c := crd.Spec.Conversion
	if c == nil || c.Strategy != apiextensionsv1.WebhookConverter || c.Webhook == nil || c.Webhook.ClientConfig == nil {
		return nil
	}
	cv := &converter{kind: schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Spec.Names.Kind}, schemas: s, known: map[string]bool{},
		reviews: c.Webhook.ConversionReviewVersions, timeout: conversionTimeout}
	for i := range crd.Spec.Versions {
		cv.known[crd.Spec.Versions[i].Name] = true
	}
	if services == nil {
		return cv
	}
	asked := c.Webhook.ClientConfig
	config := &admissionv1.WebhookClientConfig{URL: asked.URL, CABundle: asked.CABundle, Service: (*admissionv1.ServiceReference)(asked.Service)}
	if strings.TrimSpace(string(config.CABundle)) == "" { // controller-gen writes a newline
		config.CABundle = nil
	}
	target, _ := json.Marshal(config)
	if cv.target = string(target); before != nil && before.target == cv.target {
		cv.client, cv.broken = before.client, before.broken
		return cv
	}
	cv.client, cv.broken = webhook.NewClient(config, services)
	return cv
}

// close closes the connections of the client unless the next converter uses the same client.
func (cv *converter) close(after *converter) {
	if cv != nil && (after == nil || after.client != cv.client) {
		cv.client.Close()
	}
}

func (cv *converter) apiVersion(version string) string {
	return scheme.GroupVersionString(cv.kind.Group, version)
}

// conversionFailure returns the 500 for all errors. The reason and the details are empty, which
// is the same in kube-apiserver.
func conversionFailure(format string, args ...any) error {
	return apierror.New(http.StatusInternalServerError, "", fmt.Sprintf(format, args...))
}

// ---- Objects

// to converts an object to another version and prunes it by the schema of that version. If the
// object already has that version, it is returned unchanged. The resourceVersion is removed
// before the webhook is called, because kube-apiserver does not store it either.
func (cv *converter) to(ctx context.Context, u *unstructured.Unstructured, version string) (*unstructured.Unstructured, error) {
	from := u.GroupVersionKind()
	switch {
	case from.Version == version:
		return u, nil
	case len(u.Object) == 2: // only kind and apiVersion: the old state in a create
		u = &unstructured.Unstructured{Object: maps.Clone(u.Object)}
		u.SetAPIVersion(cv.apiVersion(version))
		return u, nil
	case !cv.known[from.Version]:
		return nil, conversionFailure("request to convert CR from an invalid group/version: %s", from.GroupVersion())
	case !cv.known[version]:
		return nil, conversionFailure("request to convert CR to an invalid group/version: %s", cv.apiVersion(version))
	}
	converted, err := cv.convert(ctx, []*unstructured.Unstructured{u}, version)
	if err != nil {
		return nil, err
	}
	return converted[0], nil
}

// convert calls the webhook for one or more objects of other versions.
func (cv *converter) convert(ctx context.Context, objects []*unstructured.Unstructured, version string) ([]*unstructured.Unstructured, error) {
	target, err := cv.schemas.version(version)
	if err != nil {
		return nil, err
	}
	answered, err := cv.review(ctx, objects, cv.apiVersion(version))
	if err != nil {
		return nil, err
	}
	converted := make([]*unstructured.Unstructured, len(objects))
	for i := range answered {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if converted[i], err = accept(objects[i], &answered[i], cv.apiVersion(version)); err != nil {
			return nil, err
		}
		if err := target.coerce(converted[i]); err != nil {
			return nil, conversionFailure("%s", err)
		}
	}
	return converted, nil
}

// coerce prunes an object by the schema, reduces its metadata to the known fields and coerces
// embedded objects. It does not set default values.
func (c *compiled) coerce(u *unstructured.Unstructured) error {
	meta, found, _, err := objectmeta.GetObjectMetaWithOptions(u.Object, objectmeta.ObjectMetaOptions{})
	if err != nil {
		return err
	}
	apiVersion, kind := u.GetAPIVersion(), u.GetKind()
	c.prune(u)
	if err, _ := objectmeta.CoerceWithOptions(nil, u.Object, c.schema, false, objectmeta.CoerceOptions{}); err != nil {
		return err
	}
	u.SetAPIVersion(apiVersion)
	u.SetKind(kind)
	if !found {
		return nil
	}
	return objectmeta.SetObjectMeta(u.Object, meta)
}

// accept validates the object that the webhook returned for original and restores its metadata.
func accept(original *unstructured.Unstructured, answered *runtime.RawExtension, apiVersion string) (*unstructured.Unstructured, error) {
	from, u := original.GroupVersionKind(), &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(answered.Raw); err != nil {
		return nil, conversionFailure("%s", err)
	}
	got := u.GroupVersionKind()
	if got.GroupVersion().String() != apiVersion {
		return nil, conversionFailure("conversion webhook for %v returned invalid object at index 0: invalid groupVersion (expected %v, received %v)",
			from, apiVersion, got.GroupVersion())
	}
	if got.Kind != from.Kind {
		return nil, conversionFailure("conversion webhook for %v returned invalid object at index 0: invalid kind (expected %v, received %v)",
			from, from.Kind, got.Kind)
	}
	if err := checkIdentity(original, u); err != nil {
		return nil, conversionFailure("conversion webhook for %v returned invalid object: %v", from, err)
	}
	if err := restoreMetadata(original, u); err != nil {
		return nil, conversionFailure("conversion webhook for %v returned invalid metadata: %v", from, err)
	}
	return u, nil
}

// checkIdentity checks that the webhook did not change the identity of the object.
func checkIdentity(original, u *unstructured.Unstructured) error {
	for _, f := range []struct{ what, want, got string }{
		{"name", original.GetName(), u.GetName()},
		{"namespace", original.GetNamespace(), u.GetNamespace()},
		{"UID", string(original.GetUID()), string(u.GetUID())},
	} {
		if f.want != f.got {
			return fmt.Errorf("must have the same %s: %v != %v", f.what, f.want, f.got)
		}
	}
	return nil
}

// restoreMetadata restores the metadata of the original, except for labels and annotations.
func restoreMetadata(original, u *unstructured.Unstructured) error {
	value, found := u.Object["metadata"]
	if !found {
		return errors.New("missing metadata in converted object")
	}
	answered, ok := value.(map[string]any)
	if !ok {
		return fmt.Errorf("invalid metadata of type %T in converted object", value)
	}
	before, _ := original.Object["metadata"].(map[string]any)
	meta := runtime.DeepCopyJSON(before)
	if meta == nil {
		meta = map[string]any{}
	}
	u.Object["metadata"] = meta
	for _, name := range []string{"labels", "annotations"} {
		if answered[name] == nil {
			delete(meta, name)
			continue
		}
		members, ok := answered[name].(map[string]any)
		if !ok {
			return fmt.Errorf("invalid metadata.%s of type %T in converted object", name, answered[name])
		}
		old, _ := meta[name].(map[string]any)
		if err := checkNotes(name, old, members); err != nil {
			return err
		}
		meta[name] = members
	}
	return nil
}

// checkNotes validates labels or annotations if they have changed.
func checkNotes(name string, old, members map[string]any) error {
	notes, changed := make(map[string]string, len(members)), len(old) != len(members)
	for key, value := range members {
		text, ok := value.(string)
		if !ok {
			return fmt.Errorf("metadata.%s[%s] must be a string, but is %T in converted object", name, key, value)
		}
		notes[key] = text
		changed = changed || old[key] != value
	}
	var errs field.ErrorList
	switch {
	case !changed:
	case name == "labels":
		errs = metav1validation.ValidateLabels(notes, field.NewPath("metadata", "labels"))
	default:
		// kube-apiserver's spelling
		errs = apivalidation.ValidateAnnotations(notes, field.NewPath("metadata", "annotation"))
	}
	return apierror.Join(errs)
}

// ---- One review

// review calls the webhook and returns one converted object for each of objects.
func (cv *converter) review(ctx context.Context, objects []*unstructured.Unstructured, apiVersion string) ([]runtime.RawExtension, error) {
	from := objects[0].GroupVersionKind()
	cv, err := cv.current(from.Version, apiVersion)
	if err != nil {
		return nil, err
	}
	if cv.broken != nil {
		return nil, conversionFailure("%s", cv.broken)
	}
	version := ""
	for _, accepted := range cv.reviews {
		if accepted == "v1" || accepted == "v1beta1" {
			version = accepted
			break
		}
	}
	if version == "" {
		return nil, conversionFailure("no supported conversion review versions")
	}
	uid := uuid.NewUUID()
	question, err := reviewOf(objects, uid, apiVersion, version)
	if err != nil {
		return nil, err
	}
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, cv.timeout)
	defer cancel()
	body, err := cv.client.Post(ctx, question, max(leastAnswer, answerFactor*len(question)))
	if err == nil {
		var converted []runtime.RawExtension
		if converted, err = readReview(body, uid, version); err == nil && len(converted) != len(objects) {
			return nil, conversionFailure("conversion webhook for %v returned %d objects, expected %d", from, len(converted), len(objects))
		} else if err == nil {
			return converted, nil
		}
	}
	if err := caller.Err(); err != nil { // the caller no longer waits
		return nil, err
	}
	return nil, conversionFailure("conversion webhook for %v failed: %v", from, err)
}

// current returns the converter to call. A registry of the past uses the current converter, because
// an administrator may have removed the former webhook on purpose.
func (cv *converter) current(from, apiVersion string) (*converter, error) {
	if cv.now == nil {
		return cv, nil
	}
	if now := cv.now(); now != nil && now.known[from] && now.known[strings.TrimPrefix(apiVersion, cv.kind.Group+"/")] {
		return now, nil
	}
	return nil, apierror.New(http.StatusNotImplemented, "", fmt.Sprintf("an object of then is stored as %s and was converted to %s by a webhook, which does not do so any more: "+
		"ask for it as %s", cv.apiVersion(from), apiVersion, cv.apiVersion(from)))
}

// reviewOf returns the body of the request.
func reviewOf(objects []*unstructured.Unstructured, uid types.UID, apiVersion, version string) ([]byte, error) {
	asked := &apiextensionsv1.ConversionRequest{UID: uid, DesiredAPIVersion: apiVersion}
	for _, u := range objects {
		asked.Objects = append(asked.Objects, runtime.RawExtension{Object: withoutRevision(u)})
	}
	return json.Marshal(&apiextensionsv1.ConversionReview{Request: asked, Response: &apiextensionsv1.ConversionResponse{},
		TypeMeta: metav1.TypeMeta{Kind: "ConversionReview", APIVersion: scheme.GroupVersionString(apiextensionsv1.GroupName, version)}})
}

// withoutRevision returns the object without its resourceVersion.
func withoutRevision(u *unstructured.Unstructured) *unstructured.Unstructured {
	meta, ok := u.Object["metadata"].(map[string]any)
	if !ok || meta["resourceVersion"] == nil {
		return u
	}
	meta = maps.Clone(meta)
	delete(meta, "resourceVersion")
	out := maps.Clone(u.Object)
	out["metadata"] = meta
	return &unstructured.Unstructured{Object: out}
}

// readReview decodes a response. As in kube-apiserver, kind and uid are not checked for v1beta1.
func readReview(body []byte, uid types.UID, version string) ([]runtime.RawExtension, error) {
	want := schema.GroupVersionKind{Group: apiextensionsv1.GroupName, Version: version, Kind: "ConversionReview"}
	if bytes.HasPrefix(bytes.TrimSpace(body), []byte("<")) {
		body = []byte(`""`) // kube-apiserver decodes HTML as a YAML string
	}
	gvk, err := scheme.InterpretKind(body)
	if err != nil {
		return nil, err
	}
	if err := checkReviewKind(gvk, want); err != nil {
		return nil, err
	}
	var got apiextensionsv1.ConversionReview
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, &got); err != nil {
		return nil, err
	}
	r := got.Response
	switch {
	case version == "v1" && gvk != want:
		return nil, fmt.Errorf("expected webhook response of %v, got %v", want.String(), gvk.String())
	case r == nil:
		return nil, errors.New("no response provided")
	case version == "v1" && r.UID != uid:
		return nil, fmt.Errorf("expected response.uid=%q, got %q", uid, r.UID)
	case r.Result.Status == metav1.StatusSuccess:
		return r.ConvertedObjects, nil
	case r.Result.Message != "":
		return nil, errors.New(r.Result.Message)
	}
	return nil, fmt.Errorf("response.result.status was '%s', not 'Success'", r.Result.Status)
}

// checkReviewKind returns an error if the kind is wrong. The kind may also be missing.
func checkReviewKind(got, want schema.GroupVersionKind) error {
	review := got.Group == want.Group && got.Kind == want.Kind && (got.Version == "v1" || got.Version == "v1beta1")
	switch {
	case got == want, got == schema.GroupVersionKind{}:
		return nil
	case review, got == schema.GroupVersionKind{Version: "v1", Kind: "Status"}:
		return fmt.Errorf("converting (%s.%s) to (%s.%s): unknown conversion", got.Version, got.Kind, want.Version, want.Kind)
	}
	return apierror.NotRegistered(got)
}

// ---- A row

// A rowConversion converts stored objects to one served version.
type rowConversion struct {
	*converter
	res    *scheme.Resource
	events *events

	mu      sync.Mutex         // guards the fields below
	pending *pendingConversion // nil if no conversion of events is in progress
}

// A flight is a conversion of events that several watches wait for. done is closed when err is
// final.
type pendingConversion struct {
	done chan struct{}
	err  error // also nil if the calling watch was canceled; another one must then retry
}

var errOtherVersion = errors.New("a stored object was to be shown in another version without having been converted")

// isComplete reports whether complete is unnecessary for stored JSON. It returns an error for
// objects of other versions, which must be converted first.
func (r *rowConversion) isComplete(stored []byte) (bool, error) {
	switch version, _ := r.res.Custom.StoredVersion(stored); version {
	case "":
		return true, nil
	case r.res.Version:
		if version == r.res.Custom.StorageVersion {
			return r.schemas.isComplete(stored)
		}
		return false, nil
	}
	return false, errOtherVersion
}

// complete updates an object that is stored in this version to the current schema.
func (r *rowConversion) complete(u *unstructured.Unstructured) error {
	return r.updateSchema(u, r.res.Version)
}

func (r *rowConversion) updateSchema(u *unstructured.Unstructured, version string) error {
	c, err := r.schemas.version(version)
	if err == nil && !isBookmark(u) {
		c.prune(u)
		defaulting.Default(u.Object, c.schema)
	}
	return err
}

// toStorage returns a converted object in the form in which it is stored.
func (r *rowConversion) toStorage(u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if isBookmark(u) {
		return u, nil
	}
	if u.GroupVersionKind().Version != r.res.Custom.StorageVersion {
		return nil, errOtherVersion
	}
	return r.schemas.toStorage(u)
}

// read converts stored objects in place, in reviews of limited size.
func (r *rowConversion) read(ctx context.Context, docs [][]byte) error {
	for from := 0; from < len(docs); {
		size, to := 0, from
		for ; to < len(docs) && (to == from || size+len(docs[to]) <= reviewBytes); to++ {
			size += len(docs[to])
		}
		if err := r.readSome(ctx, docs[from:to]); err != nil {
			return err
		}
		from = to
	}
	return nil
}

// readSome is read for one review. It does not change documents that cannot be decoded, because
// decoding them later reports the error.
func (r *rowConversion) readSome(ctx context.Context, docs [][]byte) error {
	var at []int
	var objects []*unstructured.Unstructured
	for i, doc := range docs {
		version, _ := r.res.Custom.StoredVersion(doc)
		if version == "" || version == r.res.Version {
			continue
		}
		if !r.known[version] {
			return conversionFailure("request to convert CR from an invalid group/version: %s", r.apiVersion(version))
		}
		u := &unstructured.Unstructured{}
		if kjson.UnmarshalCaseSensitivePreserveInts(doc, &u.Object) != nil || u.Object == nil {
			continue
		}
		u.SetAPIVersion(r.apiVersion(version))
		u.SetKind(r.kind.Kind)
		if err := r.updateSchema(u, version); err != nil {
			return err
		}
		at, objects = append(at, i), append(objects, u)
	}
	if len(objects) == 0 {
		return nil
	}
	converted, err := r.convert(ctx, objects, r.res.Version)
	if err != nil {
		return err
	}
	for i, u := range converted {
		if docs[at[i]], err = scheme.EncodeConverted(u); err != nil {
			return err
		}
	}
	return nil
}

// ---- Events

// watch is read for watches. Watches usually need the same events at the same time. Therefore
// only one of them calls the webhook, and the others wait for the result. If the call fails, all
// of them return the error. Otherwise each watch would have to wait for a webhook that does not
// respond.
func (r *rowConversion) watch(ctx context.Context, docs [][]byte) error {
	for {
		r.mu.Lock()
		missing := r.events.fill(r, docs)
		f := r.pending
		if len(missing) > 0 && f == nil {
			f = &pendingConversion{done: make(chan struct{})}
			r.pending = f
			r.mu.Unlock()
			return r.convertMissing(ctx, f, docs, missing)
		}
		r.mu.Unlock()
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if f.err != nil {
			return f.err
		}
	}
}

// convertMissing converts the missing events, caches them and wakes the waiting watches.
func (r *rowConversion) convertMissing(ctx context.Context, f *pendingConversion, docs [][]byte, missing []int) error {
	asked := make([][]byte, len(missing))
	for i, at := range missing {
		asked[i] = docs[at]
	}
	err := r.read(ctx, asked)
	if err == nil {
		for i, at := range missing {
			r.events.add(r, docs[at], asked[i])
			docs[at] = asked[i]
		}
	}
	r.mu.Lock()
	if ctx.Err() == nil {
		f.err = err
	}
	r.pending = nil
	r.mu.Unlock()
	close(f.done)
	return err
}

// events caches the latest converted events. With a hundred watches, the webhook is still called
// only once.
type events struct {
	mu        sync.Mutex // guards the fields below
	documents map[eventKey][]byte
	order     []eventKey // sorted, the oldest first
	bytes     int        // total size of documents
}

// An eventKey identifies the stored object by the digest and the target by the row.
type eventKey struct {
	row    *rowConversion
	digest [sha256.Size]byte
}

func newEvents() *events { return &events{documents: map[eventKey][]byte{}} }

// fill replaces the cached documents and returns the indexes of the others that need a
// conversion.
func (e *events) fill(row *rowConversion, docs [][]byte) (missing []int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, doc := range docs {
		if version, _ := row.res.Custom.StoredVersion(doc); version == "" || version == row.res.Version {
			continue
		}
		if known, ok := e.documents[eventKey{row, sha256.Sum256(doc)}]; ok {
			docs[i] = known
			continue
		}
		missing = append(missing, i)
	}
	return missing
}

func (e *events) add(row *rowConversion, doc, converted []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := eventKey{row, sha256.Sum256(doc)}
	if _, ok := e.documents[key]; ok || len(converted) > eventBytes/8 {
		return
	}
	e.documents[key], e.order, e.bytes = converted, append(e.order, key), e.bytes+len(converted)
	for len(e.order) > eventsKept || e.bytes > eventBytes {
		oldest := e.order[0]
		e.bytes -= len(e.documents[oldest])
		delete(e.documents, oldest)
		e.order = e.order[1:]
	}
}
