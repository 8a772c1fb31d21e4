package policy

// This file runs validating policies. The following table shows how each result is handled,
// depending on the actions of the binding:
//
//	                     Deny                      Warn               Audit                       failurePolicy Ignore
//	validation false     rejected, its reason      warning            audit annotation            the same
//	validation fails     rejected                  warning            audit annotation            nothing
//	conditions fail      rejected                  warning            audit annotation            nothing
//	no params, no type   rejected, regardless of the binding's actions                            nothing
//
// The first rejection is returned to the client. The remaining policies still run, for their
// warnings and audit annotations.

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

// maxAnnotation is the maximum length of an audit annotation in bytes. Longer ones are truncated.
const maxAnnotation = 10 << 10

// A verdict is the result of a validation that is false or could not be evaluated.
type verdict struct {
	denied   bool
	failed   bool // the evaluation failed; denied is set if that rejects the write
	message  string
	reason   metav1.StatusReason
	duration time.Duration
}

// A finding is the result of evaluating a binding with a param.
type finding struct {
	verdicts []verdict // one for each validation, or a single verdict if there was an error
	notes    []note
	failures []verdict // failed audit annotations, which reject the write regardless of the actions
}

// A note is an audit annotation.
type note struct{ key, value string }

// Validate runs the active validating policies. If one of them rejects the write, it returns a
// Status: 422 Invalid, or the status for the reason that the validation specifies.
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
		if err := s.evaluatePolicy(ctx, policy); err != nil {
			return err
		}
	}
	return s.rejection
}

// A session is a writeContext with the first rejection.
type session struct {
	*writeContext
	rejection error // the first rejection
}

// evaluatePolicy evaluates the given policy for every binding of it. An error does not reject the
// write but ends the request.
func (s *session) evaluatePolicy(ctx context.Context, policy *policy) error {
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
		if err := s.evaluateBinding(ctx, policy, b, row, notes); err != nil {
			return err
		}
	}
	for key, values := range notes {
		s.w.Request.AnnotateOnce(policy.name+"/"+key, strings.Join(values, ", "))
	}
	return nil
}

func (s *session) evaluateBinding(ctx context.Context, policy *policy, b *binding, row *scheme.Resource, notes map[string][]string) error {
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
			s.reject(policy, b, &failure)
			s.p.reportCheck(Check{Policy: policy.name, Binding: b.name, Error: errorType(failure.message), Action: "deny", Duration: failure.duration})
		}
		for _, n := range found.notes {
			if !slices.Contains(notes[n.key], n.value) {
				notes[n.key] = append(notes[n.key], n.value)
			}
		}
	}
	return nil
}

// misconfigured rejects the write because a policy, or the binding b if it is not nil, cannot be
// evaluated. With failurePolicy Ignore it does nothing.
func (s *session) misconfigured(policy *policy, b *binding, err error) {
	if policy.failsOpen {
		return
	}
	what := "policy"
	if b != nil {
		what = "binding"
	}
	s.reject(policy, b, &verdict{message: fmt.Sprintf("failed to configure %s: %v", what, err)})
}

// reject records the rejection if it is the first one.
func (s *session) reject(policy *policy, b *binding, v *verdict) {
	if s.rejection != nil {
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
	s.rejection = err
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

// act applies the binding's actions to each failed validation.
func (s *session) act(ctx context.Context, policy *policy, b *binding, verdicts []verdict) {
	for i := range verdicts {
		v := &verdicts[i]
		check := Check{Policy: policy.name, Binding: b.name, Error: errorType(v.message), Action: "allow", Duration: v.duration}
		if !v.denied {
			if v.failed {
				s.p.reportCheck(check)
			}
			continue
		}
		for _, action := range b.actions {
			check.Action = strings.ToLower(string(action))
			s.p.reportCheck(check)
			switch action {
			case admissionv1.Deny:
				s.reject(policy, b, v)
			case admissionv1.Warn:
				warning.AddWarning(ctx, "", fmt.Sprintf("Validation failed for ValidatingAdmissionPolicy '%s' with binding '%s': %s", policy.name, b.name, v.message))
			case admissionv1.Audit:
				s.audit(policy, b, i, v)
			}
		}
	}
}

// audit adds an audit annotation for a failed validation. If there are several in a request, only
// the first one is kept.
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

// evaluate evaluates all expressions in a policy with the given param.
func (h *writeContext) evaluate(ctx context.Context, policy *policy, document *document, params any) (found finding) {
	failed := func(err error) finding {
		return finding{verdicts: []verdict{{denied: !policy.failsOpen, failed: true, message: err.Error()}}}
	}
	c, err := policy.programs.compiledFor(policy)
	if err != nil {
		return failed(err)
	}
	wanted, err := h.meetsConditions(ctx, c, document, params)
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
		value, wrong, err := e.evaluate(&c.validations[i])
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
		value, wrong, err := e.evaluate(&c.annotations[i])
		if err != nil {
			return failed(err)
		}
		policy.annotate(i, result{value, wrong, time.Since(began)}, &found)
	}
	return found
}

// A result is the value or the error of an expression.
type result struct {
	value    ref.Val
	err      error
	duration time.Duration // for validations and audit annotations
}

// meetsConditions reports whether all matchConditions are true. If one is false, it ignores the
// errors of the others.
func (h *writeContext) meetsConditions(ctx context.Context, c *compiled, document *document, params any) (bool, error) {
	if len(c.conditions) == 0 {
		return true, nil
	}
	a := &activation{h: h, row: document, params: params, authorized: true, anywhere: true}
	e := newEvaluation(ctx, c, a, celconfig.RuntimeCELCostBudgetMatchConditions)
	var errs []error
	for i := range c.conditions {
		value, failed, err := e.evaluate(&c.conditions[i])
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

// messages evaluates all messageExpressions, although only a few may be needed, because their cost
// counts for the policy.
func (h *writeContext) messages(ctx context.Context, c *compiled, document *document, params any, budget int64) (found []result, err error) {
	none := func(m plugincel.CompilationResult) bool { return m.ExpressionAccessor == nil }
	if !slices.ContainsFunc(c.messages, func(m plugincel.CompilationResult) bool { return !none(m) }) {
		return nil, nil
	}
	e := newEvaluation(ctx, c, &activation{h: h, row: document, params: params}, budget)
	for i := range c.messages {
		value, failed, err := e.evaluate(&c.messages[i])
		if err != nil {
			return nil, err
		}
		found = append(found, result{value: value, err: failed})
	}
	return found, nil
}

// verdict returns the verdict for a validation.
func (p *policy) verdict(i int, r result, messages []result, messageErr error) verdict {
	v := &p.validations[i]
	switch {
	case r.err != nil:
		return verdict{denied: !p.failsOpen, failed: true, message: r.err.Error(), duration: r.duration}
	case messageErr != nil:
		return verdict{denied: !p.failsOpen, failed: true, message: "failed messageExpression: " + messageErr.Error(), duration: r.duration}
	case r.value == types.True:
		return verdict{}
	}
	no := verdict{denied: true, reason: metav1.StatusReasonInvalid, duration: r.duration}
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

// annotate adds the result of an audit annotation to found.
func (p *policy) annotate(i int, r result, found *finding) {
	annotation := &p.annotations[i]
	switch {
	case r.err != nil && !p.failsOpen:
		found.failures = append(found.failures, verdict{message: r.err.Error(), duration: r.duration})
	case r.err != nil:
	default:
		text, _ := r.value.Value().(string) // null becomes ""
		if text = strings.TrimSpace(text); text != "" {
			found.notes = append(found.notes, note{annotation.Key, text[:min(len(text), maxAnnotation)]})
		}
	}
}
