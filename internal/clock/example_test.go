package clock_test

import (
	"fmt"
	"time"

	"apilet/internal/clock"
)

// A board without a battery starts in 1970. The newest record of its data file says what has passed, and the time goes on from there.
func Example() {
	machine := time.Unix(0, 0)
	c := clock.New(func() time.Time { return machine })
	fmt.Println(c.Now().Year())

	c.Observe(time.Date(2027, time.May, 1, 0, 0, 0, 0, time.UTC))
	fmt.Println(c.Now().Year(), c.Lag() > 50*365*24*time.Hour)

	machine = time.Date(2028, time.June, 1, 0, 0, 0, 0, time.UTC) // a time server was reached
	fmt.Println(c.Now().Year(), c.Lag())
	// Output:
	// 2026
	// 2027 true
	// 2028 0s
}
