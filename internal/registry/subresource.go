package registry

// This file implements the subresources that need code of their own. /scale represents the replica
// count of a workload as an object of another kind. pods/binding assigns a Pod to a node once.
// pods/eviction deletes a Pod if its disruption budget allows it. Package strategy contains the
// rules for subresources that are only a part of their object.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"apilet/internal/apierror"
	"apilet/internal/fieldmanager"
	"apilet/internal/kinds/printers"
	"apilet/internal/kinds/validation"
	"apilet/internal/patch"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// ---- /scale ----

// scaleOf returns the replica count of a workload. If set is not nil, scaleOf changes the count
// first.
func scaleOf(res *scheme.Resource, obj scheme.Object, set *int32) (scheme.Scalable, error) {
	switch o := obj.(type) {
	case *unstructured.Unstructured:
		return res.Custom.Scale(o, set)
	case *appsv1.Deployment:
		return scaled(&o.Spec.Replicas, set, o.Status.Replicas, o.Spec.Selector)
	case *appsv1.ReplicaSet:
		return scaled(&o.Spec.Replicas, set, o.Status.Replicas, o.Spec.Selector)
	case *appsv1.StatefulSet:
		return scaled(&o.Spec.Replicas, set, o.Status.Replicas, o.Spec.Selector)
	case *corev1.ReplicationController:
		return scaled(&o.Spec.Replicas, set, o.Status.Replicas, metav1.SetAsLabelSelector(o.Spec.Selector))
	}
	return scheme.Scalable{}, fmt.Errorf("%T does not scale", obj)
}

func scaled(replicas **int32, set *int32, status int32, selector *metav1.LabelSelector) (scheme.Scalable, error) {
	if set != nil {
		*replicas = set
	}
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return scheme.Scalable{}, err
	}
	return scheme.Scalable{Replicas: *replicas, Status: status, Selector: parsed.String()}, nil
}

// noReplicas is used as the replica count while a patch is applied to a custom resource that does
// not have a count. It differs from 0, which is a valid count.
const noReplicas = math.MinInt32

// scaleDocument returns the Scale of autoscaling/v1 for a workload.
func scaleDocument(res *scheme.Resource, obj scheme.Object) (*autoscalingv1.Scale, error) {
	s, err := scaleOf(res, obj, nil)
	if err != nil {
		return nil, err
	}
	scale := &autoscalingv1.Scale{
		TypeMeta: metav1.TypeMeta{Kind: "Scale", APIVersion: "autoscaling/v1"},
		ObjectMeta: metav1.ObjectMeta{Name: obj.GetName(), Namespace: obj.GetNamespace(), UID: obj.GetUID(),
			ResourceVersion: obj.GetResourceVersion(), CreationTimestamp: obj.GetCreationTimestamp()},
		Status: autoscalingv1.ScaleStatus{Replicas: s.Status, Selector: s.Selector},
	}
	switch {
	case s.Replicas != nil:
		scale.Spec.Replicas = *s.Replicas
	case s.Path != "":
		scale.Spec.Replicas = noReplicas
	}
	return scale, nil
}

// ServeScale handles GET, PUT and PATCH of /scale.
func ServeScale(wr *Writer, w http.ResponseWriter, r *http.Request, clientReq *request.Request, res *scheme.Resource) error {
	v, err := response.NewView(r, clientReq, scaleRow(res))
	if err != nil {
		return err
	}
	t := targetOf(clientReq, res)
	req, err := readScale(wr, w, r, clientReq, res)
	if err != nil {
		return err
	}
	// the managedFields of the workload have already been updated
	t.Subresource, req.opts.applied = "", true
	ctx := r.Context()
	rec, _, err := wr.Modify(ctx, t, req.opts, func(old scheme.Object, _ *store.Record) (scheme.Object, error) { return req.change(ctx, old) })
	if err != nil {
		return err
	}
	return respondScale(w, r, res, v, &rec)
}

// ShowScale handles a GET of the scale of the object that find returns for a key.
func ShowScale(find func(key string) (store.Record, error), w http.ResponseWriter, r *http.Request, clientReq *request.Request, res *scheme.Resource) error {
	v, err := response.NewView(r, clientReq, scaleRow(res))
	if err != nil {
		return err
	}
	t := targetOf(clientReq, res)
	rec, err := find(res.Key(t.Namespace, t.Name))
	if err != nil {
		return response.StoreError(err, res, t.Name)
	}
	return respondScale(w, r, res, v, &rec)
}

// scaleRow returns the type of a Scale. It is not stored, but responses treat it like stored types.
// The columns of a custom resource's Scale have different descriptions.
func scaleRow(of *scheme.Resource) *scheme.Resource {
	row := scheme.Row[autoscalingv1.Scale](scheme.Namespaced, "scales", "")
	if of.GoType == nil {
		row.Custom = &scheme.CustomStrategy{Columns: func() []metav1.TableColumnDefinition { return printers.CustomScaleColumns },
			Cells: func(obj scheme.Object, now time.Time) []any {
				return printers.ScaleCells(obj.(*autoscalingv1.Scale), now)
			}}
	}
	return scheme.GroupVersion(autoscalingv1.GroupName, "v1", row)[0]
}

func respondScale(w http.ResponseWriter, r *http.Request, res *scheme.Resource, v *response.View, rec *store.Record) error {
	if err := response.Convert(r.Context(), res, rec); err != nil {
		return err
	}
	obj, err := res.DecodeStored(rec.JSON)
	if err != nil {
		_, name := scheme.NamespacedName(rec.Key)
		return response.StoreError(err, res, name)
	}
	scale, err := scaleDocument(res, obj)
	if err != nil {
		return err
	}
	if scale.Spec.Replicas == noReplicas {
		s, _ := scaleOf(res, obj, nil)
		return apierrors.NewInternalError(fmt.Errorf("the spec replicas field %q does not exist", s.Path))
	}
	scale.TypeMeta = metav1.TypeMeta{}
	body, err := json.Marshal(scale)
	if err != nil {
		return err
	}
	return v.Respond(w, r, http.StatusOK, &store.Record{Rev: rec.Rev, JSON: body})
}

// A scaleRequest contains the body and the options of a PUT or PATCH request.
type scaleRequest struct {
	wr          *Writer
	res         *scheme.Resource
	opts        Options
	contentType string
	kind        patch.Kind // empty for a PUT
	body        []byte
	sent        *autoscalingv1.Scale // the body of a PUT, or nil for a PATCH
}

// readScale reads a request that changes /scale.
func readScale(wr *Writer, w http.ResponseWriter, r *http.Request, clientReq *request.Request, res *scheme.Resource) (*scaleRequest, error) {
	body, err := readBody(w, r)
	if err != nil {
		return nil, err
	}
	req := &scaleRequest{wr: wr, res: res, body: body, contentType: r.Header.Get("Content-Type")}
	optionsKind := "UpdateOptions"
	if r.Method == http.MethodPatch {
		optionsKind = "PatchOptions"
		if req.kind, err = patch.KindOf(req.contentType, res.GoType != nil); err != nil {
			return nil, err
		}
	}
	if req.opts, err = parseWriteOptions(r, clientReq, optionsKind, types.PatchType(req.kind)); err != nil {
		return nil, err
	}
	if req.kind != "" {
		if err := patch.CheckSyntax(req.kind, req.body); err != nil {
			return nil, err
		}
		notePatch(clientReq, req.body)
		return req, nil
	}
	if req.sent, err = req.decode(r.Context()); err != nil {
		return nil, err
	}
	t := targetOf(clientReq, res)
	return req, t.check(req.sent)
}

// change applies the request to the current Scale and writes the result to the workload. The owners
// of the Scale's fields are stored in the managedFields of the workload.
func (req *scaleRequest) change(ctx context.Context, old scheme.Object) (scheme.Object, error) {
	before, err := scaleDocument(req.res, old)
	if err != nil {
		return nil, err
	}
	owners := fieldmanager.NewScaleHandler(old, schema.GroupVersion{Group: req.res.Group, Version: req.res.Version}, req.countPaths(old))
	if before.ManagedFields, err = owners.ToSubresource(); err != nil {
		return nil, err
	}
	after, err := req.after(ctx, before)
	if err != nil {
		return nil, err
	}
	if after, err = req.admitted(ctx, after, before); err != nil {
		return nil, err
	}
	obj, err := applyScale(req.res, old, after)
	if err == nil {
		err = req.validated(ctx, obj, old)
	}
	if err != nil || !req.wr.ManagedFields {
		return obj, err
	}
	entries, err := owners.ToParent(after.ManagedFields)
	obj.SetManagedFields(entries)
	return obj, err
}

// admitted calls the mutating plug-ins for the Scale.
func (req *scaleRequest) admitted(ctx context.Context, after, before *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
	a := req.opts.change(req.res, "scale", after, nil)
	if !req.wr.Admission.Handles(a) {
		return after, nil
	}
	shown := before.DeepCopy()
	shown.Spec.Replicas = max(shown.Spec.Replicas, 0) // noReplicas is internal
	a.Old = shown
	obj, err := req.wr.Admission.Admit(ctx, a)
	if err != nil {
		return nil, err
	}
	return obj.(*autoscalingv1.Scale), nil
}

// validated calls the validating plug-ins with the Scales that a GET would return before and after
// the change.
func (req *scaleRequest) validated(ctx context.Context, obj, old scheme.Object) error {
	a := req.opts.change(req.res, "scale", nil, nil)
	if !req.wr.Admission.Handles(a) {
		return nil
	}
	after, err := scaleDocument(req.res, obj)
	if err != nil {
		return err
	}
	before, err := scaleDocument(req.res, old)
	if err != nil {
		return err
	}
	before.Spec.Replicas = max(before.Spec.Replicas, 0) // noReplicas is internal
	a.Object, a.Old = after, before
	return req.wr.Admission.Validate(ctx, a)
}

// countPaths returns the path of the replica count for each served version. A version without
// /scale uses the path of this version. It cannot own the replica count, but other fields must be
// preserved.
func (req *scaleRequest) countPaths(obj scheme.Object) map[string][]string {
	own := countPath(req.res, obj)
	paths := map[string][]string{req.res.APIVersion(): own}
	if req.res.Custom == nil {
		return paths
	}
	for _, other := range req.wr.Types.All() {
		switch {
		case other == req.res || other.KeyPrefix("") != req.res.KeyPrefix(""):
		case other.Subresource("scale") == nil:
			paths[other.APIVersion()] = own
		default:
			paths[other.APIVersion()] = countPath(other, obj)
		}
	}
	return paths
}

// countPath returns the path of the replica count.
func countPath(res *scheme.Resource, obj scheme.Object) []string {
	if s, err := scaleOf(res, obj, nil); err == nil && s.Path != "" {
		return strings.Split(strings.TrimPrefix(s.Path, "."), ".")
	}
	return []string{"spec", "replicas"}
}

// after returns the new Scale with updated managedFields.
func (req *scaleRequest) after(ctx context.Context, before *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
	if req.kind == patch.ApplyPatch {
		merged, _, err := req.fieldManager().Apply(before, req.body, fieldmanager.Applier{Manager: req.opts.Manager, Subresource: "scale", Force: req.opts.force})
		if err != nil {
			return nil, err
		}
		return merged.(*autoscalingv1.Scale), nil
	}
	after := req.sent.DeepCopy()
	if req.kind != "" {
		var err error
		if after, err = req.patched(ctx, before, &Target{Name: before.Name, Namespace: before.Namespace}); err != nil {
			return nil, err
		}
	}
	return after, req.fieldManager().Update(before.DeepCopy(), after, req.opts.Manager, "scale")
}

// decode decodes the body of a PUT. For custom resources kube-apiserver does not report the details
// of an invalid body.
func (req *scaleRequest) decode(ctx context.Context) (*autoscalingv1.Scale, error) {
	if req.res.Custom != nil {
		if _, _, err := req.res.Decode(req.body, req.contentType, "scale"); apierrors.IsBadRequest(err) {
			return nil, apierrors.NewBadRequest(`no kind is registered for the type v1.Scale in scheme "pkg/runtime/scheme.go:111"`)
		}
	}
	obj, err := decodeBody(ctx, req.res, "scale", req.body, req.contentType, req.opts)
	if err != nil {
		return nil, err
	}
	noteBody(req.opts.rec, req.res, "scale", obj)
	return obj.(*autoscalingv1.Scale), nil
}

// patched returns the result of a patch of the current Scale.
func (req *scaleRequest) patched(ctx context.Context, before *autoscalingv1.Scale, t *Target) (*autoscalingv1.Scale, error) {
	current, err := json.Marshal(before)
	if err != nil {
		return nil, err
	}
	document, strict, err := patch.Apply(req.kind, current, req.body, autoscalingv1.Scale{})
	if err != nil {
		return nil, err
	}
	row := scaleRow(req.res)
	decode := decodePatched
	if req.res.Custom != nil { // kube-apiserver does not require a version here either
		decode = func(row *scheme.Resource, document []byte) (scheme.Object, []error, error) {
			return row.Decode(document, "application/json", "")
		}
	}
	obj, unknown, err := decode(row, document)
	if err != nil {
		return nil, patch.Invalid(req.kind, req.body, document, err)
	}
	p := patchRequest{target: Target{Resource: row}, opts: req.opts, kind: req.kind, body: req.body}
	if err := p.checkStrictness(ctx, document, append(strict, unknown...)); err != nil {
		return nil, err
	}
	if obj == nil {
		return nil, t.nameless()
	}
	return obj.(*autoscalingv1.Scale), nil
}

// fieldManager returns the manager of the fields of all Scales.
func (req *scaleRequest) fieldManager() *fieldmanager.Manager {
	known, ok := req.wr.managers.Load("scale")
	if !ok {
		known, _ = req.wr.managers.LoadOrStore("scale", &fieldmanager.Manager{Counters: &req.wr.FieldTracking, Kind: autoscalingv1.SchemeGroupVersion.WithKind("Scale"),
			GoType: reflect.TypeFor[autoscalingv1.Scale]()})
	}
	return known.(*fieldmanager.Manager)
}

// applyScale returns a copy of the workload with the replica count of the Scale.
func applyScale(res *scheme.Resource, old scheme.Object, scale *autoscalingv1.Scale) (scheme.Object, error) {
	if res.Custom != nil && scale.Spec.Replicas == noReplicas {
		s, _ := scaleOf(res, old, nil)
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the spec replicas field %q cannot be empty", s.Path))
	}
	if res.Custom == nil && scale.Spec.Replicas < 0 {
		at := field.NewPath("spec", "replicas")
		return nil, apierror.Invalid(schema.GroupKind{Group: "autoscaling", Kind: "Scale"}, scale.Name, field.ErrorList{
			field.Invalid(at, scale.Spec.Replicas, "must be greater than or equal to 0").WithOrigin("minimum")})
	}
	obj := old.DeepCopyObject().(scheme.Object)
	if scale.ResourceVersion != "" {
		obj.SetResourceVersion(scale.ResourceVersion)
	}
	if scale.UID != "" && scale.UID != old.GetUID() {
		t := Target{Resource: res, Namespace: old.GetNamespace(), Name: old.GetName()}
		return nil, t.otherUID(scale.UID, old.GetUID())
	}
	_, err := scaleOf(res, obj, &scale.Spec.Replicas)
	return obj, err
}

// ---- pods/binding and pods/eviction ----

// Bind handles a POST of pods/NAME/binding, and of a Binding in the Pod's namespace. A scheduler
// sends these requests after it has chosen a node.
func Bind(wr *Writer, w http.ResponseWriter, r *http.Request, clientReq *request.Request, res *scheme.Resource) error {
	t := targetOf(clientReq, res)
	sent, opts, err := decodeSub(w, r, clientReq, res, t.Subresource)
	if err != nil {
		return err
	}
	binding := sent.(*corev1.Binding)
	if t.Subresource == "" {
		t.Resource, t.Name = wr.Types.Lookup("", "v1", "pods"), binding.Name
	}
	if binding.Name != t.Name {
		return apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	write := opts.creation(res, t.Subresource, binding)
	if write.Object, err = wr.Admission.Admit(r.Context(), write); err != nil {
		return err
	}
	binding = write.Object.(*corev1.Binding)
	if err = checkTarget(&binding.Target); err != nil {
		return err
	}
	if err = wr.Admission.Validate(r.Context(), write); err != nil {
		return err
	}
	t.Subresource, opts.applied = "binding", true // a binding does not own fields
	_, _, err = wr.Modify(r.Context(), t, opts, func(old scheme.Object, _ *store.Record) (scheme.Object, error) {
		if binding.UID != "" && binding.UID != old.GetUID() {
			return nil, t.otherUID(binding.UID, old.GetUID())
		}
		return assignNode(old.DeepCopyObject().(*corev1.Pod), binding)
	})
	if err != nil {
		return err
	}
	return respondSuccess(w, r, clientReq)
}

// checkTarget validates the target of a binding. The status code of the error is 500, as in
// kube-apiserver.
func checkTarget(target *corev1.ObjectReference) error {
	var c validation.Checker
	p := field.NewPath("target")
	if target.Kind != "" && target.Kind != "Node" {
		c.Unsupported(p, "kind", target.Kind, []string{"Node", "<empty>"})
	}
	c.Need(p, "name", target.Name != "", "")
	if len(c.Errs) == 0 {
		return nil
	}
	return apierror.InternalWithoutReason(c.Errs.ToAggregate().Error())
}

func respondSuccess(w http.ResponseWriter, r *http.Request, clientReq *request.Request) error {
	status := &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess, Code: http.StatusCreated}
	clientReq.ResponseStatus = status
	return response.WriteObject(w, r, http.StatusCreated, status)
}

// decodeSub reads the body of a POST to a subresource.
func decodeSub(w http.ResponseWriter, r *http.Request, clientReq *request.Request, res *scheme.Resource, sub string) (scheme.Object, Options, error) {
	if _, err := response.NewView(r, clientReq, res); err != nil {
		return nil, Options{}, err
	}
	body, err := readBody(w, r)
	if err != nil {
		return nil, Options{}, err
	}
	opts, err := parseWriteOptions(r, clientReq, "CreateOptions", "")
	if err != nil {
		return nil, opts, err
	}
	obj, err := decodeBody(r.Context(), res, sub, body, r.Header.Get("Content-Type"), opts)
	if err == nil {
		noteBody(clientReq, res, sub, obj)
		err = matchNamespace(obj, res.Scope(clientReq.Info.Namespace))
	}
	return obj, opts, err
}

// assignNode assigns a Pod to its node. It returns a conflict if the Pod already has a node.
func assignNode(pod *corev1.Pod, binding *corev1.Binding) (scheme.Object, error) {
	conflict := func(format string, args ...any) error {
		return apierrors.NewConflict(schema.GroupResource{Resource: "pods/binding"}, pod.Name, fmt.Errorf(format, args...))
	}
	switch {
	case pod.DeletionTimestamp != nil:
		return nil, conflict("pod %s is being deleted, cannot be assigned to a host", pod.Name)
	case pod.Spec.NodeName != "":
		return nil, conflict("pod %v is already assigned to node %q", pod.Name, pod.Spec.NodeName)
	case len(pod.Spec.SchedulingGates) != 0:
		return nil, conflict("pod %v has non-empty .spec.schedulingGates", pod.Name)
	}
	pod.Spec.NodeName, pod.Status.NominatedNodeName = binding.Target.Name, ""
	pod.Annotations = withEntries(pod.Annotations, binding.Annotations)
	pod.Labels = withEntries(pod.Labels, binding.Labels)
	now := metav1.Now().Rfc3339Copy()
	setPodCondition(&pod.Status, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: now})
	return pod, nil
}

// withEntries returns the map with the entries of more added.
func withEntries(to, more map[string]string) map[string]string {
	if to == nil && len(more) > 0 {
		return maps.Clone(more)
	}
	maps.Copy(to, more)
	return to
}

func setPodCondition(status *corev1.PodStatus, condition corev1.PodCondition) {
	for i := range status.Conditions {
		if status.Conditions[i].Type == condition.Type {
			if status.Conditions[i].Status == condition.Status {
				condition.LastTransitionTime = status.Conditions[i].LastTransitionTime
			}
			status.Conditions[i] = condition
			return
		}
	}
	status.Conditions = append(status.Conditions, condition)
}

// Evict handles a POST of pods/NAME/eviction, which is a DELETE that checks the Pod's disruption
// budget. It reads the newest versions of the Pod and of the budgets.
func Evict(wr *Writer, w http.ResponseWriter, r *http.Request, clientReq *request.Request, res *scheme.Resource) error {
	sent, opts, err := decodeSub(w, r, clientReq, res, "eviction")
	if err != nil {
		return err
	}
	eviction, t := sent.(*policyv1.Eviction), targetOf(clientReq, res)
	if err := checkEviction(eviction, t.Name); err != nil {
		return err
	}
	if _, err := wr.Store.Current(r.Context()); err != nil {
		return err
	}
	if sent, err = wr.Admission.Decide(r.Context(), opts.creation(res, "eviction", eviction)); err != nil {
		return err
	}
	eviction = sent.(*policyv1.Eviction)
	options := &metav1.DeleteOptions{}
	if eviction.DeleteOptions != nil {
		options = eviction.DeleteOptions
	}
	if opts.dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	for {
		err := wr.evict(r.Context(), t, options)
		if errors.Is(err, errPodChanged) && r.Context().Err() == nil {
			continue
		}
		if err != nil {
			return err
		}
		return respondSuccess(w, r, clientReq)
	}
}

// checkEviction compares the body of an eviction with its URL. Unlike a DELETE, an eviction may not
// ask for the removal of an unreadable object.
func checkEviction(eviction *policyv1.Eviction, name string) error {
	if eviction.Name != name {
		return apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	options := eviction.DeleteOptions
	if options == nil || options.IgnoreStoreReadErrorWithClusterBreakingPotential == nil || !*options.IgnoreStoreReadErrorWithClusterBreakingPotential {
		return nil
	}
	return apierror.Invalid(schema.GroupKind{Group: "policy", Kind: "Eviction"}, name, field.ErrorList{field.Invalid(
		field.NewPath("deleteOptions", "ignoreStoreReadErrorWithClusterBreakingPotential"), true, "can not be set for pod eviction, try after removing the option")})
}

// errPodChanged is returned if a Pod could be evicted without using a disruption, but has been
// modified. The eviction must be retried because the Pod may now need a disruption.
var errPodChanged = errors.New("the pod has changed")

// evict makes one attempt: it checks the budget, sets the condition and deletes the Pod. If a Pod
// can be evicted without using a disruption, it must not have been modified since it was checked.
func (wr *Writer) evict(ctx context.Context, t Target, options *metav1.DeleteOptions) error {
	rec, err := wr.Store.Get(t.Resource.Key(t.Namespace, t.Name))
	if err != nil {
		return response.StoreError(err, t.Resource, t.Name)
	}
	obj, err := wr.Read(t.Resource, &rec)
	if err != nil {
		return response.StoreError(err, t.Resource, t.Name)
	}
	// before a disruption is used
	if errs := metavalidation.ValidateDeleteOptions(options); len(errs) > 0 {
		return apierror.Invalid(schema.GroupKind{Group: metav1.GroupName, Kind: "DeleteOptions"}, "", errs)
	}
	pod, dryRun := obj.(*corev1.Pod), len(options.DryRun) > 0
	guarded := pod.Status.Phase == corev1.PodPending && pod.DeletionTimestamp == nil
	if !needsNoBudget(pod) {
		taken, err := takeDisruption(ctx, wr, pod, dryRun)
		if err != nil {
			return err
		}
		guarded = !taken
	}
	only := options.DeepCopy()
	if only.Preconditions == nil {
		only.Preconditions = &metav1.Preconditions{}
	}
	guarded = guarded && only.Preconditions.ResourceVersion == nil
	if guarded {
		only.Preconditions.ResourceVersion = revision(rec.Rev)
	}
	if !dryRun {
		if err = wr.markEvicted(ctx, t, only.Preconditions); err != nil {
			return err
		}
	}
	_, _, err = wr.Delete(ctx, t.Resource, t.Namespace, t.Name, only)
	if guarded && apierrors.IsConflict(err) {
		now, gone := wr.Store.Get(t.Resource.Key(t.Namespace, t.Name))
		if gone == nil && now.Rev != rec.Rev {
			return errPodChanged
		}
	}
	return err
}

func revision(rev int64) *string {
	text := strconv.FormatInt(rev, 10)
	return &text
}

// needsNoBudget reports whether a Pod can be evicted without a budget, because it does not count as
// healthy.
func needsNoBudget(pod *corev1.Pod) bool {
	switch pod.Status.Phase {
	case corev1.PodSucceeded, corev1.PodFailed, corev1.PodPending:
		return true
	}
	return pod.DeletionTimestamp != nil
}

// markEvicted sets the condition that explains the disruption of the Pod to controllers. It
// bypasses admission and does not set a field owner. If a precondition does not hold, markEvicted
// does nothing and the deletion will fail. A precondition on the Pod's version is updated to the
// version with the condition.
func (wr *Writer) markEvicted(ctx context.Context, t Target, only *metav1.Preconditions) error {
	t.Subresource = "status"
	// the client needs no permission to write the status
	serverCtx := context.WithValue(ctx, request.Key{}, (*request.Request)(nil))
	held := false
	rec, _, err := wr.Modify(serverCtx, t, Options{applied: true, Trusted: true}, func(old scheme.Object, rec *store.Record) (scheme.Object, error) {
		pod := old.DeepCopyObject().(*corev1.Pod)
		held = (only.UID == nil || *only.UID == pod.UID) && (only.ResourceVersion == nil || *only.ResourceVersion == *revision(rec.Rev))
		if held {
			setPodCondition(&pod.Status, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI",
				Message: "Eviction API: evicting", LastTransitionTime: metav1.NewTime(time.Now()).Rfc3339Copy()})
		}
		return pod, nil
	})
	if err == nil && held && only.ResourceVersion != nil {
		only.ResourceVersion = revision(rec.Rev)
	}
	return err
}

// takeDisruption uses one allowed disruption of the budget that covers a Pod, or returns a 429.
// taken is false if the budget allows the eviction of an unhealthy Pod without a disruption.
func takeDisruption(ctx context.Context, wr *Writer, pod *corev1.Pod, dryRun bool) (taken bool, err error) {
	budgets := wr.Types.Lookup("policy", "v1", "poddisruptionbudgets")
	names, err := budgetsOf(wr, budgets, pod)
	switch {
	case err != nil || len(names) == 0:
		return true, err
	case len(names) > 1:
		return false, &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
			Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."}}
	}
	t := Target{Resource: budgets, Namespace: pod.Namespace, Name: names[0], Subresource: "status"}
	_, _, err = wr.Modify(ctx, t, Options{dryRun: dryRun}, func(old scheme.Object, _ *store.Record) (scheme.Object, error) {
		budget := old.DeepCopyObject().(*policyv1.PodDisruptionBudget)
		after, err := disrupted(budget, pod)
		taken = err == nil && budget.Status.DisruptionsAllowed < old.(*policyv1.PodDisruptionBudget).Status.DisruptionsAllowed
		return after, err
	})
	return taken, err
}

// budgetsOf returns the names of the disruption budgets that match a Pod. It fails if a budget
// cannot be read, because that budget might match.
func budgetsOf(wr *Writer, budgets *scheme.Resource, pod *corev1.Pod) (names []string, err error) {
	for rec, err := range wr.Store.All(store.Span{Prefix: budgets.KeyPrefix(pod.Namespace)}) {
		if err != nil {
			return nil, err
		}
		obj, err := wr.Read(budgets, rec)
		if err != nil {
			_, name := scheme.NamespacedName(rec.Key)
			return nil, response.StoreError(err, budgets, name)
		}
		pdb := obj.(*policyv1.PodDisruptionBudget)
		selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
		if err == nil && selector.Matches(labels.Set(pod.Labels)) {
			names = append(names, pdb.Name)
		}
	}
	return names, nil
}

// disrupted returns the updated budget for the eviction of a Pod, or an error if the eviction is
// not allowed.
func disrupted(pdb *policyv1.PodDisruptionBudget, pod *corev1.Pod) (scheme.Object, error) {
	healthy := false
	for _, c := range pod.Status.Conditions {
		healthy = healthy || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}
	spare := pdb.Status.CurrentHealthy >= pdb.Status.DesiredHealthy && pdb.Status.DesiredHealthy > 0
	always := pdb.Spec.UnhealthyPodEvictionPolicy != nil && *pdb.Spec.UnhealthyPodEvictionPolicy == policyv1.AlwaysAllow
	if !healthy && (always || spare) {
		return pdb, nil
	}
	switch status := &pdb.Status; {
	case status.ObservedGeneration < pdb.Generation:
		return nil, tooManyDisruptions(fmt.Sprintf("The disruption budget %s is still being processed by the server.", pdb.Name), 10)
	case status.DisruptionsAllowed < 0:
		return nil, forbiddenDisruption(pdb, "pdb disruptions allowed is negative")
	case len(status.DisruptedPods) > maxDisruptedPods:
		return nil, forbiddenDisruption(pdb, "DisruptedPods map too big - too many evictions not confirmed by PDB controller")
	case status.DisruptionsAllowed == 0:
		return nil, tooManyDisruptions(refusalCause(pdb), 0)
	}
	pdb.Status.DisruptionsAllowed--
	if pdb.Status.DisruptionsAllowed == 0 {
		meta.SetStatusCondition(&pdb.Status.Conditions, metav1.Condition{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse,
			Reason: policyv1.InsufficientPodsReason, ObservedGeneration: pdb.Status.ObservedGeneration})
	}
	if pdb.Status.DisruptedPods == nil {
		pdb.Status.DisruptedPods = map[string]metav1.Time{}
	}
	pdb.Status.DisruptedPods[pod.Name] = metav1.NewTime(time.Now()).Rfc3339Copy()
	return pdb, nil
}

// maxDisruptedPods is the number of evictions that the disruption controller may leave unconfirmed.
// If there are more, further evictions are not allowed.
const maxDisruptedPods = 2000

// refusalCause returns the reason why a disruption is not allowed. After a failed sync the numbers
// of healthy Pods are not reliable, so the failure is reported instead of them.
func refusalCause(pdb *policyv1.PodDisruptionBudget) string {
	c := meta.FindStatusCondition(pdb.Status.Conditions, policyv1.DisruptionAllowedCondition)
	explained := c != nil && c.Status == metav1.ConditionFalse && c.Message != ""
	switch status := &pdb.Status; {
	case explained && c.Reason == policyv1.SyncFailedReason:
		return fmt.Sprintf("The disruption budget %s does not allow evicting pods currently because it failed sync: %s", pdb.Name, c.Message)
	case status.CurrentHealthy <= status.DesiredHealthy:
		return fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", pdb.Name, status.DesiredHealthy, status.CurrentHealthy)
	case explained:
		return fmt.Sprintf("The disruption budget %s does not allow evicting pods currently (%s): %s", pdb.Name, c.Reason, c.Message)
	}
	return fmt.Sprintf("The disruption budget %s does not allow evicting pods currently", pdb.Name)
}

func forbiddenDisruption(pdb *policyv1.PodDisruptionBudget, reason string) error {
	return apierrors.NewForbidden(schema.GroupResource{Group: "policy", Resource: "poddisruptionbudget"}, pdb.Name, errors.New(reason))
}

func tooManyDisruptions(cause string, retryAfter int) error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", retryAfter)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: cause})
	return err
}

// IssueToken handles a POST to /token of a service account. It reads the newest versions of the
// account and of the object to which the token is bound.
func IssueToken(wr *Writer, w http.ResponseWriter, r *http.Request, clientReq *request.Request, res *scheme.Resource) error {
	obj, opts, err := decodeSub(w, r, clientReq, res, "token")
	if err != nil {
		return err
	}
	if _, err := wr.Store.Current(r.Context()); err != nil {
		return err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: clientReq.Info.Namespace, Name: clientReq.Info.Name}}
	if err := wr.checkNamespace(r.Context(), res, account); err != nil {
		return wr.createError(err, res, account)
	}
	if obj, err = wr.Admission.Decide(r.Context(), opts.creation(res, "token", obj)); err != nil {
		return err
	}
	request := obj.(*authenticationv1.TokenRequest)
	credential, err := wr.Auth.Accounts.Request(request, clientReq.Info.Namespace, clientReq.Info.Name)
	if err != nil {
		return err
	}
	clientReq.Annotate("authentication.kubernetes.io/issued-credential-id", credential)
	request.SetGroupVersionKind(authenticationv1.SchemeGroupVersion.WithKind("TokenRequest"))
	return response.WriteObject(w, r, http.StatusCreated, request)
}
