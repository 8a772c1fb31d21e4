package policy

// This file asks mutating policies, and makes of an object what their expressions say:
//
//	ApplyConfiguration   Object{metadata: Object.metadata{labels: {"team": "a"}}}      merged as an apply would, but nobody owns the fields
//	JSONPatch            [JSONPatch{op: "add", path: "/spec/replicas", value: 3}]      a test that fails leaves the object as it is
//
// Which policies match is decided by the object as it comes; matchConditions and mutations see what those before made of it. One pass
// asks every invocation (policy, binding, param) once. A second pass, when whatever stands behind in the chain has changed the object,
// asks those that have reinvocationPolicy IfNeeded and saw the object before a later change.

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

// A Rounds remembers between the passes over one write who has to be asked again. The zero value is before the first.
type Rounds struct {
	passes int
	seen   []invocationKey // that would be asked again, had something changed since
	again  map[invocationKey]bool
	last   scheme.Object // as the last pass left it
}

type invocationKey struct{ policy, binding, param string }

// changed says that the object is another one than those who were asked saw.
func (r *Rounds) changed() {
	for _, key := range r.seen {
		if r.again == nil {
			r.again = map[invocationKey]bool{}
		}
		r.again[key] = true
	}
	r.seen = nil
}

// An invocation is one policy to be asked by one binding with one param.
type invocation struct {
	policy *policy
	b      *binding
	param  param
	row    *scheme.Resource
}

func (i *invocation) key() invocationKey { return invocationKey{i.policy.name, i.b.name, i.param.name} }

// A complaint is why a policy refuses, or could not be asked.
type complaint struct {
	policy *policy
	b      *binding // nil: the policy as a whole
	cause  error
	reason metav1.StatusReason
}

func (c *complaint) text() string {
	if c.b != nil {
		return fmt.Sprintf("policy '%s' with binding '%s' denied request: %v", c.policy.name, c.b.name, c.cause)
	}
	return fmt.Sprintf("policy %q denied request: %v", c.policy.name, c.cause)
}

// Mutate lets the mutating policies that are in force change w.Object, in the next pass of rounds, and says whether they did. The error is
// a Status that refuses the write.
func (p *Policies) Mutate(ctx context.Context, w *Write, rounds *Rounds) (changed bool, err error) {
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

// A mutator is a write before the mutating policies, in which the object may change.
type mutator struct {
	*writeContext
	rounds     *Rounds
	mutated    bool
	complaints []complaint
}

func (m *mutator) complain(policy *policy, b *binding, cause error, reason metav1.StatusReason) {
	m.complaints = append(m.complaints, complaint{policy, b, cause, reason})
}

// refusal is what the complaints of policies that do not fail open come to.
func (m *mutator) refusal() error {
	var err *apierrors.StatusError
	for i := range m.complaints {
		c := &m.complaints[i]
		if c.policy.failsOpen {
			continue
		}
		text := c.text()
		if err == nil {
			err = m.w.forbidden(errors.New(text))
			if err.ErrStatus.Message = text; c.reason != "" {
				err.ErrStatus.Reason = c.reason // the code stays 403, as in the real server
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
			m.complain(policy, nil, fmt.Errorf("failed to configure policy: %w", err), "")
			continue
		}
		if row == nil {
			continue
		}
		for _, b := range policy.bindings {
			found, err := m.invocations(ctx, policy, b, row)
			if err != nil {
				m.complain(policy, b, fmt.Errorf("failed to configure binding: %w", err), "")
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
		if err := m.ask(ctx, &calls[i]); err != nil {
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

// ask makes one invocation. An error ends the request.
func (m *mutator) ask(ctx context.Context, call *invocation) error {
	document, err := m.document(call.row)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	c, err := call.policy.programs.of(call.policy)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	wanted, err := m.wanted(ctx, c, document, call.param.value)
	if err != nil {
		m.complain(call.policy, call.b, err, metav1.StatusReasonInvalid)
		return nil
	}
	if !wanted || m.rounds.passes > 1 && !m.rounds.again[call.key()] {
		return nil
	}
	before := m.w.Object
	for i := range c.mutations {
		began := time.Now()
		err := m.mutate(ctx, c, call, i)
		check := Check{Mutating: true, Policy: call.policy.name, Binding: call.b.name, Error: "no_error", Took: time.Since(began)}
		if err != nil {
			check.Error = errorType(err.Error())
		}
		m.p.tell(check)
		var status *apierrors.StatusError
		if errors.As(err, &status) {
			return status
		}
		if err != nil {
			m.complain(call.policy, call.b, err, metav1.StatusReasonInvalid)
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

// mutate evaluates one mutation and makes the object what it says.
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
	value, failed, err := newEvaluation(ctx, c, a, celconfig.RuntimeCELCostBudget).of(program)
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

// replace makes the object what a version's document of it says.
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
	if row.BodyOf(m.w.Subresource).Kind == row.Kind {
		if err := m.p.Defaults(m.w.Resource, obj); err != nil {
			return err
		}
	}
	m.w.Object = obj
	clear(m.documents)
	return nil
}

// decodingCause takes from an error what a body's sender is told around it.
func decodingCause(err error) error {
	if _, inner, found := strings.Cut(err.Error(), " cannot be handled as a "); found {
		if _, cause, found := strings.Cut(inner, ": "); found {
			return errors.New(cause)
		}
	}
	return err
}

// ---- ApplyConfiguration

// applied is the document that an apply configuration makes.
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
	merged, err := m.p.Fields(document.row).Merge(live, wanted, document.row.BodyOf(m.w.Subresource).Wire)
	if err != nil {
		return nil, fmt.Errorf("error applying patch: %w", err)
	}
	return json.Marshal(merged)
}

// ---- JSONPatch

// patched is the document that a list of operations makes; nil when a test of theirs fails.
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
			return nil, fmt.Errorf("JSON Patch: %s", patchWords(&step))
		}
	}
	return doc.Root.Encode()
}

// patchWords says which operation does not apply. The real server's words follow from how its library looks for the place; these are the
// usual ones.
func patchWords(step *patch.PatchStep) string {
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

// stepsOf reads the operations that an expression has made.
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
