// Package celenv provides the environment for CEL expressions in the objects of tenants. It is
// Kubernetes' environment, but with a bound on the cost of every function.
//
//	envs := celenv.Base() // in place of environment.MustBaseEnvSet
//
// CEL counts the cost of an expression and stops it if the cost is too high. Comprehensions also
// check the deadline of the request. But the cost of a function call is counted only after the
// call, and a call cannot be interrupted. Therefore the cost of a single call must be limited by
// the length of its arguments:
//
//	function                            what it took                                      here
//	quantity, isQuantity                hours, for "1e-2147483648"                        no quantity (bounded.CheckQuantity)
//	indexOf, lastIndexOf                minutes: each place of the one text × the other   linear
//	sets.contains, .equivalent,         hours: each element of the one list × the other   an error above 4 million comparisons
//	.intersects; distinct
//	lists.range                         34 GB, for an int32 of an object                  an error above a million elements
//
// The functions keep their meaning. The overloads in Kubernetes and CEL
// (k8s.io/apiserver/pkg/cel/library, cel-go/ext) are replaced by functions that check their
// arguments first. cel-go allows this if the signatures are equal. They are replaced in the
// environment that the library shares in the whole process, because the library uses it for the
// validators of custom resources.
package celenv

import (
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/decls"
	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"k8s.io/apiserver/pkg/cel/environment"

	"apilet/internal/bounded"
)

const (
	// comparisonsMax is the maximum number of element comparisons in a call. They take some
	// tenths of a second.
	comparisonsMax = 4 << 20
	// rangeMax is the maximum number of elements created by a call. This may be done ten times in
	// an expression.
	rangeMax = 1 << 20
)

// Base returns the environment in which expressions are compiled. It is created once and can be
// extended.
var Base = sync.OnceValue(func() *environment.EnvSet {
	envs := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	for _, env := range []*cel.Env{envs.NewExpressionsEnv(), envs.StoredExpressionsEnv()} {
		for _, b := range bounds {
			if err := b.bind(env); err != nil {
				panic(err) // the library's functions have changed
			}
		}
	}
	return envs
})

// bound replaces an overload of a function. If instead returns nil, the original function is
// called.
type bound struct {
	function, overload string
	instead            func(args ...ref.Val) ref.Val
}

var bounds = []bound{
	{"quantity", "string_to_quantity", func(args ...ref.Val) ref.Val {
		if err := bounded.CheckQuantity(text(args[0])); err != nil {
			return types.WrapErr(err)
		}
		return nil
	}},
	{"isQuantity", "is_quantity_string", func(args ...ref.Val) ref.Val {
		if bounded.CheckQuantity(text(args[0])) != nil {
			return types.False
		}
		return nil
	}},
	{"indexOf", "string_index_of_string", func(args ...ref.Val) ref.Val { return indexFrom(text(args[0]), text(args[1]), 0) }},
	{"indexOf", "string_index_of_string_int", func(args ...ref.Val) ref.Val { return indexFrom(text(args[0]), text(args[1]), number(args[2])) }},
	{"lastIndexOf", "string_last_index_of_string", func(args ...ref.Val) ref.Val { return lastIndex(text(args[0]), text(args[1])) }},
	{"lastIndexOf", "string_last_index_of_string_int", func(args ...ref.Val) ref.Val {
		return lastIndexFrom(text(args[0]), text(args[1]), number(args[2]))
	}},
	{"sets.contains", "list_sets_contains_list", compares},
	{"sets.equivalent", "list_sets_equivalent_list", compares},
	{"sets.intersects", "list_sets_intersects_list", compares},
	{"distinct", "list_distinct", func(args ...ref.Val) ref.Val { return compares(args[0], args[0]) }},
	{"lists.range", "lists_range", func(args ...ref.Val) ref.Val {
		if n := number(args[0]); n > rangeMax {
			return types.NewErr("lists.range: %d elements are too many: at most %d", n, rangeMax)
		}
		return nil
	}},
}

// bind replaces the overload in an environment.
func (b bound) bind(env *cel.Env) error {
	fn := env.Functions()[b.function]
	bindings, err := fn.Bindings()
	if err != nil {
		return err
	}
	for _, o := range fn.OverloadDecls() {
		if o.ID() != b.overload {
			continue
		}
		for _, own := range bindings {
			if own.Operator == b.overload {
				return b.declare(env, o, own)
			}
		}
	}
	return fmt.Errorf("CEL has no overload %s of %s", b.overload, b.function)
}

// declare redeclares the overload with a function that calls instead before the original.
func (b bound) declare(env *cel.Env, o *decls.OverloadDecl, own *functions.Overload) error {
	overload := cel.Overload
	if o.IsMemberFunction() {
		overload = cel.MemberOverload
	}
	var binding cel.OverloadOpt
	switch len(o.ArgTypes()) {
	case 1:
		binding = cel.UnaryBinding(func(arg ref.Val) ref.Val {
			if answer := b.instead(arg); answer != nil {
				return answer
			}
			return own.Unary(arg)
		})
	case 2:
		binding = cel.BinaryBinding(func(a, z ref.Val) ref.Val {
			if answer := b.instead(a, z); answer != nil {
				return answer
			}
			return own.Binary(a, z)
		})
	default:
		binding = cel.FunctionBinding(func(args ...ref.Val) ref.Val {
			if answer := b.instead(args...); answer != nil {
				return answer
			}
			return own.Function(args...)
		})
	}
	_, err := cel.Function(b.function, overload(b.overload, o.ArgTypes(), o.ResultType(), binding))(env)
	return err
}

func text(v ref.Val) string {
	s, _ := v.Value().(string)
	return s
}

func number(v ref.Val) int64 {
	n, _ := v.Value().(int64)
	return n
}

// compares returns an error if comparing each element of one list with each of the other takes too
// long.
func compares(args ...ref.Val) ref.Val {
	a, _ := args[0].(traits.Sizer)
	z, _ := args[1].(traits.Sizer)
	if a == nil || z == nil {
		return nil
	}
	n, m := number(a.Size()), number(z.Size())
	if n > 0 && m > comparisonsMax/n {
		return types.NewErr("lists of %d and %d elements are too long to be compared", n, m)
	}
	return nil
}

// indexFrom returns the index in runes of the first part in whole at or after from, or -1.
func indexFrom(whole, part string, from int64) ref.Val {
	switch {
	case from < 0:
		return types.NewErr("index out of range: %d", from)
	case part == "":
		return types.Int(min(from, int64(utf8.RuneCountInString(whole))))
	}
	skipped := bytesOf(whole, from)
	at := strings.Index(whole[skipped:], part)
	if at < 0 {
		return types.Int(-1)
	}
	return types.Int(from + int64(utf8.RuneCountInString(whole[skipped:skipped+at])))
}

func lastIndex(whole, part string) ref.Val {
	if part == "" {
		return types.Int(utf8.RuneCountInString(whole))
	}
	at := strings.LastIndex(whole, part)
	if at < 0 {
		return types.Int(-1)
	}
	return types.Int(utf8.RuneCountInString(whole[:at]))
}

// lastIndexFrom is like lastIndex, but ignores occurrences that begin after the rune from.
func lastIndexFrom(whole, part string, from int64) ref.Val {
	switch {
	case from < 0:
		return types.NewErr("index out of range: %d", from)
	case part == "":
		return types.Int(min(from, int64(utf8.RuneCountInString(whole))))
	case from >= int64(utf8.RuneCountInString(whole)):
		return types.Int(-1)
	}
	return lastIndex(whole[:min(len(whole), bytesOf(whole, from)+len(part))], part)
}

// bytesOf returns the number of bytes of the first n runes.
func bytesOf(text string, n int64) int {
	for at := range text {
		if n--; n < 0 {
			return at
		}
	}
	return len(text)
}
