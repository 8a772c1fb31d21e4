package drain_test

import (
	"errors"
	"fmt"
	"time"

	"apilet/internal/drain"
)

// Work that does not end in time is named.
func ExampleWork() {
	var work drain.Work
	endless := make(chan struct{})
	defer close(endless)
	work.Go("the scrub", func() { <-endless })
	err := work.Wait(50 * time.Millisecond)
	fmt.Println(err, errors.Is(err, drain.ErrUnfinished))
	// Output:
	// the scrub did not end within 50ms true
}
