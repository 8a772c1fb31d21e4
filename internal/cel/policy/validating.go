package policy

// This file asks validating policies. What one evaluation comes to, for each action of the binding:
//
//	                     Deny                      Warn               Audit                       failurePolicy Ignore
//	validation false     refused, its reason       warning            audit annotation            the same
//	validation fails     refused                   warning            audit annotation            nothing
//	conditions fail      refused                   warning            audit annotation            nothing
//	no params, no type   refused whatever the binding's actions are                               nothing
//
// The first refusal is the request's; the policies after it are asked all the same, for what they have to warn of and to note.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/warning"

	"apilet/internal/cel/matching"
	"apilet/internal/scheme"
)

// maxAnnotation is how many bytes of an audit annotation are kept.
const maxAnnotation = 10 << 10

// A verdict is what a validation, or its failure to be evaluated, comes to.
type verdict struct {
	denied  bool
	failed  bool // to be evaluated; denied says whether that is a refusal
	message string
	reason  metav1.StatusReason
	took    time.Duration
}

// A finding is what became of one binding with one param.
type finding struct {
	verdicts []verdict // by validation; one alone when none could be evaluated
	notes    []note
	failures []verdict // of audit annotations: refusals, whatever the binding's actions are
}

// A note is the value of an audit annotation.
type note struct{ key, value string }

// Validate asks the validating policies that are in force whether they let a write pass. The error is a Status: 422 Invalid, or what the
// validation gives for its reason.
func (p *Policies) Validate(ctx context.Context, w *Write) error {
	set := p.current.Load()
	if set == nil || len(set.validating) == 0 || matching.IsExempt(w.Resource) || w.Resource.Virtual {
		return nil
	}
	s := &session{writeContext: newWriteContext(p, w)}
	for _, policy := range set.validating {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.ask(ctx, policy); err != nil {
			return err
		}
	}
	return s.refusal
}

// A session is a writeContext and what has been refused in it.
type session struct {
	*writeContext
	refusal error // the first
}

// ask asks one policy, by each of its bindings. An error is no refusal but ends the request.
func (s *session) ask(ctx context.Context, policy *policy) error {
	row, err := policy.constraints.matches(s.writeContext)
	if err == nil && row != nil {
		_, err = s.paramRow(policy)
	}
	if err != nil {
		s.misconfigured(policy, nil, err)
		return nil
	}
	if row == nil {
		return nil
	}
	notes := map[string][]string{}
	for _, b := range policy.bindings {
		if err := s.askBinding(ctx, policy, b, row, notes); err != nil {
			return err
		}
	}
	for key, values := range notes {
		s.w.Request.AnnotateOnce(policy.name+"/"+key, strings.Join(values, ", "))
	}
	return nil
}

func (s *session) askBinding(ctx context.Context, policy *policy, b *binding, row *scheme.Resource, notes map[string][]string) error {
	bound, err := b.matches.matches(s.writeContext)
	if err != nil {
		s.misconfigured(policy, b, err)
		return nil
	}
	if bound == nil {
		return nil
	}
	params, err := s.params(ctx, policy, b)
	if err != nil {
		s.misconfigured(policy, b, err)
		return nil
	}
	if len(params) == 0 {
		return nil
	}
	document, err := s.document(row)
	if err != nil {
		s.misconfigured(policy, b, fmt.Errorf("failed to convert object version: %w", err))
		return nil
	}
	if s.hasNamespace() {
		if _, err := s.record(); err != nil {
			return err
		}
	}
	for _, param := range params {
		if err := ctx.Err(); err != nil {
			return err
		}
		found := s.evaluate(ctx, policy, document, param.value)
		s.act(ctx, policy, b, found.verdicts)
		for _, failure := range found.failures {
			s.refuse(policy, b, &failure)
			s.p.tell(Check{Policy: policy.name, Binding: b.name, Error: errorType(failure.message), Action: "deny", Took: failure.took})
		}
		for _, n := range found.notes {
			if !slices.Contains(notes[n.key], n.value) {
				notes[n.key] = append(notes[n.key], n.value)
			}
		}
	}
	return nil
}

// misconfigured is for what keeps a policy, or (b not nil) a binding, from being evaluated at all.
func (s *session) misconfigured(policy *policy, b *binding, err error) {
	if policy.failsOpen {
		return
	}
	what := "policy"
	if b != nil {
		what = "binding"
	}
	s.refuse(policy, b, &verdict{message: fmt.Sprintf("failed to configure %s: %v", what, err)})
}

// refuse remembers a refusal, if it is the first.
func (s *session) refuse(policy *policy, b *binding, v *verdict) {
	if s.refusal != nil {
		return
	}
	by := fmt.Sprintf("ValidatingAdmissionPolicy '%s'", policy.name)
	if b != nil {
		by += fmt.Sprintf(" with binding '%s'", b.name)
	}
	message := by + " denied request: " + v.message
	err := s.w.forbidden(errors.New(message))
	if err.ErrStatus.Reason = v.reason; v.reason == "" {
		err.ErrStatus.Reason = metav1.StatusReasonInvalid
	}
	err.ErrStatus.Code = codeOf(err.ErrStatus.Reason)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Message: message})
	s.refusal = err
}

func codeOf(reason metav1.StatusReason) int32 {
	switch reason {
	case metav1.StatusReasonForbidden:
		return http.StatusForbidden
	case metav1.StatusReasonUnauthorized:
		return http.StatusUnauthorized
	case metav1.StatusReasonRequestEntityTooLarge:
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusUnprocessableEntity
}

// act does with each no what the binding says.
func (s *session) act(ctx context.Context, policy *policy, b *binding, verdicts []verdict) {
	for i := range verdicts {
		v := &verdicts[i]
		check := Check{Policy: policy.name, Binding: b.name, Error: errorType(v.message), Action: "allow", Took: v.took}
		if !v.denied {
			if v.failed {
				s.p.tell(check)
			}
			continue
		}
		for _, action := range b.actions {
			check.Action = strings.ToLower(string(action))
			s.p.tell(check)
			switch action {
			case admissionv1.Deny:
				s.refuse(policy, b, v)
			case admissionv1.Warn:
				warning.AddWarning(ctx, "", fmt.Sprintf("Validation failed for ValidatingAdmissionPolicy '%s' with binding '%s': %s", policy.name, b.name, v.message))
			case admissionv1.Audit:
				s.audit(policy, b, i, v)
			}
		}
	}
}

// audit notes a failed validation. Of several in one request the first stays.
func (s *session) audit(policy *policy, b *binding, index int, v *verdict) {
	type failure struct {
		Message           string                         `json:"message"`
		Policy            string                         `json:"policy"`
		Binding           string                         `json:"binding"`
		ExpressionIndex   int                            `json:"expressionIndex"`
		ValidationActions []admissionv1.ValidationAction `json:"validationActions"`
	}
	value, err := json.Marshal([]failure{{v.message, policy.name, b.name, index, b.actions}})
	if err == nil {
		s.w.Request.AnnotateOnce("validation.policy.admission.k8s.io/validation_failure", string(value))
	}
}

// ---- One evaluation

// evaluate holds a policy's expressions against the write, with one param.
func (h *writeContext) evaluate(ctx context.Context, policy *policy, document *document, params any) (found finding) {
	failed := func(err error) finding {
		return finding{verdicts: []verdict{{denied: !policy.failsOpen, failed: true, message: err.Error()}}}
	}
	c, err := policy.programs.of(policy)
	if err != nil {
		return failed(err)
	}
	wanted, err := h.wanted(ctx, c, document, params)
	if err != nil {
		return failed(err)
	}
	if !wanted {
		return finding{}
	}
	e := newEvaluation(ctx, c, &activation{h: h, row: document, params: params, authorized: true}, celconfig.RuntimeCELCostBudget)
	var results []result
	for i := range c.validations {
		began := time.Now()
		value, wrong, err := e.of(&c.validations[i])
		if err != nil {
			return failed(err)
		}
		results = append(results, result{value, wrong, time.Since(began)})
	}
	messages, messageErr := h.messages(ctx, c, document, params, e.budget)
	for i, r := range results {
		found.verdicts = append(found.verdicts, policy.verdict(i, r, messages, messageErr))
	}
	if len(c.annotations) == 0 {
		return found
	}
	e = newEvaluation(ctx, c, &activation{h: h, row: document, params: params}, celconfig.RuntimeCELCostBudget)
	for i := range c.annotations {
		began := time.Now()
		value, wrong, err := e.of(&c.annotations[i])
		if err != nil {
			return failed(err)
		}
		policy.annotate(i, result{value, wrong, time.Since(began)}, &found)
	}
	return found
}

// A result is what an expression came to, or its error.
type result struct {
	value ref.Val
	err   error
	took  time.Duration // of a validation or an audit annotation
}

// wanted says that the matchConditions hold. One that is false wins over errors.
func (h *writeContext) wanted(ctx context.Context, c *compiled, document *document, params any) (bool, error) {
	if len(c.conditions) == 0 {
		return true, nil
	}
	a := &activation{h: h, row: document, params: params, authorized: true, anywhere: true}
	e := newEvaluation(ctx, c, a, celconfig.RuntimeCELCostBudgetMatchConditions)
	var errs []error
	for i := range c.conditions {
		value, failed, err := e.of(&c.conditions[i])
		switch {
		case err != nil:
			return false, err
		case failed != nil:
			errs = append(errs, failed)
		case value == types.False:
			return false, nil
		}
	}
	return len(errs) == 0, utilerrors.NewAggregate(errs)
}

// messages evaluates the messageExpressions, of all validations, though few will be needed: their cost is the policy's.
func (h *writeContext) messages(ctx context.Context, c *compiled, document *document, params any, budget int64) (found []result, err error) {
	none := func(m plugincel.CompilationResult) bool { return m.ExpressionAccessor == nil }
	if !slices.ContainsFunc(c.messages, func(m plugincel.CompilationResult) bool { return !none(m) }) {
		return nil, nil
	}
	e := newEvaluation(ctx, c, &activation{h: h, row: document, params: params}, budget)
	for i := range c.messages {
		value, failed, err := e.of(&c.messages[i])
		if err != nil {
			return nil, err
		}
		found = append(found, result{value: value, err: failed})
	}
	return found, nil
}

// verdict is what a validation came to.
func (p *policy) verdict(i int, r result, messages []result, messageErr error) verdict {
	v := &p.validations[i]
	switch {
	case r.err != nil:
		return verdict{denied: !p.failsOpen, failed: true, message: r.err.Error(), took: r.took}
	case messageErr != nil:
		return verdict{denied: !p.failsOpen, failed: true, message: "failed messageExpression: " + messageErr.Error(), took: r.took}
	case r.value == types.True:
		return verdict{}
	}
	no := verdict{denied: true, reason: metav1.StatusReasonInvalid, took: r.took}
	if v.Reason != nil {
		no.reason = *v.Reason
	}
	if i < len(messages) && messages[i].err == nil && messages[i].value != nil {
		if text, ok := messages[i].value.Value().(string); ok {
			no.message = strings.TrimSpace(text)
		}
		if len(no.message) > celconfig.MaxEvaluatedMessageExpressionSizeBytes || strings.Contains(no.message, "\n") {
			no.message = ""
		}
	}
	if no.message == "" {
		no.message = strings.TrimSpace(v.Message)
	}
	if no.message == "" {
		no.message = "failed expression: " + strings.TrimSpace(v.Expression)
	}
	return no
}

// annotate adds what an audit annotation came to.
func (p *policy) annotate(i int, r result, found *finding) {
	annotation := &p.annotations[i]
	switch {
	case r.err != nil && !p.failsOpen:
		found.failures = append(found.failures, verdict{message: r.err.Error(), took: r.took})
	case r.err != nil:
	default:
		text, _ := r.value.Value().(string) // else it is null
		if text = strings.TrimSpace(text); text != "" {
			found.notes = append(found.notes, note{annotation.Key, text[:min(len(text), maxAnnotation)]})
		}
	}
}
