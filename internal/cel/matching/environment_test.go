package matching_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/ext"

	"apilet/internal/cel/celenv"
)

// eval evaluates an expression about the variables a and b.
func eval(t testing.TB, env *cel.Env, expression string, a, b any) (any, error) {
	t.Helper()
	env, err := env.Extend(cel.Variable("a", cel.DynType), cel.Variable("b", cel.DynType))
	if err != nil {
		t.Fatal(err)
	}
	ast, issues := env.Compile(expression)
	if issues.Err() != nil {
		t.Fatal(issues.Err())
	}
	program, err := env.Program(ast)
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := program.Eval(map[string]any{"a": a, "b": b})
	if err != nil {
		return nil, err
	}
	return out.Value(), nil
}

// Each would take minutes, hours, or more memory than there is.
func TestOneCallHasABound(t *testing.T) {
	env := celenv.Base().StoredExpressionsEnv()
	long := strings.Repeat("a", 1<<20)
	numbers := make([]int64, 100_000)
	for i := range numbers {
		numbers[i] = int64(i)
	}
	for _, c := range []struct {
		expression string
		a, b       any
		want       any // nil: an error
	}{
		{"quantity(a)", "1e-2147483648", nil, nil},
		{"isQuantity(a)", "1e-2147483648", nil, false},
		{"isQuantity(a)", "0e-2147483648", nil, false},
		{"isQuantity(a)", strings.Repeat("9", 1<<20), nil, false},
		{"quantity(a).isLessThan(quantity(b))", "1e2147483647", "1", nil},
		{"sign(quantity(a + 'e-' + b))", "1", "2147483648", nil},
		{"a.indexOf(b)", long, long[1:len(long)/2] + "b", int64(-1)},
		{"a.indexOf(b, 5)", long, long[1:len(long)/2] + "b", int64(-1)},
		{"a.lastIndexOf(b)", long, "b" + long[:len(long)/2], int64(-1)},
		{"a.lastIndexOf(b, 900000)", long, "b" + long[:len(long)/2], int64(-1)},
		{"sets.contains(a, b)", numbers, numbers, nil},
		{"sets.equivalent(a, b)", numbers, numbers, nil},
		{"sets.intersects(a, b)", numbers, numbers, nil},
		{"a.distinct().size()", numbers, nil, nil},
		{"lists.range(a).size()", int64(1) << 40, nil, nil},
	} {
		if got, err := eval(t, env, c.expression, c.a, c.b); got != c.want || err == nil != (c.want != nil) {
			t.Errorf("%s: %v, %v; want %v", c.expression, got, err, c.want)
		}
	}
}

// What is bounded means what it meant.
func TestOrdinaryCallsAreAsInCEL(t *testing.T) {
	env := celenv.Base().NewExpressionsEnv()
	library, err := cel.NewEnv(ext.Strings(ext.StringsVersion(2)))
	if err != nil {
		t.Fatal(err)
	}
	texts := []string{"", "a", "ab", "aba", "ababab", "äbäb", "b", "日本日本", "xyz", "\xff"}
	for _, whole := range texts {
		for _, part := range texts {
			calls := []string{"a.indexOf(b)", "a.lastIndexOf(b)"}
			for at := -1; at < 8; at++ {
				calls = append(calls, fmt.Sprintf("a.indexOf(b, %d)", at), fmt.Sprintf("a.lastIndexOf(b, %d)", at))
			}
			for _, call := range calls {
				got, gotErr := eval(t, env, call, whole, part)
				want, wantErr := eval(t, library, call, whole, part)
				if got != want || (gotErr == nil) != (wantErr == nil) {
					t.Errorf("%s of %q and %q: %v, %v; CEL says %v, %v", call, whole, part, got, gotErr, want, wantErr)
				}
			}
		}
	}
	for call, want := range map[string]any{
		"quantity('1.5Gi').isGreaterThan(quantity('1G'))": true, "isQuantity('10Mi')": true, "isQuantity('x')": false, "quantity('1e3').asInteger()": int64(1000),
		"sets.contains([1, 2], [2])": true, "sets.intersects([1], [2])": false, "sets.equivalent([1, 2], [2, 1, 1])": true, "[1, 1, 2].distinct().size()": int64(2),
		"lists.range(3) == [0, 1, 2]": true,
	} {
		if got, err := eval(t, env, call, types.NullValue, types.NullValue); got != want || err != nil {
			t.Errorf("%s: %v, %v", call, got, err)
		}
	}
}
