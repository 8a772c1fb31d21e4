package commandline

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"testing"
)

// TestFlagsAndArgumentsComeInAnyOrder: but behind -- all are arguments, and so is what begins like a negative number.
func TestFlagsAndArgumentsComeInAnyOrder(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"do a b":              "[a b]  false",
		"do -n x a b":         "[a b] x false",
		"do a -n x b -A":      "[a b] x true",
		"do a b --n=x":        "[a b] x false",
		"do -5m now":          "[-5m now]  false",
		"do a -n -5m":         "[a] -5m false",
		"do -A=false a":       "[a]  false",
		"do -- -A --n":        "[-A --n]  false",
		"do a -- -n":          "[a -n]  false",
		"do -":                "[-]  false",
		"do a -n":             "flag needs an argument: --n",
		"do a --m x":          "unknown flag: --m",
		"do a b c":            `unexpected argument "c"`,
		"do -A=maybe":         "invalid boolean value",
		"do a --help":         "do: test",
		"do a --version":      "the version",
		"do -n --version":     "[] --version false",
		"do ---":              "bad flag syntax",
		"do -=":               "bad flag syntax",
		"do a -n x -n y -A a": "[a a] y true",
	} {
		var out strings.Builder
		p := Program{Name: "p", Version: func(w io.Writer) error { return errors.New("the version") }, Commands: func() []Command {
			name, all := "", false
			return []Command{{}, {Name: "do", Counts: []int{0, 1, 2}, What: "test", Groups: []FlagGroup{{Title: "Flags", Define: func(f *flag.FlagSet) {
				f.StringVar(&name, "n", "", "a name")
				f.BoolVar(&all, "A", false, "all")
			}}}, Run: func(c Call) error {
				_, err := fmt.Fprint(c.Out, c.Args, " ", name, " ", all)
				return err
			}}}
		}}
		p.Run(strings.Fields(args), &out, &out)
		if got := out.String(); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
}
