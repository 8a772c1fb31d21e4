// Package apierror builds the errors sent to clients and limits their size. A body of 3 MiB can
// contain a hundred thousand errors, each of which may quote megabytes, and Kubernetes' aggregates
// join their texts with quadratic cost. Only the first errors are included in a response, followed
// by the number of other errors:
//
//	ConfigMap "a" is invalid: [metadata.finalizers[0]: Invalid value: ..., metadata.finalizers[1]: ..., and 7000 more]
//
// Within both limits the text is identical to that of kube-apiserver. Errors beyond the limits are
// counted but never formatted, so that the cost depends on the size of the response and not on the
// number of errors.
//
//	return apierror.New(http.StatusConflict, metav1.StatusReasonConflict, "...") // a Status of that code, reason and message
//	return apierror.Invalid(kind, name, errs)                                    // the 422 that lists the errors
//
// Most errors are built by k8s.io/apimachinery/pkg/api/errors; this package adds the missing
// constructors. It imports no other package of apilet.
package apierror

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// maximum number of errors in one response
	MaxErrors = 1000
	// maximum size of all messages in bytes (each is sent twice)
	MaxErrorText = 256 << 10
	// bytes kept at the end of a truncated text, because the reason follows the value
	errorTail = 1 << 10
)

// New returns a Status error with this code, reason and message.
func New(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}}
}

// UpstreamCode returns the status code for a response of another server. It returns 502 for a code
// that is not one of a final HTTP response: net/http panics below 100, takes 1xx for an interim
// response, and clients know no code above 599.
func UpstreamCode(code int) int {
	if code < http.StatusOK || code > 599 {
		return http.StatusBadGateway
	}
	return code
}

// InternalWithoutReason returns a 500 error without a reason. kube-apiserver returns such errors
// from its storage layer, for example if a resourceVersion is invalid or a pod has no target.
func InternalWithoutReason(message string) error {
	return New(http.StatusInternalServerError, "", message)
}

// NoSuchResource returns a 404 error for paths that do not exist.
func NoSuchResource() error {
	return routeError(http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
}

// MethodNotAllowed returns a 405 error for methods that are not supported by the path.
func MethodNotAllowed() error {
	return routeError(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "the server does not allow this method on the requested resource")
}

// routeError returns an error about the path or the method, with empty details.
func routeError(code int32, reason metav1.StatusReason, message string) error {
	err := New(code, reason, message)
	err.ErrStatus.Details = &metav1.StatusDetails{}
	return err
}

// Budget limits the errors in one response. It holds the remaining number and size.
type Budget struct{ count, bytes int }

// NewBudget returns the full budget of MaxErrors errors and MaxErrorText bytes.
func NewBudget() Budget { return Budget{MaxErrors, MaxErrorText} }

// Exhausted reports whether the budget is exhausted.
func (b *Budget) Exhausted() bool { return b.count <= 0 || b.bytes <= 0 }

// Take subtracts an error with this text.
func (b *Budget) Take(text string) {
	b.count--
	b.bytes -= len(text)
}

// Invalid returns the 422 that lists the errors in an object.
func Invalid(kind schema.GroupKind, name string, errs field.ErrorList) *apierrors.StatusError {
	left, causes := NewBudget(), make([]metav1.StatusCause, 0, min(len(errs), MaxErrors)+1)
	message := NewText()
	for i, err := range errs {
		if left.Exhausted() {
			message.AddOmitted(len(errs) - i)
			causes = append(causes, metav1.StatusCause{Message: OmittedText(len(errs) - i)})
			break
		}
		body := err.ErrorBody()
		// A value formatted by Go may be many times longer than its JSON.
		if len(body) > MaxErrorText {
			head, tail := body[:MaxErrorText-errorTail], body[len(body)-errorTail:]
			body = strings.ToValidUTF8(head, "") + "..." + strings.ToValidUTF8(tail, "")
		}
		left.Take(body)
		causes = append(causes, metav1.StatusCause{Type: metav1.CauseType(err.Type), Message: body, Field: err.Field})
		message.Add(err.Field + ": " + body)
	}
	text := fmt.Sprintf("%s %q is invalid", kind.String(), name)
	if list := message.String(); list != "" {
		text += ": " + list
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: text,
		Details: &metav1.StatusDetails{Group: kind.Group, Kind: kind.Kind, Name: name, Causes: causes},
	}}
}

// InvalidObject returns a 422 error that does not refer to a specific field.
func InvalidObject(kind schema.GroupKind, name string, err error) error {
	return apierrors.NewInvalid(kind, name, field.ErrorList{field.Invalid(nil, field.OmitValueType{}, err.Error())})
}

// OmittedText returns the text that counts the omitted errors.
func OmittedText(n int) string { return fmt.Sprintf("and %d more", n) }

// Text formats errors in the same way as Kubernetes' aggregates. Duplicates are omitted, and
// brackets are only added if there are several errors.
type Text struct {
	seen    map[string]bool
	out     strings.Builder
	entries int
}

// NewText returns an empty Text.
func NewText() *Text { return &Text{seen: map[string]bool{}} }

// Add adds an entry, unless an equal entry exists.
func (j *Text) Add(text string) {
	if j.seen[text] {
		return
	}
	j.seen[text] = true
	if j.entries++; j.entries > 1 {
		j.out.WriteString(", ")
	}
	j.out.WriteString(text)
}

// AddOmitted adds an entry that counts the omitted errors.
func (j *Text) AddOmitted(n int) { j.Add(OmittedText(n)) }

// String returns the only entry, or all entries in brackets.
func (j *Text) String() string {
	if j.entries > 1 {
		return "[" + j.out.String() + "]"
	}
	return j.out.String()
}

// Truncate truncates a list of errors. If errors are omitted, the last error contains their number.
func Truncate(errs []error) []error {
	left := NewBudget()
	for i, err := range errs {
		if left.Exhausted() {
			return append(errs[:i:i], errors.New(OmittedText(len(errs)-i)))
		}
		left.Take(err.Error())
	}
	return errs
}

// Join returns one error for a list of errors, in the format of Kubernetes' aggregates. Nil
// errors are ignored. If all errors are nil, it returns nil.
func Join[E error](errs []E) error {
	left, text := NewBudget(), NewText()
	for i, err := range errs {
		switch {
		case any(err) == nil:
		case left.Exhausted():
			text.AddOmitted(len(errs) - i)
			return errors.New(text.String())
		default:
			entry := err.Error()
			left.Take(entry)
			text.Add(entry)
		}
	}
	if text.entries == 0 {
		return nil
	}
	return errors.New(text.String())
}

// TruncateLines truncates an error with many lines. A small YAML file can have half a million
// duplicate keys. (JSON's strict decoder stops at 100 errors.)
func TruncateLines(err error) error {
	lines := strings.SplitN(err.Error(), "\n", MaxErrors+2) // the first line is a title
	if len(lines) < MaxErrors+2 {
		return err
	}
	last := &lines[MaxErrors+1]
	*last = "  " + OmittedText(strings.Count(*last, "\n")+1)
	return errors.New(strings.Join(lines, "\n"))
}

// StrictWarnings returns the warnings for unknown and duplicate fields. Since YAML reports several
// keys in one error, each line of an error becomes a separate warning.
func StrictWarnings(strictErrs []error) (texts []string) {
	for _, err := range strictErrs {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			if line = strings.TrimSpace(line); line != "" && line != "yaml: unmarshal errors:" {
				texts = append(texts, line)
			}
		}
	}
	return texts
}

// NotRegistered returns kube-apiserver's error, including its source position.
func NotRegistered(gvk schema.GroupVersionKind) error {
	return fmt.Errorf("no kind %q is registered for version %q in scheme \"pkg/runtime/scheme.go:111\"", gvk.Kind, gvk.GroupVersion())
}

// InternalName returns the name of a kind in kube-apiserver's messages, for example core.ConfigMap
// or rbac.Role.
func InternalName(group, kind string) string {
	pkg, _, _ := strings.Cut(group, ".")
	if group == "" || group == "events.k8s.io" {
		pkg = "core"
	}
	return pkg + "." + kind
}
