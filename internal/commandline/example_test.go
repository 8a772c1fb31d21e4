package commandline_test

import (
	"flag"
	"fmt"
	"io"
	"os"

	"apilet/internal/commandline"
)

// The table of commands defines the parser and the help.
func Example() {
	p := commandline.Program{
		Name: "greet", Description: "greet says hello.",
		Version: func(w io.Writer) error { _, err := fmt.Fprintln(w, "1.0"); return err },
		Commands: func() []commandline.Command {
			name := "world"
			define := func(f *flag.FlagSet) { f.StringVar(&name, "name", name, "the `WHO` to greet") }
			return []commandline.Command{{
				ArgCounts: []int{0}, Description: "says hello", Groups: []commandline.FlagGroup{{Title: "Flags", Define: define}},
				Run: func(call commandline.Call) error { _, err := fmt.Fprintln(call.Out, "hello", name); return err },
			}}
		},
	}
	fmt.Println(p.Run([]string{"--name", "reader"}, os.Stdout, os.Stdout))
	fmt.Println(p.Run([]string{"--nmae", "reader"}, os.Stdout, os.Stdout))
	// Output:
	// hello reader
	// 0
	// greet: unknown flag: --nmae: see `greet --help`
	// 2
}

// The value of a list flag is comma-separated, and the flag may be repeated.
func ExampleAppendList() {
	var plugins []string
	set := commandline.AppendList(&plugins)
	fmt.Println(set("NodeRestriction,PodSecurity"), set("ResourceQuota"), plugins)
	// Output:
	// <nil> <nil> [NodeRestriction PodSecurity ResourceQuota]
}
