package policy

// This file defines the metrics for evaluations. It uses the same rules and labels as
// kube-apiserver. A validation is counted if it is false or fails, once for each action of the
// binding. Mutations are counted whenever they are evaluated.

import (
	"strings"
	"time"
)

// Check describes an evaluation of a validation, an audit annotation or a mutation.
type Check struct {
	Mutating        bool          // of a MutatingAdmissionPolicy
	Policy, Binding string        // their names
	Error           string        // no_error, compile_error, out_of_budget or invalid_error
	Action          string        // allow, deny, audit or warn, or empty for a mutation
	Duration        time.Duration // duration of the evaluation
}

// errorType classifies the message of an evaluation. Like kube-apiserver, it also classifies
// validations that are false.
func errorType(message string) string {
	switch {
	case strings.HasPrefix(message, "compilation"):
		return "compile_error"
	case strings.HasPrefix(message, errOutOfBudget.Error()):
		return "out_of_budget"
	}
	return "invalid_error"
}
