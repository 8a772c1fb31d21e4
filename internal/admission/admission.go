package admission

// This file calls the webhooks for a write. It keeps track of the active configurations, calls the
// mutating webhooks in rounds, and applies their patches.
//
// A mutating webhook may answer with a JSON patch. If it changes the object, the webhooks before
// it with reinvocationPolicy IfNeeded are called again in a second round:
//
//	round 0   a: adds a label   b: adds a container   c: nothing        b has changed what a saw
//	round 1   a: sees the container
//
// No locks are held while calling a webhook. The write is computed from one version of the object,
// and is committed only if that version is still the newest. Otherwise the server computes the
// write again and calls the webhooks again. The wait is bounded by the webhook's timeoutSeconds
// and by the deadline of the request.
//
// The active configurations are read from the store after each write to a configuration, before
// that write is answered. They are stored in an atomic pointer, so the cost for a write is a
// single load if there are none. Webhooks are called only for the write that the client requested.
// They are not called for the server's own writes: deletions by the garbage collector, the
// deletion of a namespace's contents, the status of a definition, and the PodDisruptionBudget and
// the Pod of an eviction. kube-apiserver calls them for most of these writes, because its
// controllers are clients.

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/kubeapiserver/admission/exclusion"
	kjson "sigs.k8s.io/json"

	"apilet/internal/apierror"
	"apilet/internal/cel/matching"
	"apilet/internal/corrupt"
	"apilet/internal/patch"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
	"apilet/internal/webhook"
)

const defaultHookTimeout = 10 * time.Second

// ---- Configurations

// Webhooks calls the admission webhooks that are configured on a server.
type Webhooks struct {
	Store     *store.Store             // source of configurations and namespaces
	Types     *scheme.Registry         // resolves the types in rules and reviews
	Services  *webhook.ServiceResolver // resolves clientConfig.service
	OnCall    func(Call)               // called for each call, used for metrics and traces
	Log       zerolog.Logger           // receives configurations that cannot be read
	Authorize matching.AuthorizeFunc   // for the CEL variable authorizer
	// Defaults sets the default values of fields that may have been removed by a patch.
	Defaults func(res *scheme.Resource, obj scheme.Object) error
	Corrupt  *corrupt.Objects // records configurations that cannot be decoded
	// Report is called with the result of each call, which is nil if the webhook has answered.
	Report func(what string, err error)

	current atomic.Pointer[hookSet] // nil if no webhook is configured

	mu sync.Mutex // serializes reloads and guards clients
	// The key consists of the kind, the configuration, the webhook and its clientConfig, so that
	// connections survive a reload.
	clients map[string]*webhook.Client
}

// A hookSet contains the active webhooks, sorted by the name of the configuration and by their
// position within it. It is immutable.
type hookSet struct{ mutating, validating []*Hook }

// A Hook is one configured webhook.
type Hook struct {
	matching.Webhook
	kind                hookKind
	configuration       string
	namespaces, objects labels.Selector
	conditions          *matching.Set
	client              *webhook.Client // holds the connections to the webhook
	broken              error           // the reason why the webhook cannot be called, if any
}

// active reports whether any webhook is configured.
func (h *Webhooks) active() bool { return h != nil && h.current.Load() != nil }

// OnCommit must be called after each write. It reloads the webhooks if a webhook configuration
// was written.
func (h *Webhooks) OnCommit(res *scheme.Resource) {
	if res.Group == admissionv1.GroupName && matching.IsExempt(res) {
		h.Reload()
	}
}

// Reload reads the configurations. If a configuration cannot be decoded, it is logged and skipped.
func (h *Webhooks) Reload() {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.clients
	h.clients = map[string]*webhook.Client{}
	set := &hookSet{}
	err := errors.Join(h.eachLocked("mutatingwebhookconfigurations", func(obj scheme.Object) {
		config := obj.(*admissionv1.MutatingWebhookConfiguration)
		set.mutating = append(set.mutating, h.hooksLocked(mutatingHook, config.Name, matching.MutatingHooks(config), before)...)
	}), h.eachLocked("validatingwebhookconfigurations", func(obj scheme.Object) {
		config := obj.(*admissionv1.ValidatingWebhookConfiguration)
		set.validating = append(set.validating, h.hooksLocked(validatingHook, config.Name, matching.ValidatingHooks(config), before)...)
	}))
	if err != nil { // keep the previous webhooks
		h.clients = before
		h.Log.Error().Err(err).Msg("cannot read the webhook configurations")
		return
	}
	if len(set.mutating)+len(set.validating) == 0 {
		set = nil
	}
	h.current.Store(set)
	for key, c := range before {
		if h.clients[key] != c {
			c.Close()
		}
	}
}

// eachLocked calls visit for each stored object of a resource, ordered by name.
func (h *Webhooks) eachLocked(plural string, visit func(scheme.Object)) error {
	res := h.Types.Lookup(admissionv1.GroupName, "v1", plural)
	for rec, err := range h.Store.All(store.Span{Prefix: res.KeyPrefix(""), SkipDamaged: true}) {
		if err != nil {
			return err
		}
		obj, err := res.DecodeStored(rec.JSON)
		if err != nil {
			h.Corrupt.Add(rec, err)
			continue
		}
		visit(obj)
	}
	return nil
}

// hooksLocked returns the webhooks of one configuration. It reuses the connections in before.
func (h *Webhooks) hooksLocked(kind hookKind, configuration string, asked []matching.Webhook, before map[string]*webhook.Client) (hooks []*Hook) {
	for i := range asked {
		k := &Hook{Webhook: asked[i], kind: kind, configuration: configuration, conditions: &matching.Set{Conditions: asked[i].MatchConditions}}
		var errs [3]error
		k.namespaces, errs[0] = matching.ParseSelector(asked[i].NamespaceSelector)
		k.objects, errs[1] = matching.ParseSelector(asked[i].ObjectSelector)
		target, _ := json.Marshal(&asked[i].ClientConfig)
		key := strings.Join([]string{string(kind), configuration, asked[i].Name, string(target)}, "\n")
		if k.client = before[key]; k.client == nil {
			k.client, errs[2] = webhook.NewClient(&asked[i].ClientConfig, h.Services)
		}
		if k.client != nil {
			h.clients[key] = k.client
		}
		if k.broken = errors.Join(errs[:]...); k.broken != nil {
			k.broken = fmt.Errorf("could not get REST client: %w", k.broken)
		}
		hooks = append(hooks, k)
	}
	return hooks
}

// Close closes idle connections. It is called last during shutdown.
func (h *Webhooks) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.clients {
		c.Close()
	}
}

func (k *Hook) failsOpen() bool {
	return k.FailurePolicy != nil && *k.FailurePolicy == admissionv1.Ignore
}

// ---- The two plug-ins

// Idle reports whether no webhook is configured.
func (h *Webhooks) Idle() bool { return !h.active() }

// Mutate implements the plug-in MutatingAdmissionWebhook. The webhooks may change the object.
func (h *Webhooks) Mutate(ctx context.Context, a *Attributes) error {
	set := h.current.Load()
	if set == nil || len(set.mutating) == 0 || !a.callsWebhooks() {
		return nil
	}
	if a.webhooks == nil {
		a.webhooks = newInvocation(h, a)
	}
	v := a.webhooks
	v.obj = a.Object
	err := v.runRound(ctx, set.mutating)
	if a.Object = v.obj; a.Object != nil {
		v.afterFirstRound = a.Object.DeepCopyObject().(scheme.Object)
	}
	return err
}

// Validate implements the plug-in ValidatingAdmissionWebhook. The webhooks may reject the write.
func (h *Webhooks) Validate(ctx context.Context, a *Attributes) error {
	set := h.current.Load()
	if set == nil || len(set.validating) == 0 || !a.callsWebhooks() {
		return nil
	}
	return newInvocation(h, a).callValidating(ctx, set.validating)
}

// callsWebhooks reports whether webhooks are called for the write. They are called only for the
// write that the client requested, and not for writes to the configuration of admission. They are
// not called for reviews either, so that a failing webhook cannot lock out its administrator.
func (a *Attributes) callsWebhooks() bool {
	if utilfeature.DefaultFeatureGate.Enabled(features.ExcludeAdmissionWebhookVirtualResources) && slices.Contains(exclusion.Excluded(), a.Resource.GroupResource()) {
		return false
	}
	return a.FromClient() && !matching.IsExempt(a.Resource)
}

// ---- An invocation

// invocation holds the state for calling the webhooks of a given kind for a write.
type invocation struct {
	h        *Webhooks
	a        *Attributes
	rec      *request.Request
	obj, old scheme.Object // in the storage version; may be nil
	target   matching.Target
	name     string

	// reinvoke has the webhooks that are called in the second round. called has the webhooks that
	// will be called again if the object changes after their call.
	reinvoke, called   []*Hook
	afterFirstRound    scheme.Object       // the object after the first round
	equivalents        *[]*scheme.Resource // of a.Resource; nil until computed
	documentsByVersion map[*scheme.Resource]*hookDocuments
}

// hookDocuments holds the objects encoded in a given version.
type hookDocuments struct{ obj, old json.RawMessage }

// newInvocation returns the state that all webhooks called for one write share.
func newInvocation(h *Webhooks, a *Attributes) *invocation {
	v := &invocation{h: h, a: a, rec: a.Request, obj: a.Object, old: a.Old, name: a.Name(), documentsByVersion: map[*scheme.Resource]*hookDocuments{}}
	v.target = matching.Target{Group: a.Resource.Group, Version: a.Resource.Version, Resource: a.Resource.Plural, Subresource: a.Subresource, Operation: a.Operation,
		Namespace: a.Request.Info.Namespace}
	if v.target.IsNamespace() {
		v.target.Namespace = v.name
	}
	return v
}

// matchVersion returns the version in which to call the webhook, or nil if the webhook does not
// match. An error rejects the request.
func (v *invocation) matchVersion(ctx context.Context, k *Hook) (*scheme.Resource, error) {
	row := matching.MatchingResource(k.Rules, matching.MatchesRule, k.MatchPolicy, &v.target, v.a.Resource, v.equivalentRows)
	if row == nil || k.objects == nil || k.namespaces == nil {
		return row, nil // invalid selectors fail in the call
	}
	if !matching.Selects(k.objects, v.obj, v.old) {
		return nil, nil
	}
	if ok, err := v.inNamespace(k.namespaces); !ok || err != nil {
		return nil, err
	}
	if len(k.MatchConditions) == 0 {
		return row, nil
	}
	variables, err := v.variables(row)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	switch ok, err := k.conditions.Match(ctx, variables); {
	case err != nil && !k.failsOpen():
		return nil, apierrors.NewForbidden(v.a.Resource.GroupResource(), v.name, err)
	case !ok:
		return nil, nil
	}
	return row, nil
}

func (v *invocation) equivalentRows() []*scheme.Resource {
	if v.equivalents == nil {
		rows := matching.Equivalents(v.h.Types, v.a.Resource, v.a.Subresource)
		v.equivalents = &rows
	}
	return *v.equivalents
}

// inNamespace reports whether the labels of the object's namespace match the selector. Objects
// without a namespace always match.
func (v *invocation) inNamespace(selector labels.Selector) (bool, error) {
	if selector.Empty() || v.target.Namespace == "" {
		return true, nil
	}
	if v.target.IsNamespace() && v.a.Subresource == "" && v.obj != nil {
		return selector.Matches(labels.Set(v.obj.GetLabels())), nil
	}
	rec, err := v.h.Store.Get(v.h.Types.Lookup("", "v1", "namespaces").Key("", v.target.Namespace))
	if errors.Is(err, store.ErrNotFound) {
		return false, apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, v.target.Namespace)
	}
	if err != nil {
		return false, err
	}
	set := labels.Set{}
	for key, value := range gjson.GetBytes(rec.JSON, "metadata.labels").Map() {
		set[key] = value.String()
	}
	return selector.Matches(set), nil
}

// ---- Objects in other versions

// documents returns the objects, encoded in the given version.
func (v *invocation) documents(row *scheme.Resource) (*hookDocuments, error) {
	if d := v.documentsByVersion[row]; d != nil {
		return d, nil
	}
	var d hookDocuments
	var errs [2]error
	d.obj, errs[0] = v.document(row, v.obj)
	d.old, errs[1] = v.document(row, v.old)
	v.documentsByVersion[row] = &d
	return &d, errors.Join(errs[:]...)
}

func (v *invocation) document(row *scheme.Resource, obj scheme.Object) (json.RawMessage, error) {
	if obj == nil {
		return nil, nil
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		if row != v.a.Resource {
			var err error
			if u, err = convertTo(row, u.DeepCopy()); err != nil {
				return nil, err
			}
		}
		return json.Marshal(u.Object)
	}
	want := row.ExpectedBody(v.a.Subresource)
	if want.Kind == row.Kind {
		obj = row.ConvertOut(obj)
	}
	kind := obj.GetObjectKind()
	defer kind.SetGroupVersionKind(kind.GroupVersionKind()) // typed objects in memory have no kind
	return scheme.MarshalAs(obj, want.APIVersion(), want.Kind)
}

// convertTo converts a custom resource to another version. If the type has a conversion webhook, it
// calls the webhook, which has its own timeout. Without a webhook it sets the apiVersion and
// applies the schema.
func convertTo(row *scheme.Resource, u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if row.Custom.Webhook != nil {
		return row.Custom.Webhook.To(context.Background(), u, row.Version)
	}
	u.SetAPIVersion(row.APIVersion())
	_, err := row.Custom.Shape(u)
	return u, err
}

// ConvertTo returns a custom resource converted to another version of its type.
func ConvertTo(row *scheme.Resource, obj scheme.Object) (scheme.Object, error) {
	return convertTo(row, obj.(*unstructured.Unstructured))
}

// parse is the inverse of document.
func (v *invocation) parse(row *scheme.Resource, document []byte) (scheme.Object, error) {
	if v.a.Operation == OpConnect {
		options := &unstructured.Unstructured{}
		return options, json.Unmarshal(document, &options.Object)
	}
	obj, _, err := row.Decode(document, "application/json", v.a.Subresource)
	if u, ok := obj.(*unstructured.Unstructured); ok && err == nil && row != v.a.Resource {
		return convertTo(v.a.Resource, u)
	}
	return obj, err
}

// request returns the request for a webhook, without setting its uid.
func (v *invocation) request(row *scheme.Resource) (*reviewRequest, error) {
	d, err := v.documents(row)
	if err != nil {
		return nil, err
	}
	options, err := json.Marshal(v.a.Options())
	if err != nil {
		return nil, err
	}
	kind, asked := row.ExpectedBody(v.a.Subresource), v.a.Resource.ExpectedBody(v.a.Subresource)
	user := authenticationv1.UserInfo{Username: v.rec.User.Name, UID: v.rec.User.UID, Groups: v.rec.User.Groups}
	for key, values := range v.rec.User.Extra {
		if user.Extra == nil {
			user.Extra = map[string]authenticationv1.ExtraValue{}
		}
		user.Extra[key] = values
	}
	return &reviewRequest{
		Kind:               metav1.GroupVersionKind{Group: kind.Group, Version: kind.Version, Kind: kind.Kind},
		Resource:           metav1.GroupVersionResource{Group: row.Group, Version: row.Version, Resource: row.Plural},
		SubResource:        v.a.Subresource,
		RequestKind:        &metav1.GroupVersionKind{Group: asked.Group, Version: asked.Version, Kind: asked.Kind},
		RequestResource:    &metav1.GroupVersionResource{Group: v.a.Resource.Group, Version: v.a.Resource.Version, Resource: v.a.Resource.Plural},
		RequestSubResource: v.a.Subresource,
		Name:               v.name, Namespace: v.target.Namespace, Operation: v.a.Operation, UserInfo: user,
		Object: d.obj, OldObject: d.old, DryRun: &v.a.DryRun, Options: options,
	}, nil
}

// variables returns the CEL variables for the conditions of a webhook.
func (v *invocation) variables(row *scheme.Resource) (map[string]any, error) {
	question, err := v.request(row)
	if err != nil {
		return nil, err
	}
	out := map[string]any{"namespaceObject": nil}
	bare := *question
	bare.Object, bare.OldObject = nil, nil
	asked, err := json.Marshal(&bare)
	if err != nil {
		return nil, err
	}
	for name, document := range map[string][]byte{"object": question.Object, "oldObject": question.OldObject, "request": asked} {
		var value any
		if document != nil {
			err = errors.Join(err, kjson.UnmarshalCaseSensitivePreserveInts(document, &value))
		}
		out[name] = value
	}
	out["authorizer"] = v.h.Authorize.Authorizer(v.rec.User)
	out["authorizer.requestResource"] = v.h.Authorize.ResourceAuthorizer(v.rec.User, &v.target, v.name)
	return out, err
}

// ---- Calling one webhook

// A callFailure reports that a webhook could not be called or returned an invalid answer. The
// failurePolicy decides whether the request fails.
type callFailure struct {
	hook  string
	cause error
	code  int // for the metrics
}

func (e *callFailure) Error() string {
	return fmt.Sprintf("failed calling webhook %q: %v", e.hook, e.cause)
}
func (e *callFailure) Unwrap() error { return e.cause }

// denial is the error returned when a webhook rejects a request.
type denial struct{ *apierrors.StatusError }

// newDenial returns the error for a request rejected by the named webhook. The status returned by
// the webhook is kept, unless it is a success.
func newDenial(name string, result *metav1.Status) *denial {
	status := metav1.Status{}
	if result != nil {
		status = *result
	}
	status.Code = int32(apierror.UpstreamCode(int(max(status.Code, http.StatusBadRequest))))
	if status.Status == "" || status.Status == metav1.StatusSuccess {
		status.Status = metav1.StatusFailure
	}
	said := fmt.Sprintf("admission webhook %q denied the request", name)
	if why := cmp.Or(status.Message, string(status.Reason)); why != "" {
		status.Message = said + ": " + why
	} else {
		status.Message = said + " without explanation"
	}
	return &denial{&apierrors.StatusError{ErrStatus: status}}
}

// A callResult is the result of calling one webhook.
type callResult struct {
	answer   *reviewAnswer // nil if the call failed
	err      error         // may be a callFailure, a denial or some other error
	duration time.Duration
}

// call calls the webhook. It changes no shared state, so calls may run concurrently.
func (k *Hook) call(ctx context.Context, question reviewRequest) (said callResult) {
	start := time.Now()
	defer func() { said.duration = time.Since(start) }()
	if *question.DryRun && (k.SideEffects == nil || *k.SideEffects != admissionv1.SideEffectClassNone && *k.SideEffects != admissionv1.SideEffectClassNoneOnDryRun) {
		said.err = apierrors.NewBadRequest(fmt.Sprintf("admission webhook %q does not support dry run", k.Name))
		return said
	}
	failed := func(code int, err error) callResult {
		return callResult{err: &callFailure{hook: k.Name, cause: err, code: code}}
	}
	version, err := reviewVersion(k.AdmissionReviewVersions)
	if err != nil {
		return failed(http.StatusBadRequest, fmt.Errorf("could not create admission objects: %w", err))
	}
	if k.broken != nil {
		return failed(http.StatusInternalServerError, k.broken)
	}
	question.UID = types.UID(uuid.NewString())
	body, err := json.Marshal(&review{TypeMeta: metav1.TypeMeta{Kind: reviewKind, APIVersion: reviewGroup + "/" + version}, Request: &question})
	if err != nil {
		return failed(http.StatusInternalServerError, err)
	}
	ctx, cancel := context.WithTimeout(ctx, k.timeout())
	defer cancel()
	got, err := k.client.Post(ctx, body, maxReviewAnswer)
	if err != nil {
		return failed(codeOf(err), fmt.Errorf("failed to call webhook: %w", err))
	}
	if said.answer, err = decodeReview(got, version, question.UID, k.kind); err != nil {
		return failed(http.StatusServiceUnavailable, err)
	}
	if !said.answer.Allowed {
		said.err = newDenial(k.Name, said.answer.Result)
	}
	return said
}

func (k *Hook) timeout() time.Duration {
	if k.TimeoutSeconds == nil {
		return defaultHookTimeout
	}
	return time.Duration(*k.TimeoutSeconds) * time.Second
}

// codeOf returns the status code of a failed call, for metrics.
func codeOf(err error) int {
	var status *apierrors.StatusError
	if errors.As(err, &status) {
		return int(status.ErrStatus.Code)
	}
	return http.StatusServiceUnavailable
}

// recordAnswer adds the audit annotations and warnings of an answer to the request.
func (v *invocation) recordAnswer(ctx context.Context, k *Hook, said *callResult) {
	if said.answer == nil {
		return
	}
	for name, value := range said.answer.AuditAnnotations {
		key := k.Name + "/" + name
		if strings.Count(key, "/") == 1 && len(validation.IsQualifiedName(key)) == 0 {
			v.rec.AnnotateOnce(key, value)
		}
	}
	for _, text := range said.answer.Warnings {
		warning.AddWarning(ctx, "", text)
	}
}

// Call describes a single call of a webhook, for use in metrics.
type Call struct {
	Name, Kind, Operation string // kind is admit or validating
	Code                  int    // 0 if the failure is not the webhook's
	Rejected              bool   // the write was rejected because of the call
	// Cause is the reason for the rejection. If it is empty, the rejection is not counted.
	Cause      string
	FailedOpen bool          // the call failed, and failurePolicy allowed the write
	Duration   time.Duration // duration of the call
}

// recordCall records a call and returns the error for the client. It returns nil if the call failed
// and failurePolicy is Ignore.
func (v *invocation) recordCall(ctx context.Context, k *Hook, said *callResult, failedOpenKey string) error {
	err, outcome := said.err, Call{Name: k.Name, Kind: string(k.kind), Operation: v.a.Operation, Duration: said.duration}
	var failure *callFailure
	var no *denial
	switch {
	case err == nil:
		outcome.Code = http.StatusOK
	case errors.As(err, &failure):
		// If the client has disconnected, the webhook is not to blame.
		gone := errors.Is(err, context.Canceled)
		outcome.Code, outcome.Rejected = failure.code, !k.failsOpen()
		if outcome.Rejected {
			err = apierrors.NewInternalError(failure)
			if !gone {
				outcome.Cause = "calling_webhook_error"
			}
			break
		}
		err = nil
		if !gone {
			outcome.FailedOpen = true
			v.rec.AnnotateOnce(failedOpenKey, k.Name)
		}
	case errors.As(err, &no):
		err = no.StatusError
		outcome.Code, outcome.Rejected, outcome.Cause = int(no.ErrStatus.Code), true, "no_error"
	default:
		outcome.Rejected, outcome.Cause = true, "apiserver_internal_error"
	}
	v.h.OnCall(outcome)
	if !errors.Is(said.err, context.Canceled) {
		v.reportState(ctx, k, failure)
	}
	return err
}

// reportState reports the state of a webhook. If the cause of a failure is known, it also warns the
// client.
func (v *invocation) reportState(ctx context.Context, k *Hook, failure *callFailure) {
	stand := orNil(failure)
	if failure != nil {
		if hint := webhook.Hint(failure.cause, &k.ClientConfig); hint != "" {
			warning.AddWarning(ctx, "", fmt.Sprintf("webhook %q: %s", k.Name, hint))
			stand = fmt.Errorf("%w: %s", stand, hint)
		}
	}
	v.h.Report("webhook "+k.Name+" of "+string(k.kind)+" configuration "+k.configuration, stand)
}

// ---- Mutating webhooks

// runRound calls the mutating webhooks in order. The second round only calls webhooks that have
// asked for reinvocation and have not seen the current object.
func (v *invocation) runRound(ctx context.Context, hooks []*Hook) error {
	number := 0
	if v.a.reinvocation {
		number = 1
		clear(v.documentsByVersion)
		if !apiequality.Semantic.DeepEqual(v.afterFirstRound, v.obj) { // a built-in plug-in has changed it
			v.reinvoke, v.called = append(v.reinvoke, v.called...), nil
		}
	}
	for i, k := range hooks {
		if v.a.reinvocation && !slices.Contains(v.reinvoke, k) {
			continue
		}
		row, err := v.matchVersion(ctx, k)
		if err != nil {
			return err
		}
		if row == nil {
			continue
		}
		changed, err := v.callMutating(ctx, k, row, fmt.Sprintf("round_%d_index_%d", number, i))
		if err != nil {
			return err
		}
		if changed {
			v.a.MarkChanged()
			v.reinvoke, v.called = append(v.reinvoke, v.called...), nil
		}
		if k.Reinvocation != nil && *k.Reinvocation == admissionv1.IfNeededReinvocationPolicy {
			v.called = append(v.called, k)
		}
	}
	return nil
}

// callMutating calls one webhook and applies its patch. place identifies the call in audit
// annotations.
func (v *invocation) callMutating(ctx context.Context, k *Hook, row *scheme.Resource, place string) (changed bool, err error) {
	question, err := v.request(row)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	said := k.call(ctx, *question)
	v.recordAnswer(ctx, k, &said)
	if said.err == nil {
		changed, said.err = v.apply(k, row, said.answer)
	}
	note, _ := json.Marshal(&struct {
		Configuration string `json:"configuration"`
		Webhook       string `json:"webhook"`
		Mutated       bool   `json:"mutated"`
	}{k.configuration, k.Name, changed})
	v.rec.AnnotateOnce("mutation.webhook.admission.k8s.io/"+place, string(note))
	err = v.recordCall(ctx, k, &said, "failed-open.mutation.webhook.admission.k8s.io/"+place)
	if failedOpen := err == nil && said.err != nil; failedOpen && ctx.Err() != nil {
		return false, apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
	}
	return changed, err
}

// apply applies the patch of a webhook to the object. If the patch cannot be decoded, the call is
// treated as failed. A patch that decodes but does not apply rejects the request, regardless of
// the failurePolicy.
func (v *invocation) apply(k *Hook, row *scheme.Resource, answer *reviewAnswer) (changed bool, err error) {
	if len(answer.Patch) == 0 {
		return false, nil
	}
	failed := func(err error) error {
		return &callFailure{hook: k.Name, cause: err, code: http.StatusServiceUnavailable}
	}
	var operations []json.RawMessage
	if err := json.Unmarshal(answer.Patch, &operations); err != nil {
		return false, failed(fmt.Errorf("received undecodable patch in webhook response: %w", err))
	}
	switch {
	case len(operations) == 0:
		return false, nil
	case v.obj == nil:
		return false, apierrors.NewInternalError(fmt.Errorf(
			"admission webhook %q attempted to modify the object, which is not supported for this operation", k.Name))
	case answer.PatchType != nil && *answer.PatchType != "JSONPatch":
		return false, failed(fmt.Errorf("unsupported patch type %q", *answer.PatchType))
	}
	before := v.documentsByVersion[row].obj
	after, _, err := patch.Apply(patch.JSONPatch, before, answer.Patch, nil)
	if err != nil {
		return false, apierrors.NewInternalError(fmt.Errorf("the JSON patch of admission webhook %q does not apply to the object", k.Name))
	}
	obj, err := v.parse(row, after)
	if err != nil {
		return false, apierrors.NewInternalError(fmt.Errorf("the patch of admission webhook %q makes no %s: %w", k.Name, row.Kind, err))
	}
	// Compare with the decoded document and not with v.obj, which may have fields that this
	// version cannot represent.
	same, err := v.parse(row, before)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	changed = !apiequality.Semantic.DeepEqual(same, obj)
	if row.ExpectedBody(v.a.Subresource).Kind == row.Kind {
		if err := v.h.Defaults(v.a.Resource, obj); err != nil {
			return false, err
		}
	}
	v.obj = obj
	clear(v.documentsByVersion)
	return changed, nil
}

// ---- Validating webhooks

// callValidating calls all validating webhooks concurrently. It returns the first rejection in the
// order of the webhooks.
func (v *invocation) callValidating(ctx context.Context, hooks []*Hook) error {
	type call struct {
		hook     *Hook
		question *reviewRequest
		said     callResult
	}
	var calls []*call
	for _, k := range hooks {
		row, err := v.matchVersion(ctx, k)
		if err != nil {
			return err
		}
		if row == nil {
			continue
		}
		question, err := v.request(row)
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		calls = append(calls, &call{hook: k, question: question})
	}
	if len(calls) > 0 && ctx.Err() != nil {
		return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
	}
	var running sync.WaitGroup
	for _, c := range calls {
		running.Go(func() { c.said = c.hook.call(ctx, *c.question) })
	}
	running.Wait()
	var refusal error
	for i, c := range calls {
		v.recordAnswer(ctx, c.hook, &c.said)
		err := v.recordCall(ctx, c.hook, &c.said, fmt.Sprintf("failed-open.validating.webhook.admission.k8s.io/round_0_index_%d", i))
		refusal = cmp.Or(refusal, err)
	}
	return refusal
}

// orNil converts a nil *callFailure to a nil error.
func orNil(failure *callFailure) error {
	if failure == nil {
		return nil
	}
	return failure
}
