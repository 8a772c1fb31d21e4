// Package apierror makes the errors that clients read, and bounds them. A body of 3 MiB has room for a hundred thousand mistakes, each of which
// may quote a value of megabytes, and Kubernetes' own aggregates join them by adding string to string, which is quadratic. Here an answer
// names the first mistakes and counts the others:
//
//	ConfigMap "a" is invalid: [metadata.finalizers[0]: Invalid value: ..., metadata.finalizers[1]: ..., and 7000 more]
//
// A list below both bounds reads as kube-apiserver's to the letter; nobody reads a longer one. What is over the bounds is counted and
// never formatted, so that the cost is that of the answer, not of the mistakes.
//
//	return apierror.New(http.StatusConflict, metav1.StatusReasonConflict, "...") // a Status of that code, reason and message
//	return apierror.Invalid(kind, name, errs)                                    // the 422 that names what is wrong
//
// Most errors come from k8s.io/apimachinery/pkg/api/errors; here is what that has no constructor for. Of ours it imports nothing.
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
	MaxErrors    = 1000      // mistakes that one answer names
	MaxErrorText = 256 << 10 // bytes of their text, which stands in an answer twice
	errorTail    = 1 << 10   // bytes at the end of a text that is cut: what is wrong stands behind the value
)

// New is an error that tells clients code, reason and message.
func New(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}}
}

// ForeignCode returns the status code for an answer that another server has given. It returns 502 for a code that is not one of a final HTTP
// response: net/http panics below 100, takes 1xx for an interim response, and clients know no code above 599.
func ForeignCode(code int) int {
	if code < http.StatusOK || code > 599 {
		return http.StatusBadGateway
	}
	return code
}

// Unexplained is the 500 without a reason that kube-apiserver answers where its storage refuses: a resourceVersion that is no number, a pod without a target.
func Unexplained(message string) error { return New(http.StatusInternalServerError, "", message) }

// NoSuchResource is the 404 for a path that leads to no type.
func NoSuchResource() error {
	return router(http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
}

// MethodNotAllowed is the 405 for a path that does not have the method.
func MethodNotAllowed() error {
	return router(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "the server does not allow this method on the requested resource")
}

// router is an error of the path or method: its details are there, and empty.
func router(code int32, reason metav1.StatusReason, message string) error {
	err := New(code, reason, message)
	err.ErrStatus.Details = &metav1.StatusDetails{}
	return err
}

// A Budget is what is left of an answer's room for mistakes.
type Budget struct{ count, bytes int }

// NewBudget is an answer's whole room: MaxErrors mistakes, MaxErrorText bytes.
func NewBudget() Budget { return Budget{MaxErrors, MaxErrorText} }

// Spent says that no further mistake is named.
func (b *Budget) Spent() bool { return b.count <= 0 || b.bytes <= 0 }

// Take counts a mistake of this text.
func (b *Budget) Take(text string) {
	b.count--
	b.bytes -= len(text)
}

// Invalid is the 422 that names what is wrong with an object.
func Invalid(kind schema.GroupKind, name string, errs field.ErrorList) *apierrors.StatusError {
	left, causes := NewBudget(), make([]metav1.StatusCause, 0, min(len(errs), MaxErrors)+1)
	message := NewText()
	for i, err := range errs {
		if left.Spent() {
			message.More(len(errs) - i)
			causes = append(causes, metav1.StatusCause{Message: More(len(errs) - i)})
			break
		}
		body := err.ErrorBody()
		if len(body) > MaxErrorText { // a value of the client's, as Go prints it, may be many times as long as it is in JSON
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

// InvalidWhole is the 422 for what is wrong with an object as a whole.
func InvalidWhole(kind schema.GroupKind, name string, err error) error {
	return apierrors.NewInvalid(kind, name, field.ErrorList{field.Invalid(nil, field.OmitValueType{}, err.Error())})
}

// More is how an answer counts what it does not name.
func More(n int) string { return fmt.Sprintf("and %d more", n) }

// A Text prints as Kubernetes' aggregates do: each text once, one alone without brackets.
type Text struct {
	seen    map[string]bool
	out     strings.Builder
	entries int
}

// NewText is an empty text.
func NewText() *Text { return &Text{seen: map[string]bool{}} }

// Add adds an entry, unless there is an equal one.
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

// More says how many entries were left out.
func (j *Text) More(n int) { j.Add(More(n)) }

// String is the one entry, or all in brackets, as Kubernetes' aggregates write them.
func (j *Text) String() string {
	if j.entries > 1 {
		return "[" + j.out.String() + "]"
	}
	return j.out.String()
}

// Fewer are the first errors of a list, and one that counts the rest.
func Fewer(errs []error) []error {
	left := NewBudget()
	for i, err := range errs {
		if left.Spent() {
			return append(errs[:i:i], errors.New(More(len(errs)-i)))
		}
		left.Take(err.Error())
	}
	return errs
}

// Joined is one error of many, which may be nil, in the words of Kubernetes' aggregates; nil if all are.
func Joined[E error](errs []E) error {
	left, text := NewBudget(), NewText()
	for i, err := range errs {
		switch {
		case any(err) == nil:
		case left.Spent():
			text.More(len(errs) - i)
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

// Shortened cuts an error of many lines: a small file can have half a million duplicate keys. (JSON's strict errors end at 100.)
func Shortened(err error) error {
	lines := strings.SplitN(err.Error(), "\n", MaxErrors+2) // the first is a title
	if len(lines) < MaxErrors+2 {
		return err
	}
	last := &lines[MaxErrors+1]
	*last = "  " + More(strings.Count(*last, "\n")+1)
	return errors.New(strings.Join(lines, "\n"))
}

// StrictWarnings are the texts for unknown and duplicate fields when the client asked for warnings. YAML's complaint about several keys
// is one error of many lines; a warning has one.
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

// NotRegistered keeps kube-apiserver's text, the place in its source included.
func NotRegistered(gvk schema.GroupVersionKind) error {
	return fmt.Errorf("no kind %q is registered for version %q in scheme \"pkg/runtime/scheme.go:111\"", gvk.Kind, gvk.GroupVersion())
}

// InternalName is how kube-apiserver's messages call a kind: core.ConfigMap, rbac.Role.
func InternalName(group, kind string) string {
	pkg, _, _ := strings.Cut(group, ".")
	if group == "" || group == "events.k8s.io" {
		pkg = "core"
	}
	return pkg + "." + kind
}
