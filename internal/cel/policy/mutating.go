package policy

// This file runs mutating policies and applies their mutations to the object:
//
//	ApplyConfiguration   Object{metadata: Object.metadata{labels: {"team": "a"}}}      merged like an apply, but without field owners
//	JSONPatch            [JSONPatch{op: "add", path: "/spec/replicas", value: 3}]      if a test fails, the object is unchanged
//
// Matching uses the original object. matchConditions and mutations use the object as changed by
// earlier policies. The first pass runs every invocation (policy, binding, param) once. If a later
// plug-in in the chain changes the object, there is a second pass. It runs the invocations that
// have reinvocationPolicy IfNeeded if the object has changed since.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"google.golang.org/protobuf/types/known/structpb"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/mutation"
	"k8s.io/apiserver/pkg/cel/mutation/dynamic"

	"apilet/internal/cel/matching"
	"apilet/internal/patch"
	"apilet/internal/scheme"
)

// ReinvocationState records which invocations must run again in the second pass over a write. The
// zero value is ready to use.
type ReinvocationState struct {
	passes int
	seen   []invocationKey // would run again if the object changed now
	again  map[invocationKey]bool
	last   scheme.Object // the object after the last pass
}

type invocationKey struct{ policy, binding, param string }

// changed marks the invocations in seen to run again, because the object has changed.
func (r *ReinvocationState) changed() {
	for _, key := range r.seen {
		if r.again == nil {
			r.again = map[invocationKey]bool{}
		}
		r.again[key] = true
	}
	r.seen = nil
}

// invocation represents the evaluation of a policy for a binding and a param.
type invocation struct {
	policy *policy
	b      *binding
	param  param
	row    *scheme.Resource
}

func (i *invocation) key() invocationKey { return invocationKey{i.policy.name, i.b.name, i.param.name} }

// A policyFailure is the reason why a policy rejects the write or could not run.
type policyFailure struct {
	policy *policy
	b      *binding // nil if it concerns the whole policy
	cause  error
	reason metav1.StatusReason
}

func (c *policyFailure) text() string {
	if c.b != nil {
		return fmt.Sprintf("policy '%s' with binding '%s' denied request: %v", c.policy.name, c.b.name, c.cause)
	}
	return fmt.Sprintf("policy %q denied request: %v", c.policy.name, c.cause)
}

// Mutate runs the active mutating policies for the next pass of rounds. It reports whether they
// changed w.Object. The error is a Status that rejects the write.
func (p *Policies) Mutate(ctx context.Context, w *Write, rounds *ReinvocationState) (changed bool, err error) {
	set := p.current.Load()
	if set == nil || len(set.mutating) == 0 || w.Object == nil || matching.IsExempt(w.Resource) || w.Resource.Virtual {
		return false, nil
	}
	rounds.passes++
	if rounds.passes > 1 && !apiequality.Semantic.DeepEqual(rounds.last, w.Object) {
		rounds.changed()
	}
	m := &mutator{writeContext: newWriteContext(p, w), rounds: rounds}
	if err := m.run(ctx, set.mutating); err != nil {
		return false, err
	}
	rounds.last = w.Object.DeepCopyObject().(scheme.Object)
	return m.mutated, m.refusal()
}

// A mutator runs the mutating policies for a write. It may replace the object.
type mutator struct {
	*writeContext
	rounds   *ReinvocationState
	mutated  bool
	failures []policyFailure
}

func (m *mutator) addFailure(policy *policy, b *binding, cause error, reason metav1.StatusReason) {
	m.failures = append(m.failures, policyFailure{policy, b, cause, reason})
}

// refusal returns the error for the complaints. It ignores policies with failurePolicy Ignore.
func (m *mutator) refusal() error {
	var err *apierrors.StatusError
	for i := range m.failures {
		c := &m.failures[i]
		if c.policy.failsOpen {
			continue
		}
		text := c.text()
		if err == nil {
			err = m.w.forbidden(errors.New(text))
			if err.ErrStatus.Message = text; c.reason != "" {
				err.ErrStatus.Reason = c.reason // the code stays 403, as in kube-apiserver
			}
		}
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Message: text})
	}
	if err == nil {
		return nil
	}
	return err
}

func (m *mutator) run(ctx context.Context, policies []*policy) error {
	var calls []invocation
	for _, policy := range policies {
		row, err := policy.constraints.matches(m.writeContext)
		if err == nil && row != nil {
			_, err = m.paramRow(policy)
		}
		if err != nil {
			m.addFailure(policy, nil, fmt.Errorf("failed to configure policy: %w", err), "")
			continue
		}
		if row == nil {
			continue
		}
		for _, b := range policy.bindings {
			found, err := m.invocations(ctx, policy, b, row)
			if err != nil {
				m.addFailure(policy, b, fmt.Errorf("failed to configure binding: %w", err), "")
			}
			calls = append(calls, found...)
		}
	}
	if len(calls) > 0 && m.hasNamespace() {
		if _, err := m.record(); err != nil {
			return err
		}
	}
	for i := range calls {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := m.runInvocation(ctx, &calls[i]); err != nil {
			return err
		}
	}
	return nil
}

func (m *mutator) invocations(ctx context.Context, policy *policy, b *binding, row *scheme.Resource) (calls []invocation, err error) {
	if bound, err := b.matches.matches(m.writeContext); err != nil || bound == nil {
		return nil, err
	}
	params, err := m.params(ctx, policy, b)
	if err != nil {
		return nil, err
	}
	for _, p := range params {
		calls = append(calls, invocation{policy, b, p, row})
	}
	return calls, nil
}

// runInvocation runs one invocation. An error ends the request.
func (m *mutator) runInvocation(ctx context.Context, call *invocation) error {
	document, err := m.document(call.row)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	c, err := call.policy.programs.compiledFor(call.policy)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	wanted, err := m.meetsConditions(ctx, c, document, call.param.value)
	if err != nil {
		m.addFailure(call.policy, call.b, err, metav1.StatusReasonInvalid)
		return nil
	}
	if !wanted || m.rounds.passes > 1 && !m.rounds.again[call.key()] {
		return nil
	}
	before := m.w.Object
	for i := range c.mutations {
		began := time.Now()
		err := m.mutate(ctx, c, call, i)
		check := Check{Mutating: true, Policy: call.policy.name, Binding: call.b.name, Error: "no_error", Duration: time.Since(began)}
		if err != nil {
			check.Error = errorType(err.Error())
		}
		m.p.reportCheck(check)
		var status *apierrors.StatusError
		if errors.As(err, &status) {
			return status
		}
		if err != nil {
			m.addFailure(call.policy, call.b, err, metav1.StatusReasonInvalid)
		}
	}
	if !apiequality.Semantic.DeepEqual(before, m.w.Object) {
		m.mutated = true
		m.rounds.changed()
	}
	if call.policy.reinvocable {
		m.rounds.seen = append(m.rounds.seen, call.key())
	}
	return nil
}

// mutate evaluates one mutation and applies it to the object.
func (m *mutator) mutate(ctx context.Context, c *compiled, call *invocation, i int) error {
	document, err := m.document(call.row)
	if err != nil {
		return err
	}
	program := &c.mutations[i]
	if program.Error != nil {
		return program.Error
	}
	a := &activation{h: m.writeContext, row: document, params: call.param.value, authorized: true}
	value, failed, err := newEvaluation(ctx, c, a, celconfig.RuntimeCELCostBudget).evaluate(program)
	if err = errors.Join(err, failed); err != nil || value == nil {
		return err
	}
	var body []byte
	if call.policy.mutations[i].PatchType == admissionv1.PatchTypeJSONPatch {
		body, err = patched(document, value)
	} else {
		body, err = m.applied(document, value)
	}
	if err != nil || body == nil {
		return err
	}
	return m.replace(document.row, body)
}

// replace decodes body, which is in the version of row, and makes it the current object.
func (m *mutator) replace(row *scheme.Resource, body []byte) error {
	obj, strictErrs, err := row.Decode(body, "application/json", m.w.Subresource)
	if err != nil {
		return apierrors.NewInternalError(decodingCause(err))
	}
	if len(strictErrs) > 0 {
		return apierrors.NewInternalError(runtime.NewStrictDecodingError(strictErrs))
	}
	if row.Custom != nil && row != m.w.Resource {
		if obj, err = m.p.Convert(m.w.Resource, obj); err != nil {
			return apierrors.NewInternalError(err)
		}
	}
	if row.ExpectedBody(m.w.Subresource).Kind == row.Kind {
		if err := m.p.Defaults(m.w.Resource, obj); err != nil {
			return err
		}
	}
	m.w.Object = obj
	clear(m.documents)
	return nil
}

// decodingCause removes the prefix that a decoding error has for clients.
func decodingCause(err error) error {
	if _, inner, found := strings.Cut(err.Error(), " cannot be handled as a "); found {
		if _, cause, found := strings.Cut(inner, ": "); found {
			return errors.New(cause)
		}
	}
	return err
}

// ---- ApplyConfiguration

// applied returns the object with an apply configuration merged into it, as JSON.
func (m *mutator) applied(document *document, value ref.Val) ([]byte, error) {
	object, ok := value.(*dynamic.ObjectVal)
	if !ok {
		return nil, fmt.Errorf("unsupported return type from ApplyConfiguration expression: %v", value.Type())
	}
	if err := object.CheckTypeNamesMatchFieldPathNames(); err != nil {
		return nil, fmt.Errorf("type mismatch: %w", err)
	}
	wanted, ok := object.Value().(map[string]any)
	if !ok {
		return nil, fmt.Errorf("invalid return type: %T", value)
	}
	live := document.object.(map[string]any)
	wanted["apiVersion"], wanted["kind"] = live["apiVersion"], live["kind"]
	merged, err := m.p.FieldManager(document.row).Merge(live, wanted, document.row.ExpectedBody(m.w.Subresource).Wire)
	if err != nil {
		return nil, fmt.Errorf("error applying patch: %w", err)
	}
	return json.Marshal(merged)
}

// ---- JSONPatch

// patched returns the object with a list of operations applied, as JSON. It returns nil if a test
// operation fails.
func patched(document *document, value ref.Val) ([]byte, error) {
	steps, err := stepsOf(value)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(document.object)
	if err != nil {
		return nil, err
	}
	doc := patch.NewPatchedDoc(text)
	for _, step := range steps {
		err := doc.Apply(step)
		if err != nil && step.Op == "test" {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("JSON Patch: %s", patchErrorText(&step))
		}
	}
	return doc.Root.Encode()
}

// patchErrorText returns the error message for an operation that does not apply. kube-apiserver's
// messages depend on the details of its library. These are the most common ones.
func patchErrorText(step *patch.PatchStep) string {
	switch step.Op {
	case "add":
		return fmt.Sprintf("add operation does not apply: doc is missing path: %q: missing value", *step.Path)
	case "remove":
		return fmt.Sprintf("remove operation does not apply: doc is missing path: %q: missing value", *step.Path)
	case "replace":
		what := "path"
		if _, err := strconv.Atoi(path.Base(*step.Path)); err == nil { // a list has no such element
			what = "key"
		}
		return fmt.Sprintf("replace operation does not apply: doc is missing %s: %s: missing value", what, *step.Path)
	case "move", "copy":
		from := ""
		if step.From != nil {
			from = *step.From
		}
		return fmt.Sprintf("%s operation does not apply: doc is missing from path: %s: missing value", step.Op, from)
	}
	return "Unexpected kind: " + step.Op
}

// stepsOf converts the result of an expression to patch operations.
func stepsOf(value ref.Val) (steps []patch.PatchStep, err error) {
	list, ok := value.(traits.Lister)
	if !ok {
		return nil, errors.New("type mismatch: JSONPatchType.expression should evaluate to array")
	}
	for at := list.Iterator(); at.HasNext() == types.True; {
		native, err := at.Next().ConvertToNative(reflect.TypeFor[*mutation.JSONPatchVal]())
		if err != nil {
			return nil, fmt.Errorf("type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch: %w", err)
		}
		op, ok := native.(*mutation.JSONPatchVal)
		if !ok {
			return nil, fmt.Errorf("type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch, got element of %T", native)
		}
		step, err := stepOf(op)
		if err != nil {
			return nil, err
		}
		steps = append(steps, step)
	}
	return steps, nil
}

func stepOf(op *mutation.JSONPatchVal) (step patch.PatchStep, err error) {
	step = patch.PatchStep{Op: op.Op, Path: &op.Path}
	if op.From != "" {
		step.From = &op.From
	}
	if op.Val == nil {
		return step, nil
	}
	if object, ok := op.Val.(*dynamic.ObjectVal); ok {
		if err := object.CheckTypeNamesMatchFieldPathNames(); err != nil {
			return step, fmt.Errorf("type mismatch: %w", err)
		}
	}
	const odd = "JSONPath valueExpression evaluated to a type that could not marshal to JSON: %w"
	native, err := op.Val.ConvertToNative(reflect.TypeFor[*structpb.Value]())
	if err != nil {
		return step, fmt.Errorf(odd, err)
	}
	text, err := json.Marshal(native)
	if err != nil {
		return step, fmt.Errorf(odd, err)
	}
	if string(text) != "null" {
		step.Value = &patch.JsonNode{Raw: text}
	}
	return step, nil
}
