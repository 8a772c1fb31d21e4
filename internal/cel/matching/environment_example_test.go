package matching_test

import (
	"fmt"

	"apilet/internal/cel/celenv"
)

// An expression is Kubernetes' CEL. What would cost more than its arguments are long is an error.
func Example_environment() {
	env := celenv.Base().NewExpressionsEnv()
	for _, expression := range []string{
		`quantity("1.5Gi").isGreaterThan(quantity("1G"))`,
		`isQuantity("1e-2147483648")`,
		`lists.range(1000000000).size()`,
	} {
		ast, issues := env.Compile(expression)
		if issues.Err() != nil {
			fmt.Println(issues.Err())
			continue
		}
		program, err := env.Program(ast)
		if err != nil {
			fmt.Println(err)
			continue
		}
		value, _, err := program.Eval(map[string]any{})
		if err != nil {
			value = nil
		}
		fmt.Println(value, err)
	}
	// Output:
	// true <nil>
	// false <nil>
	// <nil> lists.range: 1000000000 elements are too many: at most 1048576
}
