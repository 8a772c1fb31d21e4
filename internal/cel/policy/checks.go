package policy

// This file: what metrics are told of an evaluation, by the rules and with the labels of kube-apiserver. A validation is counted when it
// says no or fails, once for each action that the binding draws from that; a mutation each time that it is evaluated.

import (
	"strings"
	"time"
)

// A Check is one evaluation of a validation, an audit annotation or a mutation.
type Check struct {
	Mutating        bool          // by a MutatingAdmissionPolicy
	Policy, Binding string        // their names
	Error           string        // no_error, compile_error, out_of_budget, invalid_error
	Action          string        // allow, deny, audit, warn; "" of a mutation
	Took            time.Duration // how long the evaluation was
}

// errorType sorts what an evaluation said. A validation that is plainly false is an invalid_error, too, as in kube-apiserver.
func errorType(message string) string {
	switch {
	case strings.HasPrefix(message, "compilation"):
		return "compile_error"
	case strings.HasPrefix(message, errOutOfBudget.Error()):
		return "out_of_budget"
	}
	return "invalid_error"
}
