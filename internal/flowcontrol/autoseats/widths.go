package autoseats

// This file learns how wide requests are, and how long they take, from those that ended.
//
// The estimate of a LIST counts bytes (a seat for each 100,000), for want of better. What 10,000 small objects take is not what a hundred
// large ones of as many bytes do. So there is a usual time that one estimated seat of a LIST stands for, over all LISTs; a class whose
// requests take twice that for each of their seats is twice as wide, up to four times more or less, and within what the seats' rules allow
// who asks. The time is the one in calm: else crowds would make requests wide, which makes crowds.
//
// How long a request is likely to hold its seat decides whose turn it is, until it has ended. Kubernetes takes 3 ms for all. A create that
// a webhook keeps for a second is charged for a second from its first moment on.

import (
	"math"
	"time"
)

const widthRange = 4.0 // by how much a width may be corrected

// Learned corrects the estimate of a request's seats, and says how long its like usually held them (0: nobody knows).
func (c *Controller) Learned(id uint64, seats int) (corrected int, held time.Duration) {
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
