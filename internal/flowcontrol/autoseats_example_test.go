package flowcontrol_test

import (
	"fmt"
	"time"

	"apilet/internal/flowcontrol/autoseats"
)

// Example_autoseats shows that the number of seats is increased if the duration of requests does
// not depend on the load, and that it is not increased if requests become slower.
func Example_autoseats() {
	for _, each := range []time.Duration{20 * time.Millisecond, 400 * time.Millisecond} {
		c := autoseats.New(autoseats.Bounds{Cores: 2, MinSeats: 8, MaxSeats: 600})
		now := time.Date(2026, time.November, 1, 12, 0, 0, 0, time.UTC)
		for range 20 { // learn the usual duration without load
			now = now.Add(250 * time.Millisecond)
			c.Done(autoseats.Outcome{Class: 1, Seats: 1, Started: now.Add(-20 * time.Millisecond), Service: 20 * time.Millisecond})
			c.Tick(autoseats.Sample{Now: now, InUse: 1})
		}
		first, seats := c.State().Seats, 0
		for range 8 { // a request is now waiting for a seat, and each list takes the given time
			now = now.Add(250 * time.Millisecond)
			inUse := float64(c.State().Seats)
			for range 20 {
				c.Done(autoseats.Outcome{Class: 1, Seats: 1, Started: now.Add(-each), Service: each})
			}
			seats = c.Tick(autoseats.Sample{Now: now, InUse: inUse, Saturated: true})
		}
		fmt.Println(each, "more seats:", seats > first)
	}
	// Output:
	// 20ms more seats: true
	// 400ms more seats: false
}
