package autoseats

// This file learns the width and the duration of requests from finished requests.
//
// The estimate for a LIST counts bytes (one seat per 100,000 bytes), because nothing better is
// known in advance. However, 10,000 small objects cost more than a hundred large objects of the
// same total size. Therefore the controller learns the usual time per estimated seat over all
// LISTs. If the requests of a class take twice that time per seat, their width is doubled. The
// correction is limited to a factor of four in both directions, and the caller applies the limits
// for seats afterwards. All times are learned while the machine is idle. Otherwise crowds would
// make requests wide, and wide requests would make crowds.
//
// The expected duration of a request affects the order of flows until the request has ended.
// Kubernetes assumes 3 ms for all requests. In apilet, a create that a webhook usually delays for a
// second is charged for a second from its start.

import (
	"math"
	"time"
)

const widthRange = 4.0 // maximum factor of the correction

// CorrectSeats returns the corrected number of seats for a request. It also returns the usual time
// for which a request of this class holds its seats, or 0 if it is not known.
func (c *Controller) CorrectSeats(id uint64, seats int) (corrected int, held time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.classes[id]
	if k == nil {
		return seats, 0
	}
	held = time.Duration(k.held * 1e9)
	if !k.fromCalm || c.seatTime == 0 {
		return seats, held
	}
	wide := min(widthRange, max(1/widthRange, k.usual/c.seatTime/float64(max(1, seats))))
	return max(1, int(math.Round(wide*float64(seats)))), held
}
