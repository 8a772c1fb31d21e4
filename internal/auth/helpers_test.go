package auth

import (
	"strings"

	"apilet/internal/auth/rbac"
	"apilet/internal/scheme"
)

// testPolicy reads the notation of rbac_defaults.txt; bindings that it cannot say are added by hand.
func testPolicy(text string) (objects []scheme.Object) {
	var role scheme.Object
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case line[0] != '\t':
			role = rbac.ParseRole(words)
			objects = append(objects, role)
		case words[0] == "to":
			objects = append(objects, rbac.ParseBinding(role, words[1:]))
		default:
			*rbac.RulesOf(role) = append(*rbac.RulesOf(role), rbac.ParseRule(words))
		}
	}
	return objects
}
