package logonce_test

import (
	"errors"
	"os"

	"github.com/rs/zerolog"

	"apilet/internal/logonce"
)

// A thousand failures are two lines: when it began, and when it was over.
func ExampleLog_Report() {
	t := logonce.New(zerolog.New(os.Stdout))
	for range 1000 {
		t.Report("audit log", errors.New("no space left on device"))
	}
	t.Report("audit log", nil)
	t.Report("audit log", nil)
	// Output:
	// {"level":"error","error":"no space left on device","what":"audit log","message":"failing; the log will say when it recovers"}
	// {"level":"info","what":"audit log","message":"recovered"}
}
