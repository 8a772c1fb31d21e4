package policy

// This file computes the inputs of the policies for a write, such as the objects in each version,
// the request, the namespace, the authorizer and the params. Each input is computed when it is
// first used, and is shared by all policies.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/cel-go/common/types/ref"
	"github.com/tidwall/gjson"
	admissionreview "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"

	"apilet/internal/cel/matching"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// A Write describes a write for the policies.
type Write struct {
	Resource    *scheme.Resource // the type, at the version of the request
	Subresource string           // "" for the object itself
	Operation   string           // CREATE, UPDATE, DELETE or CONNECT
	Name        string           // "" if the name is not generated yet
	// Namespace is the namespace of the request, or the name of the object if it is a Namespace.
	Namespace   string
	DryRun      bool             // nothing is stored
	Options     runtime.Object   // CreateOptions, UpdateOptions or DeleteOptions; nil for CONNECT
	Object, Old scheme.Object    // in the storage version; may be nil
	Request     *request.Request // the request for the write
}

// forbidden returns a 403 for the write.
func (w *Write) forbidden(err error) *apierrors.StatusError {
	name := w.Name
	if name == "" {
		name = "Unknown"
		if w.Object != nil {
			name = cmp.Or(w.Object.GetName(), w.Object.GetGenerateName(), name)
		}
	}
	return apierrors.NewForbidden(w.Resource.GroupResource(), name, err)
}

// writeContext contains the inputs of the policies for a write. It is not safe for concurrent use.
type writeContext struct {
	p      *Policies
	w      *Write
	target matching.Target

	equivalents                              *[]*scheme.Resource // nil until computed
	documents                                map[*scheme.Resource]*document
	namespace                                *store.Record  // nil until read
	namespaceValue                           map[string]any // the value of namespaceObject; nil if not computed yet
	authorizerValue, resourceAuthorizerValue ref.Val        // the authorizers; nil until created
}

// A document contains the objects and the request in a given version.
type document struct {
	row         *scheme.Resource
	object, old any            // CEL values: map[string]any or nil
	request     map[string]any // nil until computed
}

func newWriteContext(p *Policies, w *Write) *writeContext {
	return &writeContext{p: p, w: w, documents: map[*scheme.Resource]*document{}, target: matching.Target{Group: w.Resource.Group, Version: w.Resource.Version,
		Resource: w.Resource.Plural, Subresource: w.Subresource, Operation: w.Operation, Namespace: w.Namespace}}
}

func (h *writeContext) equivalentRows() []*scheme.Resource {
	if h.equivalents == nil {
		rows := matching.Equivalents(h.p.Types, h.w.Resource, h.w.Subresource)
		h.equivalents = &rows
	}
	return *h.equivalents
}

// ---- Objects

// document returns the objects in the version of row.
func (h *writeContext) document(row *scheme.Resource) (*document, error) {
	if d := h.documents[row]; d != nil {
		return d, nil
	}
	d := &document{row: row}
	var errs [2]error
	d.object, errs[0] = h.documentsOf(row, h.w.Object)
	d.old, errs[1] = h.documentsOf(row, h.w.Old)
	h.documents[row] = d
	return d, errors.Join(errs[:]...)
}

func (h *writeContext) documentsOf(row *scheme.Resource, obj scheme.Object) (any, error) {
	if obj == nil {
		return nil, nil
	}
	want := row.ExpectedBody(h.w.Subresource)
	if u, ok := obj.(*unstructured.Unstructured); ok {
		if row == h.w.Resource {
			return u.Object, nil
		}
		moved, err := h.p.Convert(row, u.DeepCopy())
		if err != nil {
			return nil, err
		}
		return moved.(*unstructured.Unstructured).Object, nil
	}
	if want.Kind == row.Kind {
		obj = row.ConvertOut(obj)
	}
	members, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, err
	}
	members["apiVersion"], members["kind"] = want.APIVersion(), want.Kind
	return members, nil
}

// request returns the value of the CEL variable request.
func (h *writeContext) request(d *document) map[string]any {
	if d.request == nil {
		d.request = h.requestAs(d.row, d.row)
	}
	return d.request
}

// requestAs returns the request with the kind of kindOf and the resource of row.
func (h *writeContext) requestAs(kindOf, row *scheme.Resource) map[string]any {
	w, asked := h.w, h.w.Resource.ExpectedBody(h.w.Subresource)
	kind := kindOf.ExpectedBody(w.Subresource)
	members, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&admissionreview.AdmissionRequest{
		Kind:               metav1.GroupVersionKind{Group: kind.Group, Version: kind.Version, Kind: kind.Kind},
		Resource:           metav1.GroupVersionResource{Group: row.Group, Version: row.Version, Resource: row.Plural},
		SubResource:        w.Subresource,
		RequestKind:        &metav1.GroupVersionKind{Group: asked.Group, Version: asked.Version, Kind: asked.Kind},
		RequestResource:    &metav1.GroupVersionResource{Group: w.Resource.Group, Version: w.Resource.Version, Resource: w.Resource.Plural},
		RequestSubResource: w.Subresource, Name: w.Name, Namespace: w.Namespace, Operation: admissionreview.Operation(w.Operation),
		UserInfo: w.Request.User.UserInfo(), DryRun: &w.DryRun, Options: runtime.RawExtension{Object: w.Options},
	})
	if err != nil { // impossible, because these are our own Go types
		return map[string]any{}
	}
	return members
}

// ---- The namespace

// record returns the namespace of the write, or nil if it does not have one.
func (h *writeContext) record() (*store.Record, error) {
	if h.namespace != nil || h.w.Namespace == "" {
		return h.namespace, nil
	}
	rec, err := h.p.Store.Get(h.p.Types.Lookup("", "v1", "namespaces").Key("", h.w.Namespace))
	if errors.Is(err, store.ErrNotFound) {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, h.w.Namespace)
	}
	if err != nil {
		return nil, err
	}
	h.namespace = &rec
	return h.namespace, nil
}

// inNamespace reports whether the labels of the object's namespace match the selector. Objects
// without a namespace always match.
func (h *writeContext) inNamespace(selector labels.Selector) (bool, error) {
	if selector.Empty() || h.w.Namespace == "" {
		return true, nil
	}
	if h.target.IsNamespace() && h.w.Subresource == "" && h.w.Object != nil {
		return selector.Matches(labels.Set(h.w.Object.GetLabels())), nil
	}
	rec, err := h.record()
	if err != nil {
		return false, err
	}
	return selector.Matches(labelsOf(rec)), nil
}

func labelsOf(rec *store.Record) labels.Set {
	set := labels.Set{}
	for key, value := range gjson.GetBytes(rec.JSON, "metadata.labels").Map() {
		set[key] = value.String()
	}
	return set
}

// namespaceMembers are the fields of metadata that namespaceObject contains.
var namespaceMembers = []string{"name", "generateName", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp",
	"deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations", "finalizers"}

// hasNamespace reports whether namespaceObject is not null. A Namespace is cluster-scoped,
// although its requests have a namespace.
func (h *writeContext) hasNamespace() bool { return h.w.Namespace != "" && !h.target.IsNamespace() }

// namespaceObject returns the value of the CEL variable namespaceObject.
func (h *writeContext) namespaceObject() (any, error) {
	if !h.hasNamespace() {
		return nil, nil
	}
	if h.namespaceValue != nil {
		return h.namespaceValue, nil
	}
	rec, err := h.record()
	if err != nil {
		return nil, err
	}
	var stored struct {
		Metadata map[string]any `json:"metadata"`
		Spec     map[string]any `json:"spec"`
		Status   map[string]any `json:"status"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(rec.JSON, &stored); err != nil {
		return nil, err
	}
	metadata := map[string]any{}
	for _, name := range namespaceMembers {
		if value, ok := stored.Metadata[name]; ok {
			metadata[name] = value
		}
	}
	metadata["resourceVersion"] = strconv.FormatInt(rec.Rev, 10)
	h.namespaceValue = map[string]any{"metadata": metadata, "spec": orEmpty(stored.Spec), "status": orEmpty(stored.Status)}
	return h.namespaceValue, nil
}

func orEmpty(members map[string]any) map[string]any {
	if members == nil {
		return map[string]any{}
	}
	return members
}

// ---- The authorizer

func (h *writeContext) authorizer() ref.Val {
	if h.authorizerValue == nil {
		h.authorizerValue = h.p.Authorize.Authorizer(h.w.Request.User)
	}
	return h.authorizerValue
}

func (h *writeContext) resourceAuthorizer() ref.Val {
	if h.resourceAuthorizerValue == nil {
		h.resourceAuthorizerValue = h.p.Authorize.ResourceAuthorizer(h.w.Request.User, &h.target, h.w.Name)
	}
	return h.resourceAuthorizerValue
}

// ---- Params

// param is an object used to evaluate a policy. A nil value means that the policy has no params.
type param struct {
	name  string // namespace/name
	value any
}

// params returns the objects that a binding refers to. The result is empty if none exists. If the
// policy has no paramKind or the binding has no paramRef, the result is one param whose value is
// null.
func (h *writeContext) params(ctx context.Context, policy *policy, b *binding) ([]param, error) {
	ref := b.params
	if policy.paramKind == nil || ref == nil {
		return []param{{}}, nil
	}
	row, err := h.paramRow(policy)
	if err != nil {
		return nil, err
	}
	namespace := ""
	if row.Namespaced {
		if namespace = cmp.Or(ref.Namespace, h.w.Namespace); namespace == "" {
			return nil, errors.New("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources")
		}
	} else if ref.Namespace != "" {
		return nil, errors.New("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
	}
	found, err := h.find(ctx, row, namespace, ref)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 && ref.ParameterNotFoundAction != nil && *ref.ParameterNotFoundAction == admissionv1.DenyAction {
		return nil, errors.New("no params found for policy binding with `Deny` parameterNotFoundAction")
	}
	return found, nil
}

// errUnknownParams returns the error for a paramKind that does not exist.
func errUnknownParams(gvk schema.GroupVersionKind) error {
	return fmt.Errorf("failed to find resource referenced by paramKind: '%v'", gvk)
}

// paramRow returns the type specified by the policy's paramKind, or nil if there is none.
func (h *writeContext) paramRow(policy *policy) (*scheme.Resource, error) {
	if policy.paramKind == nil {
		return nil, nil
	}
	gvk := schema.FromAPIVersionAndKind(policy.paramKind.APIVersion, policy.paramKind.Kind)
	if row := rowOfKind(h.p.Types, gvk); row != nil {
		return row, nil
	}
	return nil, errUnknownParams(gvk)
}

// rowOfKind returns the stored resource of a kind, or nil.
func rowOfKind(types *scheme.Registry, gvk schema.GroupVersionKind) *scheme.Resource {
	for _, row := range types.All() {
		if row.Kind == gvk.Kind && row.Group == gvk.Group && row.Version == gvk.Version && !row.Virtual {
			return row
		}
	}
	return nil
}

func (h *writeContext) find(ctx context.Context, row *scheme.Resource, namespace string, ref *admissionv1.ParamRef) (found []param, err error) {
	if ref.Name != "" {
		rec, err := h.p.Store.GetNewest(ctx, row.Key(namespace, ref.Name))
		if errors.Is(err, store.ErrNotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		value, err := paramValue(row, &rec)
		return []param{{namespace + "/" + ref.Name, value}}, err
	}
	selector, err := metav1.LabelSelectorAsSelector(ref.Selector)
	if err != nil {
		return nil, err
	}
	prefix := row.KeyPrefix(namespace)
	for rec, err := range h.p.Store.All(store.Span{Prefix: prefix}) {
		if err != nil {
			return found, err
		}
		if !selector.Matches(labelsOf(rec)) {
			continue
		}
		value, err := paramValue(row, rec)
		if err := errors.Join(err, ctx.Err()); err != nil {
			return found, err
		}
		found = append(found, param{namespace + "/" + strings.TrimPrefix(rec.Key, prefix), value})
	}
	return found, nil
}

func paramValue(row *scheme.Resource, rec *store.Record) (any, error) {
	served, err := row.Served(rec.JSON)
	if err != nil {
		return nil, err
	}
	members := map[string]any{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(served, &members); err != nil {
		return nil, err
	}
	members["apiVersion"], members["kind"] = row.APIVersion(), row.Kind
	if metadata, ok := members["metadata"].(map[string]any); ok {
		// The stored object does not contain its resourceVersion.
		metadata["resourceVersion"] = strconv.FormatInt(rec.Rev, 10)
	}
	return members, nil
}
