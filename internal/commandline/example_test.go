package commandline_test

import (
	"flag"
	"fmt"
	"io"
	"os"

	"apilet/internal/commandline"
)

// One table of commands says what is understood, what is refused, and what help prints.
func Example() {
	p := commandline.Program{
		Name: "greet", Description: "greet says hello.",
		Version: func(w io.Writer) error { _, err := fmt.Fprintln(w, "1.0"); return err },
		Commands: func() []commandline.Command {
			name := "world"
			define := func(f *flag.FlagSet) { f.StringVar(&name, "name", name, "`WHO` is greeted") }
			return []commandline.Command{{
				ArgCounts: []int{0}, Description: "says hello", Groups: []commandline.FlagGroup{{Title: "Whom", Define: define}},
				Run: func(call commandline.Call) error { _, err := fmt.Fprintln(call.Out, "hello", name); return err },
			}}
		},
	}
	fmt.Println(p.Run([]string{"--name", "reader"}, os.Stdout, os.Stdout))
	fmt.Println(p.Run([]string{"--nmae", "reader"}, os.Stdout, os.Stdout))
	// Output:
	// hello reader
	// 0
	// greet: unknown flag: --nmae: `greet --help` lists what it understands
	// 2
}

// A flag of a list may be given several times, and each time name several.
func ExampleAppendList() {
	var plugins []string
	set := commandline.AppendList(&plugins)
	fmt.Println(set("NodeRestriction,PodSecurity"), set("ResourceQuota"), plugins)
	// Output:
	// <nil> <nil> [NodeRestriction PodSecurity ResourceQuota]
}
