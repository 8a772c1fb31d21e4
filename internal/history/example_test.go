package history_test

import (
	"fmt"
	"net/url"
	"time"

	"apilet/internal/history"
)

// A moment is a duration before now, a time, or a revision.
func ExampleParseMoment() {
	now := time.Date(2026, time.November, 1, 12, 0, 0, 0, time.UTC)
	for _, text := range []string{"812", "-5m", "2026-11-01T09:30:00Z", "yesterday"} {
		moment, err := history.ParseMoment(text, now)
		fmt.Println(text, moment.Rev, moment.Time.Format(time.TimeOnly), err != nil)
	}
	// Output:
	// 812 812 00:00:00 false
	// -5m 0 11:55:00 false
	// 2026-11-01T09:30:00Z 0 09:30:00 false
	// yesterday 0 00:00:00 true
}

// Whatever lies under /at/MOMENT/ is the API as it was then.
func ExampleSplitMoment() {
	u, _ := url.Parse("/at/-5m/api/v1/pods?limit=5")
	moment, rest, ok := history.SplitMoment(u)
	fmt.Println(moment, rest, ok)
	// Output:
	// -5m /api/v1/pods?limit=5 true
}
