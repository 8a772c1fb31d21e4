package options_test

import (
	"flag"
	"fmt"
	"io"
	"strings"

	"apilet/internal/options"
)

// A mistake is told before a file or port is opened: of one flag by Parse, of several together by Finish.
func ExampleOptions_Finish() {
	for _, line := range []string{"", "--max-requests-inflight=auto", "--max-requests-inflight=auto --max-mutating-requests-inflight=10"} {
		var o options.Options
		set := flag.NewFlagSet("apilet", flag.ContinueOnError)
		set.SetOutput(io.Discard)
		for _, group := range o.Groups() {
			group.Define(set)
		}
		err := set.Parse(strings.Fields(line))
		if err == nil {
			err = o.Finish()
		}
		fmt.Println(o.Seats(), err)
	}
	// Output:
	// 600 <nil>
	// -1 <nil>
	// -1 --max-requests-inflight=auto applies to both limits: --max-mutating-requests-inflight must be auto or not set
}
